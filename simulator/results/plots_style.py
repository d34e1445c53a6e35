"""How every figure of collsim looks and is saved: colours, size axes, deterministic files."""

from __future__ import annotations

import csv
import io
import logging
import os
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from simulator.base.errors import CollsimError, Problem, nearest
from simulator.results.files import write_bytes, write_text

__all__ = [
    "FORMATS",
    "GREY",
    "PALETTE",
    "Data",
    "new_figure",
    "save",
    "series_style",
    "set_title",
    "size_axis",
    "style",
]

PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Okabe and Ito, "Color Universal Design" (2008), without the yellow that white swallows."""

GREY = "#8a8a8a"
_MARKERS = "osD^vPX"
_DASHES = ("-", "--", "-.", ":")

FORMATS = ("png", "svg", "pdf")

_SETTINGS: Any = {
    "font.family": "DejaVu Sans",  # comes with matplotlib: the same everywhere
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "axes.titleweight": "bold",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e3e3e3",
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "hatch.linewidth": 0.5,
    "pdf.fonttype": 42,
    "svg.hashsalt": "collsim",
}

Data = tuple[Sequence[str], Sequence[Sequence[Any]]]
"""Header and lines of the numbers behind a figure."""


def new_figure(width_in: float, height_in: float) -> Figure:
    """Return an empty figure in the common style, without touching pyplot's global state."""
    with style():
        return Figure(figsize=(width_in, height_in), layout="constrained")


@contextmanager
def style() -> Iterator[None]:
    """Give the context in which axes are made and drawn.

    A font that is missing is replaced by another one without a word: matplotlib would print a
    line for each text.
    """
    log = logging.getLogger("matplotlib.font_manager")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with matplotlib.rc_context(_SETTINGS):
            yield
    finally:
        log.setLevel(level)


def series_style(index: int) -> dict[str, Any]:
    """Return colour, marker and dash of the series with this index: never colour alone."""
    return {
        "color": PALETTE[index % len(PALETTE)],
        "marker": _MARKERS[index % len(_MARKERS)],
        "linestyle": _DASHES[index // len(PALETTE) % len(_DASHES)],
        "markersize": 4,
        "linewidth": 1.6,
    }


def set_title(axes: Axes, title: str, *, pad: float = 6.0) -> None:
    """Write a title, on several lines where it is wider than the figure."""
    width_in = axes.figure.bbox.width / axes.figure.dpi
    # Bold 10 pt letters of DejaVu Sans are 0.09 inches wide on average.
    axes.set_title(textwrap.fill(title, int(width_in / 0.09)), pad=pad)


def _size_label(value: float, _position: int = 0) -> str:
    for scale, letter in ((2**40, "T"), (2**30, "G"), (2**20, "M"), (2**10, "K")):
        if value >= scale:
            return f"{value / scale:.3g}{letter}"
    return f"{value:.3g}"


def size_axis(axes: Axes, sizes: Sequence[int]) -> None:
    """Make x a logarithmic axis of bytes with the labels of nccl-tests: 8, 4K, 1M, 1G."""
    positive = [size for size in sizes if size > 0] or [1]
    low, high = min(positive).bit_length() - 1, (max(positive) - 1).bit_length()
    stride = max(1, -(-(high - low) // 12))
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(FixedLocator([2.0**e for e in range(low, high + 1, stride)]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(_size_label))
    axes.set_xlabel("size (bytes; K, M, G = 2¹⁰, 2²⁰, 2³⁰)")


def _csv(data: Data) -> str:
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(data[0])
    for line in data[1]:
        writer.writerow([f"{x:.12g}" if isinstance(x, float) else x for x in line])
    return buffer.getvalue()


def save(figure: Figure, path: str | os.PathLike[str], data: Data, *, with_csv: bool) -> None:
    """Write a figure by the ending of its name, and its numbers beside it on request.

    Equal figures give equal bytes: no dates, fixed identifiers.

    Raises
    ------
    CollsimError
        The ending is none of `FORMATS`, or the file cannot be written.
    """
    target = Path(path)
    suffix = target.suffix.lower().removeprefix(".")
    if suffix not in FORMATS:
        raise CollsimError(
            Problem(
                message=f"unknown picture format {target.suffix or target.name!r}",
                file=str(path),
                allowed=", ".join(f".{name}" for name in FORMATS),
                suggestion=nearest(suffix, FORMATS),
            )
        )
    metadata: dict[str, Any] = {
        "png": {"Software": None},
        "svg": {"Date": None},
        "pdf": {"CreationDate": None},
    }[suffix]
    buffer = io.BytesIO()
    with style():
        figure.savefig(buffer, format=suffix, dpi=160, metadata=metadata, facecolor="white")
    write_bytes(target, buffer.getvalue())
    if with_csv:
        write_text(target.with_suffix(".csv"), _csv(data))
