"""The inverse question: which bandwidth or latency of one class of links explains the numbers.

One factor on the bandwidth (or on the latency) of all links of a class is varied on a logarithmic
scale, with the healthy choice of algorithm kept, until the distance of `simulator.verdict.evidence`
is least.  Where that leaves much unexplained and the class is the network's ports, whose speed the
library sees, it is varied again with the library's own choice at each speed.

The range in which the distance stays near the least one says how well the numbers determine it: a
range up to an end of the search means that another link binds from there on.  Where the preset
lies in the range it is the answer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from simulator.base.errors import CollsimError, ScenarioError, unknown_name
from simulator.base.units import exact_rate, exact_time
from simulator.importers import MeasuredTable
from simulator.scenario.nodes import node_template
from simulator.verdict.diagnose import LARGE_RANKS, even, measured_times
from simulator.verdict.evidence import distance
from simulator.verdict.predict import Clusters, PredictedRow, predict_sizes
from simulator.verdict.setup import SetUp, call_words

__all__ = ["CLASSES", "Inverse", "solve"]

CLASSES = ("nic", "nvlink", "pcie", "latency")

WITHIN, ALIKE = 1.10, 0.015
"""The range keeps the distance within this factor of the best, and so much: no prediction is
better than that."""
GRID = (1 / 64, 1 / 32, 1 / 16, 1 / 8, 1 / 4, 0.36, 0.5, 0.7, 1.0, 2.0, 4.0)
GRID_LATENCY = (1 / 4, 1 / 2, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)
"""Factors before the best bracket is refined: several minima are possible."""
GRID_SEEN = (1 / 16, 1 / 8, 1 / 4, 0.36, 0.5, 0.7)
REFINED = 6
"""Steps of the refinement."""
UNEXPLAINED = 0.03
"""Distance from which on the library's own choice is tried."""
MOST_SIZES, MOST_SIZES_LARGE = 6, 4
"""Sizes that are asked, and of `LARGE_RANKS` ranks and more."""
LEAST_BYTES = 64 << 10
"""Of fewer bytes bandwidth says nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inverse:
    """What explains the numbers best."""

    name: str
    """One of `CLASSES`."""
    value: float
    """Bytes/s of one link and direction; seconds for ``latency``."""
    least: float
    most: float
    """The range within which the distance is near the best."""
    preset: float
    """The preset's own value."""
    distance: float
    preset_distance: float
    bounded: bool
    """False when the range reaches an end of the search: the numbers do not determine it."""
    bounded_below: bool
    bounded_above: bool
    """False when the range reaches that end."""
    seen: bool
    """The library chose for this value: it sees the speed of its ports."""


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


def solve(
    set_up: SetUp,
    table: MeasuredTable,
    rows: Sequence[PredictedRow],
    name: str,
    *,
    clusters: Clusters | None = None,
) -> Inverse:
    """Return the bandwidth or latency of one class of links that explains the rows best.

    Parameters
    ----------
    set_up, table
        As `simulator.verdict.predict.predict_rows`.
    rows
        Thinned rows with their predictions.
    name
        One of `CLASSES`; ``latency`` is that of a network port.
    clusters
        Clusters to use again.

    Raises
    ------
    ScenarioError
        An unknown class, or one that the set-up does not use.
    """
    if name not in CLASSES:
        raise ScenarioError(unknown_name("class of links", name, CLASSES))
    sizes = _sizes(rows, name)
    measured_s = {size: time for size, time in measured_times(rows).items() if size in sizes}
    healthy = {row.size_bytes: row.predicted for row in rows if row.size_bytes in sizes}
    preset = _preset_value(set_up, table, name, sizes)
    clusters = clusters or Clusters()

    def miss(factor: float, seen: bool) -> float:
        if factor == 1.0:
            return distance(measured_s, healthy)
        words = _words(name, preset * factor)
        choices = None if seen else healthy
        try:
            found = predict_sizes(
                set_up, table, sizes, words=words, choices=choices, clusters=clusters
            )
        except CollsimError:
            return math.inf
        return distance(measured_s, found)

    searched = _search(lambda factor: miss(factor, False), _GRIDS.get(name, GRID))
    seen = False
    if name == "nic" and min(searched.values()) > UNEXPLAINED:
        other = _search(lambda factor: miss(factor, True), (*GRID_SEEN, 1.0))
        if min(other.values()) < min(searched.values()):
            searched, seen = other, True
    best = min(searched, key=lambda factor: searched[factor])
    limit = WITHIN * searched[best] + ALIKE
    if searched[1.0] <= limit:
        best = 1.0
    within = sorted(factor for factor, value in searched.items() if value <= limit)
    places = [(math.log(factor), value) for factor, value in sorted(searched.items())]
    least, most = _edges(places, math.log(within[0]), math.log(within[-1]), limit)
    return Inverse(
        name=name,
        value=preset * best,
        least=preset * math.exp(least),
        most=preset * math.exp(most),
        preset=preset,
        distance=searched[best],
        preset_distance=searched[1.0],
        bounded=within[0] > min(searched) and within[-1] < max(searched),
        bounded_below=within[0] > min(searched),
        bounded_above=within[-1] < max(searched),
        seen=seen,
    )


_GRIDS = {"latency": GRID_LATENCY}


def _sizes(rows: Sequence[PredictedRow], name: str) -> list[int]:
    """Return a few sizes that say something of the class."""
    sizes = sorted({row.size_bytes for row in rows})
    large = [size for size in sizes if size >= LEAST_BYTES]
    many = rows[0].predicted.world_size >= LARGE_RANKS
    most = MOST_SIZES_LARGE if many else MOST_SIZES
    return even(sizes if name == "latency" or len(large) < 2 else large, most)


def _search(miss: Callable[[float], float], grid: Sequence[float]) -> dict[float, float]:
    """Return the distances of the factors that were tried, refined about the best of the grid."""
    from scipy.optimize import minimize_scalar

    found = {factor: miss(factor) for factor in grid}
    start = min(found, key=lambda factor: found[factor])
    if found[1.0] <= WITHIN * found[start] + ALIKE:
        return found
    place = grid.index(start)
    bracket = grid[max(0, place - 1)], grid[min(len(grid) - 1, place + 1)]

    def tried(log_factor: float) -> float:
        factor = math.exp(log_factor)
        found[factor] = miss(factor)
        return found[factor]

    minimize_scalar(
        tried,
        bounds=(math.log(bracket[0]), math.log(bracket[1])),
        method="bounded",
        options={"xatol": 0.02, "maxiter": REFINED},
    )
    return found


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
