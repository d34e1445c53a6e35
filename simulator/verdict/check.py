"""The check of one table or several of one machine: verdict, expected range, likely causes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from simulator.importers import MeasuredRow, MeasuredTable
from simulator.verdict.diagnose import (
    LARGE_RANKS,
    MOST_SIZES_LARGE,
    Case,
    Diagnosis,
    Explanation,
    diagnose,
    most_sizes,
    thin_sizes,
)
from simulator.verdict.health import Finding, Health, judge, overall, together, unjudged
from simulator.verdict.predict import Clusters, PredictedRow, predict_rows
from simulator.verdict.setup import SetUp, gpu_total

__all__ = ["Check", "Machine", "causes_of", "check_table", "check_tables", "quickly"]

LEVEL = {"engine.level": "folded"}
"""Level of detail of a check: within a few per cent of the steps, and many times faster."""
LEAST_AGAINST_NONE = 0.25
"""Causes are told when the best has at least this share of the weight of no known cause."""
MANY_TABLES = 3
"""With more tables than this each is checked at fewer sizes."""
MOST_SIZES_MANY = 6
"""Sizes of each where many tables are of large machines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """What a check found out about one table."""

    table: MeasuredTable
    set_up: SetUp
    health: Health
    findings: tuple[Finding, ...]
    rows: tuple[PredictedRow, ...]
    """Thinned to a dozen sizes."""

    @property
    def binding(self) -> str:
        """The link that binds the largest size, empty where latency does."""
        return max(self.rows, key=lambda row: row.size_bytes).predicted.binding_link

    @property
    def title(self) -> str:
        """Collective, ranks and set-up."""
        first = self.rows[0].predicted
        return f"{first.collective} on {first.world_size} GPUs: {self.set_up.title}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What the tables of one machine say together."""

    checks: tuple[Check, ...]
    health: Health
    diagnosis: Diagnosis | None
    """None for a machine that is healthy or only too fast, of which no fault is to be looked for,
    or where none was asked."""


def causes_of(diagnosis: Diagnosis) -> tuple[Explanation, ...]:
    """Return the causes that are worth telling: none where no fault is likelier than none."""
    rest = max(diagnosis.other_weight, diagnosis.healthy_weight)
    best = max((found.weight for found in diagnosis.explanations), default=0.0)
    return diagnosis.explanations if best >= rest * LEAST_AGAINST_NONE else ()


def quickly(set_up: SetUp) -> SetUp:
    """Return the set-up at the level of detail of a check, unless it says its own."""
    return set_up if "engine.level" in set_up.words else set_up.with_words(LEVEL)


def check_table(
    set_up: SetUp,
    table: MeasuredTable,
    *,
    workers: int | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> Machine:
    """Judge one table; see `check_tables`."""
    (machine,) = check_tables([(set_up, table)], workers=workers, on_progress=on_progress)
    return machine


def check_tables(
    pairs: Sequence[tuple[SetUp, MeasuredTable]],
    *,
    workers: int | None = None,
    causes: bool = True,
    on_progress: Callable[[int, int], None] | None = None,
) -> list[Machine]:
    """Judge tables against healthy machines and look for causes where they are not.

    Tables of one machine, whatever the number of its nodes that took part, are judged and
    explained together: a fault must explain them all.

    Parameters
    ----------
    pairs
        The machine as it should be and what was measured; what a log shows of faults is evidence,
        not set-up.
    workers
        Processes that simulate faults; None: one per core, where that is faster.
    causes
        No: the verdict alone, which takes no simulation of faults.
    on_progress
        Called with (simulations done, in all).

    Returns
    -------
    list of Machine
        In order of their first table.

    Raises
    ------
    CollsimError
        No usable row, or a set-up that cannot run the call.
    """
    groups: dict[str, list[tuple[SetUp, MeasuredTable]]] = {}
    for set_up, table in pairs:
        groups.setdefault(_machine_key(set_up), []).append((set_up, table))
    return [_machine(members, workers, causes, on_progress) for members in groups.values()]


def _machine_key(set_up: SetUp) -> str:
    # What a call, not a machine, may differ in.
    part = ("nodes", "gpus_per_node", "costs.version", "costs.gpus_per_process")
    words = {key: value for key, value in sorted(set_up.words.items()) if key not in part}
    return repr((set_up.file, words))


def _machine(
    pairs: Sequence[tuple[SetUp, MeasuredTable]],
    workers: int | None,
    causes: bool,
    on_progress: Callable[[int, int], None] | None,
) -> Machine:
    clusters = Clusters()
    checks: list[Check] = []
    cases: list[Case] = []
    for set_up, table in pairs:
        quick = quickly(set_up)
        rows = tuple(_rows(quick, table, clusters, many=len(pairs) > MANY_TABLES))
        health, findings = judge(rows, measured_s=_times(table))
        if set_up.unknown:
            findings = [unjudged(finding) for finding in findings]
            health = overall(findings)
        checks.append(
            Check(table=table, set_up=set_up, health=health, findings=tuple(findings), rows=rows)
        )
        cases.append(Case(set_up=quick, table=table, rows=rows))
    health = together([(check.health, check.findings) for check in checks])
    diagnosis = None
    slow = any(f.health.bad and not f.fast for c in checks for f in c.findings)
    if causes and slow and health.bad:
        asked = _merged(cases)
        diagnosis = diagnose(asked, workers=workers, clusters=clusters, on_progress=on_progress)
    return Machine(checks=tuple(checks), health=health, diagnosis=diagnosis)


def _merged(cases: Sequence[Case]) -> list[Case]:
    """Return one case for each call on a set-up: repeats share the model's error.

    Their times are averaged, and what any of their logs says of faults is kept.
    """
    groups: dict[tuple[object, ...], list[Case]] = {}
    for case in cases:
        table = case.table
        call = (table.collective, table.dtype, table.redop, table.root)
        groups.setdefault((case.set_up.key({}), *call), []).append(case)
    return [_merged_case(members) for members in groups.values()]


def _merged_case(members: Sequence[Case]) -> Case:
    def all_of(found: Iterable[Sequence[str]]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(text for texts in found for text in texts))

    first = members[0]
    if len(members) == 1:
        return first
    set_up = replace(
        first.set_up,
        evidence=all_of(case.set_up.evidence for case in members),
        transports=all_of(case.set_up.transports for case in members),
    )
    rows = tuple(row for case in members for row in case.rows)
    return replace(first, set_up=set_up, rows=rows)


def _rows(
    set_up: SetUp, table: MeasuredTable, clusters: Clusters, *, many: bool
) -> list[PredictedRow]:
    wrong = {row.size_bytes for row in table.rows if _wrong(row)}
    sizes = [row.size_bytes for row in table.rows if _usable(row)]
    n_gpus = gpu_total(set_up.resolve({"collective.op": "barrier"})) or table.n_ranks or 0
    most = most_sizes(n_gpus)
    if many:
        most = min(most, MOST_SIZES_LARGE if n_gpus < LARGE_RANKS else MOST_SIZES_MANY)
    # Rows with wrong results stay, however the sizes are thinned.
    chosen = {*thin_sizes(sizes, most), *sorted(wrong)[:1]}
    return predict_rows(set_up, table, sizes_bytes=chosen, clusters=clusters)


def _times(table: MeasuredTable) -> dict[int, float]:
    """Return the best time of every size: one slow repetition is not a falling curve."""
    found: dict[int, float] = {}
    for row in table.rows:
        timing = row.timing() or row.timing(in_place=True)
        if row.size_bytes > 0 and timing is not None:
            found[row.size_bytes] = min(timing.time_s, found.get(row.size_bytes, timing.time_s))
    return found


def _usable(row: MeasuredRow) -> bool:
    return row.size_bytes > 0 and any(row.timing(in_place=half) for half in (False, True))


def _wrong(row: MeasuredRow) -> bool:
    return any(half is not None and bool(half.wrong) for half in (row.out_of_place, row.in_place))
