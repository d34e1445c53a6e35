"""The step-by-step Gantt: ranks over time, transfer, compute and waiting apart."""

from __future__ import annotations

import os
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.patches import Patch

from simulator.base.errors import CollsimError
from simulator.results.model import RunResult, TraceEvent
from simulator.results.plots_style import PALETTE, Data, new_figure, save, set_title, style

__all__ = ["plot_gantt"]

_COMPUTE = "#c4c4c4"
_ENCLOSING = "#e4eef6"
_WAIT_EDGE = "#b0b0b0"
_ROW_HEIGHT = 0.8
_WIDTH_IN = 9.0
_PLOT_IN = 8.0
"""Width of the axes, nearly: decides which words fit into their bars."""

Spans = list[tuple[float, float]]
_Rows = dict[tuple[int, str], list[TraceEvent]]


def _short(name: str) -> str:
    """Return a kernel's name without prefix and types: ``AllReduce``."""
    return name.removeprefix("ncclDevKernel_").split("_")[0] if "ncclDev" in name else name


def _group(event: TraceEvent) -> str:
    """Return what a bar's colour stands for: its stage, or else its name."""
    return str(event.args.get("stage", _short(event.name)))


def _lanes(events: Sequence[TraceEvent]) -> tuple[list[int], int]:
    """Return a lane for each event so that none overlap in a lane, and the number of lanes."""
    ends: list[float] = []
    placed: list[int] = []
    for event in events:
        # A picosecond of grace: ends and starts of neighbours are computed in different ways.
        lane = next((i for i, end in enumerate(ends) if end <= event.start_s + 1e-12), len(ends))
        if lane == len(ends):
            ends.append(0.0)
        ends[lane] = event.end_s
        placed.append(lane)
    return placed, max(len(ends), 1)


class _Chart:
    """Axes with a time scale, onto which rows are drawn."""

    def __init__(
        self, axes: Axes, colours: dict[str, str], scale: float, span_s: float, n_bars: int
    ) -> None:
        self.axes = axes
        self.colours = colours
        self.scale = scale
        self.span_s = span_s
        self.line = 0.5 if n_bars < 2000 else 0.0  # white edges would swallow thin bars

    def bars(
        self, events: Sequence[TraceEvent], top: float, height: float, zorder: int, **look: object
    ) -> None:
        spans = [(e.start_s / self.scale, (e.end_s - e.start_s) / self.scale) for e in events]
        if spans:
            self.axes.broken_barh(spans, (top, height), zorder=zorder, **look)  # type: ignore[arg-type]

    def word(self, event: TraceEvent, text: str, y: float, colour: str) -> None:
        """Write into the bar of an event, if the text fits."""
        inches = (event.end_s - event.start_s) / self.span_s * _PLOT_IN
        if len(text) * 0.065 + 0.05 > inches:
            return
        self.axes.text(
            (event.start_s + event.end_s) / 2 / self.scale,
            y,
            text,
            ha="center",
            va="center_baseline",
            fontsize=6.5,
            color=colour,
            zorder=5,
        )

    def coloured(self, events: Sequence[TraceEvent], top: float, height: float) -> None:
        for group in dict.fromkeys(map(_group, events)):
            members = [event for event in events if _group(event) == group]
            look = {"facecolor": self.colours[group], "edgecolor": "white", "linewidth": self.line}
            self.bars(members, top, height, 3, **look)

    def row(self, position: int, events: Sequence[TraceEvent]) -> None:
        top = position - _ROW_HEIGHT / 2
        of_kind: dict[str, list[TraceEvent]] = {}
        for event in events:
            of_kind.setdefault(event.kind, []).append(event)
        transfers = sorted(of_kind.get("transfer", []), key=lambda e: e.start_s)
        collectives = of_kind.get("collective", [])

        self.bars(
            of_kind.get("wait", []),
            top,
            _ROW_HEIGHT,
            2,
            facecolor="white",
            edgecolor=_WAIT_EDGE,
            hatch="////",
            linewidth=0.3,
        )
        compute = of_kind.get("compute", [])
        self.bars(
            compute, top, _ROW_HEIGHT, 2, facecolor=_COMPUTE, edgecolor="white", linewidth=0.5
        )
        for event in compute:
            self.word(event, event.name, position, "black")
        if not transfers:
            self.coloured(collectives, top, _ROW_HEIGHT)
            for event in collectives:
                self.word(event, _group(event), position, "white")
            return
        self.bars(collectives, top, _ROW_HEIGHT, 1, facecolor=_ENCLOSING, linewidth=0)
        placed, n_lanes = _lanes(transfers)
        height = _ROW_HEIGHT / n_lanes
        for lane in range(n_lanes):
            members = [e for e, i in zip(transfers, placed, strict=True) if i == lane]
            self.coloured(members, top + lane * height, height)
            for event in members if n_lanes <= 2 else ():
                step = event.args.get("step")
                if step is not None:
                    self.word(event, str(step), top + (lane + 0.5) * height, "white")


def _legend(events: Sequence[TraceEvent], colours: dict[str, str]) -> list[Patch]:
    kinds = {event.kind for event in events}
    handles = [Patch(color=colour, label=group) for group, colour in colours.items()]
    # Beyond the palette colours repeat, and their names would only mislead.
    handles = handles[: len(PALETTE)]
    if "compute" in kinds:
        handles.append(Patch(color=_COMPUTE, label="compute"))
    if {"collective", "transfer"} <= kinds:
        handles.append(Patch(color=_ENCLOSING, label="in the collective, not sending"))
    if "wait" in kinds:
        look = {"facecolor": "white", "edgecolor": _WAIT_EDGE, "hatch": "////"}
        handles.append(Patch(**look, label="waiting"))  # type: ignore[arg-type]
    return handles


def _data(events: Sequence[TraceEvent]) -> Data:
    header = ("rank", "stream", "kind", "name", "stage", "step", "start_us", "end_us")
    return header, [
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
        coloured and numbered by them.  Collectives without transfers are coloured by name.
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
    of_rank: dict[int, _Rows] = {rank: {} for rank in wanted}
    for event in result.trace:
        if event.rank in of_rank:
            of_rank[event.rank].setdefault((event.rank, event.stream), []).append(event)
    rows: _Rows = {key: events for part in of_rank.values() for key, events in part.items()}
    if not rows:
        raise CollsimError("nothing to plot: no intervals were recorded")
    shown = dict(list(rows.items())[:max_rows])
    events = [event for members in shown.values() for event in members]
    start_s = min(event.start_s for event in events)
    end_s = max(event.end_s for event in events)
    units = ((1.0, "s"), (1e-3, "ms"))
    scale, unit = next(((s, u) for s, u in units if end_s >= s), (1e-6, "µs"))
    bars = [e for e in events if e.kind == "transfer"]
    bars += [e for e in events if e.kind == "collective" and not bars]
    groups = dict.fromkeys(_group(e) for e in events if e.kind in ("transfer", "collective"))
    used = {_group(e) for e in bars}
    colours = {group: PALETTE[i % len(PALETTE)] for i, group in enumerate(groups)}

    row_in = 0.26 if len(shown) <= 16 else 0.18 if len(shown) <= 32 else 0.13
    figure = new_figure(_WIDTH_IN, 1.4 + row_in * len(shown))
    with style():
        axes = figure.add_subplot()
        axes.grid(axis="y", visible=False)
        chart = _Chart(axes, colours, scale, max(end_s - start_s, 1e-12), len(events))
        for position, members in enumerate(shown.values()):
            chart.row(position, members)
        several = len({stream for _, stream in shown}) > 1
        labels = [f"{rank} {stream}" if several else f"{rank}" for rank, stream in shown]
        axes.set_yticks(range(len(shown)), labels, fontsize=8 if row_in > 0.15 else 5.5)
        axes.set_ylabel("rank, stream" if several else "rank")
        axes.set_ylim(len(shown) - 0.4, -0.6)
        axes.set_xlim(start_s / scale, end_s / scale)
        axes.set_xlabel(f"time ({unit})")
        cut = f" ({len(shown)} of {len(rows)} rows)" if len(shown) < len(rows) else ""
        set_title(axes, result.title + cut)
        handles = _legend(events, {g: c for g, c in colours.items() if g in used})
        figure.legend(handles=handles, loc="outside lower center", ncols=min(len(handles), 5))
    save(figure, path, _data(events), with_csv=with_csv)
