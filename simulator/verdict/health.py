"""The verdict on a table: healthy, suspicious or sick, by named rules.

Each row has a slowness: ln(measured / predicted) over the half width of the prediction's 80 %
band, so that 1 is the band's slow end.  For each range of sizes the median slowness is compared
with two limits, which `validation.alarms` derives from the healthy published machines: the
plateau has narrow limits and decides, small sizes need a gross miss.  Exchanges (all_to_all,
send_recv …) have limits of their own on the plateau, since the model knows them less well.

A machine much faster than its links allow is another machine than the set-up: suspicious.  Two
rules need no prediction: bandwidth must not fall as messages grow beyond 16 MiB, and a wrong
result is sick whatever the speed.
"""

from __future__ import annotations

import functools
import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from importlib import resources
from typing import Any

from simulator.base.units import format_size
from simulator.results.model import Row
from simulator.verdict.bands import JUDGED, LARGE_BYTES, judged_range, judged_sizes
from simulator.verdict.predict import PredictedRow

__all__ = [
    "Finding",
    "Health",
    "Limits",
    "fall_of",
    "judge",
    "limits",
    "row_word",
    "rule_name",
    "rule_of",
    "together",
]


class Health(IntEnum):
    """The verdict; the value is the exit code of ``collsim check``."""

    HEALTHY = 0
    SUSPICIOUS = 3
    SICK = 4


TOO_FAST = 1.75
"""Above this share of the predicted bandwidth the set-up is not the machine: of the healthy
published tables none reaches it at 16 MiB and more."""
EXCHANGES = ("all_to_all", "all_to_allv", "hypercube", "send_recv", "gather", "scatter")
ON_ONE_NODE, OF_EXCHANGES = " on one node", " of exchanges"
"""Added to a range's name where such tables have limits of their own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Two limits of one rule."""

    suspicious: float
    sick: float
    slower: tuple[tuple[float, float], ...] = ()
    """(slowness, share of the healthy published tables that are faster), growing."""

    def of(self, slowness: float) -> Health:
        """Return the verdict on a slowness."""
        if slowness > self.sick:
            return Health.SICK
        return Health.SUSPICIOUS if slowness > self.suspicious else Health.HEALTHY

    def share_faster(self, slowness: float) -> float | None:
        """Return the share of healthy published tables that are faster, None where unknown."""
        below = [share for value, share in self.slower if value <= slowness]
        return below[-1] if below else None


def rule_name(known: Collection[str], name: str, collective: str, n_nodes: int) -> str:
    """Return the name of the limits for a range of sizes of a table.

    Examples
    --------
    >>> known = [">=256M", ">=256M of exchanges"]
    >>> rule_name(known, ">=256M", "all_to_all", 2), rule_name(known, ">=256M", "all_reduce", 1)
    ('>=256M of exchanges', '>=256M')
    """
    exchanged, alone = collective in EXCHANGES, n_nodes == 1
    for suffix, wanted in ((OF_EXCHANGES, exchanged), (ON_ONE_NODE, alone)):
        if wanted and name + suffix in known:
            return name + suffix
    return name


def rule_of(rules: Mapping[str, Limits], name: str, row: Row) -> Limits:
    """Return the limits of a range of sizes for a table that has such a row."""
    return rules[rule_name(rules.keys(), name, row.collective, row.n_nodes)]


@functools.cache
def limits() -> Mapping[str, Limits]:
    """Return the limits by range of sizes, and those of ``falls``."""
    import yaml

    text = (resources.files("simulator.verdict") / "limits.yaml").read_text("utf-8")
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return limits_of(yaml.load(text, Loader=loader))


def limits_of(document: Mapping[str, Any]) -> dict[str, Limits]:
    """Return the limits that a document holds."""
    found = {
        name: Limits(
            suspicious=float(entry["suspicious"]),
            sick=float(entry["sick"]),
            slower=tuple((float(a), float(b)) for a, b in entry.get("slower", ())),
        )
        for name, entry in document["ranges"].items()
    }
    falls = document["falls"]
    return {
        **found,
        "falls": Limits(suspicious=float(falls["suspicious"]), sick=float(falls["sick"])),
    }


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
    (<Health.HEALTHY: 0>, [])
    """
    found = limits() if rules is None else rules
    findings: list[Finding] = []
    for name, sizes in sorted(
        judged_sizes(row.size_bytes for row in rows).items(), key=lambda item: JUDGED.index(item[0])
    ):
        members = [row for row in rows if row.size_bytes in sizes]
        rule = rule_of(found, name, members[0].predicted)
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
    return max((finding.health for finding in findings), default=Health.HEALTHY), findings


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
                slowness / (rule.sick if verdict is Health.SICK else rule.suspicious)
                for slowness, rule in ruled
            ]
            if shares and statistics.fmean(shares) > 1.0:
                health = max(health, verdict)
    certain = [f.health for f in found if f.rule is None or f.fast]
    worst = max(entry for entry, _ in judged)
    lower = Health.SUSPICIOUS if worst is Health.SICK else Health.HEALTHY
    return max(health, lower, *certain, Health.HEALTHY)


def row_word(row: PredictedRow) -> str:
    """Return the verdict on one size in a word: ``slow`` is outside the 80 % band."""
    if row.wrong:
        return "wrong"
    if row.slowness < -1.0:
        return "fast"
    if row.slowness <= 1.0:
        return "ok"
    name = judged_range(row.size_bytes)
    health = rule_of(limits(), name, row.predicted).of(row.slowness)
    return "slow" if health is Health.HEALTHY else health.name.lower()


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


def _finding(name: str, rows: Sequence[PredictedRow], rule: Limits) -> Finding:
    reached = statistics.median(row.ratio for row in rows)
    slowness = statistics.median(row.slowness for row in rows)
    health = rule.of(slowness)
    words = f"{100 * reached:.0f} % of the predicted bandwidth"
    own = sum(row.calibrated for row in rows) * 2 > len(rows)
    # Shares of published machines say nothing of a band that one machine has for itself.
    faster = None if own else rule.share_faster(slowness)
    if own and slowness > 1.0:
        words += (
            f"; {slowness:.1f} times as far off as the calibration's 80 % band reaches"
            if health is not Health.HEALTHY
            else ": slow, below the calibration's 80 % band"
        )
    elif health is not Health.HEALTHY and faster is not None:
        words += f"; {100 * faster:.0f} % of healthy machines reach more"
    elif slowness > 1.0 and faster is not None:
        slower = max(1.0, 100 * (1 - faster))
        words += f": slow, but so are {slower:.0f} % of the healthy machines that are published"
    elif reached > TOO_FAST and slowness < -1.0:
        if name in JUDGED[2:]:
            health = Health.SUSPICIOUS
            words += ": faster than this set-up allows, so it is probably not the machine's"
        else:
            words += ": faster than predicted"
    return Finding(
        name=name,
        health=health,
        reached=reached,
        slowness=slowness,
        n_rows=len(rows),
        words=words,
        rule=rule,
    )
