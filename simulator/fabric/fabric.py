"""The whole cluster as arrays: vertices, directed links, GPUs and NICs, and their names."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from simulator.base.errors import Problem, TopologyError, nearest
from simulator.fabric.model import LINK_KINDS, VERTEX_KINDS, NodeTemplate
from simulator.fabric.naming import Names
from simulator.fabric.template import CompiledTemplate
from simulator.fabric.tiling import tile
from simulator.fabric.wiring import Wiring

if TYPE_CHECKING:
    from simulator.fabric.network import NetworkTables

__all__ = ["Fabric", "components"]

IntArray = NDArray[np.int64]


class Fabric:
    """A cluster: nodes tiled from templates, joined by a wiring.

    Parameters
    ----------
    nodes
        Groups of equal nodes, in order: (template, count).
    wiring
        Switches and cables, see `simulator.fabric.wiring.Wiring`.
    nvl_domain
        Nodes that share their NVSwitches; None: as each template says.
    node_names
        Names of the nodes; default ``node0 node1 …``.
    kind
        Name of the network topology, for messages and pictures.

    Attributes
    ----------
    vertex_kind : ndarray of int64, shape (vertices,)
        Index into `VERTEX_KINDS`.
    vertex_node : ndarray of int64, shape (vertices,)
        Node of the vertex; −1 for network switches and for NVSwitches shared by several nodes.
    link_src, link_dst : ndarray of int64, shape (links,)
        Ends of each directed link.
    link_kind : ndarray of int64, shape (links,)
        Index into `LINK_KINDS`.
    capacity_Bps, latency_s : ndarray of float64, shape (links,)
        Rate per direction and latency of each link.
    gpu_vertex, node_of_gpu, local_of_gpu : ndarray of int64, shape (gpus,)
        Vertex, node and index in the node of each GPU, in rank order.
    nic_vertex, node_of_nic, local_of_nic : ndarray of int64, shape (nics,)
        The same of each NIC.
    domain_of_node : ndarray of int64, shape (nodes,)
        NVLink domain of each node; −1 when its NVSwitches are its own.
    names : Names
        Names of nodes, vertices and links.

    Raises
    ------
    TopologyError
        No node, names used twice, vertices that no path joins with the rest.

    Notes
    -----
    The own vertices of node n stand together from ``vertex_base[n]`` on, in the template's order;
    its links from ``link_base[n]`` on.  Shared NVSwitches and network switches follow the nodes,
    cables between nodes follow the nodes' links.
    """

    def __init__(
        self,
        nodes: Sequence[tuple[NodeTemplate, int]],
        wiring: Wiring,
        *,
        nvl_domain: int | None = None,
        node_names: Sequence[str] | None = None,
        kind: str = "custom",
    ) -> None:
        tiling = tile(nodes, nvl_domain)
        self.kind = kind
        self.compiled: tuple[CompiledTemplate, ...] = tiling.compiled
        self.template_of_node = tiling.template_of_node
        self.domain_of_node = tiling.domain_of_node
        self.domain_first = tiling.domain_first
        self.vertex_base, self.link_base = tiling.vertex_base, tiling.link_base
        self.local_vertex = tiling.local_vertex
        self.gpu_vertex, self.node_of_gpu = tiling.gpu_vertex, tiling.node_of_gpu
        self.local_of_gpu = tiling.local_of_gpu
        self.nic_vertex, self.node_of_nic = tiling.nic_vertex, tiling.node_of_nic
        self.local_of_nic = tiling.local_of_nic
        self.first_switch = len(tiling.vertex_kind)
        self.first_cable = len(tiling.link_src)
        if wiring.n_nics != self.n_nics:
            raise TopologyError(
                f"the wiring is for {wiring.n_nics} NICs, the nodes have {self.n_nics}"
            )

        switch_kind = np.array([VERTEX_KINDS.index(k) for k in wiring.switch_kind], dtype=np.int64)
        self.vertex_kind = np.concatenate([tiling.vertex_kind, switch_kind])
        outside = np.full(len(switch_kind), -1, dtype=np.int64)
        self.vertex_node = np.concatenate([tiling.vertex_node, outside])
        ends = np.concatenate([self.nic_vertex, self.first_switch + np.arange(len(switch_kind))])
        a, b = ends[wiring.a], ends[wiring.b]
        self.link_src = np.concatenate([tiling.link_src, np.stack([a, b], axis=1).ravel()])
        self.link_dst = np.concatenate([tiling.link_dst, np.stack([b, a], axis=1).ravel()])
        self.link_kind = np.concatenate([tiling.link_kind, np.repeat(wiring.kind, 2)])
        rate = np.repeat(wiring.bandwidth_Bps, 2)
        self.capacity_Bps = np.concatenate([tiling.capacity_Bps, rate])
        cable_s = np.stack([wiring.latency_ab_s, wiring.latency_ba_s], axis=1).ravel()
        self.latency_s = np.concatenate([tiling.latency_s, cable_s])
        self.names = Names(tiling, wiring.switch_name, self.link_src, self.link_dst, node_names)
        self._refuse_pieces()

    @property
    def n_vertices(self) -> int:
        """Number of vertices."""
        return len(self.vertex_kind)

    @property
    def n_links(self) -> int:
        """Number of directed links."""
        return len(self.link_src)

    @property
    def n_nodes(self) -> int:
        """Number of nodes."""
        return len(self.template_of_node)

    @property
    def n_gpus(self) -> int:
        """Number of GPUs."""
        return len(self.gpu_vertex)

    @property
    def n_nics(self) -> int:
        """Number of NICs."""
        return len(self.nic_vertex)

    @property
    def templates(self) -> list[NodeTemplate]:
        """Template of each node, in order."""
        return [self.compiled[index].template for index in self.template_of_node.tolist()]

    def node_template(self, node: int) -> NodeTemplate:
        """Return the template of a node."""
        return self.compiled[int(self.template_of_node[node])].template

    @cached_property
    def unit_of_node(self) -> NDArray[np.int64]:
        """Return what NCCL counts as a node: the NVLink domain, or else the node, of each node.

        Shape (nodes,); domains have the numbers from the nodes' count on.
        """
        domain = np.asarray(self.domain_of_node)
        return np.where(domain >= 0, self.n_nodes + domain, np.arange(self.n_nodes))

    def node_vertex(self, node: int, local: int) -> int:
        """Return the vertex of a local vertex of a node's template (shared NVSwitches too)."""
        switches = self.compiled[int(self.template_of_node[node])].nvswitches
        domain = int(self.domain_of_node[node])
        if domain < 0:
            return int(self.vertex_base[node]) + local
        before = int(np.searchsorted(switches, local))
        if before < len(switches) and int(switches[before]) == local:
            return int(self.domain_first[domain]) + before
        return int(self.vertex_base[node]) + local - before

    def counts(self) -> dict[str, int]:
        """Return the number of vertices of each kind that occurs."""
        found = np.bincount(self.vertex_kind, minlength=len(VERTEX_KINDS)).tolist()
        return {kind: count for kind, count in zip(VERTEX_KINDS, found, strict=True) if count}

    def cut_Bps(self, vertices: Iterable[int]) -> float:
        """Return the capacity of all links that leave a set of vertices, bytes/s."""
        inside = np.zeros(self.n_vertices, dtype=bool)
        inside[np.fromiter(vertices, dtype=np.int64)] = True
        return float(self.capacity_Bps[inside[self.link_src] & ~inside[self.link_dst]].sum())

    def vertex_name(self, vertex: int) -> str:
        """Return the name of a vertex: ``node3.gpu0``, ``leaf2``, ``nvl0.nvswitch0``."""
        return self.names.vertex(vertex)

    def link_name(self, link: int) -> str:
        """Return the name of a directed link: ``node3.nic0->leaf2``, ``node3.cpu0.memory``."""
        return self.names.link(link)

    def vertex(self, name: str) -> int:
        """Return the vertex of that name; TopologyError with the nearest name if unknown."""
        return self.names.find_vertex(name)

    def find_links(self, pattern: str) -> list[int]:
        """Return the directed links whose names match, ascending.

        Parameters
        ----------
        pattern
            An exact name (``node3.nic0->leaf2``), a glob (``node3.nic*->*``), or with ``<->`` in
            place of ``->`` both directions.

        Raises
        ------
        TopologyError
            Nothing matches; the nearest name is shown.
        """
        return self.names.find_links(pattern)

    def _refuse_pieces(self) -> None:
        """Raise TopologyError when the cluster falls into pieces."""
        label = components(self.n_vertices, self.link_src, self.link_dst)
        pieces, size = np.unique(label, return_counts=True)
        if len(pieces) == 1:
            return
        main = int(pieces[np.argmax(size)])
        lost, rest = np.flatnonzero(label != main), np.flatnonzero(label == main)
        raise TopologyError(
            Problem(
                message=f"the fabric falls into {len(pieces)} pieces: no link joins "
                f"{self.names.short_list(lost)} with {self.names.short_list(rest)}",
                allowed="a graph in which every vertex reaches every other",
            )
        )

    @cached_property
    def network(self) -> NetworkTables:
        """Distances and next hops of the intact network between the nodes."""
        from simulator.fabric.network import NetworkTables

        return NetworkTables(self)

    def switch_vertex(
        self, kind: str, members_gpus: Sequence[int] | IntArray, index: int = 0
    ) -> int:
        """Return the switch that joins some GPUs.

        Parameters
        ----------
        kind
            ``nvswitch``: of their node or NVLink domain.  ``sharp``: the network switch with the
            least largest distance from their nodes' NICs; in a tree, a lowest common switch.
        members_gpus
            GPUs (ranks of the cluster).
        index
            Which one of equally good switches, modulo their number: the trees of different
            channels can use different spines.

        Returns
        -------
        int
            The vertex.  Several NVSwitches of a node act as one: the first stands for all, and
            routes to it spread over all of them.

        Raises
        ------
        TopologyError
            The GPUs have no such switch in common.
        """
        gpus = np.asarray(members_gpus, dtype=np.int64)
        if kind == "nvswitch":
            return self._common_nvswitch(gpus)
        if kind == "sharp":
            return self.network.common_switch(gpus, index)
        raise TopologyError(
            Problem(
                message=f"unknown kind of switch {kind!r}",
                allowed="nvswitch, sharp",
                suggestion=nearest(kind, ["nvswitch", "sharp"]),
            )
        )

    def _common_nvswitch(self, gpus: IntArray) -> int:
        nodes = np.unique(self.node_of_gpu[gpus])
        first = int(nodes[0])
        switches = self.compiled[int(self.template_of_node[first])].nvswitches
        domain = int(self.domain_of_node[first])
        joined = len(nodes) == 1 or (domain >= 0 and (self.domain_of_node[nodes] == domain).all())
        if not joined or len(switches) == 0:
            found = self.names.short_list(np.unique(self.gpu_vertex[gpus]))
            raise TopologyError(
                Problem(
                    message=f"{found} share no NVSwitch",
                    allowed="GPUs of one node with NVSwitches, or of one NVLink domain",
                )
            )
        return self.node_vertex(first, int(switches[0]))

    @cached_property
    def graph(self) -> Any:
        """The cluster as `networkx.DiGraph`, for plots and users; built on first use.

        Vertices are names with attributes ``kind`` and ``node``; edges have ``kind``,
        ``bandwidth_Bps``, ``latency_s`` and ``index``.
        """
        import networkx as nx

        graph = nx.DiGraph()
        names = list(self.names.vertex_index)
        owners = zip(names, self.vertex_kind.tolist(), self.vertex_node.tolist(), strict=True)
        graph.add_nodes_from(
            (name, {"kind": VERTEX_KINDS[kind], "node": node}) for name, kind, node in owners
        )
        columns = (self.link_src, self.link_dst, self.link_kind, self.capacity_Bps, self.latency_s)
        rows = zip(*(column.tolist() for column in columns), strict=True)
        graph.add_edges_from(
            (
                names[src],
                names[dst],
                {
                    "kind": LINK_KINDS[kind],
                    "bandwidth_Bps": rate_Bps,
                    "latency_s": latency_s,
                    "index": index,
                },
            )
            for index, (src, dst, kind, rate_Bps, latency_s) in enumerate(rows)
        )
        return graph


def components(n: int, src: IntArray, dst: IntArray) -> IntArray:
    """Return the smallest vertex of each vertex's undirected component, shape (n,)."""
    label = np.arange(n, dtype=np.int64)
    while True:
        one, other = label[src], label[dst]
        apart = one != other
        if not apart.any():
            return label
        src, dst, one, other = src[apart], dst[apart], one[apart], other[apart]
        # Hook roots to smaller ones, then jump to the last of each chain.
        np.minimum.at(label, np.maximum(one, other), np.minimum(one, other))
        while not np.array_equal(label[label], label):
            label = label[label]
