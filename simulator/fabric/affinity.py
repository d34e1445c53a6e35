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

_BELOW = -(2**30)
"""Padding that stays negative when a node's first link is added."""


class RowTable:
    """Local routes as padded arrays; a route is known by its row."""

    def __init__(self) -> None:
        self._routes: list[LocalRoute] = []
        self._arrays: tuple[NDArray[np.int32], FloatArray, FloatArray] | None = None
        self._length: IntArray | None = None

    def add(self, route: LocalRoute | None) -> int:
        """Return the row of a new route; −1 for None."""
        if route is None:
            return -1
        self._routes.append(route)
        self._arrays = None
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

    @property
    def length(self) -> IntArray:
        """Number of links of each row; the last is 0, for row −1."""
        if self._length is None or len(self._length) != len(self._routes) + 1:
            self._length = np.array([len(r.link) for r in self._routes] + [0], dtype=np.int64)
        return self._length

    @property
    def arrays(self) -> tuple[NDArray[np.int32], FloatArray, FloatArray]:
        """Local links padded with large negative numbers, shares, latencies.

        One more row than there are routes: the last is empty, for row −1.
        """
        if self._arrays is None:
            count = len(self._routes) + 1
            width = max((len(route.link) for route in self._routes), default=0)
            link = np.full((count, width), _BELOW, dtype=np.int32)
            share = np.zeros((count, width))
            late = np.zeros(count)
            for row, route in enumerate(self._routes):
                link[row, : len(route.link)] = route.link
                share[row, : len(route.link)] = route.share
                late[row] = route.latency_s
            self._arrays = link, share, late
        return self._arrays


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
    send_order: tuple[tuple[int, ...], ...]
    """All NICs that can send, closest first."""
    receive_order: tuple[tuple[int, ...], ...]
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
        tables: dict[bool, list[dict[int, tuple[int, int, float]]]] = {True: [], False: []}
        for outward, alive in ((True, sends), (False, receives)):
            for gpu in gpus:
                ranks = {
                    n: interior.nic_rank(gpu, nic, outward)
                    for n, nic in enumerate(nics)
                    if alive[n]
                }
                tables[outward].append({n: rank for n, rank in ranks.items() if rank is not None})
        owners = _owners(tables[True], len(nics))
        for g, gpu in enumerate(gpus):
            for n in tables[True][g]:
                found = interior.gpu_nic(gpu, nics[n], outward=True)
                relayed = None
                if (
                    options.pxn
                    and (found is None or found[0] > Reach.C2C)
                    and owners[n] is not None
                ):
                    relayed = _relay(interior, gpu, gpus[owners[n]], nics[n])
                near[g, n] = relayed is not None or (found is not None and found[0] <= Reach.C2C)
                send[g, n] = rows.add(relayed or (found[1] if found else None))
            for n in tables[False][g]:
                found = interior.gpu_nic(gpu, nics[n], outward=False)
                receive[g, n] = rows.add(found[1] if found else None)

        def order(outward: bool) -> tuple[tuple[int, ...], ...]:
            return tuple(tuple(sorted(t, key=lambda n, t=t: (t[n], n))) for t in tables[outward])  # type: ignore[misc]

        def closest(outward: bool) -> tuple[tuple[int, ...], ...]:
            return tuple(
                tuple(n for n in sorted(t) if t[n] == min(t.values())) for t in tables[outward]
            )

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
            send_set=closest(True),
            receive_set=closest(False),
            send_order=order(True),
            receive_order=order(False),
            piece=piece,
        )


def _owners(ranks: list[dict[int, tuple[int, int, float]]], n_nics: int) -> list[int | None]:
    """Return the GPU that relays to each NIC (PXN): the closest; NICs are dealt over equals."""
    owners: list[int | None] = []
    for nic in range(n_nics):
        near = {
            gpu: rank[nic]
            for gpu, rank in enumerate(ranks)
            if nic in rank and rank[nic][0] in (Reach.PXB, Reach.C2C)
        }
        if not near:
            owners.append(None)
            continue
        best = [gpu for gpu in near if near[gpu] == min(near.values())]
        alike = [n for n in range(nic) if owners[n] in best]
        owners.append(best[len(alike) % len(best)])
    return owners


def _relay(interior: Interior, gpu: int, owner: int, nic: int) -> LocalRoute | None:
    """Return the route over NVLink to another GPU and from there to its NIC."""
    if owner == gpu:
        return None
    first, second = interior.scale_up(gpu, owner), interior.gpu_nic(owner, nic, outward=True)
    return None if first is None or second is None else first.then(second[1])


def subflows(
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
    (3) with PXN, what failures or separate rails leave: the closest NIC of the destination, then
    of the source, that the network joins.  Separate rails without PXN have no route, as in NCCL.
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
        usable = set(target.receive_order[peer])
        pairs = [(n, n) for n in own if n in usable]
    elif own and wanted:
        count = math.lcm(len(own), len(wanted))
        pairs = [(own[i % len(own)], wanted[i % len(wanted)]) for i in range(count)]
    pairs = [pair for pair in pairs if joined(*pair)]
    if not pairs and options.pxn:
        pairs = [
            (a, b)
            for b in target.receive_order[peer]
            for a in source.send_order[gpu]
            if joined(a, b) and source.near[gpu, a]
        ][:1]
    return [(a, b, 1.0 / len(pairs)) for a, b in pairs]
