"""Barriers: messages without data, until every rank depends on every other."""

from __future__ import annotations

import numpy as np

from simulator.collectives.call import Call, Layout
from simulator.collectives.registry import algorithm
from simulator.collectives.schedule import ChunkMap, Schedule
from simulator.collectives.stages import (
    Moves,
    Rings,
    finish,
    pipeline_stage,
    ring_stage,
    single_step,
)
from simulator.collectives.trees import heap_parents, over_nodes, tree_moves

__all__: list[str] = []

_EMPTY = ChunkMap(n_chunks=1, uniform_bytes=0)


@algorithm(
    "barrier",
    "dissemination",
    summary="in step k every rank signals the rank 2^k above",
    reference="D. Hensgen, R. Finkel and U. Manber, Two algorithms for barrier synchronization, "
    "Int. J. Parallel Program. 17 (1988)",
    formula="⌈log2 n⌉·α",
)
def dissemination_barrier(call: Call, layout: Layout) -> Schedule:
    """Return ⌈log2 n⌉ steps."""
    del layout
    n = call.world_size
    rank = np.arange(n, dtype=np.int64)
    stages = [
        single_step(
            f"distance {1 << k}",
            rank,
            (rank + (1 << k)) % n,
            start=np.zeros_like(rank),
            count=0,
            reduce=False,
            chunks=_EMPTY,
        )
        for k in range((n - 1).bit_length())
    ]
    return finish(call, "dissemination", _EMPTY, stages)


@algorithm(
    "barrier",
    "ring",
    summary="signals go once around the ring, from every rank at the same time",
    reference="the ring all-gather without data",
    formula="(n−1)·α",
)
def ring_barrier(call: Call, layout: Layout) -> Schedule:
    """Return n − 1 steps on the first channel's ring."""
    orders = layout.ring_orders()[:1]
    stage = ring_stage(
        "barrier",
        Rings.of(orders, np.zeros(1, dtype=np.int64)),
        np.zeros_like(orders),
        count=0,
        shift=0,
        reduce=False,
        chunks=_EMPTY,
    )
    return finish(call, "ring", _EMPTY, [stage])


@algorithm(
    "barrier",
    "tree",
    summary="signals go up a binary tree and down again",
    reference="P.-C. Yew, N.-F. Tzeng and D. H. Lawrie, Distributing hot-spot addressing in "
    "large-scale multiprocessors, IEEE Trans. Comput. C-36 (1987) (combining tree)",
    formula="2D·α, D depth",
)
def tree_barrier(call: Call, layout: Layout) -> Schedule:
    """Return 2D steps over a binary tree of nodes and of ranks inside."""
    parent = over_nodes(layout, layout.chain_orders()[0], heap_parents, heap_parents, -1)
    moves = tree_moves(parent, channel=0, up=True, down=True)
    silent = Moves.make(moves.src, moves.dst, channel=0, lag=moves.lag, reduce=False, count=0)
    stage = pipeline_stage("barrier", silent, n_channels=1, n_pieces=1, block=1, chunks=_EMPTY)
    return finish(call, "tree", _EMPTY, [stage])
