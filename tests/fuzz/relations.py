"""What holds between runs of valid scenarios, whatever the right times are.

Each relation takes a scenario and returns what is wrong, or nothing.  A refused scenario is none
of its business.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import simulator
from simulator.base.errors import CollsimError
from simulator.results.model import Row, RunResult
from tests.fuzz.scenarios import Sections, merged

__all__ = ["OF_CALLS", "OF_STEPS", "judged"]

FOLDED = 0.15
"""`docs/why.md`: where connections share links and wait, the levels differ by up to this."""
ROUNDING = 1e-6
MOST_SLOWER = 2.5
UNFOLDED = 0.01
"""`docs/why.md`: a step with folded ranks is within a percent of one with every rank."""

Relation = Callable[[Sections], str]


def judged(relation: str, scenario: Sections) -> str:
    """Return what is wrong with a scenario by a relation's name; empty: nothing, or refused."""
    try:
        return {**OF_CALLS, **OF_STEPS}[relation](scenario)
    except CollsimError:
        return ""


def _run(scenario: Sections, **sections: object) -> RunResult:
    return simulator.run(workers=1, **merged(scenario, **sections))


def _row(scenario: Sections, **sections: object) -> Row:
    return _run(scenario, **sections).rows[0]


def _fixed(scenario: Sections, row: Row) -> Sections:
    """Return a scenario with what the library chose for it."""
    chosen = {"algorithm": row.algorithm, "protocol": row.protocol, "channels": row.n_channels}
    chosen = {key: value for key, value in chosen.items() if value}
    return merged(scenario, collective=chosen)


def _us(*times_s: float) -> str:
    return " and ".join(f"{1e6 * time_s:.4f} us" for time_s in times_s)


def _way(row: Row) -> str:
    return f"({row.algorithm} {row.protocol} {row.n_channels} channels)"


def above_bounds(scenario: Sections) -> str:
    """No call is faster than its bandwidth bound, and no link carries more than it can."""
    result = _run(scenario)
    row = result.rows[0]
    if row.bound_s is not None and row.time_s < row.bound_s * (1 - ROUNDING):
        return f"{_us(row.time_s)}, below the bound {_us(row.bound_s)} {_way(row)}"
    busy = [link for link in result.links if not 0 <= link.utilisation <= 1 + ROUNDING]
    return f"{busy[0].name} is used by {busy[0].utilisation}" if busy else ""


def above_latency(scenario: Sections) -> str:
    """Nothing reaches another node before the time that its NIC takes."""
    row = _row(scenario)
    if row.n_nodes < 2 or "nvl72" in scenario["node"]:
        return ""  # an NVLink domain needs no NIC
    slow_s = 100e-6
    slow = _row(_fixed(scenario, row), node={"nic_latency": "100 us"})
    if slow.n_nodes > 1 and slow.time_s < slow_s:
        return f"{_us(slow.time_s)} over NICs of 100 us {_way(slow)}"
    if slow.time_s < row.time_s * (1 - 1e-3):
        return f"NICs of 100 us make it faster: {_us(row.time_s, slow.time_s)} {_way(row)}"
    return ""


def above_distance(scenario: Sections) -> str:
    """Nothing reaches the other site before light does."""
    if scenario.get("fabric", {}).get("kind") != "two_sites" or "nvl72" in scenario["node"]:
        return ""  # an NVLink domain is one place, wherever its nodes are said to be
    row = _row(scenario)
    if row.n_nodes > 1 and row.time_s < 500e-6:
        return f"{_us(row.time_s)} between sites 500 us apart {_way(row)}"
    return ""


def monotone_in_size(scenario: Sections) -> str:
    """More bytes in the same way take no less time, but for a percent by chunks."""
    row = _row(scenario)
    fixed = _fixed(scenario, row)
    before = row
    for factor in (1.25, 2, 4):
        size = f"{int(row.size_bytes * factor) // 1024 * 1024} B"
        after = _row(fixed, collective={"sizes": [size]})
        if after.time_s < before.time_s * 0.99:
            sizes = f"{before.size_bytes} and {after.size_bytes} B"
            return f"{sizes}: {_us(before.time_s, after.time_s)} {_way(row)}"
        before = after
    return ""


def twice_as_much(scenario: Sections) -> str:
    """With the textbook's costs twice the bytes take at most twice the time."""
    if scenario["costs"]["profile"] != "ideal":
        return ""
    row = _row(scenario)
    size = f"{2 * row.size_bytes} B"
    twice = _row(_fixed(scenario, row), collective={"sizes": [size]})
    if twice.time_s > 2 * row.time_s * (1 + 1e-3):
        return f"{row.size_bytes} B and twice: {_us(row.time_s, twice.time_s)} {_way(row)}"
    return ""


def steps_as_folded(scenario: Sections) -> str:
    """Both levels of detail agree."""
    row = _row(scenario)
    if row.world_size > 32:
        return ""
    fixed = _fixed(scenario, row)
    folded = _row(fixed, engine={"level": "folded"})
    steps = _row(fixed, engine={"level": "steps"})
    if abs(folded.time_s - steps.time_s) > FOLDED * max(folded.time_s, steps.time_s):
        return f"folded and steps: {_us(folded.time_s, steps.time_s)} {_way(row)}"
    return ""


def relabelled(scenario: Sections) -> str:
    """On one switch it does not matter which node is which."""
    nodes = scenario["nodes"]
    if nodes < 2 or scenario["fabric"]["kind"] != "single_switch":
        return ""
    row = _row(scenario)
    local = row.world_size // nodes
    ranks = [node * local + gpu for node in reversed(range(nodes)) for gpu in range(local)]
    other = _row(_fixed(scenario, row), collective={"ranks": ranks})
    same = _row(_fixed(scenario, row), collective={"ranks": sorted(ranks)})
    if abs(other.time_s - same.time_s) > ROUNDING * same.time_s:
        return f"{_us(same.time_s)}, nodes reversed {_us(other.time_s)} {_way(row)}"
    return ""


def conserved(scenario: Sections) -> str:
    """What flows into a switch flows out; a ring moves what its formula says."""
    result = _run(scenario)
    row = result.rows[0]
    if re.search("nvls|collnet|sharp", row.algorithm):
        return ""  # switches sum and copy
    into: dict[str, float] = {}
    out: dict[str, float] = {}
    for link in result.links:
        out[link.src] = out.get(link.src, 0.0) + link.wire_bytes
        into[link.dst] = into.get(link.dst, 0.0) + link.wire_bytes
    for vertex in into.keys() & out.keys():
        if "switch" in vertex and abs(into[vertex] - out[vertex]) > ROUNDING * into[vertex] + 1:
            return f"{vertex}: {into[vertex]:.0f} B in, {out[vertex]:.0f} B out {_way(row)}"
    return ""


def alone_as_in_a_sweep(scenario: Sections) -> str:
    """A row does not depend on the others."""
    row = _row(scenario)
    others = ["4 KiB", *scenario["collective"]["sizes"], "1 MiB"]
    found = _run(scenario, collective={"sizes": others}).rows
    (same,) = {other.time_s for other in found if other.size_bytes == row.size_bytes}
    return "" if same == row.time_s else f"alone and in a sweep: {_us(row.time_s, same)}"


def half_a_link(scenario: Sections) -> str:
    """One link at half its rate lengthens a call, to about twice its time at most.

    With all links at half it were twice; where steps wait for each other, one alone may be worse
    than all, as in Graham's anomalies of scheduling.
    """
    row = _row(scenario)
    fixed = _fixed(scenario, row)
    result = _run(fixed)
    if not result.links:
        return ""
    busiest = max(result.links, key=lambda link: link.utilisation)
    after = _row(fixed, perturb={"links": [{"link": busiest.name, "factor": 0.5}]})
    before_s = result.rows[0].time_s
    if not 0.99 < after.time_s / before_s < MOST_SLOWER:
        return f"{busiest.name} at half: {_us(before_s, after.time_s)} {_way(row)}"
    return ""


def late_rank(scenario: Sections) -> str:
    """A rank that is late by d makes the end no later than d, and no earlier."""
    row = _row(scenario)
    fixed = _fixed(scenario, row)
    late_s = max(row.time_s, 1e-6)
    base = _run(fixed, engine={"level": "steps"})
    by = f"{1e9 * late_s:.3f} ns"
    after = _run(fixed, engine={"level": "steps"}, perturb={"late": [{"ranks": 0, "by": by}]})
    if base.ranks is None or after.ranks is None:
        return ""
    before_s, after_s = max(base.ranks.end_s), max(after.ranks.end_s)
    if not before_s * (1 - 1e-3) <= after_s <= (before_s + late_s) * (1 + 1e-3):
        return f"rank 0 late by {_us(late_s)}: ends {_us(before_s, after_s)} {_way(row)}"
    return ""


def nothing_perturbed(scenario: Sections) -> str:
    """A perturbation by nothing changes nothing."""
    row = _row(scenario)
    nothing = {"skew": "0 s", "jitter": {"sigma": 0}, "late": [{"ranks": 0, "by": "0 s"}]}
    same = _row(_fixed(scenario, row), perturb=nothing)
    plain = _row(_fixed(scenario, row))
    if abs(same.time_s - plain.time_s) > ROUNDING * plain.time_s:
        return f"{_us(plain.time_s, same.time_s)} {_way(row)}"
    return ""


def unfolded(scenario: Sections) -> str:
    """Every rank simulated and ranks folded into classes give one time."""
    (folded,) = _run(scenario).training
    (whole,) = _run(scenario, training={"fold": False}).training
    if abs(folded.step_s - whole.step_s) > UNFOLDED * whole.step_s:
        return f"folded and whole: {_us(folded.step_s, whole.step_s)}"
    return ""


OF_CALLS: dict[str, Relation] = {
    function.__name__: function
    for function in (
        above_bounds,
        above_latency,
        above_distance,
        monotone_in_size,
        twice_as_much,
        steps_as_folded,
        relabelled,
        conserved,
        alone_as_in_a_sweep,
        half_a_link,
        late_rank,
        nothing_perturbed,
    )
}
OF_STEPS: dict[str, Relation] = {unfolded.__name__: unfolded}
