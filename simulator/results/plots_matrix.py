"""Link loads of large clusters as a matrix, and what both link pictures share."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import matplotlib
import numpy as np
from matplotlib.colors import Colormap, ListedColormap
from matplotlib.figure import Figure

from simulator.results.model import LinkLoad, RunResult
from simulator.results.plots_style import new_figure, style

__all__ = [
    "TIERS",
    "TIER_NAMES",
    "UNUSED",
    "busiest_words",
    "draw_matrix",
    "load_colours",
    "load_scale_top",
]

TIERS = ("nvswitch", "gpu", "pcie_switch", "cpu", "nic", "leaf", "spine", "core")
"""From bottom to top.  Scale-up lies below the GPUs, scale-out above: the two never cross."""

TIER_NAMES = {
    "nvswitch": "NVSwitch",
    "gpu": "GPU",
    "pcie_switch": "PCIe switch",
    "cpu": "CPU",
    "nic": "NIC",
    "leaf": "leaf",
    "spine": "spine",
    "core": "core",
}

UNUSED = "#d2d2d2"

_COLUMNS = 64


def load_colours() -> Colormap:
    """Return the colours of utilisation, pale to dark; unused links are grey."""
    # The palest fifth of magma would vanish on white.
    colours = matplotlib.colormaps["magma_r"](np.linspace(0.2, 0.95, 256))
    return ListedColormap(colours).with_extremes(bad=UNUSED)


def load_scale_top(links: Sequence[LinkLoad]) -> float:
    """Return the upper end of the colour scale: 1, or for light loads the next 1, 2 or 5."""
    top = max(link.utilisation for link in links)
    if top > 0.5 or top <= 0:
        return 1.0
    power: float = 10.0 ** math.floor(math.log10(top))
    return next(step * power for step in (1, 2, 5, 10) if top <= step * power * (1 + 1e-9))


def busiest_words(links: Sequence[LinkLoad]) -> str:
    """Return which link was used most, in words."""
    link = max(links, key=lambda link: link.utilisation)
    share = f"{100 * link.utilisation:.3g} % of its capacity over the run"
    return f"Busiest: {link.name} ({link.kind}), {share}"


def draw_matrix(result: RunResult) -> Figure:
    """Draw the largest utilisation by tier (rows) and position in the cluster (columns)."""
    kinds = {vertex.name: vertex.kind for vertex in result.vertices}
    groups: dict[tuple[str, str, str], list[LinkLoad]] = {}
    for link in result.links:
        key = (kinds.get(link.src, ""), kinds.get(link.dst, ""), link.kind)
        groups.setdefault(key, []).append(link)

    def tier(key: tuple[str, str, str]) -> tuple[int, ...]:
        return tuple(sorted((TIERS.index(kind) if kind in TIERS else -1) for kind in key[:2]))

    ordered = sorted(groups, key=tier, reverse=True)
    grid = np.full((len(ordered), _COLUMNS), np.nan)
    labels, remarks = [], []
    loaded = any(link.wire_bytes > 0 for link in result.links)
    for line, key in enumerate(ordered):
        loads = np.array([link.utilisation for link in groups[key]])
        parts = np.array_split(loads, min(_COLUMNS, len(loads)))
        edges = np.linspace(0, _COLUMNS, len(parts) + 1).round().astype(int)
        for part, (a, b) in zip(parts, pairwise(edges), strict=True):
            grid[line, a:b] = part.max() or np.nan
        ends = [TIER_NAMES.get(kind, kind) for kind in key[:2]]
        labels.append(f"{ends[0]} → {ends[1]}\n{key[2]}" if all(ends) else key[2])
        mean, most = 100 * loads.mean(), 100 * loads.max()
        used = f"mean {mean:.3g} %, max {most:.3g} %"
        if not loaded:
            rates = {f"{link.capacity_Bps / 1e9:.4g}" for link in groups[key]}
            used = " or ".join(sorted(rates, key=float)[:3]) + " GB/s"
        remarks.append(f"{len(loads):,} links\n{used}")
    figure = new_figure(9.0, 1.7 + 0.4 * len(ordered))
    with style():
        axes = figure.add_subplot()
        axes.grid(visible=False)
        image = axes.imshow(
            100 * grid,
            aspect="auto",
            cmap=load_colours(),
            vmin=0,
            vmax=100 * load_scale_top(result.links),
            interpolation="nearest",
        )
        axes.set_yticks(range(len(ordered)), labels, fontsize=7.5)
        axes.set_yticks(np.arange(len(ordered) + 1) - 0.5, minor=True)
        axes.grid(which="minor", axis="y", color="white", linewidth=2.5, visible=True)
        axes.tick_params(which="both", length=0)
        axes.set_xticks([0, _COLUMNS - 1], ["first link", "last link"], fontsize=7.5)
        for label, side in zip(axes.get_xticklabels(), ("left", "right"), strict=True):
            label.set_horizontalalignment(side)  # type: ignore[arg-type]
        for line, remark in enumerate(remarks):
            axes.text(_COLUMNS + 0.2, line, remark, va="center", fontsize=7.5)
        for spine in axes.spines.values():
            spine.set_visible(False)
        figure.suptitle(result.title, x=0.01, ha="left", fontsize=10, weight="bold")
        words = (
            f"{busiest_words(result.links)}. Colour: most loaded link of each group; grey: unused."
        )
        if not loaded:
            words = "Directed links by tier and kind, with their capacity; nothing was sent."
        axes.set_title(words, fontsize=7.5, weight="normal", color="#444444", loc="left", pad=4)
        if not loaded:
            return figure
        bar = figure.colorbar(
            image, ax=axes, orientation="horizontal", shrink=0.35, aspect=30, pad=0.01
        )
        bar.outline.set_visible(False)
        bar.ax.tick_params(labelsize=7.5)
        bar.set_label("% of capacity used", fontsize=7.5)
    return figure
