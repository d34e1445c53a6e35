"""NVLS: the NVSwitch reduces and multicasts; NVLS tree: the same in the node, trees between."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from simulator.collectives.call import Call, Layout
from simulator.collectives.heads import node_heads, node_switches, require_nodes
from simulator.collectives.registry import algorithm
from simulator.collectives.schedule import Schedule, VirtualRank
from simulator.collectives.split import channel_major, pipeline_pieces, whole
from simulator.collectives.stages import Moves, pipelined
from simulator.collectives.trees import alternating_parents, depths, mirrored_parents, tree_moves

__all__: list[str] = []

IntArray = NDArray[np.int64]
_REFERENCE = (
    "B. Klenk, N. Jiang, G. Thorson and L. Dennison, An in-network architecture for accelerating "
    "shared-memory multiprocessor collectives, ISCA 2020; NCCL 2.21 src/device/{}.h, NVLS"
)


def _on_one_node(call: Call, layout: Layout, *, gather: bool, scatter: bool) -> Schedule:
    """Return the pipeline of one switch; rank r is the head of share r.

    Scattering, every rank's data flow through the switch, which hands each head the sum of its
    share.  Gathering, each head writes its share, which the switch multicasts to all ranks, the
    writer included (multimem.st writes to every member of the multicast group).
    """
    require_nodes(layout, "nvls", several=False, instead="nvls_tree")
    n, channels = call.world_size, layout.n_channels
    rank, switch = np.arange(n, dtype=np.int64), np.full(n, call.world_size)
    pieces = pipeline_pieces(call.size_bytes, channels * n, layout.pipeline_bytes)
    if gather and scatter:
        chunks = whole(call, channels * pieces * n)
    else:
        chunks = channel_major(call, channels * pieces, rank[None, :])
    moves = []
    for channel in range(channels):
        lag = 0
        if scatter:
            moves += [
                Moves.make(rank, switch, channel=channel, lag=0, count=n, reduce=True),
                Moves.make(switch, rank, channel=channel, lag=1, head=rank, reduce=False),
            ]
            lag = 2
        if gather:
            moves += [
                Moves.make(rank, switch, channel=channel, lag=lag, head=rank, reduce=False),
                Moves.make(switch, rank, channel=channel, lag=lag + 1, count=n, reduce=False),
            ]
    virtual = [VirtualRank(kind="nvswitch", members=tuple(range(n)))]
    return pipelined(
        call,
        "nvls",
        call.collective,
        moves,
        chunks=chunks,
        n_channels=channels,
        n_pieces=pieces,
        block=n,
        virtual=virtual,
    )


@algorithm(
    "all_reduce",
    "nvls",
    summary="the NVSwitch adds up what it reads from all GPUs and multicasts the sum",
    reference=_REFERENCE.format("all_reduce"),
    formula="(3+P)·α + (n+1)/n·S/B, P pieces",
)
def nvls_all_reduce(call: Call, layout: Layout) -> Schedule:
    """Return P + 3 steps; each rank sends and receives (n + 1)/n·S.

    Raises
    ------
    ScheduleError
        On more than one node.
    """
    return _on_one_node(call, layout, gather=True, scatter=True)


@algorithm(
    "all_gather",
    "nvls",
    summary="every rank writes its part once, the NVSwitch multicasts it",
    reference=_REFERENCE.format("all_gather"),
    formula="(1+P)·α + S/B, P pieces",
)
def nvls_all_gather(call: Call, layout: Layout) -> Schedule:
    """Return P + 1 steps; each rank sends S/n and receives S.  Refuses like `nvls_all_reduce`."""
    return _on_one_node(call, layout, gather=True, scatter=False)


@algorithm(
    "reduce_scatter",
    "nvls",
    summary="every rank reads the sum of its part, which the NVSwitch adds up",
    reference=_REFERENCE.format("reduce_scatter"),
    formula="(1+P)·α + S/B, P pieces",
)
def nvls_reduce_scatter(call: Call, layout: Layout) -> Schedule:
    """Return P + 1 steps; each rank sends S and receives S/n.  Refuses like `nvls_all_reduce`."""
    return _on_one_node(call, layout, gather=False, scatter=True)


@algorithm(
    "all_reduce",
    "nvls_tree",
    summary="NVSwitch reduction in the node, double binary trees between like ranks of nodes",
    reference=_REFERENCE.format("all_reduce") + " tree",
    formula="(3+2·log2 N+P)·α + max((m+1)/m·S/B_in, 2S/(m·B_out)); m per node, N nodes, P pieces",
)
def nvls_tree_all_reduce(call: Call, layout: Layout) -> Schedule:
    """Return P + 3 + 2D steps, D the depth of the tree over nodes.

    The heads of a node, as many as the smallest node has ranks, each own a share of the data;
    like heads of all nodes form a tree, the first tree on the first half of the channels and
    the complementary one on the other half (an odd number of channels is doubled).

    Raises
    ------
    ScheduleError
        On one node, or if a node has a single rank.
    """
    require_nodes(layout, "nvls_tree", several=True, per_node=2, instead="nvls")
    n, n_nodes = call.world_size, layout.n_nodes
    channels = layout.n_channels * (1 + layout.n_channels % 2)
    orders = layout.chain_orders(layout.n_channels)
    rank, switch_of = np.arange(n, dtype=np.int64), n + layout.node_of_rank
    moves = []
    for channel in range(channels):
        head = node_heads(layout, orders[channel % len(orders)])
        n_heads = head.shape[1]
        shape = alternating_parents if channel < channels // 2 else mirrored_parents
        above = shape(n_nodes)
        depth = depths(above)
        deepest = int(depth.max())
        flat, share = head.ravel(), np.tile(np.arange(n_heads), n_nodes)
        # At this step the first piece of a node's data is complete at its heads.
        done = 2 + deepest + depth
        at_head = np.repeat(done, n_heads)
        at_rank = done[layout.node_of_rank] + 1
        moves += [
            Moves.make(rank, switch_of, channel=channel, lag=0, count=n_heads, reduce=True),
            Moves.make(switch_of[flat], flat, channel=channel, lag=1, head=share, reduce=False),
            *(
                tree_moves(
                    _tree_of_heads(n, head[:, h], above),
                    channel=channel,
                    up=True,
                    down=True,
                    lag=2,
                    head=h,
                )
                for h in range(n_heads)
            ),
            Moves.make(
                flat, switch_of[flat], channel=channel, lag=at_head, head=share, reduce=False
            ),
            Moves.make(switch_of, rank, channel=channel, lag=at_rank, count=n_heads, reduce=False),
        ]
    pieces = pipeline_pieces(call.size_bytes, channels * n_heads, layout.pipeline_bytes)
    chunks = whole(call, channels * pieces * n_heads)
    return pipelined(
        call,
        "nvls_tree",
        "reduce_broadcast",
        moves,
        chunks=chunks,
        n_channels=channels,
        n_pieces=pieces,
        block=n_heads,
        virtual=node_switches(layout),
    )


def _tree_of_heads(n: int, head: IntArray, above: IntArray) -> IntArray:
    """Return the parents over ranks of the tree *above* over nodes, through their heads."""
    parent = np.full(n, -1, dtype=np.int64)
    parent[head] = np.where(above < 0, -1, head[above])
    return parent
