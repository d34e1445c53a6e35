"""A cluster as a result without rows, for drawing it."""

from __future__ import annotations

import simulator
from simulator.compose.build import build_fabric
from simulator.fabric.model import LINK_KINDS, VERTEX_KINDS
from simulator.results.model import LinkLoad, Provenance, RunResult, Vertex
from simulator.scenario.resolved import Resolved

__all__ = ["picture_of"]


def picture_of(resolved: Resolved) -> RunResult:
    """Return the vertices and unloaded links of a scenario's cluster."""
    fabric = build_fabric(resolved)
    names = [fabric.vertex_name(index) for index in range(fabric.n_vertices)]
    vertices = tuple(
        Vertex(
            name=names[index],
            kind=VERTEX_KINDS[int(fabric.vertex_kind[index])],
            node=None if fabric.vertex_node[index] < 0 else int(fabric.vertex_node[index]),
        )
        for index in range(fabric.n_vertices)
    )
    links = tuple(
        LinkLoad(
            name=fabric.link_name(link),
            kind=LINK_KINDS[int(fabric.link_kind[link])],
            capacity_Bps=float(fabric.capacity_Bps[link]),
            wire_bytes=0.0,
            utilisation=0.0,
            src=names[int(fabric.link_src[link])],
            dst=names[int(fabric.link_dst[link])],
        )
        for link in range(fabric.n_links)
    )
    presets = ", ".join(sorted({template.name for template in fabric.templates}))
    return RunResult(
        title=f"{fabric.n_nodes} × {presets}, {fabric.kind}",
        rows=(),
        links=links,
        vertices=vertices,
        provenance=Provenance(version=simulator.__version__),
    )
