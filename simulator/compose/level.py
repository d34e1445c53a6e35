"""One level of detail for what is compared: the sizes of a sweep, and its variants."""

from __future__ import annotations

from collections.abc import Iterable

from simulator.results.model import Row
from simulator.scenario.resolved import Resolved

__all__ = ["ASKED", "AS_OTHERS", "SUMMED", "TOO_MANY", "has_to_fold", "may_fold"]

ASKED = "asked for"
SUMMED = "its pairs are summed"
TOO_MANY = "too many messages to follow"
AS_OTHERS = "as the rest of the sweep"


def has_to_fold(rows: Iterable[Row]) -> bool:
    """Return whether some rows are at the folded level for want of time or memory."""
    return any(row.level == "folded" and row.level_reason in (SUMMED, TOO_MANY) for row in rows)


def may_fold(resolved: Resolved, rows: Iterable[Row]) -> bool:
    """Return whether rows of a variant were followed message by message without need."""
    perturb = resolved.perturb
    drawn = perturb.jitter.sigma or perturb.jitter.latency_s or perturb.skew_s
    free = resolved.engine.level == "auto" and not drawn
    return bool(free and any(row.level == "steps" and row.world_size > 1 for row in rows))
