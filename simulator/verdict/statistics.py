"""Errors of a prediction: over all rows and by range of sizes."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from simulator.verdict.bands import RANGES, size_range
from simulator.verdict.predict import PredictedRow

__all__ = ["Errors", "errors_by_range", "errors_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Errors:
    """Errors of some rows; shares of the measured time."""

    name: str
    """``all`` or a range of sizes."""
    n_rows: int
    median: float
    p90: float
    """The error that 90 % of the rows stay within (nearest rank)."""
    geometric_mean_ratio: float
    """Of predicted / measured time: 1 is unbiased, above 1 the machine is faster."""
    worst: float
    within_band: float
    """Share of rows inside their expected range."""


def errors_of(rows: Sequence[PredictedRow], name: str = "all") -> Errors:
    """Return the errors of at least one row.

    Examples
    --------
    >>> errors_of([])
    Traceback (most recent call last):
        ...
    ValueError: no rows
    """
    if not rows:
        raise ValueError("no rows")
    errors = sorted(row.error for row in rows)
    inside = [row.expected_s[0] <= row.measured_s <= row.expected_s[1] for row in rows]
    return Errors(
        name=name,
        n_rows=len(rows),
        median=statistics.median(errors),
        p90=errors[math.ceil(0.9 * len(errors)) - 1],
        geometric_mean_ratio=math.exp(statistics.fmean(math.log(row.ratio) for row in rows)),
        worst=errors[-1],
        within_band=sum(inside) / len(rows),
    )


def errors_by_range(rows: Sequence[PredictedRow]) -> list[Errors]:
    """Return the errors of all rows and of each range of sizes that has any."""
    found = [errors_of(rows)]
    for name in RANGES:
        members = [row for row in rows if size_range(row.size_bytes) == name]
        if members:
            found.append(errors_of(members, name))
    return found
