"""Run every variant of a scenario: one after the other, or in a process pool when it pays."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from simulator.compose.run import run_resolved
from simulator.compose.variants import idle_axes, told_by_variant
from simulator.results.model import RunResult
from simulator.scenario.resolve import ScenarioSet
from simulator.scenario.resolved import Resolved

if TYPE_CHECKING:
    from multiprocessing.context import BaseContext

__all__ = ["run_set", "variant_labels"]

OnProgress = Callable[[int, int], None]

POOL_PAYS_S = 2.0
"""Processes are started when the remaining variants would take longer than this."""
GRACE_S = 1.0
"""After Ctrl-C, variants that are under way may still end so long."""


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
        none.  After Ctrl-C: what was done, with a warning.
    """
    variants = scenarios.variants
    if len(variants) == 1:
        result = run_resolved(variants[0], record=record, on_progress=on_progress)
        return _with_warnings(result, scenarios)
    done: dict[int, RunResult] = {}
    interrupted = False
    try:
        _run_all(variants, done, record, workers, on_progress)
    except KeyboardInterrupt:
        interrupted = True
        if not done:
            raise
    merged = _merged(variants, done)
    if interrupted:
        text = f"interrupted: {len(done)} of {len(variants)} variants are done"
        merged = replace(merged, warnings=(text, *merged.warnings))
    return _with_warnings(merged, scenarios)


def _run_all(
    variants: tuple[Resolved, ...],
    done: dict[int, RunResult],
    record: bool | None,
    workers: int | None,
    on_progress: OnProgress | None,
) -> None:
    total = len(variants)
    begin = time.perf_counter()
    for index, variant in enumerate(variants):
        done[index] = run_resolved(variant, record=record)
        if on_progress is not None:
            on_progress(len(done), total)
        mean_s = (time.perf_counter() - begin) / len(done)
        count = min(workers or os.cpu_count() or 1, total - len(done))
        if count > 1 and mean_s * (total - len(done)) > POOL_PAYS_S:
            _run_pool(variants, done, record, count, on_progress)
            return


def _run_pool(
    variants: tuple[Resolved, ...],
    done: dict[int, RunResult],
    record: bool | None,
    count: int,
    on_progress: OnProgress | None,
) -> None:
    # Imported here: most runs have one variant, and this takes a tenth of their start-up.
    from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait

    pool = ProcessPoolExecutor(
        max_workers=count, mp_context=_context(), initializer=_leave_interrupts_to_the_parent
    )
    with _interrupts() as interrupted:
        waiting: dict[Future[RunResult], int] = {
            pool.submit(run_resolved, variant, record=record): index
            for index, variant in enumerate(variants)
            if index not in done
        }
        try:
            while waiting and not interrupted.is_set():
                finished, _ = wait(waiting, timeout=0.1, return_when=FIRST_COMPLETED)
                for future in finished:
                    done[waiting.pop(future)] = future.result()
                    if on_progress is not None:
                        on_progress(len(done), len(variants))
        finally:
            workers = list((pool._processes or {}).values())
            pool.shutdown(wait=False, cancel_futures=True)
            if waiting:
                # A worker that is stopped while it hands over a result leaves half of it in the
                # pipe, and whoever reads there waits for ever: let those that are nearly done end.
                wait([future for future in waiting if not future.cancelled()], timeout=GRACE_S)
                for worker in workers:
                    worker.terminate()
    if interrupted.is_set():
        raise KeyboardInterrupt


def _leave_interrupts_to_the_parent() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)


@contextmanager
def _interrupts() -> Iterator[threading.Event]:
    """Note Ctrl-C in an event: raised inside a lock of the pool it would leave the lock taken."""
    seen = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield seen
        return
    before = signal.signal(signal.SIGINT, lambda _number, _frame: seen.set())
    try:
        yield seen
    finally:
        signal.signal(signal.SIGINT, before)


def _context() -> BaseContext:
    """Return how processes are started: by fork only where no other thread could hold a lock."""
    import multiprocessing

    methods = multiprocessing.get_all_start_methods()
    alone = threading.active_count() == 1
    return multiprocessing.get_context("fork" if alone and "fork" in methods else "spawn")


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
