"""The verdict on a table: healthy, suspicious, sick or not judged, by named rules.

Each row has a slowness: ln(measured / predicted) over the half width of the prediction's 80 %
band, so that 1 is the band's slow end.  For each range of sizes and kind of machine the median
slowness is compared with two limits, which `validation.alarms` derives from the healthy published
machines: the plateau has narrow limits and decides.  Within limits that are too wide, or that rest
on too few machines of the kind, nothing is judged.

A machine much faster than its links allow is another machine than the set-up: suspicious.  Two
rules need no prediction: bandwidth must not fall as messages grow beyond 16 MiB, and a wrong
result is sick whatever the speed.
"""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from importlib import resources
from typing import Any

from simulator.base.units import format_size
from simulator.verdict.bands import (
    JUDGED,
    LARGE_BYTES,
    half_width,
    judged_range,
    judged_sizes,
)
from simulator.verdict.kinds import kind_of, words_of
from simulator.verdict.predict import PredictedRow

__all__ = [
    "Finding",
    "Health",
    "Limits",
    "fall_of",
    "judge",
    "limits",
    "limits_of",
    "overall",
    "row_word",
    "rule_of",
    "together",
    "unjudged",
]


class Health(IntEnum):
    """The verdict; the value is the exit code of ``collsim check``."""

    HEALTHY = 0
    NOT_JUDGED = 1
    """Not slower than healthy machines may be, which says too little to call it healthy."""
    SUSPICIOUS = 3
    SICK = 4

    @property
    def words(self) -> str:
        """The verdict in words."""
        return self.name.lower().replace("_", " ")

    @property
    def bad(self) -> bool:
        """Whether something is to be looked for."""
        return self >= Health.SUSPICIOUS


TOO_FAST = 1.75
"""Above this share of the predicted bandwidth the set-up is not the machine: of the healthy
published tables none reaches it at 16 MiB and more."""
LEAST_MACHINES = 2
"""Published machines of a kind, without which nothing within its limits is called healthy."""
MOST_FACTOR = 4.0
"""Nor is it where so many times the predicted time would be within the limits.  By judgement."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Two limits of one rule."""

    suspicious: float
    sick: float
    kind: str = ""
    """Of machines, see `simulator.verdict.kinds`; empty: all."""
    machines: int = LEAST_MACHINES
    """Published ones of that kind that the limits rest on."""

    def of(self, slowness: float, width: float = 0.0) -> Health:
        """Return the verdict on a slowness.

        Parameters
        ----------
        slowness
            In half widths of the prediction's band.
        width
            That half width, in ln of the time.
        """
        if slowness > self.sick:
            return Health.SICK
        if self.machines < LEAST_MACHINES:
            return Health.NOT_JUDGED
        if slowness > self.suspicious:
            return Health.SUSPICIOUS
        return Health.NOT_JUDGED if self.factor(width) > MOST_FACTOR else Health.HEALTHY

    @property
    def least(self) -> float:
        """The slowness from which on a machine is not left as it is."""
        return self.suspicious if self.machines >= LEAST_MACHINES else self.sick

    def factor(self, width: float) -> float:
        """Return how many times the predicted time is within the limits."""
        return math.exp(self.suspicious * width)


def rule_of(rules: Mapping[str, Limits], name: str, row: PredictedRow) -> Limits:
    """Return the limits of a range of sizes for a table that has such a row."""
    kinds = kind_of(row.way, row.predicted.collective)
    return next(rules[key] for kind in kinds if (key := f"{name} {kind}") in rules)


@functools.cache
def limits() -> Mapping[str, Limits]:
    """Return the limits by range of sizes and kind of machine, and those of ``falls``."""
    import yaml

    text = (resources.files("simulator.verdict") / "limits.yaml").read_text("utf-8")
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return limits_of(yaml.load(text, Loader=loader))


def limits_of(document: Mapping[str, Any]) -> dict[str, Limits]:
    """Return the limits that a document holds."""
    found = {
        f"{name} {kind}": Limits(
            suspicious=float(entry["suspicious"]),
            sick=float(entry["sick"]),
            kind=kind,
            machines=int(entry["machines"]),
        )
        for name, members in document["ranges"].items()
        for kind, entry in members.items()
    }
    falls = document["falls"]
    return {
        **found,
        "falls": Limits(suspicious=float(falls["suspicious"]), sick=float(falls["sick"])),
    }


def unjudged(finding: Finding) -> Finding:
    """Return a finding that rests on a prediction as not judged, where that was of a guess."""
    if finding.rule is None:
        return finding
    words = f"{100 * finding.reached:.0f} % of the bandwidth predicted for ports that are assumed"
    return replace(finding, health=Health.NOT_JUDGED, words=words)


def overall(findings: Sequence[Finding]) -> Health:
    """Return the verdict of a table: the worst one; healthy only where something large is.

    Sizes below 1 MiB tell the time to start, not whether a machine is healthy.
    """
    worst = max((finding.health for finding in findings), default=Health.NOT_JUDGED)
    if worst.bad:
        return worst
    sound = any(f.health is Health.HEALTHY and f.name in JUDGED[1:] for f in findings)
    return Health.HEALTHY if sound else Health.NOT_JUDGED


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The verdict on one range of sizes, or by one rule."""

    name: str
    health: Health
    reached: float
    """Median of measured / predicted bandwidth."""
    slowness: float
    """Median of the rows' slowness."""
    n_rows: int
    words: str
    rule: Limits | None = None
    """The limits; None where a rule has none in slowness."""

    @property
    def fast(self) -> bool:
        """True where the machine is faster than expected."""
        return self.slowness < -1.0


def judge(
    rows: Sequence[PredictedRow],
    *,
    measured_s: Mapping[int, float] | None = None,
    rules: Mapping[str, Limits] | None = None,
) -> tuple[Health, list[Finding]]:
    """Return the verdict and the findings behind it, one a range that has rows.

    Parameters
    ----------
    rows
        With their predictions.
    measured_s
        Times of all sizes, also of those that were not predicted; None: those of the rows.
    rules
        Other limits than the shipped ones.

    Examples
    --------
    >>> judge([])
    (<Health.NOT_JUDGED: 1>, [])
    """
    found = limits() if rules is None else rules
    findings: list[Finding] = []
    for name, sizes in sorted(
        judged_sizes(row.size_bytes for row in rows).items(), key=lambda item: JUDGED.index(item[0])
    ):
        members = [row for row in rows if row.size_bytes in sizes]
        rule = rule_of(found, name, members[0])
        findings.append(_finding(name, members, rule))
    times = {row.size_bytes: row.measured_s for row in rows} if measured_s is None else measured_s
    findings += _falls(times, found["falls"])
    wrong = [row for row in rows if row.wrong]
    if wrong:
        findings.append(
            Finding(
                name="results",
                health=Health.SICK,
                reached=0.0,
                slowness=0.0,
                n_rows=len(wrong),
                words=f"wrong results in {len(wrong)} rows, first in line {wrong[0].line}",
            )
        )
    return overall(findings), findings


def together(judged: Sequence[tuple[Health, Sequence[Finding]]]) -> Health:
    """Return the verdict on several tables of one machine.

    The mean slowness of each range, in units of each table's limit, decides; one table that is
    worse alone counts one step less, since of many tables some are predicted badly.  Wrong results,
    falls and sizes that are too fast count as they are.
    """
    if len(judged) == 1:
        return judged[0][0]
    health = Health.HEALTHY
    found = [finding for _, findings in judged for finding in findings]
    for name in JUDGED:
        ruled = [(f.slowness, f.rule) for f in found if f.name == name and f.rule is not None]
        for verdict in (Health.SUSPICIOUS, Health.SICK):
            shares = [
                slowness / (rule.sick if verdict is Health.SICK else rule.least)
                for slowness, rule in ruled
            ]
            if shares and statistics.fmean(shares) > 1.0:
                health = max(health, verdict)
    certain = [f.health for f in found if f.rule is None or f.fast]
    alone = [entry for entry, _ in judged]
    lower = Health.SUSPICIOUS if Health.SICK in alone else Health.HEALTHY
    worst = max(health, lower, *certain, Health.HEALTHY)
    if worst.bad:
        return worst
    return Health.HEALTHY if Health.HEALTHY in alone else Health.NOT_JUDGED


def row_word(row: PredictedRow) -> str:
    """Return the verdict on one size in a word: ``slow`` is outside the 80 % band."""
    if row.wrong:
        return "wrong"
    if row.slowness < -1.0:
        return "fast"
    if row.slowness <= 1.0:
        return "ok"
    name = judged_range(row.size_bytes)
    health = rule_of(limits(), name, row).of(row.slowness)
    return health.words if health.bad else "slow"


def fall_of(measured_s: Mapping[int, float]) -> tuple[float, int, int] | None:
    """Return the greatest fall of bandwidth among large sizes.

    Returns
    -------
    tuple or None
        (bandwidth left, as a share of that at a smaller size; the larger size; the smaller size);
        None with less than two large sizes.

    Examples
    --------
    >>> mib = 1 << 20
    >>> fall_of({16 * mib: 1e-3, 32 * mib: 2e-3, 64 * mib: 8e-3})
    (0.5, 67108864, 16777216)
    """
    sizes = sorted(size for size in measured_s if size >= LARGE_BYTES)
    worst: tuple[float, int, int] | None = None
    best = sizes[0] if sizes else 0
    for size in sizes[1:]:
        share = (size / measured_s[size]) / (best / measured_s[best])
        if worst is None or share < worst[0]:
            worst = (share, size, best)
        if share > 1.0:
            best = size
    return worst


def _falls(measured_s: Mapping[int, float], rule: Limits) -> list[Finding]:
    fall = fall_of(measured_s)
    if fall is None or fall[0] >= rule.suspicious:
        return []
    share, size, before = fall
    return [
        Finding(
            name="falls",
            health=Health.SICK if share < rule.sick else Health.SUSPICIOUS,
            reached=share,
            slowness=0.0,
            n_rows=1,
            words=f"{format_size(size)} has {100 * share:.0f} % of the bandwidth of "
            f"{format_size(before)}: unsteady or congested",
        )
    ]


def _published(rule: Limits) -> str:
    count = rule.machines
    machines = f"{count or 'no'} published machine{'' if count == 1 else 's'}"
    return f"{machines} ({words_of(rule.kind)})"


def _finding(name: str, rows: Sequence[PredictedRow], rule: Limits) -> Finding:
    reached = statistics.median(row.ratio for row in rows)
    slowness = statistics.median(row.slowness for row in rows)
    own = sum(row.calibrated for row in rows) * 2 > len(rows)
    width = statistics.median(half_width(row.predicted) for row in rows)
    # What published machines say of a kind does not matter to a machine that is its own measure.
    health = (replace(rule, machines=LEAST_MACHINES) if own else rule).of(slowness, width)
    words = f"{100 * reached:.0f} % of the predicted bandwidth"
    if own and slowness > 1.0:
        words += (
            f"; {slowness:.1f} times as far off as the calibration's 80 % band reaches"
            if health.bad
            else ": slow, below the calibration's 80 % band"
        )
    elif health.bad:
        words += f": slower than {_published(rule)} {'is' if rule.machines == 1 else 'are'}"
    elif reached > TOO_FAST and slowness < -1.0:
        if name in JUDGED[2:]:
            health = Health.SUSPICIOUS
            words += ": faster than this set-up allows, so it is probably not the machine's"
        else:
            health = Health.NOT_JUDGED
            words += ": faster than predicted; is the set-up right?"
    elif health is Health.NOT_JUDGED:
        words += f": {_published(rule)} say too little"
        if rule.machines >= LEAST_MACHINES:
            words += f"; {rule.factor(width):.0f} times the predicted time would be within limits"
    elif slowness > 1.0:
        words += f": slow, but so are some of {_published(rule)}"
    return Finding(
        name=name,
        health=health,
        reached=reached,
        slowness=slowness,
        n_rows=len(rows),
        words=words,
        rule=rule,
    )
