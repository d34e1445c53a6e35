"""Textbook max-min fairness: progressive filling with one bottleneck per round.

Bertsekas and Gallager, Data Networks, 2nd ed., section 6.5.2, with a weight per flow and link
(wire bytes per payload byte) and a largest rate per flow.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

__all__ = ["is_max_min", "progressive_filling"]


def progressive_filling(
    capacity_Bps: Mapping[int, float],
    routes: Sequence[Mapping[int, float]],
    max_rate_Bps: Sequence[float],
) -> list[float]:
    """Return the rate of each flow.

    Parameters
    ----------
    capacity_Bps
        Capacity by link.
    routes
        Weight by link, for each flow.
    max_rate_Bps
        Largest rate of each flow; inf means that only links limit it.

    Notes
    -----
    All rates that are not frozen rise together.  The rate at which link l is full is
    (capacity − Σ over frozen flows of weight × rate) / Σ over the others of weight.  In each round
    the smallest of these, or of the flows' own largest rates, freezes its flows.
    """
    spare = dict(capacity_Bps)
    rate: dict[int, float] = {}
    rising = set(range(len(routes)))
    weight_on: dict[int, float] = {}
    flows_on: dict[int, set[int]] = {}
    for flow, route in enumerate(routes):
        for link, weight in route.items():
            weight_on[link] = weight_on.get(link, 0.0) + weight
            flows_on.setdefault(link, set()).add(flow)
    while rising:
        full_at, bottleneck = math.inf, -1
        for link, flows in flows_on.items():
            if flows and max(0.0, spare[link]) / weight_on[link] < full_at:
                full_at, bottleneck = max(0.0, spare[link]) / weight_on[link], link
        own_limit, limited = min((max_rate_Bps[flow], flow) for flow in rising)
        frozen = {limited} if own_limit <= full_at else set(flows_on[bottleneck])
        level = min(own_limit, full_at)
        for flow in frozen:
            rate[flow] = level
            for link, weight in routes[flow].items():
                spare[link] -= weight * level
                flows_on[link].remove(flow)
                # Summed anew: a difference would leave rounding where nothing should be left.
                weight_on[link] = sum(routes[other][link] for other in flows_on[link])
        rising -= frozen
    return [rate[flow] for flow in range(len(routes))]


def is_max_min(
    capacity_Bps: Mapping[int, float],
    routes: Sequence[Mapping[int, float]],
    max_rate_Bps: Sequence[float],
    rates: Sequence[float],
    tolerance: float = 1e-9,
) -> bool:
    """Tell whether *rates* are the max-min fair ones, by the bottleneck condition.

    A feasible allocation is max-min fair exactly when each flow is at its own largest rate or
    crosses a full link on which no flow is faster (Bertsekas and Gallager, proposition 6.1).
    """
    load = dict.fromkeys(capacity_Bps, 0.0)
    for route, rate in zip(routes, rates, strict=True):
        for link, weight in route.items():
            load[link] += weight * rate
    if any(load[link] > capacity_Bps[link] * (1 + tolerance) for link in load):
        return False
    for route, rate, limit in zip(routes, rates, max_rate_Bps, strict=True):
        if rate > limit * (1 + tolerance):
            return False
        if rate >= limit * (1 - tolerance):
            continue
        if not any(
            load[link] >= capacity_Bps[link] * (1 - tolerance)
            and all(
                other <= rate * (1 + tolerance)
                for other_route, other in zip(routes, rates, strict=True)
                if link in other_route
            )
            for link in route
        ):
            return False
    return True
