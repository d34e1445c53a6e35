"""Bruck's algorithms: ⌈log2 n⌉ steps for any world, all_gather and all_to_all."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from simulator.collectives.call import Call, Layout
from simulator.collectives.registry import algorithm
from simulator.collectives.schedule import Schedule
from simulator.collectives.split import part_major
from simulator.collectives.stages import finish, single_step

__all__: list[str] = []

IntArray = NDArray[np.int64]
_REFERENCE = (
    "J. Bruck, C.-T. Ho, S. Kipnis, E. Upfal and D. Weathersby, Efficient algorithms for "
    "all-to-all communications in multiport message-passing systems, IEEE Trans. Parallel "
    "Distrib. Syst. 8 (1997), sections {}"
)


@algorithm(
    "all_gather",
    "bruck",
    summary="in step k every rank sends all it has to the rank 2^k below",
    reference=_REFERENCE.format("4"),
    formula="⌈log2 n⌉·α + (n−1)/n·S/B",
)
def bruck_all_gather(call: Call, layout: Layout) -> Schedule:
    """Return ⌈log2 n⌉ steps; each rank sends (n − 1)/n·S."""
    del layout
    n = call.world_size
    chunks = part_major(call)
    rank = np.arange(n, dtype=np.int64)
    stages = [
        single_step(
            f"distance {1 << k}",
            rank,
            (rank - (1 << k)) % n,
            start=rank,
            count=min(1 << k, n - (1 << k)),
            reduce=False,
            chunks=chunks,
        )
        for k in range((n - 1).bit_length())
    ]
    return finish(call, "bruck", chunks, stages)


@algorithm(
    "all_to_all",
    "bruck",
    summary="in step k every rank sends the parts whose remaining way has bit k to rank + 2^k",
    reference=_REFERENCE.format("3"),
    formula="⌈log2 n⌉·(α + S/(2B)) for powers of two; S the buffer of one rank",
)
def bruck_all_to_all(call: Call, layout: Layout) -> Schedule:
    """Return ⌈log2 n⌉ steps in which about half of the buffer moves.

    A part that travels i = (destination − source) mod n is sent in the steps of i's bits.
    """
    del layout
    n = call.world_size
    chunks = part_major(call)
    rank = np.arange(n, dtype=np.int64)

    def parts(bit: int) -> Callable[[], IntArray]:
        def start() -> IntArray:
            way = rank[(rank & bit) != 0]
            # By now the part has gone the way of the bits below: its source is behind by them.
            source = (rank[:, None] - (way & (bit - 1))) % n
            return np.asarray(source * n + (source + way) % n).ravel()

        return start

    stages = [
        single_step(
            f"distance {1 << k}",
            rank,
            (rank + (1 << k)) % n,
            start=parts(1 << k),
            count=1,
            reduce=False,
            chunks=chunks,
            pieces=int(np.count_nonzero(rank & (1 << k))),
        )
        for k in range((n - 1).bit_length())
    ]
    return finish(call, "bruck", chunks, stages)
