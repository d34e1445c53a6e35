"""What a connection's route alone says: its rate, and the load that it can put on links."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from simulator.engine.traffic import Collective, Connections

__all__ = ["alone_rates", "link_demand", "merged", "owner_of_entry", "payload_of_connections"]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


def owner_of_entry(connections: Connections) -> IntArray:
    """Return the connection of each route entry, shape (entries,)."""
    counts = np.diff(connections.indptr)
    return np.repeat(np.arange(len(counts), dtype=np.int64), counts)


def merged(connections: Connections) -> Connections:
    """Return the same routes with each link at most once per connection, weights added.

    A connection that is split over several paths may name a common link once per path.
    """
    owner = owner_of_entry(connections)
    if len(owner) == 0:
        return connections
    n_links = int(connections.link.max()) + 1
    key = owner * n_links + connections.link
    unique, inverse = np.unique(key, return_inverse=True)
    if len(unique) == len(key):
        return connections
    weight = np.zeros(len(unique))
    np.add.at(weight, inverse, connections.weight)
    counts = np.bincount(unique // n_links, minlength=len(connections.src))
    indptr = np.concatenate(([0], np.cumsum(counts)))
    return replace(connections, indptr=indptr, link=unique % n_links, weight=weight)


def alone_rates(connections: Connections, capacity_Bps: FloatArray) -> FloatArray:
    """Return each connection's payload rate in bytes/s when nothing else is on its links.

    Parameters
    ----------
    connections
        Routes with each link at most once per connection.
    capacity_Bps
        Wire capacity, shape (links,).

    Returns
    -------
    numpy.ndarray
        ``min(max_rate_Bps, min over links of capacity / weight)``, shape (connections,).
    """
    rate = np.array(connections.max_rate_Bps, dtype=np.float64)
    counts = np.diff(connections.indptr)
    routed = np.flatnonzero(counts)
    if len(routed):
        share = capacity_Bps[connections.link] / connections.weight
        head = connections.indptr[:-1][routed]
        rate[routed] = np.minimum(rate[routed], np.minimum.reduceat(share, head))
    return rate


def link_demand(
    connections: Connections, rate_Bps: FloatArray, active: NDArray[np.bool_], n_links: int
) -> FloatArray:
    """Return the wire bytes/s on each link when all *active* connections send at *rate_Bps*."""
    owner = owner_of_entry(connections)
    finite = np.where(active & np.isfinite(rate_Bps), rate_Bps, 0.0)
    wire_Bps: FloatArray = connections.weight * finite[owner]
    return np.bincount(connections.link, wire_Bps, n_links).astype(np.float64)


def payload_of_connections(collective: Collective) -> FloatArray:
    """Return the payload bytes of the whole call on each connection, shape (connections,)."""
    total = np.zeros(len(collective.connections.src))
    for stage in collective.stages:
        total += np.bincount(stage.connection, weights=stage.edge_bytes, minlength=len(total))
    return total
