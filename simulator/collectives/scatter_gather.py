"""Large messages in two halves: scatter then all-gather, reduce-scatter then gather.

A broadcast that first deals its data out and then gathers them everywhere moves 2·S instead of
log2(n)·S; a reduction does the same backwards.  Chunk v belongs to vertex v, which is counted
from the root.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from simulator.collectives.call import Call, Layout
from simulator.collectives.halving_doubling import Folded
from simulator.collectives.registry import algorithm
from simulator.collectives.schedule import ChunkMap, Schedule, Stage
from simulator.collectives.split import part_major, whole
from simulator.collectives.stages import Rings, finish, ring_stage, single_step

__all__: list[str] = []

IntArray = NDArray[np.int64]
_THAKUR = (
    "R. Thakur, R. Rabenseifner and W. Gropp, Optimization of collective communication "
    "operations in MPICH, Int. J. High Perform. Comput. Appl. 19 (2005), section {}"
)


def _scatter(call: Call, chunks: ChunkMap) -> Iterator[Stage]:
    """Generate a binomial scatter: the subtree of a vertex v is v … v + distance − 1."""
    n = call.world_size
    distance = 1 << (n - 1).bit_length() >> 1
    while distance:
        upper = np.arange(0, n - distance, 2 * distance, dtype=np.int64)
        lower = upper + distance
        yield single_step(
            f"scatter at distance {distance}",
            (upper + call.root) % n,
            (lower + call.root) % n,
            start=lower,
            count=np.minimum(distance, n - lower),
            reduce=False,
            chunks=chunks,
        )
        distance //= 2


def _ring(call: Call, chunks: ChunkMap, *, shift: int, reduce: bool, name: str) -> Stage:
    n = call.world_size
    order = (np.arange(n, dtype=np.int64) + call.root) % n
    rings = Rings.of(order[None, :], np.zeros(1, dtype=np.int64))
    start = np.arange(n, dtype=np.int64)[None, :]
    return ring_stage(name, rings, start, count=1, shift=shift, reduce=reduce, chunks=chunks)


@algorithm(
    "broadcast",
    "scatter_allgather_ring",
    summary="binomial scatter from the root, then all-gather around a ring",
    reference=_THAKUR.format("4.2"),
    formula="(⌈log2 n⌉ + n − 1)·α + 2(n−1)/n·S/B",
)
def scatter_ring_broadcast(call: Call, layout: Layout) -> Schedule:
    """Return ⌈log2 n⌉ + n − 1 steps."""
    del layout
    chunks = whole(call, call.world_size)
    ring = _ring(call, chunks, shift=0, reduce=False, name="all_gather")
    return finish(call, "scatter_allgather_ring", chunks, [*_scatter(call, chunks), ring])


@algorithm(
    "broadcast",
    "scatter_allgather",
    summary="binomial scatter from the root, then recursive doubling; a ring unless n is 2^k",
    reference=_THAKUR.format("4.2"),
    formula="2·log2(n)·α + 2(n−1)/n·S/B for powers of two",
)
def scatter_doubling_broadcast(call: Call, layout: Layout) -> Schedule:
    """Return 2·log2 n steps, or those of the ring where n is no power of two."""
    del layout
    n = call.world_size
    chunks = whole(call, n)
    stages = list(_scatter(call, chunks))
    if n & (n - 1):
        stages.append(_ring(call, chunks, shift=0, reduce=False, name="all_gather"))
        return finish(call, "scatter_allgather", chunks, stages)
    vertex = np.arange(n, dtype=np.int64)
    for k in range(n.bit_length() - 1):
        distance = 1 << k
        stages.append(
            single_step(
                f"doubling at distance {distance}",
                (vertex + call.root) % n,
                ((vertex ^ distance) + call.root) % n,
                start=vertex & -distance,
                count=distance,
                reduce=False,
                chunks=chunks,
            )
        )
    return finish(call, "scatter_allgather", chunks, stages)


@algorithm(
    "reduce",
    "ring_gather",
    summary="reduce-scatter around a ring, then every rank sends its part to the root",
    reference="gloo gloo/reduce.cc",
    formula="n·α + 2(n−1)/n·S/B",
)
def ring_gather_reduce(call: Call, layout: Layout) -> Schedule:
    """Return n steps: n − 1 of the ring and one in which all parts go to the root."""
    del layout
    n = call.world_size
    chunks = whole(call, n)
    others = np.arange(1, n, dtype=np.int64)
    gather = single_step(
        "gather",
        (others + call.root) % n,
        np.full(n - 1, call.root, dtype=np.int64),
        start=others,
        count=1,
        reduce=False,
        chunks=chunks,
    )
    ring = _ring(call, chunks, shift=-1, reduce=True, name="reduce_scatter")
    return finish(call, "ring_gather", chunks, [ring, gather])


@algorithm(
    "reduce",
    "halving_gather",
    summary="recursive halving reduce-scatter, then a binomial gather to the root",
    reference=_THAKUR.format("4.5"),
    formula="2·log2(p)·α + 2(p−1)/p·S/B, p = 2^⌊log2 n⌋; n ≠ p: + 2·(α + S/B) at most",
)
def halving_gather_reduce(call: Call, layout: Layout) -> Schedule:
    """Return 2·log2(p) steps, and those of folding where the world is no power of two."""
    del layout
    world = Folded.of(call.world_size)
    p = len(world.taking_part)
    chunks = whole(call, p)
    vertex = np.arange(p, dtype=np.int64)
    folded_root = bool((world.extra == call.root).any())
    home = int(np.flatnonzero(world.taking_part == call.root + folded_root)[0])
    mine, halving, gather = np.zeros(p, dtype=np.int64), [], []
    for distance in world.distances:
        half = p // (2 * distance)
        upper = (vertex & distance) != 0
        other = mine + np.where(upper, 0, half)
        mine = mine + np.where(upper, half, 0)
        halving.append(world.exchange(distance, other, half, reduce=True, chunks=chunks))
        # Going back, the side of the root takes what the other side has gathered.
        away = (vertex ^ home) & -distance == distance
        gather.append(
            single_step(
                f"gather at distance {distance}",
                world.taking_part[vertex[away]],
                world.taking_part[vertex[away] ^ distance],
                start=mine[away],
                count=half,
                reduce=False,
                chunks=chunks,
            )
        )
    none = np.zeros_like(world.extra)
    stages = [world.fold(chunks, none, p, reduce=True), *halving, *gather[::-1]]
    if folded_root:
        root = np.array([call.root], dtype=np.int64)
        stages.append(
            single_step(
                "to the root",
                root + 1,
                root,
                start=np.zeros(1, dtype=np.int64),
                count=p,
                reduce=False,
                chunks=chunks,
            )
        )
    return finish(call, "halving_gather", chunks, stages)


@algorithm(
    "all_gather",
    "neighbor_exchange",
    summary="neighbours in pairs exchange the two parts they got last; a ring if n is odd",
    reference="J. Chen, L. Zhang, Y. Zhang and W. Yuan, Performance evaluation of allgather "
    "algorithms on terascale Linux cluster with Fast Ethernet, HPC Asia 2005",
    formula="n/2·α + (n−1)/n·S/B for even n",
)
def neighbor_all_gather(call: Call, layout: Layout) -> Schedule:
    """Return n/2 steps for an even world, n − 1 for an odd one."""
    del layout
    n = call.world_size
    chunks = part_major(call)
    rank = np.arange(n, dtype=np.int64)
    if n % 2:
        rings = Rings.of(rank[None, :], np.zeros(1, dtype=np.int64))
        stage = ring_stage(
            "all_gather", rings, rank[None, :], count=1, shift=0, reduce=False, chunks=chunks
        )
        return finish(call, "neighbor_exchange", chunks, [stage])
    even = rank % 2 == 0
    sign = np.where(even, 1, -1)
    stages = [
        single_step(
            "own part", rank, (rank + sign) % n, start=rank, count=1, reduce=False, chunks=chunks
        )
    ]
    # Where the two parts begin that came from either side.
    came = [np.where(even, rank, rank - 1), np.where(even, rank, rank - 1)]
    held = came[0]
    for step in range(1, n // 2):
        side = step % 2
        towards = sign if side == 0 else -sign
        came[side] = (came[side] + 2 * towards) % n
        stages.append(
            single_step(
                f"exchange {step}",
                rank,
                (rank + towards) % n,
                start=held,
                count=2,
                reduce=False,
                chunks=chunks,
            )
        )
        held = came[side]
    return finish(call, "neighbor_exchange", chunks, stages)


@algorithm(
    "reduce_scatter",
    "all_reduce",
    summary="a ring all-reduce of the whole buffer, of which each rank keeps its part",
    reference="PyTorch torch/csrc/distributed/c10d/ProcessGroupGloo.cpp, "
    "reduce_scatter_tensor_coalesced",
    formula="2(n−1)·(α + S/(n·B))",
)
def all_reduce_reduce_scatter(call: Call, layout: Layout) -> Schedule:
    """Return 2(n − 1) steps: twice what a reduce-scatter needs."""
    orders = layout.ring_orders(1)
    rings = Rings.of(orders, np.zeros(1, dtype=np.int64))
    chunks = part_major(call)
    stages = [
        ring_stage("reduce_scatter", rings, orders, count=1, shift=-1, reduce=True, chunks=chunks),
        ring_stage("all_gather", rings, orders, count=1, shift=0, reduce=False, chunks=chunks),
    ]
    return finish(call, "all_reduce", chunks, stages)
