"""Calibration: what some measurements of a machine say about its others.

With how wide each cause of errors is (`validation.fitting.causes`), the known errors give the most
probable of the others, which is the maximum a posteriori estimate (for instance C. Rasmussen and
C. Williams, Gaussian Processes for Machine Learning, 2006, sections 2.2 and 2.7; M. Kennedy and
A. O'Hagan, J. R. Statist. Soc. B 63, 2001, for the split into constants and discrepancy).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from simulator.verdict.kinds import EXCHANGES
from validation.fitting.causes import (
    GROUPS,
    PARTS,
    TAIL,
    Causes,
    Machine,
    Widths,
    groups_of,
    outliers,
    part_of,
    tail,
)
from validation.fitting.problem import Problem

__all__ = ["Posterior", "calibrate", "conditioned", "rest_of"]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

_TABLES = 3
"""From so many tables on one of them can be an outlier."""
_LOOSE = 4.0
"""Times the usual variance of a table's own discrepancy that an exchange has beside others (an
estimate)."""
_WILDEST = 100.0
"""Times the usual variance that a table's own discrepancy has at most."""
_TABLE_ROUNDS = 12
_NEAR_OCTAVES = 3.0
_HALF_80 = 1.2816
"""Standard deviations within which four fifths of a normal distribution lie."""
_ROUNDS = 6
"""Most times that the slopes of a machine are taken again at the constants found."""
_STILL = 3e-3
"""Constants that move by less, in log, have settled."""


def conditioned(
    machine: Machine, known: IntArray, asked: IntArray, keys: Sequence[str], widths: Widths
) -> FloatArray:
    """Return the most probable errors of the asked rows, the known rows' errors being given.

    The form in one equation, for times that are straight lines of the constants: what `calibrate`
    is held against.
    """
    group = groups_of(keys)
    values = np.exp(widths.vector())
    both = np.concatenate([known, asked])
    parts = Causes(part_of(machine, both), group)
    covariance = parts.covariance(values[:-2])
    n = len(known)
    inner, errors = covariance[:n, :n], machine.errors[known]
    noise = parts.noise(values[-2:])[:n]
    noise = noise * outliers(inner, errors, noise)
    return np.asarray(covariance[n:, :n] @ np.linalg.solve(inner + np.diag(noise), errors))


@dataclass(frozen=True, slots=True)
class Posterior:
    """What known rows of a machine say: its constants, and what the model gets wrong there."""

    theta: FloatArray
    """Logs of the constants."""
    spread: FloatArray
    """Standard deviations of these logs."""
    machine: Machine
    """The known rows; errors and slopes at *theta*."""
    weight: FloatArray
    """By which the covariance with each known row gives the discrepancy, shape (rows,)."""
    times: FloatArray
    """How many times larger the variance of each known row is than usual: an outlier's."""
    widths: Widths
    keys: tuple[str, ...]

    def discrepancy(self, octave: FloatArray, way: IntArray, table: IntArray) -> FloatArray:
        """Return the log of predicted over measured time that the constants leave.

        Parameters
        ----------
        octave, way, table
            As in `Machine`, of the rows that are asked for; numbers that no known row has stand
            for other ways and tables.
        """
        return np.asarray(sum(self.by_part(octave, way, table)))

    def by_part(self, octave: FloatArray, way: IntArray, table: IntArray) -> list[FloatArray]:
        """Return the discrepancy by `PARTS`."""
        asked = _rows_at(octave, way, table, self.machine)
        parts = Causes(_joined(self.machine, asked), self._group())
        n = len(self.weight)
        values = self.widths.discrepancy**2
        matrices = parts.parts[len(GROUPS) :]
        return [
            sum(
                (values[i] * (matrices[i][n:, :n] @ self.weight) for i in (2 * k, 2 * k + 1)),
                np.zeros(len(octave)),
            )
            for k in range(len(PARTS))
        ]

    def spread_of(self, asked: Machine) -> FloatArray:
        """Return the standard deviation of the log of measured over predicted time of rows."""
        parts = Causes(_joined(self.machine, asked), self._group())
        values = np.exp(self.widths.vector())
        covariance = parts.covariance(values[:-2])
        noise = parts.noise(values[-2:])
        n = len(self.weight)
        inner = covariance[:n, :n] + np.diag(noise[:n] * self.times)
        cross = covariance[n:, :n]
        left = np.diag(covariance[n:, n:]) - np.einsum("ij,ji->i", cross, _solved(inner, cross.T))
        return np.asarray(np.sqrt(np.maximum(left, 0.0) + noise[n:]))

    def half_widths(self) -> FloatArray:
        """Return the half width in log time that holds 80 % of calls at each known row's size.

        The posterior's has the noise that other machines' rows have; many machines are steadier,
        and some are not.  Each row is predicted from all others (Rasmussen and Williams, section
        5.4.2; the constants as they are), and of the rows of its table within three octaves four
        fifths lie within so many standard deviations; with the weight of one row those of a
        normal distribution count, too.
        """
        covariance, noise = _rest_parts(self.machine, self._group(), self.widths)
        inverse = np.linalg.inv(covariance + np.diag(noise * self.times))
        far = np.abs(self.weight) / np.sqrt(np.diag(inverse))
        octave, table = self.machine.octave, self.machine.table
        held = np.empty(len(far))
        for i in range(len(far)):
            near = (table == table[i]) & (np.abs(octave - octave[i]) <= _NEAR_OCTAVES)
            n = int(near.sum())
            held[i] = (n * float(np.quantile(far[near], 0.8)) + _HALF_80) / (n + 1)
        return held * self.spread_of(self.machine)

    def _group(self) -> IntArray:
        return groups_of(self.keys)


def calibrate(problem: Problem, machine: Machine, theta: FloatArray, widths: Widths) -> Posterior:
    """Return the most probable constants and discrepancy of a machine, its rows being known.

    The slopes are taken again at the constants found until those settle (Gauss-Newton), so that
    the constants are the mode, too, where times are no straight lines of them.

    Parameters
    ----------
    problem
        The known rows and the parameters, with their bounds.
    machine
        The same rows as `machine_of` has them; what counts are octave, way and table.
    theta
        Logs of the shipped constants: the mode before anything was measured.
    widths
        How far machines are from them.
    """
    keys = tuple(parameter.key for parameter in problem.given)
    group = groups_of(keys)
    values = np.exp(widths.vector())
    free = group >= 0
    variance = np.where(free, values[group] ** 2, 0.0)
    machine = _loosened(machine, [row.collective for row in problem.rows], group, values)
    low, high = np.minimum(problem.low, theta), np.maximum(problem.high, theta)
    rest = _rest_parts(machine, group, widths)

    def cost(at: FloatArray) -> float:
        """Return minus the log of the posterior density, up to a constant."""
        prior = 0.5 * float(((at - theta)[free] ** 2 / variance[free]).sum())
        return prior + _misfit(*rest, problem.errors(at))

    at, slopes, reached = theta, problem.slopes(theta), cost(theta)
    for _ in range(_ROUNDS):
        straight = problem.errors(at) - slopes @ (at - theta)
        inner = _inner(machine, straight, slopes, group, values)
        wanted = np.clip(theta - variance * (slopes.T @ _solved(inner, straight)), low, high)
        wanted = np.where(free, wanted, theta)
        share = 1.0
        while share > 0.05 and cost(at + share * (wanted - at)) > reached:
            # A kink, such as the launch limit, lies between: part of the way is better.
            share *= 0.5
        step = share * (wanted - at) if share > 0.05 else np.zeros(len(at))
        at = at + step
        slopes, reached = problem.slopes(at), cost(at)
        if float(np.abs(step).max(initial=0.0)) < _STILL:
            break
    errors = problem.errors(at)
    inner = _inner(machine, errors - slopes @ (at - theta), slopes, group, values)
    told = slopes * variance
    left = variance - np.einsum("ij,ij->j", told, _solved(inner, told))
    spread = np.sqrt(np.maximum(left, 0.0))
    return rest_of(_with(machine, errors, slopes), at, spread, widths, keys)


def _loosened(
    machine: Machine, collectives: Sequence[str], group: IntArray, values: FloatArray
) -> Machine:
    """Return the machine with a wider discrepancy of tables that do not go with the others.

    Each table's variance is drawn from an inverse gamma distribution, as a row's in Student's t;
    found by fixed-point steps of the evidence (D. MacKay, Neural Computation 4, 1992).
    """
    tables = np.unique(machine.table)
    exchange = np.array([name in EXCHANGES for name in collectives])
    if len(tables) < 2:
        return machine
    least = np.where(exchange & (not exchange.all()), _LOOSE, 1.0)
    machine = replace(machine, loose=least)
    if len(tables) < _TABLES:
        return machine
    loose = least
    for _ in range(_TABLE_ROUNDS):
        parts = Causes(machine, group)
        own = sum(
            (values[len(values) - 4 + i] ** 2 * parts.parts[-2 + i] for i in range(2)),
            np.zeros((len(loose), len(loose))),
        )
        covariance = parts.covariance(values[:-2])
        noise = parts.noise(values[-2:])
        times = outliers(covariance, machine.errors, noise)
        inverse = np.linalg.inv(covariance + np.diag(noise * times))
        white = inverse @ machine.errors
        loose = loose.copy()
        for number in tables.tolist():
            mine = np.flatnonzero(machine.table == number)
            part = own[np.ix_(mine, mine)]
            told = float(white[mine] @ part @ white[mine])
            usual = float((inverse[np.ix_(mine, mine)] * part).sum())
            grown = loose[mine] * (told + TAIL) / (usual + TAIL)
            loose[mine] = np.clip(grown, least[mine], _WILDEST)
        machine = replace(machine, loose=loose)
    return machine


def _inner(
    machine: Machine,
    errors: FloatArray,
    slopes: FloatArray,
    group: IntArray,
    values: FloatArray,
) -> FloatArray:
    """Return the covariance of known rows with all causes and the noise, outliers' more."""
    parts = Causes(_with(machine, errors, slopes), group)
    covariance = parts.covariance(values[:-2])
    noise = parts.noise(values[-2:])
    return covariance + np.diag(noise * outliers(covariance, errors, noise))


def _rest_parts(machine: Machine, group: IntArray, widths: Widths) -> tuple[FloatArray, FloatArray]:
    """Return the covariance of the discrepancy alone, and the variance of rows."""
    values = np.exp(widths.vector())
    parts = Causes(machine, group)
    only = values[:-2].copy()
    only[: len(GROUPS)] = 0.0
    return parts.covariance(only), parts.noise(values[-2:])


def _misfit(covariance: FloatArray, noise: FloatArray, errors: FloatArray) -> float:
    """Return minus the log likelihood of errors, the constants being given."""
    times = outliers(covariance, errors, noise)
    total = covariance + np.diag(noise * times)
    _, volume = np.linalg.slogdet(total)
    return 0.5 * float(errors @ _solved(total, errors)) + 0.5 * float(volume) + tail(times)


def rest_of(
    machine: Machine, theta: FloatArray, spread: FloatArray, widths: Widths, keys: Sequence[str]
) -> Posterior:
    """Return the discrepancy that constants leave, which are taken as they are.

    Parameters
    ----------
    machine
        The known rows, errors and slopes at *theta*.
    theta, spread
        Logs of the constants and their standard deviations.
    widths, keys
        As in `conditioned`.
    """
    group = groups_of(keys)
    covariance, noise = _rest_parts(machine, group, widths)
    times = outliers(covariance, machine.errors, noise)
    weight = np.linalg.solve(covariance + np.diag(noise * times), machine.errors)
    return Posterior(
        theta=theta,
        spread=spread,
        machine=machine,
        weight=np.asarray(weight),
        times=times,
        widths=widths,
        keys=tuple(keys),
    )


def _solved(matrix: FloatArray, right: FloatArray) -> FloatArray:
    return np.asarray(np.linalg.solve(matrix, right))


def _with(machine: Machine, errors: FloatArray, slopes: FloatArray) -> Machine:
    return replace(machine, errors=errors, slopes=slopes)


def _rows_at(octave: FloatArray, way: IntArray, table: IntArray, known: Machine) -> Machine:
    """Return rows of no known error; of a known table they have its looseness."""
    loose = None
    if known.loose is not None:
        by_table = dict(zip(known.table.tolist(), known.loose.tolist(), strict=True))
        loose = np.array([by_table.get(number, 1.0) for number in table.tolist()])
    return Machine(
        errors=np.zeros(len(octave)),
        slopes=np.zeros((len(octave), known.slopes.shape[1])),
        octave=octave,
        way=way,
        table=table,
        loose=loose,
    )


def _joined(first: Machine, second: Machine) -> Machine:
    def both(one: FloatArray | None, other: FloatArray | None) -> FloatArray | None:
        if one is None and other is None:
            return None
        filled = (
            np.ones(len(machine.errors)) if given is None else given
            for machine, given in ((first, one), (second, other))
        )
        return np.concatenate(list(filled))

    return Machine(
        errors=np.concatenate([first.errors, second.errors]),
        slopes=np.vstack([first.slopes, second.slopes]),
        octave=np.concatenate([first.octave, second.octave]),
        way=np.concatenate([first.way, second.way]),
        table=np.concatenate([first.table, second.table]),
        count=both(first.count, second.count),
        loose=both(first.loose, second.loose),
    )
