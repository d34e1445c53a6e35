"""Routes of many pairs at once: local parts from tables, the network part hop by hop."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import ArrayLike, NDArray

from simulator.base.errors import RoutingError, unknown_name
from simulator.fabric.cut import no_route
from simulator.fabric.fabric import Fabric
from simulator.fabric.local import LocalTables
from simulator.fabric.model import LINK_KINDS, Routes
from simulator.fabric.network import NetworkTables, mix
from simulator.fabric.options import RoutingOptions
from simulator.fabric.plan import Plan, Planner

__all__ = ["Router", "RoutingOptions"]

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]
IntTable = NDArray[np.int32]
FloatTable = NDArray[np.float64]

_CHUNK = 1 << 15
"""Pairs routed at a time, so that their arrays stay in the processor's cache."""
_SPREADS = 256
"""Switch pairs spread at a time when loads are summed."""
_POLICIES = ("ecmp", "adaptive", "static")


class Router:
    """Finds the links of pairs of vertices.

    Parameters
    ----------
    fabric
        The cluster.
    options
        Routing options; None: the defaults.
    dead_links
        Directed links that have failed.

    Attributes
    ----------
    policy : str
        The policy in use: that of the options, or the default for the fabric's cables.

    Notes
    -----
    Inside a node see `simulator.fabric.interior`, for the choice of NICs
    `simulator.fabric.affinity`, between NICs `simulator.fabric.network`.  Network routes have the
    fewest hops.  ECMP hashes (seed, source, destination, flow, subflow) anew at every switch.
    GPUs of one node take the network only without shared memory (`RoutingOptions.shm`), not where
    it would be faster (NCCL's ncclTopoCheckNet).  Not modelled: routes longer than the shortest
    (Valiant routing on a dragonfly).

    Examples
    --------
    >>> from topologies import build, hardware
    >>> fabric = build([(hardware.load("dgx-h100"), 2)], "single_switch")
    >>> routes = Router(fabric).routes(fabric.gpu_vertex[[0]], fabric.gpu_vertex[[9]])
    >>> [fabric.link_name(link) for link in routes.pair(0)[0]][:3]
    ['node0.gpu0->node0.nvswitch0', 'node0.nvswitch0->node0.gpu1', 'node0.gpu1->node0.pcie_switch1']
    """

    def __init__(
        self,
        fabric: Fabric,
        options: RoutingOptions | None = None,
        dead_links: Iterable[int] = (),
    ) -> None:
        self.fabric = fabric
        self.options = options or RoutingOptions()
        cables = {LINK_KINDS[kind] for kind in set(fabric.link_kind[fabric.first_cable :].tolist())}
        hashed = bool(cables & {"roce", "ethernet"})
        self.policy = self.options.policy or ("ecmp" if hashed else "static")
        if self.policy not in _POLICIES:
            raise RoutingError(unknown_name("routing policy", self.policy, _POLICIES))
        self.dead_links = frozenset(int(link) for link in dead_links)
        self._dead: NDArray[np.bool_] | None = None
        self._network = fabric.network
        if self.dead_links:
            self._dead = np.zeros(fabric.n_links, dtype=bool)
            self._dead[list(self.dead_links)] = True
            self._network = NetworkTables(fabric, self._dead)
        self._local = LocalTables(fabric, self._network, self.options, self.dead_links)
        self._planner = Planner(fabric, self._network, self._local, self._refuse)
        # One more element, so that link −1 (none) costs nothing.
        self._latency = np.append(fabric.latency_s, 0.0)

    def without(self, dead_links: Iterable[int]) -> Router:
        """Return a router that avoids further links; pairs that need them raise when routed."""
        return Router(self.fabric, self.options, self.dead_links.union(map(int, dead_links)))

    # What `simulator.fabric.exchange` folds by --------------------------------------------------

    @property
    def network(self) -> NetworkTables:
        """Switches and cables that work."""
        return self._network

    @property
    def class_of_node(self) -> IntArray:
        """Nodes of one number route alike inside, shape (nodes,)."""
        return self._local.class_of_node

    @property
    def nic_base(self) -> IntArray:
        """First NIC of each node, shape (nodes,)."""
        return self._local.nic_base

    def plan(self, src_vertex: IntArray, dst_vertex: IntArray) -> Plan:
        """Return what pairs use inside nodes, and their subflows between NICs."""
        return self._planner.plan(src_vertex, dst_vertex, None)

    def local_entries(self, row: IntArray) -> tuple[IntArray, FloatArray]:
        """Return links, counted from the node's first, and shares of rows of a plan."""
        _, link, share = _entries(*self._local_part(row, np.zeros(len(row), dtype=np.int64)))
        return link, share

    def routes(
        self,
        src_vertex: ArrayLike,
        dst_vertex: ArrayLike,
        *,
        flow: ArrayLike | None = None,
        nics: ArrayLike | None = None,
    ) -> Routes:
        """Return the routes of pairs of vertices.

        Parameters
        ----------
        src_vertex, dst_vertex
            GPUs, NVSwitches or network switches, shape (pairs,).
        flow
            Number that the ECMP hash takes beside the pair (a channel, say), shape (pairs,).
        nics
            NICs to use, by index in the node: shape (pairs,) for the same on both sides, or
            (pairs, 2) for source and destination; −1: by affinity.

        Returns
        -------
        Routes
            A pair of a vertex with itself has no link.

        Raises
        ------
        RoutingError
            A pair without route, naming both sides of the cut; an end of another kind.
        """
        parts = list(self._chunks(src_vertex, dst_vertex, flow, nics))
        if len(parts) == 1:
            return parts[0]
        length = [np.diff(part.indptr) for part in parts]
        whole = np.zeros(sum(map(len, length)) + 1, dtype=np.int64)
        if parts:
            np.cumsum(np.concatenate(length), out=whole[1:])
        empty = np.zeros(0)
        return Routes(
            indptr=whole,
            link=np.concatenate([empty.astype(np.int64), *(part.link for part in parts)]),
            share=np.concatenate([empty, *(part.share for part in parts)]),
            latency_s=np.concatenate([empty, *(part.latency_s for part in parts)]),
        )

    def load(
        self,
        src_vertex: ArrayLike,
        dst_vertex: ArrayLike,
        weight: ArrayLike = 1.0,
        *,
        flow: ArrayLike | None = None,
    ) -> FloatArray:
        """Return what each link carries when every pair sends `weight`, shape (links,).

        Nothing as long as all routes together is held: millions of pairs are summed in chunks.
        """
        total = np.zeros(self.fabric.n_links)
        src = np.atleast_1d(np.asarray(src_vertex, dtype=np.int64))
        amount = np.broadcast_to(np.asarray(weight, dtype=np.float64), src.shape)
        if self.policy == "adaptive":
            dst = np.atleast_1d(np.asarray(dst_vertex, dtype=np.int64))
            return self._spread_load(total, src, dst, amount)
        done = 0
        for part in self._chunks(src, dst_vertex, flow, None):
            own = amount[done : done + part.n_pairs]
            done += part.n_pairs
            weights = np.repeat(own, np.diff(part.indptr)) * part.share
            total += np.bincount(part.link, weights=weights, minlength=len(total))
        return total

    def _refuse(self, src: IntArray, dst: IntArray, bad: NDArray[np.bool_]) -> None:
        """Raise for the first bad pair, if there is one."""
        if bad.any():
            index = int(np.flatnonzero(bad)[0])
            raise no_route(self.fabric, self._dead, self.options, int(src[index]), int(dst[index]))

    def _chunks(
        self,
        src_vertex: ArrayLike,
        dst_vertex: ArrayLike,
        flow: ArrayLike | None,
        nics: ArrayLike | None,
    ) -> Iterator[Routes]:
        src = np.atleast_1d(np.asarray(src_vertex, dtype=np.int64))
        dst = np.atleast_1d(np.asarray(dst_vertex, dtype=np.int64))
        flows = np.broadcast_to(np.asarray(0 if flow is None else flow, dtype=np.int64), src.shape)
        pins: IntArray | None = None
        if nics is not None:
            pins = np.asarray(nics, dtype=np.int64)
            pins = pins if pins.ndim == 2 else np.stack([pins, pins], axis=1)
        adaptive = self.policy == "adaptive"
        # Adaptive routes are long, a thousand links each in a large fat tree.
        step = _CHUNK // 32 if adaptive else _CHUNK
        for begin in range(0, len(src), step):
            part = slice(begin, begin + step)
            plan = self._planner.plan(src[part], dst[part], None if pins is None else pins[part])
            if adaptive:
                yield self._spread(plan, src[part], dst[part])
            else:
                yield self._hashed(plan, src[part], dst[part], flows[part])

    # ------------------------------------------------------------ local parts

    def _local_part(self, row: IntArray, base: IntArray) -> tuple[IntTable, FloatTable | None]:
        """Return links (negative: none) and shares of local rows; shares None: all are 1."""
        rows = self._local.rows
        link, share = rows.links, rows.shares
        used = int(rows.length[row].max(initial=0))
        links = link[:, :used].take(row, axis=0, mode="wrap")
        links += base.astype(np.int32)[:, None]
        if rows.plain[row].all():
            return links, None
        return links, share[:, :used].take(row, axis=0, mode="wrap")

    def _port(self, link: IntArray, nic: IntArray) -> IntArray:
        """Return the cable of each NIC; −1 without NIC."""
        return np.where(nic >= 0, link[nic], -1) if len(link) else np.full(nic.shape, -1)

    # ------------------------------------------------- one path per subflow

    def _hashed(self, plan: Plan, src: IntArray, dst: IntArray, flow: IntArray) -> Routes:
        """Return routes with one network path per subflow (ECMP and static)."""
        network, late = self._network, self._local.rows.latency_s
        first, first_share = self._local_part(plan.first_row, plan.first_base)
        last, last_share = self._local_part(plan.last_row, plan.last_base)
        salt = None
        if self.policy == "ecmp" and plan.start.shape[1]:
            salt = mix(np.full(1, self.options.seed, dtype=np.uint64))
            for part in (src, dst, flow):
                salt = mix(salt ^ part.astype(np.uint64))
        slowest = np.zeros(len(src))
        paths: list[tuple[IntArray | slice, list[IntArray]]] = []
        for number in range(plan.start.shape[1]):
            some = np.flatnonzero(plan.start[:, number] >= 0)
            pairs = slice(None) if len(some) == len(src) else some
            start = plan.start[pairs, number]
            column = network.columns(plan.goal[pairs, number])
            self._refuse(src[pairs], dst[pairs], ~network.reachable(start, column))
            nic = plan.dst_nic[pairs, number]
            own = None if salt is None else salt[pairs]
            if own is not None and number:
                own = mix(own + np.uint64(number))
            ports = [
                self._port(network.up_link, plan.src_nic[pairs, number]),
                *network.walk(start, column, own, nic),
                self._port(network.down_link, nic),
            ]
            delay = sum((self._latency.take(port) for port in ports), np.zeros(len(start)))
            slowest[pairs] = np.maximum(slowest[pairs], delay)
            paths.append((pairs, ports))

        table = np.full(
            (len(src), first.shape[1] + sum(len(p) for _, p in paths) + last.shape[1]),
            -1,
            dtype=np.int32,
        )
        table[:, : first.shape[1]] = first
        at = begin = first.shape[1]
        for pairs, ports in paths:
            for port in ports:
                table[pairs, at] = port
                at += 1
        table[:, at:] = last
        shares = None
        loops = self._local.network_inside
        if len(paths) > 1 or loops or first_share is not None or last_share is not None:
            shares = np.ones(table.shape)
            if first_share is not None:
                shares[:, :begin] = first_share
            if last_share is not None:
                shares[:, at:] = last_share
            column_of = begin
            for number, (_, ports) in enumerate(paths):
                shares[:, column_of : column_of + len(ports)] = plan.share[:, number, None]
                column_of += len(ports)
            lengths = [len(ports) for _, ports in paths]
            if loops:
                # Both ends may be in one node, and cross its memory there.
                _merge_repeats(table, shares, [begin, *lengths, last.shape[1]])
            elif len(paths) > 1:
                _merge_repeats(table[:, begin:at], shares[:, begin:at], lengths)
        used = table >= 0
        indptr = np.zeros(len(src) + 1, dtype=np.int64)
        np.cumsum(used.sum(axis=1, dtype=np.int32), out=indptr[1:])
        return Routes(
            indptr=indptr,
            link=table[used].astype(np.int64),
            share=np.ones(int(indptr[-1])) if shares is None else shares[used],
            latency_s=late[plan.first_row] + slowest + late[plan.last_row],
        )

    # --------------------------------------------------------------- adaptive

    def _spread(self, plan: Plan, src: IntArray, dst: IntArray) -> Routes:
        """Return routes that use all shortest network paths."""
        network, late = self._network, self._local.rows.latency_s
        first, first_share = self._local_part(plan.first_row, plan.first_base)
        last, last_share = self._local_part(plan.last_row, plan.last_base)
        parts = [_entries(first, first_share)]
        slowest = np.zeros(len(src))
        for number in range(plan.start.shape[1]):
            pairs = np.flatnonzero(plan.start[:, number] >= 0)
            start = plan.start[pairs, number]
            column = network.columns(plan.goal[pairs, number])
            self._refuse(src[pairs], dst[pairs], ~network.reachable(start, column))
            share = plan.share[pairs, number]
            up = self._port(network.up_link, plan.src_nic[pairs, number])
            down = self._port(network.down_link, plan.dst_nic[pairs, number])
            between = network.spread(start, column)
            delay = self._latency[up] + between.latency_s + self._latency[down]
            slowest[pairs] = np.maximum(slowest[pairs], delay)
            length = np.diff(between.indptr)
            parts += [
                (pairs[up >= 0], up[up >= 0], share[up >= 0]),
                (
                    np.repeat(pairs, length),
                    between.link,
                    between.share * np.repeat(share, length),
                ),
                (pairs[down >= 0], down[down >= 0], share[down >= 0]),
            ]
        parts.append(_entries(last, last_share))
        owner, link, amount = (np.concatenate([part[i] for part in parts]) for i in range(3))
        order = np.argsort(owner, kind="stable")
        owner, link, amount = owner[order], link[order], amount[order]
        if plan.start.shape[1] > 1 or self._local.network_inside:
            key = owner * self.fabric.n_links + link
            _, at, inverse = np.unique(key, return_index=True, return_inverse=True)
            amount = np.bincount(inverse, weights=amount)[inverse]
            keep = np.sort(at)
            owner, link, amount = owner[keep], link[keep], amount[keep]
        indptr = np.searchsorted(owner, np.arange(len(src) + 1)).astype(np.int64)
        return Routes(
            indptr=indptr,
            link=link.astype(np.int64),
            share=amount.astype(np.float64),
            latency_s=late[plan.first_row] + slowest + late[plan.last_row],
        )

    def _spread_load(
        self, total: FloatArray, src: IntArray, dst: IntArray, amount: FloatArray
    ) -> FloatArray:
        """Add the load of pairs over all shortest paths.

        Pairs that enter and leave the network at the same switches share their paths, so their
        weights are added first: a 2,048-GPU all-to-all has 4 million pairs and 4,096 of those.
        """
        network = self._network
        between: dict[int, float] = {}

        def count(link: IntArray, weights: FloatArray) -> None:
            total[:] += np.bincount(link, weights=weights, minlength=len(total))

        for begin in range(0, len(src), _CHUNK):
            part = slice(begin, begin + _CHUNK)
            plan = self._planner.plan(src[part], dst[part], None)
            own = amount[part]
            for row, base in ((plan.first_row, plan.first_base), (plan.last_row, plan.last_base)):
                owner, link, share = _entries(*self._local_part(row, base))
                count(link, own[owner] * share)
            for number in range(plan.start.shape[1]):
                pairs = np.flatnonzero(plan.start[:, number] >= 0)
                start = plan.start[pairs, number]
                column = network.columns(plan.goal[pairs, number])
                cut = ~network.reachable(start, column)
                self._refuse(src[part][pairs], dst[part][pairs], cut)
                weights = own[pairs] * plan.share[pairs, number]
                for link in (
                    self._port(network.up_link, plan.src_nic[pairs, number]),
                    self._port(network.down_link, plan.dst_nic[pairs, number]),
                ):
                    count(link[link >= 0], weights[link >= 0])
                key, inverse = np.unique(column * network.n + start, return_inverse=True)
                sums = np.bincount(inverse, weights=weights, minlength=len(key))
                for one, value in zip(key.tolist(), sums.tolist(), strict=True):
                    between[one] = between.get(one, 0.0) + value
        keys = np.array(list(between), dtype=np.int64)
        values = np.array(list(between.values()))
        for begin in range(0, len(keys), _SPREADS):
            some = slice(begin, begin + _SPREADS)
            paths = network.spread(keys[some] % network.n, keys[some] // network.n, keep=False)
            count(paths.link, np.repeat(values[some], np.diff(paths.indptr)) * paths.share)
        return total


def _entries(link: IntTable, share: FloatTable | None) -> tuple[IntArray, IntArray, FloatArray]:
    """Return (pair, link, share) of the used cells of a padded table."""
    used = link >= 0
    links = link[used].astype(np.int64)
    return np.nonzero(used)[0], links, np.ones(len(links)) if share is None else share[used]


def _merge_repeats(links: IntTable, shares: FloatTable, lengths: list[int]) -> None:
    """Add the share of a link's later occurrences in a pair to its first one, in place.

    Parameters
    ----------
    links, shares
        Columns of all paths, shape (pairs, sum of lengths).
    lengths
        Columns of each path; within one path nothing repeats.
    """
    columns = np.ascontiguousarray(links.T)
    for number, column in enumerate(columns):
        column[column < 0] = -1 - number  # an unused cell equals no other
    begin = 0
    for length in lengths:
        for later in range(begin, begin + length):
            for earlier in range(begin):
                twice = np.flatnonzero(columns[later] == columns[earlier])
                if len(twice):
                    shares[twice, earlier] += shares[twice, later]
                    links[twice, later] = -1
                    columns[later, twice] = -1 - later
        begin += length
