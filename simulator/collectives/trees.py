"""Shapes of trees over ranks, and the pipelines that reduce up and broadcast down a tree."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from simulator.collectives.call import Layout
from simulator.collectives.stages import Moves

__all__ = [
    "alternating_parents",
    "chain_parents",
    "depths",
    "heap_parents",
    "mirrored_parents",
    "over_nodes",
    "tree_moves",
]

IntArray = NDArray[np.int64]
Shape = Callable[[int], IntArray]
"""From a number of vertices to the parent of each, −1 for the root, vertex 0."""


def heap_parents(count: int) -> IntArray:
    """Return the complete binary tree: the parent of i is (i − 1)/2 rounded down.

    Examples
    --------
    >>> heap_parents(6).tolist()
    [-1, 0, 0, 1, 1, 2]
    """
    return (np.arange(count, dtype=np.int64) - 1) // 2


def chain_parents(count: int) -> IntArray:
    """Return the chain: the parent of i is i − 1."""
    return np.arange(count, dtype=np.int64) - 1


def alternating_parents(count: int) -> IntArray:
    """Return the first tree of NCCL's double binary tree: odd vertices are leaves.

    With b the lowest set bit of i, the parent is ``(i ^ b) | 2b`` where that exists, else
    ``i ^ b``.  [1]_

    References
    ----------
    .. [1] NCCL 2.21 src/graph/trees.cc, ncclGetBtree.

    Examples
    --------
    >>> alternating_parents(8).tolist()
    [-1, 2, 4, 2, 0, 6, 4, 6]
    """
    vertex = np.arange(count, dtype=np.int64)
    bit = vertex & -vertex
    parent = (vertex ^ bit) | (bit << 1)
    parent = np.where(parent >= count, vertex ^ bit, parent)
    parent[0] = -1
    return parent


def mirrored_parents(count: int) -> IntArray:
    """Return the second tree of NCCL's double binary tree.

    An even number of vertices: the first tree mirrored, so that its inner vertices are the
    leaves of the first.  An odd number: the first tree shifted by one, where vertex 0 has one
    child in each tree and every other vertex is inner in one of them.  [1]_

    References
    ----------
    .. [1] NCCL 2.21 src/graph/trees.cc, ncclGetDtree.

    Examples
    --------
    >>> mirrored_parents(4).tolist(), mirrored_parents(3).tolist()
    ([1, 3, 1, -1], [1, -1, 0])
    """
    parent = alternating_parents(count)
    if count % 2 == 0:
        return np.where(parent < 0, -1, count - 1 - parent)[::-1].copy()
    return np.roll(np.where(parent < 0, -1, (parent + 1) % count), 1)


def over_nodes(layout: Layout, order: IntArray, outer: Shape, inner: Shape, root: int) -> IntArray:
    """Return the parents of a tree over nodes whose vertices are trees inside the nodes.

    Parameters
    ----------
    order
        Ranks node by node, shape (world_size,); the first of each node is its head.
    outer, inner
        Shape over the heads, and inside a node from its head.
    root
        Rank at the top: its node becomes vertex 0 of *outer* (later nodes follow, cyclically)
        and the rank becomes the head of its node.  −1: the first of the order, without
        rotation.

    Returns
    -------
    numpy.ndarray
        Parent of each rank, −1 for the root, shape (world_size,).
    """
    starts = layout.node_starts
    n_nodes = layout.n_nodes
    if root >= 0:
        first = int(layout.node_of_rank[root])
        inside = slice(int(starts[first]), int(starts[first + 1]))
        turned = np.roll(order[inside], -int(np.argmax(order[inside] == root)))
        order = order.copy()
        order[inside] = turned
    else:
        first = 0
    parent = np.empty(layout.world_size, dtype=np.int64)
    sizes = np.diff(starts)
    for size in np.unique(sizes):
        # All nodes of one size at once; without −1, which is replaced below by the head's.
        place = starts[:-1][sizes == size][:, None] + np.arange(size)
        shape = inner(int(size))
        parent[order[place]] = order[place[:, np.maximum(shape, 0)]]
    heads = np.roll(order[starts[:-1]], -first)
    above = outer(n_nodes)
    parent[heads] = np.where(above < 0, -1, heads[above])
    return parent


def depths(parent: IntArray) -> IntArray:
    """Return the distance of each vertex from the root, by doubling jumps.

    Examples
    --------
    >>> depths(np.array([-1, 0, 0, 1])).tolist()
    [0, 1, 1, 2]
    """
    count = len(parent)
    jump = np.append(np.where(parent < 0, count, parent), count)
    depth = (jump != count).astype(np.int64)
    # After k rounds every jump is 2^k long; no path is longer than the number of vertices.
    for _ in range(count.bit_length()):
        if (jump == count).all():
            break
        depth = depth + depth[jump]
        jump = jump[jump]
    return np.asarray(depth[:-1])


def tree_moves(
    parent: IntArray, *, channel: int, up: bool, down: bool, lag: int = 0, head: int = 0
) -> Moves:
    """Return the moves of one channel's tree: reduce towards the root, broadcast from it.

    A vertex of depth d sends piece j up in step D − d + j, D being the depth of the tree, and
    receives it from above in step D + d − 1 + j (without reduction: d − 1 + j).

    Parameters
    ----------
    parent
        Parent of each slot, −1 for the root.
    up, down
        Which of the two phases take place.
    lag
        Steps before the first move.
    head
        Share of each piece that takes this tree.
    """
    depth = depths(parent)
    deepest = int(depth.max())
    child = np.flatnonzero(parent >= 0)
    above = parent[child]
    moves = []
    if up:
        moves.append(
            Moves.make(
                child,
                above,
                channel=channel,
                lag=lag + deepest - depth[child],
                head=head,
                reduce=True,
            )
        )
    if down:
        begin = lag + (deepest if up else 0)
        moves.append(
            Moves.make(
                above, child, channel=channel, lag=begin + depth[child] - 1, head=head, reduce=False
            )
        )
    return Moves.join(moves)
