"""The check of one table: verdict, expected range, binding link, likely causes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from simulator.importers import MeasuredRow, MeasuredTable
from simulator.verdict.diagnose import (
    MOST_SIZES,
    MOST_SIZES_LARGE,
    POOL_RANKS,
    Diagnosis,
    diagnose,
    thin_sizes,
)
from simulator.verdict.health import Finding, Health, judge
from simulator.verdict.predict import PredictedRow, predict_rows
from simulator.verdict.setup import SetUp, gpu_total

__all__ = ["Check", "check_table", "quickly"]

LEVEL = {"engine.level": "folded"}
"""Level of detail of a check: within a few per cent of the steps, and many times faster."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """Everything that a check found out about one table."""

    table: MeasuredTable
    set_up: SetUp
    health: Health
    findings: tuple[Finding, ...]
    rows: tuple[PredictedRow, ...]
    """Thinned to a dozen sizes."""
    diagnosis: Diagnosis | None
    """None for a healthy table: nothing is to be explained."""

    @property
    def binding(self) -> str:
        """The link that binds the largest size, empty where latency does."""
        return max(self.rows, key=lambda row: row.size_bytes).predicted.binding_link


def quickly(set_up: SetUp) -> SetUp:
    """Return the set-up at the level of detail of a check, unless it says its own."""
    return set_up if "engine.level" in set_up.words else set_up.with_words(LEVEL)


def check_table(
    set_up: SetUp,
    table: MeasuredTable,
    *,
    on_progress: Callable[[int, int], None] | None = None,
) -> Check:
    """Judge a table against a healthy machine and look for causes when it is not.

    Parameters
    ----------
    set_up
        The machine as it should be; what the log shows of faults is evidence, not set-up.
    table
        What was measured.
    on_progress
        Called with (faults simulated, in all).

    Raises
    ------
    CollsimError
        No usable row, or a set-up that cannot run the call.
    """
    quick = quickly(set_up)
    wrong = {row.size_bytes for row in table.rows if _wrong(row)}
    sizes = [row.size_bytes for row in table.rows if _usable(row)]
    n_gpus = gpu_total(quick.resolve({"collective.op": "barrier"})) or table.n_ranks or 0
    most = MOST_SIZES_LARGE if n_gpus >= POOL_RANKS else MOST_SIZES
    # Rows with wrong results stay, however the sizes are thinned.
    rows = predict_rows(quick, table, sizes_bytes={*thin_sizes(sizes, most), *sorted(wrong)[:1]})
    health, findings = judge(rows)
    diagnosis = None
    if health is not Health.HEALTHY:
        diagnosis = diagnose(quick, table, rows, on_progress=on_progress)
    return Check(
        table=table,
        set_up=set_up,
        health=health,
        findings=tuple(findings),
        rows=tuple(rows),
        diagnosis=diagnosis,
    )


def _usable(row: MeasuredRow) -> bool:
    return row.size_bytes > 0 and any(row.timing(in_place=half) for half in (False, True))


def _wrong(row: MeasuredRow) -> bool:
    return any(half is not None and bool(half.wrong) for half in (row.out_of_place, row.in_place))
