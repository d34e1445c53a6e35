"""What would make a step fit into memory: changes of the strategy, the cheapest first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from simulator.models.model import Model
from simulator.training.check import problems_of
from simulator.training.memory import MemoryReport, memory_report
from simulator.training.strategy import DataParallel, Kind, Strategy

__all__ = ["Remedy", "remedies"]


_HELPS = 0.97
"""A change that saves less than three percent is not worth a step of a sum."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """One change, or several together, that need less memory."""

    what: str
    """In words: ``recompute: full``."""
    strategy: Strategy
    report: MemoryReport
    peak_bytes: float
    fits: bool
    cost: int
    """Rank by the time it usually costs: 0 none or a gain, then more.  The caller who can
    simulate a step sorts by the step's time instead."""


@dataclass(frozen=True, slots=True)
class _Change:
    kind: str
    """Changes of one kind replace each other."""
    what: str
    cost: int
    strategy: Strategy


def remedies(
    model: Model, strategy: Strategy, gpu_memory_bytes: float, *, gpus_per_node: int = 8
) -> tuple[Remedy, ...]:
    """Return changes that need less memory on the same GPUs with the same global batch.

    Those that fit come first, by cost, then the others by memory.  Changes are also added up from
    the cheapest on until they fit; where that is cheaper than any single change that fits, or
    none does, the sum is among those returned.

    Parameters
    ----------
    model, strategy
        What does not fit.
    gpu_memory_bytes
        Memory of a GPU.
    gpus_per_node
        Tensor parallelism is not proposed beyond a node.

    Notes
    -----
    Costs in order: kernels that need less for nothing (FlashAttention, sequence parallelism);
    selective recomputation (about 3 % of a step's FLOPs; Korthikanti et al. 2022, section 5);
    sharded optimiser states and gradients (no more traffic; Rajbhandari et al. 2020, section 7);
    smaller micro-batches; full recomputation (a third more FLOPs); sharded parameters (half more
    traffic); more tensor, pipeline or context ranks; offload (traffic over PCIe).
    """
    before = memory_report(model, strategy).peak_bytes
    found: list[Remedy] = []
    for change in _changes(model, strategy, gpus_per_node):
        remedy = _tried(model, strategy, change, gpu_memory_bytes)
        if remedy is not None and remedy.peak_bytes < before:
            found.append(remedy)
    limit = min((remedy.cost for remedy in found if remedy.fits), default=None)
    found += _summed(model, strategy, gpu_memory_bytes, gpus_per_node, limit)
    fitting = sorted((r for r in found if r.fits), key=lambda r: (r.cost, r.peak_bytes))
    others = sorted((r for r in found if not r.fits), key=lambda r: r.peak_bytes)
    return (*fitting, *others)


def _tried(
    model: Model, before: Strategy, change: _Change, gpu_memory_bytes: float
) -> Remedy | None:
    """Return a change with its memory, or None where the model or the framework forbids it."""
    after = change.strategy
    if problems_of(model, after, before.world_size):
        return None
    report = memory_report(model, after)
    return Remedy(
        what=change.what,
        strategy=after,
        report=report,
        peak_bytes=report.peak_bytes,
        fits=report.fits(gpu_memory_bytes),
        cost=change.cost,
    )


def _changes(model: Model, s: Strategy, gpus_per_node: int) -> Iterator[_Change]:
    """Generate single changes, the cheapest first."""
    if s.attention == "standard" and model.heads:
        yield _Change("attention", "attention: flash", 0, replace(s, attention="flash"))
    if s.tensor > 1 and not s.sequence_parallel:
        yield _Change("sequence", "sequence parallelism", 0, replace(s, sequence_parallel=True))
    if s.recompute == "none" and s.attention == "standard":
        yield _Change("recompute", "recompute: selective", 1, replace(s, recompute="selective"))
    yield from _shard(s)
    yield from _less_at_once(s)
    if s.recompute != "full" or s.recompute_layers is not None:
        full = replace(s, recompute="full", recompute_layers=None)
        yield _Change("recompute", "recompute: full", 5, full)
    yield from _more_ranks(model, s, gpus_per_node)
    yield from _offload(s)


def _with(s: Strategy, **choices: object) -> Strategy:
    data: DataParallel = replace(s.data_parallel, **choices)  # type: ignore[arg-type]
    return replace(s, data_parallel=data)


_STAGES: dict[str, tuple[tuple[str, Kind, int], ...]] = {
    "megatron": (("distributed optimiser", "zero1", 2), ("FSDP", "fsdp", 6)),
    "torch": (("ZeRO stage 1", "zero1", 2), ("FSDP", "fsdp", 6)),
    "deepspeed": (
        ("ZeRO stage 1", "zero1", 2),
        ("ZeRO stage 2", "zero2", 3),
        ("ZeRO stage 3", "zero3", 6),
    ),
}
_ORDER: tuple[Kind, ...] = ("ddp", "zero1", "zero2", "zero3", "fsdp")


def _shard(s: Strategy) -> Iterator[_Change]:
    """Generate higher stages of sharding, by the framework's names."""
    data = s.data_parallel
    if s.data * s.context == 1:
        return
    if data.kind == "fsdp" and not data.reshard_after_forward:
        resharded = _with(s, reshard_after_forward=True)
        yield _Change("shard", "reshard after forward", 6, resharded)
    for what, kind, cost in _STAGES[s.framework]:
        higher = _ORDER.index(kind) > _ORDER.index(data.kind) and data.kind != "zero3"
        # Sharded gradients have no place to accumulate in a pipeline of many micro-batches.
        if higher and (kind == "zero1" or s.pipeline == 1):
            every = kind != "zero1" and s.micro_batches > 1
            changed = _with(s, kind=kind, reduce_every_micro_batch=every)
            yield _Change("shard", what, cost, changed)
    if data.shard is not None and data.kind != "ddp":
        yield _Change("group", "shard over all replicas", 6, _with(s, shard=None))


def _less_at_once(s: Strategy) -> Iterator[_Change]:
    """Generate smaller micro-batches of the same global batch."""
    size = s.micro_batch
    while size % 2 == 0:
        size //= 2
        more = s.micro_batches * (s.micro_batch // size)
        smaller = replace(s, micro_batch=size, micro_batches=more)
        yield _Change("micro-batch", f"micro-batch {size}", 4, smaller)
    if s.pipeline > 1 and s.schedule == "gpipe":
        yield _Change("schedule", "schedule 1f1b", 1, replace(s, schedule="1f1b"))
    if s.pipeline > 1 and s.schedule == "zb_h2":
        yield _Change("schedule", "schedule zb_h1", 4, replace(s, schedule="zb_h1"))


def _more_ranks(model: Model, s: Strategy, gpus_per_node: int) -> Iterator[_Change]:
    """Generate twice and four times as many ranks on an axis, taken from the replicas."""
    for ways in (2, 4):
        if s.data % ways:
            continue
        fewer = replace(s, data=s.data // ways, micro_batches=s.micro_batches * ways)
        if not model.heads:
            continue
        if s.tensor * ways <= gpus_per_node:
            wider = replace(fewer, tensor=s.tensor * ways, sequence_parallel=True)
            yield _Change("tensor", f"tensor parallel {wider.tensor}", 7, wider)
        if s.data_parallel.kind in ("ddp", "zero1"):
            deeper = replace(fewer, pipeline=s.pipeline * ways)
            yield _Change("pipeline", f"pipeline of {deeper.pipeline} stages", 7, deeper)
        longer = replace(fewer, context=s.context * ways)
        yield _Change("context", f"context parallel {longer.context}", 7, longer)


def _offload(s: Strategy) -> Iterator[_Change]:
    """Generate states on the host."""
    data = s.data_parallel
    if data.offload_optimizer == "none" and data.kind != "fsdp":
        yield _Change("offload", "optimiser on the CPU", 8, _with(s, offload_optimizer="cpu"))
    if data.kind in ("zero3", "fsdp") and data.offload_parameters == "none":
        both = _with(s, offload_optimizer="cpu", offload_parameters="cpu")
        yield _Change("offload", "parameters and optimiser on the CPU", 9, both)


def _summed(
    model: Model,
    strategy: Strategy,
    gpu_memory_bytes: float,
    gpus_per_node: int,
    limit: int | None,
) -> Iterator[Remedy]:
    """Generate a sum of changes: the first that fits, or, without a limit, the best one.

    Each round takes the cheapest change that still helps.  A limit is the cost that the sum must
    stay below.
    """
    current, done, cost = strategy, dict[str, str](), 0
    peak = memory_report(model, strategy).peak_bytes
    last: Remedy | None = None
    while last is None or not last.fits:
        step: tuple[Remedy, str] | None = None
        for change in sorted(_changes(model, current, gpus_per_node), key=lambda c: c.cost):
            if limit is not None and change.cost >= limit:
                break
            tried = _tried(model, strategy, change, gpu_memory_bytes)
            if tried is not None and tried.peak_bytes < _HELPS * peak:
                step = tried, change.kind
                break
        if step is None:
            break
        last, kind = step
        current, peak = last.strategy, last.peak_bytes
        done.pop(kind, None)
        done[kind] = last.what
        cost = max(cost, last.cost)
    if last is not None and len(done) > 1 and (last.fits or limit is None):
        yield replace(last, what=" + ".join(done.values()), cost=cost)
