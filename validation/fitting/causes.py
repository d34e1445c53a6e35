"""What the errors of a machine may come from, and how wide each cause is.

The errors of a machine (log of predicted over measured time) are taken as Gaussian.  They have two
causes.  Its constants differ from the fitted ones: the slopes of the times by the constants say how
that shows.  And the model is wrong in ways that go on from size to size and from table to table of
the machine: a smooth function of size, in parts common to all tables, to calls of one algorithm
and protocol, and to one table.  How wide each cause is, is estimated from how far left-out machines
are off (maximum likelihood).
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from validation.fitting.problem import Row

__all__ = [
    "GROUPS",
    "PARTS",
    "START",
    "TAIL",
    "Causes",
    "Machine",
    "Widths",
    "estimate",
    "group_of",
    "groups_of",
    "machine_of",
    "outliers",
    "part_of",
    "tail",
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
TAIL = 4.0
"""Degrees of freedom: a known row far off is an outlier of Student's t, and counts less."""
_MOST_ROWS = 60
"""Rows of a machine that the widths are estimated from: more say little that is new."""
_TRUST = 0.5
"""How far a width is believed to be from its start, in log."""


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


class Causes:
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


def outliers(covariance: FloatArray, errors: FloatArray, noise: FloatArray) -> FloatArray:
    """Return how many times larger each row's variance is: more than one for an outlier."""
    times = np.ones(len(errors))
    for _ in range(3):
        variance = noise * times
        left = variance * np.linalg.solve(covariance + np.diag(variance), errors)
        times = np.maximum((TAIL + left**2 / noise) / (TAIL + 1.0), 0.8)
    return times


def _surprise(parts: Causes, vector: FloatArray) -> tuple[float, FloatArray]:
    """Return minus the log likelihood of a machine's errors, and its slope by *vector*.

    Outliers keep the variance they have at these widths.
    """
    widths = np.exp(vector)
    covariance = parts.covariance(widths[:-2])
    noise = parts.noise(widths[-2:])
    times = outliers(covariance, parts.errors, noise)
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
    value = 0.5 * float(parts.errors @ white) - 0.5 * float(volume) + tail(times)
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
    parts = [Causes(_thinned(machine), group) for machine in machines]
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


def tail(times: FloatArray) -> float:
    """Return the price of large variances in Student's t."""
    return 0.5 * float((TAIL * (1.0 / times + np.log(times)) - TAIL).sum())
