"""The inverse question: which bandwidth or latency of one class of links explains the numbers.

One factor on the bandwidth (or on the latency) of all links of a class is varied on a logarithmic
scale, with the healthy choice of algorithm kept, until the distance of `simulator.verdict.evidence`
is least.  The range in which the distance stays within 10 % of the least one says how well the
numbers determine it: a range up to an end of the search means that the class does not bind.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from simulator.base.errors import CollsimError, ScenarioError, unknown_name
from simulator.base.units import exact_rate, exact_time
from simulator.importers import MeasuredTable
from simulator.scenario.nodes import node_template
from simulator.verdict.diagnose import measured_times
from simulator.verdict.evidence import distance
from simulator.verdict.predict import Clusters, PredictedRow, predict_sizes
from simulator.verdict.setup import SetUp, call_words

__all__ = ["CLASSES", "Inverse", "solve"]

CLASSES = ("nic", "nvlink", "pcie", "latency")

LEAST_FACTOR, MOST_FACTOR = 1 / 64, 4.0
"""Search of a bandwidth, as factors on the preset's."""
LEAST_LATENCY, MOST_LATENCY = 1 / 4, 64.0
WITHIN = 1.10
"""The range keeps the distance within this factor of the best."""
GRID = 13
"""Points over the whole search before the best bracket is refined: several minima are possible."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inverse:
    """What explains the numbers best."""

    name: str
    """One of `CLASSES`."""
    value: float
    """Bytes/s of one link and direction; seconds for ``latency``."""
    least: float
    most: float
    """The range within which the distance is at most 10 % above the best."""
    preset: float
    """The preset's own value."""
    distance: float
    preset_distance: float
    bounded: bool
    """False when the range reaches an end of the search: the numbers do not determine it."""


def _words(name: str, value: float) -> dict[str, str]:
    if name == "nic":
        return {"node.nic_rate": exact_rate(value)}
    if name == "latency":
        return {"node.nic_latency": exact_time(value)}
    return {f"node.links.{name}.bandwidth": exact_rate(value)}


def _preset_value(set_up: SetUp, table: MeasuredTable, name: str, sizes: Sequence[int]) -> float:
    groups = set_up.resolve(call_words(table, sizes)).node_groups
    if len(groups) != 1:
        raise ScenarioError("--inverse needs a cluster of one kind of node, given by its preset")
    template = node_template(groups[0].node)
    if name in ("nic", "latency"):
        if groups[0].nodes == 1 or template.nic_kind is None:
            raise ScenarioError(f"--inverse {name}: no traffic of this set-up leaves its node")
        return template.nic_rate_Bps if name == "nic" else template.nic_latency_s
    rates = [link.bandwidth_Bps for link in template.links if link.kind == name]
    if not rates:
        raise ScenarioError(f"--inverse {name}: {template.name} has no such link")
    return max(rates)


def solve(set_up: SetUp, table: MeasuredTable, rows: Sequence[PredictedRow], name: str) -> Inverse:
    """Return the bandwidth or latency of one class of links that explains the rows best.

    Parameters
    ----------
    set_up, table
        As `simulator.verdict.predict.predict_rows`.
    rows
        Thinned rows with their predictions.
    name
        One of `CLASSES`; ``latency`` is that of a network port.

    Raises
    ------
    ScenarioError
        An unknown class, or one that the set-up does not use.
    """
    from scipy.optimize import minimize_scalar

    if name not in CLASSES:
        raise ScenarioError(unknown_name("class of links", name, CLASSES))
    measured_s = measured_times(rows)
    healthy = {row.size_bytes: row.predicted for row in rows}
    sizes = sorted(healthy)
    preset = _preset_value(set_up, table, name, sizes)
    seen: dict[float, float] = {}
    clusters = Clusters()

    def miss(log_factor: float) -> float:
        if log_factor not in seen:
            words = _words(name, preset * math.exp(log_factor))
            try:
                found = predict_sizes(
                    set_up, table, sizes, words=words, choices=healthy, clusters=clusters
                )
            except CollsimError:
                return math.inf
            seen[log_factor] = distance(measured_s, found)
        return seen[log_factor]

    ends = (LEAST_LATENCY, MOST_LATENCY) if name == "latency" else (LEAST_FACTOR, MOST_FACTOR)
    low, high = math.log(ends[0]), math.log(ends[1])
    step = (high - low) / (GRID - 1)
    grid = [low + step * place for place in range(GRID)]
    start = min(grid, key=miss)
    bracket = (max(low, start - step), min(high, start + step))
    minimize_scalar(miss, bounds=bracket, method="bounded", options={"xatol": 0.01, "maxiter": 12})
    best = min(seen, key=lambda place: seen[place])
    limit = WITHIN * seen[best] + 1e-3
    within = sorted(place for place, value in seen.items() if value <= limit)
    least, most = _edges(sorted(seen.items()), within[0], within[-1], limit)
    return Inverse(
        name=name,
        value=preset * math.exp(best),
        least=preset * math.exp(least),
        most=preset * math.exp(most),
        preset=preset,
        distance=seen[best],
        preset_distance=distance(measured_s, healthy),
        bounded=within[0] > low and within[-1] < high,
    )


def _edges(
    seen: Sequence[tuple[float, float]], first: float, last: float, limit: float
) -> tuple[float, float]:
    """Return where the distance passes the limit, linearly between the points that were tried."""
    places = [place for place, _ in seen]
    i, j = places.index(first), places.index(last)
    least, most = first, last
    if i > 0:
        (a, da), (b, db) = seen[i - 1], seen[i]
        least = b if math.isinf(da) else a + (b - a) * (da - limit) / (da - db)
    if j + 1 < len(seen):
        (a, da), (b, db) = seen[j], seen[j + 1]
        most = a if math.isinf(db) else a + (b - a) * (limit - da) / (db - da)
    return least, most
