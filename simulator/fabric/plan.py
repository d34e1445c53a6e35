"""First half of routing: what pairs of vertices use inside nodes, and which NICs between them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from simulator.base.errors import Problem, RoutingError
from simulator.fabric.local import LocalTables
from simulator.fabric.model import VERTEX_KINDS
from simulator.fabric.network import NetworkTables

if TYPE_CHECKING:
    from simulator.fabric.fabric import Fabric

__all__ = ["Plan", "Planner"]

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]
Flags = NDArray[np.bool_]
Refuse = Callable[[IntArray, IntArray, Flags], None]

_NVSWITCH = VERTEX_KINDS.index("nvswitch")


@dataclass(slots=True, kw_only=True)
class Plan:
    """Local rows at both ends of pairs, and the subflows between NICs."""

    first_row: IntArray
    """Row of the `RowTable` at the source, −1: none, shape (pairs,)."""
    first_base: IntArray
    """First link of the source's node."""
    last_row: IntArray
    last_base: IntArray
    src_nic: IntArray
    """NIC of the cluster by pair and subflow, −1: none, shape (pairs, subflows)."""
    dst_nic: IntArray
    start: IntArray
    """Network vertex where the subflow begins, −1: no such subflow."""
    goal: IntArray
    share: FloatArray


@dataclass(slots=True)
class _Ends:
    """One side of some pairs: vertices, and for GPUs node, class and index in the node."""

    vertex: IntArray
    node: IntArray
    kind: IntArray
    """Class of the node of a GPU; −1: the vertex is a switch."""
    gpu: IntArray

    def at(self, index: IntArray) -> _Ends:
        """Return the ends of some of the pairs."""
        return _Ends(self.vertex[index], self.node[index], self.kind[index], self.gpu[index])


class Planner:
    """Works out plans.

    Parameters
    ----------
    fabric, network, local
        The cluster, the live network and the local routes.
    refuse
        Called with sources, destinations and flags of pairs without route; raises if any is set.
    """

    def __init__(
        self, fabric: Fabric, network: NetworkTables, local: LocalTables, refuse: Refuse
    ) -> None:
        self._fabric, self._network, self._local = fabric, network, local
        self._refuse = refuse
        self._gpu = np.full(fabric.n_vertices, -1, dtype=np.int64)
        self._gpu[fabric.gpu_vertex] = fabric.local_of_gpu

    def plan(self, src_vertex: IntArray, dst_vertex: IntArray, pins: IntArray | None) -> Plan:
        """Return the plan of pairs.

        Parameters
        ----------
        src_vertex, dst_vertex
            Ends, shape (pairs,).
        pins
            NICs to use by index in the node, −1: by affinity, shape (pairs, 2).
        """
        src, dst = self._ends(src_vertex), self._ends(dst_vertex)
        pairs = len(src_vertex)
        first, last = np.full(pairs, -1, dtype=np.int64), np.full(pairs, -1, dtype=np.int64)
        same = src_vertex == dst_vertex
        settled = same.copy()

        gpus = (src.kind >= 0) & (dst.kind >= 0)
        inside = np.flatnonzero(gpus & (src.node == dst.node) & ~same)
        first[inside] = self._local.gpu_pair_rows(
            src.kind[inside], src.gpu[inside], dst.gpu[inside]
        )
        settled[inside] = (first[inside] >= 0) | (not self._local.network_inside)
        self._refuse(src_vertex, dst_vertex, settled & ~same & (first < 0))

        if len(self._fabric.domain_first) or not gpus.all():
            meet = np.flatnonzero(~settled & self._may_meet(src, dst))
            first[meet], last[meet] = self._over_nvswitch(src.at(meet), dst.at(meet))
            settled |= (first >= 0) | (last >= 0)

        outside = np.flatnonzero(~settled)
        empty = np.zeros((pairs, 0), dtype=np.int64)
        plan = Plan(
            first_row=first,
            first_base=np.where(src.node >= 0, self._fabric.link_base[src.node], 0),
            last_row=last,
            last_base=np.where(dst.node >= 0, self._fabric.link_base[dst.node], 0),
            src_nic=empty,
            dst_nic=empty,
            start=empty,
            goal=empty,
            share=np.zeros((pairs, 0)),
        )
        if len(outside):
            some = None if pins is None else pins[outside]
            self._over_network(plan, outside, src.at(outside), dst.at(outside), some)
        return plan

    def _ends(self, vertex: IntArray) -> _Ends:
        fabric = self._fabric
        gpu, node = self._gpu[vertex], fabric.vertex_node[vertex]
        is_gpu = gpu >= 0
        wrong = ~is_gpu & (vertex < fabric.first_switch) & (fabric.vertex_kind[vertex] != _NVSWITCH)
        if wrong.any():
            name = fabric.vertex_name(int(vertex[np.flatnonzero(wrong)[0]]))
            raise RoutingError(
                Problem(
                    message=f"a route cannot begin or end at {name}",
                    allowed="GPUs, NVSwitches and network switches",
                )
            )
        kind = np.where(is_gpu, self._local.class_of_node[node], -1)
        return _Ends(vertex, node, kind, np.where(is_gpu, gpu, 0))

    # ------------------------------------------------------------- NVSwitches

    def _group(self, ends: _Ends) -> IntArray:
        """Return a number that GPUs and NVSwitches of one node or domain share; −1: neither."""
        fabric = self._fabric
        own = ends.node >= 0
        domain = np.where(own, fabric.domain_of_node[ends.node], -1)
        if len(fabric.domain_first):
            order = np.searchsorted(fabric.domain_first, ends.vertex, side="right") - 1
            shared = ~own & (ends.vertex < fabric.first_switch)
            domain = np.where(shared, order, domain)
        alone = np.where(own, len(fabric.domain_first) + ends.node, -1)
        return np.where(domain >= 0, domain, alone)

    def _may_meet(self, src: _Ends, dst: _Ends) -> Flags:
        group = self._group(src)
        return np.asarray((group >= 0) & (group == self._group(dst)))

    def _over_nvswitch(self, src: _Ends, dst: _Ends) -> tuple[IntArray, IntArray]:
        """Return rows up and down of pairs of one group; −1 and −1 where NVLink is cut."""
        up, down = (np.full(len(src.vertex), -1, dtype=np.int64) for _ in range(2))
        sends, takes = src.kind >= 0, dst.kind >= 0
        up[sends] = self._local.up_rows(src.kind[sends], src.gpu[sends])
        down[takes] = self._local.down_rows(dst.kind[takes], dst.gpu[takes])
        whole = ((up >= 0) | ~sends) & ((down >= 0) | ~takes)
        # Two GPUs of a domain can turn to the network, a switch cannot.
        self._refuse(src.vertex, dst.vertex, ~whole & ~(sends & takes))
        return np.where(whole, up, -1), np.where(whole, down, -1)

    # ---------------------------------------------------------------- network

    def _over_network(
        self, plan: Plan, where: IntArray, src: _Ends, dst: _Ends, pins: IntArray | None
    ) -> None:
        """Fill rows and subflows of pairs that need NICs or network switches."""
        network, local = self._network, self._local
        enter, leave = network.index_of(src.vertex), network.index_of(dst.vertex)
        stuck = ((src.kind < 0) & (enter < 0)) | ((dst.kind < 0) & (leave < 0))
        self._refuse(src.vertex, dst.vertex, stuck)

        pattern = local.pattern(src.kind, src.gpu, dst.kind, dst.gpu)
        tables = local.patterns
        send, receive, nic_a, nic_b = (table[pattern] for table in tables[:4])
        share = tables[4][pattern]
        if pins is not None and (pins >= 0).any():
            self._pin(pins, src, dst, send, receive, nic_a, nic_b, share)
        used = share > 0
        self._refuse(src.vertex, dst.vertex, np.asarray(~used.any(axis=1)))

        sides = []
        for ends, nic, vertex in ((src, nic_a, enter), (dst, nic_b, leave)):
            base = np.where(ends.node >= 0, local.nic_base[ends.node], 0)[:, None]
            of_cluster = np.where(nic >= 0, nic + base, -1)
            attached = network.attached[of_cluster] if len(network.attached) else of_cluster
            sides.append((of_cluster, np.where(nic >= 0, attached, vertex[:, None])))
        shape = (len(plan.first_row), share.shape[1])

        def spread(values: NDArray[np.int64], fill: int) -> IntArray:
            whole = np.full(shape, fill, dtype=np.int64)
            whole[where] = values
            return whole

        plan.first_row[where], plan.last_row[where] = send, receive
        plan.src_nic, plan.dst_nic = spread(sides[0][0], -1), spread(sides[1][0], -1)
        plan.start = spread(np.where(used, sides[0][1], -1), -1)
        plan.goal = spread(sides[1][1], -1)
        plan.share = np.zeros(shape)
        plan.share[where] = share

    def _pin(
        self,
        pins: IntArray,
        src: _Ends,
        dst: _Ends,
        send: IntArray,
        receive: IntArray,
        nic_a: IntArray,
        nic_b: IntArray,
        share: FloatArray,
    ) -> None:
        """Replace rows and subflows of pairs whose NICs are given."""
        local = self._local
        fixed = np.flatnonzero((pins >= 0).any(axis=1))
        chosen = np.where(pins >= 0, pins, np.stack([nic_a[:, 0], nic_b[:, 0]], axis=1))[fixed]
        sides = (
            (src, 0, send, nic_a, local.send_rows),
            (dst, 1, receive, nic_b, local.receive_rows),
        )
        for ends, side, row, nic, rows_of in sides:
            nic[fixed] = -1
            gpu = ends.kind[fixed] >= 0
            at, wanted = fixed[gpu], chosen[gpu, side]
            count = local.n_nics(ends.kind[at])
            if (wanted >= count).any():
                index = int(np.flatnonzero(wanted >= count)[0])
                raise RoutingError(
                    Problem(
                        message=f"NIC {int(wanted[index])} is asked for at "
                        f"{self._fabric.vertex_name(int(ends.vertex[at[index]]))}",
                        allowed=f"NICs 0 … {int(count[index]) - 1}",
                    )
                )
            row[at] = rows_of(ends.kind[at], ends.gpu[at], wanted)
            lost = np.zeros(len(row), dtype=bool)
            lost[at] = (row[at] < 0) | (wanted < 0)
            self._refuse(src.vertex, dst.vertex, lost)
            nic[at, 0] = wanted
        share[fixed] = 0.0
        share[fixed, 0] = 1.0
