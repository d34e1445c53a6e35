"""Direct exchange: every part goes straight from its owner to its destination."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from simulator.collectives.call import Call, Layout
from simulator.collectives.naive import collect, distribute
from simulator.collectives.registry import algorithm
from simulator.collectives.schedule import ChunkMap, Schedule, Stage
from simulator.collectives.split import part_major
from simulator.collectives.stages import finish, single_step

__all__ = ["pairwise_sample", "shifted"]

IntArray = NDArray[np.int64]
_NCCL = "NCCL 2.21 src/enqueue.cc and src/init.cc, send/recv groups and their schedule"
_PAIRWISE = (
    "R. Thakur, R. Rabenseifner and W. Gropp, Int. J. High Perform. Comput. Appl. 19 (2005), "
    "section 4.2 (pairwise exchange)"
)


def shifted(layout: Layout) -> list[IntArray]:
    """Return n − 1 permutations that together lead from every rank to every other.

    With the same number m > 1 of ranks on each of several nodes, shift (a, b) leads to the node
    a further and the rank b further inside the node, nearest nodes first, as NCCL pairs peers;
    else the shift is by rank.

    Returns
    -------
    list
        Destination of each rank, views of m arrays of 2n numbers.
    """
    n, m = layout.world_size, layout.ranks_per_node
    if m is None or m == n:
        m = 1
    nodes = np.arange(2 * n // m, dtype=np.int64)[:, None] % (n // m)
    turned = [(nodes * m + (np.arange(m) + b) % m).ravel() for b in range(m)]
    return [
        turned[b][a * m : a * m + n] for a in range(n // m) for b in range(m) if (a, b) != (0, 0)
    ]


def _exchange(
    call: Call,
    layout: Layout,
    name: str,
    chunks: ChunkMap,
    *,
    at_once: bool,
    reduce: bool,
    shifts: list[IntArray] | None = None,
) -> Schedule:
    """Return all shifts as one stage of one step, or a stage for each."""
    n = call.world_size
    rank = np.arange(n, dtype=np.int64)
    shifts = shifted(layout) if shifts is None else shifts
    windows = [shifts] if at_once else [[shift] for shift in shifts]
    stages: list[Stage] = []
    for number, window in enumerate(windows if shifts else ()):
        src = rank if len(window) == 1 else np.tile(rank, len(window))
        dst = window[0] if len(window) == 1 else np.concatenate(window)
        label = f"shifts 1 to {len(window)}" if len(window) > 1 else f"shift {number + 1}"

        def start(src: IntArray = src, dst: IntArray = dst) -> IntArray:
            if call.collective == "all_gather":
                return src
            return dst if call.collective == "reduce_scatter" else src * n + dst

        stages.append(
            single_step(label, src, dst, start=start, count=1, reduce=reduce, chunks=chunks)
        )
    return finish(call, name, chunks, stages)


def _all_at_once(call: Call, layout: Layout, *, reduce: bool) -> Schedule:
    return _exchange(call, layout, "direct", part_major(call), at_once=True, reduce=reduce)


@algorithm(
    "all_to_all",
    "direct",
    summary="all sends and receives at once, as a group of NCCL send/recv",
    reference=_NCCL,
    formula="α + (n−1)/n·S/B",
)
def direct_all_to_all(call: Call, layout: Layout) -> Schedule:
    """Return one step of n(n − 1) messages."""
    return _all_at_once(call, layout, reduce=False)


@algorithm(
    "all_to_allv",
    "direct",
    summary="all sends and receives at once, as a group of NCCL send/recv",
    reference=_NCCL,
    formula="α + max over ranks of bytes sent or received / B",
)
def direct_all_to_allv(call: Call, layout: Layout) -> Schedule:
    """Return `direct_all_to_all` with uneven parts; empty parts still send a message."""
    return _all_at_once(call, layout, reduce=False)


@algorithm(
    "all_gather",
    "direct",
    summary="every rank sends its part to every other at once",
    reference=_NCCL,
    formula="α + (n−1)/n·S/B",
)
def direct_all_gather(call: Call, layout: Layout) -> Schedule:
    """Return one step of n(n − 1) messages."""
    return _all_at_once(call, layout, reduce=False)


@algorithm(
    "reduce_scatter",
    "direct",
    summary="every rank sends each other its part at once, receivers add up",
    reference=_NCCL,
    formula="α + (n−1)/n·S/B",
)
def direct_reduce_scatter(call: Call, layout: Layout) -> Schedule:
    """Return one step of n(n − 1) messages."""
    return _all_at_once(call, layout, reduce=True)


@algorithm(
    "all_to_all",
    "pairwise",
    summary="n − 1 permutations one after the other, one message per rank at a time",
    reference=_PAIRWISE,
    formula="(n−1)·(α + S/(n·B))",
)
def pairwise_all_to_all(call: Call, layout: Layout) -> Schedule:
    """Return n − 1 steps, each a permutation of the ranks."""
    return _exchange(call, layout, "pairwise", part_major(call), at_once=False, reduce=False)


@algorithm(
    "all_to_allv",
    "pairwise",
    summary="n − 1 permutations one after the other, one message per rank at a time",
    reference=_PAIRWISE,
    formula="Σ over shifts of (α + largest part / B)",
)
def pairwise_all_to_allv(call: Call, layout: Layout) -> Schedule:
    """Return `pairwise_all_to_all` with uneven parts; empty parts still send a message."""
    return _exchange(call, layout, "pairwise", part_major(call), at_once=False, reduce=False)


def pairwise_sample(call: Call, layout: Layout, runs: int, length: int) -> Schedule:
    """Return *runs* of *length* consecutive steps of a pairwise exchange; all if no more exist.

    The runs are spread evenly.  Neighbouring steps lead the same way, so that who is late in one
    is late in the next: single steps would not tell.
    """
    shifts = shifted(layout)
    if len(shifts) > runs * length:
        first = ((np.arange(runs) + 0.5) * len(shifts) / runs - length / 2).astype(np.int64)
        some = np.unique(first[:, None] + np.arange(length))
        shifts = [shifts[index] for index in some.tolist()]
    chunks = part_major(call)
    return _exchange(call, layout, "pairwise", chunks, at_once=False, reduce=False, shifts=shifts)


@algorithm(
    "gather",
    "direct",
    summary="every rank sends its part to the root at once",
    reference=_NCCL,
    formula="α + (n−1)/n·S/B at the root's port",
)
def direct_gather(call: Call, layout: Layout) -> Schedule:
    """Return one step; the root receives (n − 1)/n·S."""
    del layout
    chunks = part_major(call)
    stage = collect("gather", call, chunks, own=True, reduce=False)
    return finish(call, "direct", chunks, [stage])


@algorithm(
    "scatter",
    "direct",
    summary="the root sends every rank its part at once",
    reference=_NCCL,
    formula="α + (n−1)/n·S/B at the root's port",
)
def direct_scatter(call: Call, layout: Layout) -> Schedule:
    """Return one step; the root sends (n − 1)/n·S."""
    del layout
    chunks = part_major(call)
    return finish(call, "direct", chunks, [distribute("scatter", call, chunks, own=True)])


@algorithm(
    "send_recv",
    "direct",
    summary="every rank sends to the next one and receives from the one before",
    reference="nccl-tests src/sendrecv.cu",
    formula="α + S/B",
)
def direct_send_recv(call: Call, layout: Layout) -> Schedule:
    """Return one step; each rank sends S."""
    del layout
    n = call.world_size
    chunks = part_major(call)
    rank = np.arange(n, dtype=np.int64)
    stage = single_step(
        "send_recv",
        rank,
        np.roll(rank, -1),
        start=rank,
        count=1,
        reduce=False,
        chunks=chunks,
    )
    return finish(call, "direct", chunks, [stage])
