"""Cross-validation by machine, and what a little knowledge of a machine is worth."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from validation.fitting.problem import NOISE, SOFT, Problem, Row, range_of, solve

__all__ = ["BANDS", "Graded", "band_rows", "covered", "grades", "left_out"]

FloatArray = NDArray[np.float64]
BANDS = (2**12, 2**16, 2**20, 2**24, 2**28, 2**62)
"""Upper ends of the size ranges of the uncertainty band, bytes."""
_COVERAGE = 0.8
_FLOOR_BYTES = 1024
"""A small message: its time is the floor's."""
_CALIBRATION_WEIGHT = 40.0
"""Rows of one sweep are trusted to a sixth of `NOISE`: one machine repeats itself."""
_CALIBRATION_SIGMA = 1.0
"""How far one machine's constants may be from the fitted ones, as a share of the prior's sigma."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Graded:
    """log(predicted / measured) of rows by grade; NaN where a row is not scored."""

    rows: tuple[Row, ...]
    zero_shot: FloatArray
    floor_known: FloatArray
    calibrated: FloatArray


def left_out(problem: Problem, theta: FloatArray) -> tuple[FloatArray, dict[str, FloatArray]]:
    """Return the errors of all rows with their own machine left out of the fit.

    For each machine one Gauss–Newton step from *theta* on all other rows; with many other machines
    the optimum moves little, so one step is close to the whole fit.

    Returns
    -------
    tuple
        Errors by row, and the parameters without each machine.
    """
    errors, slopes = problem.errors(theta), problem.slopes(theta)
    trust = problem.weight / NOISE**2 / (1.0 + (errors / SOFT) ** 2)
    prior = np.diag(problem.sigma**-2)
    pull = prior @ (theta - problem.start)
    machines = np.array([row.machine for row in problem.rows])
    result = errors.copy()
    without: dict[str, FloatArray] = {}
    for machine in np.unique(machines):
        keep = machines != machine
        a, w = slopes[keep], trust[keep]
        matrix = a.T @ (w[:, None] * a) + prior
        step = -np.linalg.solve(matrix, a.T @ (w * errors[keep]) + pull)
        moved = np.clip(theta + np.clip(step, -0.7, 0.7), problem.low, problem.high)
        without[str(machine)] = moved
        mine = np.flatnonzero(~keep)
        part = Problem([problem.rows[i] for i in mine], problem.given)
        result[mine] = part.errors(moved)
    return result, without


def grades(problem: Problem, theta: FloatArray) -> Graded:
    """Return the errors of left-out machines: zero-shot, floor known, calibrated."""
    zero, without = left_out(problem, theta)
    floor = np.full(len(zero), np.nan)
    calibrated = np.full(len(zero), np.nan)
    rows = problem.rows
    by_case: dict[int, list[int]] = {}
    by_machine: dict[str, list[int]] = {}
    for i, row in enumerate(rows):
        by_case.setdefault(row.case, []).append(i)
        by_machine.setdefault(row.machine, []).append(i)
    for members in by_case.values():
        _floor_known(rows, members, zero, floor)
    for machine, members in by_machine.items():
        _calibrated(problem, members, without[machine], calibrated)
    return Graded(rows=tuple(rows), zero_shot=zero, floor_known=floor, calibrated=calibrated)


def _floor_known(
    rows: Sequence[Row], members: Sequence[int], zero: FloatArray, result: FloatArray
) -> None:
    """Shift a table by the difference at its smallest message; that row is not scored."""
    first = min(members, key=lambda i: rows[i].size_bytes)
    if rows[first].size_bytes > _FLOOR_BYTES:
        result[list(members)] = zero[list(members)]
        return
    predicted = {i: rows[i].measured_s * math.exp(zero[i]) for i in members}
    shift = rows[first].measured_s - predicted[first]
    for i in members:
        if i != first:
            moved = max(predicted[i] + shift, 0.3 * predicted[i])
            result[i] = math.log(moved / rows[i].measured_s)


def _calibrated(
    problem: Problem, members: Sequence[int], theta: FloatArray, result: FloatArray
) -> None:
    """Fit one sweep of the machine, score the other tables, or the other sizes of a single one."""
    rows = problem.rows
    cases: dict[int, list[int]] = {}
    for i in members:
        cases.setdefault(rows[i].case, []).append(i)
    longest = max(cases.values(), key=lambda part: (len(part), -rows[part[0]].n_nodes))
    if len(longest) < 4:
        return
    if len(cases) > 1:
        known, asked = longest, [i for i in members if i not in set(longest)]
    else:
        known, asked = longest[::2], longest[1::2]
    part = Problem([rows[i] for i in known], problem.given)
    part.start = theta.copy()
    part.sigma = problem.sigma * _CALIBRATION_SIGMA
    part.weight = np.full(len(known), _CALIBRATION_WEIGHT)
    found = solve(part, rounds=12, trusted=True)
    result[asked] = Problem([rows[i] for i in asked], problem.given).errors(found)


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
    return float(values[order][min(np.searchsorted(total, share - 1e-9), len(values) - 1)])


def band_rows(rows: Sequence[Row], errors: FloatArray) -> list[list[float]]:
    """Return [upper size, half width in log time] that hold 80 % of the errors, by size range."""
    found: list[list[float]] = []
    low = 0
    for high in BANDS:
        chosen = [i for i, row in enumerate(rows) if low <= row.size_bytes < high]
        width = found[-1][1] if found else 0.5
        if chosen:
            width = quantile(np.abs(errors[chosen]), weights(rows, chosen), _COVERAGE)
        found.append([float(high), round(width, 3)])
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
        band = band_rows([rows[i] for i in others], errors[others])
        for i in np.flatnonzero(machines == machine):
            width = next(w for limit, w in band if rows[i].size_bytes < limit)
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
