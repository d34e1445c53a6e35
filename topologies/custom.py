"""A user's own topology: templates of nodes and an edge list, as parsed data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import numpy as np

from simulator.base.errors import CollsimError, Problem, TopologyError, nearest
from simulator.base.limits import (
    MOST_CABLES,
    MOST_GPUS,
    MOST_NODE_VERTICES,
    MOST_VERTICES,
    too_many,
)
from simulator.base.units import parse_rate, parse_time
from simulator.fabric.fabric import Fabric
from simulator.fabric.model import (
    LINK_KINDS,
    VERTEX_KINDS,
    GpuSpec,
    NodeTemplate,
    TemplateLink,
    TemplateVertex,
)
from simulator.fabric.wiring import HOP_LATENCY_S, Ports, Wiring

__all__ = ["build_custom"]

_GENERIC_GPU = GpuSpec(
    name="generic",
    generation="hopper",
    memory_bytes=80 * 2**30,
    memory_Bps=2e12,
    peak_flops={},
    source="stands for any GPU; only its links count",
)
_SWITCHES = ("leaf", "spine", "core")
_SOURCE = "the user's topology"

Item = Mapping[str, Any]


class _Problems:
    """Collects what is wrong, by dotted key."""

    def __init__(self) -> None:
        self.found: list[Problem] = []
        self.vertices = 0
        """All counts so far: what is numbered one by one."""
        self.links = 0
        """Pairs that links with globs stand for, so far."""

    def add(self, key: str, message: str, allowed: str = "", suggestion: str | None = None) -> None:
        self.found.append(Problem(key=key, message=message, allowed=allowed, suggestion=suggestion))

    def stop(self) -> None:
        """Raise TopologyError if anything is wrong."""
        if self.found:
            raise TopologyError(self.found)

    def text(self, item: Item, name: str, key: str, choices: Sequence[str] = ()) -> str:
        """Return a required text, out of some choices."""
        value = item.get(name)
        if not isinstance(value, str) or not value:
            self.add(f"{key}.{name}", "is missing", ", ".join(choices) or "a name")
            return choices[0] if choices else "?"
        if choices and value not in choices:
            self.add(
                f"{key}.{name}",
                f"{value!r} is unknown",
                ", ".join(choices),
                nearest(value, choices),
            )
            return choices[0]
        return value

    def count(
        self, item: Item, key: str, default: int | None, most: int = MOST_VERTICES
    ) -> int | None:
        """Return an optional count of at least one; of all counts there are at most `most`."""
        value = item.get("count")
        if value is None or value == "auto":
            return default
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            self.add(f"{key}.count", f"{value!r} is not a count", "a whole number of at least 1")
            return default
        self.vertices += value
        if value > most or self.vertices > MOST_VERTICES:
            found, limit = (value, most) if value > most else (self.vertices, MOST_VERTICES)
            self.found.append(too_many(f"{key}.count", found, "vertices or nodes", limit))
            self.stop()
        return value

    def rate(self, item: Item, key: str) -> float:
        """Return the bandwidth of a link."""
        try:
            return parse_rate(item.get("bandwidth"))
        except CollsimError as error:
            part = error.problems[0]
            self.add(f"{key}.bandwidth", part.message, part.allowed, part.suggestion)
            return 1.0

    def time(self, item: Item, key: str) -> float:
        """Return the latency of a link, default 0."""
        try:
            return parse_time(item.get("latency") or "0 s", zero=True)
        except CollsimError as error:
            part = error.problems[0]
            self.add(f"{key}.latency", part.message, part.allowed, part.suggestion)
            return 0.0


def build_custom(data: Item) -> Fabric:
    """Return the fabric of a parsed topology.

    Parameters
    ----------
    data
        Keys ``templates`` (kinds of node: ``name``, ``gpu``, ``vertices``, ``links``), ``repeat``
        (nodes: ``template`` – one of these or a node preset –, ``count``, ``name``), ``vertices``
        (network switches: ``name``, ``kind``, ``count``) and ``links`` (cables: ``a``, ``b``,
        ``kind``, ``bandwidth``, ``latency``, ``pairs``).  Quantities are texts with units.

    Returns
    -------
    Fabric
        Nodes are called by their ``name`` of ``repeat`` and a number, as are counted vertices.

    Raises
    ------
    TopologyError
        Missing, unknown or doubled names, bad numbers, cables that do not end at NICs or
        switches, a graph in pieces; with dotted keys, all problems together.

    Notes
    -----
    A cable's ``latency`` stands beside the hop latency of the switch that it leaves, see
    `simulator.fabric.wiring.HOP_LATENCY_S`.  GPUs of own templates may use PCIe peer-to-peer and
    GPUDirect; host memory is not a limit.
    """
    problems = _Problems()
    cables = _items(data, "links", problems)
    rates = [problems.rate(cable, f"links[{index}]") for index, cable in enumerate(cables)]
    templates: dict[str, NodeTemplate] = {}
    for index, item in enumerate(_items(data, "templates", problems)):
        template = _template(item, f"templates[{index}]", cables, rates, problems)
        if template.name in templates:
            problems.add(f"templates[{index}].name", f"a second {template.name!r}")
        templates[template.name] = template
    nodes: list[tuple[NodeTemplate, int]] = []
    names: list[str] = []
    counted: dict[str, int] = {}
    repeat = _items(data, "repeat", problems)
    if not repeat:
        problems.add("repeat", "there is no node", "a list of {template, count, name}")
    for index, item in enumerate(repeat):
        key = f"repeat[{index}]"
        wanted = problems.text(item, "template", key)
        count = problems.count(item, key, 1) or 1
        found = templates.get(wanted) or _preset(wanted, templates, key, problems)
        name = str(item.get("name") or "node")
        start = counted.get(name, 0)
        counted[name] = start + count
        names += [f"{name}{number}" for number in range(start, start + count)]
        if found is not None:
            nodes.append((found, count))
            _check_gpus(nodes, key, problems)
    switches = _vertices(_items(data, "vertices", problems), "vertices", _SWITCHES, problems)
    problems.stop()
    wiring = _wiring(nodes, names, switches, cables, rates, problems)
    return Fabric(nodes, wiring, node_names=names)


def _check_gpus(nodes: Sequence[tuple[NodeTemplate, int]], key: str, problems: _Problems) -> None:
    """Refuse more GPUs than are simulated, and more vertices than there are names for."""
    gpus = sum(count * sum(v.kind == "gpu" for v in t.vertices) for t, count in nodes)
    vertices = sum(count * len(t.vertices) for t, count in nodes)
    for found, what, most in ((gpus, "GPUs", MOST_GPUS), (vertices, "vertices", MOST_CABLES)):
        if found > most:
            problems.found.append(too_many(f"{key}.count", found, what, most))
            problems.stop()


def _items(data: Item, key: str, problems: _Problems) -> list[Item]:
    """Return a list of sections."""
    value = data.get(key) or []
    if not isinstance(value, Sequence) or isinstance(value, str):
        problems.add(key, f"{value!r} is not a list", "a list of sections")
        return []
    wrong = [index for index, item in enumerate(value) if not isinstance(item, Mapping)]
    for index in wrong:
        problems.add(f"{key}[{index}]", f"{value[index]!r} is not a section", "keys and values")
    return [item for item in value if isinstance(item, Mapping)]


def _preset(
    name: str, templates: Mapping[str, NodeTemplate], key: str, problems: _Problems
) -> NodeTemplate | None:
    """Return a node preset."""
    from topologies import hardware

    try:
        return hardware.load(name)
    except CollsimError:
        known = [*templates, *hardware.names()]
        problems.add(
            f"{key}.template",
            f"unknown template {name!r}",
            ", ".join(templates) or "a template or a node preset",
            nearest(name, known),
        )
        return None


def _vertices(
    items: Sequence[Item], key: str, kinds: Sequence[str], problems: _Problems
) -> list[tuple[str, str, int | None]]:
    """Return (name, kind, NUMA node) of vertices, counted ones numbered."""
    found: list[tuple[str, str, int | None]] = []
    for index, item in enumerate(items):
        where = f"{key}[{index}]"
        name = problems.text(item, "name", where)
        kind = problems.text(item, "kind", where, kinds)
        most = MOST_NODE_VERTICES if key.startswith("templates") else MOST_VERTICES
        count = problems.count(item, where, None, most)
        numa = item.get("numa")
        numa = numa if isinstance(numa, int) else None
        found += [
            (name if count is None else f"{name}{number}", kind, numa)
            for number in range(count or 1)
        ]
    seen: set[str] = set()
    for name, _, _ in found:
        if name in seen:
            problems.add(key, f"two vertices are called {name!r}", "a name of its own for each")
        seen.add(name)
    return found


def _template(
    item: Item, key: str, cables: Sequence[Item], rates: Sequence[float], problems: _Problems
) -> NodeTemplate:
    """Return the node template of a section."""
    name = problems.text(item, "name", key)
    kinds = [kind for kind in VERTEX_KINDS if kind not in _SWITCHES]
    vertices = _vertices(_items(item, "vertices", problems), f"{key}.vertices", kinds, problems)
    names = [vertex for vertex, _, _ in vertices]
    links: list[TemplateLink] = []
    for index, link in enumerate(_items(item, "links", problems)):
        where = f"{key}.links[{index}]"
        kind = problems.text(link, "kind", where, LINK_KINDS)
        rate, latency = problems.rate(link, where), problems.time(link, where)
        for a, b in _joined(link, names, where, problems):
            links.append(
                TemplateLink(
                    a=a, b=b, kind=kind, bandwidth_Bps=rate, latency_s=latency, source=_SOURCE
                )
            )
    network = [str(cable.get("kind")) for cable in cables if cable.get("kind") in HOP_LATENCY_S]
    return NodeTemplate(
        name=name,
        summary=_SOURCE,
        gpu=_gpu(item.get("gpu"), key, problems),
        vertices=tuple(TemplateVertex(name=n, kind=k, numa=m) for n, k, m in vertices),
        links=tuple(links),
        nic_kind=network[0] if network else "ethernet",
        # The cable decides; a template's own limit would only repeat it.
        nic_rate_Bps=max(rates, default=1.0),
        nic_latency_s=0.0,
        cpu_model="any",
        cpu_arch="x86_intel",
        p2p=True,
        gpudirect=True,
        source=_SOURCE,
        source_quality="weak",
    )


def _gpu(name: object, key: str, problems: _Problems) -> GpuSpec:
    """Return a GPU model by name, or the generic one."""
    if name is None:
        return _GENERIC_GPU
    from topologies.hardware_build import gpu_spec

    try:
        return gpu_spec(str(name))
    except CollsimError as error:
        part = error.problems[0]
        problems.add(f"{key}.gpu", part.message, part.allowed, part.suggestion)
        return _GENERIC_GPU


def _joined(
    link: Item, names: Sequence[str], key: str, problems: _Problems
) -> list[tuple[str, str]]:
    """Return the pairs of vertices that a link with globs stands for."""
    sides = []
    for end in ("a", "b"):
        pattern = problems.text(link, end, key)
        found = [name for name in names if name == pattern] or [
            name for name in names if fnmatchcase(name, pattern)
        ]
        if not found and pattern != "?":
            problems.add(
                f"{key}.{end}",
                f"no vertex is called {pattern!r}",
                ", ".join(names[:8]) + (" …" if len(names) > 8 else ""),
                nearest(pattern, names[:2000]),
            )
        sides.append(found)
    if link.get("pairs") is True:
        if len(sides[0]) != len(sides[1]):
            problems.add(
                f"{key}.pairs",
                f"{len(sides[0])} vertices cannot be paired with {len(sides[1])}",
                "as many on both sides",
            )
            return []
        return [pair for pair in zip(*sides, strict=True) if pair[0] != pair[1]]
    problems.links += len(sides[0]) * len(sides[1])
    if problems.links > MOST_CABLES:
        problems.found.append(too_many(key, problems.links, "links", MOST_CABLES))
        problems.stop()
    pairs = [(a, b) for a in sides[0] for b in sides[1] if a != b]
    # A glob on both sides (gpu* with gpu*) names every pair twice.
    return list({frozenset(pair): pair for pair in pairs}.values())


def _wiring(
    nodes: Sequence[tuple[NodeTemplate, int]],
    names: Sequence[str],
    switches: Sequence[tuple[str, str, int | None]],
    cables: Sequence[Item],
    rates: Sequence[float],
    problems: _Problems,
) -> Wiring:
    """Return the network of the cables."""
    ports = Ports.of(nodes)
    nic_names = [
        f"{names[node]}.{vertex.name}"
        for node, template in enumerate(t for t, count in nodes for _ in range(count))
        for vertex in template.vertices
        if vertex.kind == "nic"
    ]
    ends = {name: index for index, name in enumerate([*nic_names, *(s[0] for s in switches)])}
    rows: list[tuple[int, int, str, float, float]] = []
    seen: set[frozenset[int]] = set()
    for index, cable in enumerate(cables):
        key = f"links[{index}]"
        kind = problems.text(cable, "kind", key, tuple(HOP_LATENCY_S))
        latency = problems.time(cable, key)
        for a, b in _joined(cable, list(ends), key, problems):
            pair = frozenset((ends[a], ends[b]))
            if pair in seen:
                problems.add(key, f"{a} and {b} are joined twice", "the sum of the bandwidths")
            seen.add(pair)
            rows.append((ends[a], ends[b], kind, rates[index], latency))
    problems.stop()
    nic_s = np.concatenate([ports.latency_s, np.zeros(len(switches))])
    hop_s = np.array(
        [[HOP_LATENCY_S[row[2]] if end >= ports.n_nics else 0.0 for end in row[:2]] for row in rows]
    ).reshape(-1, 2)
    first, second = (np.array([row[side] for row in rows], dtype=np.int64) for side in range(2))
    both = np.array([row[4] for row in rows], dtype=np.float64) + nic_s[first] + nic_s[second]
    return Wiring(
        n_nics=ports.n_nics,
        switch_kind=tuple(kind for _, kind, _ in switches),
        switch_name=tuple(name for name, _, _ in switches),
        a=first,
        b=second,
        kind=np.array([LINK_KINDS.index(row[2]) for row in rows], dtype=np.int64),
        bandwidth_Bps=np.array([row[3] for row in rows], dtype=np.float64),
        latency_ab_s=both + hop_s[:, 0],
        latency_ba_s=both + hop_s[:, 1],
    )
