"""Simulate faults, in several processes where that is faster."""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from simulator.base.errors import CollsimError, RoutingError
from simulator.verdict.fault import Words
from simulator.verdict.predict import Clusters, predict_sizes
from simulator.verdict.setup import call_words

if TYPE_CHECKING:
    from types import TracebackType

    from simulator.verdict.diagnose import Case

__all__ = ["Answer", "Asked", "Faults"]

POOL_S = 0.4
"""One fault is simulated here; where the others would take longer than this, a pool takes them."""

Answer = tuple[Mapping[int, float], ...] | str
"""Seconds by size for each table, or why the fault cannot be simulated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What is asked of one table: a patch, None for a table that the fault cannot touch."""

    words: Words | None
    sizes_bytes: tuple[int, ...]
    kept: bool
    """The healthy choice of algorithm is kept: the library does not know of the fault."""


class Faults:
    """Simulates faults on tables; a context manager, since it may hold processes."""

    def __init__(
        self,
        cases: Sequence[Case],
        *,
        workers: int | None = None,
        clusters: Clusters | None = None,
        on_progress: Callable[[int, int], None] | None = None,
    ) -> None:
        self._cases, self._clusters = tuple(cases), clusters or Clusters()
        self._workers = workers or len(_usable_cores())
        self._on_progress = on_progress
        self._pool: ProcessPoolExecutor | None = None
        self._done = self._total = 0

    def __enter__(self) -> Faults:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
            _inherited.clear()

    def expect(self, total: int) -> None:
        """Say how many answers will be asked for."""
        self._total = total

    def ask(self, asked: Mapping[str, tuple[Asked, ...]]) -> dict[str, Answer]:
        """Return the answer of every patch by its name, in the order asked."""
        found: dict[str, Answer] = {}
        for name, answer in self._answers(asked):
            found[name] = answer
            self._done += 1
            if self._on_progress is not None:
                self._on_progress(self._done, max(self._total, self._done))
        return found

    def _answers(self, asked: Mapping[str, tuple[Asked, ...]]) -> Iterator[tuple[str, Answer]]:
        waiting = dict(asked)
        while self._pool is None and waiting:
            name, parts = next(iter(waiting.items()))
            start = time.perf_counter()
            yield name, _answer(parts, self._cases, self._clusters)
            del waiting[name]
            left_s = (time.perf_counter() - start) * len(waiting)
            if self._workers > 1 and len(waiting) > 1 and left_s > POOL_S:
                self._pool = self._processes()
        if self._pool is not None:
            futures = {
                name: self._pool.submit(_answer_there, parts, self._cases)
                for name, parts in waiting.items()
            }
            for name, future in futures.items():
                yield name, future.result()

    def _processes(self) -> ProcessPoolExecutor:
        # Forked from one thread only, as a sweep does: a held lock must not be copied.
        methods = multiprocessing.get_all_start_methods()
        alone = threading.active_count() == 1 and "fork" in methods
        start = multiprocessing.get_context("fork" if alone else "spawn")
        _inherited.append(self._clusters)
        return ProcessPoolExecutor(max_workers=self._workers, mp_context=start)


_inherited: list[Clusters] = []
"""Forked processes find the clusters here that were built for the prediction; spawned ones none."""


def _usable_cores() -> set[int]:
    if hasattr(os, "sched_getaffinity"):
        return set(os.sched_getaffinity(0))
    return set(range(os.cpu_count() or 1))


def _answer_there(asked: tuple[Asked, ...], cases: tuple[Case, ...]) -> Answer:
    """Return `_answer` in a process of the pool, which keeps its clusters from call to call."""
    if not _inherited:
        _inherited.append(Clusters())
    return _answer(asked, cases, _inherited[-1])


def _answer(asked: tuple[Asked, ...], cases: tuple[Case, ...], clusters: Clusters) -> Answer:
    """Return the times of a fault on every table, or why it cannot be simulated."""
    try:
        return tuple(_times(case, part, clusters) for case, part in zip(cases, asked, strict=True))
    except CollsimError as error:
        return str(error.problems[0].message)


def _times(case: Case, asked: Asked, clusters: Clusters) -> Mapping[int, float]:
    healthy = case.healthy
    if asked.words is None:
        return {size: healthy[size].time_s for size in asked.sizes_bytes}
    choices = healthy if asked.kept else None
    words, sizes = asked.words, asked.sizes_bytes
    usual = {size: row.time_s for size, row in healthy.items()}
    scale = dict.fromkeys(sizes, 1.0)
    resolved = case.set_up.resolve(call_words(case.table, sizes))
    if clusters.of(resolved).calibrated is not None:
        # The machine's discrepancy is that of the healthy ways, for every fault alike.
        clusters = clusters.plain
        bare = predict_sizes(case.set_up, case.table, sizes, choices=healthy, clusters=clusters)
        scale = {size: usual[size] / row.time_s for size, row in bare.items()}
    try:
        found = predict_sizes(
            case.set_up, case.table, sizes, words=words, choices=choices, clusters=clusters
        )
    except RoutingError:
        # A path that NVLS or a tree needs is gone: rings go through what is left.
        words = {"collective.algorithm": "ring", **words}
        found = predict_sizes(case.set_up, case.table, sizes, words=words, clusters=clusters)
    return {size: row.time_s * scale[size] for size, row in found.items()}
