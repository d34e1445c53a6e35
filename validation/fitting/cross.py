"""Cross-validation by machine, and what a little knowledge of a machine is worth."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from validation.fitting.calibrate import calibrate
from validation.fitting.causes import Machine, Widths, estimate, machine_of, part_of
from validation.fitting.problem import Parameter, Problem, Row, range_of, refine

__all__ = [
    "BANDS",
    "Graded",
    "band_rows",
    "covered",
    "grades",
    "left_out",
    "machines_of",
    "sweep_of",
]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BANDS = (2**12, 2**16, 2**20, 2**24, 2**28, 2**62)
"""Upper ends of the size ranges of the uncertainty band, bytes."""
_COVERAGE = 0.8
_FLOOR_BYTES = 1024
"""A small message: its time is the floor's."""
_LEAST_SWEEP = 4
"""Rows of a table that can calibrate."""
_FOLDS = 4
"""Parts of the machines that the widths of a calibration are estimated without."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Graded:
    """log(predicted / measured) of rows by grade; NaN where a row is not scored."""

    rows: tuple[Row, ...]
    zero_shot: FloatArray
    floor_known: FloatArray
    calibrated: FloatArray


def left_out(
    problem: Problem, theta: FloatArray, *, on_progress: Callable[[int, int], None] | None = None
) -> tuple[FloatArray, dict[str, FloatArray]]:
    """Return the errors of all rows with their own machine left out of the fit.

    For each machine the whole fit is made again without it, from *theta*: with many other machines
    the optimum moves little, so few rounds are enough.

    Parameters
    ----------
    problem, theta
        All rows, and the parameters fitted to them.
    on_progress
        Called with (machines done, machines).

    Returns
    -------
    tuple
        Errors by row, and the parameters without each machine.
    """
    machines = np.array([row.machine for row in problem.rows])
    result = problem.errors(theta)
    without: dict[str, FloatArray] = {}
    names = np.unique(machines)
    for done, machine in enumerate(names, start=1):
        mine = np.flatnonzero(machines == machine)
        others = np.flatnonzero(machines != machine)
        moved = theta
        if len(others):
            moved = refine(Problem([problem.rows[i] for i in others], problem.given), theta)
        without[str(machine)] = moved
        part = Problem([problem.rows[i] for i in mine], problem.given)
        result[mine] = part.errors(moved)
        if on_progress is not None:
            on_progress(done, len(names))
    return result, without


def grades(
    problem: Problem, theta: FloatArray, *, on_progress: Callable[[int, int], None] | None = None
) -> Graded:
    """Return the errors of left-out machines: zero-shot, floor known, calibrated.

    The widths with which measurements of a machine are weighed against the fit come from other
    machines, too; *on_progress* is called as by `left_out`.
    """
    zero, without = left_out(problem, theta, on_progress=on_progress)
    rows, keys = problem.rows, [parameter.key for parameter in problem.given]
    floor = np.full(len(zero), np.nan)
    calibrated = np.full(len(zero), np.nan)
    members = _members(rows, without)
    machines = machines_of(problem, zero, without)
    for table in _tables(rows):
        _floor_known(rows, table, zero, floor)
    names = sorted(machines)
    widths = estimate(list(machines.values()), keys)
    for fold in range(_FOLDS):
        asked = names[fold::_FOLDS]
        others = [machines[name] for name in names if name not in asked]
        own = estimate(others, keys, first=widths, rounds=6) if others else widths
        for name in asked:
            mine = members[name]
            part_rows = [rows[i] for i in mine]
            known, unknown = sweep_of(part_rows)
            if len(known):
                calibrated[mine[unknown]] = _asked(
                    part_rows, problem.given, machines[name], known, unknown, without[name], own
                )
    return Graded(rows=tuple(rows), zero_shot=zero, floor_known=floor, calibrated=calibrated)


def _asked(
    rows: Sequence[Row],
    given: Sequence[Parameter],
    machine: Machine,
    known: IntArray,
    unknown: IntArray,
    theta: FloatArray,
    widths: Widths,
) -> FloatArray:
    """Return the errors of rows of a machine that is calibrated with others of its rows."""
    found = calibrate(
        Problem([rows[i] for i in known], given), part_of(machine, known), theta, widths
    )
    asked = Problem([rows[i] for i in unknown], given).errors(found.theta)
    rest = part_of(machine, unknown)
    return asked - found.discrepancy(rest.octave, rest.way, rest.table)


def machines_of(
    problem: Problem, zero: FloatArray, without: Mapping[str, FloatArray]
) -> dict[str, Machine]:
    """Return each machine's rows with the slopes at the parameters that were fitted without it.

    Parameters
    ----------
    problem
        All rows.
    zero, without
        As `left_out` returns them.
    """
    found: dict[str, Machine] = {}
    for machine, mine in _members(problem.rows, without).items():
        part = Problem([problem.rows[i] for i in mine], problem.given)
        found[machine] = machine_of(part.rows, zero[mine], part.slopes(without[machine]))
    return found


def _members(rows: Sequence[Row], machines: Iterable[str]) -> dict[str, IntArray]:
    return {
        machine: np.flatnonzero([row.machine == machine for row in rows]) for machine in machines
    }


def _tables(rows: Sequence[Row]) -> list[IntArray]:
    cases: dict[int, list[int]] = {}
    for i, row in enumerate(rows):
        cases.setdefault(row.case, []).append(i)
    return [np.array(part) for part in cases.values()]


def _floor_known(
    rows: Sequence[Row], members: IntArray, zero: FloatArray, result: FloatArray
) -> None:
    """Shift a table by the difference at its smallest message; that row is not scored."""
    listed = [int(i) for i in members]
    first = min(listed, key=lambda i: rows[i].size_bytes)
    if rows[first].size_bytes > _FLOOR_BYTES:
        result[members] = zero[members]
        return
    predicted = {i: rows[i].measured_s * math.exp(zero[i]) for i in listed}
    shift = rows[first].measured_s - predicted[first]
    for i in predicted:
        if i != first:
            moved = max(predicted[i] + shift, 0.3 * predicted[i])
            result[i] = math.log(moved / rows[i].measured_s)


def sweep_of(rows: Sequence[Row]) -> tuple[IntArray, IntArray]:
    """Return the rows of a machine's sweep that calibrates it, and those that are asked for.

    The sweep is one over nodes where there is one, and the longest; of equally long ones that
    over the fewest nodes with the most ranks.  A machine with a single table is asked for every
    second size.
    """
    tables = _tables(rows)
    if not tables:
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)

    def worth(part: IntArray) -> tuple[object, ...]:
        row = rows[int(part[0])]
        nodes, plain = row.n_nodes, row.collective == "all_reduce"
        return nodes > 1, len(part), -nodes, row.n_ranks, plain

    best = max(tables, key=worth)
    if len(best) < _LEAST_SWEEP:
        return best[:0], best[:0]
    if len(tables) == 1:
        return best[::2], best[1::2]
    rest = np.concatenate([part for part in tables if part is not best])
    return best, np.sort(rest)


def weights(rows: Sequence[Row], chosen: Sequence[int]) -> FloatArray:
    """Return weights by which every set-up counts alike."""
    count: dict[str, int] = {}
    for i in chosen:
        count[rows[i].slug] = count.get(rows[i].slug, 0) + 1
    return np.array([1.0 / count[rows[i].slug] for i in chosen])


def quantile(values: FloatArray, weight: FloatArray, share: float) -> float:
    """Return a weighted quantile."""
    order = np.argsort(values)
    total = np.cumsum(weight[order]) / weight.sum()
    at = min(int(np.searchsorted(total, share - 1e-9)), len(values) - 1)
    return float(values[order][at])


def band_rows(rows: Sequence[Row], errors: FloatArray) -> list[list[float]]:
    """Return [upper size, half width in log time on one node, over several] by size range.

    The widths hold 80 % of the errors.
    """
    found: list[list[float]] = []
    low = 0
    for high in BANDS:
        band = [float(high)]
        for several in (False, True):
            chosen = [
                i
                for i, row in enumerate(rows)
                if low <= row.size_bytes < high and (row.n_nodes > 1) == several
            ]
            width = found[-1][len(band)] if found else 0.5
            if chosen:
                width = quantile(np.abs(errors[chosen]), weights(rows, chosen), _COVERAGE)
            band.append(round(width, 3))
        found.append(band)
        low = high
    return found


def covered(rows: Sequence[Row], errors: FloatArray) -> float:
    """Return the share of left-out rows inside the band of the other machines' errors."""
    machines = np.array([row.machine for row in rows])
    inside = np.zeros(len(rows), dtype=bool)
    for machine in np.unique(machines):
        others = np.flatnonzero(machines != machine)
        if not len(others):
            continue
        band = band_rows([rows[i] for i in others.tolist()], errors[others])
        for i in np.flatnonzero(machines == machine).tolist():
            mine = next(entry for entry in band if rows[i].size_bytes < entry[0])
            width = mine[2 if rows[i].n_nodes > 1 else 1]
            inside[i] = abs(errors[i]) <= width
    weight = weights(rows, range(len(rows)))
    return float((inside * weight).sum() / weight.sum())


def statistics(rows: Sequence[Row], errors: FloatArray) -> dict[str, tuple[float, float, int, int]]:
    """Return (median, p90, rows, set-ups) of |predicted − measured| / measured by size range."""
    found: dict[str, tuple[float, float, int, int]] = {}
    for index, name in enumerate(("< 1 MiB", "1-16 MiB", ">= 16 MiB")):
        chosen = [
            i
            for i, row in enumerate(rows)
            if range_of(row.size_bytes) == index and np.isfinite(errors[i])
        ]
        if chosen:
            relative = np.abs(np.expm1(errors[chosen]))
            weight = weights(rows, chosen)
            found[name] = (
                quantile(relative, weight, 0.5),
                quantile(relative, weight, 0.9),
                len(chosen),
                len({rows[i].slug for i in chosen}),
            )
    return found
