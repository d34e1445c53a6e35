"""The link-load map: utilisation drawn on the topology, or as a matrix for large clusters."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.collections import LineCollection, PatchCollection
from matplotlib.colors import Colormap, ListedColormap, Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from simulator.base.errors import CollsimError
from simulator.results.model import LinkLoad, RunResult, Vertex
from simulator.results.plots_style import Data, new_figure, save, style

__all__ = ["plot_link_load"]

# Scale-up below the GPUs, scale-out above them: the two fabrics then never cross.
_TIERS = ("nvswitch", "gpu", "pcie_switch", "cpu", "nic", "leaf", "spine", "core")
_TIER_NAMES = {
    "nvswitch": "NVSwitch",
    "gpu": "GPU",
    "pcie_switch": "PCIe switch",
    "cpu": "CPU",
    "nic": "NIC",
    "leaf": "leaf",
    "spine": "spine",
    "core": "core",
}
_MARGIN_IN = 1.0
_UNUSED = "#dddddd"


@dataclass(frozen=True, slots=True)
class _Layout:
    """Positions in inches, so that offsets and widths mean the same in both directions."""

    at: dict[str, tuple[float, float]]
    spans: dict[int, tuple[float, float]]
    """Left and right border of each node."""
    tiers: dict[str, float]
    """Height of each tier."""
    slot_in: float
    width_in: float
    height_in: float


def _colormap() -> Colormap:
    # The palest fifth of magma would vanish on white.
    return ListedColormap(matplotlib.colormaps["magma_r"](np.linspace(0.2, 0.95, 256)))


def _scale_top(links: Sequence[LinkLoad]) -> float:
    """Return the upper end of the colour scale: 1, or for light loads the next 1, 2 or 5."""
    top = max((link.utilisation for link in links), default=0.0)
    if top > 0.5 or top <= 0:
        return 1.0
    power: float = 10.0 ** math.floor(math.log10(top))
    return next(step * power for step in (1, 2, 5, 10) if top <= step * power * (1 + 1e-9))


def _layout(vertices: Sequence[Vertex], links: Sequence[LinkLoad]) -> _Layout:
    tiers = [kind for kind in _TIERS if any(vertex.kind == kind for vertex in vertices)]
    neighbours: dict[str, list[str]] = {vertex.name: [] for vertex in vertices}
    for link in links:
        if link.src in neighbours and link.dst in neighbours:
            neighbours[link.src].append(link.dst)
            neighbours[link.dst].append(link.src)

    nodes = sorted({vertex.node for vertex in vertices if vertex.node is not None})
    slots = {
        node: max(
            2,
            *(
                sum(vertex.node == node and vertex.kind == kind for vertex in vertices)
                for kind in tiers
            ),
        )
        for node in nodes
    }
    n_slots = sum(slots.values()) + max(len(nodes) - 1, 0)
    width_in = min(max(n_slots * 0.34, 5.5), 19.0)
    slot_in = width_in / max(n_slots, 1)
    tier_in = 1.05 if width_in < 12 else 1.35
    heights = {kind: 0.75 + i * tier_in for i, kind in enumerate(tiers)}

    spans: dict[int, tuple[float, float]] = {}
    left = _MARGIN_IN
    for node in nodes:
        spans[node] = (left, left + slots[node] * slot_in)
        left += (slots[node] + 1) * slot_in

    at: dict[str, tuple[float, float]] = {}
    order = {vertex.name: i for i, vertex in enumerate(vertices)}

    def spread(members: Sequence[Vertex], span: tuple[float, float], height: float) -> None:
        def centre(vertex: Vertex) -> float:
            xs = [at[name][0] for name in neighbours[vertex.name] if name in at]
            return sum(xs) / len(xs) if xs else span[0]

        ranked = sorted(members, key=lambda v: (round(centre(v), 6), order[v.name]))
        for i, vertex in enumerate(ranked):
            share = (i + 0.5) / len(ranked)
            at[vertex.name] = (span[0] + share * (span[1] - span[0]), height)

    whole = (_MARGIN_IN, _MARGIN_IN + width_in)
    # GPUs first: all others are placed by the neighbours that already have a place.
    for kind in sorted(tiers, key=lambda kind: (kind != "gpu", _TIERS.index(kind))):
        members = [vertex for vertex in vertices if vertex.kind == kind]
        for node in nodes:
            inside = [vertex for vertex in members if vertex.node == node]
            if inside:
                spread(inside, spans[node], heights[kind])
        shared = [vertex for vertex in members if vertex.node is None]
        if shared:
            spread(shared, whole, heights[kind])
    return _Layout(
        at=at,
        spans=spans,
        tiers=heights,
        slot_in=slot_in,
        width_in=width_in + _MARGIN_IN + 0.9,
        height_in=max(heights.values()) + 1.15,
    )


def _curve(a: tuple[float, float], b: tuple[float, float], upward: bool) -> np.ndarray:
    """Return a polyline from *a* to *b*: straight between tiers, an arc within one.

    It is shifted to the right of the direction of travel, so that both directions are seen.
    """
    length = math.hypot(b[0] - a[0], b[1] - a[1]) or 1.0
    shift = 0.022
    normal = ((b[1] - a[1]) / length * shift, -(b[0] - a[0]) / length * shift)
    start, end = np.add(a, normal), np.add(b, normal)
    if a[1] != b[1]:
        return np.array([start, end])
    t = np.linspace(0.0, 1.0, 17)
    # Rise with the distance, but stay below the next tier.
    rise = min(0.16 + 0.10 * length, 0.62) * (1 if upward else -1)
    rise += shift if b[0] > a[0] else -shift
    xs = a[0] + t * (b[0] - a[0])
    return np.column_stack([xs, a[1] + 4 * rise * t * (1 - t)])


def _draw_links(axes: Axes, layout: _Layout, links: Sequence[LinkLoad], top: float) -> None:
    drawable = [link for link in links if link.src in layout.at and link.dst in layout.at]
    drawable.sort(key=lambda link: link.utilisation)
    lowest = min(layout.tiers.values())
    paths, colours, widths = [], [], []
    cmap = _colormap()
    for link in drawable:
        a, b = layout.at[link.src], layout.at[link.dst]
        # Arcs of the lowest tier hang below it, where there is nothing to cross.
        paths.append(_curve(a, b, upward=a[1] > lowest))
        share = min(link.utilisation / top, 1.0)
        colours.append(cmap(share) if link.wire_bytes > 0 else _UNUSED)
        widths.append(0.7 + 1.5 * share if link.wire_bytes > 0 else 0.5)
    axes.add_collection(
        LineCollection(paths, colors=colours, linewidths=widths, capstyle="round", zorder=2)
    )


def _draw_vertices(axes: Axes, layout: _Layout, vertices: Sequence[Vertex]) -> None:
    side = min(0.24, layout.slot_in * 0.72)
    boxes = []
    for vertex in vertices:
        if vertex.name not in layout.at:
            continue
        x, y = layout.at[vertex.name]
        half = side / 2 if vertex.kind in ("gpu", "nic") else min(0.2, side * 0.9)
        boxes.append(Rectangle((x - half, y - side / 2), 2 * half, side))
    axes.add_collection(
        PatchCollection(boxes, facecolor="white", edgecolor="#444444", linewidth=0.7, zorder=3)
    )
    if side < 0.15:
        return
    counts: dict[tuple[str, int | None], int] = {}
    for vertex in vertices:
        if vertex.name not in layout.at:
            continue
        index = counts.get((vertex.kind, vertex.node), 0)
        counts[vertex.kind, vertex.node] = index + 1
        x, y = layout.at[vertex.name]
        axes.text(x, y, str(index), ha="center", va="center", fontsize=6, zorder=4)


def _draw_map(result: RunResult) -> Figure:
    layout = _layout(result.vertices, result.links)
    top = _scale_top(result.links)
    figure = new_figure(layout.width_in, layout.height_in)
    figure.set_layout_engine("none")
    with style():
        axes = figure.add_axes((0.0, 0.0, 1.0, 1.0))
        axes.set_axis_off()
        axes.set_xlim(0, layout.width_in)
        axes.set_ylim(0, layout.height_in)
        lowest, highest = min(layout.tiers.values()), max(layout.tiers.values())
        inner = [
            height
            for kind, height in layout.tiers.items()
            if any(v.kind == kind and v.node is not None for v in result.vertices)
        ]
        for node, (left, right) in layout.spans.items():
            axes.add_patch(
                Rectangle(
                    (left - 0.04, min(inner) - 0.32),
                    right - left + 0.08,
                    max(inner) - min(inner) + 0.54,
                    facecolor="#f6f6f6",
                    edgecolor="none",
                    zorder=0,
                )
            )
            name = f"node {node}" if right - left > 0.6 else f"{node}"
            axes.text((left + right) / 2, lowest - 0.36, name, ha="center", va="top", fontsize=8)
        for kind, height in layout.tiers.items():
            axes.text(0.1, height, _TIER_NAMES[kind], va="center", fontsize=8, color="#444444")
        _draw_links(axes, layout, result.links, top)
        _draw_vertices(axes, layout, result.vertices)
        _title(axes, result, 0.1, layout.height_in)
        bar_axes = figure.add_axes(
            (
                (layout.width_in - 0.62) / layout.width_in,
                lowest / layout.height_in,
                0.12 / layout.width_in,
                max(highest - lowest, 1.0) / layout.height_in,
            )
        )
        _colour_bar(figure, bar_axes, top)
    return figure


def _title(axes: Axes, result: RunResult, x: float, height_in: float) -> None:
    busiest = max(result.links, key=lambda link: link.utilisation)
    axes.text(x, height_in - 0.16, result.title, va="top", fontsize=11, weight="bold")
    axes.text(
        x,
        height_in - 0.42,
        f"Busiest: {busiest.name} ({busiest.kind}), {100 * busiest.utilisation:.0f} % of its "
        "capacity over the run. Two lines a link, traffic keeps to the right.",
        va="top",
        fontsize=8,
        color="#444444",
    )


def _colour_bar(figure: Figure, axes: Axes, top: float) -> None:
    mappable = ScalarMappable(Normalize(0, 100 * top), _colormap())
    bar = figure.colorbar(mappable, cax=axes)
    bar.outline.set_visible(False)
    bar.ax.tick_params(labelsize=7, length=2)
    bar.ax.set_title("% used", fontsize=7, loc="center", weight="normal")


def _draw_matrix(result: RunResult, max_columns: int = 64) -> Figure:
    """Draw the maximum utilisation by tier (rows) and position in the cluster (columns)."""
    kinds = {vertex.name: vertex.kind for vertex in result.vertices}
    groups: dict[tuple[str, str, str], list[LinkLoad]] = {}
    for link in result.links:
        src, dst = kinds.get(link.src, ""), kinds.get(link.dst, "")
        groups.setdefault((src, dst, link.kind), []).append(link)

    def tier(key: tuple[str, str, str]) -> tuple[int, ...]:
        return tuple(_TIERS.index(kind) if kind in _TIERS else -1 for kind in key[:2])

    ordered = sorted(groups, key=tier, reverse=True)
    grid = np.full((len(ordered), max_columns), np.nan)
    labels = []
    for line, key in enumerate(ordered):
        loads = [link.utilisation for link in groups[key]]
        parts = np.array_split(np.asarray(loads), min(max_columns, len(loads)))
        edges = np.linspace(0, max_columns, len(parts) + 1).round().astype(int)
        for part, a, b in zip(parts, edges, edges[1:], strict=False):
            grid[line, a:b] = part.max()
        src, dst, kind = key
        labels.append(f"{_TIER_NAMES.get(src, src)} → {_TIER_NAMES.get(dst, dst)}\n{kind}")
    top = _scale_top(result.links)
    figure = new_figure(9.0, 1.9 + 0.42 * len(ordered))
    with style():
        axes = figure.add_subplot()
        axes.grid(visible=False)
        image = axes.imshow(
            100 * grid,
            aspect="auto",
            cmap=_colormap(),
            vmin=0,
            vmax=100 * top,
            interpolation="nearest",
        )
        axes.set_yticks(range(len(ordered)), labels, fontsize=7.5)
        axes.set_yticks(np.arange(len(ordered) + 1) - 0.5, minor=True)
        axes.grid(which="minor", axis="y", color="white", linewidth=2.5, visible=True)
        axes.tick_params(which="both", length=0)
        axes.set_xticks([0, max_columns - 1], ["first link", "last link"])
        for line, key in enumerate(ordered):
            loads = [link.utilisation for link in groups[key]]
            mean = sum(loads) / len(loads)
            axes.text(
                max_columns + 0.2,
                line,
                f"{len(loads):,} links\nmean {100 * mean:.0f} %, max {100 * max(loads):.0f} %",
                va="center",
                fontsize=7.5,
            )
        for side in axes.spines.values():
            side.set_visible(False)
        busiest = max(result.links, key=lambda link: link.utilisation)
        axes.set_title(f"{result.title}\n", pad=4)
        axes.text(
            0.0,
            1.02,
            f"Busiest: {busiest.name} ({busiest.kind}), {100 * busiest.utilisation:.0f} % of its "
            "capacity over the run. Colour: the most loaded link of each group.",
            transform=axes.transAxes,
            fontsize=8,
            color="#444444",
        )
        bar = figure.colorbar(
            image, ax=axes, orientation="horizontal", shrink=0.35, aspect=30, pad=0.02
        )
        bar.outline.set_visible(False)
        bar.set_label("% of capacity used", fontsize=7.5)
    return figure


def plot_link_load(
    result: RunResult,
    path: str | os.PathLike[str],
    *,
    max_gpus: int = 128,
    with_csv: bool = False,
) -> None:
    """Draw how loaded every link was, on the topology.

    Parameters
    ----------
    result
        Its ``vertices`` and ``links`` are drawn.
    path
        PNG, SVG or PDF file.
    max_gpus
        Larger clusters, and results without vertices, are drawn as a matrix of tiers.
    with_csv
        Write the loads into a CSV file beside the figure.

    Raises
    ------
    CollsimError
        No link loads, an unknown format, or a file that cannot be written.
    """
    if not result.links:
        raise CollsimError("nothing to plot: the result has no link loads")
    n_gpus = sum(vertex.kind == "gpu" for vertex in result.vertices)
    figure = _draw_map(result) if 0 < n_gpus <= max_gpus else _draw_matrix(result)
    header = ("link", "kind", "src", "dst", "capacity_GBps", "wire_bytes", "utilisation")
    data: Data = (
        header,
        [
            [x.name, x.kind, x.src, x.dst, x.capacity_Bps / 1e9, x.wire_bytes, x.utilisation]
            for x in result.links
        ],
    )
    save(figure, path, data, with_csv=with_csv)
