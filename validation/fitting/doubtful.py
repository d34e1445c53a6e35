"""What a fit must not be made of, or must not end with."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from simulator.base.errors import Problem
from simulator.base.units import format_size, format_time
from simulator.verdict.predict import PredictedRow

__all__ = ["BEYOND", "MOST_ERROR", "MOST_FAR", "badly_fitted", "impossible"]

BEYOND = 1.05
"""Bandwidth over the links' physical one above which a time cannot be: clocks are off by less.
Of 176 published tables of up to 64 ranks none reaches more than 0.98 at its largest size."""
MOST_ERROR = 0.15
"""Median error of the fitted rows beyond which nothing was learnt: one of 105 published sweeps."""
MOST_FAR = 1 / 3
"""Share of rows that fit badly beyond which the others are not the machine either."""


def impossible(file: str, rows: Sequence[PredictedRow]) -> list[Problem]:
    """Return that rows of one table take less time than their bytes need on the set-up's links."""
    share = {
        row.line: row.predicted.bound_s / row.measured_s
        for row in rows
        if row.predicted.bound_s is not None
    }
    beyond = sorted(line for line, value in share.items() if value > BEYOND)
    if not beyond:
        return []
    worst = max((row for row in rows if row.line in share), key=lambda row: share[row.line])
    bound_s = worst.predicted.bound_s or 0.0
    return [
        Problem(
            file=file,
            line=worst.line,
            message=f"{worst.predicted.collective}: {format_size(worst.size_bytes)} took "
            f"{format_time(worst.measured_s, 3)}, but the links need {format_time(bound_s, 3)} at "
            f"least; {_lines(beyond)} faster than the links",
            allowed="times that the set-up can reach; --node, --nodes and --gpus-per-node are "
            "probably not this machine's",
        )
    ]


def _lines(lines: Sequence[int]) -> str:
    if len(lines) == 1:
        return f"line {lines[0]} is"
    return f"{len(lines)} rows in lines {lines[0]} to {lines[-1]} are"


def badly_fitted(rows: Sequence[PredictedRow], far: Sequence[int]) -> list[Problem]:
    """Return that fitted rows are still off, or too many of them do not go with the others."""
    median = statistics.median(row.error for row in rows)
    share = len(far) / len(rows)
    if median <= MOST_ERROR and share <= MOST_FAR:
        return []
    return [
        Problem(
            message=f"the fit failed: with the fitted constants the median error is still "
            f"{100 * median:.0f} %, and {len(far)} of {len(rows)} rows fit badly",
            allowed=f"at most {100 * MOST_ERROR:.0f} % and a third of the rows. Look at the rows "
            "with `collsim compare`: the set-up may be wrong, or the logs of different machines; "
            "fit single logs",
        )
    ]
