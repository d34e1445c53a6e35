"""Nodes laid side by side: the part of a fabric that is copied from templates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulator.base.errors import Problem, TopologyError
from simulator.fabric.model import VERTEX_KINDS, NodeTemplate
from simulator.fabric.template import CompiledTemplate, compile_template

__all__ = ["Tiling", "tile"]

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Tiling:
    """Vertices and links of all nodes, then the NVSwitches that nodes share."""

    compiled: tuple[CompiledTemplate, ...]
    template_of_node: IntArray
    domain_of_node: IntArray
    domain_first: IntArray
    """First shared NVSwitch vertex of each NVLink domain, shape (domains,)."""
    domain_names: tuple[str, ...]
    """Names of the shared NVSwitches, which are the last vertices."""
    vertex_base: IntArray
    link_base: IntArray
    vertex_kind: IntArray
    vertex_node: IntArray
    local_vertex: IntArray
    """Index of each vertex in its template, shape (vertices,)."""
    link_src: IntArray
    link_dst: IntArray
    link_kind: IntArray
    capacity_Bps: FloatArray
    latency_s: FloatArray
    gpu_vertex: IntArray
    node_of_gpu: IntArray
    local_of_gpu: IntArray
    nic_vertex: IntArray
    node_of_nic: IntArray
    local_of_nic: IntArray


def _domains(
    groups: Sequence[tuple[CompiledTemplate, int]], nvl_domain: int | None
) -> tuple[IntArray, list[int]]:
    """Return the domain of each node (−1: none), and the NVSwitches of each domain."""
    if nvl_domain is not None and nvl_domain < 1:
        raise TopologyError(
            Problem(key="nvl_domain", message=f"{nvl_domain} nodes", allowed="at least one node")
        )
    if nvl_domain is not None and nvl_domain > 1:
        without = [c.template.name for c, _ in groups if len(c.nvswitches) == 0]
        if len(without) == len(groups):
            raise TopologyError(
                Problem(
                    key="nvl_domain",
                    message=f"no node has an NVSwitch to share ({', '.join(without)})",
                    allowed="nodes with NVSwitches, such as gb200-nvl72",
                )
            )
    of_node: list[IntArray] = []
    switches: list[int] = []
    for compiled, count in groups:
        width = compiled.template.nvl_domain_nodes if nvl_domain is None else nvl_domain
        if width <= 1 or len(compiled.nvswitches) == 0:
            of_node.append(np.full(count, -1, dtype=np.int64))
            continue
        of_node.append(len(switches) + np.arange(count) // width)
        switches += [len(compiled.nvswitches)] * -(-count // width)
    return np.concatenate(of_node), switches


def tile(nodes: Sequence[tuple[NodeTemplate, int]], nvl_domain: int | None) -> Tiling:
    """Lay out groups of equal nodes.

    Parameters
    ----------
    nodes
        (template, count) in node order.
    nvl_domain
        Neighbouring nodes of a group that share their NVSwitches; None: as the template says.

    Raises
    ------
    TopologyError
        No node, a count below one, a bad template, nothing to share in an NVLink domain.
    """
    if not nodes:
        raise TopologyError(Problem(key="nodes", message="no node", allowed="at least one node"))
    for template, count in nodes:
        if count < 1:
            raise TopologyError(
                Problem(
                    key="nodes",
                    message=f"{count} nodes of {template.name!r}",
                    allowed="at least one node",
                )
            )
    groups = [(compile_template(template), int(count)) for template, count in nodes]
    distinct = {id(compiled): compiled for compiled, _ in groups}
    position = {key: order for order, key in enumerate(distinct)}
    domain_of_node, domain_switches = _domains(groups, nvl_domain)

    counts = [count for _, count in groups]
    first_node = np.concatenate([[0], np.cumsum(counts)])
    shared = [domain_of_node[first_node[i]] >= 0 for i in range(len(groups))]
    own_vertices = [
        compiled.n_vertices - (len(compiled.nvswitches) if share else 0)
        for (compiled, _), share in zip(groups, shared, strict=True)
    ]
    vertex_base = _bases(own_vertices, counts)
    link_base = _bases([compiled.n_links for compiled, _ in groups], counts)
    n_own = int(vertex_base[-1])
    domain_first = n_own + np.concatenate([[0], np.cumsum(domain_switches)]).astype(np.int64)

    columns: dict[str, list[NDArray[np.generic]]] = {}

    def put(name: str, values: NDArray[np.generic]) -> None:
        columns.setdefault(name, []).append(values)

    for index, (compiled, count) in enumerate(groups):
        numbers = np.arange(first_node[index], first_node[index + 1])
        base = vertex_base[numbers][:, None]
        own = np.ones(compiled.n_vertices, dtype=bool)
        if shared[index]:
            own[compiled.nvswitches] = False
        compact = np.cumsum(own) - 1
        vertex = base + compact[None, :]
        if shared[index]:
            start = domain_first[domain_of_node[numbers]][:, None]
            vertex[:, compiled.nvswitches] = start + np.arange(len(compiled.nvswitches))
        put("vertex_kind", np.tile(compiled.kind[own], count))
        put("vertex_node", np.repeat(numbers, int(own.sum())))
        put("local_vertex", np.tile(np.flatnonzero(own), count))
        put("link_src", vertex[:, compiled.link_src].ravel())
        put("link_dst", vertex[:, compiled.link_dst].ravel())
        put("link_kind", np.tile(compiled.link_kind, count))
        put("capacity_Bps", np.tile(compiled.capacity_Bps, count))
        put("latency_s", np.tile(compiled.latency_s, count))
        for kind, members in (("gpu", compiled.gpus), ("nic", compiled.nics)):
            put(f"{kind}_vertex", vertex[:, members].ravel())
            put(f"node_of_{kind}", np.repeat(numbers, len(members)))
            put(f"local_of_{kind}", np.tile(np.arange(len(members)), count))
        put("template_of_node", np.full(count, position[id(compiled)]))

    names: list[str] = []
    switch_order: list[int] = []
    for domain, number in enumerate(domain_switches):
        first = int(np.flatnonzero(domain_of_node == domain)[0])
        group = int(np.searchsorted(first_node, first, side="right")) - 1
        compiled = groups[group][0]
        names += [f"nvl{domain}.{compiled.names[local]}" for local in compiled.nvswitches.tolist()]
        switch_order += compiled.nvswitches.tolist()
        assert number == len(compiled.nvswitches)
    put("vertex_kind", np.full(len(names), VERTEX_KINDS.index("nvswitch")))
    put("vertex_node", np.full(len(names), -1))
    put("local_vertex", np.array(switch_order, dtype=np.int64))

    def ints(name: str) -> IntArray:
        return np.concatenate(columns[name]).astype(np.int64)

    def floats(name: str) -> FloatArray:
        return np.concatenate(columns[name]).astype(np.float64)

    return Tiling(
        compiled=tuple(distinct.values()),
        template_of_node=ints("template_of_node"),
        domain_of_node=domain_of_node,
        domain_first=domain_first[:-1],
        domain_names=tuple(names),
        vertex_base=vertex_base[:-1],
        link_base=link_base[:-1],
        vertex_kind=ints("vertex_kind"),
        vertex_node=ints("vertex_node"),
        local_vertex=ints("local_vertex"),
        link_src=ints("link_src"),
        link_dst=ints("link_dst"),
        link_kind=ints("link_kind"),
        capacity_Bps=floats("capacity_Bps"),
        latency_s=floats("latency_s"),
        gpu_vertex=ints("gpu_vertex"),
        node_of_gpu=ints("node_of_gpu"),
        local_of_gpu=ints("local_of_gpu"),
        nic_vertex=ints("nic_vertex"),
        node_of_nic=ints("node_of_nic"),
        local_of_nic=ints("local_of_nic"),
    )


def _bases(sizes: Sequence[int], counts: Sequence[int]) -> IntArray:
    """Return the running sum of sizes, each repeated, shape (sum of counts + 1,)."""
    each = np.repeat(np.asarray(sizes, dtype=np.int64), counts)
    return np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(each)])
