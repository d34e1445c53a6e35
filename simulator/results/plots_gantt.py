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

_COMPUTING, _IDLE, _WAITING = "compute", "in the collective, not sending", "waiting"
_SEEN = 1e-3
"""Shorter gaps than this share of the width are not seen."""

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
        self.drawn: dict[str, Patch] = {}
        """What the legend must explain: what can be seen somewhere."""

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
            self.drawn.setdefault(group, Patch(color=self.colours[group]))

    def row(self, position: int, events: Sequence[TraceEvent]) -> None:
        top = position - _ROW_HEIGHT / 2
        of_kind: dict[str, list[TraceEvent]] = {}
        for event in events:
            of_kind.setdefault(event.kind, []).append(event)
        transfers = sorted(of_kind.get("transfer", []), key=lambda e: e.start_s)
        collectives = of_kind.get("collective", [])

        waits, compute = of_kind.get("wait", []), of_kind.get("compute", [])
        look = {"facecolor": "white", "edgecolor": _WAIT_EDGE, "hatch": "////"}
        self.bars(waits, top, _ROW_HEIGHT, 2, linewidth=0.3, **look)
        if any(event.end_s > event.start_s for event in waits):
            self.drawn.setdefault(_WAITING, Patch(**look))  # type: ignore[arg-type]
        self.bars(
            compute, top, _ROW_HEIGHT, 2, facecolor=_COMPUTE, edgecolor="white", linewidth=0.5
        )
        if compute:
            self.drawn.setdefault(_COMPUTING, Patch(color=_COMPUTE))
        for event in compute:
            self.word(event, event.name, position, "black")
        if not transfers:
            self.coloured(collectives, top, _ROW_HEIGHT)
            for event in collectives:
                self.word(event, _group(event), position, "white")
            return
        self.bars(collectives, top, _ROW_HEIGHT, 1, facecolor=_ENCLOSING, linewidth=0)
        if _gap_s(collectives, transfers + waits) > _SEEN * self.span_s:
            self.drawn.setdefault(_IDLE, Patch(color=_ENCLOSING))
        placed, n_lanes = _lanes(transfers)
        height = _ROW_HEIGHT / n_lanes
        for lane in range(n_lanes):
            members = [e for e, i in zip(transfers, placed, strict=True) if i == lane]
            self.coloured(members, top + lane * height, height)
            for event in members if n_lanes <= 2 else ():
                step = event.args.get("step")
                if step is not None:
                    self.word(event, str(step), top + (lane + 0.5) * height, "white")


def _gap_s(around: Sequence[TraceEvent], inside: Sequence[TraceEvent]) -> float:
    """Return the longest time in one of some intervals that no other one covers."""
    longest_s, spans = 0.0, sorted((event.start_s, event.end_s) for event in inside)
    for event in around:
        covered_s = event.start_s
        for start_s, end_s in [*spans, (event.end_s, event.end_s)]:
            longest_s = max(longest_s, min(start_s, event.end_s) - covered_s)
            covered_s = max(covered_s, end_s)
    return longest_s


def _legend(drawn: dict[str, Patch], groups: Sequence[str]) -> list[Patch]:
    """Return the entries of what was drawn: stages or names in their order, then the kinds."""
    # Beyond the palette colours repeat, and their names would only mislead.
    names = [group for group in groups if group in drawn][: len(PALETTE)]
    names += [kind for kind in (_COMPUTING, _IDLE, _WAITING) if kind in drawn]
    for name in names:
        drawn[name].set_label(name)
    return [drawn[name] for name in names]


def _place_of_row(row: tuple[int, str]) -> tuple[bool, int]:
    """Return where a row stands among its rank's: streams as they come, then channels counted."""
    word, _, number = row[1].rpartition(" ")
    is_channel = word == "channel" and number.isdecimal()
    return is_channel, int(number) if is_channel else 0


def _choose(rows: _Rows, max_rows: int) -> tuple[_Rows, str]:
    """Return the rows that matter, and words about which: of the ranks that hold up others.

    First up to a quarter that begin late, then those that end last, and among these who waits
    least, for the others wait for them.
    """
    if len(rows) <= max_rows:
        return rows, ""
    begin_s: dict[int, float] = {}
    end_s: dict[int, float] = {}
    wait_s: dict[int, float] = {}
    n_rows: dict[int, int] = {}
    for (rank, _), events in rows.items():
        n_rows[rank] = n_rows.get(rank, 0) + 1
        first_s = min(event.start_s for event in events)
        begin_s[rank] = min(begin_s.get(rank, first_s), first_s)
        end_s[rank] = max(end_s.get(rank, 0.0), max(event.end_s for event in events))
        waits = sum(event.end_s - event.start_s for event in events if event.kind == "wait")
        wait_s[rank] = wait_s.get(rank, 0.0) + waits
    last_s = max(end_s.values())
    grain_s = max(last_s, 1e-12) * 1e-6  # closer ends are one

    def order(rank: int) -> tuple[int, int]:
        return round((last_s - end_s[rank]) / grain_s), round(wait_s[rank] / grain_s)

    chosen: set[int] = set()
    left = max_rows
    earliest_s = min(begin_s.values())
    late = [rank for rank in begin_s if begin_s[rank] - earliest_s > 1e3 * grain_s]
    late.sort(key=lambda rank: -begin_s[rank])
    ranked = late[: max_rows // 4 // max(n_rows.values())] + sorted(end_s, key=order)
    for rank in dict.fromkeys(ranked):
        if n_rows[rank] > left:
            break
        chosen.add(rank)
        left -= n_rows[rank]
    shown = {key: events for key, events in rows.items() if key[0] in chosen}
    if not shown:  # one rank alone has more rows than fit
        shown = dict(list(rows.items())[:max_rows])
    return shown, (
        f"{len(shown)} of {len(rows)} rows: {len({rank for rank, _ in shown})} of "
        f"{len(end_s)} ranks, those that begin late or end last"
    )


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
        Where there are more, those of the ranks that begin late or end last are drawn; the title
        says so.
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
    rows: _Rows = {
        key: part[key] for part in of_rank.values() for key in sorted(part, key=_place_of_row)
    }
    if not rows:
        raise CollsimError("nothing to plot: no intervals were recorded")
    shown, which = _choose(rows, max_rows)
    events = [event for members in shown.values() for event in members]
    start_s = min(event.start_s for event in events)
    end_s = max(event.end_s for event in events)
    units = ((1.0, "s"), (1e-3, "ms"))
    scale, unit = next(((s, u) for s, u in units if end_s >= s), (1e-6, "µs"))
    groups = dict.fromkeys(_group(e) for e in events if e.kind in ("transfer", "collective"))
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
        set_title(axes, f"{result.title} ({which})" if which else result.title)
        handles = _legend(chart.drawn, list(groups))
        if handles:
            figure.legend(handles=handles, loc="outside lower center", ncols=min(len(handles), 5))
    save(figure, path, _data(events), with_csv=with_csv)
