"""A layer's work on one rank as computes and the collectives between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from simulator.models.kernels import Operation, Phase, Sync, Work
from simulator.models.model import Layer, Slice
from simulator.training.gpu_time import ComputeLike
from simulator.training.plan import Purpose, Task
from simulator.training.strategy import Strategy
from simulator.training.tape import Tape

__all__ = ["LayerTasks", "LocalParameter", "slice_of", "tasks_of_layer"]

PURPOSE: dict[Phase, Purpose] = {
    "forward": "forward",
    "recompute": "recompute",
    "input_gradient": "backward",
    "weight_gradient": "backward",
}

ELEMENT_BYTES = {"float32": 4, "tf32": 4}
"""Of activations: two bytes for all shorter types (products in fp8 keep their inputs' gradients
and residuals in bf16)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalParameter:
    """What a rank of the tensor and expert axes holds of a parameter."""

    name: str
    shape: tuple[int, ...]
    """Of the whole tensor."""
    count: int
    """Elements on this rank."""
    expert: bool
    """It belongs to routed experts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerTasks:
    """What one micro-batch makes a rank do in one layer."""

    layer: Layer
    forward: tuple[Task, ...]
    backward: tuple[Task, ...]
    """Recomputation, gradients of inputs and of weights."""
    input_gradient: tuple[Task, ...]
    """Backward without `weight_gradient`; both only for schedules that part them."""
    weight_gradient: tuple[Task, ...]
    parameters: tuple[LocalParameter, ...]
    """In the order in which the framework registers them."""

    def count(self, *, expert: bool, least: int = 0) -> int:
        """Return the elements of experts' or of other parameters that have at least so many."""
        return sum(p.count for p in self.parameters if p.expert == expert and p.count >= least)


def slice_of(strategy: Strategy, seq: int, *, recompute: bool = True) -> Slice:
    """Return what one rank computes of each layer in one pass."""
    return Slice(
        micro_batch=strategy.micro_batch,
        seq=seq,
        tensor=strategy.tensor,
        sequence_parallel=strategy.sequence_parallel and strategy.tensor > 1,
        context=strategy.context,
        context_kind=strategy.context_kind,
        expert=strategy.expert,
        expert_tensor=strategy.expert_tensor or strategy.tensor,
        expert_imbalance=strategy.expert_imbalance,
        capacity_factor=strategy.capacity_factor,
        attention=strategy.attention,
        recompute=_recompute(strategy) if recompute else "none",
        activation_bytes=ELEMENT_BYTES.get(strategy.precision.compute, 2),
        compiled=strategy.compiled,
        dropout=strategy.dropout,
    )


def _recompute(strategy: Strategy) -> Literal["none", "selective", "operators", "full"]:
    """Return what is computed again: PyTorch's selective checkpointing works by operator."""
    by_operator = strategy.framework == "torch" and strategy.recompute == "selective"
    return "operators" if by_operator else strategy.recompute


def tasks_of_layer(
    layer: Layer,
    part: Slice,
    strategy: Strategy,
    compute: ComputeLike,
    sizes: dict[str, int],
    *,
    own_tied: bool = False,
    visits: int = 0,
) -> LayerTasks:
    """Return the tasks of one layer.

    Parameters
    ----------
    layer, part
        The layer, and what of it a rank computes.
    strategy, compute
        How the work is spread, how long it takes.
    sizes
        Ranks in a group of each axis.
    own_tied
        Parameters tied to one of another stage have storage of their own here.
    visits
        Experts that each token goes to.
    """
    dtype = strategy.precision.compute
    forward = layer.forward(part)
    backward = layer.backward(part)
    # Of what an exchange of tokens carries, the part that crosses to other nodes.
    share = min(1.0, (strategy.routed_nodes or 0) / max(1, visits))
    times = compute.work_s(backward, dtype)
    split = strategy.schedule in ("zb_h1", "zb_h2")
    name = layer.name

    def cut(weights: bool) -> tuple[Task, ...]:
        # What a tensor-parallel exchange would run beside is in the other part.
        kept = [i for i, of in enumerate(backward) if (of.phase == "weight_gradient") == weights]
        work = [
            replace(of, overlaps=False) if isinstance(of, Sync) and of.axis == "tensor" else of
            for of in (backward[index] for index in kept)
        ]
        return expand(work, [times[index] for index in kept], name, strategy, sizes, share)

    ways = {
        "none": 1,
        "tensor": part.tensor,
        "expert": part.expert * part.expert_tensor,
    }
    return LayerTasks(
        layer=layer,
        forward=expand(forward, compute.work_s(forward, dtype), name, strategy, sizes, share),
        backward=expand(backward, times, name, strategy, sizes, share),
        input_gradient=cut(False) if split else (),
        weight_gradient=cut(True) if split else (),
        parameters=tuple(
            LocalParameter(
                name=p.name,
                shape=p.shape,
                count=-(-p.count // ways[p.sharding]),
                expert=p.sharding == "expert",
            )
            for p in layer.parameters
            if own_tied or not p.tied_to
        ),
    )


class _Writer:
    """Collects kernels until a synchronisation; then they are one compute."""

    def __init__(self, layer: str, sizes: dict[str, int], share: float) -> None:
        self.tape = Tape(sizes)
        self._sizes = sizes
        self._share = share
        self._layer = layer
        self._purpose: Purpose = "forward"
        self._seconds = 0.0

    def kernel(self, phase: Phase, seconds: float) -> None:
        purpose = PURPOSE[phase]
        if purpose != self._purpose:
            self.flush()
            self._purpose = purpose
        self._seconds += seconds

    def flush(self) -> None:
        self.tape.compute(f"{self._purpose} {self._layer}", self._seconds, self._purpose)
        self._seconds = 0.0

    def sync(self, sync: Sync, stream: str) -> None:
        self.flush()
        whole: list[tuple[str, str, int]] = [(sync.name, sync.axis, sync.size_bytes)]
        limited = self._sizes.get("expert_near", 1) > 1 and self._sizes["expert_across"] > 1
        if limited and sync.axis == "expert" and sync.collective == "all_to_all":
            whole = [
                (f"{sync.name} across", "expert_across", int(sync.size_bytes * self._share)),
                (f"{sync.name} near", "expert_near", sync.size_bytes),
            ]
        for name, axis, size_bytes in whole * sync.times:
            self.tape.call(
                f"{name} {self._layer}",
                sync.collective,
                size_bytes,
                axis,
                stream=stream,
                traffic=sync.axis,
                after=None if stream == "compute" else "compute",
            )


def expand(
    work: Work | Sequence[Operation],
    times_s: Sequence[float],
    layer: str,
    strategy: Strategy,
    sizes: dict[str, int],
    share: float = 1.0,
) -> tuple[Task, ...]:
    """Return operations as tasks: kernels between two synchronisations become one compute.

    Notes
    -----
    A synchronisation holds up the kernels after it.  One that overlaps runs beside the kernel
    that follows, as each shift of a ring; n > 1 shifts in one operation run beside n of the n + 1
    equal pieces of that kernel, so that the pair takes n max(piece, shift) + piece.  With
    `overlap_tensor` a tensor-parallel all_gather runs in the same way beside the product after
    it, a reduce_scatter beside the one before it, in as many pieces as there are ranks
    (Transformer Engine's user buffers).

    With node-limited routing a token crosses the network once to each of at most `routed_nodes`
    nodes and is spread there over NVLink (DeepSeek-V3, arXiv:2412.19437, section 3.2.2): an
    exchange between ranks of the same place in their nodes, of `share` of the bytes, and one
    within nodes.
    """
    out = _Writer(layer, sizes, share)
    index = 0
    while index < len(work):
        operation = work[index]
        if not isinstance(operation, Sync):
            after = work[index + 1] if index + 1 < len(work) else None
            if (
                isinstance(after, Sync)
                and after.collective == "reduce_scatter"
                and _in_pieces(after, strategy, sizes)
            ):
                pieces = sizes["tensor"]
                out.kernel(operation.phase, times_s[index] / pieces)
                out.sync(after, "tensor")
                done = out.tape.mark("tensor")
                out.kernel(operation.phase, times_s[index] * (1 - 1 / pieces))
                out.flush()
                out.tape.wait(done)
                index += 2
                continue
            out.kernel(operation.phase, times_s[index])
            index += 1
            continue
        beside = []
        while index < len(work):
            operation = work[index]
            if not isinstance(operation, Sync) or not _beside(
                operation, work[index + 1 :], strategy, sizes
            ):
                break
            beside.append(operation)
            index += 1
        if not beside:
            assert isinstance(operation, Sync)
            out.sync(operation, "compute")
            index += 1
            continue
        for sync in beside:
            out.sync(sync, sync.axis)
        marks = [out.tape.mark(stream) for stream in dict.fromkeys(s.axis for s in beside)]
        if index < len(work) and not isinstance(work[index], Sync):
            tail = max(_tail(sync, sizes) for sync in beside)
            out.kernel(work[index].phase, times_s[index] * (1 - tail))
            out.flush()
            for mark in marks:
                out.tape.wait(mark)
            out.kernel(work[index].phase, times_s[index] * tail)
            index += 1
        else:
            out.flush()
            for mark in marks:
                out.tape.wait(mark)
    out.flush()
    return tuple(out.tape.tasks)


def _in_pieces(sync: Sync, strategy: Strategy, sizes: dict[str, int]) -> bool:
    return strategy.overlap_tensor and sync.axis == "tensor" and sizes["tensor"] > 1


def _beside(
    sync: Sync, after: Sequence[Operation], strategy: Strategy, sizes: dict[str, int]
) -> bool:
    """Return whether a synchronisation runs beside the kernel after it."""
    if sizes.get(sync.axis, 1) == 1:
        return False
    if sync.overlaps:
        return True
    return (
        sync.collective == "all_gather"
        and _in_pieces(sync, strategy, sizes)
        and bool(after)
        and not isinstance(after[0], Sync)
    )


def _tail(sync: Sync, sizes: dict[str, int]) -> float:
    """Return the share of the kernel beside a synchronisation that must wait for all of it."""
    if sync.collective == "send_recv":
        return 1.0 / (sync.times + 1) if sync.times > 1 else 0.0
    return 0.0 if sync.overlaps else 1.0 / sizes["tensor"]
