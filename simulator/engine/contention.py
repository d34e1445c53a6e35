"""Whether the messages of one collective can ever ask a link for more than it has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from simulator.engine.messages import MessageTable, MessageTimes
from simulator.engine.routes import (
    distinct,
    entries_of,
    link_demand,
    owner_of_entry,
    payload_of_connections,
)
from simulator.engine.traffic import Collective, Connections
from simulator.engine.wave import Wave

__all__ = ["FITS", "Demand", "analyse", "messages_fit", "stages_fit", "sweep_fits"]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

FITS = 1.0 + 1e-9
"""A demand up to this multiple of the capacity is no contention (rule of the model)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What a collective alone can ask of each link."""

    total_Bps: FloatArray
    """When all its connections send at once, shape (links,)."""
    hot: NDArray[np.bool_]
    """Links whose total is above capacity."""
    resolve: Literal["never", "stages", "messages"]
    """``never``: no link is hot.  ``stages``: no single stage overloads a link, so the wave is
    right if stages that share a hot link do not overlap.  ``messages``: only the times of the
    messages can tell."""


def analyse(collective: Collective, rate_Bps: FloatArray, capacity_Bps: FloatArray) -> Demand:
    """Return the demand of *collective* on the links, and what would decide contention."""
    connections, n_links = collective.connections, len(capacity_Bps)
    sending = np.flatnonzero(payload_of_connections(collective) > 0)
    total_Bps = link_demand(connections, rate_Bps, sending, n_links)
    hot = total_Bps > capacity_Bps * FITS
    resolve: Literal["never", "stages", "messages"] = "never"
    if hot.any():
        resolve = "stages"
        for stage in collective.stages:
            rows = distinct(stage.connection[stage.edge_bytes > 0])
            if (link_demand(connections, rate_Bps, rows, n_links) > capacity_Bps * FITS).any():
                resolve = "messages"
                break
    return Demand(total_Bps=total_Bps, hot=hot, resolve=resolve)


def sweep_fits(
    link: IntArray,
    start_s: FloatArray,
    end_s: FloatArray,
    demand_Bps: FloatArray,
    capacity_Bps: FloatArray,
) -> bool:
    """Return whether the demands of overlapping intervals stay within each link's capacity.

    Parameters
    ----------
    link, start_s, end_s, demand_Bps
        One entry per interval and link, shape (entries,).
    capacity_Bps
        Shape (links,).

    Notes
    -----
    Intervals that touch, or overlap by less than 1e-9 of their length (rounding), do not count.
    """
    # Sorted by link and time, ends before starts, a running sum of demands is the load.
    end_s = end_s - 1e-9 * (end_s - start_s)
    links = np.concatenate((link, link))
    times = np.concatenate((end_s, start_s))
    change = np.concatenate((-demand_Bps, demand_Bps))
    kind = np.repeat(np.array([0, 1], dtype=np.int8), len(link))
    order = np.lexsort((kind, times, links))
    load = np.cumsum(change[order])
    return bool((load <= capacity_Bps[links[order]] * FITS).all())


def _entries_on(connections: Connections, hot: NDArray[np.bool_]) -> tuple[IntArray, IntArray]:
    """Return (connection, entry) of the route entries on hot links."""
    entry = np.flatnonzero(hot[connections.link])
    return owner_of_entry(connections)[entry], entry


def stages_fit(
    collective: Collective,
    wave: Wave,
    demand: Demand,
    rate_Bps: FloatArray,
    capacity_Bps: FloatArray,
) -> bool:
    """Return whether stages that share hot links are apart in time, by each connection's span."""
    connections = collective.connections
    link, start, end, asked = [], [], [], []
    for rows, first_s, last_s in wave.spans:
        live = last_s > first_s
        entry, counts = entries_of(connections, rows[live])
        at = np.flatnonzero(demand.hot[connections.link[entry]])
        of = np.repeat(np.flatnonzero(live), counts)[at]
        link.append(connections.link[entry[at]])
        start.append(first_s[of])
        end.append(last_s[of])
        asked.append(connections.weight[entry[at]] * rate_Bps[rows[of]])
    return sweep_fits(
        np.concatenate(link),
        np.concatenate(start),
        np.concatenate(end),
        np.concatenate(asked),
        capacity_Bps,
    )


def messages_fit(
    table: MessageTable,
    times: MessageTimes,
    connections: Connections,
    demand: Demand,
    rate_Bps: FloatArray,
    capacity_Bps: FloatArray,
) -> bool:
    """Return whether messages that share hot links fit on them at every instant."""
    owner, entry = _entries_on(connections, demand.hot)
    counts = np.bincount(owner, minlength=len(connections.src))
    heads = np.cumsum(counts) - counts
    live = np.flatnonzero((counts[table.connection] > 0) & (times.leave_s > times.start_s))
    repeat = counts[table.connection[live]]
    message = np.repeat(live, repeat)
    within = np.arange(len(message)) - np.repeat(np.cumsum(repeat) - repeat, repeat)
    at = entry[heads[table.connection[message]] + within]
    return sweep_fits(
        connections.link[at],
        times.start_s[message],
        times.leave_s[message],
        connections.weight[at] * rate_Bps[table.connection[message]],
        capacity_Bps,
    )
