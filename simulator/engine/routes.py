"""What a connection's route alone says: its rate, and the load that it can put on links."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from simulator.engine.traffic import Collective, Connections

__all__ = [
    "alone_rates",
    "distinct",
    "entries_of",
    "link_demand",
    "merged",
    "owner_of_entry",
    "payload_of_connections",
]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


T = TypeVar("T", bound=np.generic)
_BLOCK = 1 << 20
"""Connections are worked on in blocks of this many, so that intermediate arrays stay small."""


def owner_of_entry(connections: Connections) -> IntArray:
    """Return the connection of each route entry, shape (entries,)."""
    counts = np.diff(connections.indptr)
    return np.repeat(np.arange(len(counts), dtype=np.int64), counts)


def distinct(values: NDArray[T]) -> NDArray[T]:
    """Return the different values, ascending (np.unique hashes first, which is slower here)."""
    ordered = np.sort(values)
    new = np.ones(len(ordered), dtype=bool)
    new[1:] = ordered[1:] != ordered[:-1]
    return np.asarray(ordered[new])


def entries_of(connections: Connections, rows: IntArray) -> tuple[IntArray, IntArray]:
    """Return the route entries of some connections, one after the other, and their counts."""
    low = connections.indptr[rows]
    counts = connections.indptr[rows + 1] - low
    ends = np.cumsum(counts)
    total = int(ends[-1]) if len(ends) else 0
    return np.repeat(low - (ends - counts), counts) + np.arange(total), counts


def _blocks(n: int) -> Iterator[IntArray]:
    for low in range(0, n, _BLOCK):
        yield np.arange(low, min(low + _BLOCK, n), dtype=np.int64)


def merged(connections: Connections) -> Connections:
    """Return the same routes with each link at most once per connection, weights added.

    A connection that is split over several paths may name a common link once per path.
    """
    if not any(_repeats(connections, rows) for rows in _blocks(len(connections.src))):
        return connections
    n_links = int(connections.link.max()) + 1
    key = owner_of_entry(connections) * n_links + connections.link
    unique, inverse = np.unique(key, return_inverse=True)
    weight = np.zeros(len(unique))
    np.add.at(weight, inverse, connections.weight)
    counts = np.bincount(unique // n_links, minlength=len(connections.src))
    indptr = np.concatenate(([0], np.cumsum(counts)))
    return replace(connections, indptr=indptr, link=unique % n_links, weight=weight)


def _repeats(connections: Connections, rows: IntArray) -> bool:
    """Return whether one of these connections names a link twice."""
    low, high = int(connections.indptr[rows[0]]), int(connections.indptr[rows[-1] + 1])
    link = connections.link[low:high]
    counts = np.diff(connections.indptr[rows[0] : rows[-1] + 2])
    n_links = int(link.max(initial=0)) + 1
    key = np.sort(np.repeat(np.arange(len(rows)), counts) * n_links + link)
    return bool((key[1:] == key[:-1]).any())


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
    for rows in _blocks(len(rate)):
        indptr = connections.indptr[rows[0] : rows[-1] + 2]
        here = slice(int(indptr[0]), int(indptr[-1]))
        routed = np.flatnonzero(np.diff(indptr))
        if len(routed):
            share = capacity_Bps[connections.link[here]] / connections.weight[here]
            least = np.minimum.reduceat(share, indptr[:-1][routed] - indptr[0])
            rate[rows[routed]] = np.minimum(rate[rows[routed]], least)
    return rate


def link_demand(
    connections: Connections, rate_Bps: FloatArray, rows: IntArray, n_links: int
) -> FloatArray:
    """Return the wire bytes/s on each link when connections *rows* send at *rate_Bps*.

    Parameters
    ----------
    rate_Bps
        Of all connections, shape (connections,); infinite rates (no link limits them) count 0.
    """
    demand = np.zeros(n_links)
    for block in _blocks(len(rows)):
        of_block = rows[block]
        entry, counts = entries_of(connections, of_block)
        asked = np.where(np.isfinite(rate_Bps[of_block]), rate_Bps[of_block], 0.0)
        demand += np.bincount(
            connections.link[entry],
            weights=connections.weight[entry] * np.repeat(asked, counts),
            minlength=n_links,
        )
    return demand


def payload_of_connections(collective: Collective) -> FloatArray:
    """Return the payload bytes of the whole call on each connection, shape (connections,)."""
    total = np.zeros(len(collective.connections.src))
    for stage in collective.stages:
        np.add.at(total, stage.connection, stage.edge_bytes)
    return total
