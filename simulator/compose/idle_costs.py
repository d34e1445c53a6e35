"""Overrides of cost constants that change nothing: found by taking each away and running again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from simulator.costs.profile import load_profile
from simulator.results.model import RunResult
from simulator.scenario.resolved import Resolved

__all__ = ["told_idle_overrides"]


def told_idle_overrides(
    result: RunResult, resolved: Resolved, run: Callable[[Resolved], RunResult]
) -> RunResult:
    """Return a result with a warning for each override without which all times are the same.

    Parameters
    ----------
    result
        Of the scenario with all its overrides.
    resolved
        The scenario.
    run
        Simulates another scenario.
    """
    given = resolved.costs.overrides
    times_s = _times_s(result)
    profile = load_profile(resolved.costs.profile)
    texts = []
    for key in given:
        left = {other: text for other, text in given.items() if other != key}
        bare = replace(resolved, costs=replace(resolved.costs, overrides=left))
        if profile.with_overrides(given) == profile.with_overrides(left):
            texts.append(f"costs.overrides.{key} has no effect: it is the profile's own value")
        elif _times_s(run(bare)) == times_s:
            texts.append(f"costs.overrides.{key} has no effect here: all times are the same")
    return replace(result, warnings=(*result.warnings, *texts)) if texts else result


def _times_s(result: RunResult) -> tuple[float, ...]:
    """Return every time of a result, in order."""
    rows = [row.time_s for row in result.rows]
    steps = [step.time_s for step in result.steps]
    return (*rows, *steps, *(step.step_s for step in result.training))
