"""CollNet (SHARP): the network's switches reduce; chains or direct exchange inside nodes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from simulator.collectives.call import Call, Layout
from simulator.collectives.heads import LikeRanks, NetworkSwitches, node_heads, require_nodes
from simulator.collectives.registry import algorithm
from simulator.collectives.schedule import Schedule
from simulator.collectives.split import channel_major, pipeline_pieces, whole
from simulator.collectives.stages import Moves, pipelined
from simulator.collectives.trees import chain_parents, over_nodes, tree_moves

__all__: list[str] = []

IntArray = NDArray[np.int64]
_REFERENCE = (
    "R. L. Graham et al., Scalable hierarchical aggregation protocol (SHArP): a hardware "
    "architecture for efficient data reduction, COMHPC 2016; NCCL 2.21 src/device/all_reduce.h, "
    "CollNet {}"
)
_SHARDED_REFERENCE = "NCCL 2.23 src/device/{}.h, CollNet direct"


@algorithm(
    "all_reduce",
    "collnet_chain",
    summary="a chain in each node to its first rank, the network's switches reduce over nodes",
    reference=_REFERENCE.format("chain"),
    formula="(2m+P−1)·α + S/B, m ranks per node, P pieces",
)
def collnet_chain(call: Call, layout: Layout) -> Schedule:
    """Return 2m + P − 1 steps; each rank sends at most 2S, each head S into the network.

    Raises
    ------
    ScheduleError
        On one node.
    """
    require_nodes(layout, "collnet_chain", several=True, instead="nvls or ring")
    n, channels = call.world_size, layout.n_channels
    switches = NetworkSwitches(n)
    orders = layout.chain_orders()
    tops = [switches.slot(node_heads(layout, order)[:, 0]) for order in orders]
    moves = []
    for channel, (order, top) in enumerate(zip(orders, tops, strict=True)):
        parent = np.full(max(tops) + 1, -1, dtype=np.int64)
        parent[:n] = over_nodes(layout, order, _flat, chain_parents, -1)
        parent[node_heads(layout, order)[:, 0]] = top
        moves.append(tree_moves(parent, channel=channel, up=True, down=True))
    pieces = pipeline_pieces(call.size_bytes, channels, layout.pipeline_bytes)
    chunks = whole(call, channels * pieces)
    return pipelined(
        call,
        "collnet_chain",
        "reduce_broadcast",
        moves,
        chunks=chunks,
        n_channels=channels,
        n_pieces=pieces,
        block=1,
        virtual=switches.ranks(),
    )


@algorithm(
    "all_reduce",
    "collnet_direct",
    summary="each rank reduces its share of the node, the network's switches reduce over nodes",
    reference=_REFERENCE.format("direct"),
    formula="(3+P)·α + max(2(m−1)/m·S/B_in, S/(m·B_out)), m ranks per node, P pieces",
)
def collnet_direct(call: Call, layout: Layout) -> Schedule:
    """Return P + 3 steps; each head sends its share, S/m, once into the network.

    As many heads as the smallest node has ranks; like heads of all nodes share one switch tree.

    Raises
    ------
    ScheduleError
        On one node.
    """
    require_nodes(layout, "collnet_direct", several=True, instead="nvls or ring")
    n, channels = call.world_size, layout.n_channels
    switches = NetworkSwitches(n)
    moves = []
    for channel, order in enumerate(layout.chain_orders()):
        head = node_heads(layout, order)
        n_heads = head.shape[1]
        owner = head[layout.node_of_rank].ravel()
        rank, share = (i.ravel() for i in np.indices((n, n_heads)))
        other = rank != owner
        rank, owner, share = rank[other], owner[other], share[other]
        flat, of = head.ravel(), np.tile(np.arange(n_heads), layout.n_nodes)
        top = np.array([switches.slot(head[:, h]) for h in range(n_heads)])[of]
        moves += [
            Moves.make(rank, owner, channel=channel, lag=0, head=share, reduce=True),
            Moves.make(flat, top, channel=channel, lag=1, head=of, reduce=True),
            Moves.make(top, flat, channel=channel, lag=2, head=of, reduce=False),
            Moves.make(owner, rank, channel=channel, lag=3, head=share, reduce=False),
        ]
    pieces = pipeline_pieces(call.size_bytes, channels * n_heads, layout.pipeline_bytes)
    chunks = whole(call, channels * pieces * n_heads)
    return pipelined(
        call,
        "collnet_direct",
        "reduce_broadcast",
        moves,
        chunks=chunks,
        n_channels=channels,
        n_pieces=pieces,
        block=n_heads,
        virtual=switches.ranks(),
    )


def _sharded(call: Call, layout: Layout, *, gather: bool) -> Schedule:
    """Return the pipeline in which every rank is the head of its own parts and its like ranks'."""
    require_nodes(layout, "collnet_direct", several=True, instead="nvls or ring")
    like = LikeRanks.of(layout, "collnet_direct")
    n, nodes, channels = call.world_size, like.n_nodes, layout.n_channels
    switches = NetworkSwitches(n)
    rank, top = np.arange(n), switches.of_like_ranks(like)
    src, dst = np.nonzero(layout.node_of_rank[:, None] == layout.node_of_rank)
    src, dst = src[src != dst], dst[src != dst]
    pieces = pipeline_pieces(call.size_bytes, channels * n, layout.pipeline_bytes)
    chunks = channel_major(call, channels * pieces, like.order[None, :])
    moves = []
    for channel in range(channels):
        if gather:
            moves += [
                Moves.make(rank, top, channel=channel, lag=0, head=like.position, reduce=False),
                Moves.make(
                    top, rank, channel=channel, lag=1, head=like.first, count=nodes, reduce=False
                ),
                Moves.make(
                    src,
                    dst,
                    channel=channel,
                    lag=2,
                    head=like.first[src],
                    count=nodes,
                    reduce=False,
                ),
            ]
            continue
        moves += [
            Moves.make(
                src, dst, channel=channel, lag=0, head=like.first[dst], count=nodes, reduce=True
            ),
            Moves.make(
                rank, top, channel=channel, lag=1, head=like.first, count=nodes, reduce=True
            ),
            Moves.make(top, rank, channel=channel, lag=2, head=like.position, reduce=False),
        ]
    return pipelined(
        call,
        "collnet_direct",
        call.collective,
        moves,
        chunks=chunks,
        n_channels=channels,
        n_pieces=pieces,
        block=n,
        virtual=switches.ranks(),
    )


@algorithm(
    "all_gather",
    "collnet_direct",
    summary="the network's switches multicast among like ranks, which pass on inside their nodes",
    reference=_SHARDED_REFERENCE.format("all_gather"),
    formula="(2+P)·α + max((m−1)/m·S/B_in, S/(m·B_out)), m ranks per node, P pieces",
)
def collnet_direct_all_gather(call: Call, layout: Layout) -> Schedule:
    """Return P + 2 steps; each rank sends S/n into the network and receives S/m from it.

    Raises
    ------
    ScheduleError
        On one node, or on nodes of different sizes.
    """
    return _sharded(call, layout, gather=True)


@algorithm(
    "reduce_scatter",
    "collnet_direct",
    summary="like ranks add up in the network's switches what their nodes have added up",
    reference=_SHARDED_REFERENCE.format("reduce_scatter"),
    formula="(2+P)·α + max((m−1)/m·S/B_in, S/(m·B_out)), m ranks per node, P pieces",
)
def collnet_direct_reduce_scatter(call: Call, layout: Layout) -> Schedule:
    """Return P + 2 steps, `collnet_direct_all_gather` backwards; refuses alike."""
    return _sharded(call, layout, gather=False)


def _flat(count: int) -> IntArray:
    """Return vertices without parents: the switch is above all heads."""
    return np.full(count, -1, dtype=np.int64)
