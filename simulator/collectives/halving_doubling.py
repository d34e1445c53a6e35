"""Recursive halving and doubling, with the fold-in step for worlds that are no power of two.

With p the largest power of two ≤ n and r = n − p, rank 2i gives its data to rank 2i + 1 for
i < r before, and gets the result from it afterwards; the p ranks that are left take part.

Those to whom nobody gives anything would be ready at once, and their first messages would take
half of the port of a partner that still folds in: up to 50 % on the whole.  An MPI library's
rendezvous holds them back; here a signal without data does, which ends with the fold-in and so
costs nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from simulator.collectives.call import Call, Layout
from simulator.collectives.registry import algorithm
from simulator.collectives.schedule import ChunkMap, Schedule, Stage, Step
from simulator.collectives.split import part_major, whole
from simulator.collectives.stages import finish, single_step

__all__ = ["Folded"]

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
class Folded:
    """The p = 2^k ranks that take part, and those folded into them."""

    taking_part: IntArray
    """Rank of each vertex 0 … p − 1."""
    extra: IntArray
    """Ranks folded in: 0, 2, 4 …; rank e belongs to rank e + 1."""
    first_part: IntArray
    """First part of each vertex, shape (p + 1,): its own, after that of its extra rank."""

    @classmethod
    def of(cls, n: int) -> Folded:
        """Return the fold of a world of n ranks."""
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
        """Extra ranks give their data away, then signal to those who wait for nobody's."""
        n_extra = len(self.extra)
        stage = _step("fold in", self.extra, self.extra + 1, start, count, reduce, chunks)
        waiting = self.taking_part[n_extra:]
        if n_extra == 0 or len(waiting) == 0:
            return stage
        signals = self.extra[np.arange(len(waiting)) % n_extra]
        n_edges = n_extra + len(waiting)

        def step(index: int) -> Step:
            if index == 0:
                return replace(stage.step(0), edge=np.arange(n_extra))
            edge = np.arange(n_extra, n_edges)
            return Step(edge=edge, start=np.zeros_like(edge), count=0, reduce=False)

        return replace(
            stage,
            src=np.concatenate((stage.src, signals)),
            dst=np.concatenate((stage.dst, waiting)),
            channel=np.zeros(n_edges, dtype=np.int64),
            n_steps=2,
            step=step,
            edge_bytes=np.concatenate((stage.edge_bytes, np.zeros(len(waiting)))),
            edge_messages=np.ones(n_edges, dtype=np.int64),
            uniform_step_bytes=None,
        )

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
    """Return 2·log2(p) steps, plus 2 and a signal if the world is no power of two.

    Neighbours exchange first, with half of the data: the largest messages stay nearest.
    """
    del layout
    world = Folded.of(call.world_size)
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
    """Return log2(p) steps of S bytes, plus 2 and a signal if the world is no power of two."""
    del layout
    world = Folded.of(call.world_size)
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
    formula="log2(p)·α + (p−1)/n·S/B, p = 2^⌊log2 n⌋; "
    "n ≠ p: + 2α + (n + Σ min(d, n−p))/n·S/B over d = 1, 2, 4 … p/2, or up to 30 % more",
)
def recursive_doubling_all_gather(call: Call, layout: Layout) -> Schedule:
    """Return log2(p) steps, plus 2 and a signal if the world is no power of two.

    Messages differ by the folded parts, so that the next ones meet them at ports: the formula,
    which adds the largest of each step, is exceeded by up to 30 %.
    """
    del layout
    world = Folded.of(call.world_size)
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
    formula="log2(p)·α + (p−1)/n·S/B, p = 2^⌊log2 n⌋; "
    "n ≠ p: + 2α + (n + 1 + Σ min(d, n−p))/n·S/B over d = 1, 2, 4 … p/2",
)
def recursive_halving_reduce_scatter(call: Call, layout: Layout) -> Schedule:
    """Return log2(p) steps, plus 2 and a signal if the world is no power of two."""
    del layout
    world = Folded.of(call.world_size)
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
