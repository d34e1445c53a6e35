"""Own topologies: an edge list with templates, checked strictly and handed on as plain data."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from simulator.base.errors import CollsimError
from simulator.base.fields import option
from simulator.fabric.model import VERTEX_KINDS
from simulator.scenario import plugins
from simulator.scenario.plain import to_plain
from simulator.scenario.reader import FAILED, Reader, join, kind_of, shaped
from simulator.scenario.schema import CABLE_KINDS
from simulator.scenario.shapes import NestedList, is_absent
from simulator.scenario.tree import Mapping, Node, Place

__all__ = ["TopologyShape", "TopologySpec", "count_gpus"]


@dataclass(frozen=True, slots=True, kw_only=True)
class VertexSpec:
    """A vertex, or several numbered ones."""

    name: str = option("text", doc="Name, unique in its list; numbered 0, 1, … with `count`.")
    kind: str = option("name", doc="Kind of vertex.", choices=VERTEX_KINDS)
    count: int | None = option(
        "count", None, doc="So many vertices `name0`, `name1`, …; auto: one, `name`.", minimum=1
    )
    numa: int | None = option("count", None, doc="NUMA node, of a CPU or what hangs on it.")


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkSpec:
    """A full-duplex link; globs join all of one side with all of the other."""

    a: str = option("text", doc="Vertex or glob: `gpu0`, `gpu*`, `node*.nic0`.")
    b: str = option("text", doc="Vertex or glob.")
    kind: str = option("name", doc="Kind of link.", choices=CABLE_KINDS)
    bandwidth_Bps: float = option("rate", doc="Per direction.")
    latency_s: float = option("time", 0.0, doc="One way.")
    pairs: bool = option(
        "flag", False, doc="Globs join the first with the first, the second with the second, …"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateSpec:
    """A kind of node: its own vertices and links."""

    name: str = option("text", doc="Name, for `repeat`.")
    gpu: str | None = option("text", None, doc="GPU model, such as `h100-sxm`; null: generic.")
    vertices: tuple[VertexSpec, ...] = shaped(NestedList(VertexSpec), doc="Vertices.")
    links: tuple[LinkSpec, ...] = shaped(NestedList(LinkSpec), doc="Links inside the node.")


@dataclass(frozen=True, slots=True, kw_only=True)
class RepeatSpec:
    """Nodes made from a template."""

    template: str = option("text", doc="Name of a template, or of a node preset.")
    count: int = option("count", 1, doc="How many.", minimum=1)
    name: str = option(
        "text", "node", doc="Names are this with a number, counted on: `node0`, `node1`, …"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TopologySpec:
    """Templates of nodes, the nodes made from them, and the network between them."""

    templates: tuple[TemplateSpec, ...] = shaped(NestedList(TemplateSpec), doc="Kinds of node.")
    repeat: tuple[RepeatSpec, ...] = shaped(NestedList(RepeatSpec), doc="Nodes.")
    vertices: tuple[VertexSpec, ...] = shaped(NestedList(VertexSpec), doc="Network switches.")
    links: tuple[LinkSpec, ...] = shaped(NestedList(LinkSpec), doc="Cables.")


@dataclass(frozen=True, slots=True)
class TopologyShape:
    """An own edge list, or nothing."""

    def read(self, reader: Reader, node: Node | None, path: str, place: Place) -> Any:
        """Return plain data with texts as written, or None."""
        node = reader.choose(node, path)
        if is_absent(node) or node is None:
            return None
        if not isinstance(node, Mapping):
            return reader.refuse(path, f"is {kind_of(node)}", allowed="templates, repeat, links")
        found = reader.section(TopologySpec, node, path)
        return FAILED if found is None else to_plain(found)

    def plain(self, value: Any) -> Any:
        """Return the data themselves."""
        return value

    def words(self) -> str:
        """Return what is written."""
        return "section"

    def owner(self) -> type[Any]:
        """Return the section's dataclass."""
        return TopologySpec


def count_gpus(reader: Reader, topology: dict[str, Any]) -> int | None:
    """Return the number of GPUs of an own topology, or None when it cannot be built.

    It is built here, so that every slip in the edge list is told with its line.
    """
    if reader.has_problem("topology"):
        return None
    try:
        return plugins.custom_gpus(json.dumps(topology))
    except CollsimError as error:
        for problem in error.problems:
            reader.refuse(
                join("topology", problem.key).rstrip("."),
                problem.message,
                allowed=problem.allowed,
                suggestion=problem.suggestion,
            )
        return None
