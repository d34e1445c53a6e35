"""Run every variant of a scenario: one after the other, or in a process pool when it pays."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

from simulator.base.errors import CollsimError, InternalError, ScenarioError, expected
from simulator.compose.level import has_to_fold, may_fold
from simulator.compose.run import run_resolved
from simulator.compose.variants import idle_axes, told_by_variant
from simulator.compose.workers import noted_signals, work_apart
from simulator.results.model import Failure, RunResult
from simulator.scenario.resolve import ScenarioSet
from simulator.scenario.resolved import Resolved

__all__ = ["run_set", "variant_labels"]

OnProgress = Callable[[int, int], None]

POOL_PAYS_S = 2.0
"""Processes are started when the remaining variants would take longer than this."""


def run_set(
    scenarios: ScenarioSet,
    *,
    record: bool | None = None,
    workers: int | None = None,
    on_progress: OnProgress | None = None,
) -> RunResult:
    """Simulate all variants and return one result.

    Parameters
    ----------
    scenarios
        From `simulator.scenario.resolve.load` or ``from_words``.
    record
        Keep messages for traces; None: as each scenario says.
    workers
        Processes; None: one per core, 1: this process only.
    on_progress
        Called with (steps done, steps in all).

    Returns
    -------
    RunResult
        Of one variant as it is; of several the rows of all, labelled, and the links and ranks of
        none.  After Ctrl-C: what was done, with a warning.  A variant of a sweep that fails
        stands in ``failures``, and the others go on.

    Raises
    ------
    CollsimError
        The only variant, or all of a sweep, failed.
    """
    variants = scenarios.variants
    if len(variants) == 1 and not scenarios.invalid:
        result = run_resolved(variants[0], record=record, on_progress=on_progress)
        return _with_warnings(result, scenarios)
    done: dict[int, RunResult] = {}
    failed: dict[int, CollsimError] = {}
    interrupted = False
    try:
        for index, outcome in _outcomes(variants, record, workers):
            if isinstance(outcome, CollsimError):
                failed[index] = outcome
            else:
                done[index] = outcome
            if on_progress is not None:
                on_progress(len(done) + len(failed), len(variants))
        _bring_to_one_level(variants, done, record)
    except KeyboardInterrupt:
        interrupted = True
        if not done:
            raise
    if not done:
        raise _of_all(variants, failed)
    merged = _merged(variants, done)
    if interrupted:
        text = f"interrupted: {len(done)} of {len(variants)} variants are done"
        merged = replace(merged, warnings=(text, *merged.warnings))
    return _with_warnings(replace(merged, failures=_failures(scenarios, failed)), scenarios)


def _bring_to_one_level(
    variants: tuple[Resolved, ...], done: dict[int, RunResult], record: bool | None
) -> None:
    """Fold the others where variants had to be folded: they are there to be compared."""
    if not has_to_fold(row for result in done.values() for row in result.rows):
        return
    for index, result in sorted(done.items()):
        if may_fold(variants[index], result.rows):
            done[index] = run_resolved(variants[index], record=record, fold=True)


def _outcomes(
    variants: tuple[Resolved, ...], record: bool | None, workers: int | None
) -> Iterator[tuple[int, RunResult | CollsimError]]:
    """Generate index and result, or error, of each variant: here, or by processes if it pays."""
    total = len(variants)
    begin = time.perf_counter()
    for index, variant in enumerate(variants):
        try:
            yield index, run_resolved(variant, record=record)
        except Exception as error:
            yield index, expected(error)
        left = total - index - 1
        mean_s = (time.perf_counter() - begin) / (index + 1)
        most = min(workers or os.cpu_count() or 1, left)
        if most > 1 and mean_s * left > POOL_PAYS_S:
            work = partial(run_resolved, record=record)
            with noted_signals() as stop:
                rest = variants[index + 1 :]
                for place, outcome in work_apart(work, rest, most=most, stop=stop):
                    yield index + 1 + place, outcome
            return


def _of_all(variants: tuple[Resolved, ...], failed: dict[int, CollsimError]) -> CollsimError:
    """Return the error of a sweep in which every variant failed; what all say is said once."""
    if len({str(error) for error in failed.values()}) == 1:
        return failed[0]
    labels = variant_labels([variant.labels for variant in variants])
    first = max(failed.values(), key=lambda error: error.exit_code)
    return type(first)(
        [
            replace(problem, message=f"{problem.message} (with {labels[index]})")
            for index, error in sorted(failed.items())
            for problem in error.problems
        ]
    )


def _failures(scenarios: ScenarioSet, failed: dict[int, CollsimError]) -> tuple[Failure, ...]:
    labels = variant_labels([variant.labels for variant in scenarios.variants])
    refused = [
        Failure(variant="", message=str(problem), exit_code=ScenarioError.exit_code)
        for problem in scenarios.invalid
    ]
    return (
        *refused,
        *(
            Failure(
                variant=labels[index],
                message=str(error),
                exit_code=error.exit_code,
                detail=error.detail if isinstance(error, InternalError) else "",
            )
            for index, error in sorted(failed.items())
        ),
    )


def _merged(variants: tuple[Resolved, ...], done: dict[int, RunResult]) -> RunResult:
    labels = variant_labels([variant.labels for variant in variants])
    rows = [
        replace(row, variant=", ".join(part for part in (labels[index], row.variant) if part))
        for index in sorted(done)
        for row in done[index].rows
    ]
    steps = [
        replace(step, variant=labels[index]) for index in sorted(done) for step in done[index].steps
    ]
    training = [
        replace(step, variant=labels[index])
        for index in sorted(done)
        for step in done[index].training
    ]
    goodput = [
        replace(days, variant=labels[index])
        for index in sorted(done)
        for days in done[index].goodput
    ]
    order = sorted(done)
    named = [labels[index] for index in order]
    warnings = told_by_variant([done[index].warnings for index in order], named)
    if len(done) == len(variants):
        axes = [variants[index].labels for index in order]
        warnings = (*warnings, *idle_axes(axes, [done[index] for index in order]))
    first = done[min(done)]
    swept = " × ".join(dict.fromkeys(key for variant in variants for key, _ in variant.labels))
    return RunResult(
        title=f"{first.title.split(',')[0].split(' on ')[0]} by {swept}",
        rows=tuple(rows),
        steps=tuple(steps),
        training=tuple(training),
        goodput=tuple(goodput),
        provenance=first.provenance,
        warnings=warnings,
        notes=told_by_variant([done[index].notes for index in order], named),
    )


def variant_labels(labels: Sequence[Sequence[tuple[str, str]]]) -> list[str]:
    """Return short names of variants: their values, with the key's last word before numbers.

    Examples
    --------
    >>> variant_labels([(("node", "dgx-h100"), ("fabric.oversubscription", "2"))])
    ['dgx-h100, oversubscription 2']
    """
    return [", ".join(_short(key, value) for key, value in label) for label in labels]


def _short(key: str, value: str) -> str:
    words = re.sub(r"^\{?\s*kind[:=]\s*|[{}]", "", value).strip()
    if words[:1].isalpha() and words not in ("yes", "no", "true", "false"):
        return words
    return f"{re.split(r'[.]', key)[-1]} {words}"


def _with_warnings(result: RunResult, scenarios: ScenarioSet) -> RunResult:
    told = tuple(str(problem) for problem in scenarios.warnings)
    return replace(result, warnings=(*told, *result.warnings)) if told else result
