"""Heads: the ranks of a node that stand for it, each for its share of the data."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulator.base.errors import Problem, ScheduleError
from simulator.collectives.call import Layout
from simulator.collectives.schedule import VirtualRank

__all__ = ["LikeRanks", "NetworkSwitches", "node_heads", "node_switches", "require_nodes"]

IntArray = NDArray[np.int64]


def node_heads(layout: Layout, order: IntArray) -> IntArray:
    """Return the first ranks of every node's chain, as many as the smallest node has.

    Returns
    -------
    numpy.ndarray
        Shape (n_nodes, heads).
    """
    starts = layout.node_starts
    heads = int(np.diff(starts).min())
    return np.asarray(order[starts[:-1, None] + np.arange(heads)])


def node_switches(layout: Layout) -> list[VirtualRank]:
    """Return the NVSwitch of every node as a virtual rank, in the nodes' order."""
    starts = layout.node_starts
    return [
        VirtualRank(kind="nvswitch", members=tuple(range(starts[v], starts[v + 1])))
        for v in range(layout.n_nodes)
    ]


def require_nodes(
    layout: Layout, name: str, *, several: bool, per_node: int = 1, instead: str = ""
) -> None:
    """Raise ScheduleError unless there is one node (or several), each with enough ranks."""
    if several != (layout.n_nodes > 1):
        raise ScheduleError(
            Problem(
                message=f"{name} on {layout.n_nodes} node{'s' if layout.n_nodes > 1 else ''}",
                allowed=f"{'two nodes or more' if several else 'one node or NVLink domain'}"
                f"; {instead} otherwise",
            )
        )
    smallest = int(np.diff(layout.node_starts).min())
    if smallest < per_node:
        raise ScheduleError(
            Problem(
                message=f"{name} with a node of {smallest} rank",
                allowed=f"at least {per_node} ranks on every node",
            )
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LikeRanks:
    """Ranks by their place in their node: those of one place, on all nodes, are like ranks.

    Parts are numbered place by place, so that those of like ranks lie together.
    """

    n_nodes: int
    per_node: int
    place: IntArray
    """Of each rank in its node, shape (world_size,)."""
    order: IntArray
    """Rank at each position, shape (world_size,)."""
    position: IntArray
    """Position of each rank."""

    @classmethod
    def of(cls, layout: Layout, name: str) -> LikeRanks:
        """Return the like ranks of nodes of one size.

        Raises
        ------
        ScheduleError
            Nodes of different sizes.
        """
        starts = layout.node_starts
        sizes = np.diff(starts)
        if len(np.unique(sizes)) > 1:
            raise ScheduleError(
                Problem(
                    message=f"{name} on nodes of {sizes.min()} to {sizes.max()} ranks",
                    allowed="nodes with equally many ranks; ring otherwise",
                )
            )
        per_node = int(sizes[0])
        order = (starts[:-1, None] + np.arange(per_node)).T.ravel()
        position = np.empty_like(order)
        position[order] = np.arange(len(order))
        return cls(
            n_nodes=layout.n_nodes,
            per_node=per_node,
            place=position // layout.n_nodes,
            order=order,
            position=position,
        )

    @property
    def first(self) -> IntArray:
        """Position of the first part of each rank's like ranks."""
        return self.place * self.n_nodes


class NetworkSwitches:
    """One virtual switch per set of ranks that it reduces over, numbered from a first slot."""

    def __init__(self, first_slot: int) -> None:
        self._slot: dict[tuple[int, ...], int] = {}
        self._first = first_slot

    def slot(self, members: IntArray) -> int:
        """Return the slot of the switch over some ranks."""
        return self._slot.setdefault(tuple(members.tolist()), self._first + len(self._slot))

    def of_like_ranks(self, like: LikeRanks) -> IntArray:
        """Return the slot of the switch over each rank's like ranks, shape (world_size,)."""
        rows = like.order.reshape(like.per_node, like.n_nodes)
        return np.array([self.slot(row) for row in rows], dtype=np.int64)[like.place]

    def ranks(self) -> list[VirtualRank]:
        """Return the virtual ranks, in the order of their slots."""
        return [VirtualRank(kind="sharp", members=members) for members in self._slot]
