"""Figures of sweeps and comparisons: bandwidth over size, bars of variants, scaling lines.

The step-by-step Gantt is in `plots_gantt`, the link-load map in `plots_links`; both are public
from here.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from itertools import groupby, pairwise
from typing import Literal

from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from simulator.base.errors import CollsimError
from simulator.base.units import format_size, format_time
from simulator.results.model import Row, RunResult
from simulator.results.plots_gantt import plot_gantt
from simulator.results.plots_links import plot_link_load
from simulator.results.plots_style import (
    GREY,
    PALETTE,
    new_figure,
    save,
    series_style,
    set_title,
    size_axis,
    style,
)

__all__ = ["plot_comparison", "plot_gantt", "plot_link_load", "plot_scaling", "plot_sweep"]

Path = str | os.PathLike[str]


def _series(rows: Sequence[Row], x: Callable[[Row], int]) -> dict[str, list[Row]]:
    """Group rows into lines: by variant, and by collective, algorithm, protocol where needed.

    A tuned sweep changes its algorithm with the size and is still one line: a further name is
    used only while an x value would occur twice in a line.
    """
    several = len({row.collective for row in rows}) > 1
    names = ["variant", "collective"] if several else ["variant"]
    for name in ("algorithm", "protocol", "n_channels"):
        groups: dict[tuple[object, ...], list[int]] = {}
        for row in rows:
            groups.setdefault(tuple(getattr(row, n) for n in names), []).append(x(row))
        if all(len(set(values)) == len(values) for values in groups.values()):
            break
        names.append(name)
    series: dict[str, list[Row]] = {}
    for row in rows:
        label = " ".join(str(getattr(row, n)) for n in names if getattr(row, n) not in ("", None))
        series.setdefault(label, []).append(row)
    return {label: sorted(members, key=x) for label, members in series.items()}


def _rows(rows: Sequence[Row]) -> Sequence[Row]:
    if not rows:
        raise CollsimError("nothing to plot: the result has no rows")
    return rows


def _equal(a: Sequence[tuple[int, float]], b: Sequence[tuple[int, float]]) -> bool:
    """Tell whether two curves would lie on one another."""
    return len(a) == len(b) and all(
        x == u and math.isclose(y, v, rel_tol=1e-6) for (x, y), (u, v) in zip(a, b, strict=True)
    )


def _mark_choices(axes: Axes, rows: Sequence[Row]) -> None:
    """Write above the axes which algorithm and protocol the sizes use."""
    runs = [
        list(group) for _, group in groupby(rows, key=lambda row: (row.algorithm, row.protocol))
    ]
    if len(runs) < 2:
        return
    borders = [(a[-1].size_bytes * b[0].size_bytes) ** 0.5 for a, b in pairwise(runs)]
    for border in borders:
        axes.axvline(border, color=GREY, linewidth=0.8, linestyle=":")
    edges = [rows[0].size_bytes, *borders, rows[-1].size_bytes]
    for i, run in enumerate(runs):
        centre = max(edges[i] * edges[i + 1], 1) ** 0.5
        axes.text(
            centre,
            1.005,
            f"{run[0].called}\n{run[0].protocol}",
            transform=axes.get_xaxis_transform(),
            ha="center",
            va="bottom",
            fontsize=7,
            color="#444444",
        )


def _band(axes: Axes, rows: Sequence[Row], value: Callable[[Row], float], colour: str) -> None:
    """Shade the expected range of a line; nothing where the rows tell none."""
    told = [row for row in rows if row.uncertainty_s is not None and row.time_s > 0]
    shares = [1.0 + (row.uncertainty_s or 0.0) / row.time_s for row in told]
    axes.fill_between(
        [row.size_bytes for row in told],
        [value(row) / share for row, share in zip(told, shares, strict=True)],
        [value(row) * share for row, share in zip(told, shares, strict=True)],
        color=colour,
        alpha=0.13,
        linewidth=0,
        zorder=1,
    )


def plot_sweep(
    result: RunResult,
    path: Path,
    *,
    quantity: Literal["busbw", "time"] = "busbw",
    measured: Sequence[Row] = (),
    with_csv: bool = False,
) -> None:
    """Draw bus bandwidth or time over size, one line a variant or algorithm.

    Parameters
    ----------
    result
        Its rows are drawn, with the bandwidth bound where it is known.
    path
        PNG, SVG or PDF file.
    quantity
        ``busbw`` on a linear axis, ``time`` on a logarithmic one.
    measured
        Measurements, drawn as hollow dots.
    with_csv
        Write the numbers into a CSV file beside the figure.

    Raises
    ------
    CollsimError
        No rows, an unknown format, or a file that cannot be written.
    """
    series = _series(_rows(result.rows), lambda row: row.size_bytes)

    def value(row: Row) -> float:
        return row.busbw_Bps / 1e9 if quantity == "busbw" else row.time_s * 1e6

    def bound(row: Row) -> float | None:
        if row.bound_s is None or row.bound_s <= 0:
            return None
        factor = row.time_s / row.bound_s
        return value(row) * factor if quantity == "busbw" else value(row) / factor

    lines: list[list[object]] = []
    bounds: dict[int, list[tuple[int, float]]] = {}
    figure = new_figure(7.0, 4.2)
    with style():
        axes = figure.add_subplot()
        for index, (label, rows) in enumerate(series.items()):
            axes.plot(
                [row.size_bytes for row in rows],
                [value(row) for row in rows],
                label=label or rows[0].collective,
                zorder=3,
                **series_style(index),
            )
            _band(axes, rows, value, PALETTE[index % len(PALETTE)])
            lines += [[label, "predicted", row.size_bytes, value(row), bound(row)] for row in rows]
            curve = [(row.size_bytes, b) for row in rows if (b := bound(row)) is not None]
            if curve and not any(_equal(curve, other) for other in bounds.values()):
                bounds[index] = curve
        for number, (index, curve) in enumerate(bounds.items()):
            axes.plot(
                [size for size, _ in curve],
                [b for _, b in curve],
                color="#333333" if len(bounds) == 1 else PALETTE[index % len(PALETTE)],
                linewidth=1.0,
                linestyle=(0, (5, 3)),
                label="bandwidth bound" if number == 0 else None,
                zorder=2,
            )
        if measured:
            axes.plot(
                [row.size_bytes for row in measured],
                [value(row) for row in measured],
                linestyle="none",
                marker="o",
                markersize=6,
                markerfacecolor="white",
                markeredgecolor="black",
                label="measured",
                zorder=4,
            )
            lines += [[row.label, "measured", row.size_bytes, value(row), None] for row in measured]
        size_axis(axes, [row.size_bytes for row in (*result.rows, *measured)])
        if quantity == "busbw":
            axes.set_ylim(bottom=0)
            axes.set_ylabel("bus bandwidth (GB/s)")
        else:
            axes.set_yscale("log")
            axes.set_ylabel("time (µs)")
            # The bound of tiny sizes is nothing: it must not squeeze the rest.
            times = [value(row) for row in (*result.rows, *measured) if row.time_s > 0]
            axes.set_ylim(bottom=0.4 * min(times, default=1.0))
        figure.legend(loc="outside lower center", ncols=4)
        pad = 6.0
        if len(series) == 1:
            rows = next(iter(series.values()))
            _mark_choices(axes, rows)
            pad = 24.0 if len({(row.algorithm, row.protocol) for row in rows}) > 1 else pad
        set_title(axes, result.title, pad=pad)
    unit = "busbw_GBps" if quantity == "busbw" else "time_us"
    header = ("series", "source", "size_bytes", unit, f"bound_{unit}")
    save(figure, path, (header, lines), with_csv=with_csv)


def plot_comparison(
    rows: Sequence[Row],
    path: Path,
    *,
    title: str = "Comparison",
    size_bytes: int | None = None,
    with_csv: bool = False,
) -> None:
    """Draw the variants of a comparison as bars of time, with what binds each.

    Parameters
    ----------
    rows
        Rows of all variants.
    path
        PNG, SVG or PDF file.
    title
        Heading.
    size_bytes
        Which size is compared; the largest when None.
    with_csv
        Write the numbers into a CSV file beside the figure.

    Raises
    ------
    CollsimError
        No row of that size, an unknown format, or a file that cannot be written.
    """
    size = max(row.size_bytes for row in _rows(rows)) if size_bytes is None else size_bytes
    chosen = [row for row in rows if row.size_bytes == size]
    if not chosen:
        raise CollsimError(f"nothing to plot: no row of {format_size(size)}")
    longest = max(row.time_s for row in chosen) or 1.0
    scale, unit = next(
        ((s, u) for s, u in ((1.0, "s"), (1e-3, "ms")) if longest >= s), (1e-6, "µs")
    )
    figure = new_figure(7.0, 1.3 + 0.36 * len(chosen))
    with style():
        axes = figure.add_subplot()
        axes.grid(axis="y", visible=False)
        for position, row in enumerate(chosen):
            width = row.time_s / scale
            axes.barh(position, width, height=0.68, color=PALETTE[0], zorder=2)
            if row.bound_s is not None:
                axes.plot(
                    [row.bound_s / scale] * 2,
                    [position - 0.4, position + 0.4],
                    color="black",
                    linewidth=1.8,
                    zorder=3,
                    label="bandwidth bound" if position == 0 else None,
                )
            percent = row.percent_of_bound
            told = [format_time(row.time_s, 3), f"{row.busbw_Bps / 1e9:.3g} GB/s"]
            told += [] if percent is None else [f"{percent:.0f} % of bound"]
            axes.text(
                1.01,
                position,
                "\n".join([" · ".join(told[:2]), *told[2:]]),
                transform=axes.get_yaxis_transform(),
                va="center",
                fontsize=7.5,
            )
        axes.set_yticks(
            range(len(chosen)),
            [f"{row.label}\n{row.binding_link or 'latency'}" for row in chosen],
            fontsize=8,
        )
        axes.margins(y=0.02)
        axes.invert_yaxis()
        axes.set_xlabel(f"time ({unit})")
        set_title(axes, f"{title} ({format_size(size)})")
        if any(row.bound_s is not None for row in chosen):
            figure.legend(loc="outside lower right")
    header = ("variant", "time_us", "busbw_GBps", "bound_us", "binding_link")
    data = [
        [
            row.label,
            row.time_s * 1e6,
            row.busbw_Bps / 1e9,
            None if row.bound_s is None else row.bound_s * 1e6,
            row.binding_link,
        ]
        for row in chosen
    ]
    save(figure, path, (header, data), with_csv=with_csv)


def plot_scaling(
    rows: Sequence[Row],
    path: Path,
    *,
    title: str = "Scaling",
    quantity: Literal["busbw", "time"] = "busbw",
    with_csv: bool = False,
) -> None:
    """Draw bus bandwidth or time over the number of ranks, one line a variant.

    Parameters
    ----------
    rows
        Rows of one size, of several world sizes.
    path
        PNG, SVG or PDF file.
    title
        Heading.
    quantity
        ``busbw`` or ``time``.
    with_csv
        Write the numbers into a CSV file beside the figure.

    Raises
    ------
    CollsimError
        No rows, an unknown format, or a file that cannot be written.
    """
    series = _series(_rows(rows), lambda row: row.world_size)

    def value(row: Row) -> float:
        return row.busbw_Bps / 1e9 if quantity == "busbw" else row.time_s * 1e6

    lines: list[list[object]] = []
    worlds = sorted({row.world_size for row in rows})
    figure = new_figure(7.0, 4.0)
    with style():
        axes = figure.add_subplot()
        for index, (label, members) in enumerate(series.items()):
            axes.plot(
                [row.world_size for row in members],
                [value(row) for row in members],
                label=label or members[0].collective,
                **series_style(index),
            )
            lines += [[label, row.world_size, row.n_nodes, value(row)] for row in members]
        axes.set_xscale("log", base=2)
        # At most twelve labels, the last world among them.
        shown = worlds[:: -max(1, -(-len(worlds) // 12))]
        axes.xaxis.set_major_locator(FixedLocator([float(world) for world in shown]))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:.0f}"))
        axes.set_xlabel("ranks (GPUs)")
        axes.set_ylim(bottom=0)
        axes.set_ylabel("bus bandwidth (GB/s)" if quantity == "busbw" else "time (µs)")
        set_title(axes, title)
        axes.legend(loc="best")
    unit = "busbw_GBps" if quantity == "busbw" else "time_us"
    save(figure, path, (("series", "world_size", "n_nodes", unit), lines), with_csv=with_csv)
