"""The plain way: everything through one root, flat, without tree or ring."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from simulator.collectives.call import Call, Layout
from simulator.collectives.registry import algorithm
from simulator.collectives.schedule import ChunkMap, Schedule, Stage
from simulator.collectives.split import part_major, whole
from simulator.collectives.stages import finish, single_step

__all__ = ["collect", "distribute"]

IntArray = NDArray[np.int64]
_REFERENCE = (
    "R. Thakur, R. Rabenseifner and W. Gropp, Int. J. High Perform. Comput. Appl. 19 (2005), "
    "section 2 (cost model); linear algorithms"
)
_TWICE = "2·(α + (n−1)·S/B) at the root's port"


def collect(name: str, call: Call, chunks: ChunkMap, *, own: bool, reduce: bool) -> Stage:
    """Return one step in which every rank sends to the root.

    Parameters
    ----------
    own
        True: each rank sends its part (gather); False: all parts.
    """
    others = _others(call)
    return single_step(
        name,
        others,
        np.full(len(others), call.root),
        start=others if own else np.zeros_like(others),
        count=1 if own else chunks.n_chunks,
        reduce=reduce,
        chunks=chunks,
    )


def distribute(name: str, call: Call, chunks: ChunkMap, *, own: bool) -> Stage:
    """Return one step in which the root sends to every rank its part, or all parts."""
    others = _others(call)
    return single_step(
        name,
        np.full(len(others), call.root),
        others,
        start=others if own else np.zeros_like(others),
        count=1 if own else chunks.n_chunks,
        reduce=False,
        chunks=chunks,
    )


def _others(call: Call) -> IntArray:
    return np.delete(np.arange(call.world_size), call.root)


@algorithm(
    "all_reduce",
    "naive",
    summary="every rank sends its buffer to the root, which adds up and sends the sum back",
    reference=_REFERENCE,
    formula=_TWICE,
)
def naive_all_reduce(call: Call, layout: Layout) -> Schedule:
    """Return two steps; the root receives and sends (n − 1)·S."""
    del layout
    chunks = whole(call, 1)
    stages = [
        collect("reduce", call, chunks, own=False, reduce=True),
        distribute("broadcast", call, chunks, own=False),
    ]
    return finish(call, "naive", chunks, stages)


@algorithm(
    "reduce",
    "naive",
    summary="every rank sends its buffer to the root",
    reference=_REFERENCE,
    formula="α + (n−1)·S/B at the root's port",
)
def naive_reduce(call: Call, layout: Layout) -> Schedule:
    """Return one step; the root receives (n − 1)·S."""
    del layout
    chunks = whole(call, 1)
    return finish(call, "naive", chunks, [collect("reduce", call, chunks, own=False, reduce=True)])


@algorithm(
    "broadcast",
    "naive",
    summary="the root sends its buffer to every rank",
    reference=_REFERENCE,
    formula="α + (n−1)·S/B at the root's port",
)
def naive_broadcast(call: Call, layout: Layout) -> Schedule:
    """Return one step; the root sends (n − 1)·S."""
    del layout
    chunks = whole(call, 1)
    return finish(call, "naive", chunks, [distribute("broadcast", call, chunks, own=False)])


@algorithm(
    "all_gather",
    "naive",
    summary="the root gathers all parts and sends everything to every rank",
    reference=_REFERENCE,
    formula="2α + ((n−1)/n + n−1)·S/B at the root's port",
)
def naive_all_gather(call: Call, layout: Layout) -> Schedule:
    """Return two steps; the root receives (n − 1)/n·S and sends (n − 1)·S."""
    del layout
    chunks = part_major(call)
    stages = [
        collect("gather", call, chunks, own=True, reduce=False),
        distribute("broadcast", call, chunks, own=False),
    ]
    return finish(call, "naive", chunks, stages)


@algorithm(
    "reduce_scatter",
    "naive",
    summary="the root adds up all buffers and sends every rank its part",
    reference=_REFERENCE,
    formula="2α + (n−1 + (n−1)/n)·S/B at the root's port",
)
def naive_reduce_scatter(call: Call, layout: Layout) -> Schedule:
    """Return two steps; the root receives (n − 1)·S and sends (n − 1)/n·S."""
    del layout
    chunks = part_major(call)
    stages = [
        collect("reduce", call, chunks, own=False, reduce=True),
        distribute("scatter", call, chunks, own=True),
    ]
    return finish(call, "naive", chunks, stages)
