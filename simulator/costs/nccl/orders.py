"""From the graphs of a node to the rank orders of a communicator's rings and chains.

References
----------
NCCL src/graph/connect.cc (ncclTopoPreset, ncclTopoPostset), read at 2.21.5.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from simulator.base.errors import ScenarioError
from simulator.costs.nccl.graph import ChannelGraph

__all__ = ["chain_orders", "channel_nets", "ring_orders"]


def _source_channels(graph: ChannelGraph, n_channels: int) -> list[int]:
    """Return the graph channel behind each channel of the communicator."""
    if n_channels < 1 or not graph.channels:
        raise ScenarioError(f"{n_channels} channels from a graph of {len(graph.channels)}")
    return [channel % graph.n_channels for channel in range(n_channels)]


def _on_node(graph: ChannelGraph, channel: int, node: int) -> int:
    """Odd nodes swap pairs of channels so that a ring stays on its rail."""
    swaps = graph.cross_nic and graph.n_channels % 2 == 0 and node % 2 == 1
    return channel ^ 1 if swaps else channel


def ring_orders(graph: ChannelGraph, n_nodes: int, n_channels: int) -> NDArray[np.int64]:
    """Return the ranks in ring order, shape (n_channels, world size).

    Parameters
    ----------
    graph
        Ring graph of a node; all nodes alike.
    n_nodes
        Nodes; the last GPU of each sends to the first of the next.
    n_channels
        Channels of the communicator; more than the graph has repeat it.

    Examples
    --------
    >>> from simulator.costs.nccl.graph import GraphChannel, Pattern
    >>> graph = ChannelGraph(
    ...     pattern=Pattern.RING,
    ...     n_channels=1,
    ...     bw_intra_GBps=12,
    ...     bw_inter_GBps=12,
    ...     channels=(GraphChannel(gpus=(0, 2, 1)),),
    ... )
    >>> ring_orders(graph, 2, 1).tolist()
    [[0, 2, 1, 3, 5, 4]]
    """
    rows = []
    for channel in _source_channels(graph, n_channels):
        even, odd = (graph.channels[_on_node(graph, channel, node)].gpus for node in (0, 1))
        rows.append(_all_nodes(even, odd, n_nodes))
    return np.stack(rows)


def _all_nodes(even: Sequence[int], odd: Sequence[int], n_nodes: int) -> NDArray[np.int64]:
    """Return ranks node by node from the local orders of even and of odd nodes."""
    local = np.array([even, odd], dtype=np.int64)
    node = np.arange(n_nodes)
    return np.asarray((local[node % 2] + len(even) * node[:, None]).ravel())


def chain_orders(graph: ChannelGraph, n_nodes: int, n_channels: int) -> NDArray[np.int64]:
    """Return the ranks in the order of the chains of a tree graph, node by node.

    Parameters
    ----------
    graph
        Tree graph of a node; the first GPU of a chain faces the network, of a balanced tree the
        second takes one of its two children.
    n_nodes, n_channels
        As in `ring_orders`.

    Returns
    -------
    NDArray
        Shape (n_channels, world size).
    """
    rows = []
    for channel in _source_channels(graph, n_channels):
        gpus = graph.channels[channel].gpus
        rows.append(_all_nodes(gpus, gpus, n_nodes))
    return np.stack(rows)


def channel_nets(
    graph: ChannelGraph, node: int, n_channels: int
) -> list[tuple[int | None, int | None]]:
    """Return the NICs in and out of each channel on a node.

    Parameters
    ----------
    graph
        Ring or tree graph.
    node
        Index of the node: odd ones swap pairs of channels of a ring with crossing NICs.
    n_channels
        Channels of the communicator.
    """
    picked = [
        graph.channels[_on_node(graph, channel, node)]
        for channel in _source_channels(graph, n_channels)
    ]
    return [(channel.net_in, channel.net_out) for channel in picked]
