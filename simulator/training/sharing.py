"""What data-parallel ranks exchange around the passes of a stage: the frame of all kinds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from simulator.training.gpu_time import ComputeLike, Host
from simulator.training.halves import in_halves
from simulator.training.layer_tasks import LayerTasks
from simulator.training.pipeline import PassKind
from simulator.training.plan import Task, Wait
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

    def count(self, *, expert: bool) -> int:
        """Return the parameters on a rank of the stage that are experts', or the others."""
        return sum(layer.count(expert=expert) for chunk in self.chunks for layer in chunk)


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
        return self.merged(self.parts(kind, chunk))

    def merged(self, parts: Sequence[Sequence[Task]]) -> tuple[Task, ...]:
        """Return layers one after another, in halves where the strategy says so."""
        tasks = joined(parts)
        return in_halves(tasks) if self.strategy.overlap_expert else tasks

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
        total = 0
        for expert, axis in ((False, "shard"), (True, "expert_shard")):
            ways = 1 if self.options.kind == "ddp" else self.context.sizes[axis]
            total += -(-self.context.count(expert=expert) // ways)
        return total

    def update(self) -> Sequence[Task]:
        """Return the optimiser step and what follows it.

        Notes
        -----
        An offloaded optimiser runs on the CPU while its states come from and go to storage, where
        they are kept there; then the updated parameters cross to the GPU (Ren et al. 2021,
        arXiv:2101.06840; Rajbhandari et al. 2021, arXiv:2104.07857).
        """
        tape = self.tape()
        owned = self.owned()
        precision = self.precision
        if self.options.offload_optimizer == "none":
            seconds = self.compute.optimizer_s(
                owned,
                kind=self.strategy.optimizer,
                parameter_bytes=precision.parameter_bytes,
                gradient_bytes=precision.gradient_bytes,
                master_bytes=precision.master_bytes,
                moment_bytes=precision.moment_bytes,
                clip=self.strategy.optimizer == "adam",
            )
            tape.compute("optimizer", seconds, "optimizer")
            return tape.tasks
        host = self.context.host
        seconds = self.compute.cpu_optimizer_s(
            owned,
            host.memory_Bps,
            parameter_bytes=precision.parameter_bytes,
            gradient_bytes=precision.gradient_bytes,
            master_bytes=precision.master_bytes,
            moment_bytes=precision.moment_bytes,
        )
        if self.options.offload_optimizer == "nvme":
            states = 2.0 * owned * (precision.master_bytes + precision.moment_bytes)
            seconds = max(seconds, states / host.storage_Bps)
        tape.compute("optimizer on the CPU", seconds, "optimizer")
        self.host_copy(tape, "parameters to the GPU", owned * precision.gather_bytes, "compute")
        return tape.tasks

    def host_copy(self, tape: Tape, name: str, n_bytes: float, stream: str) -> None:
        """Append a copy over the host's link."""
        seconds = self.compute.host_copy_s(n_bytes, self.context.host.link_Bps)
        tape.compute(name, seconds, "copy", stream)

    def offload_gradients(self, tape: Tape, count: int, after: str) -> None:
        """Append the copy of a rank's reduced gradients to an optimiser on the CPU."""
        if self.options.offload_optimizer != "none":
            tape.tasks.append(Wait(on=after, stream="copy"))
            self.host_copy(
                tape, "gradients to the CPU", count * self.precision.reduce_bytes, "copy"
            )
