"""What data-parallel ranks exchange around the passes of a stage: the frame of all kinds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from simulator.training.gpu_time import ComputeLike, Host
from simulator.training.layer_tasks import LayerTasks
from simulator.training.pipeline import PassKind
from simulator.training.plan import Task
from simulator.training.strategy import Strategy
from simulator.training.tape import Tape, joined

__all__ = ["DataSync", "StageContext"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StageContext:
    """One pipeline stage, as its data-parallel ranks see it."""

    stage: int
    chunks: tuple[tuple[LayerTasks, ...], ...]
    strategy: Strategy
    sizes: dict[str, int]
    """Ranks in a group of each axis."""
    compute: ComputeLike
    host: Host

    @property
    def dense(self) -> int:
        """Parameters on a rank of the stage that are no expert's."""
        return sum(layer.dense for chunk in self.chunks for layer in chunk)

    @property
    def expert(self) -> int:
        """Parameters on a rank of the stage that are an expert's."""
        return sum(layer.expert for chunk in self.chunks for layer in chunk)


class DataSync:
    """Data-parallel ranks that exchange nothing; the base of all kinds.

    Parameters
    ----------
    context
        The stage.
    """

    def __init__(self, context: StageContext) -> None:
        self.context = context
        self.strategy = context.strategy
        self.options = context.strategy.data_parallel
        self.precision = context.strategy.precision
        self.compute = context.compute

    def tape(self) -> Tape:
        """Return an empty tape for this stage."""
        return Tape(self.context.sizes)

    def begin(self) -> Sequence[Task]:
        """Return what precedes the first pass."""
        return ()

    def run(self, kind: PassKind, chunk: int, *, first: bool, last: bool) -> Sequence[Task]:
        """Return a pass through a chunk.

        Parameters
        ----------
        kind, chunk
            Which pass.
        first, last
            It is the chunk's first, last pass of this kind in the step.
        """
        return joined(self.parts(kind, chunk))

    def parts(self, kind: PassKind, chunk: int) -> list[tuple[Task, ...]]:
        """Return the tasks of a pass layer by layer, in the order in which they run."""
        layers = self.context.chunks[chunk]
        if kind == "forward":
            return [layer.forward for layer in layers]
        return [getattr(layer, kind) for layer in reversed(layers)]

    def finish(self) -> Sequence[Task]:
        """Return what completes the gradients after the last pass."""
        return ()

    def owned(self) -> int:
        """Return the parameters that a rank updates."""
        if self.options.kind == "ddp":
            return self.context.dense + self.context.expert
        sizes = self.context.sizes
        return -(-self.context.dense // sizes["shard"]) + -(
            -self.context.expert // sizes["expert_shard"]
        )

    def update(self) -> Sequence[Task]:
        """Return the optimiser step and what follows it."""
        tape = self.tape()
        precision = self.precision
        tape.compute(
            "optimizer",
            self.compute.optimizer_s(
                self.owned(),
                kind=self.strategy.optimizer,
                parameter_bytes=precision.parameter_bytes,
                gradient_bytes=precision.gradient_bytes,
                master_bytes=precision.master_bytes,
                moment_bytes=precision.moment_bytes,
                clip=self.strategy.optimizer == "adam",
            ),
            "optimizer",
        )
        return tape.tasks
