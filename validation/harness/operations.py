"""torch's own collectives as nccl-tests calls them: buffers, the call, the expected data.

torch has all_reduce, broadcast and reduce in-place only, all_to_all, gather, scatter and
send/receive out-of-place only; the missing half stays empty rather than being made up by a copy.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from simulator.base.errors import Problem
from validation.harness.options import MeasureError

__all__ = [
    "IN_PLACE",
    "OUT_OF_PLACE",
    "PARTS",
    "Group",
    "Prepared",
    "count_of",
    "prepare",
    "span_of",
]

IN_PLACE = frozenset({"all_reduce", "broadcast", "reduce", "all_gather", "reduce_scatter"})
OUT_OF_PLACE = frozenset(
    {"all_gather", "reduce_scatter", "all_to_all", "gather", "scatter", "send_recv", "barrier"}
)
PARTS = frozenset({"all_gather", "reduce_scatter", "all_to_all", "gather", "scatter"})
"""Collectives whose size is the total over ranks."""


@dataclass(frozen=True, slots=True)
class Group:
    """Where a process stands among the ranks."""

    rank: int
    n_ranks: int
    device: Any
    backend: str


@dataclass(slots=True)
class Prepared:
    """One call on given buffers, ready to be made again and again."""

    call: Callable[[], None]
    fills: list[tuple[Any, int, int]]
    """(view, contributing rank, first element index) to be written before the call."""
    results: list[tuple[Any, int | None, int]]
    """(view, rank or None for the reduction of all, first element index) expected afterwards."""
    scratch: list[Any]
    """Views that the call overwrites: filled with foreign numbers before a check."""


def count_of(collective: str, size_bytes: int, n_ranks: int, element_bytes: int) -> int:
    """Return nccl-tests' count: elements, per rank where each rank has a part.

    Examples
    --------
    >>> count_of("all_reduce", 1024, 4, 4), count_of("all_gather", 1024, 4, 4)
    (256, 64)
    """
    parts = n_ranks if collective in PARTS else 1
    return size_bytes // (element_bytes * parts)


def span_of(collective: str, count: int, n_ranks: int) -> int:
    """Return the elements of a buffer that one call uses.

    Examples
    --------
    >>> span_of("all_reduce", 100, 8), span_of("all_gather", 100, 8), span_of("all_to_all", 100, 8)
    (100, 900, 1600)
    """
    if collective == "all_to_all":
        return 2 * n_ranks * count
    if collective in PARTS:
        return (n_ranks + 1) * count
    return 2 * count if collective == "send_recv" else count


def prepare(
    collective: str, group: Group, buffer: Any, count: int, *, root: int, redop: str, in_place: bool
) -> Prepared:
    """Return the call on views of *buffer*, a flat tensor of at least `span_of` elements.

    Raises
    ------
    MeasureError
        A collective that torch.distributed does not have.
    """
    maker = _MAKERS.get(collective)
    if maker is None:
        raise MeasureError(
            Problem(
                message=f"torch.distributed has no {collective}", allowed=", ".join(sorted(_MAKERS))
            )
        )
    return maker(_Call(group, buffer, count, root, redop, in_place))


@dataclass(frozen=True, slots=True)
class _Call:
    group: Group
    buffer: Any
    count: int
    root: int
    redop: str
    in_place: bool

    @property
    def op(self) -> Any:
        import torch.distributed as dist

        names = {"sum": "SUM", "prod": "PRODUCT", "min": "MIN", "max": "MAX"}
        return getattr(dist.ReduceOp, names[self.redop])

    def view(self, start: int, length: int) -> Any:
        return self.buffer[start : start + length]


def _all_reduce(c: _Call) -> Prepared:
    import torch.distributed as dist

    data, op = c.view(0, c.count), c.op
    return Prepared(
        lambda: dist.all_reduce(data, op=op), [(data, c.group.rank, 0)], [(data, None, 0)], []
    )


def _broadcast(c: _Call) -> Prepared:
    import torch.distributed as dist

    data = c.view(0, c.count)
    at_root = c.group.rank == c.root
    return Prepared(
        lambda: dist.broadcast(data, src=c.root),
        [(data, c.root, 0)] if at_root else [],
        [(data, c.root, 0)],
        [] if at_root else [data],
    )


def _reduce(c: _Call) -> Prepared:
    import torch.distributed as dist

    data, op = c.view(0, c.count), c.op
    return Prepared(
        lambda: dist.reduce(data, dst=c.root, op=op),
        [(data, c.group.rank, 0)],
        [(data, None, 0)] if c.group.rank == c.root else [],
        [],
    )


def _all_gather(c: _Call) -> Prepared:
    import torch.distributed as dist

    n, rank, count = c.group.n_ranks, c.group.rank, c.count
    everything = c.view(0, n * count)
    own = c.view(rank * count, count) if c.in_place else c.view(n * count, count)
    # torch 2.13 renames the call; the old name stays for older versions.
    gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    return Prepared(
        lambda: gather(everything, own),
        [(own, rank, rank * count)],
        [(c.view(p * count, count), p, p * count) for p in range(n)],
        [everything],
    )


def _reduce_scatter(c: _Call) -> Prepared:
    import torch.distributed as dist

    n, rank, count, op = c.group.n_ranks, c.group.rank, c.count, c.op
    everything = c.view(0, n * count)
    own = c.view(rank * count, count) if c.in_place else c.view(n * count, count)
    scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
    return Prepared(
        lambda: scatter(own, everything, op=op),
        [(everything, rank, 0)],
        [(own, None, rank * count)],
        [own],
    )


def _all_to_all(c: _Call) -> Prepared:
    import torch.distributed as dist

    n, rank, count = c.group.n_ranks, c.group.rank, c.count
    send, receive = c.view(0, n * count), c.view(n * count, n * count)
    return Prepared(
        lambda: dist.all_to_all_single(receive, send),
        [(send, rank, rank * n * count)],
        [(c.view((n + s) * count, count), s, (s * n + rank) * count) for s in range(n)],
        [receive],
    )


def _gather(c: _Call) -> Prepared:
    import torch.distributed as dist

    n, rank, count = c.group.n_ranks, c.group.rank, c.count
    own = c.view(n * count, count)
    parts = [c.view(p * count, count) for p in range(n)] if rank == c.root else None
    return Prepared(
        lambda: dist.gather(own, parts, dst=c.root),
        [(own, rank, rank * count)],
        [(part, p, p * count) for p, part in enumerate(parts or [])],
        list(parts or []),
    )


def _scatter(c: _Call) -> Prepared:
    import torch.distributed as dist

    n, rank, count = c.group.n_ranks, c.group.rank, c.count
    own = c.view(n * count, count)
    parts = [c.view(p * count, count) for p in range(n)] if rank == c.root else None
    return Prepared(
        lambda: dist.scatter(own, parts, src=c.root),
        [(part, c.root, p * count) for p, part in enumerate(parts or [])],
        [(own, c.root, rank * count)],
        [own],
    )


def _send_recv(c: _Call) -> Prepared:
    import torch.distributed as dist

    n, rank, count = c.group.n_ranks, c.group.rank, c.count
    send, receive = c.view(0, count), c.view(count, count)
    after, before = (rank + 1) % n, (rank - 1) % n

    def call() -> None:
        if n == 1:
            receive.copy_(send)
            return
        ends = [
            dist.P2POp(dist.isend, send, after),
            dist.P2POp(dist.irecv, receive, before),
        ]
        for work in dist.batch_isend_irecv(ends):
            work.wait()

    return Prepared(call, [(send, rank, 0)], [(receive, before, 0)], [receive])


def _barrier(c: _Call) -> Prepared:
    import torch.distributed as dist

    if c.group.backend == "nccl":
        return Prepared(lambda: dist.barrier(device_ids=[c.group.device.index]), [], [], [])
    return Prepared(dist.barrier, [], [], [])


_MAKERS: dict[str, Callable[[_Call], Prepared]] = {
    "all_reduce": _all_reduce,
    "broadcast": _broadcast,
    "reduce": _reduce,
    "all_gather": _all_gather,
    "reduce_scatter": _reduce_scatter,
    "all_to_all": _all_to_all,
    "gather": _gather,
    "scatter": _scatter,
    "send_recv": _send_recv,
    "barrier": _barrier,
}
