"""Figures of training steps: where the time goes, what fills the memory, what runs when."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.patches import Patch

from simulator.base.errors import CollsimError
from simulator.results.model import RunResult, TraceEvent
from simulator.results.plots_style import GREY, PALETTE, new_figure, save, set_title, style
from simulator.results.training import RankAccount, TrainingStep

__all__ = ["plot_memory", "plot_step", "plot_timeline"]

Path = str | os.PathLike[str]

_COMPUTE = {
    "forward": "#0072B2",
    "backward": "#56B4E9",
    "recompute": "#7fa6bf",
    "optimizer": "#004466",
    "compress": "#3a7d7d",
    "copy": "#88b3b3",
    "other": "#6b8ca3",
}
_TRAFFIC = {
    "tensor": "#D55E00",
    "data": "#E69F00",
    "pipeline": "#CC79A7",
    "context": "#b0413e",
    "expert": "#8c510a",
    "offload": "#6a3d9a",
}
_MOST_BARS = 16
_MOST_TIMELINES = 16


def _colour(name: str) -> str:
    return _COMPUTE.get(name) or _TRAFFIC.get(name) or "#000000"


def _parts(step: TrainingStep, account: RankAccount | None) -> dict[tuple[str, str], float]:
    """Return (kind, name) → seconds, in the order in which they are stacked."""
    source: TrainingStep | RankAccount = step if account is None else account
    kinds: tuple[tuple[str, Mapping[str, float]], ...] = (
        ("compute", source.busy_s),
        ("exposed", source.exposed_s),
        ("waiting", source.waiting_s),
    )
    parts = {(kind, name): value for kind, own in kinds for name, value in own.items()}
    parts["idle", ""] = source.idle_s
    return parts


def _steps(result: RunResult) -> tuple[TrainingStep, ...]:
    if not result.training:
        raise CollsimError("nothing to plot: the result has no training step")
    return result.training


def plot_step(result: RunResult, path: Path, *, with_csv: bool = False) -> None:
    """Draw where the time of a step goes: a bar a variant, or of one step a bar a kind of rank.

    Parameters
    ----------
    result
        With `RunResult.training`.
    path
        PNG, SVG or PDF file.
    with_csv
        Write the numbers into a CSV file beside the figure.

    Raises
    ------
    CollsimError
        No training step, an unknown format, or a file that cannot be written.
    """
    steps = _steps(result)
    if len(steps) > 1:
        shown = steps[:_MOST_BARS]
        names = [step.variant or step.strategy for step in shown]
        bars = [_parts(step, None) for step in shown]
        left = len(steps) - len(shown)
    else:
        alike = sorted(steps[0].accounts, key=lambda a: (a.stage, a.ranks[0]))
        chosen = _some(alike)
        names = [_rank_name(account, steps[0]) for account in chosen]
        bars = [_parts(steps[0], account) for account in chosen]
        left = len(alike) - len(chosen)
    whole = max(step.step_s for step in steps)
    unit, scale = ("s", 1.0) if whole >= 1 else ("ms", 1e3)
    with style():
        figure = new_figure(7.6, 1.7 + 0.36 * len(bars))
        axes = figure.subplots()
        lines = [_bar(axes, row, bar, scale) for row, bar in enumerate(bars)]
        axes.set_yticks(range(len(bars)), names)
        axes.invert_yaxis()
        axes.grid(axis="y", visible=False)
        axes.set_xlabel(f"time of the step ({unit})" + (f"; {left} more not shown" if left else ""))
        strategy = "" if len(steps) > 1 else f"\n{steps[0].strategy}"
        axes.set_title(f"{result.title}{strategy}", x=-0.22 if strategy else 0.0)
        used = dict.fromkeys(key for bar in bars for key, value in bar.items() if value > 0)
        axes.legend(
            handles=[_patch(kind, name) for kind, name in used],
            loc="upper center",
            bbox_to_anchor=(0.45, -0.24 * 4.0 / (1.0 + len(bars))),
            ncols=4,
        )
    header = ("bar", "kind", "name", "seconds")
    data = [
        (name, kind, part, seconds)
        for name, line in zip(names, lines, strict=True)
        for (kind, part), seconds in line.items()
    ]
    save(figure, path, (header, data), with_csv=with_csv)


def _some(accounts: Sequence[RankAccount]) -> list[RankAccount]:
    if len(accounts) <= _MOST_BARS:
        return list(accounts)
    half = _MOST_BARS // 2
    return [*accounts[:half], *accounts[-half:]]


def _rank_name(account: RankAccount, step: TrainingStep) -> str:
    first, last = account.ranks[0], account.ranks[-1]
    ranks = f"rank {first}" if first == last else f"{len(account.ranks)} ranks from {first}"
    several = len({a.stage for a in step.accounts}) > 1
    return f"stage {account.stage}, {ranks}" if several else ranks


def _bar(
    axes: Axes, row: int, parts: dict[tuple[str, str], float], scale: float
) -> dict[tuple[str, str], float]:
    at = 0.0
    for (kind, name), seconds in parts.items():
        if seconds <= 0:
            continue
        patch = _patch(kind, name)
        axes.barh(
            row,
            seconds * scale,
            left=at * scale,
            height=0.68,
            color=patch.get_facecolor(),
            hatch=patch.get_hatch(),
            edgecolor="white",
            linewidth=0.4,
        )
        at += seconds
    return parts


def _patch(kind: str, name: str) -> Patch:
    if kind == "idle":
        return Patch(facecolor="#efefef", label="idle at the ends")
    if kind == "waiting":
        label = "pipeline bubble" if name == "pipeline" else f"waiting for {name} peers"
        return Patch(facecolor="#d4d4d4" if name == "pipeline" else "#bdbdbd", label=label)
    label = name if kind == "compute" else f"{name} traffic, exposed"
    hatch = None if kind == "compute" else "///"
    return Patch(facecolor=_colour(name), hatch=hatch, edgecolor="white", label=label)


def plot_memory(result: RunResult, path: Path, *, with_csv: bool = False) -> None:
    """Draw what fills the GPUs: a bar a stage (of one step) or the fullest stage a variant.

    The line is the memory of a GPU.  Parameters and errors as of `plot_step`.
    """
    steps = [step for step in _steps(result) if step.memory]
    if not steps:
        raise CollsimError("nothing to plot: no memory was asked for")
    if len(steps) > 1:
        rows = [max(step.memory, key=lambda row: row.total_bytes) for step in steps[:_MOST_BARS]]
        names = [step.variant or step.strategy for step in steps[:_MOST_BARS]]
    else:
        rows = list(steps[0].memory[:_MOST_BARS])
        names = [f"stage {row.stage}" for row in rows] if len(rows) > 1 else ["a rank"]
    kinds = list(dict.fromkeys(name for row in rows for name in row.parts))
    with style():
        figure = new_figure(7.6, 1.7 + 0.36 * len(rows))
        axes = figure.subplots()
        for place, row in enumerate(rows):
            at = 0.0
            for index, kind in enumerate(kinds):
                size = row.parts.get(kind, 0.0) / 2**30
                axes.barh(
                    place,
                    size,
                    left=at,
                    height=0.68,
                    color=PALETTE[index % len(PALETTE)] if kind != "fragmentation" else "#d4d4d4",
                    hatch="..." if index >= len(PALETTE) else None,
                    edgecolor="white",
                    linewidth=0.4,
                )
                at += size
            limit = row.capacity_bytes / 2**30
            axes.plot([limit, limit], [place - 0.42, place + 0.42], color="#c00000", linewidth=2)
        axes.set_yticks(range(len(rows)), names)
        axes.invert_yaxis()
        axes.grid(axis="y", visible=False)
        axes.set_xlabel("GiB of a GPU; red: all that it has")
        set_title(axes, f"Memory: {result.title}")
        handles = [
            Patch(
                facecolor=PALETTE[i % len(PALETTE)] if kind != "fragmentation" else "#d4d4d4",
                hatch="..." if i >= len(PALETTE) else None,
                edgecolor="white",
                label=kind,
            )
            for i, kind in enumerate(kinds)
        ]
        axes.legend(
            handles=handles,
            loc="upper center",
            bbox_to_anchor=(0.45, -0.24 * 4.0 / (1.0 + len(rows))),
            ncols=5,
        )
    header = ("bar", "part", "bytes")
    data = [
        (name, kind, row.parts.get(kind, 0.0))
        for name, row in zip(names, rows, strict=True)
        for kind in kinds
    ]
    save(figure, path, (header, data), with_csv=with_csv)


def plot_timeline(result: RunResult, path: Path, *, with_csv: bool = False) -> None:
    """Draw what one rank of each kind computes and exchanges when: rows by rank, streams inside.

    Parameters and errors as of `plot_step`; the result needs its trace.
    """
    (step, *_) = _steps(result)
    if not result.trace:
        raise CollsimError("nothing to plot: the run kept no timeline")
    ranks = sorted({event.rank for event in result.trace})
    shown = ranks if len(ranks) <= _MOST_TIMELINES else ranks[:_MOST_TIMELINES]
    rows: list[tuple[int, str]] = []
    for rank in shown:
        own = {event.stream for event in result.trace if event.rank == rank}
        others = sorted(own - {"compute"})
        rows += [(rank, "compute"), *((rank, stream) for stream in others)]
    place = {row: index for index, row in enumerate(rows)}
    bars: dict[tuple[int, str], list[TraceEvent]] = {}
    for event in result.trace:
        row = (event.rank, event.stream)
        if row in place and event.kind != "wait":
            bars.setdefault(row, []).append(event)
    unit, scale = ("s", 1.0) if step.step_s >= 1 else ("ms", 1e3)
    used: dict[str, str] = {}
    with style():
        figure = new_figure(9.0, 1.3 + 0.2 * len(rows))
        axes = figure.subplots()
        for row, events in bars.items():
            by_colour: dict[str, list[tuple[float, float]]] = {}
            for event in events:
                name = _purpose(event)
                used.setdefault(name, _colour(name))
                span = (event.start_s * scale, (event.end_s - event.start_s) * scale)
                by_colour.setdefault(_colour(name), []).append(span)
            for colour, spans in by_colour.items():
                axes.broken_barh(spans, (place[row] - 0.4, 0.8), facecolors=colour, linewidth=0)
        axes.set_yticks(range(len(rows)), [_row_name(row) for row in rows], fontsize=7)
        axes.set_ylim(len(rows) - 0.4, -0.6)
        axes.set_xlim(0, step.step_s * scale)
        axes.grid(axis="y", visible=False)
        left = len(ranks) - len(shown)
        axes.set_xlabel(
            f"time ({unit})" + (f"; {left} more kinds of ranks not shown" if left else "")
        )
        set_title(axes, f"{result.title}: {step.strategy}")
        for index, (rank, _) in enumerate(rows):
            if index and rows[index - 1][0] != rank:
                axes.axhline(index - 0.5, color=GREY, linewidth=0.6)
        axes.legend(
            handles=[Patch(facecolor=colour, label=name) for name, colour in used.items()],
            loc="upper center",
            bbox_to_anchor=(0.45, -0.6 / (1.3 + 0.2 * len(rows))),
            ncols=6,
        )
    header = ("rank", "stream", "name", "start_s", "end_s")
    data = [
        (event.rank, event.stream, event.name, event.start_s, event.end_s)
        for events in bars.values()
        for event in events
    ]
    save(figure, path, (header, data), with_csv=with_csv)


def _purpose(event: TraceEvent) -> str:
    return str(event.args.get("purpose", "")) or event.stream


def _row_name(row: tuple[int, str]) -> str:
    rank, stream = row
    return f"rank {rank}" if stream == "compute" else stream
