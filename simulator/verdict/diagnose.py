"""Which fault reproduces measured curves best.

Each hypothesis is simulated at the sizes of the check, first at a few of them; those that could
still be the cause are simulated at all.  Its weight is the evidence of `simulator.verdict.evidence`
times how common the fault is, times what the log itself says.  Health and a slowdown without a
known cause compete as well, so that a bad fit is not told as a cause.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from simulator.importers import MeasuredTable
from simulator.results.model import Row
from simulator.verdict.bands import half_width
from simulator.verdict.evidence import Curve, Fit, best_fit, log_evidence, unexplained
from simulator.verdict.fault import Context, Variant, context_of
from simulator.verdict.hypotheses import HYPOTHESES, Hypothesis
from simulator.verdict.predict import Clusters, PredictedRow
from simulator.verdict.setup import SetUp, call_words
from simulator.verdict.simulate import Answer, Asked, Faults

FloatArray = NDArray[np.float64]

__all__ = [
    "Case",
    "Diagnosis",
    "Explanation",
    "diagnose",
    "even",
    "measured_times",
    "most_sizes",
    "thin_sizes",
]

MOST_SIZES = 12
"""Sizes of a check."""
MOST_SIZES_LARGE = 8
"""Sizes of a check of `LARGE_RANKS` ranks and more."""
LARGE_RANKS = 64
MOST_SIZES_HUGE = 5
"""Sizes of a check of `HUGE_RANKS` ranks and more, of which each takes seconds."""
HUGE_RANKS = 512
SMALL_SHARE = 3
"""Of these at most so many below `SMALL_BYTES`, where faults of bandwidth do not show."""
SMALL_BYTES = 64 << 10
FIRST_SIZES, FIRST_SIZES_HUGE = 4, 2
"""Sizes at which every fault is simulated."""
LEAST_FULL, MOST_FULL = 3, 8
"""Faults that are simulated at all sizes: at least, and at most unless they are alike."""
HOPELESS = 8.0
"""A fault so far below the best in log weight after the first sizes is not looked at again."""

NEAR = 4.0
"""Places of a fault within this of its best one, in log weight, are looked at again."""
FIRST_SPREAD = 0.4
"""At first only the usual strength is simulated, and stands for stronger and weaker ones."""

HEALTHY_PRIOR = 20.0
"""Weight of a healthy machine before the data, relative to a common fault."""
OTHER_PRIOR = 3.0
"""Weight of a slowdown that no simulated fault describes."""
OTHER_SPREAD = 0.8
"""Its size: standard deviation of ln of the factor, one e-fold more or less."""
SAID = math.log(20.0)
"""Added to the log weight of a fault that the log itself names."""
SILENT = math.log(0.15)
"""Added where the library's messages are in the log and would name the fault, but do not."""

LEAST_OTHER = 0.1
"""Share that is kept for what no fault here describes: the list of faults is not complete, and the
curves are the model's."""
LEAST_WEIGHT = 0.05
"""Share of the weight from which on a cause is told."""
SLOWER = 0.08
"""A cause must make the machine slower by so much (root mean square of ln) to be one."""
ALIKE = 0.04
"""Curves nearer to one another than this, at their best strength, cannot be told apart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One table with its healthy prediction."""

    set_up: SetUp
    table: MeasuredTable
    rows: tuple[PredictedRow, ...]

    @property
    def healthy(self) -> dict[int, Row]:
        """The prediction by size."""
        return {row.size_bytes: row.predicted for row in self.rows}

    def curve(self, sizes_bytes: Sequence[int]) -> Curve:
        """Return the error of the healthy prediction at some sizes."""
        measured, healthy = measured_times(self.rows), self.healthy
        return Curve(
            octaves=np.log2(np.array(sizes_bytes, dtype=np.float64)),
            error=np.array([math.log(measured[s] / healthy[s].time_s) for s in sizes_bytes]),
            width=np.array([half_width(healthy[s]) for s in sizes_bytes]),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """A hypothesis with its weight."""

    hypothesis: Hypothesis
    weight: float
    """Share of the whole weight, those with the same curve included."""
    distance: float
    """Root mean square of ln(measured / predicted), at its best strength."""
    amplitude: float
    """The strength that fits best: exponent on the simulated slowdown."""
    said: tuple[str, ...]
    """What the log itself says about it."""
    alike: tuple[str, ...] = ()
    """Names of other hypotheses with the same curve, the likeliest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """All hypotheses that were tried, and those that explain."""

    healthy_distance: float
    healthy_weight: float
    """Share of the weight of a healthy machine that the model predicts badly."""
    other_weight: float
    """Share of the weight of a slowdown that no simulated fault describes."""
    explanations: tuple[Explanation, ...]
    """Likeliest first; empty when health or an unknown cause is likelier than any fault."""
    tried: tuple[tuple[str, float], ...]
    """(name, log weight over that of health) of every hypothesis that can be on this set-up,
    likeliest first."""
    refused: tuple[tuple[str, str], ...]
    """(name, reason) of hypotheses that could not be simulated."""


@dataclass(slots=True)
class _Tried:
    """A hypothesis while it is tried."""

    hypothesis: Hypothesis
    said: tuple[str, ...]
    shifts: list[FloatArray]
    log_weight: float
    amplitude: float
    nodes: frozenset[int]
    """Places whose evidence is near that of the best."""


def most_sizes(n_ranks: int) -> int:
    """Return how many sizes of a table are checked.

    Examples
    --------
    >>> most_sizes(8), most_sizes(128), most_sizes(1440)
    (12, 8, 5)
    """
    if n_ranks >= HUGE_RANKS:
        return MOST_SIZES_HUGE
    return MOST_SIZES_LARGE if n_ranks >= LARGE_RANKS else MOST_SIZES


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
    return even(small, n_small) + even(large, most - n_small)


def even(sizes: Sequence[int], count: int) -> list[int]:
    """Return so many of the sizes, evenly, with both ends."""
    if count <= 0 or not sizes:
        return []
    if len(sizes) <= count:
        return list(sizes)
    if count == 1:
        return [sizes[-1]]
    places = {round(k * (len(sizes) - 1) / (count - 1)) for k in range(count)}
    return [sizes[place] for place in sorted(places)]


def measured_times(rows: Sequence[PredictedRow]) -> dict[int, float]:
    """Return the geometric mean time of each size."""
    logs: dict[int, list[float]] = {}
    for row in rows:
        logs.setdefault(row.size_bytes, []).append(float(np.log(row.measured_s)))
    return {size: float(np.exp(np.mean(values))) for size, values in logs.items()}


def diagnose(
    cases: Sequence[Case],
    *,
    workers: int | None = None,
    clusters: Clusters | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> Diagnosis:
    """Simulate every fault that the set-up can have and weigh those that explain the rows.

    Parameters
    ----------
    cases
        Tables of one machine, in which a fault is the same; their rows thinned.
    workers
        Processes; None: one per core where that is faster, 1: this process only.
    clusters
        Clusters to use again.
    on_progress
        Called with (simulations done, in all).
    """
    sizes = [sorted(case.healthy) for case in cases]
    ranks = max(row.predicted.world_size for case in cases for row in case.rows)
    first = [even(s, FIRST_SIZES_HUGE if ranks >= HUGE_RANKS else FIRST_SIZES) for s in sizes]
    clusters = clusters or Clusters()
    contexts = [_context(case, clusters) for case in cases]
    priors = {name: entry.prior_on(contexts) for name, entry in HYPOTHESES.items()}
    faults_of = _variants(cases, contexts)
    usual = {name: [v for v in found if v.usual] for name, found in faults_of.items()}
    with Faults(cases, workers=workers, clusters=clusters, on_progress=on_progress) as faults:
        faults.expect(2 * len(usual))
        answers = _answers(faults, usual, first)
        tried = _weigh(cases, first, answers, priors, least_spread=FIRST_SPREAD)
        again = {
            entry.hypothesis.name: _near(entry, faults_of[entry.hypothesis.name])
            for entry in _promising(tried)
        }
        fuller = _answers(faults, again, sizes)
    refused = {
        name: answer
        for found in (answers, fuller)
        for name, members in found.items()
        for _, answer in members
        if isinstance(answer, str)
    }
    final = _weigh(cases, sizes, fuller, priors)
    return _conclude(cases, sizes, final, tried, list(refused.items()))


def _answers(
    faults: Faults, asked: Mapping[str, Sequence[Variant]], sizes: Sequence[Sequence[int]]
) -> dict[str, list[tuple[Variant, Answer]]]:
    """Return the answer to each variant of each fault; patches that faults share run once."""
    patches: dict[str, tuple[Asked, ...]] = {}

    def key_of(name: str, variant: Variant) -> str:
        return repr((HYPOTHESES[name].seen, variant.words))

    for name, variants in asked.items():
        for variant in variants:
            patches[key_of(name, variant)] = tuple(
                Asked(words=patch, sizes_bytes=tuple(entry), kept=not HYPOTHESES[name].seen)
                for patch, entry in zip(variant.words, sizes, strict=True)
            )
    found = faults.ask(patches)
    return {
        name: [(variant, found[key_of(name, variant)]) for variant in variants]
        for name, variants in asked.items()
    }


def _context(case: Case, clusters: Clusters) -> Context | None:
    resolved = case.set_up.resolve(call_words(case.table, sorted(case.healthy)))
    return context_of(
        resolved,
        tuple(case.healthy.values()),
        launch_s=clusters.of(resolved).profile.launch_s,
        nics_seen=case.set_up.nics_seen,
    )


def _variants(
    cases: Sequence[Case], contexts: Sequence[Context | None]
) -> dict[str, list[Variant]]:
    """Return places and strengths of the faults that can be on a set-up, by name."""
    found: dict[str, list[Variant]] = {}
    transports = [text for case in cases for text in case.set_up.transports]
    excluded = frozenset[str]().union(*(case.set_up.excluded for case in cases))
    for name, entry in HYPOTHESES.items():
        if name in excluded:
            continue
        if entry.denied and any(re.search(entry.denied, text) for text in transports):
            continue
        variants = entry.variants(contexts)
        if variants:
            found[name] = variants
    return found


def _weigh(
    cases: Sequence[Case],
    sizes: Sequence[Sequence[int]],
    answers: Mapping[str, Sequence[tuple[Variant, Answer]]],
    priors: Mapping[str, float],
    *,
    least_spread: float = 0.0,
) -> list[_Tried]:
    """Return hypotheses with their log weight over that of health, likeliest first.

    The evidence of a fault is the mean over its places and strengths.
    """
    curves = [case.curve(entry) for case, entry in zip(cases, sizes, strict=True)]
    base = _healthy(curves)
    evidence = tuple(dict.fromkeys(text for case in cases for text in case.set_up.evidence))
    spoken = any(case.set_up.transports for case in cases)
    found: list[_Tried] = []
    for name, members in answers.items():
        entry = HYPOTHESES[name]
        spread = max(entry.spread, least_spread) if entry.shares else entry.spread
        fits: list[tuple[Variant, list[FloatArray], Fit]] = []
        for variant, answer in members:
            if not isinstance(answer, str):
                shifts = [
                    np.array([math.log(times[s] / case.healthy[s].time_s) for s in part])
                    for case, part, times in zip(cases, sizes, answer, strict=True)
                ]
                fits.append((variant, shifts, best_fit(curves, shifts, spread)))
        if not fits:
            continue
        logs = [math.log(variant.weight) + fit.log_evidence for variant, _, fit in fits]
        _, shifts, fit = fits[int(np.argmax(logs))]
        said = tuple(text for text in evidence if entry.sign and re.search(entry.sign, text))
        said += tuple(
            dict.fromkeys(case.set_up.named[name] for case in cases if name in case.set_up.named)
        )
        weight = math.log(priors[name]) + float(np.logaddexp.reduce(logs))
        if said:
            weight += SAID
        elif spoken and entry.spoken:
            weight += SILENT
        near = [log > max(logs) - NEAR for log in logs]
        nodes = frozenset(fit[0].node for fit, kept in zip(fits, near, strict=True) if kept)
        found.append(_Tried(entry, said, shifts, weight - base, fit.amplitude, nodes))
    return sorted(found, key=lambda entry: -entry.log_weight)


def _near(entry: _Tried, variants: Sequence[Variant]) -> list[Variant]:
    """Return the variants at places that may be the fault's."""
    return [variant for variant in variants if variant.node in entry.nodes]


def _healthy(curves: Sequence[Curve]) -> float:
    return math.log(HEALTHY_PRIOR) + sum(
        log_evidence(curve.error, curve.covariance()) for curve in curves
    )


def _promising(tried: Sequence[_Tried]) -> list[_Tried]:
    """Return what is worth all sizes: near the best one, or alike one that is."""
    if not tried:
        return []
    best = tried[0].log_weight
    kept: list[_Tried] = []
    for place, entry in enumerate(tried):
        twin = any(_alike(entry, other) for other in kept)
        if (
            twin
            or place < LEAST_FULL
            or (len(kept) < MOST_FULL and entry.log_weight > best - HOPELESS)
        ):
            kept.append(entry)
    return kept


def _conclude(
    cases: Sequence[Case],
    sizes: Sequence[Sequence[int]],
    final: Sequence[_Tried],
    first: Sequence[_Tried],
    refused: list[tuple[str, str]],
) -> Diagnosis:
    curves = [case.curve(entry) for case, entry in zip(cases, sizes, strict=True)]
    base = _healthy(curves)
    own = any(row.calibrated for case in cases for row in case.rows)
    other = math.log(OTHER_PRIOR) + unexplained(curves, OTHER_SPREAD, uniform=own) - base
    logs = np.array([0.0, other, *(entry.log_weight for entry in final)])
    shares = np.exp(logs - logs.max())
    shares /= shares.sum()
    shares = _humble(shares)
    done = {entry.hypothesis.name for entry in final}
    rest = [entry for entry in first if entry.hypothesis.name not in done]
    return Diagnosis(
        healthy_distance=_distance(curves, None),
        healthy_weight=float(shares[0]),
        other_weight=float(shares[1]),
        explanations=tuple(_explanations(curves, final, shares[2:])),
        tried=tuple((entry.hypothesis.name, entry.log_weight) for entry in (*final, *rest)),
        refused=tuple(refused),
    )


def _humble(shares: FloatArray) -> FloatArray:
    """Return shares of (health, an unknown cause, known faults) with enough for the unknown.

    Examples
    --------
    >>> _humble(np.array([0.0, 0.0, 1.0])).round(2).tolist()
    [0.0, 0.1, 0.9]
    """
    rest = float(shares[:2].sum())
    if rest >= LEAST_OTHER:
        return shares
    known = shares[2:] * (1.0 - LEAST_OTHER) / (1.0 - rest)
    return np.concatenate([shares[:1], [LEAST_OTHER - shares[0]], known])


def _explanations(
    curves: Sequence[Curve], final: Sequence[_Tried], shares: FloatArray
) -> list[Explanation]:
    """Return the causes that are told, equal curves as one."""
    shown: list[tuple[_Tried, Explanation]] = []
    for entry, share in zip(final, shares, strict=True):
        if _size(entry) < SLOWER:
            continue
        for place, (other, told) in enumerate(shown):
            if _alike(entry, other):
                shown[place] = (
                    other,
                    replace(
                        told,
                        weight=told.weight + float(share),
                        alike=(*told.alike, entry.hypothesis.name),
                        said=tuple(dict.fromkeys((*told.said, *entry.said))),
                    ),
                )
                break
        else:
            told = Explanation(
                hypothesis=entry.hypothesis,
                weight=float(share),
                distance=_distance(curves, entry),
                amplitude=entry.amplitude,
                said=entry.said,
            )
            shown.append((entry, told))
    causes = [found for _, found in shown if found.weight >= LEAST_WEIGHT]
    return sorted(causes, key=lambda found: -found.weight)


def _distance(curves: Sequence[Curve], entry: _Tried | None) -> float:
    left = [curve.error for curve in curves]
    if entry is not None:
        left = [
            error - entry.amplitude * shift for error, shift in zip(left, entry.shifts, strict=True)
        ]
    return float(np.sqrt(np.mean(np.concatenate(left) ** 2)))


def _size(entry: _Tried) -> float:
    """Return how much slower a hypothesis is than health: root mean square of the slow side."""
    shift = np.maximum(0.0, np.concatenate(entry.shifts)) * entry.amplitude
    return float(np.sqrt(np.mean(shift**2)))


def _alike(a: _Tried, b: _Tried) -> bool:
    apart = np.concatenate(a.shifts) * a.amplitude - np.concatenate(b.shifts) * b.amplitude
    return float(np.sqrt(np.mean(apart**2))) < ALIKE
