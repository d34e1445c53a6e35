"""Lowering: a schedule, the fabric's routes and a cost profile become the engine's arrays.

This is the only place where the three meet.  Connections are the schedule's (source, destination)
pairs, one per channel or one per pair as the profile says; their routes come from the router, the
wire bytes per payload byte from the links' efficiencies and the protocol, the latency from the
links and the profile's alpha.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from simulator.collectives.schedule import Schedule, Stage
from simulator.compose.tcp import copied_weight, thread_share_of
from simulator.costs.profile import PATH_KINDS, CostProfile
from simulator.engine.traffic import Collective, Connections, Messages, StageTraffic
from simulator.fabric.fabric import Fabric
from simulator.fabric.model import LINK_KINDS, NETWORK_KINDS, VERTEX_KINDS, Routes
from simulator.fabric.routing import Router

__all__ = ["Lowering", "PairCosts", "busiest_pairs"]

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]

SWITCHED = ("nvls", "nvls_tree", "nvls_sharp")
"""Algorithms in which NVSwitches reduce."""
OVER_NETWORK_SWITCHES = ("collnet_chain", "collnet_direct", "nvls_sharp")
"""Algorithms in which the network's switches reduce."""
PIPELINED = ("double_binary_tree", "tree", "collnet_chain", "collnet_direct", *SWITCHED)
"""Algorithms whose pieces follow each other through the same levels."""
EXCHANGES = ("direct", "pairwise")
WAITING = ("Simple", "LL128")
"""Protocols whose ranks wait for each other's slices; LL's lines carry their own flags."""
CHAINS = ("broadcast", "reduce")
"""Collectives whose ring is a chain from or to the root."""
SINGLE = 1.001
"""Flows on a link up to which it has one alone."""
STREAMED = "LL"
"""Protocol whose lines carry their own flags: a GPU passes each on as soon as it is there, before
the rest of the message (NCCL src/device/prims_ll.h).  Between nodes the proxy sends whole slots."""
STREAMED_PIECES = 16
"""Pieces into which a chunk of a streamed pipeline is cut: lines would be finer still."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PairCosts:
    """Routes and costs of pairs of slots; arrays over pairs or (CSR) over their links."""

    routes: Routes
    weight: FloatArray
    """Wire bytes per payload byte on each link of `routes`."""
    latency_s: FloatArray
    path_kind: IntArray
    """Index into `simulator.costs.profile.PATH_KINDS`."""
    rate_Bps: FloatArray
    """Payload rate of the pair alone on its route."""


class Lowering:
    """Turns schedules into engine traffic on one fabric, one router and one profile.

    Routes are kept between calls: a sweep over sizes routes each pattern once.
    """

    def __init__(self, fabric: Fabric, router: Router, profile: CostProfile) -> None:
        self.fabric = fabric
        self.router = router
        self.profile = profile
        self._routes: dict[bytes, Routes] = {}
        kinds = np.asarray(fabric.link_kind)
        self.generation = _generations(fabric)
        self.main_generation = fabric.node_template(0).gpu.generation
        """Of the first node: stands for all where a constant depends on it."""
        self.link_efficiency = self._link_efficiency(kinds)
        code = np.zeros(len(kinds), dtype=np.uint8)
        code[kinds == LINK_KINDS.index("xgmi")] = PATH_KINDS.index("xgmi")
        code[np.isin(kinds, [LINK_KINDS.index(kind) for kind in ("pcie", "upi")])] = (
            PATH_KINDS.index("pcie")
        )
        enters_cpu = np.asarray(fabric.vertex_kind)[fabric.link_dst] == VERTEX_KINDS.index("cpu")
        code[enters_cpu] = PATH_KINDS.index("host")
        network = np.isin(kinds, [LINK_KINDS.index(kind) for kind in NETWORK_KINDS])
        code[network] = PATH_KINDS.index("network")
        self._path_code = code
        """Of each link, what it makes of a path that uses it, as index into `PATH_KINDS`."""

    def collective(
        self,
        schedule: Schedule,
        group: IntArray,
        *,
        protocol: str,
        name: str,
        signature: tuple[object, ...],
        router: Router | None = None,
        copies: float = 1.0,
        switch_fill: float = 1.0,
    ) -> Collective:
        """Return the engine's form of one call.

        Parameters
        ----------
        schedule
            Over slots 0 … n−1, virtual ranks beyond.
        group
            Global ranks of the slots, shape (n,).
        protocol
            Name of a protocol of the profile.
        name, signature
            As in `Collective`.
        router
            Other routes than usual (after a failure).
        copies
            How many equal channels of the library each channel of the schedule stands for; in an
            exchange, each message.
        switch_fill
            Share of the rate of calls that NVSwitches reduce which the call's channels reach.
        """
        connections, inverse, start_s, start_wire_s = self._connections(
            schedule, group, protocol, router or self.router, copies, switch_fill
        )
        stages: list[StageTraffic] = []
        first = 0
        for stage in schedule.stages:
            edges = len(stage.src)
            stages.append(
                StageTraffic(
                    name=stage.name,
                    connection=inverse[first : first + edges],
                    channel=stage.channel,
                    n_steps=stage.n_steps,
                    messages=_messages(schedule, stage),
                    edge_bytes=stage.edge_bytes,
                    edge_messages=stage.edge_messages,
                    first_step=stage.first_step,
                )
            )
            first += edges
        return Collective(
            name=name,
            signature=signature,
            group=group,
            n_slots=schedule.world_size + len(schedule.virtual),
            connections=connections,
            stages=tuple(stages),
            launch_s=self.launch_s(group, protocol) + start_s,
            launch_wire_s=start_wire_s,
        )

    def launch_s(self, group: IntArray, protocol: str) -> float:
        """Return the time from a call to its first send, without what the peers cost."""
        profile = self.profile
        share = profile.launch_share.get(self._generation_of(group), 1.0)
        return profile.launch_s * share + profile.protocols[protocol].extra_launch_s

    def path_kinds(self, link: IntArray, indptr: IntArray) -> IntArray:
        """Return the kind of each path by its weakest part, as index into `PATH_KINDS`.

        Parameters
        ----------
        link, indptr
            Links of the paths, in CSR; no path is empty.
        """
        if len(indptr) == 1:
            return np.zeros(0, dtype=np.int64)
        weakest = np.maximum.reduceat(self._path_code[link], indptr[:-1])
        return np.asarray(weakest, dtype=np.int64)

    def _alpha_s(self, kind: str, protocol: str) -> float:
        """Return alpha of a path; over NVLink it depends on the GPU's generation."""
        alpha_s = self.profile.alpha_s[kind, protocol]
        if kind != "nvlink":
            return alpha_s
        return alpha_s * self.profile.alpha_share.get(self.main_generation, 1.0)

    def network_extra_s(self, link: IntArray, indptr: IntArray) -> FloatArray:
        """Return what the kind of network adds to the alpha of each path."""
        if len(indptr) == 1:
            return np.zeros(0)
        table = np.array([self.profile.network_extra_s.get(kind, 0.0) for kind in LINK_KINDS])
        of_link = table[np.asarray(self.fabric.link_kind)[link]]
        return np.asarray(np.maximum.reduceat(of_link, indptr[:-1]), dtype=np.float64)

    def pair_costs(
        self, src_vertex: IntArray, dst_vertex: IntArray, protocol: str, router: Router
    ) -> PairCosts:
        """Return routes, weights, latencies and lone rates of pairs of vertices."""
        key = src_vertex.tobytes() + dst_vertex.tobytes()
        routes = self._routes.get(key) if router is self.router else None
        if routes is None:
            routes = router.routes(src_vertex, dst_vertex)
            if router is self.router:
                self._routes[key] = routes
        share = self.profile.protocols[protocol].payload_share
        link = routes.link
        pairs = len(src_vertex)
        kind = self.path_kinds(link, routes.indptr)
        efficiency = self.link_efficiency[link]
        if self.profile.host_share < 1.0 and pairs:
            memory = np.asarray(self.fabric.link_kind)[link] == LINK_KINDS.index("memory")
            stored = np.logical_or.reduceat(memory, routes.indptr[:-1])
            stored &= kind == PATH_KINDS.index("host")
            bounced = np.repeat(stored, np.diff(routes.indptr))
            efficiency = np.where(bounced, efficiency * self.profile.host_share, efficiency)
        weight = routes.share / (efficiency * share)
        alpha = np.array([self._alpha_s(path, protocol) for path in PATH_KINDS])
        per_link = self.fabric.capacity_Bps[link] / weight
        rate = np.minimum.reduceat(per_link, routes.indptr[:-1]) if pairs else np.zeros(0)
        return PairCosts(
            routes=routes,
            weight=weight,
            latency_s=routes.latency_s + alpha[kind] + self.network_extra_s(link, routes.indptr),
            path_kind=kind,
            rate_Bps=rate,
        )

    def _connections(
        self,
        schedule: Schedule,
        group: IntArray,
        protocol: str,
        router: Router,
        copies: float,
        switch_fill: float,
    ) -> tuple[Connections, IntArray, float, float]:
        """Return the connections, each edge's connection, and what the launch takes longer.

        The last number is the part of that in which data travel.
        """
        slots = schedule.world_size + len(schedule.virtual)
        stages = schedule.stages
        empty = np.zeros(0, dtype=np.int64)
        src = np.concatenate([stage.src for stage in stages]) if stages else empty
        dst = np.concatenate([stage.dst for stage in stages]) if stages else empty
        channel = np.concatenate([stage.channel for stage in stages]) if stages else empty
        pair_key = src * slots + dst
        pairs, pair_of_edge = _numbered(pair_key)
        vertex = np.empty(slots, dtype=np.int64)
        vertex[: schedule.world_size] = self.fabric.gpu_vertex[group]
        for offset, switch in enumerate(schedule.virtual):
            members = group[np.asarray(switch.members)]
            vertex[schedule.world_size + offset] = self.fabric.switch_vertex(switch.kind, members)
        costs = self.pair_costs(vertex[pairs // slots], vertex[pairs % slots], protocol, router)
        latency_s, start_s, start_wire_s = self._alphas(
            schedule, group, protocol, costs, pairs, slots
        )
        costs = replace(costs, latency_s=latency_s)
        if schedule.algorithm in EXCHANGES and self.profile.exchange_share < 1.0:
            costs = self.crowded(costs)
        if self.profile.socket_Bps < np.inf:
            weight = copied_weight(self.fabric, costs.routes, costs.weight, costs.path_kind)
            costs = self._weighed(costs, weight)
        if not self.profile.per_channel:
            return (
                self._build(pairs, slots, np.arange(len(pairs)), costs, _no_cap(len(pairs))),
                pair_of_edge,
                start_s,
                start_wire_s,
            )
        channels = schedule.n_channels
        key, inverse = _numbered(pair_of_edge * channels + channel)
        pair = key // channels
        sharing = np.bincount(pair, minlength=len(pairs))
        cap = (costs.rate_Bps / np.maximum(sharing, 1))[pair]
        most = self._most_Bps(schedule, group, protocol, pairs[pair], slots)
        over_network = costs.path_kind[pair] == PATH_KINDS.index("network")
        if self.profile.network_channel_Bps:
            slow = self.profile.network_channel_Bps.get(protocol, np.inf)
            most = np.where(over_network, np.minimum(most, slow), most)
        if schedule.algorithm in EXCHANGES:
            most = self.exchange_channel_Bps(costs.path_kind[pair], group, protocol)
        cap = np.minimum(cap, copies * most)
        if self.profile.socket_Bps < np.inf:
            sockets = np.minimum(cap, copies * self.profile.socket_Bps)
            if self.profile.socket_rank_Bps < np.inf:
                ends = pairs[pair] // slots, pairs[pair] % slots
                thread_share = thread_share_of(stages, inverse, *ends, over_network)
                sockets = np.minimum(sockets, thread_share * self.profile.socket_rank_Bps)
            cap = np.where(over_network, sockets, cap)
        if schedule.algorithm in SWITCHED:
            share = switch_fill * self.profile.switch_share.get(self._generation_of(group), 1.0)
            virtual = np.maximum(pairs[pair] // slots, pairs[pair] % slots) >= len(group)
            cap = np.where(virtual & ~over_network, cap * share, cap)
        built = self._build(pairs, slots, pair, costs, cap)
        if schedule.algorithm == "ring" and schedule.collective not in CHAINS:
            start_s += self._closing_s(schedule, group, protocol) / copies
        if protocol in WAITING and schedule.algorithm not in PIPELINED:
            message_s = _mean_bytes(stages, inverse, len(pair)) / cap
            waits_s = np.sqrt(self.profile.waiting_s * message_s)
            built = replace(built, latency_s=built.latency_s + waits_s)
        if protocol == STREAMED and self.profile.tuning:
            if schedule.algorithm == "ring" and schedule.collective not in CHAINS:
                # The next step starts with the first line: the wire's latency passes meanwhile.
                message_s = _mean_bytes(stages, inverse, len(pair)) / cap
                shown_s = np.maximum(built.latency_s - message_s, 0.0)
                shown_s = np.where(over_network, built.latency_s, shown_s)
                wire_s = np.minimum(built.wire_s, shown_s)
                built = replace(built, latency_s=shown_s, wire_s=wire_s)
            elif schedule.algorithm == "double_binary_tree" and over_network.any():
                piece = _mean_bytes(stages, inverse, len(pair))
                total = np.bincount(inverse, _joined(stages, "edge_bytes"), len(pair))
                stored = np.minimum(total, STREAMED_PIECES * piece) - piece
                nodes = len(np.unique(self.fabric.unit_of_node[self.fabric.node_of_gpu[group]]))
                levels = 2 * (nodes.bit_length() - 1)
                start_s += levels * float((stored / cap)[over_network].max())
        return built, inverse, start_s, start_wire_s

    def crowded(self, costs: PairCosts) -> PairCosts:
        """Return the costs of an exchange: several flows into a port leave it less than one."""
        routes = costs.routes
        flows = np.bincount(routes.link, routes.share, self.fabric.n_links).astype(np.float64)
        return self._weighed(costs, costs.weight / self.exchange_share(flows)[routes.link])

    def _weighed(self, costs: PairCosts, weight: FloatArray) -> PairCosts:
        """Return the costs with other wire bytes per payload byte."""
        per_link = self.fabric.capacity_Bps[costs.routes.link] / weight
        starts = costs.routes.indptr[:-1]
        rate = np.minimum.reduceat(per_link, starts) if len(per_link) else per_link
        return replace(costs, weight=weight, rate_Bps=rate)

    def exchange_share(self, flows: FloatArray) -> FloatArray:
        """Return the share of its rate that each link keeps in an exchange, shape (links,).

        Parameters
        ----------
        flows
            Flows over each link; one alone keeps the whole rate.
        """
        network = self._path_code == PATH_KINDS.index("network")
        return np.where(network & (flows > SINGLE), self.profile.exchange_share, 1.0)

    def _closing_s(self, schedule: Schedule, group: IntArray, protocol: str) -> float:
        """Return the time of a ring's last operation, in which nothing is sent."""
        rate_Bps = self.profile.channel_Bps.get((self._generation_of(group), protocol), np.inf)
        stage = schedule.stages[0] if schedule.stages else None
        if stage is None or self.profile.closing_share == 0:
            return 0.0
        message = float((stage.edge_bytes / np.maximum(stage.edge_messages, 1)).max(initial=0.0))
        return self.profile.closing_share * message / rate_Bps

    def _alphas(
        self,
        schedule: Schedule,
        group: IntArray,
        protocol: str,
        costs: PairCosts,
        pairs: IntArray,
        slots: int,
    ) -> tuple[FloatArray, float, float]:
        """Return the latency of each pair, what the call pays once instead, and the links' part.

        A pipeline (trees, NVSwitch reduction) pays a level's alpha once: the pieces that follow
        are on their way while the first is handled (NCCL keeps eight slots per connection).
        """
        profile = self.profile
        if not profile.level_alpha_s:
            return costs.latency_s, 0.0, 0.0
        src, dst = pairs // slots, pairs % slots
        real = (src < len(group)) & (dst < len(group))
        if schedule.algorithm not in PIPELINED:
            start_s = 0.0
            if schedule.algorithm in EXCHANGES and profile.peer_s and len(pairs):
                cost = np.array([profile.peer_s.get(kind, 0.0) for kind in PATH_KINDS])
                start_s = float(cost[costs.path_kind[busiest_pairs(src, dst)]].sum())
            if schedule.collective in CHAINS and schedule.algorithm == "ring" and len(pairs):
                if protocol in WAITING:
                    # A sender waits until the next rank is in the same call; lines of LL are just
                    # written, so that there calls follow each other like the data.
                    start_s += float(costs.latency_s.max())
                # The library's part of a hop overlaps with its neighbours'; the links' does not.
                links_s = costs.routes.latency_s
                return links_s + (costs.latency_s - links_s) * profile.chain_share, start_s, 0.0
            return costs.latency_s, start_s, 0.0
        share = profile.alpha_share.get(self.main_generation, 1.0)
        level = np.array(
            [
                profile.level_alpha_s[kind, protocol] * (share if kind == "nvlink" else 1.0)
                for kind in PATH_KINDS
            ]
        )
        unit = self.fabric.unit_of_node[self.fabric.node_of_gpu[group]]
        _, per_unit = np.unique(unit, return_counts=True)
        inside = np.zeros(len(pairs), dtype=bool)
        inside[real] = unit[src[real]] == unit[dst[real]]
        outside = real & ~inside
        extra = self.network_extra_s(costs.routes.link, costs.routes.indptr)
        links_s = costs.routes.latency_s
        start_s = wire_s = 0.0
        levels = len(per_unit).bit_length() - 1
        if outside.any():
            hop_s = level[costs.path_kind[outside]] + extra[outside]
            if schedule.algorithm in SWITCHED and profile.switch_level_s > 0:
                hop_s = profile.switch_level_s + extra[outside]
            # NCCL's own model counts floor(log2) levels; its trees are ceil(log2) deep, and what
            # travels crosses the cables of all of them (src/graph/trees.cc, ncclGetBtree).
            deeper = (len(per_unit) - 1).bit_length() - levels
            far_s = float(links_s[outside].max())
            start_s += 2 * levels * float((hop_s + links_s[outside]).max()) + 2 * deeper * far_s
            wire_s += 2 * (levels + deeper) * far_s
        network = costs.path_kind == PATH_KINDS.index("network")
        if schedule.algorithm in OVER_NETWORK_SWITCHES and network.any():
            # One exchange with the switches, as the library's model has it; assumed: what a level
            # between nodes costs up and down.
            between_s = float(level[PATH_KINDS.index("network")])
            if schedule.algorithm in SWITCHED and profile.switch_level_s > 0:
                between_s = profile.switch_level_s
            start_s += between_s + float(extra[network].max() + 2 * links_s[network].max())
            wire_s += 2 * float(links_s[network].max())
        if schedule.algorithm in SWITCHED:
            # To the switch and back, twice: reduced, then multicast.
            near = ~real & ~network
            start_s += profile.switch_alpha_s + 4 * float(links_s[near].max(initial=0.0))
            wire_s += 4 * float(links_s[near].max(initial=0.0))
        elif inside.any():
            hop_s = level[costs.path_kind[inside]] + links_s[inside]
            # In a chain rank by rank; to the heads of the node all at once.
            hops = 1 if schedule.algorithm == "collnet_direct" else per_unit.max() - 1
            start_s += 2 * float(hops * hop_s.max())
            wire_s += 2 * float(hops * links_s[inside].max())
        return np.zeros(len(pairs)), start_s, wire_s

    def exchange_channel_Bps(
        self, path_kind: IntArray, group: IntArray, protocol: str
    ) -> FloatArray:
        """Return the largest rate of a channel that serves several peers, by kind of path."""
        profile = self.profile
        if profile.exchange_channel_share <= 0 or protocol != "Simple":
            return np.full(len(path_kind), np.inf)
        inside = profile.channel_Bps.get((self._generation_of(group), protocol), np.inf)
        between = min(inside, profile.network_channel_Bps.get(protocol, np.inf))
        network = path_kind == PATH_KINDS.index("network")
        return profile.exchange_channel_share * np.where(network, between, inside)

    def _most_Bps(
        self, schedule: Schedule, group: IntArray, protocol: str, key: IntArray, slots: int
    ) -> FloatArray:
        """Return the largest rate of a channel on each pair, by the GPU that sends."""
        table = self.profile.channel_Bps
        most = np.full(len(key), np.inf)
        if not table:
            return most
        src, dst = key // slots, key % slots
        real = (src < len(group)) & (dst < len(group))
        most[real] = table.get((self._generation_of(group), protocol), np.inf)
        if schedule.algorithm == "double_binary_tree" and protocol == "Simple":
            # Half of a channel's threads reduce upwards, half broadcast downwards
            # (NCCL src/device/all_reduce.h, runTreeSplit).
            most *= self.profile.tree_channel_share
        return most

    def _generation_of(self, group: IntArray) -> str:
        fabric = self.fabric
        return fabric.node_template(int(fabric.node_of_gpu[int(group[0])])).gpu.generation

    def _link_efficiency(self, kinds: IntArray) -> FloatArray:
        """Return the payload share of every link: by kind, and by GPU where the profile knows."""
        profile = self.profile
        share = np.array([profile.efficiency[kind] for kind in LINK_KINDS])[kinds]
        for (kind, generation), value in profile.generation_efficiency.items():
            chosen = (kinds == LINK_KINDS.index(kind)) & (self.generation == generation)
            share[chosen] = value
        return np.asarray(share, dtype=np.float64)

    @staticmethod
    def _build(
        pairs: IntArray, slots: int, pair: IntArray, costs: PairCosts, cap: FloatArray
    ) -> Connections:
        """Repeat the pairs' routes for each connection."""
        indptr = costs.routes.indptr
        if len(pair) == len(pairs):
            link, weight, new_indptr = costs.routes.link, costs.weight, indptr
        else:
            length = np.diff(indptr)[pair]
            new_indptr = np.concatenate([[0], np.cumsum(length)])
            position = np.arange(new_indptr[-1]) - np.repeat(new_indptr[:-1] - indptr[pair], length)
            link, weight = costs.routes.link[position], costs.weight[position]
        return Connections(
            src=pairs[pair] // slots,
            dst=pairs[pair] % slots,
            indptr=new_indptr,
            link=link,
            weight=weight,
            latency_s=costs.latency_s[pair],
            max_rate_Bps=cap,
            wire_s=np.minimum(costs.routes.latency_s, costs.latency_s)[pair],
        )


def busiest_pairs(src: IntArray, dst: IntArray) -> NDArray[np.bool_]:
    """Return the pairs of the rank that has most sends, or most receives if those are more.

    A receive costs its rank what a send costs: a peer's connection to be set up and served by the
    same kernel and proxy (NCCL src/enqueue.cc, addP2pToPlan takes both alike).
    """
    ends = max((src, dst), key=lambda end: int(np.bincount(end).max(initial=0)))
    busiest: NDArray[np.bool_] = ends == np.argmax(np.bincount(ends))
    return busiest


def _joined(stages: Sequence[Stage], name: str) -> FloatArray:
    """Return an array of all stages' edges, one after the other."""
    return np.concatenate([np.zeros(0), *(getattr(stage, name) for stage in stages)])


def _mean_bytes(stages: Sequence[Stage], inverse: IntArray, n: int) -> FloatArray:
    """Return the mean message of each of *n* connections; *inverse*: each edge's connection."""
    total = np.bincount(inverse, _joined(stages, "edge_bytes"), n)
    messages = np.bincount(inverse, _joined(stages, "edge_messages"), n)
    return np.asarray(total / np.maximum(messages, 1))


def _numbered(values: IntArray) -> tuple[IntArray, IntArray]:
    """Return the different values, ascending, and the number of each in them.

    As np.unique does; but a stable sort is fast where values are ascending for long, as the
    edges of schedules are.
    """
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    new = np.ones(len(values), dtype=bool)
    new[1:] = ordered[1:] != ordered[:-1]
    number = np.empty(len(values), dtype=np.int64)
    number[order] = np.cumsum(new) - 1
    return ordered[new], number


def _no_cap(count: int) -> FloatArray:
    return np.full(count, np.inf)


def _generations(fabric: Fabric) -> NDArray[np.str_]:
    """Return the GPU generation of the node at an end of each link; empty between switches."""
    names = np.array([template.gpu.generation for template in fabric.templates] + [""])
    node = np.asarray(fabric.vertex_node)
    owner = np.maximum(node[fabric.link_src], node[fabric.link_dst])
    return np.asarray(names[owner])


def _messages(schedule: Schedule, stage: Stage) -> Callable[[int], Messages]:
    """Return the generator of a stage's messages: pieces on one edge travel as one message."""
    if stage.uniform_step_bytes is not None:
        uniform = Messages(edge=None, size_bytes=float(stage.uniform_step_bytes))
        return lambda _index: uniform
    n_edges = len(stage.src)

    def messages(index: int) -> Messages:
        step = stage.step(index)
        count = np.broadcast_to(np.asarray(step.count), np.shape(step.start))
        size = schedule.chunks.size_bytes(step.start, count)
        if isinstance(step.edge, slice):
            return Messages(edge=None, size_bytes=size)
        edge = np.asarray(step.edge)
        if len(edge) > 1 and not bool(np.all(edge[1:] > edge[:-1])):
            total: FloatArray = np.bincount(edge, weights=size, minlength=n_edges).astype(
                np.float64
            )
            edge = np.unique(edge)
            return Messages(edge=edge, size_bytes=total[edge])
        return Messages(edge=edge, size_bytes=size)

    # The engine looks at a step and the next one more than once.
    return lru_cache(maxsize=4)(messages)
