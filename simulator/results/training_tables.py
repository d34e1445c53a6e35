"""Tables of training steps: one step part by part, several side by side."""

from __future__ import annotations

from collections.abc import Sequence

from simulator.base.units import format_size, format_time
from simulator.results.layout import Column, Table
from simulator.results.training import CallTimes, RankAccount, TrainingStep

__all__ = [
    "calls_table",
    "comparison_table",
    "headline",
    "memory_table",
    "parts_table",
    "stage_table",
]

_MOST_ROWS = 12


def headline(step: TrainingStep) -> str:
    """Return the step in three lines: time and rates, what bounds it, whether it fits."""
    rate = f"{step.tokens_per_s_per_gpu:,.0f} {step.unit}/s/GPU"
    if step.tokens_per_s_per_gpu < 100:
        rate = f"{step.tokens_per_s_per_gpu:.3g} {step.unit}/s/GPU"
    lines = [
        step.strategy,
        f"step {format_time(step.step_s)}   {rate}   {step.flops_per_gpu / 1e12:.4g} "
        f"TFLOP/s/GPU   MFU {100 * step.mfu:.1f} %   HFU {100 * step.hfu:.1f} %",
    ]
    if step.verdict:
        lines.append(step.verdict)
    if step.straggler:
        lines.append(f"straggler: {step.straggler}")
    if step.memory:
        row = max(step.memory, key=lambda row: row.total_bytes / row.capacity_bytes)
        said = "fits" if step.fits else "OUT OF MEMORY"
        where = f" on stage {row.stage}" if len(step.memory) > 1 else ""
        lines.append(
            f"memory: {said}: {row.total_bytes / 2**30:.1f} of "
            f"{row.capacity_bytes / 2**30:.1f} GiB{where}"
        )
    return "\n".join(lines)


def parts_table(step: TrainingStep) -> Table:
    """Return what the step consists of, mean over all ranks; the parts sum to the step."""
    parts = [
        *((f"compute: {key}", value) for key, value in step.busy_s.items()),
        *((f"exposed: {key}", value) for key, value in step.exposed_s.items()),
        *((_waits(key), value) for key, value in step.waiting_s.items()),
        ("idle at the ends", step.idle_s),
    ]
    hidden = {
        key: max(0.0, value - step.exposed_s.get(key, 0.0)) for key, value in step.traffic_s.items()
    }
    rows = [
        (name, format_time(value), f"{100 * value / step.step_s:.1f}", _bar(value / step.step_s))
        for name, value in parts
        if value > 1e-4 * step.step_s
    ]
    told = ", ".join(
        f"{key} {format_time(value)}" for key, value in hidden.items() if value > 1e-4 * step.step_s
    )
    return Table(
        columns=(
            Column(title="part of the step", right=False, style="bold"),
            Column(title="time"),
            Column(title="%", style="yellow"),
            Column(title="", right=False, style="cyan"),
        ),
        rows=tuple(rows),
        remarks=("mean over all ranks", f"hidden behind computes: {told or 'nothing'}"),
    )


def _waits(traffic: str) -> str:
    return "pipeline bubble" if traffic == "pipeline" else f"waiting: {traffic} peers"


def _bar(share: float, width: int = 30) -> str:
    return "█" * round(min(max(share, 0.0), 1.0) * width)


def stage_table(step: TrainingStep) -> Table:
    """Return each kind of rank: computing, exposed, waiting, idle, memory."""
    memory = {row.stage: row for row in step.memory}
    alike = sorted(step.accounts, key=lambda a: (a.stage, a.ranks[0]))
    shown = alike if len(alike) <= _MOST_ROWS else _some(alike)
    rows = [
        (
            str(account.stage),
            _ranks(account),
            format_time(account.compute_s),
            format_time(sum(account.exposed_s.values())),
            format_time(sum(account.waiting_s.values())),
            format_time(account.idle_s),
            f"{memory[account.stage].total_bytes / 2**30:.1f}" if account.stage in memory else "-",
        )
        for account in shown
    ]
    left = len(alike) - len(shown)
    return Table(
        columns=(
            Column(title="stage"),
            Column(title="ranks", right=False, flexible=True, style="bold"),
            Column(title="compute"),
            Column(title="exposed", style="yellow"),
            Column(title="waiting", style="yellow"),
            Column(title="idle"),
            Column(title="GiB", style="cyan"),
        ),
        rows=tuple(rows),
        title="Kinds of ranks",
        remarks=(f"{left} more kinds are not shown",) if left > 0 else (),
    )


def _some(accounts: Sequence[RankAccount]) -> list[RankAccount]:
    """Return those that compute longest, and the first and last."""
    by_work = sorted(accounts, key=lambda a: -a.compute_s)[: _MOST_ROWS - 2]
    chosen = [accounts[0], accounts[-1], *by_work]
    return [account for account in accounts if account in chosen]


def _ranks(account: RankAccount) -> str:
    ranks = account.ranks
    if len(ranks) <= 3:
        return ", ".join(map(str, ranks))
    if ranks[-1] - ranks[0] == len(ranks) - 1:
        return f"{ranks[0]}-{ranks[-1]}"
    return f"{ranks[0]}, {ranks[1]} … {ranks[-1]} ({len(ranks)})"


def calls_table(step: TrainingStep) -> Table:
    """Return the kinds of calls, those with most time first."""
    alike: dict[tuple[str, ...], list[CallTimes]] = {}
    for call in step.calls:
        key = (
            call.axis,
            call.collective,
            format_size(call.size_bytes),
            f"{call.group_size}/{call.group_nodes}",
            f"{call.library_algorithm or call.algorithm} {call.protocol}",
        )
        alike.setdefault(key, []).append(call)
    rows = []
    for (*what, how), calls in list(alike.items())[:_MOST_ROWS]:
        count = sum(call.n_calls for call in calls)
        mean_s = sum(call.n_calls * call.time_s for call in calls) / count
        rows.append((*what, str(count), format_time(mean_s), how))
    left = len(alike) - len(rows)
    remarks = ["time of one call with the links to its axis alone; calls of one rank per step"]
    if left > 0:
        remarks.append(f"{left} more kinds of calls are not shown")
    return Table(
        columns=(
            Column(title="axis", right=False, style="bold"),
            Column(title="collective", right=False),
            Column(title="size", style="cyan"),
            Column(title="ranks/nodes"),
            Column(title="calls"),
            Column(title="time"),
            Column(title="how", right=False, flexible=True),
        ),
        rows=tuple(rows),
        title="Calls",
        remarks=tuple(remarks),
    )


def memory_table(step: TrainingStep) -> Table:
    """Return what fills the memory of each stage, GiB."""
    names = list(dict.fromkeys(key for row in step.memory for key in row.parts))
    shown = step.memory if len(step.memory) <= 4 else (step.memory[0], step.memory[-1])
    rows = [(name, *(f"{row.parts.get(name, 0.0) / 2**30:.2f}" for row in shown)) for name in names]
    rows.append(("all", *(f"{row.total_bytes / 2**30:.2f}" for row in shown)))
    rows.append(("GPU", *(f"{row.capacity_bytes / 2**30:.2f}" for row in shown)))
    several = len(step.memory) > 1
    return Table(
        columns=(
            Column(title="memory, GiB", right=False, style="bold"),
            *(Column(title=f"stage {row.stage}" if several else "a rank") for row in shown),
        ),
        rows=tuple(rows),
    )


def comparison_table(steps: Sequence[TrainingStep], *, title: str = "Steps") -> Table:
    """Return variants side by side; the fastest that fits is marked."""
    fitting = [step for step in steps if step.fits is not False]
    best = max(fitting, key=lambda step: step.tokens_per_s_per_gpu, default=None)
    worlds = len({step.world_size for step in steps}) > 1
    rows = [
        (
            step.variant or step.strategy,
            *([str(step.world_size)] if worlds else []),
            format_time(step.step_s),
            f"{step.tokens_per_s_per_gpu:,.0f}",
            f"{100 * step.mfu:.1f}",
            f"{100 * step.exposed_share:.1f}",
            f"{100 * step.bubble_share:.1f}",
            _memory(step),
            "<" if step is best and len(steps) > 1 else "",
        )
        for step in steps
    ]
    unit = steps[0].unit if steps else "tokens"
    return Table(
        columns=(
            Column(title="variant", right=False, flexible=True, style="bold"),
            *([Column(title="GPUs")] if worlds else []),
            Column(title="step", style="bold green"),
            Column(title=f"{unit[:3]}/s/GPU"),
            Column(title="MFU %", style="yellow"),
            Column(title="exposed %"),
            Column(title="bubble %"),
            Column(title="GiB", style="cyan"),
            Column(title="", right=False),
        ),
        rows=tuple(rows),
        title=title,
        remarks=("exposed: communication that no compute hides; ! does not fit; < fastest",),
    )


def _memory(step: TrainingStep) -> str:
    most = max((row.total_bytes for row in step.memory), default=None)
    if most is None:
        return "-"
    return f"{most / 2**30:.0f}" + ("" if step.fits else " !")
