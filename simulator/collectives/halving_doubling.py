"""Recursive halving and doubling, with the fold-in step for worlds that are no power of two.

With p the largest power of two ≤ n and r = n − p, rank 2i gives its data to rank 2i + 1 for
i < r before, and gets the result from it afterwards; the p ranks that are left take part.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulator.collectives.call import Call, Layout
from simulator.collectives.registry import algorithm
from simulator.collectives.schedule import ChunkMap, Schedule, Stage
from simulator.collectives.split import part_major, whole
from simulator.collectives.stages import finish, single_step

__all__: list[str] = []

IntArray = NDArray[np.int64]
_RABENSEIFNER = (
    "R. Rabenseifner, Optimization of collective reduction operations, ICCS 2004, section 4; "
    "R. Thakur, R. Rabenseifner and W. Gropp, Int. J. High Perform. Comput. Appl. 19 (2005), "
    "section 4.5"
)
_THAKUR = (
    "R. Thakur, R. Rabenseifner and W. Gropp, Int. J. High Perform. Comput. Appl. 19 (2005), "
    "section {}"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Folded:
    """The p = 2^k ranks that take part, and those folded into them."""

    taking_part: IntArray
    """Rank of each vertex 0 … p − 1."""
    extra: IntArray
    """Ranks folded in: 0, 2, 4 …; rank e belongs to rank e + 1."""
    first_part: IntArray
    """First part of each vertex, shape (p + 1,): its own, after that of its extra rank."""

    @classmethod
    def of(cls, n: int) -> _Folded:
        p = 1 << n.bit_length() - 1
        vertex, folded = np.arange(p + 1, dtype=np.int64), n - p
        return cls(
            taking_part=np.where(vertex < folded, 2 * vertex + 1, vertex + folded)[:p],
            extra=2 * np.arange(folded, dtype=np.int64),
            first_part=np.where(vertex < folded, 2 * vertex, vertex + folded),
        )

    @property
    def distances(self) -> list[int]:
        """1, 2, 4, … p/2."""
        return [1 << k for k in range(len(self.taking_part).bit_length() - 1)]

    def fold(self, chunks: ChunkMap, start: IntArray, count: int, *, reduce: bool) -> Stage:
        """Extra ranks give their data away."""
        return _step("fold in", self.extra, self.extra + 1, start, count, reduce, chunks)

    def unfold(self, chunks: ChunkMap, start: IntArray, count: int) -> Stage:
        """Extra ranks get the result."""
        return _step("fold out", self.extra + 1, self.extra, start, count, False, chunks)

    def exchange(
        self,
        distance: int,
        start: IntArray,
        count: IntArray | int,
        *,
        reduce: bool,
        chunks: ChunkMap,
    ) -> Stage:
        """All vertices exchange with the one at *distance* (exclusive or)."""
        vertex = np.arange(len(self.taking_part))
        partner = self.taking_part[vertex ^ distance]
        name = f"{'halving' if reduce else 'doubling'} at distance {distance}"
        return _step(name, self.taking_part, partner, start, count, reduce, chunks)


def _step(
    name: str,
    src: IntArray,
    dst: IntArray,
    start: IntArray,
    count: IntArray | int,
    reduce: bool,
    chunks: ChunkMap,
) -> Stage:
    return single_step(name, src, dst, start=start, count=count, reduce=reduce, chunks=chunks)


@algorithm(
    "all_reduce",
    "halving_doubling",
    summary="recursive halving reduce-scatter, then recursive doubling all-gather",
    reference=_RABENSEIFNER,
    formula="2·log2(p)·α + 2(p−1)/p·S/B, p = 2^⌊log2 n⌋; n ≠ p: + 2·(α + S/B)",
)
def halving_doubling_all_reduce(call: Call, layout: Layout) -> Schedule:
    """Return 2·log2(p) steps, plus 2 if the world is no power of two.

    Neighbours exchange first, with half of the data: the largest messages stay nearest.
    """
    del layout
    world = _Folded.of(call.world_size)
    p = len(world.taking_part)
    chunks = whole(call, p)
    vertex = np.arange(p)
    none = np.zeros_like(world.extra)
    # After halving at distances 1 … d a vertex owns p/2d chunks, chosen by its low bits.
    mine, halving, doubling = np.zeros(p, dtype=np.int64), [], []
    for distance in world.distances:
        half = p // (2 * distance)
        upper = (vertex & distance) != 0
        other = mine + np.where(upper, 0, half)
        mine = mine + np.where(upper, half, 0)
        halving.append(world.exchange(distance, other, half, reduce=True, chunks=chunks))
        doubling.append(world.exchange(distance, mine, half, reduce=False, chunks=chunks))
    stages = [
        world.fold(chunks, none, p, reduce=True),
        *halving,
        *doubling[::-1],
        world.unfold(chunks, none, p),
    ]
    return finish(call, "halving_doubling", chunks, stages)


@algorithm(
    "all_reduce",
    "recursive_doubling",
    summary="pairs at distance 1, 2, 4 … exchange and add their whole buffers",
    reference=_THAKUR.format("4.5"),
    formula="log2(p)·(α + S/B), p = 2^⌊log2 n⌋; n ≠ p: + 2·(α + S/B)",
)
def recursive_doubling_all_reduce(call: Call, layout: Layout) -> Schedule:
    """Return log2(p) steps of S bytes, plus 2 if the world is no power of two."""
    del layout
    world = _Folded.of(call.world_size)
    chunks = whole(call, 1)
    none = np.zeros_like(world.extra)
    start = np.zeros_like(world.taking_part)
    stages = [
        world.fold(chunks, none, 1, reduce=True),
        *(
            _step(
                f"exchange at distance {distance}",
                world.taking_part,
                world.taking_part[np.arange(len(start)) ^ distance],
                start,
                1,
                True,
                chunks,
            )
            for distance in world.distances
        ),
        world.unfold(chunks, none, 1),
    ]
    return finish(call, "recursive_doubling", chunks, stages)


@algorithm(
    "all_gather",
    "recursive_doubling",
    summary="pairs at distance 1, 2, 4 … exchange all parts they have",
    reference=_THAKUR.format("4.1"),
    formula="log2(n)·α + (n−1)/n·S/B; n no power of two: + 2α + S/B",
)
def recursive_doubling_all_gather(call: Call, layout: Layout) -> Schedule:
    """Return log2(p) steps, plus 2 if the world is no power of two."""
    del layout
    world = _Folded.of(call.world_size)
    chunks = part_major(call)
    vertex, first = np.arange(len(world.taking_part)), world.first_part
    doubling = []
    for distance in world.distances:
        low = vertex & -distance
        doubling.append(
            world.exchange(
                distance,
                first[low],
                first[low + distance] - first[low],
                reduce=False,
                chunks=chunks,
            )
        )
    stages = [
        world.fold(chunks, world.extra, 1, reduce=False),
        *doubling,
        # The cyclic range that leaves out the extra rank's own part.
        world.unfold(chunks, world.extra + 1, call.world_size - 1),
    ]
    return finish(call, "recursive_doubling", chunks, stages)


@algorithm(
    "reduce_scatter",
    "recursive_halving",
    summary="pairs at distance n/2, n/4 … 1 exchange the half that the other side owns",
    reference=_THAKUR.format("4.4"),
    formula="log2(n)·α + (n−1)/n·S/B; n no power of two: + 2α + (1 + 1/n)·S/B",
)
def recursive_halving_reduce_scatter(call: Call, layout: Layout) -> Schedule:
    """Return log2(p) steps, plus 2 if the world is no power of two."""
    del layout
    world = _Folded.of(call.world_size)
    chunks = part_major(call)
    vertex, first = np.arange(len(world.taking_part)), world.first_part
    halving = []
    for distance in world.distances[::-1]:
        low = (vertex ^ distance) & -distance
        halving.append(
            world.exchange(
                distance,
                first[low],
                first[low + distance] - first[low],
                reduce=True,
                chunks=chunks,
            )
        )
    stages = [
        world.fold(chunks, np.zeros_like(world.extra), call.world_size, reduce=True),
        *halving,
        world.unfold(chunks, world.extra, 1),
    ]
    return finish(call, "recursive_halving", chunks, stages)
