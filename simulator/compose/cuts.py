"""What cuts through a fabric let through: GPU ports, nodes, and parts of the network."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from simulator.fabric.fabric import Fabric, components
from simulator.fabric.model import LINK_KINDS, VERTEX_KINDS

__all__ = ["gpu_ports", "max_flow", "network_cuts", "unit_ports"]

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]
Rates = tuple[FloatArray, FloatArray]
"""(out, in), bytes/s."""

_DIRECT = [LINK_KINDS.index("nvlink"), LINK_KINDS.index("xgmi")]
_GPU, _NIC, _NVSWITCH = (VERTEX_KINDS.index(kind) for kind in ("gpu", "nic", "nvswitch"))


def max_flow(edges: dict[int, dict[int, float]], source: int, sink: int) -> float:
    """Return the largest flow, which is the smallest cut (J. Edmonds and R. M. Karp 1972).

    Parameters
    ----------
    edges
        Capacity by (from, to); used up on return.
    """
    total = 0.0
    while True:
        before: dict[int, int] = {source: source}
        queue = deque([source])
        while queue and sink not in before:
            vertex = queue.popleft()
            for other, left in edges[vertex].items():
                if left > 0 and other not in before:
                    before[other] = vertex
                    queue.append(other)
        if sink not in before:
            return total
        path, vertex = [], sink
        while vertex != source:
            path.append((before[vertex], vertex))
            vertex = before[vertex]
        least = min(edges[a][b] for a, b in path)
        for a, b in path:
            edges[a][b] -= least
            back = edges.setdefault(b, {})
            back[a] = back.get(a, 0.0) + least
        total += least


def unit_ports(fabric: Fabric, group: IntArray, unit: IntArray, *, relays: bool) -> Rates:
    """Return what can leave and enter each node or NVLink domain of a group.

    The smallest cut between the group's GPUs in the unit and the cables of its NICs.

    Parameters
    ----------
    group, unit
        Global ranks, and the unit of each, 0 … k − 1, shape (n,).
    relays
        GPUs pass on the data of others (PXN).  Those outside the group do where the GPUs of its
        units differ: the data change rails.
    """
    node = fabric.node_of_gpu[group]
    out_Bps, in_Bps = np.zeros(int(unit.max()) + 1), np.zeros(int(unit.max()) + 1)
    members = np.split(np.argsort(unit, kind="stable"), np.cumsum(np.bincount(unit))[:-1])
    locals_of = [fabric.local_of_gpu[group[who]].tobytes() for who in members]
    through_all = relays and len(set(locals_of)) > 1
    known: dict[tuple[object, ...], tuple[float, float]] = {}
    links_of = _Interiors(fabric)
    for k, who in enumerate(members):
        domain = fabric.domain_of_node[node[who[0]]]
        # A unit is a node or a domain.
        nodes = node[who[:1]] if domain < 0 else np.flatnonzero(fabric.domain_of_node == domain)
        key = (
            fabric.template_of_node[nodes].tobytes(),
            locals_of[k],
            (node[who] - nodes[0]).tobytes(),
            links_of.cables_Bps(nodes),
        )
        if key not in known:
            gpus = fabric.gpu_vertex[group[who]]
            known[key] = links_of.flows(nodes, gpus, through_all=through_all)
        out_Bps[k], in_Bps[k] = known[key]
    return out_Bps, in_Bps


class _Interiors:
    """Links inside units, and the rates of their NICs' cables."""

    def __init__(self, fabric: Fabric) -> None:
        self._fabric = fabric
        cable = np.arange(fabric.n_links) >= fabric.first_cable
        rate = np.where(cable, fabric.capacity_Bps, 0.0)
        self._out_Bps = np.bincount(fabric.link_src, weights=rate, minlength=fabric.n_vertices)
        self._in_Bps = np.bincount(fabric.link_dst, weights=rate, minlength=fabric.n_vertices)

    def _nics(self, nodes: IntArray) -> IntArray:
        low, high = np.searchsorted(self._fabric.node_of_nic, [nodes[0], nodes[-1] + 1])
        here = slice(int(low), int(high))
        if nodes[-1] - nodes[0] + 1 == len(nodes):
            return np.asarray(self._fabric.nic_vertex[here])
        inside = np.isin(self._fabric.node_of_nic[here], nodes)
        return np.asarray(self._fabric.nic_vertex[here][inside])

    def cables_Bps(self, nodes: IntArray) -> tuple[bytes, bytes]:
        """Return the rates of the cables of the unit's NICs, out and in, to be compared."""
        nics = self._nics(nodes)
        return self._out_Bps[nics].tobytes(), self._in_Bps[nics].tobytes()

    def flows(self, nodes: IntArray, gpus: IntArray, *, through_all: bool) -> tuple[float, float]:
        """Return the smallest cuts from some GPUs to the cables, and back."""
        fabric = self._fabric
        inside = np.zeros(fabric.n_vertices + 1, dtype=bool)  # vertex_node is −1 outside
        inside[:-1] = np.isin(fabric.vertex_node, nodes)
        domain = int(fabric.domain_of_node[nodes[0]])
        if domain >= 0:
            count = len(fabric.compiled[int(fabric.template_of_node[nodes[0]])].nvswitches)
            first = int(fabric.domain_first[domain])
            inside[first : first + count] = True
        if not through_all:
            others = np.flatnonzero(inside[:-1] & (fabric.vertex_kind == _GPU))
            inside[np.setdiff1d(others, gpus)] = False
        link = np.flatnonzero(inside[fabric.link_src] & inside[fabric.link_dst])
        nics = self._nics(nodes)
        found = []
        for outward in (True, False):
            source, sink = fabric.n_vertices, fabric.n_vertices + 1
            edges: dict[int, dict[int, float]] = {source: {}, sink: {}}
            ends = (fabric.link_src, fabric.link_dst)
            tail, head = ends if outward else ends[::-1]
            rate = fabric.capacity_Bps[link]
            for a, b, Bps in zip(
                tail[link].tolist(), head[link].tolist(), rate.tolist(), strict=True
            ):
                row = edges.setdefault(a, {})
                row[b] = row.get(b, 0.0) + Bps
                edges.setdefault(b, {}).setdefault(a, 0.0)
            for gpu in gpus.tolist():
                edges[source][gpu] = float("inf")
            cables = self._out_Bps if outward else self._in_Bps
            for nic in nics.tolist():
                edges.setdefault(nic, {})[sink] = float(cables[nic])
            found.append(max_flow(edges, source, sink))
        return found[0], found[1]


def gpu_ports(
    fabric: Fabric, group: IntArray, unit: IntArray, ports: Rates | None, *, p2p: bool
) -> Rates:
    """Return what can leave and enter each GPU of a group.

    GPUs that all reach each other over NVLink or xGMI use nothing else among them; their other
    links carry no more than the unit's NICs.

    Parameters
    ----------
    ports
        Rates of the units; None: there is only one.
    p2p
        GPUs may use NVLink at all.
    """
    is_direct = np.isin(fabric.link_kind, _DIRECT)
    joined = _all_joined(fabric, group, unit) & p2p
    found = []
    for end, place in ((fabric.link_src, 0), (fabric.link_dst, 1)):
        rates = [
            _sums(end, np.where(which, fabric.capacity_Bps, 0.0), fabric.n_vertices)[
                fabric.gpu_vertex[group]
            ]
            for which in (is_direct, ~is_direct)
        ]
        beside = np.zeros(len(group)) if ports is None else ports[place][unit]
        found.append(rates[0] + np.where(joined[unit], np.minimum(rates[1], beside), rates[1]))
    return found[0], found[1]


def _all_joined(fabric: Fabric, group: IntArray, unit: IntArray) -> NDArray[np.bool_]:
    """Return for each unit whether its GPUs all reach each other over one or two direct links."""
    vertex = fabric.gpu_vertex[group]
    unit_of, row = np.full(fabric.n_vertices, -1), np.zeros(fabric.n_vertices, dtype=np.int64)
    unit_of[vertex] = unit
    counts = np.bincount(unit)
    order = np.argsort(unit, kind="stable")
    row[vertex[order]] = np.arange(len(group)) - np.repeat(np.cumsum(counts) - counts, counts)
    links = np.flatnonzero(np.isin(fabric.link_kind, _DIRECT) & (unit_of[fabric.link_src] >= 0))
    owner = unit_of[fabric.link_src[links]]
    order = np.argsort(owner, kind="stable")
    links = links[order]
    borders = np.searchsorted(owner[order], np.arange(len(counts) + 1)).tolist()
    src, dst = row[fabric.link_src[links]], fabric.link_dst[links]
    switch = np.where(fabric.vertex_kind[dst] == _NVSWITCH, dst, -1)
    peer = np.where(unit_of[dst] == owner[order], row[dst], -1)
    joined = np.asarray(counts == 1, dtype=np.bool_)
    known: dict[tuple[int, bytes, bytes, bytes], bool] = {}
    for k in np.flatnonzero(~joined).tolist():
        own = slice(borders[k], borders[k + 1])
        over = switch[own]
        over = np.where(over < 0, 1, over - over.max(initial=0))  # by their distances
        key = (int(counts[k]), src[own].tobytes(), over.tobytes(), peer[own].tobytes())
        if key not in known:
            known[key] = _joined(int(counts[k]), src[own], switch[own], peer[own])
        joined[k] = known[key]
    return joined


def _joined(n: int, src: IntArray, switch: IntArray, peer: IntArray) -> bool:
    """Return whether *n* GPUs all reach each other over one link or one NVSwitch.

    Parameters
    ----------
    src, switch, peer
        GPU at which a link begins, and NVSwitch or GPU at which it ends, −1: neither.
    """
    names, column = np.unique(switch[switch >= 0], return_inverse=True)
    over = np.zeros((n, len(names)), dtype=np.int64)
    over[src[switch >= 0], column] = 1
    reach = (over @ over.T) > 0
    reach[src[peer >= 0], peer[peer >= 0]] = True
    np.fill_diagonal(reach, True)
    return bool(reach.all())


def network_cuts(
    fabric: Fabric, group: IntArray, unit: IntArray
) -> Iterator[tuple[IntArray, FloatArray, FloatArray]]:
    """Generate divisions of the group by cuts inside the network: (label, out, in).

    Notes
    -----
    Without the switches that are more than h links from any NIC the network falls into parts:
    those below each leaf for h = 1, pods for h = 2.  And the first half of the units against the
    second, each switch on the side with which it has more capacity.  Any cut is a bound, if not
    the tightest.
    """
    src, dst = fabric.link_src[fabric.first_cable :], fabric.link_dst[fabric.first_cable :]
    rate = fabric.capacity_Bps[fabric.first_cable :]
    place = _units_of_vertices(fabric, group, unit)
    tier = _tiers(fabric, src, dst)
    top = int(tier.max(initial=0))
    for height in range(1, top):
        kept = (tier[src] <= height) & (tier[dst] <= height)
        # The NICs of a unit belong together, whatever rails they are on.
        label = components(
            fabric.n_vertices + int(place.max()) + 1,
            np.concatenate((src[kept], fabric.nic_vertex)),
            np.concatenate((dst[kept], fabric.n_vertices + place[fabric.nic_vertex])),
        )
        mine = label[fabric.n_vertices + unit]
        parts, of_rank = np.unique(mine, return_inverse=True)
        if len(parts) == 1:
            continue
        side = np.full(len(label), -1)
        side[np.isin(label, parts)] = np.searchsorted(parts, label[np.isin(label, parts)])
        side[: fabric.n_vertices][tier > height] = -1
        yield (of_rank, *_crossing(side, src, dst, rate, len(parts)))
    n_units = int(unit.max()) + 1
    if n_units < 2:
        return
    half = np.full(fabric.n_vertices, -1)
    inside = place < n_units  # units of the group; the others join later, as switches do
    half[inside] = (place[inside] >= n_units // 2).astype(int)
    half[fabric.first_switch :] = -1
    while True:
        open_src, open_dst = half[src] < 0, half[dst] < 0
        pull = np.zeros((2, fabric.n_vertices))
        for which in (0, 1):
            near = (half[src] == which) & open_dst
            np.add.at(pull[which], dst[near], rate[near])
            near = (half[dst] == which) & open_src
            np.add.at(pull[which], src[near], rate[near])
        new = (half < 0) & (pull.sum(axis=0) > 0)
        if not new.any():
            break
        half[new] = (pull[1][new] > pull[0][new]).astype(int)
    yield ((unit >= n_units // 2).astype(np.int64), *_crossing(half, src, dst, rate, 2))


def _units_of_vertices(fabric: Fabric, group: IntArray, unit: IntArray) -> IntArray:
    """Return the unit of each vertex: the group's, then numbers for the others."""
    n_units = int(unit.max()) + 1
    names, number = np.unique(fabric.unit_of_node, return_inverse=True)
    renamed = np.full(len(names), -1)
    renamed[number[fabric.node_of_gpu[group]]] = unit
    rest = np.flatnonzero(renamed < 0)
    renamed[rest] = n_units + np.arange(len(rest))
    place = np.full(fabric.n_vertices, n_units + len(rest))
    has = fabric.vertex_node >= 0
    place[has] = renamed[number[fabric.vertex_node[has]]]
    return place


def _tiers(fabric: Fabric, src: IntArray, dst: IntArray) -> IntArray:
    """Return how many links each network switch is away from the nearest NIC; others: 0."""
    far = fabric.n_vertices
    tier = np.full(fabric.n_vertices, far)
    tier[: fabric.first_switch] = 0
    for height in range(1, far):
        new = dst[(tier[src] == height - 1) & (tier[dst] == far)]
        if len(new) == 0:
            break
        tier[new] = height
    tier[tier == far] = 0
    return tier


def _crossing(side: IntArray, src: IntArray, dst: IntArray, rate: FloatArray, k: int) -> Rates:
    """Return the rates of the cables that leave and enter each side."""
    cross = side[src] != side[dst]
    out, into = cross & (side[src] >= 0), cross & (side[dst] >= 0)
    return (
        _sums(side[src[out]], rate[out], k),
        _sums(side[dst[into]], rate[into], k),
    )


def _sums(place: IntArray, rate: FloatArray, n: int) -> FloatArray:
    return np.bincount(place, weights=rate, minlength=n).astype(np.float64)
