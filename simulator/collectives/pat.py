"""PAT, parallel aggregated trees: all_gather and reduce_scatter with the far messages small."""

from __future__ import annotations

from collections.abc import Callable, Iterator

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
    "S. Jeaugey, PAT: a new algorithm for all-gather and reduce-scatter operations at scale, "
    "arXiv:2506.20252 (2025); NCCL 2.23"
)
_FORMULA = "⌈log2 n⌉·α + (n−1)/n·S/B"


def _distances(n: int) -> Iterator[tuple[int, int]]:
    """Generate (distance, parts per message), the largest distance first.

    Every part goes down a binomial tree whose top is its owner; a rank that is x behind the
    owner, x a multiple of 2d, sends to the one x + d behind, where that is below n.
    """
    distance = 1 << (n - 1).bit_length() >> 1
    while distance:
        yield distance, -(-(n - distance) // (2 * distance))
        distance //= 2


def _parts(n: int, distance: int, pieces: int, behind: int) -> Callable[[], IntArray]:
    rank = np.arange(n, dtype=np.int64)

    def start() -> IntArray:
        x = behind + 2 * distance * np.arange(pieces)
        return np.asarray((rank[:, None] - x) % n).ravel()

    return start


@algorithm(
    "all_gather",
    "pat",
    summary="Bruck with the largest distance first, so that far messages are smallest",
    reference=_REFERENCE,
    formula=_FORMULA,
)
def pat_all_gather(call: Call, layout: Layout) -> Schedule:
    """Return ⌈log2 n⌉ steps; each rank sends (n − 1)/n·S.

    Notes
    -----
    The limit on aggregation by NCCL's buffers, which splits the nearest distances into more
    messages for large parts, is not modelled: messages are aggregated fully.
    """
    del layout
    n = call.world_size
    chunks = part_major(call)
    rank = np.arange(n, dtype=np.int64)
    stages = [
        single_step(
            f"distance {distance}",
            rank,
            (rank + distance) % n,
            start=_parts(n, distance, pieces, 0),
            count=1,
            reduce=False,
            chunks=chunks,
            pieces=pieces,
        )
        for distance, pieces in _distances(n)
    ]
    return finish(call, "pat", chunks, stages)


@algorithm(
    "reduce_scatter",
    "pat",
    summary="the all-gather's trees backwards: near messages first, far ones last and smallest",
    reference=_REFERENCE,
    formula=_FORMULA,
)
def pat_reduce_scatter(call: Call, layout: Layout) -> Schedule:
    """Return ⌈log2 n⌉ steps; each rank sends (n − 1)/n·S.  See `pat_all_gather` for limits."""
    del layout
    n = call.world_size
    chunks = part_major(call)
    rank = np.arange(n, dtype=np.int64)
    stages = [
        single_step(
            f"distance {distance}",
            rank,
            (rank - distance) % n,
            start=_parts(n, distance, pieces, distance),
            count=1,
            reduce=True,
            chunks=chunks,
            pieces=pieces,
        )
        for distance, pieces in _distances(n)
    ]
    return finish(call, "pat", chunks, stages[::-1])
