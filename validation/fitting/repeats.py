"""Equal calls of several tables: one row each, unless the tables contradict each other."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from simulator.base.errors import Problem
from simulator.base.units import format_size, format_time
from simulator.importers import MeasuredRow, MeasuredTable, Timing
from simulator.verdict.bands import RANGES, size_range
from simulator.verdict.setup import SetUp, call_words

__all__ = ["APART", "Call", "Table", "calls_of", "chosen_sizes", "contradictions", "time_of"]

MOST_ROWS = 480
"""Rows of all calls together: more say little that is new, and their covariance is a matrix."""
_LEAST_SIZES = 2
"""Sizes of each call however many there are."""
_MOST_SIZES = ((64, 40), (160, 31), (1 << 30, 12))
"""(ranks up to, sizes of a call that take part, evenly in log size): formulas of large calls take
long."""
APART = dict(zip(RANGES, (2.0, 1.5, 1.25), strict=True))
"""Factor between the times of equal calls of two tables beyond which they contradict each other:
runs of one machine differ by less (`simulator.verdict.bands`)."""
_LEAST_COMMON = 3
"""Sizes in which two tables differ: fewer are outliers."""
_GOLDEN = 0.6180339887498949


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A measured table with its set-up."""

    file: str
    table: MeasuredTable
    set_up: SetUp

    @property
    def first_line(self) -> int:
        """Line of its first row."""
        return self.table.rows[0].line


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """The tables of one call on one set-up as one table."""

    entry: Table
    """With the median time of each size, and the line of the row next to it."""
    members: tuple[int, ...]
    """Places of the tables."""
    nearest: dict[int, int]
    """Place of the table that the line of a size is of."""
    count: dict[int, int]
    """Measurements of a size."""


def time_of(row: MeasuredRow) -> Timing | None:
    """Return the timing that counts; None: the row has none."""
    return (row.timing() or row.timing(in_place=True)) if row.size_bytes > 0 else None


def calls_of(tables: Sequence[Table]) -> list[Call]:
    """Return the calls in order of their first table."""
    return [_merged(tables, places) for places in _groups(tables)]


def _groups(tables: Sequence[Table]) -> list[list[int]]:
    groups: dict[object, list[int]] = {}
    for place, entry in enumerate(tables):
        key = (entry.set_up.key(call_words(entry.table, [])), entry.table.n_ranks)
        groups.setdefault(key, []).append(place)
    return list(groups.values())


def _merged(tables: Sequence[Table], places: Sequence[int]) -> Call:
    found: dict[int, list[tuple[float, int, MeasuredRow]]] = {}
    for place in places:
        for row in tables[place].table.rows:
            timing = time_of(row)
            if timing is not None:
                found.setdefault(row.size_bytes, []).append((timing.time_s, place, row))
    rows: list[MeasuredRow] = []
    nearest: dict[int, int] = {}
    for size, entries in found.items():
        middle = statistics.median(time_s for time_s, _, _ in entries)
        _, place, row = min(entries, key=lambda entry: abs(entry[0] - middle))
        nearest[size] = place
        rows.append(_with_time(row, middle) if len(entries) > 1 else row)
    first = tables[places[0]]
    return Call(
        entry=replace(first, table=replace(first.table, rows=tuple(rows))),
        members=tuple(places),
        nearest=nearest,
        count={size: len(entries) for size, entries in found.items()},
    )


def _with_time(row: MeasuredRow, time_s: float) -> MeasuredRow:
    outside = row.timing()
    if outside is not None:
        return replace(row, out_of_place=replace(outside, time_s=time_s))
    inside = row.timing(in_place=True)
    assert inside is not None
    return replace(row, in_place=replace(inside, time_s=time_s))


def chosen_sizes(call: Call, index: int, n_calls: int) -> list[int]:
    """Return the sizes of a call that take part, evenly in log size.

    Where several calls must be thinned, they keep different sizes.
    """
    sizes = sorted(call.count)
    ranks = call.entry.table.n_ranks or 0
    most = next(count for limit, count in _MOST_SIZES if ranks <= limit)
    most = max(_LEAST_SIZES, min(most, MOST_ROWS // n_calls))
    if len(sizes) <= most:
        return sizes
    # The first call keeps both its ends; others are shifted by parts of the distance.
    phase = (index * _GOLDEN) % 1.0
    steps = np.arange(most) + phase if index else np.linspace(0.0, most, most)
    logs = np.log(np.array(sizes, dtype=np.float64))
    wanted = logs[0] + (logs[-1] - logs[0]) * steps / most
    picked = np.abs(logs[:, None] - wanted[None, :]).argmin(axis=0)
    return [sizes[i] for i in sorted(set(picked.tolist()))]


def contradictions(tables: Sequence[Table]) -> list[Problem]:
    """Return why tables of one call cannot be of one machine in one state: one reason a call."""
    problems = []
    for places in _groups(tables):
        found = [
            told for name in RANGES if (told := _apart(tables, places, name)) and len(places) > 1
        ]
        if found:
            problems.append(max(found, key=lambda entry: entry[0])[1])
    return problems


def _apart(
    tables: Sequence[Table], places: Sequence[int], name: str
) -> tuple[float, Problem] | None:
    """Return how far beyond the limit the slowest and fastest table are in a range; in words."""
    times: dict[int, dict[int, tuple[float, int]]] = {}
    for place in places:
        for row in tables[place].table.rows:
            timing = time_of(row)
            if timing is not None and size_range(row.size_bytes) == name:
                times.setdefault(row.size_bytes, {}).setdefault(place, (timing.time_s, row.line))
    ratios: dict[int, list[float]] = {}
    for by_place in times.values():
        middle = statistics.median(time_s for time_s, _ in by_place.values())
        for place, (time_s, _) in by_place.items():
            if len(by_place) > 1:
                ratios.setdefault(place, []).append(time_s / middle)
    offsets = {
        place: statistics.median(values)
        for place, values in ratios.items()
        if len(values) >= _LEAST_COMMON
    }
    if len(offsets) < 2:
        return None
    slow, fast = max(offsets, key=lambda k: offsets[k]), min(offsets, key=lambda k: offsets[k])
    both = sorted(
        (by_place[slow][0] / by_place[fast][0], size)
        for size, by_place in times.items()
        if slow in by_place and fast in by_place
    )
    if len(both) < _LEAST_COMMON:
        return None
    factor, size = both[len(both) // 2]
    if factor <= APART[name]:
        return None
    (slow_s, line), (fast_s, other) = times[size][slow], times[size][fast]
    table = tables[slow].table
    return factor / APART[name], Problem(
        file=tables[slow].file,
        line=line,
        message=f"{table.collective} of {table.n_ranks} ranks: {format_size(size)} took "
        f"{format_time(slow_s, 3)}, but {format_time(fast_s, 3)} in {tables[fast].file}, line "
        f"{other}; so do {len(both)} sizes of {name}, by a factor of {factor:.2f} (median)",
        allowed=f"equal calls within a factor of {APART[name]:g}, as one machine has them. Fit "
        "each log alone, or leave the wrong one out",
    )
