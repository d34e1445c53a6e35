"""Rings: all_reduce, all_gather and reduce_scatter; broadcast and reduce as pipelined chains."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from simulator.collectives.call import Call, Layout
from simulator.collectives.registry import algorithm
from simulator.collectives.schedule import Schedule
from simulator.collectives.split import part_major, pipeline_pieces, whole
from simulator.collectives.stages import Moves, Rings, finish, pipeline_stage, ring_stage

__all__: list[str] = []

IntArray = NDArray[np.int64]

_PATARASUK = (
    "P. Patarasuk and X. Yuan, Bandwidth optimal all-reduce algorithms for clusters of "
    "workstations, J. Parallel Distrib. Comput. 69 (2009), section 3"
)
_NCCL = "NCCL 2.21 src/device/{}.h, runRing"


def _both_ways(layout: Layout) -> IntArray:
    """Return each channel's ring followed by the same ring backwards."""
    orders = layout.ring_orders()
    return np.stack([orders, orders[:, ::-1]], axis=1).reshape(-1, layout.world_size)


def _all_reduce(call: Call, name: str, orders: IntArray) -> Schedule:
    channels, n = orders.shape
    rings = Rings.of(orders, np.arange(channels))
    chunks = whole(call, channels * n)
    start = np.arange(channels * n).reshape(channels, n)
    stages = [
        ring_stage("reduce_scatter", rings, start, count=1, shift=-1, reduce=True, chunks=chunks),
        ring_stage("all_gather", rings, start, count=1, shift=0, reduce=False, chunks=chunks),
    ]
    return finish(call, name, chunks, stages, n_channels=channels)


def _parts(call: Call, name: str, orders: IntArray, *, shift: int, reduce: bool) -> Schedule:
    channels, _ = orders.shape
    rings = Rings.of(orders, np.arange(channels))
    chunks = part_major(call, channels)
    start = orders * channels + np.arange(channels)[:, None]
    stage = ring_stage(
        call.collective, rings, start, count=1, shift=shift, reduce=reduce, chunks=chunks
    )
    return finish(call, name, chunks, [stage], n_channels=channels)


@algorithm(
    "all_reduce",
    "ring",
    summary="reduce-scatter, then all-gather around a ring per channel",
    reference=_PATARASUK,
    formula="2(n−1)·(α + S/(n·B))",
)
def ring_all_reduce(call: Call, layout: Layout) -> Schedule:
    """Return 2(n − 1) steps; each rank sends 2(n − 1)/n·S."""
    return _all_reduce(call, "ring", layout.ring_orders())


@algorithm(
    "all_gather",
    "ring",
    summary="every rank passes on what it received in the step before",
    reference=_NCCL.format("all_gather"),
    formula="(n−1)·(α + S/(n·B))",
)
def ring_all_gather(call: Call, layout: Layout) -> Schedule:
    """Return n − 1 steps; each rank sends (n − 1)/n·S."""
    return _parts(call, "ring", layout.ring_orders(), shift=0, reduce=False)


@algorithm(
    "reduce_scatter",
    "ring",
    summary="every rank adds its own to what it received and passes it on",
    reference=_NCCL.format("reduce_scatter"),
    formula="(n−1)·(α + S/(n·B))",
)
def ring_reduce_scatter(call: Call, layout: Layout) -> Schedule:
    """Return n − 1 steps; each rank sends (n − 1)/n·S."""
    return _parts(call, "ring", layout.ring_orders(), shift=-1, reduce=True)


@algorithm(
    "all_reduce",
    "bidirectional_ring",
    summary="two rings in opposite directions with half of the data each",
    reference=_PATARASUK,
    formula="2(n−1)·(α + S/(2n·B)), B per direction of each neighbour link",
)
def bidirectional_all_reduce(call: Call, layout: Layout) -> Schedule:
    """Return 2(n − 1) steps; each rank sends (n − 1)/n·S to each neighbour."""
    return _all_reduce(call, "bidirectional_ring", _both_ways(layout))


@algorithm(
    "all_gather",
    "bidirectional_ring",
    summary="two rings in opposite directions with half of every part each",
    reference=_NCCL.format("all_gather") + ", twice",
    formula="(n−1)·(α + S/(2n·B)), B per direction of each neighbour link",
)
def bidirectional_all_gather(call: Call, layout: Layout) -> Schedule:
    """Return n − 1 steps with half of a part per message."""
    return _parts(call, "bidirectional_ring", _both_ways(layout), shift=0, reduce=False)


@algorithm(
    "reduce_scatter",
    "bidirectional_ring",
    summary="two rings in opposite directions with half of every part each",
    reference=_NCCL.format("reduce_scatter") + ", twice",
    formula="(n−1)·(α + S/(2n·B)), B per direction of each neighbour link",
)
def bidirectional_reduce_scatter(call: Call, layout: Layout) -> Schedule:
    """Return n − 1 steps with half of a part per message."""
    return _parts(call, "bidirectional_ring", _both_ways(layout), shift=-1, reduce=True)


def _chain(call: Call, layout: Layout, *, reduce: bool) -> Schedule:
    """Return the pipelined chain that starts (broadcast) or ends (reduce) at the root."""
    orders = layout.ring_orders()
    channels, n = orders.shape
    at_root = np.argmax(orders == call.root, axis=1)
    # Position 0 is the root; a reduction ends where a broadcast starts.
    place = (at_root[:, None] + np.arange(n) + (1 if reduce else 0)) % n
    chain = np.take_along_axis(orders, place, axis=1)
    pieces = pipeline_pieces(call.size_bytes, channels, layout.pipeline_bytes)
    chunks = whole(call, channels * pieces)
    moves = Moves.make(
        chain[:, :-1].ravel(),
        chain[:, 1:].ravel(),
        channel=np.repeat(np.arange(channels), n - 1),
        lag=np.tile(np.arange(n - 1), channels),
        reduce=reduce,
    )
    stage = pipeline_stage(
        call.collective, moves, n_channels=channels, n_pieces=pieces, block=1, chunks=chunks
    )
    return finish(call, "ring", chunks, [stage], n_channels=channels)


@algorithm(
    "broadcast",
    "ring",
    summary="chain along the ring from the root, pipelined by pieces",
    reference=_NCCL.format("broadcast"),
    formula="(n−2+P)·(α + S/(P·B)), P pieces",
)
def ring_broadcast(call: Call, layout: Layout) -> Schedule:
    """Return n − 2 + P steps; every rank but the last of the chain sends S."""
    return _chain(call, layout, reduce=False)


@algorithm(
    "reduce",
    "ring",
    summary="chain along the ring that ends at the root, pipelined by pieces",
    reference=_NCCL.format("reduce"),
    formula="(n−2+P)·(α + S/(P·B)), P pieces",
)
def ring_reduce(call: Call, layout: Layout) -> Schedule:
    """Return n − 2 + P steps; every rank but the root sends S."""
    return _chain(call, layout, reduce=True)
