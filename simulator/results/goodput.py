"""What days of training with failures tell, as a record and a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from simulator.base.units import format_time
from simulator.results.layout import Column, Table

__all__ = ["GoodputResult", "goodput_comparison", "goodput_table"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GoodputResult:
    """Training over days: shares of the time, which sum to one."""

    duration_s: float
    job_mtbf_s: float
    """Between failures of the whole job."""
    checkpoint_bytes: float
    """Of the whole job."""
    checkpoint_s: float
    """Training stands so long for one."""
    interval_s: float
    """Training between two checkpoints."""
    best_interval_s: float
    """Daly's optimum."""
    restart_s: float
    """Loading the checkpoint included."""
    useful: float
    lost: float
    checkpoint: float
    restart: float
    waiting: float
    shrunk: float
    failures: float
    """In the whole time."""
    spread: float
    """Standard deviation of `useful` over histories."""
    tokens: float
    """Useful tokens (or images) in the whole time."""
    variant: str = ""


def goodput_comparison(results: Sequence[GoodputResult]) -> Table:
    """Return variants side by side, percent of the time."""
    rows = tuple(
        (
            days.variant or "-",
            f"{100 * days.useful:.1f}",
            f"{100 * days.lost:.1f}",
            f"{100 * days.checkpoint:.1f}",
            f"{100 * days.restart:.1f}",
            f"{100 * days.waiting:.1f}",
            f"{100 * days.shrunk:.1f}",
            f"{days.failures:.1f}",
            format_time(days.interval_s),
        )
        for days in results
    )
    return Table(
        columns=(
            Column(title="variant", right=False, flexible=True, style="bold"),
            Column(title="useful", style="bold green"),
            Column(title="lost"),
            Column(title="saving"),
            Column(title="restart"),
            Column(title="waiting"),
            Column(title="fewer"),
            Column(title="failures", style="yellow"),
            Column(title="interval"),
        ),
        rows=rows,
        title=f"Goodput over {results[0].duration_s / 86400.0:.4g} days, % of the time",
    )


def goodput_table(result: GoodputResult) -> Table:
    """Return where the days go."""
    parts = (
        ("useful training", result.useful),
        ("lost since the last checkpoint", result.lost),
        ("checkpoints", result.checkpoint),
        ("restarts", result.restart),
        ("waiting for repairs", result.waiting),
        ("missing speed of fewer replicas", result.shrunk),
    )
    days = result.duration_s / 86400.0
    rows = tuple(
        (name, f"{share * days:.2f} d", f"{100 * share:.1f}") for name, share in parts if share > 0
    )
    return Table(
        columns=(
            Column(title=f"of {days:.4g} days", right=False, style="bold"),
            Column(title="time"),
            Column(title="%", style="yellow"),
        ),
        rows=rows,
        title=f"Goodput {100 * result.useful:.1f} ± {100 * result.spread:.1f} %, "
        f"{result.tokens:.3g} tokens",
        remarks=(
            f"{result.failures:.1f} failures, one in {format_time(result.job_mtbf_s)}; "
            f"a checkpoint of {result.checkpoint_bytes / 1e9:.4g} GB holds training up for "
            f"{format_time(result.checkpoint_s)} every {format_time(result.interval_s)} "
            f"(Daly's optimum {format_time(result.best_interval_s)}); "
            f"a restart takes {format_time(result.restart_s)}",
        ),
    )
