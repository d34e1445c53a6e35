"""Errors by source, in sample and with each source left out of the fit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from validation.training.response import PARAMETERS, Measured, Responses

__all__ = ["Errors", "errors_of", "fit", "leave_one_out", "ratios"]

_LARGEST = 0.5
"""A row that is further off (in the logarithm) counts no more."""
_DRAWN = 0.03
"""Weight of the given values beside the mean error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Errors:
    """Of |predicted / measured − 1| over rows."""

    rows: int
    median: float
    p90: float
    bias: float
    """Median of predicted / measured − 1."""
    ratios: tuple[float, ...]


def errors_of(ratios: Iterable[float]) -> Errors:
    """Return the errors of ratios of predicted and measured."""
    values = np.array(list(ratios))
    off = np.abs(values - 1.0)
    return Errors(
        rows=len(values),
        median=float(np.median(off)),
        p90=float(np.quantile(off, 0.9)),
        bias=float(np.median(values) - 1.0),
        ratios=tuple(map(float, values)),
    )


def fit(rows: Sequence[Measured]) -> dict[str, float]:
    """Return the factors on the shipped constants that fit rows best.

    The mean absolute error in the logarithm is minimised; sources count by the square root of
    their number of rows, so that the largest does not decide alone.
    """
    from scipy.optimize import minimize

    counts = Counter(row.record.source for row in rows)
    weights = np.array([counts[row.record.source] ** -0.5 for row in rows])
    weights /= weights.sum()
    low = np.array([p.low for p in PARAMETERS])
    high = np.array([p.high for p in PARAMETERS])
    given = np.array([p.given for p in PARAMETERS])
    measured = np.array([row.record.measured_s for row in rows])
    responses = Responses(rows)

    def loss(x: np.ndarray) -> float:
        inside = np.clip(x, low, high)
        factors = {p.name: float(v) for p, v in zip(PARAMETERS, inside, strict=True)}
        off = np.minimum(np.abs(np.log(responses.times_s(factors) / measured)), _LARGEST)
        drawn = np.mean(((inside - given) / (high - low)) ** 2)
        return float(weights @ off + _DRAWN * drawn)

    found = minimize(loss, given, method="Powell", options={"maxiter": 6, "ftol": 1e-3})
    best = np.clip(found.x, low, high)
    return {p.name: float(v) for p, v in zip(PARAMETERS, best, strict=True)}


def ratios(rows: Sequence[Measured], factors: Mapping[str, float]) -> list[float]:
    """Return predicted over measured under other constants."""
    times_s = Responses(rows).times_s(factors)
    return [float(t) / row.record.measured_s for t, row in zip(times_s, rows, strict=True)]


def leave_one_out(rows: Sequence[Measured]) -> Mapping[str, Errors]:
    """Return the errors of each source by constants fitted to all others."""
    out = {}
    for source in sorted({row.record.source for row in rows}):
        factors = fit([row for row in rows if row.record.source != source])
        out[source] = errors_of(ratios([r for r in rows if r.record.source == source], factors))
    return out
