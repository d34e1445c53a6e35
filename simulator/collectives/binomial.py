"""Binomial trees: broadcast, reduce, gather and scatter in ⌈log2 n⌉ steps."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from simulator.collectives.call import Call, Layout
from simulator.collectives.registry import algorithm
from simulator.collectives.schedule import Schedule, Stage
from simulator.collectives.split import part_major, whole
from simulator.collectives.stages import finish, single_step

__all__: list[str] = []

IntArray = NDArray[np.int64]
_REFERENCE = (
    "R. Thakur, R. Rabenseifner and W. Gropp, Optimization of collective communication "
    "operations in MPICH, Int. J. High Perform. Comput. Appl. 19 (2005), sections 4.2 to 4.4"
)


def _pairs(n: int) -> Iterator[tuple[int, IntArray, IntArray]]:
    """Generate (distance, upper, lower vertex of each pair), the largest distance first.

    Vertex 0 is the root; the subtree of a lower vertex v is v … v + distance − 1.
    """
    distance = 1 << (n - 1).bit_length() >> 1
    while distance:
        upper = np.arange(0, n - distance, 2 * distance, dtype=np.int64)
        yield distance, upper, upper + distance
        distance //= 2


def _whole(call: Call, *, reduce: bool) -> Schedule:
    chunks = whole(call, 1)
    stages = []
    for distance, upper, lower in _pairs(call.world_size):
        top, low = ((v + call.root) % call.world_size for v in (upper, lower))
        stages.append(
            single_step(
                f"distance {distance}",
                low if reduce else top,
                top if reduce else low,
                start=np.zeros_like(upper),
                count=1,
                reduce=reduce,
                chunks=chunks,
            )
        )
    return finish(call, "binomial", chunks, stages[::-1] if reduce else stages)


def _parts(call: Call, *, gather: bool) -> Schedule:
    n = call.world_size
    chunks = part_major(call)
    stages: list[Stage] = []
    for distance, upper, lower in _pairs(n):
        top, low = ((v + call.root) % n for v in (upper, lower))
        stages.append(
            single_step(
                f"distance {distance}",
                low if gather else top,
                top if gather else low,
                start=low,
                count=np.minimum(distance, n - lower),
                reduce=False,
                chunks=chunks,
            )
        )
    return finish(call, "binomial", chunks, stages[::-1] if gather else stages)


@algorithm(
    "broadcast",
    "binomial",
    summary="in each step every rank that has the data sends them to one that has not",
    reference=_REFERENCE,
    formula="⌈log2 n⌉·(α + S/B)",
)
def binomial_broadcast(call: Call, layout: Layout) -> Schedule:
    """Return ⌈log2 n⌉ steps; the root sends S in each."""
    del layout
    return _whole(call, reduce=False)


@algorithm(
    "reduce",
    "binomial",
    summary="in each step half of the ranks that are left send their sum to the other half",
    reference=_REFERENCE,
    formula="⌈log2 n⌉·(α + S/B)",
)
def binomial_reduce(call: Call, layout: Layout) -> Schedule:
    """Return ⌈log2 n⌉ steps; the root receives S in each."""
    del layout
    return _whole(call, reduce=True)


@algorithm(
    "gather",
    "binomial",
    summary="up a binomial tree, each rank passing on all parts of its subtree",
    reference=_REFERENCE,
    formula="⌈log2 n⌉·α + (n−1)/n·S/B",
)
def binomial_gather(call: Call, layout: Layout) -> Schedule:
    """Return ⌈log2 n⌉ steps; the root receives (n − 1)/n·S in all."""
    del layout
    return _parts(call, gather=True)


@algorithm(
    "scatter",
    "binomial",
    summary="down a binomial tree, each rank passing on the parts of its subtrees",
    reference=_REFERENCE,
    formula="⌈log2 n⌉·α + (n−1)/n·S/B",
)
def binomial_scatter(call: Call, layout: Layout) -> Schedule:
    """Return ⌈log2 n⌉ steps; the root sends (n − 1)/n·S in all."""
    del layout
    return _parts(call, gather=False)
