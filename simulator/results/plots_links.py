"""The link-load map: utilisation drawn on the topology, or as a matrix for large clusters."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle, pairwise
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.collections import LineCollection, PatchCollection
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle

from simulator.base.errors import CollsimError
from simulator.results.model import LinkLoad, RunResult, Vertex
from simulator.results.plots_matrix import (
    TIER_NAMES,
    TIERS,
    UNUSED,
    busiest_words,
    draw_matrix,
    load_colours,
    load_scale_top,
)
from simulator.results.plots_style import PALETTE, Data, new_figure, save, style

__all__ = ["plot_link_load"]

_MAX_RISE_IN = 0.62
"""Highest arc between two vertices of one tier."""


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
    zoom: float
    """Factor on text: wide pictures are looked at from afar."""


def _spaced(
    members: Sequence[Vertex],
    centres: Mapping[str, float],
    span: tuple[float, float],
    least: float,
) -> list[float]:
    """Return x positions of vertices in order: at their centres, or even where that is too close.

    Parameters
    ----------
    members
        Vertices of one tier, in order.
    centres
        Mean x of the neighbours of each.
    span
        Left and right border, inches.
    least
        Smallest distance at which vertices stay at their centres, inches.
    """
    wanted = [centres[vertex.name] for vertex in members]
    if all(b - a >= least for a, b in pairwise(wanted)):
        return wanted
    width = (span[1] - span[0]) / len(members)
    return [span[0] + (i + 0.5) * width for i in range(len(members))]


def _heights(
    tiers: Sequence[str], shared: Collection[str], width_in: float, hang_in: float
) -> dict[str, float]:
    """Return the height of each tier; those shared by nodes stand apart, for their crossings."""
    heights: dict[str, float] = {}
    height = 0.72 + hang_in
    for i, kind in enumerate(tiers):
        if i:
            wide = kind in shared or tiers[i - 1] in shared
            height += max(1.0, 0.11 * width_in) if wide else 0.95
        heights[kind] = height
    return heights


def _layout(vertices: Sequence[Vertex], links: Sequence[LinkLoad]) -> _Layout:
    tiers = [kind for kind in TIERS if any(vertex.kind == kind for vertex in vertices)]
    kinds = {vertex.name: vertex.kind for vertex in vertices}
    neighbours: dict[str, list[str]] = {vertex.name: [] for vertex in vertices}
    for link in links:
        if link.src in neighbours and link.dst in neighbours:
            neighbours[link.src].append(link.dst)
            neighbours[link.dst].append(link.src)

    nodes = sorted({vertex.node for vertex in vertices if vertex.node is not None})
    members: dict[tuple[str, int | None], list[Vertex]] = {}
    for vertex in vertices:
        members.setdefault((vertex.kind, vertex.node), []).append(vertex)
    slots = {
        node: max(2, *(len(members.get((kind, node), ())) for kind in tiers)) for node in nodes
    }
    n_slots = sum(slots.values()) + max(len(nodes) - 1, 0)
    width_in = min(max(n_slots * 0.34, 5.5), 19.0)
    slot_in = width_in / max(n_slots, 1)
    zoom = min(max(width_in / 12.0, 1.0), 1.5)
    # Arcs between vertices of the lowest tier hang below it, those of the others rise above.
    inside = {kinds[x.src] for x in links if x.src in kinds and kinds[x.src] == kinds.get(x.dst)}
    shared = {vertex.kind for vertex in vertices if vertex.node is None} - {"gpu"}
    heights = _heights(tiers, shared, width_in, _MAX_RISE_IN if tiers[0] in inside else 0.0)

    left = 1.0 * zoom
    spans: dict[int | None, tuple[float, float]] = {None: (left, left + width_in)}
    for node in nodes:
        spans[node] = (left, left + slots[node] * slot_in)
        left += (slots[node] + 1) * slot_in

    at: dict[str, tuple[float, float]] = {}
    # GPUs first: all others are placed by the neighbours that already have a place.
    for kind in sorted(tiers, key=lambda kind: (kind != "gpu", TIERS.index(kind))):
        places: list[int | None] = [*nodes, None]
        for place in places:
            group = members.get((kind, place), [])
            span = spans[place]
            centres: dict[str, float] = {}
            for vertex in group:
                xs = [at[name][0] for name in neighbours[vertex.name] if name in at]
                centres[vertex.name] = sum(xs) / len(xs) if xs else span[0]
            # sorted() is stable: vertices of one centre keep their order.
            ranked = sorted(group, key=lambda vertex: round(centres[vertex.name], 6))
            for vertex, x in zip(ranked, _spaced(ranked, centres, span, slot_in), strict=True):
                at[vertex.name] = (x, heights[kind])
    return _Layout(
        at=at,
        spans={node: spans[node] for node in nodes},
        tiers=heights,
        slot_in=slot_in,
        width_in=width_in + 1.0 * zoom + 0.9,
        height_in=max(heights.values())
        + 0.55
        + 0.45 * zoom
        + (0.45 if tiers[-1] in inside else 0.0),
        zoom=zoom,
    )


def _curve(
    a: tuple[float, float], b: tuple[float, float], *, upward: bool, shift: float
) -> np.ndarray:
    """Return a polyline from *a* to *b*: straight between tiers, an arc within one.

    It is shifted to the right of the direction of travel, so that both directions are seen.
    """
    length = math.hypot(b[0] - a[0], b[1] - a[1]) or 1.0
    if a[1] != b[1]:
        normal = ((b[1] - a[1]) / length * shift, -(b[0] - a[0]) / length * shift)
        return np.array([np.add(a, normal), np.add(b, normal)])
    # Rise with the distance, but stay below the next tier.
    rise = min(0.14 + 0.13 * length, _MAX_RISE_IN) * (1 if upward else -1)
    rise += shift if b[0] < a[0] else -shift
    t = np.linspace(0.0, 1.0, 17)
    return np.column_stack([a[0] + t * (b[0] - a[0]), a[1] + 4 * rise * t * (1 - t)])


def _draw_links(
    axes: Axes, layout: _Layout, links: Sequence[LinkLoad], top: float, kinds: Mapping[str, str]
) -> None:
    """Draw all links, by load or, where *kinds* gives colours, by kind."""
    drawable = [link for link in links if link.src in layout.at and link.dst in layout.at]
    drawable.sort(key=lambda link: link.utilisation)
    lowest = min(layout.tiers.values())
    thin = min(1.0, max(0.5, layout.slot_in / 0.34))
    shift = 0.024 * thin
    # Beyond some twenty lines an inch between two tiers, lines get thinner with their number.
    crowd = Counter((layout.at[x.src][1], layout.at[x.dst][1]) for x in drawable)
    paths, colours, widths = [], [], []
    cmap = load_colours()
    for link in drawable:
        a, b = layout.at[link.src], layout.at[link.dst]
        # Arcs of the lowest tier hang below it, where there is nothing to cross.
        paths.append(_curve(a, b, upward=a[1] > lowest, shift=shift))
        share = min(link.utilisation / top, 1.0)
        colours.append(cmap(share) if link.wire_bytes > 0 else UNUSED)
        fine = thin * min(1.0, max(20 * layout.width_in / crowd[a[1], b[1]], 0.2))
        if kinds:
            colours[-1] = kinds[link.kind]
            widths.append(fine)
            continue
        widths.append(fine * (0.7 + 1.5 * share) if link.wire_bytes > 0 else 0.5 * fine)
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
        half = side / 2 if vertex.kind in ("gpu", "nic") else 0.42 * min(layout.slot_in, 0.4)
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
    top = load_scale_top(result.links)
    figure = new_figure(layout.width_in, layout.height_in)
    figure.set_layout_engine("none")
    with style():
        axes = figure.add_axes((0.0, 0.0, 1.0, 1.0))
        axes.set_axis_off()
        axes.set_xlim(0, layout.width_in)
        axes.set_ylim(0, layout.height_in)
        lowest, highest = min(layout.tiers.values()), max(layout.tiers.values())
        inner = [layout.at[v.name][1] for v in result.vertices if v.node is not None]
        hang = lowest - 0.72
        for node, (left, right) in layout.spans.items():
            axes.add_patch(
                Rectangle(
                    (left - 0.04, min(inner) - 0.28 - hang),
                    right - left + 0.08,
                    max(inner) - min(inner) + 0.5 + hang,
                    facecolor="#f6f6f6",
                    edgecolor="none",
                    zorder=0,
                )
            )
            name = f"node {node}" if right - left > 0.6 else f"{node}"
            look: dict[str, Any] = {"ha": "center", "va": "top", "fontsize": 8 * layout.zoom}
            axes.text((left + right) / 2, lowest - 0.33 - hang, name, **look)
        for kind, height in layout.tiers.items():
            look = {"va": "center", "fontsize": 8 * layout.zoom, "color": "#444444"}
            axes.text(0.1, height, TIER_NAMES[kind], **look)
        loaded = any(link.wire_bytes > 0 for link in result.links)
        names = dict.fromkeys(link.kind for link in result.links)
        kinds = {} if loaded else dict(zip(names, cycle(PALETTE), strict=False))
        _draw_links(axes, layout, result.links, top, kinds)
        _draw_vertices(axes, layout, result.vertices)
        _title(axes, result, layout)
        if kinds:
            handles = [Line2D([], [], color=colour, label=kind) for kind, colour in kinds.items()]
            look = {"ncols": len(handles), "fontsize": 8 * layout.zoom, "loc": "upper right"}
            below_title = (1.0, 1.0 - 0.3 * layout.zoom / layout.height_in)
            figure.legend(handles=handles, bbox_to_anchor=below_title, **look)
            return figure
        bar_axes = figure.add_axes(
            (
                (layout.width_in - 0.62) / layout.width_in,
                lowest / layout.height_in,
                0.12 / layout.width_in,
                max(highest - lowest, 1.0) / layout.height_in,
            )
        )
        _colour_bar(figure, bar_axes, top, layout.zoom)
    return figure


def _title(axes: Axes, result: RunResult, layout: _Layout) -> None:
    words = f"{busiest_words(result.links)}. Two lines a link, traffic keeps to the right."
    if not any(link.wire_bytes > 0 for link in result.links):
        n_gpus = sum(vertex.kind == "gpu" for vertex in result.vertices)
        words = f"{n_gpus} GPUs, {len(result.links)} directed links"
    zoom, top = layout.zoom, layout.height_in
    look: dict[str, Any] = {"va": "top", "fontsize": 11 * zoom, "weight": "bold"}
    axes.text(0.1, top - 0.14 * zoom, result.title, **look)
    look = {"va": "top", "fontsize": 8 * zoom, "color": "#444444"}
    axes.text(0.1, top - 0.40 * zoom, words, **look)


def _colour_bar(figure: Figure, axes: Axes, top: float, zoom: float) -> None:
    mappable = ScalarMappable(Normalize(0, 100 * top), load_colours())
    bar = figure.colorbar(mappable, cax=axes)
    bar.outline.set_visible(False)
    bar.ax.tick_params(labelsize=7 * zoom, length=2)
    bar.ax.set_title("% used", fontsize=7 * zoom, loc="center", weight="normal")


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
        Its ``vertices`` and ``links`` are drawn; where no link carried anything, links are
        coloured by kind.
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
    figure = _draw_map(result) if 0 < n_gpus <= max_gpus else draw_matrix(result)
    header = ("link", "kind", "src", "dst", "capacity_GBps", "wire_bytes", "utilisation")
    data: Data = (
        header,
        [
            [x.name, x.kind, x.src, x.dst, x.capacity_Bps / 1e9, x.wire_bytes, x.utilisation]
            for x in result.links
        ],
    )
    save(figure, path, data, with_csv=with_csv)
