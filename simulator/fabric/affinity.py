"""Which NICs a transfer between two nodes uses, and the local routes to and from them."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulator.fabric.interior import Interior, LocalRoute, Reach
from simulator.fabric.options import RoutingOptions
from simulator.fabric.template import CompiledTemplate

__all__ = ["NodeClass", "RowTable", "Subflow", "subflows"]

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]

Subflow = tuple[int, int, float]
"""NIC of the source node, NIC of the destination node, share of the bytes."""
Ranks = dict[int, tuple[int, int, float]]
"""Affinity of NICs, see `Interior.nic_rank`."""

_BELOW = -(2**30)
"""Padding that stays negative when a node's first link is added."""


class RowTable:
    """Local routes as padded arrays; a route is known by its row.

    Attributes
    ----------
    links : ndarray of int32, shape (rows + 1, longest)
        Local links, padded with large negative numbers; the last row is empty, for row −1.
    shares : ndarray of float64, shape (rows + 1, longest)
        Share on each link.
    latency_s : ndarray of float64, shape (rows + 1,)
        Latency of each row.
    length : ndarray of int64, shape (rows + 1,)
        Number of links of each row.
    plain : ndarray of bool, shape (rows + 1,)
        All shares of the row are 1.
    """

    def __init__(self) -> None:
        self._routes: list[LocalRoute] = []
        self._refresh()

    def add(self, route: LocalRoute | None) -> int:
        """Return the row of a new route; −1 for None."""
        if route is None:
            return -1
        self._routes.append(route)
        return len(self._routes) - 1

    def merged(self, parts: list[tuple[int, float]]) -> int:
        """Return a row in which each given row carries its share; −1 when there is none."""
        if len(parts) == 1 or not parts:
            return parts[0][0] if parts else -1
        shares: dict[int, float] = {}
        for row, share in parts:
            route = self._routes[row]
            for link, part in zip(route.link, route.share, strict=True):
                shares[link] = shares.get(link, 0.0) + part * share
        late = max(self._routes[row].latency_s for row, _ in parts)
        return self.add(LocalRoute(tuple(shares), tuple(shares.values()), late))

    def refresh(self) -> None:
        """Bring the arrays up to the routes added since."""
        if len(self.length) != len(self._routes) + 1:
            self._refresh()

    def _refresh(self) -> None:
        routes = [*self._routes, LocalRoute((), (), 0.0)]
        self.length = np.array([len(route.link) for route in routes], dtype=np.int64)
        shape = (len(routes), int(self.length.max()))
        self.links = np.full(shape, _BELOW, dtype=np.int32)
        self.shares = np.zeros(shape)
        for row, route in enumerate(routes):
            self.links[row, : len(route.link)] = route.link
            self.shares[row, : len(route.link)] = route.share
        self.latency_s = np.array([route.latency_s for route in routes])
        self.plain = np.array([all(part == 1.0 for part in route.share) for route in routes])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NodeClass:
    """What all nodes have in common that route alike; −1 in a table: no route."""

    n_gpus: int
    n_nics: int
    gpu_gpu: IntArray
    """Row of each pair of GPUs, shape (gpus, gpus)."""
    up: IntArray
    """Row of each GPU to its NVSwitches, shape (gpus,)."""
    down: IntArray
    send: IntArray
    """Row of each GPU to each NIC, shape (gpus, nics)."""
    receive: IntArray
    """Row of each NIC to each GPU, shape (gpus, nics)."""
    near: NDArray[np.bool_]
    """The GPU reaches the NIC without crossing a CPU, or by PXN, shape (gpus, nics)."""
    send_set: tuple[tuple[int, ...], ...]
    """The closest NICs of each GPU that can send."""
    receive_set: tuple[tuple[int, ...], ...]
    send_rank: tuple[Ranks, ...]
    """Affinity of the NICs that can send, by GPU."""
    receive_rank: tuple[Ranks, ...]
    piece: tuple[int, ...]
    """Piece of the network that each NIC is in."""

    @staticmethod
    def of(
        compiled: CompiledTemplate,
        options: RoutingOptions,
        rows: RowTable,
        *,
        dead: frozenset[int],
        sends: tuple[bool, ...],
        receives: tuple[bool, ...],
        piece: tuple[int, ...],
    ) -> NodeClass:
        """Work out all local routes of a node.

        Parameters
        ----------
        compiled, options
            The node and the routing options.
        rows
            Table that takes the routes.
        dead
            Failed local links.
        sends, receives, piece
            State of each NIC in the network, see `NetworkTables`.
        """
        interior = Interior(compiled, options, dead)
        gpus, nics = compiled.gpus.tolist(), compiled.nics.tolist()
        shape = (len(gpus), len(nics))
        gpu_gpu = np.full((len(gpus), len(gpus)), -1, dtype=np.int64)
        for g, a in enumerate(gpus):
            for h, b in enumerate(gpus):
                if g != h:
                    gpu_gpu[g, h] = rows.add(interior.gpu_to_gpu(a, b))
        send, receive = np.full(shape, -1, dtype=np.int64), np.full(shape, -1, dtype=np.int64)
        near = np.zeros(shape, dtype=bool)
        tables: dict[bool, list[Ranks]] = {True: [], False: []}
        for outward, alive in ((True, sends), (False, receives)):
            for gpu in gpus:
                ranks = {
                    n: interior.nic_rank(gpu, nic, outward)
                    for n, nic in enumerate(nics)
                    if alive[n]
                    and (not options.nics or n in options.nics)
                    and interior.gpu_nic(gpu, nic, outward) is not None
                }
                tables[outward].append({n: rank for n, rank in ranks.items() if rank is not None})
        owners = _owners(tables[True], len(nics))
        for g, gpu in enumerate(gpus):
            for n in tables[True][g]:
                found = interior.gpu_nic(gpu, nics[n], outward=True)
                relayed = None
                if options.pxn and (found is None or found[0] > Reach.C2C):
                    relayed = _relay(interior, gpu, [gpus[p] for p in owners[n]], nics[n])
                near[g, n] = relayed is not None or (found is not None and found[0] <= Reach.C2C)
                send[g, n] = rows.add(relayed or (found[1] if found else None))
            for n in tables[False][g]:
                found = interior.gpu_nic(gpu, nics[n], outward=False)
                receive[g, n] = rows.add(found[1] if found else None)

        return NodeClass(
            n_gpus=len(gpus),
            n_nics=len(nics),
            gpu_gpu=gpu_gpu,
            up=np.array([rows.add(interior.to_nvswitch(g, outward=True)) for g in gpus], np.int64),
            down=np.array(
                [rows.add(interior.to_nvswitch(g, outward=False)) for g in gpus], np.int64
            ),
            send=send,
            receive=receive,
            near=near,
            send_set=tuple(_closest(ranks) for ranks in tables[True]),
            receive_set=tuple(_closest(ranks) for ranks in tables[False]),
            send_rank=tuple(tables[True]),
            receive_rank=tuple(tables[False]),
            piece=piece,
        )


def _closest(ranks: Ranks) -> tuple[int, ...]:
    """Return the NICs with the smallest rank, ascending."""
    return tuple(nic for nic in sorted(ranks) if ranks[nic] == min(ranks.values()))


def _owners(ranks: list[Ranks], n_nics: int) -> list[list[int]]:
    """Return the GPUs that can relay to each NIC (PXN): the closest, in turn for equal NICs."""
    owners: list[list[int]] = []
    for nic in range(n_nics):
        near = {
            gpu: rank[nic]
            for gpu, rank in enumerate(ranks)
            if nic in rank and rank[nic][0] in (Reach.PXB, Reach.C2C)
        }
        best = [gpu for gpu in near if near[gpu] == min(near.values())]
        turn = sum(set(other) == set(best) for other in owners) % max(len(best), 1)
        owners.append(best[turn:] + best[:turn])
    return owners


def _relay(interior: Interior, gpu: int, owners: list[int], nic: int) -> LocalRoute | None:
    """Return the route over one NVLink to another GPU and from there to its NIC."""
    for owner in owners:
        first = None if owner == gpu else interior.scale_up(gpu, owner, relayed=False)
        second = interior.gpu_nic(owner, nic, outward=True)
        if first is not None and second is not None:
            return first.then(second[1])
    return None


def subflows(
    source: NodeClass, gpu: int, target: NodeClass, peer: int, options: RoutingOptions
) -> list[Subflow]:
    """Return what carries a transfer between two nodes: pairs of NICs, `flows` times each.

    Parameters and order as in `_nic_pairs`.
    """
    found = _nic_pairs(source, gpu, target, peer, options)
    return [(a, b, share / options.flows) for a, b, share in found for _ in range(options.flows)]


def _nic_pairs(
    source: NodeClass, gpu: int, target: NodeClass, peer: int, options: RoutingOptions
) -> list[Subflow]:
    """Return the NIC pairs that carry a transfer between two nodes.

    Parameters
    ----------
    source, gpu
        Class of the sending node and index of its GPU.
    target, peer
        The same of the receiving node.
    options
        Routing options.

    Returns
    -------
    list of (NIC, NIC, share)
        Empty when no pair of NICs is joined by the network.

    Notes
    -----
    In this order: (1) with PXN, the destination's own NICs and the source's NICs on the same
    rails, where the source reaches them without crossing a CPU; (2) both sides' closest NICs, in
    order, the shorter list repeated; without `cross_nic` the source's rails on both sides;
    (3) with PXN, what failures or separate rails leave: the closest NICs of the destination that
    the network joins, each with the closest of the source.  Separate rails without PXN have no
    route, as in NCCL.
    """

    def joined(a: int, b: int) -> bool:
        return source.piece[a] == target.piece[b] >= 0

    wanted = target.receive_set[peer]
    if options.pxn:
        rails = [n for n in wanted if n < source.n_nics and source.near[gpu, n] and joined(n, n)]
        if rails:
            return [(n, n, 1.0 / len(rails)) for n in rails]
    own = source.send_set[gpu]
    pairs: list[tuple[int, int]] = []
    if own and not options.cross_nic:
        pairs = [(n, n) for n in own if n in target.receive_rank[peer]]
    elif own and wanted:
        count = math.lcm(len(own), len(wanted))
        pairs = [(own[i % len(own)], wanted[i % len(wanted)]) for i in range(count)]
    pairs = [pair for pair in pairs if joined(*pair)]
    if not pairs and options.pxn:
        pairs = [(a, b) for a in source.send_rank[gpu] for b in target.receive_rank[peer]]
        pairs = [(a, b) for a, b in pairs if source.near[gpu, a] and joined(a, b)]
        ways = {b: min((source.send_rank[gpu][a], a) for a, c in pairs if b == c) for _, b in pairs}
        nearest = _closest({b: target.receive_rank[peer][b] for b in ways}) if ways else ()
        pairs = [(ways[b][1], b) for b in nearest]
    return [(a, b, 1.0 / len(pairs)) for a, b in pairs]
