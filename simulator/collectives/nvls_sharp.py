"""NVLS over nodes: NVSwitches reduce and multicast inside nodes, the network's switches between."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from simulator.collectives.call import Call, Layout
from simulator.collectives.heads import (
    LikeRanks,
    NetworkSwitches,
    node_heads,
    node_switches,
    require_nodes,
)
from simulator.collectives.registry import algorithm
from simulator.collectives.schedule import ChunkMap, Schedule
from simulator.collectives.split import channel_major, pipeline_pieces, whole
from simulator.collectives.stages import Moves, pipelined

__all__: list[str] = []

IntArray = NDArray[np.int64]
_NAME = "nvls_sharp"
_REFERENCE = "NCCL 2.27 src/device/{}.h, NVLS with SHARP between nodes"


def _finished(
    call: Call,
    layout: Layout,
    moves: Sequence[Moves],
    switches: NetworkSwitches,
    *,
    chunks: ChunkMap,
    pieces: int,
    block: int,
) -> Schedule:
    return pipelined(
        call,
        _NAME,
        call.collective,
        moves,
        chunks=chunks,
        n_channels=layout.n_channels,
        n_pieces=pieces,
        block=block,
        virtual=[*node_switches(layout), *switches.ranks()],
    )


@algorithm(
    "all_reduce",
    _NAME,
    summary="NVSwitches add up inside nodes, the network's switches between like ranks of nodes",
    reference=_REFERENCE.format("all_reduce"),
    formula="(5+P)·α + max((m+1)/m·S/B_in, S/(m·B_out)), m ranks per node, P pieces",
)
def nvls_sharp_all_reduce(call: Call, layout: Layout) -> Schedule:
    """Return P + 5 steps; each head sends its share, S/m, once into the network.

    As many heads as the smallest node has ranks; like heads of all nodes share one switch tree.

    Raises
    ------
    ScheduleError
        On one node, or if a node has a single rank.
    """
    require_nodes(layout, _NAME, several=True, per_node=2, instead="nvls")
    n, nodes, channels = call.world_size, layout.n_nodes, layout.n_channels
    switches = NetworkSwitches(n + nodes)
    rank, switch_of = np.arange(n, dtype=np.int64), n + layout.node_of_rank
    moves: list[Moves] = []
    for channel, order in enumerate(layout.chain_orders()):
        head = node_heads(layout, order)
        n_heads = head.shape[1]
        flat, share = head.ravel(), np.tile(np.arange(n_heads), nodes)
        top = np.array([switches.slot(head[:, h]) for h in range(n_heads)])[share]
        ways = (flat, switch_of[flat], top)
        moves += [
            Moves.make(rank, switch_of, channel=channel, lag=0, count=n_heads, reduce=True),
            *_shared(ways, share, channel=channel),
            Moves.make(switch_of, rank, channel=channel, lag=5, count=n_heads, reduce=False),
        ]
    pieces = pipeline_pieces(call.size_bytes, channels * n_heads, layout.pipeline_bytes)
    chunks = whole(call, channels * pieces * n_heads)
    return _finished(call, layout, moves, switches, chunks=chunks, pieces=pieces, block=n_heads)


def _shared(
    ways: tuple[IntArray, IntArray, IntArray], share: IntArray, *, channel: int
) -> list[Moves]:
    """Return the way of each head's share: NVSwitch, head, network and back."""
    flat, switch, top = ways
    return [
        Moves.make(switch, flat, channel=channel, lag=1, head=share, reduce=False),
        Moves.make(flat, top, channel=channel, lag=2, head=share, reduce=True),
        Moves.make(top, flat, channel=channel, lag=3, head=share, reduce=False),
        Moves.make(flat, switch, channel=channel, lag=4, head=share, reduce=False),
    ]


def _sharded(call: Call, layout: Layout, *, gather: bool) -> Schedule:
    """Return the pipeline in which every rank is the head of its like ranks' parts."""
    require_nodes(layout, _NAME, several=True, per_node=2, instead="nvls")
    like = LikeRanks.of(layout, _NAME)
    n, nodes, channels = call.world_size, like.n_nodes, layout.n_channels
    switches = NetworkSwitches(n + nodes)
    rank, switch_of = np.arange(n, dtype=np.int64), n + layout.node_of_rank
    top, own, first = switches.of_like_ranks(like), like.position, like.first
    pieces = pipeline_pieces(call.size_bytes, channels * n, layout.pipeline_bytes)
    chunks = channel_major(call, channels * pieces, like.order[None, :])
    moves: list[Moves] = []
    for at in range(channels):
        if gather:
            moves += [
                Moves.make(rank, top, channel=at, lag=0, head=own, reduce=False),
                Moves.make(top, rank, channel=at, lag=1, head=first, count=nodes, reduce=False),
                Moves.make(
                    rank, switch_of, channel=at, lag=2, head=first, count=nodes, reduce=False
                ),
                Moves.make(switch_of, rank, channel=at, lag=3, count=n, reduce=False),
            ]
            continue
        moves += [
            Moves.make(rank, switch_of, channel=at, lag=0, count=n, reduce=True),
            Moves.make(switch_of, rank, channel=at, lag=1, head=first, count=nodes, reduce=False),
            Moves.make(rank, top, channel=at, lag=2, head=first, count=nodes, reduce=True),
            Moves.make(top, rank, channel=at, lag=3, head=own, reduce=False),
        ]
    return _finished(call, layout, moves, switches, chunks=chunks, pieces=pieces, block=n)


@algorithm(
    "all_gather",
    _NAME,
    summary="the network's switches multicast among like ranks, NVSwitches inside their nodes",
    reference=_REFERENCE.format("all_gather"),
    formula="(3+P)·α + max(S/B_in, S/(m·B_out)), m ranks per node, P pieces",
)
def nvls_sharp_all_gather(call: Call, layout: Layout) -> Schedule:
    """Return P + 3 steps; each rank sends S/n into the network and receives S/m from it.

    Raises
    ------
    ScheduleError
        On one node, on nodes of different sizes, or of a single rank.
    """
    return _sharded(call, layout, gather=True)


@algorithm(
    "reduce_scatter",
    _NAME,
    summary="NVSwitches add up inside nodes, the network's switches hand each rank its part's sum",
    reference=_REFERENCE.format("reduce_scatter"),
    formula="(3+P)·α + max(S/B_in, S/(m·B_out)), m ranks per node, P pieces",
)
def nvls_sharp_reduce_scatter(call: Call, layout: Layout) -> Schedule:
    """Return P + 3 steps, `nvls_sharp_all_gather` backwards; refuses alike."""
    return _sharded(call, layout, gather=False)
