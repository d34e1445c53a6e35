"""Own topologies: an edge list with templates, checked strictly and handed on as plain data."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from simulator.base.errors import nearest
from simulator.base.fields import option
from simulator.fabric.model import LINK_KINDS, VERTEX_KINDS
from simulator.scenario.plain import to_plain
from simulator.scenario.reader import FAILED, Reader, join, kind_of, shaped
from simulator.scenario.shapes import NestedList, is_absent
from simulator.scenario.tree import Mapping, Node, Place

__all__ = ["TopologyShape", "TopologySpec", "gpus_of"]


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
    kind: str = option("name", doc="Kind of link.", choices=LINK_KINDS)
    bandwidth_Bps: float = option("rate", doc="Per direction.")
    latency_s: float = option("time", 0.0, doc="One way.")
    pairs: bool = option(
        "flag", False, doc="Globs join the first with the first, the second with the second, …"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateSpec:
    """A kind of node: its own vertices and links."""

    name: str = option("text", doc="Name, for `repeat`.")
    gpu: str | None = option("text", None, doc="GPU model, such as `h100`; null: a generic one.")
    vertices: tuple[VertexSpec, ...] = shaped(NestedList(VertexSpec), doc="Vertices.")
    links: tuple[LinkSpec, ...] = shaped(NestedList(LinkSpec), doc="Links inside the node.")


@dataclass(frozen=True, slots=True, kw_only=True)
class RepeatSpec:
    """Nodes made from a template."""

    template: str = option("text", doc="Name of a template, or of a node preset.")
    count: int = option("count", 1, doc="How many.", minimum=1)
    name: str = option("text", "node", doc="Names are this with a number: `node0`, `node1`, …")


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
        if found is None or not _checked(reader, found, path):
            return FAILED
        return to_plain(found)

    def plain(self, value: Any) -> Any:
        """Return the data themselves."""
        return value

    def words(self) -> str:
        """Return what is written."""
        return "section"

    def owner(self) -> type[Any]:
        """Return the section's dataclass."""
        return TopologySpec


def _checked(reader: Reader, spec: TopologySpec, path: str) -> bool:
    """Record names used twice and templates that do not exist; True when there is none."""
    before = len(reader.problems)
    templates = [template.name for template in spec.templates]
    _unique(reader, templates, join(path, "templates"), "template")
    for index, template in enumerate(spec.templates):
        where = f"{path}.templates[{index}].vertices"
        _unique(reader, [vertex.name for vertex in template.vertices], where, "vertex")
    _unique(reader, [item.name for item in spec.repeat], join(path, "repeat"), "group of nodes")
    _unique(reader, [item.name for item in spec.vertices], join(path, "vertices"), "vertex")
    for index, item in enumerate(spec.repeat):
        if templates and item.template not in templates:
            reader.refuse(
                f"{path}.repeat[{index}].template",
                f"unknown template {item.template!r}",
                allowed=", ".join(sorted(templates)),
                suggestion=nearest(item.template, templates),
            )
    return len(reader.problems) == before


def _unique(reader: Reader, names: list[str], path: str, what: str) -> None:
    seen: Counter[str] = Counter()
    for index, name in enumerate(names):
        if seen[name]:
            reader.refuse(f"{path}[{index}].name", f"a second {what} is named {name!r}")
        seen[name] += 1


def gpus_of(topology: dict[str, Any]) -> list[int]:
    """Return the number of GPUs of each node of an own topology, in order."""
    from simulator.scenario.nodes import gpu_count
    from simulator.scenario.plugins import node_template

    own = {
        template["name"]: sum(
            1 if vertex["count"] == "auto" else int(vertex["count"])
            for vertex in template["vertices"]
            if vertex["kind"] == "gpu"
        )
        for template in topology["templates"]
    }
    counts: list[int] = []
    for item in topology["repeat"]:
        name = item["template"]
        gpus = own[name] if name in own else gpu_count(node_template(name))
        counts += [gpus] * int(item["count"])
    return counts
