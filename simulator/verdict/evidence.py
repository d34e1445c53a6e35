"""How well a hypothesis explains a measured curve: evidence, in natural logarithms.

The measured curve is compared with the healthy prediction on the logarithm, r(s) = ln(measured /
predicted).  A fault shifts the predicted curve by d(s) = ln(faulty / healthy), both simulated.
What is left, r − A·d, must look like the error of a prediction: it is large or small as a whole
and bends slowly over sizes, since one constant or one mechanism is wrong at neighbouring sizes
alike.  This is a Gaussian process over ln(size) in units of the prediction's own 80 % band, with
Student's t in place of the normal distribution, because some machines are far off.

The amplitude A of a fault is not known (a slot at a quarter of its width is no less likely than
one at half): the evidence is averaged over a log-normal prior around the simulated strength.
Tables of one machine share A, and their evidence multiplies.

References
----------
.. [1] D. MacKay, Information Theory, Inference, and Learning Algorithms (2003), chapter 28: the
   evidence as Occam's razor.
.. [2] A. Shah, A. Wilson and Z. Ghahramani, Student-t processes as alternatives to Gaussian
   processes, AISTATS 2014.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulator.results.model import Row

__all__ = ["Curve", "Fit", "best_fit", "distance", "log_evidence", "unexplained"]

FloatArray = NDArray[np.float64]

SHAPE = 0.5
"""Standard deviation of the slowly bending error, in half widths of the 80 % band.  This and the
next three are fitted by maximum likelihood to the errors on the healthy published machines
(0.48, 12 octaves, 0.03, 1.6), rounded towards the plainer."""
OCTAVES = 10.0
"""Sizes at which the error has forgotten itself, in doublings of the size."""
NOISE = 0.12
"""Standard deviation of what differs from row to row, in half widths."""
FREEDOM = 3.0
"""Degrees of freedom of Student's t."""
ROUNDING = 0.02
"""Least noise of a row in ln of the time: printed digits and repetitions."""
FLOOR_MOST_S = 30e-6
"""Healthy launch floors of one kind of node range over 14 to 42 µs."""
FLOOR_LEAST_SHARE = -0.5
"""A faster floor takes at most half of the smallest prediction."""
FLOOR_STEPS = 61
STEPS = 9
SPREADS = 2.0
"""The prior of an amplitude is looked at up to so many standard deviations, in `STEPS` steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """One table's error of the healthy prediction."""

    octaves: FloatArray
    """log2 of the sizes."""
    error: FloatArray
    """ln(measured / healthy prediction)."""
    width: FloatArray
    """Half width of the 80 % band in ln."""

    def covariance(self) -> FloatArray:
        """Return the covariance of a healthy prediction's error."""
        apart = np.abs(self.octaves[:, None] - self.octaves[None, :])
        shape = SHAPE**2 * np.exp(-apart / OCTAVES)
        noise = np.diag((NOISE * self.width) ** 2 + ROUNDING**2)
        return np.asarray(np.outer(self.width, self.width) * shape + noise)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """How a hypothesis explains some curves."""

    log_evidence: float
    amplitude: float
    """The strength that fits best, 1: as simulated."""


def log_evidence(error: FloatArray, covariance: FloatArray) -> float:
    """Return the log density of an error under Student's t with a scale matrix.

    Examples
    --------
    >>> near = log_evidence(np.array([0.1, 0.1]), np.eye(2))
    >>> far = log_evidence(np.array([2.0, 2.0]), np.eye(2))
    >>> near > far
    True
    """
    n = len(error)
    root = np.linalg.cholesky(covariance)
    white = np.linalg.solve(root, error)
    spread = float(np.log(np.diag(root)).sum())
    return (
        math.lgamma((FREEDOM + n) / 2)
        - math.lgamma(FREEDOM / 2)
        - 0.5 * n * math.log(FREEDOM * math.pi)
        - spread
        - 0.5 * (FREEDOM + n) * math.log1p(float(white @ white) / FREEDOM)
    )


def best_fit(curves: Sequence[Curve], shifts: Sequence[FloatArray], spread: float) -> Fit:
    """Return the evidence of a fault averaged over its amplitude, and the likeliest amplitude.

    Parameters
    ----------
    curves
        Tables of one machine.
    shifts
        ln(faulty / healthy prediction) of each, at the same sizes.
    spread
        Standard deviation of ln of the amplitude; 0: as simulated.
    """
    covariances = [curve.covariance() for curve in curves]
    steps = np.linspace(-SPREADS, SPREADS, STEPS) if spread > 0 else np.zeros(1)
    prior = -0.5 * steps**2
    prior = prior - _log_sum(prior)
    found = np.array(
        [
            sum(
                log_evidence(curve.error - math.exp(spread * step) * shift, covariance)
                for curve, shift, covariance in zip(curves, shifts, covariances, strict=True)
            )
            for step in steps
        ]
    )
    total = prior + found
    best = int(np.argmax(total))
    return Fit(log_evidence=_log_sum(total), amplitude=float(math.exp(spread * steps[best])))


def unexplained(curves: Sequence[Curve], spread: float, *, uniform: bool = False) -> float:
    """Return the evidence of a slowdown of any size and of no simulated shape.

    The slowdown, a factor with standard deviation *spread* in its logarithm, bends over sizes four
    times as fast as a healthy prediction's error.

    Parameters
    ----------
    curves
        Tables of one machine.
    spread
        Standard deviation of ln of the factor.
    uniform
        As likely as such a slowdown is one by the same factor at all sizes.  Against published
        machines that is a difference like any other, against the machine itself it is not.
    """
    bending = constant = 0.0
    for curve in curves:
        apart = np.abs(curve.octaves[:, None] - curve.octaves[None, :])
        broad = spread**2 * np.exp(-apart / (OCTAVES / 4))
        bending += log_evidence(curve.error, curve.covariance() + broad)
        constant += log_evidence(curve.error, curve.covariance() + spread**2)
    return _log_sum(np.array([bending, constant]) - math.log(2)) if uniform else bending


def distance(measured_s: Mapping[int, float], predicted: Mapping[int, Row]) -> float:
    """Return the root mean square of ln(measured / (predicted + floor)), with the best floor.

    The floor is one time common to all sizes, within bounds: launch floors of healthy machines
    differ by tens of microseconds.

    Examples
    --------
    >>> row = Row(collective="all_reduce", algorithm="ring", protocol="Simple", n_channels=1,
    ...     world_size=2, n_nodes=1, size_bytes=8, count=1, time_s=1e-3, algbw_Bps=1.0,
    ...     busbw_Bps=1.0)
    >>> round(distance({8: 1e-3}, {8: row}), 6)
    0.0
    """
    sizes = sorted(measured_s)
    measured = np.array([measured_s[size] for size in sizes])
    times = np.array([predicted[size].time_s for size in sizes])
    least = FLOOR_LEAST_SHARE * float(times.min())
    floors = np.append(np.linspace(least, FLOOR_MOST_S, FLOOR_STEPS), 0.0)
    logs = np.log(measured[None, :] / (times[None, :] + floors[:, None]))
    return float(np.sqrt(np.mean(logs**2, axis=1)).min())


def _log_sum(values: FloatArray) -> float:
    top = float(values.max())
    return top + math.log(float(np.exp(values - top).sum()))
