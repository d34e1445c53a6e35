"""Measured dots on the predicted line, with the band in which a healthy machine is expected."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from simulator.base.errors import CollsimError
from simulator.results.plots_style import (
    PALETTE,
    new_figure,
    save,
    set_title,
    size_axis,
    style,
)

__all__ = ["ComparedPoint", "plot_compared"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedPoint:
    """One size: bus bandwidths in bytes/s."""

    size_bytes: int
    measured_Bps: float
    predicted_Bps: float
    least_Bps: float
    """Lower edge of the expected range."""
    most_Bps: float


def plot_compared(
    points: Sequence[ComparedPoint],
    path: str | os.PathLike[str],
    *,
    title: str,
    with_csv: bool = False,
) -> None:
    """Draw measured and predicted bus bandwidth over size, on logarithmic axes.

    Parameters
    ----------
    points
        In any order; equal sizes are several dots on one line.
    path
        PNG, SVG or PDF file.
    title
        Heading.
    with_csv
        Write the numbers into a CSV file beside the figure.

    Raises
    ------
    CollsimError
        No points, an unknown format, or a file that cannot be written.
    """
    if not points:
        raise CollsimError("nothing to plot: the comparison has no rows")
    line = list({point.size_bytes: point for point in sorted(points, key=_size)}.values())
    sizes = [point.size_bytes for point in line]
    figure = new_figure(7.0, 4.2)
    with style():
        axes = figure.add_subplot()
        axes.fill_between(
            sizes,
            [point.least_Bps / 1e9 for point in line],
            [point.most_Bps / 1e9 for point in line],
            color=PALETTE[0],
            alpha=0.18,
            linewidth=0,
            label="expected range",
        )
        axes.plot(
            sizes,
            [point.predicted_Bps / 1e9 for point in line],
            color=PALETTE[0],
            linewidth=1.6,
            label="predicted",
            zorder=3,
        )
        axes.plot(
            [point.size_bytes for point in points],
            [point.measured_Bps / 1e9 for point in points],
            linestyle="none",
            marker="o",
            markersize=5,
            markerfacecolor="white",
            markeredgecolor=PALETTE[1],
            label="measured",
            zorder=4,
        )
        size_axis(axes, sizes)
        # Six decades from 8 B to 16 GiB: on a linear axis the small sizes would all be zero.
        axes.set_yscale("log")
        axes.set_ylabel("bus bandwidth (GB/s)")
        figure.legend(loc="outside lower center", ncols=3)
        set_title(axes, title)
    header = ("size_bytes", "measured_GBps", "predicted_GBps", "least_GBps", "most_GBps")
    lines = [
        [
            point.size_bytes,
            point.measured_Bps / 1e9,
            point.predicted_Bps / 1e9,
            point.least_Bps / 1e9,
            point.most_Bps / 1e9,
        ]
        for point in points
    ]
    save(figure, path, (header, lines), with_csv=with_csv)


def _size(point: ComparedPoint) -> int:
    return point.size_bytes
