"""The load of an exchange of equal parts on every link, without its pairs.

An exchange of n ranks has n (n − 1) pairs, 10⁹ of 32,768 GPUs.  But a pair's way inside nodes
depends only on the kinds of its nodes and the GPUs' places in them, and between nodes only on the
switch where it starts and the NIC where it ends: so nodes are counted by kind, and flows are
followed by (switch, NIC), or by (switch, switch) where all shortest paths are used.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from simulator.fabric.plan import Plan
    from simulator.fabric.routing import Router

__all__ = ["exchange_load"]

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]

_MOST_KINDS = 16
"""Clusters of more kinds of nodes are not folded."""
_CHUNK = 1 << 17
"""Flows followed at a time."""
_NICS = 1 << 16
"""More than a node has NICs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kinds:
    """The nodes that take part, by kind."""

    node: IntArray
    """Nodes, ascending."""
    kind: IntArray
    """Kind of each of them."""
    domain: IntArray
    """A number that nodes of one NVLink domain share; nodes of none have one of their own."""
    gpus: list[IntArray]
    """Places of the GPUs that take part, in a node of each kind."""


def _kinds_of_nodes(router: Router, gpus: IntArray) -> _Kinds | None:
    """Return the kinds of the nodes of some GPUs; None where they are too many to fold."""
    fabric = router.fabric
    node_of = np.asarray(fabric.node_of_gpu)[gpus]
    place = np.asarray(fabric.local_of_gpu)[gpus]
    node, index = np.unique(node_of, return_inverse=True)
    there = np.zeros((len(node), int(place.max()) + 2), dtype=np.int64)
    there[index, place] = 1
    there[:, -1] = router.class_of_node[node]
    looks, kind = np.unique(there, axis=0, return_inverse=True)
    if len(looks) > _MOST_KINDS:
        return None
    shared = np.asarray(fabric.domain_of_node)[node]
    return _Kinds(
        node=node,
        kind=kind.ravel(),
        domain=np.where(shared >= 0, shared, len(fabric.domain_first) + node),
        gpus=[np.flatnonzero(look[:-1]) for look in looks],
    )


def exchange_load(router: Router, gpus: IntArray, amount: float) -> FloatArray | None:
    """Return what each link carries when every GPU sends *amount* to every other, shape (links,).

    Parameters
    ----------
    router
        Static or adaptive: the loads are those of all pairs.  With ECMP, whose pairs take ways of
        their own, they are the mean over all hashes.
    gpus
        Global numbers of the GPUs, each once.

    Returns
    -------
    numpy.ndarray or None
        None where nodes are of too many kinds, or GPUs of one node meet over the network.
    """
    kinds = _kinds_of_nodes(router, gpus)
    if kinds is None:
        return None
    try:
        return _Exchange(router, kinds, amount).load()
    except _UnlikeError:
        return None


class _UnlikeError(Exception):
    """Pairs of one kind turn out to be unlike each other."""


class _Streams(NamedTuple):
    """What one node sends another: NICs by their place in the node, and parts of the whole."""

    src: IntArray
    dst: IntArray
    amount: FloatArray


class _Exchange:
    def __init__(self, router: Router, kinds: _Kinds, amount: float) -> None:
        self._router, self._kinds, self._amount = router, kinds, amount
        self._total = np.zeros(router.fabric.n_links)
        self._n_kinds = len(kinds.gpus)
        self._of_kind = [np.flatnonzero(kinds.kind == k) for k in range(self._n_kinds)]
        domains, inverse = np.unique(kinds.domain, return_inverse=True)
        self._domain: IntArray = inverse
        self._known: dict[tuple[int, int], _Streams | None] = {}
        members = np.zeros((len(domains), self._n_kinds))
        np.add.at(members, (inverse, kinds.kind), 1.0)
        self._together = members[inverse]
        """Nodes of each kind in each node's domain, itself among them, shape (nodes, kinds)."""

    def load(self) -> FloatArray:
        """Return the loads of all links."""
        for own in range(self._n_kinds):
            self._local(own, own, "node")
            for other in range(self._n_kinds):
                self._local(own, other, "domain")
                self._local(own, other, "apart")
                self._ports(own, other)
        for other in range(self._n_kinds):
            self._between(other)
        return self._total

    # ------------------------------------------------------------------ inside nodes

    def _partners(self, own: int, other: int, where: str) -> FloatArray:
        """Return with how many nodes of a kind each node of another exchanges."""
        nodes = self._of_kind[own]
        if where == "node":
            return np.ones(len(nodes))
        near = self._together[nodes, other]
        if where == "domain":
            return np.asarray(near - (own == other))
        return np.asarray(len(self._of_kind[other]) - near)

    def _plan(self, own: int, other: int, where: str) -> Plan | None:
        """Return the plan from one node of a kind to one of another that stands so to it."""
        found = self._example(own, other, where)
        if found is None:
            return None
        fabric, gpus = self._router.fabric, self._kinds.gpus
        a, b = (int(self._kinds.node[index]) for index in found)
        src, dst = np.meshgrid(gpus[own], gpus[other], indexing="ij")
        if where == "node":
            src, dst = src[src != dst], dst[src != dst]
        first = np.searchsorted(np.asarray(fabric.node_of_gpu), [a, b])
        vertex = np.asarray(fabric.gpu_vertex)
        return self._router.plan(vertex[first[0] + src.ravel()], vertex[first[1] + dst.ravel()])

    def _example(self, own: int, other: int, where: str) -> tuple[int, int] | None:
        nodes = self._of_kind[own]
        some = np.flatnonzero(self._partners(own, other, where) > 0)
        if not len(some):
            return None
        a = int(nodes[some[0]])
        if where == "node":
            return a, a
        near = self._domain[self._of_kind[other]] == self._domain[a]
        fits = near if where == "domain" else ~near
        return a, int(next(b for b in self._of_kind[other][fits] if b != a))

    def _local(self, own: int, other: int, where: str) -> None:
        """Add what the ways from and to NICs, NVSwitches and neighbours carry."""
        plan = self._plan(own, other, where)
        if plan is None:
            return
        base = np.asarray(self._router.fabric.link_base)
        ends = ((plan.first_row, own, other), (plan.last_row, other, own))
        for row, here, there in ends:
            link, share = self._router.local_entries(row)
            amount = np.bincount(link, share, minlength=1)
            used = np.flatnonzero(amount)
            nodes = self._of_kind[here]
            times = self._partners(here, there, where)
            at = base[self._kinds.node[nodes]][:, None] + used
            self._add(at.ravel(), np.outer(times, amount[used]).ravel())
        if where != "apart" and (plan.start >= 0).any():
            raise _UnlikeError

    # ------------------------------------------------------------------ between nodes

    def _streams(self, own: int, other: int) -> _Streams | None:
        """Return what goes from NIC to NIC between any two nodes of these kinds."""
        key = own, other
        if key not in self._known:
            plan = self._plan(own, other, "apart")
            self._known[key] = None if plan is None else self._streams_of(own, other, plan)
        return self._known[key]

    def _streams_of(self, own: int, other: int, plan: Plan) -> _Streams:
        found = self._example(own, other, "apart")
        assert found is not None
        base = self._router.nic_base[self._kinds.node[list(found)]]
        used = plan.start >= 0
        if (plan.src_nic[used] < 0).any() or (plan.dst_nic[used] < 0).any():
            raise _UnlikeError
        pair = (plan.src_nic[used] - base[0]) * _NICS + plan.dst_nic[used] - base[1]
        pairs, inverse = np.unique(pair, return_inverse=True)
        amount: FloatArray = np.bincount(inverse, plan.share[used]).astype(np.float64)
        return _Streams(pairs // _NICS, pairs % _NICS, amount)

    def _ports(self, own: int, other: int) -> None:
        """Add what the cables of NICs carry."""
        streams, network = self._streams(own, other), self._router.network
        if streams is None or not len(network.up_link):
            return
        ends = (
            (own, other, streams.src, network.up_link),
            (other, own, streams.dst, network.down_link),
        )
        for here, there, nic, cable in ends:
            nodes = self._of_kind[here]
            times = self._partners(here, there, "apart")
            at = cable[self._nics(nodes, nic)]
            amount = np.outer(times, streams.amount)
            self._add(at[at >= 0], amount[at >= 0])

    def _nics(self, nodes: IntArray, nic: IntArray) -> IntArray:
        """Return NICs of the cluster by node and place, shape (nodes, places)."""
        return np.asarray(self._router.nic_base[self._kinds.node[nodes]][:, None] + nic)

    def _between(self, other: int) -> None:
        """Add what switches carry towards the nodes of one kind."""
        places = [s.dst for own in range(self._n_kinds) if (s := self._streams(own, other))]
        for place in np.unique(np.concatenate(places)).tolist() if places else ():
            self._towards(other, place)

    def _towards(self, other: int, place: int) -> None:
        """Add what switches carry towards one NIC of all nodes of a kind."""
        network = self._router.network
        origin, domain, amount = self._origins(other, place)
        support, at = np.unique(origin, return_inverse=True)
        everything = np.bincount(at, amount, len(support))
        nodes = self._of_kind[other]
        block = max(1, _CHUNK // len(support))
        pool: dict[int, FloatArray] = {}
        for begin in range(0, len(nodes), block):
            some = nodes[begin : begin + block]
            domains, row = np.unique(self._domain[some], return_inverse=True)
            near = np.flatnonzero(np.isin(domain, domains))
            own = np.zeros((len(domains), len(support)))
            np.add.at(own, (np.searchsorted(domains, domain[near]), at[near]), amount[near])
            flows = everything - own[row]
            flows[flows < 1e-9 * everything] = 0.0
            nic = self._nics(some, np.array([place]))[:, 0]
            column = network.columns(network.attached[nic])
            node, start = np.nonzero(flows)
            if not network.reachable(support[start], column[node]).all():
                raise _UnlikeError
            if self._router.policy == "static":
                hops = network.walk(support[start], column[node], None, nic[node])
                for link in hops:
                    there = link >= 0
                    self._add(link[there], flows[node, start][there])
                continue
            for one, flow in zip(column.tolist(), flows, strict=True):
                pool[one] = pool.get(one, 0.0) + flow
        self._pour(pool, support)

    def _origins(self, other: int, place: int) -> tuple[IntArray, IntArray, FloatArray]:
        """Return where flows to a NIC of each node of a kind start: vertex, domain, amount."""
        parts = []
        for own in range(self._n_kinds):
            streams = self._streams(own, other)
            here = np.zeros(0, dtype=np.int64)
            if streams is not None:
                here = np.flatnonzero(streams.dst == place)
            if streams is None or not len(here):
                continue
            nodes = self._of_kind[own]
            vertex = self._router.network.attached[self._nics(nodes, streams.src[here])]
            domain = np.repeat(self._domain[nodes], len(here))
            parts.append((vertex.ravel(), domain, np.tile(streams.amount[here], len(nodes))))
        origin, domain, amount = (np.concatenate([part[i] for part in parts]) for i in range(3))
        return origin, domain, amount

    def _pour(self, pool: dict[int, FloatArray], support: IntArray) -> None:
        """Spread flows by the switch where they end over all their shortest paths."""
        network = self._router.network
        block = max(1, _CHUNK // network.n)
        columns = np.array(list(pool), dtype=np.int64)
        for begin in range(0, len(columns), block):
            some = columns[begin : begin + block]
            amount = np.zeros((len(some), network.n))
            amount[:, support] = [pool[one] for one in some.tolist()]
            even = self._router.policy == "ecmp"
            self._add(*network.poured(some, amount, even=even))

    def _add(self, link: IntArray, amount: FloatArray) -> None:
        self._total += np.bincount(link, amount * self._amount, minlength=len(self._total))
