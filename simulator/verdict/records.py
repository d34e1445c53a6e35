"""Comparisons and checks as tables of text, CSV and JSON."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

from simulator.base.errors import Problem
from simulator.base.units import format_size, format_time
from simulator.importers import MeasuredTable
from simulator.results.files import plain
from simulator.results.layout import Column, Table
from simulator.verdict.check import Check, Machine
from simulator.verdict.diagnose import Diagnosis
from simulator.verdict.health import row_word
from simulator.verdict.inverse import Inverse
from simulator.verdict.nics import Choice, choice_of
from simulator.verdict.predict import PredictedRow
from simulator.verdict.setup import SetUp
from simulator.verdict.statistics import Errors, errors_by_range

__all__ = [
    "COMPARISON_COLUMNS",
    "Comparison",
    "bandwidth",
    "check_table_text",
    "comparison_csv",
    "comparison_json",
    "comparison_table",
    "errors_table",
    "machines_json",
]

SCHEMA_VERSION = 1

COMPARISON_COLUMNS = (
    "file",
    "line",
    "collective",
    "dtype",
    "world_size",
    "n_nodes",
    "size_bytes",
    "in_place",
    "measured_us",
    "predicted_us",
    "ratio",
    "measured_busbw_GBps",
    "predicted_busbw_GBps",
    "expected_least_us",
    "expected_most_us",
    "algorithm",
    "protocol",
    "n_channels",
    "binding_link",
    "measured_algbw_GBps",
    "predicted_algbw_GBps",
    "measured_nic_GBps",
)
"""Columns of the CSV file and keys of the JSON rows; new ones are only appended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One table of a log with its predictions."""

    file: str
    table: MeasuredTable
    set_up: SetUp
    rows: tuple[PredictedRow, ...]
    nic_shares: Mapping[Choice, float] = field(default_factory=dict)
    """Payload that the busiest NIC sends per byte of the size, see `simulator.verdict.nics`."""

    def nic_Bps(self, row: PredictedRow) -> float | None:
        """Return the payload that the busiest NIC sent a second; None: no NICs.

        The call is taken to have been done as predicted.
        """
        share = self.nic_shares.get(choice_of(row.predicted))
        return None if share is None else share * row.size_bytes / row.measured_s

    @property
    def title(self) -> str:
        """Collective, ranks and set-up."""
        first = self.rows[0].predicted
        return f"{first.collective} on {first.world_size} GPUs: {self.set_up.title}"

    @property
    def errors(self) -> list[Errors]:
        """Over all rows first, then by range of sizes."""
        return errors_by_range(self.rows)


def bandwidth(rate_Bps: float) -> str:
    """Return GB/s with three significant digits.

    Examples
    --------
    >>> bandwidth(391.54e9), bandwidth(4.2e9), bandwidth(1e6)
    ('392', '4.20', '0.001')
    """
    value = rate_Bps / 1e9
    return f"{value:.0f}" if value >= 100 else f"{value:#.3g}" if value >= 1 else f"{value:.3f}"


def comparison_table(comparison: Comparison) -> Table:
    """Return one line a row: size, both times, their ratio, both bus bandwidths, the choice.

    With NICs in use, the measured algbw and the payload bytes/s of the busiest NIC instead of the
    predicted time, which the ratio tells.
    """
    networked = bool(comparison.nic_shares)
    columns = (
        Column(title="size", style="cyan"),
        Column(title="time m"),
        *(() if networked else (Column(title="time p", style="bold"),)),
        Column(title="ratio", style="yellow"),
        Column(title="busbw m"),
        Column(title="busbw p", style="bold green"),
        *((Column(title="algbw"), Column(title="per NIC")) if networked else ()),
        Column(title="", right=False),
        Column(title="how", right=False, flexible=True),
    )
    lines: list[tuple[str, ...]] = []
    for row in comparison.rows:
        least_s, most_s = row.expected_s
        mark = "slow" if row.measured_s > most_s else "fast" if row.measured_s < least_s else ""
        made = row.predicted
        rate_Bps = comparison.nic_Bps(row)
        network = (
            bandwidth(row.size_bytes / row.measured_s),
            "" if rate_Bps is None else bandwidth(rate_Bps),
        )
        lines.append(
            (
                format_size(row.size_bytes) + ("*" if row.in_place else ""),
                format_time(row.measured_s, 3),
                *(() if networked else (format_time(made.time_s, 3),)),
                f"{row.ratio:.2f}",
                bandwidth(row.measured_busbw_Bps),
                bandwidth(made.busbw_Bps),
                *(network if networked else ()),
                mark,
                f"{made.called} {made.protocol} {made.n_channels}ch",
            )
        )
    remarks = ["m measured, p predicted; ratio: predicted / measured time; bandwidths in GB/s"]
    if networked:
        remarks.append("algbw, per NIC: measured; per NIC: payload of the busiest, if done as p")
    if any(row.in_place for row in comparison.rows):
        remarks.append("*: in-place time, the out-of-place one is missing")
    return Table(columns=columns, rows=tuple(lines), title=comparison.title, remarks=tuple(remarks))


def errors_table(errors: Sequence[Errors]) -> Table:
    """Return the error statistics, one line a range of sizes."""
    columns = (
        Column(title="sizes", right=False, style="bold"),
        Column(title="rows"),
        Column(title="median error"),
        Column(title="90 %"),
        Column(title="worst"),
        Column(title="mean ratio"),
        Column(title="in band"),
    )
    lines = tuple(
        (
            entry.name,
            str(entry.n_rows),
            f"{100 * entry.median:.1f} %",
            f"{100 * entry.p90:.1f} %",
            f"{100 * entry.worst:.1f} %",
            f"{entry.geometric_mean_ratio:.3f}",
            f"{100 * entry.within_band:.0f} %",
        )
        for entry in errors
    )
    return Table(columns=columns, rows=lines, title="Errors, as shares of the measured time")


def _records(comparison: Comparison) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for row in comparison.rows:
        least_s, most_s = row.expected_s
        made = row.predicted
        values = (
            comparison.file,
            row.line,
            made.collective,
            made.dtype,
            made.world_size,
            made.n_nodes,
            row.size_bytes,
            row.in_place,
            row.measured_s * 1e6,
            made.time_s * 1e6,
            row.ratio,
            row.measured_busbw_Bps / 1e9,
            made.busbw_Bps / 1e9,
            least_s * 1e6,
            most_s * 1e6,
            made.algorithm,
            made.protocol,
            made.n_channels,
            made.binding_link,
            row.size_bytes / row.measured_s / 1e9,
            made.algbw_Bps / 1e9,
            None if (rate := comparison.nic_Bps(row)) is None else rate / 1e9,
        )
        found.append(dict(zip(COMPARISON_COLUMNS, values, strict=True)))
    return found


def comparison_csv(comparisons: Iterable[Comparison]) -> str:
    """Return all rows of all tables as CSV with `COMPARISON_COLUMNS`."""
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, COMPARISON_COLUMNS, lineterminator="\n")
    writer.writeheader()
    for comparison in comparisons:
        for record in _records(comparison):
            writer.writerow(
                {k: f"{v:.12g}" if isinstance(v, float) else v for k, v in record.items()}
            )
    return buffer.getvalue()


def comparison_json(comparisons: Iterable[Comparison], warnings: Sequence[Problem]) -> str:
    """Return tables, set-ups, rows, errors and warnings as JSON."""
    document = {
        "schema_version": SCHEMA_VERSION,
        "tables": [
            {
                "file": comparison.file,
                "title": comparison.title,
                "set_up": dict(comparison.set_up.words),
                "scenario": comparison.set_up.file,
                "reasons": comparison.set_up.reasons,
                "evidence": comparison.set_up.evidence,
                "rows": _records(comparison),
                "errors": comparison.errors,
            }
            for comparison in comparisons
        ],
        "warnings": [
            {"message": problem.message, "file": problem.file, "line": problem.line}
            for problem in warnings
        ],
    }
    return json.dumps(plain(document), indent=2) + "\n"


def check_table_text(check: Check) -> Table:
    """Return one line a size: measured, expected range, percent reached, verdict."""
    columns = (
        Column(title="size", style="cyan"),
        Column(title="time"),
        Column(title="expected", right=False),
        Column(title="busbw", style="bold green"),
        Column(title="expected", right=False),
        Column(title="reached", style="yellow"),
        Column(title="verdict", right=False),
    )
    lines: list[tuple[str, ...]] = []
    for row in check.rows:
        least_s, most_s = row.expected_s
        scale = row.predicted.busbw_Bps * row.predicted.time_s
        lines.append(
            (
                format_size(row.size_bytes) + ("*" if row.in_place else ""),
                format_time(row.measured_s, 3),
                f"{format_time(least_s, 3)} to {format_time(most_s, 3)}",
                bandwidth(row.measured_busbw_Bps),
                f"{bandwidth(scale / most_s)} to {bandwidth(scale / least_s)}",
                f"{row.percent_reached:.0f} %",
                row_word(row),
            )
        )
    remarks = ["busbw in GB/s; reached: share of the predicted bandwidth; expected: 80 % of"]
    if any(row.calibrated for row in check.rows):
        remarks.append("this machine's runs by its calibration, slow ones are below it")
    else:
        remarks.append("healthy machines, slow ones are below it")
    if any(row.in_place for row in check.rows):
        remarks.append("*: in-place time, the out-of-place one is missing")
    return Table(columns=columns, rows=tuple(lines), title=check.title, remarks=tuple(remarks))


def machines_json(machines: Sequence[Machine], inverses: Sequence[Sequence[Inverse]] = ()) -> str:
    """Return verdicts, findings, rows and causes as JSON.

    Parameters
    ----------
    machines
        What a check found.
    inverses
        Answers to the inverse question by machine and table; empty where it was not asked.
    """
    worst = max(machine.health for machine in machines)
    answers = inverses or [()] * len(machines)
    document = {
        "schema_version": SCHEMA_VERSION,
        "health": worst.words,
        "exit_code": int(worst),
        "machines": [
            _machine_record(machine, found)
            for machine, found in zip(machines, answers, strict=True)
        ],
    }
    return json.dumps(plain(document), indent=2) + "\n"


def _machine_record(machine: Machine, inverses: Sequence[Inverse]) -> dict[str, Any]:
    tables = [_check_record(check) for check in machine.checks]
    return {
        "health": machine.health.words,
        "exit_code": int(machine.health),
        "tables": [
            table if answer is None else {**table, "inverse": answer}
            for table, answer in zip_longest(tables, inverses)
        ],
        **_diagnosis_record(machine.diagnosis),
    }


def _check_record(check: Check) -> dict[str, Any]:
    rows = Comparison(
        file=check.table.source, table=check.table, set_up=check.set_up, rows=check.rows
    )
    return {
        "file": check.table.source,
        "collective": check.table.collective,
        "health": check.health.words,
        "set_up": dict(check.set_up.words),
        "scenario": check.set_up.file,
        "reasons": check.set_up.reasons,
        "evidence": check.set_up.evidence,
        "doubts": check.set_up.doubts,
        "binding_link": check.binding,
        "findings": [
            {
                "sizes": finding.name,
                "health": finding.health.words,
                "reached": finding.reached,
                "slowness": finding.slowness,
                "words": finding.words,
            }
            for finding in check.findings
        ],
        "rows": [
            {**record, "slowness": row.slowness, "verdict": row_word(row)}
            for record, row in zip(_records(rows), check.rows, strict=True)
        ],
    }


def _diagnosis_record(diagnosis: Diagnosis | None) -> dict[str, Any]:
    if diagnosis is None:
        return {"causes": []}
    return {
        "causes": [
            {
                "name": found.hypothesis.name,
                "weight": found.weight,
                "cause": found.hypothesis.cause,
                "look": found.hypothesis.look,
                "test": found.hypothesis.tell,
                "distance": found.distance,
                "strength": found.amplitude,
                "said": found.said,
                "alike": found.alike,
            }
            for found in diagnosis.explanations
        ],
        "healthy_distance": diagnosis.healthy_distance,
        "healthy_weight": diagnosis.healthy_weight,
        "no_known_cause_weight": diagnosis.other_weight,
        "tried": dict(diagnosis.tried),
        "refused": dict(diagnosis.refused),
    }
