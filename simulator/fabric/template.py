"""A node template checked and turned into arrays: the unit that a fabric is tiled from."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from simulator.base.errors import Problem, TopologyError, nearest, unknown_name
from simulator.fabric.model import LINK_KINDS, NETWORK_KINDS, VERTEX_KINDS, NodeTemplate

__all__ = ["CompiledTemplate", "compile_template"]

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]

_NODE_KINDS = ("gpu", "nvswitch", "pcie_switch", "cpu", "nic")
_PATH_KINDS = tuple(kind for kind in LINK_KINDS if kind != "memory")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CompiledTemplate:
    """The interior of a node as local arrays.

    Directed link 2i is ``a -> b`` of the template's link i, 2i + 1 is ``b -> a``.  When
    `NodeTemplate.cpu_memory_Bps` is given, one self-link per ``cpu`` follows: its memory.
    """

    template: NodeTemplate
    names: tuple[str, ...]
    kind: IntArray
    """Index into VERTEX_KINDS, shape (vertices,)."""
    gpus: IntArray
    """Local vertices of kind ``gpu``, in the template's order."""
    nics: IntArray
    nvswitches: IntArray
    link_src: IntArray
    link_dst: IntArray
    link_kind: IntArray
    capacity_Bps: FloatArray
    latency_s: FloatArray
    memory_link: dict[int, int]
    """Memory self-link of each ``cpu`` vertex."""

    @property
    def n_vertices(self) -> int:
        """Number of vertices inside the node."""
        return len(self.names)

    @property
    def n_links(self) -> int:
        """Number of directed links inside the node."""
        return len(self.link_src)


def _vertex_problems(template: NodeTemplate) -> Iterable[Problem]:
    key = f"node {template.name}"
    seen: set[str] = set()
    for vertex in template.vertices:
        if vertex.name in seen:
            yield Problem(key=key, message=f"two vertices are called {vertex.name!r}")
        seen.add(vertex.name)
        if vertex.kind not in _NODE_KINDS:
            problem = unknown_name("vertex kind", vertex.kind, _NODE_KINDS)
            yield Problem(
                key=f"{key}.{vertex.name}",
                message=problem.message,
                allowed=problem.allowed,
                suggestion=problem.suggestion,
            )
    if not any(vertex.kind == "gpu" for vertex in template.vertices):
        yield Problem(key=key, message="the node has no gpu", allowed="at least one gpu vertex")
    if any(vertex.kind == "nic" for vertex in template.vertices):
        if template.nic_kind not in NETWORK_KINDS:
            found = template.nic_kind or "none"
            yield Problem(
                key=f"{key}.nic_kind",
                message=f"the node has NICs, but their link kind is {found!r}",
                allowed=", ".join(NETWORK_KINDS),
                suggestion=nearest(found, NETWORK_KINDS),
            )
        if not (math.isfinite(template.nic_rate_Bps) and template.nic_rate_Bps > 0):
            yield Problem(
                key=f"{key}.nic_rate_Bps",
                message=f"the NICs' rate is {template.nic_rate_Bps}",
                allowed="a rate greater than zero",
            )


def _link_problems(template: NodeTemplate) -> Iterable[Problem]:
    names = {vertex.name for vertex in template.vertices}
    seen: set[frozenset[str]] = set()
    for link in template.links:
        key = f"node {template.name}.{link.a}-{link.b}"
        for end in (link.a, link.b):
            if end not in names:
                yield Problem(
                    key=key,
                    message=f"the link ends at the unknown vertex {end!r}",
                    allowed=", ".join(sorted(names)),
                    suggestion=nearest(end, names),
                )
        if link.a == link.b:
            yield Problem(key=key, message="the link joins a vertex to itself")
        ends = frozenset((link.a, link.b))
        if ends in seen:
            yield Problem(
                key=key,
                message="the link is given twice",
                allowed="one link per pair of vertices; add the bandwidths of parallel links",
            )
        seen.add(ends)
        if link.kind not in _PATH_KINDS:
            problem = unknown_name("link kind", link.kind, _PATH_KINDS)
            yield Problem(
                key=key,
                message=problem.message,
                allowed=problem.allowed,
                suggestion=problem.suggestion,
            )
        if not (math.isfinite(link.bandwidth_Bps) and link.bandwidth_Bps > 0):
            yield Problem(
                key=key,
                message=f"the bandwidth is {link.bandwidth_Bps}",
                allowed="a finite bandwidth greater than zero",
            )
        if not (math.isfinite(link.latency_s) and link.latency_s >= 0):
            yield Problem(
                key=key, message=f"the latency is {link.latency_s}", allowed="a finite time ≥ 0"
            )


def compile_template(template: NodeTemplate) -> CompiledTemplate:
    """Check a node template and return its arrays; the same template is compiled once.

    Raises
    ------
    TopologyError
        Duplicate or unknown names, unknown kinds, a link given twice or to itself, a bandwidth
        or latency out of range, a node without GPU; all problems together.
    """
    # NodeTemplate holds a dict (peak FLOP/s) and is not hashable: the cache is keyed by identity,
    # and keeps the template alive so that an identity is never used again.
    return _compile(_Identity(template))


class _Identity:
    """Compare a template by identity."""

    __slots__ = ("template",)

    def __init__(self, template: NodeTemplate) -> None:
        self.template = template

    def __hash__(self) -> int:
        return id(self.template)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Identity) and other.template is self.template


@lru_cache(maxsize=256)
def _compile(key: _Identity) -> CompiledTemplate:
    template = key.template
    problems = [*_vertex_problems(template), *_link_problems(template)]
    if problems:
        raise TopologyError(problems)
    local = {vertex.name: index for index, vertex in enumerate(template.vertices)}
    kinds = [vertex.kind for vertex in template.vertices]
    ends = np.array(
        [(local[link.a], local[link.b]) for link in template.links], dtype=np.int64
    ).reshape(-1, 2)
    src, dst = ends.reshape(-1), ends[:, ::-1].reshape(-1)
    link_kind = np.repeat([LINK_KINDS.index(link.kind) for link in template.links], 2)
    capacity = np.repeat([float(link.bandwidth_Bps) for link in template.links], 2)
    latency = np.repeat([float(link.latency_s) for link in template.links], 2)
    cpus = [index for index, kind in enumerate(kinds) if kind == "cpu"]
    memory_link: dict[int, int] = {}
    if template.cpu_memory_Bps > 0:
        memory_link = {cpu: len(src) + order for order, cpu in enumerate(cpus)}
        src, dst = np.append(src, cpus), np.append(dst, cpus)
        link_kind = np.append(link_kind, [LINK_KINDS.index("memory")] * len(cpus))
        capacity = np.append(capacity, [float(template.cpu_memory_Bps)] * len(cpus))
        latency = np.append(latency, [0.0] * len(cpus))

    def of_kind(kind: str) -> IntArray:
        return np.array([i for i, found in enumerate(kinds) if found == kind], dtype=np.int64)

    return CompiledTemplate(
        template=template,
        names=tuple(vertex.name for vertex in template.vertices),
        kind=np.array([VERTEX_KINDS.index(kind) for kind in kinds], dtype=np.int64),
        gpus=of_kind("gpu"),
        nics=of_kind("nic"),
        nvswitches=of_kind("nvswitch"),
        link_src=src.astype(np.int64),
        link_dst=dst.astype(np.int64),
        link_kind=link_kind.astype(np.int64),
        capacity_Bps=capacity.astype(np.float64),
        latency_s=latency.astype(np.float64),
        memory_link=memory_link,
    )
