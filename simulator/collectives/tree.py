"""Binary trees, pipelined by pieces: one tree, and NCCL's double binary tree."""

from __future__ import annotations

from simulator.collectives.call import Call, Layout
from simulator.collectives.registry import algorithm
from simulator.collectives.schedule import Schedule
from simulator.collectives.split import pipeline_pieces, whole
from simulator.collectives.stages import pipelined
from simulator.collectives.trees import (
    alternating_parents,
    chain_parents,
    heap_parents,
    mirrored_parents,
    over_nodes,
    tree_moves,
)

__all__: list[str] = []

_TREE = (
    "R. Thakur, R. Rabenseifner and W. Gropp, Optimization of collective communication "
    "operations in MPICH, Int. J. High Perform. Comput. Appl. 19 (2005), section 2 (trees); "
    "pipelining as in P. Sanders, J. Speck and J. L. Träff, Parallel Comput. 35 (2009), section 2"
)
_DOUBLE = (
    "P. Sanders, J. Speck and J. L. Träff, Two-tree algorithms for full bandwidth broadcast, "
    "reduction and scan, Parallel Comput. 35 (2009); NCCL 2.21 src/graph/trees.cc and "
    "src/device/all_reduce.h, runTreeSplit"
)


def _tree(call: Call, layout: Layout, *, up: bool, down: bool, root: int) -> Schedule:
    channels = layout.n_channels
    moves = [
        tree_moves(
            over_nodes(layout, order, heap_parents, heap_parents, root),
            channel=channel,
            up=up,
            down=down,
        )
        for channel, order in enumerate(layout.chain_orders())
    ]
    pieces = pipeline_pieces(call.size_bytes, channels, layout.pipeline_bytes)
    chunks = whole(call, channels * pieces)
    return pipelined(
        call,
        "tree",
        "reduce_broadcast" if up and down else call.collective,
        moves,
        chunks=chunks,
        n_channels=channels,
        n_pieces=pieces,
        block=1,
    )


@algorithm(
    "all_reduce",
    "tree",
    summary="reduce up and broadcast down a binary tree, pipelined by pieces",
    reference=_TREE,
    formula="(2D+P−1)·(α + 3S/(P·B)), D depth, P pieces; an inner rank sends S to its parent and "
    "to each child, and receives as much",
)
def tree_all_reduce(call: Call, layout: Layout) -> Schedule:
    """Return 2D + P − 1 steps over a complete binary tree of nodes and of ranks inside."""
    return _tree(call, layout, up=True, down=True, root=-1)


@algorithm(
    "broadcast",
    "tree",
    summary="down a binary tree from the root, pipelined by pieces",
    reference=_TREE,
    formula="(D−1+P)·(α + 2S/(P·B)), D depth, P pieces",
)
def tree_broadcast(call: Call, layout: Layout) -> Schedule:
    """Return D − 1 + P steps; an inner rank sends S to each child."""
    return _tree(call, layout, up=False, down=True, root=call.root)


@algorithm(
    "reduce",
    "tree",
    summary="up a binary tree to the root, pipelined by pieces",
    reference=_TREE,
    formula="(D−1+P)·(α + 2S/(P·B)), D depth, P pieces",
)
def tree_reduce(call: Call, layout: Layout) -> Schedule:
    """Return D − 1 + P steps; an inner rank receives S from each child."""
    return _tree(call, layout, up=True, down=False, root=call.root)


@algorithm(
    "all_reduce",
    "double_binary_tree",
    summary="NCCL's Tree: two complementary trees over nodes, chains inside nodes",
    reference=_DOUBLE,
    formula="2(m−1 + log2 N)·α + 2S/B for large S (two nodes: S/B between them); m ranks per node, "
    "N nodes",
)
def double_binary_tree(call: Call, layout: Layout) -> Schedule:
    """Return two trees with half of the data each.

    The first half of the channels uses the first tree, the second half the other; an odd number
    of channels is doubled, as NCCL doubles the channels of its search; the copy of a channel keeps
    its chains.

    Notes
    -----
    NCCL's balanced and split patterns, where a child of the head's parent hangs on the second
    rank of the chain, are not modelled: parent and children are those of the chain's first rank.
    """
    channels = layout.n_channels * (1 + layout.n_channels % 2)
    half = channels // 2
    orders = layout.chain_orders(layout.n_channels)
    moves = [
        tree_moves(
            over_nodes(
                layout,
                orders[channel % len(orders)],
                alternating_parents if channel < half else mirrored_parents,
                chain_parents,
                -1,
            ),
            channel=channel,
            up=True,
            down=True,
        )
        for channel in range(channels)
    ]
    pieces = pipeline_pieces(call.size_bytes, channels, layout.pipeline_bytes)
    chunks = whole(call, channels * pieces)
    return pipelined(
        call,
        "double_binary_tree",
        "reduce_broadcast",
        moves,
        chunks=chunks,
        n_channels=channels,
        n_pieces=pieces,
        block=1,
    )
