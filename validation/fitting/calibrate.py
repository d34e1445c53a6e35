"""Calibration: what some measurements of a machine say about its others.

The errors of a machine (log of predicted over measured time) are taken as Gaussian.  They have two
causes.  Its constants differ from the fitted ones: the slopes of the times by the constants say how
that shows.  And the model is wrong in ways that go on from size to size and from table to table of
the machine: a smooth function of size, in parts common to all tables, to calls of one algorithm
and protocol, and to one table.  How wide each cause is, is estimated from how far left-out machines
are off (maximum likelihood); with it, the known errors give the most probable of the others, which
is the maximum a posteriori estimate (for instance C. Rasmussen and C. Williams, Gaussian Processes
for Machine Learning, 2006, sections 2.2 and 2.7; M. Kennedy and A. O'Hagan, J. R. Statist. Soc. B
63, 2001, for the split into constants and discrepancy).
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from simulator.verdict.health import EXCHANGES
from validation.fitting.problem import Problem, Row

__all__ = [
    "GROUPS",
    "PARTS",
    "Machine",
    "Posterior",
    "Widths",
    "calibrate",
    "conditioned",
    "estimate",
    "group_of",
    "groups_of",
    "machine_of",
    "part_of",
    "rest_of",
]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

GROUPS = (
    ("launch", r"launch\.host|launch\.time|.*launch_share|.*extra_launch"),
    ("steps inside", r"(paths|levels|peers)\.(nvlink|xgmi|pcie|host).*|.*alpha_share"),
    ("steps between", r"(paths|levels|peers)\.network.*|networks\..*|switch\.level"),
    ("waiting", r"waiting\.time|ring\..*|chain\..*|switch\.time"),
    ("LL", r".*channel_GBps\.LL"),
    ("LL128", r".*channel_GBps\.LL128"),
    ("Simple", r".*channel_GBps\.Simple|exchange\..*|tree\..*|.*switch_share"),
    ("links inside", r".*links\.(nvlink|xgmi|pcie|upi|memory).*|host\.share"),
    ("links between", r".*links\.(infiniband|roce|ethernet|slingshot|efa).*"),
)
"""Constants that differ from machine to machine by about as much: name, pattern of their keys."""
_ONE_WITH = r".*launch_share|.*alpha_share"
"""Constants that on one machine only show as a product with one of their group: they stay."""
PARTS = ("common", "way", "table")
"""Parts of what the model gets wrong: common to a machine's tables, of calls of one algorithm and
protocol, of one table."""
_OCTAVES = (4.0, 3.0, 3.0)
"""Octaves of size over which they change."""
_SMALL, _LARGE = 20.0, 24.0
"""log2 of the sizes between which small messages (latency) turn into large ones (rates)."""
_CONSTANTS = (0.25, 0.25, 0.3, 0.3, 0.3, 0.3, 0.15, 0.05, 0.1)
_PARTS = (0.1, 0.03, 0.15, 0.05, 0.1, 0.03)
_NOISE = (0.05, 0.02)
_TAIL = 4.0
"""Degrees of freedom: a known row far off is an outlier of Student's t, and counts less."""
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
_MOST_ROWS = 60
"""Rows of a machine that the widths are estimated from: more say little that is new."""
_TRUST = 0.5
"""How far a width is believed to be from its start, in log."""
_ROUNDS = 6
"""Most times that the slopes of a machine are taken again at the constants found."""
_STILL = 3e-3
"""Constants that move by less, in log, have settled."""


@dataclass(frozen=True, slots=True)
class Machine:
    """Errors of one machine's rows and what they may come from."""

    errors: FloatArray
    """log(predicted / measured), shape (rows,)."""
    slopes: FloatArray
    """By the log of each constant, shape (rows, constants)."""
    octave: FloatArray
    """log2 of the size."""
    way: IntArray
    """Rows of one algorithm and protocol have the same number."""
    table: IntArray
    count: FloatArray | None = None
    """Measurements that a row is the median of; None: one each."""
    loose: FloatArray | None = None
    """Times the usual variance of its table's own discrepancy; None: one each."""


@dataclass(frozen=True, slots=True)
class Widths:
    """Standard deviations in log: of the constants by group, of the discrepancy, of a row."""

    constants: FloatArray
    """Shape (groups,)."""
    discrepancy: FloatArray
    """Common, of a way, of a table; each of small and of large messages; shape (6,)."""
    noise: FloatArray
    """Of a row with a small and with a large message, shape (2,)."""

    def vector(self) -> FloatArray:
        """Return the logs of all of them."""
        return np.asarray(np.log(np.concatenate([self.constants, self.discrepancy, self.noise])))

    @staticmethod
    def of(vector: FloatArray) -> Widths:
        """Return the widths of a vector of logs."""
        values = np.exp(vector)
        return Widths(values[: len(GROUPS)], values[len(GROUPS) : -2], values[-2:])


START = Widths(np.array(_CONSTANTS), np.array(_PARTS), np.array(_NOISE))
"""Widths before anything was measured."""


def group_of(key: str) -> int:
    """Return the index in `GROUPS` of a constant."""
    for index, (_, pattern) in enumerate(GROUPS):
        if re.fullmatch(pattern, key):
            return index
    return 0


def groups_of(keys: Sequence[str]) -> IntArray:
    """Return the index in `GROUPS` of constants; -1 for one that stays.

    The share of a GPU's generation in the launch (or in the latency of steps) multiplies a
    constant that is free; two free factors of one product would only share what moves it.
    """
    return np.array([-1 if re.fullmatch(_ONE_WITH, key) else group_of(key) for key in keys])


def machine_of(rows: Sequence[Row], errors: FloatArray, slopes: FloatArray) -> Machine:
    """Return the rows of one machine as `conditioned` takes them."""
    ways: dict[tuple[str, str], int] = {}
    for row in rows:
        choice = row.formula.choice
        ways.setdefault((choice.algorithm, choice.protocol), len(ways))
    way = [ways[row.formula.choice.algorithm, row.formula.choice.protocol] for row in rows]
    return Machine(
        errors=errors,
        slopes=slopes,
        octave=np.log2([max(row.size_bytes, 1) for row in rows]),
        way=np.array(way),
        table=np.array([row.case for row in rows]),
    )


class _Parts:
    """The covariance of a machine's errors by cause: what does not depend on the widths."""

    def __init__(self, machine: Machine, group: IntArray) -> None:
        self.errors = machine.errors
        apart = machine.octave[:, None] - machine.octave[None, :]
        large = np.clip((machine.octave - _SMALL) / (_LARGE - _SMALL), 0.0, 1.0)
        self.shares = ((1.0 - large) ** 2, large**2)
        """Of each row's noise that is a small and a large message's."""
        if machine.count is not None:
            # Repeats share what the model gets wrong: they say more, but not as much as new rows.
            fewer = 1.0 / np.sqrt(machine.count)
            self.shares = (self.shares[0] * fewer, self.shares[1] * fewer)
        both = [np.outer(share, share) for share in (1.0 - large, large)]
        alike = (
            np.ones_like(apart),
            machine.way[:, None] == machine.way[None, :],
            (machine.table[:, None] == machine.table[None, :]) * _product(machine.loose),
        )
        self.parts = [
            machine.slopes[:, group == index] @ machine.slopes[:, group == index].T
            for index in range(len(GROUPS))
        ]
        for octaves, same in zip(_OCTAVES, alike, strict=True):
            near = np.exp(-0.5 * (apart / octaves) ** 2) * same
            self.parts += [near * share for share in both]

    def covariance(self, widths: FloatArray) -> FloatArray:
        """Return the sum of the parts, without the noise of rows."""
        total = np.zeros_like(self.parts[0])
        for width, part in zip(widths, self.parts, strict=True):
            total += width**2 * part
        return total

    def noise(self, widths: FloatArray) -> FloatArray:
        """Return the variance of each row."""
        small, large = widths
        return np.asarray(small**2 * self.shares[0] + large**2 * self.shares[1])


def _product(loose: FloatArray | None) -> FloatArray | float:
    if loose is None:
        return 1.0
    return np.sqrt(np.outer(loose, loose))


def _outliers(covariance: FloatArray, errors: FloatArray, noise: FloatArray) -> FloatArray:
    """Return how many times larger each row's variance is: more than one for an outlier."""
    times = np.ones(len(errors))
    for _ in range(3):
        variance = noise * times
        left = variance * np.linalg.solve(covariance + np.diag(variance), errors)
        times = np.maximum((_TAIL + left**2 / noise) / (_TAIL + 1.0), 0.8)
    return times


def _surprise(parts: _Parts, vector: FloatArray) -> tuple[float, FloatArray]:
    """Return minus the log likelihood of a machine's errors, and its slope by *vector*.

    Outliers keep the variance they have at these widths.
    """
    widths = np.exp(vector)
    covariance = parts.covariance(widths[:-2])
    noise = parts.noise(widths[-2:])
    times = _outliers(covariance, parts.errors, noise)
    inverse = np.linalg.inv(covariance + np.diag(noise * times))
    white = inverse @ parts.errors
    _, volume = np.linalg.slogdet(inverse)
    slope = [
        width**2 * (float((inverse * part).sum()) - float(white @ part @ white))
        for width, part in zip(widths[:-2], parts.parts, strict=True)
    ]
    for width, share in zip(widths[-2:], parts.shares, strict=True):
        each = share * times
        slope.append(width**2 * (float(np.diag(inverse) @ each) - float(white @ (each * white))))
    value = 0.5 * float(parts.errors @ white) - 0.5 * float(volume) + _tail(times)
    return value, np.array(slope)


def estimate(
    machines: Sequence[Machine],
    keys: Sequence[str],
    *,
    first: Widths = START,
    rounds: int = 30,
) -> Widths:
    """Return the widths under which the errors of machines are most likely.

    Parameters
    ----------
    machines
        Left out of the fit that their errors are of.
    keys
        Of the constants.
    first
        Where to start.
    rounds
        Steps of the search.
    """
    from scipy.optimize import minimize

    group = groups_of(keys)
    parts = [_Parts(_thinned(machine), group) for machine in machines]
    middle = START.vector()

    def cost(vector: FloatArray) -> tuple[float, FloatArray]:
        # A cause that no machine shows keeps its width.
        total = 0.5 * float((((vector - middle) / _TRUST) ** 2).sum())
        slope = (vector - middle) / _TRUST**2
        for part in parts:
            value, by_width = _surprise(part, vector)
            total += value
            slope = slope + by_width
        return total, slope

    found = minimize(
        cost,
        first.vector(),
        jac=True,
        method="L-BFGS-B",
        bounds=[(math.log(0.003), math.log(1.5))] * len(middle),
        options={"maxiter": rounds},
    )
    return Widths.of(np.asarray(found.x))


def _thinned(machine: Machine) -> Machine:
    """Return at most `_MOST_ROWS` rows of a machine, evenly."""
    n = len(machine.errors)
    if n <= _MOST_ROWS:
        return machine
    return part_of(machine, np.unique(np.linspace(0, n - 1, _MOST_ROWS).round().astype(np.int64)))


def part_of(machine: Machine, rows: IntArray) -> Machine:
    """Return some rows of a machine."""
    return Machine(
        errors=machine.errors[rows],
        slopes=machine.slopes[rows],
        octave=machine.octave[rows],
        way=machine.way[rows],
        table=machine.table[rows],
        count=None if machine.count is None else machine.count[rows],
        loose=None if machine.loose is None else machine.loose[rows],
    )


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
    parts = _Parts(part_of(machine, both), group)
    covariance = parts.covariance(values[:-2])
    n = len(known)
    inner, errors = covariance[:n, :n], machine.errors[known]
    noise = parts.noise(values[-2:])[:n]
    noise = noise * _outliers(inner, errors, noise)
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
        parts = _Parts(_joined(self.machine, asked), self._group())
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
        parts = _Parts(_joined(self.machine, asked), self._group())
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
        parts = _Parts(machine, group)
        own = sum(
            (values[len(values) - 4 + i] ** 2 * parts.parts[-2 + i] for i in range(2)),
            np.zeros((len(loose), len(loose))),
        )
        covariance = parts.covariance(values[:-2])
        noise = parts.noise(values[-2:])
        times = _outliers(covariance, machine.errors, noise)
        inverse = np.linalg.inv(covariance + np.diag(noise * times))
        white = inverse @ machine.errors
        loose = loose.copy()
        for number in tables.tolist():
            mine = np.flatnonzero(machine.table == number)
            part = own[np.ix_(mine, mine)]
            told = float(white[mine] @ part @ white[mine])
            usual = float((inverse[np.ix_(mine, mine)] * part).sum())
            grown = loose[mine] * (told + _TAIL) / (usual + _TAIL)
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
    parts = _Parts(_with(machine, errors, slopes), group)
    covariance = parts.covariance(values[:-2])
    noise = parts.noise(values[-2:])
    return covariance + np.diag(noise * _outliers(covariance, errors, noise))


def _rest_parts(machine: Machine, group: IntArray, widths: Widths) -> tuple[FloatArray, FloatArray]:
    """Return the covariance of the discrepancy alone, and the variance of rows."""
    values = np.exp(widths.vector())
    parts = _Parts(machine, group)
    only = values[:-2].copy()
    only[: len(GROUPS)] = 0.0
    return parts.covariance(only), parts.noise(values[-2:])


def _misfit(covariance: FloatArray, noise: FloatArray, errors: FloatArray) -> float:
    """Return minus the log likelihood of errors, the constants being given."""
    times = _outliers(covariance, errors, noise)
    total = covariance + np.diag(noise * times)
    _, volume = np.linalg.slogdet(total)
    return 0.5 * float(errors @ _solved(total, errors)) + 0.5 * float(volume) + _tail(times)


def _tail(times: FloatArray) -> float:
    """Return the price of large variances in Student's t."""
    return 0.5 * float((_TAIL * (1.0 / times + np.log(times)) - _TAIL).sum())


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
    times = _outliers(covariance, machine.errors, noise)
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
