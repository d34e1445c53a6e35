"""Heads: the ranks of a node that stand for it, each for its share of the data."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from simulator.base.errors import Problem, ScheduleError
from simulator.collectives.call import Layout

__all__ = ["node_heads", "require_nodes"]

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
