"""Which fault reproduces a measured curve best.

Each hypothesis is simulated at the same sizes.  Its distance from the measurement is the root mean
square of ln(measured / predicted), after one floor common to all sizes: launch floors of healthy
machines differ by tens of microseconds, so a constant is added to the prediction before the
comparison, within bounds.  A hypothesis is told only when it is clearly nearer than the healthy
machine.
"""

from __future__ import annotations

import multiprocessing
import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace

import numpy as np

from simulator.base.errors import CollsimError, RoutingError
from simulator.importers import MeasuredTable
from simulator.results.model import Row
from simulator.verdict.hypotheses import HYPOTHESES, Context, Hypothesis, context_of
from simulator.verdict.predict import PredictedRow, predict_sizes
from simulator.verdict.setup import SetUp, call_words

__all__ = [
    "MOST_SIZES",
    "MOST_SIZES_LARGE",
    "POOL_RANKS",
    "Diagnosis",
    "Explanation",
    "diagnose",
    "distance",
    "measured_times",
    "thin_sizes",
]

MOST_SIZES = 12
"""Sizes of a check."""
MOST_SIZES_LARGE = 8
"""Sizes of a check of `POOL_RANKS` ranks and more."""
POOL_RANKS = 64
"""From here on the faults are simulated by several processes."""
SMALL_SHARE = 3
"""Of these at most so many below `SMALL_BYTES`, where faults of bandwidth do not show."""
SMALL_BYTES = 64 << 10

FLOOR_MOST_S = 30e-6
"""Healthy launch floors of one kind of node range over 14 to 42 µs."""
FLOOR_LEAST_SHARE = -0.5
"""A faster floor takes at most half of the smallest prediction."""
FLOOR_STEPS = 61

CLEARLY = 0.7
"""A hypothesis must bring the distance below this share of the healthy machine's …"""
CLEARLY_LESS = 0.08
"""… and below it by at least so much (8 %)."""
EXPLAINS = 0.5
"""A distance above this (a factor of 1.65, root mean square) explains nothing."""
ALIKE = 0.02
"""Curves nearer to one another than this cannot be told apart."""
SAID = 0.6
"""Factor on the distance where the log itself names the fault."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """A hypothesis that fits."""

    hypothesis: Hypothesis
    distance: float
    floor_s: float
    """Added to every predicted time."""
    said: tuple[str, ...]
    """What the log itself says about it."""
    predicted: Mapping[int, Row]
    alike: tuple[str, ...] = ()
    """Names of other hypotheses with the same curve."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """All hypotheses that were tried, and those that explain."""

    healthy_distance: float
    explanations: tuple[Explanation, ...]
    """Best first; empty when no fault fits clearly better than health."""
    tried: tuple[tuple[str, float], ...]
    """(name, distance) of every hypothesis that can be on this set-up, best first."""
    refused: tuple[tuple[str, str], ...]
    """(name, reason) of hypotheses that could not be simulated."""


def thin_sizes(sizes_bytes: Sequence[int], most: int = MOST_SIZES) -> list[int]:
    """Return at most *most* of the sizes: few small ones, the others evenly up to the largest.

    Examples
    --------
    >>> thin_sizes([2**e for e in range(3, 34)], 6)
    [8, 512, 32768, 65536, 16777216, 8589934592]
    """
    ordered = sorted(set(sizes_bytes))
    if len(ordered) <= most:
        return ordered
    small = [size for size in ordered if size < SMALL_BYTES]
    large = [size for size in ordered if size >= SMALL_BYTES]
    n_small = min(len(small), max(SMALL_SHARE, most - len(large))) if large else most
    return _even(small, n_small) + _even(large, most - n_small)


def _even(sizes: Sequence[int], count: int) -> list[int]:
    if count <= 0 or not sizes:
        return []
    if len(sizes) <= count:
        return list(sizes)
    if count == 1:
        return [sizes[-1]]
    places = {round(k * (len(sizes) - 1) / (count - 1)) for k in range(count)}
    return [sizes[place] for place in sorted(places)]


def distance(measured_s: Mapping[int, float], predicted: Mapping[int, Row]) -> tuple[float, float]:
    """Return (root mean square of ln(measured / (predicted + floor)), best floor in seconds).

    Examples
    --------
    >>> row = Row(collective="all_reduce", algorithm="ring", protocol="Simple", n_channels=1,
    ...     world_size=2, n_nodes=1, size_bytes=8, count=1, time_s=1e-3, algbw_Bps=1.0,
    ...     busbw_Bps=1.0)
    >>> round(distance({8: 1e-3}, {8: row})[0], 6)
    0.0
    """
    sizes = sorted(measured_s)
    measured = np.array([measured_s[size] for size in sizes])
    times = np.array([predicted[size].time_s for size in sizes])
    least = FLOOR_LEAST_SHARE * float(times.min())
    floors = np.append(np.linspace(least, FLOOR_MOST_S, FLOOR_STEPS), 0.0)
    logs = np.log(measured[None, :] / (times[None, :] + floors[:, None]))
    rms = np.sqrt(np.mean(logs**2, axis=1))
    best = int(np.argmin(rms))
    return float(rms[best]), float(floors[best])


def diagnose(
    set_up: SetUp,
    table: MeasuredTable,
    rows: Sequence[PredictedRow],
    *,
    workers: int | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> Diagnosis:
    """Simulate every fault that the set-up can have and rank those that explain the rows.

    Parameters
    ----------
    set_up
        The healthy machine.
    table
        The measured table.
    rows
        Its rows with the healthy prediction, thinned.
    workers
        Processes for large clusters; None: one per core, 1: this process only.
    on_progress
        Called with (hypotheses done, in all).
    """
    measured_s = measured_times(rows)
    healthy = {row.size_bytes: row.predicted for row in rows}
    base, _ = distance(measured_s, healthy)
    sizes = sorted(healthy)
    context = context_of(set_up.resolve(call_words(table, sizes)), tuple(healthy.values()))
    tried: list[Explanation] = []
    refused: list[tuple[str, str]] = []
    patches = {} if context is None else _patches(set_up, context)

    def take(name: str, found: Explanation | str) -> None:
        if isinstance(found, str):
            refused.append((name, found))
        else:
            tried.append(found)
        if on_progress is not None:
            on_progress(len(tried) + len(refused), len(patches))

    inputs = (set_up, table, measured_s, healthy)
    count = min(workers or os.cpu_count() or 1, len(patches))
    if count > 1 and (context is not None and context.n_gpus >= POOL_RANKS):
        for name, found in _pooled(patches, inputs, count):
            take(name, found)
    else:
        for name, words in patches.items():
            take(name, _try(name, words, *inputs))
    tried.sort(key=lambda found: found.distance)
    return Diagnosis(
        healthy_distance=base,
        explanations=tuple(_clear(tried, base, healthy)),
        tried=tuple((found.hypothesis.name, found.distance) for found in tried),
        refused=tuple(refused),
    )


def measured_times(rows: Sequence[PredictedRow]) -> dict[int, float]:
    """Return the geometric mean time of each size."""
    logs: dict[int, list[float]] = {}
    for row in rows:
        logs.setdefault(row.size_bytes, []).append(float(np.log(row.measured_s)))
    return {size: float(np.exp(np.mean(values))) for size, values in logs.items()}


def _patches(set_up: SetUp, context: Context) -> dict[str, Mapping[str, str]]:
    """Return the patches of the faults that can be on a set-up, by name."""
    found: dict[str, Mapping[str, str]] = {}
    for name, entry in HYPOTHESES.items():
        if entry.denied and any(re.search(entry.denied, text) for text in set_up.transports):
            continue
        words = entry.words(context)
        if words is not None:
            found[name] = words
    return found


def _pooled(
    patches: Mapping[str, Mapping[str, str]],
    inputs: tuple[SetUp, MeasuredTable, Mapping[int, float], Mapping[int, Row]],
    count: int,
) -> Iterator[tuple[str, Explanation | str]]:
    """Generate (name, what was found) from several processes, in order of the names."""
    # Spawned or forked from one thread, as a sweep does: a held lock must not be copied.
    methods = multiprocessing.get_all_start_methods()
    alone = threading.active_count() == 1 and "fork" in methods
    start = multiprocessing.get_context("fork" if alone else "spawn")
    with ProcessPoolExecutor(max_workers=count, mp_context=start) as pool:
        waiting = {name: pool.submit(_try, name, words, *inputs) for name, words in patches.items()}
        for name, future in waiting.items():
            yield name, future.result()


def _try(
    name: str,
    words: Mapping[str, str],
    set_up: SetUp,
    table: MeasuredTable,
    measured_s: Mapping[int, float],
    healthy: Mapping[int, Row],
) -> Explanation | str:
    """Return a hypothesis with its distance, or why it cannot be simulated."""
    entry = HYPOTHESES[name]
    choices = None if entry.seen else healthy
    sizes = sorted(healthy)
    try:
        try:
            predicted = predict_sizes(set_up, table, sizes, words=words, choices=choices)
        except RoutingError:
            # A path that NVLS or a tree needs is gone: rings go through what is left.
            words = {"collective.algorithm": "ring", **words}
            predicted = predict_sizes(set_up, table, sizes, words=words)
    except CollsimError as error:
        return str(error.problems[0].message)
    found, floor_s = distance(measured_s, predicted)
    said = tuple(text for text in set_up.evidence if entry.sign and re.search(entry.sign, text))
    return Explanation(
        hypothesis=entry,
        distance=found * (SAID if said else 1.0),
        floor_s=floor_s,
        said=said,
        predicted=predicted,
    )


def _clear(
    tried: Sequence[Explanation], base: float, healthy: Mapping[int, Row]
) -> list[Explanation]:
    """Return the hypotheses that explain clearly better than health, equal curves as one."""
    shown: list[Explanation] = []
    for found in tried:
        nearer = found.distance < CLEARLY * base and found.distance < base - CLEARLY_LESS
        if not nearer or found.distance > EXPLAINS or _alike(found.predicted, healthy):
            continue
        for place, other in enumerate(shown):
            if _alike(found.predicted, other.predicted):
                shown[place] = replace(other, alike=(*other.alike, found.hypothesis.name))
                break
        else:
            shown.append(found)
    return shown


def _alike(a: Mapping[int, Row], b: Mapping[int, Row]) -> bool:
    logs = [np.log(a[size].time_s / b[size].time_s) for size in a]
    return float(np.sqrt(np.mean(np.square(logs)))) < ALIKE
