"""The step-by-step Gantt: ranks over time, transfer, compute and waiting apart."""

from __future__ import annotations

import os
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.patches import Patch

from simulator.base.errors import CollsimError
from simulator.results.model import RunResult, TraceEvent
from simulator.results.plots_style import PALETTE, new_figure, save, style

__all__ = ["plot_gantt"]

_COMPUTE = "#bfbfbf"
_COLLECTIVE = "#d6e6f2"
_WAIT_EDGE = "#b0b0b0"
_ROW_HEIGHT = 0.8


def _stage(event: TraceEvent) -> str:
    """Return what a transfer's colour stands for: its stage, or else its name."""
    return str(event.args.get("stage", event.name))


def _lanes(events: Sequence[TraceEvent]) -> tuple[list[int], int]:
    """Return a lane for each event so that none overlap in a lane, and the number of lanes."""
    ends: list[float] = []
    placed: list[int] = []
    for event in events:
        for lane, end_s in enumerate(ends):
            if end_s <= event.start_s * (1 + 1e-12):
                ends[lane] = event.end_s
                placed.append(lane)
                break
        else:
            ends.append(event.end_s)
            placed.append(len(ends) - 1)
    return placed, max(len(ends), 1)


def _draw_row(
    axes: Axes,
    position: int,
    events: Sequence[TraceEvent],
    colours: dict[str, str],
    scale: float,
    span_s: float,
) -> None:
    top = position - _ROW_HEIGHT / 2

    def bars(kind: str, **look: object) -> None:
        spans = [
            ((event.start_s) / scale, (event.end_s - event.start_s) / scale)
            for event in events
            if event.kind == kind
        ]
        if spans:
            axes.broken_barh(spans, (top, _ROW_HEIGHT), **look)  # type: ignore[arg-type]

    bars("collective", facecolor=_COLLECTIVE, edgecolor=PALETTE[0], linewidth=0.4, zorder=1)
    bars("wait", facecolor="white", edgecolor=_WAIT_EDGE, hatch="////", linewidth=0.3, zorder=2)
    bars("compute", facecolor=_COMPUTE, edgecolor="white", linewidth=0.4, zorder=2)
    transfers = sorted((e for e in events if e.kind == "transfer"), key=lambda e: e.start_s)
    placed, n_lanes = _lanes(transfers)
    height = _ROW_HEIGHT / n_lanes
    for event, lane in zip(transfers, placed, strict=True):
        width = event.end_s - event.start_s
        axes.broken_barh(
            [(event.start_s / scale, width / scale)],
            (top + lane * height, height),
            facecolor=colours[_stage(event)],
            edgecolor="white",
            linewidth=0.5,
            zorder=3,
        )
        if "step" in event.args and n_lanes <= 2 and width > 0.022 * span_s:
            axes.text(
                (event.start_s + width / 2) / scale,
                top + (lane + 0.5) * height,
                str(event.args["step"]),
                ha="center",
                va="center",
                fontsize=6.5,
                color="white",
                zorder=4,
            )


def plot_gantt(
    result: RunResult,
    path: str | os.PathLike[str],
    *,
    ranks: Sequence[int] | None = None,
    max_rows: int = 64,
    with_csv: bool = False,
) -> None:
    """Draw what every rank does when: transfers by stage with step numbers, waiting hatched.

    Parameters
    ----------
    result
        Its ``trace`` is drawn; transfers with ``args["stage"]`` and ``args["step"]`` are
        coloured and numbered by them.
    path
        PNG, SVG or PDF file.
    ranks
        Which ranks to draw, in this order; all when None.
    max_rows
        Further rows are left out, and the title says so.
    with_csv
        Write the intervals into a CSV file beside the figure.

    Raises
    ------
    CollsimError
        No intervals were recorded, an unknown format, or a file that cannot be written.
    """
    wanted = sorted({event.rank for event in result.trace}) if ranks is None else list(ranks)
    rows: dict[tuple[int, str], list[TraceEvent]] = {}
    for rank in wanted:
        for event in (e for e in result.trace if e.rank == rank):
            rows.setdefault((rank, event.stream), []).append(event)
    if not rows:
        raise CollsimError("nothing to plot: no intervals were recorded")
    shown = dict(list(rows.items())[:max_rows])
    events = [event for members in shown.values() for event in members]
    end_s = max(event.end_s for event in events)
    start_s = min(event.start_s for event in events)
    scale, unit = next(((s, u) for s, u in ((1.0, "s"), (1e-3, "ms")) if end_s >= s), (1e-6, "µs"))
    stages = list(dict.fromkeys(_stage(e) for e in events if e.kind == "transfer"))
    colours = {stage: PALETTE[i % len(PALETTE)] for i, stage in enumerate(stages)}

    row_in = 0.26 if len(shown) <= 16 else 0.18 if len(shown) <= 32 else 0.13
    figure = new_figure(9.0, 1.4 + row_in * len(shown))
    with style():
        axes = figure.add_subplot()
        axes.grid(axis="y", visible=False)
        for position, members in enumerate(shown.values()):
            _draw_row(axes, position, members, colours, scale, end_s - start_s)
        several = len({stream for _, stream in shown}) > 1
        labels = [f"{rank} {stream}" if several else f"{rank}" for rank, stream in shown]
        axes.set_yticks(range(len(shown)), labels, fontsize=8 if row_in > 0.15 else 5.5)
        axes.set_ylabel("rank, stream" if several else "rank")
        axes.set_ylim(len(shown) - 0.4, -0.6)
        axes.set_xlim(start_s / scale, end_s / scale)
        axes.set_xlabel(f"time ({unit})")
        left = len(rows) - len(shown)
        axes.set_title(result.title + (f" ({len(shown)} of {len(rows)} rows)" if left else ""))
        kinds = {event.kind for event in events}
        handles = [Patch(color=colour, label=stage) for stage, colour in colours.items()][:7]
        if "compute" in kinds:
            handles.append(Patch(color=_COMPUTE, label="compute"))
        if "collective" in kinds:
            handles.append(Patch(facecolor=_COLLECTIVE, edgecolor=PALETTE[0], label="collective"))
        if "wait" in kinds:
            handles.append(
                Patch(facecolor="white", edgecolor=_WAIT_EDGE, hatch="////", label="waiting")
            )
        figure.legend(handles=handles, loc="outside lower center", ncols=min(len(handles), 5))
    header = ("rank", "stream", "kind", "name", "stage", "step", "start_us", "end_us")
    data = [
        [
            event.rank,
            event.stream,
            event.kind,
            event.name,
            event.args.get("stage", ""),
            event.args.get("step", ""),
            event.start_s * 1e6,
            event.end_s * 1e6,
        ]
        for event in events
    ]
    save(figure, path, (header, data), with_csv=with_csv)
