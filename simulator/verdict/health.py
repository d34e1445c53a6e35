"""The verdict on a table: healthy, suspicious or sick, by named rules.

For each range of sizes the median of measured over predicted bandwidth is compared with two
limits.  Large sizes decide alone; small ones need a gross miss, because launch floors of healthy
machines differ by a factor of three.  A wrong result is sick whatever the speed.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from simulator.verdict.bands import RANGES, size_range
from simulator.verdict.predict import PredictedRow

__all__ = ["LIMITS", "Finding", "Health", "judge"]


class Health(IntEnum):
    """The verdict; the value is the exit code of ``collsim check``."""

    HEALTHY = 0
    SUSPICIOUS = 3
    SICK = 4


LIMITS: dict[str, tuple[float, float]] = {
    "<1M": (0.25, 0.10),
    "1M-16M": (0.40, 0.20),
    ">=16M": (0.65, 0.45),
}
"""Range of sizes to (suspicious below, sick below): share of the predicted bandwidth reached."""

TOO_FAST = 1.6
"""Above this share of the prediction the set-up is probably not the machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The verdict on one range of sizes."""

    name: str
    health: Health
    reached: float
    """Median of measured / predicted bandwidth."""
    n_rows: int
    words: str


def judge(rows: Sequence[PredictedRow]) -> tuple[Health, list[Finding]]:
    """Return the verdict and the findings behind it, one a range that has rows.

    Examples
    --------
    >>> judge([])
    (<Health.HEALTHY: 0>, [])
    """
    findings: list[Finding] = []
    for name in RANGES:
        members = [row for row in rows if size_range(row.size_bytes) == name]
        if members:
            findings.append(_finding(name, members))
    wrong = [row for row in rows if row.wrong]
    if wrong:
        findings.append(
            Finding(
                name="results",
                health=Health.SICK,
                reached=0.0,
                n_rows=len(wrong),
                words=f"wrong results in {len(wrong)} rows, first in line {wrong[0].line}",
            )
        )
    return max((finding.health for finding in findings), default=Health.HEALTHY), findings


def _finding(name: str, rows: Sequence[PredictedRow]) -> Finding:
    reached = statistics.median(row.ratio for row in rows)
    suspicious, sick = LIMITS[name]
    health = Health.HEALTHY
    words = f"{100 * reached:.0f} % of the predicted bandwidth"
    if reached < sick:
        health, words = Health.SICK, f"{words}, below {100 * sick:.0f} %"
    elif reached < suspicious:
        health, words = Health.SUSPICIOUS, f"{words}, below {100 * suspicious:.0f} %"
    elif reached > TOO_FAST:
        words += ": faster than this set-up allows; is it the right one?"
    return Finding(name=name, health=health, reached=reached, n_rows=len(rows), words=words)
