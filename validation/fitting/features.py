"""A call's time as a short formula of the constants: extracted once, evaluated thousands of times.

The formula is the engine's folded one, with two simplifications: links that several connections
fill are shared evenly, and a pipeline's fill counts levels inside and between nodes.  The test
suite compares it with the engine.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.base.errors import CollsimError
from simulator.collectives.call import Call
from simulator.compose.choose import choose, lone_time_s
from simulator.compose.cluster import Choice, Cluster
from simulator.compose.lower import (
    EXCHANGES,
    PIPELINED,
    SINGLE,
    STREAMED,
    STREAMED_PIECES,
    SWITCHED,
    WAITING,
    busiest_pairs,
)
from simulator.costs.profile import PATH_KINDS, CostProfile
from simulator.engine.traffic import Collective, StageTraffic
from simulator.fabric.model import LINK_KINDS, NETWORK_KINDS
from validation.fitting.cases import Case, cluster_for
from validation.fitting.formulas import Edge, Path, Pipeline, RingForm, RowFormula, Single, Values

__all__ = ["bare_of", "formula", "formula_on", "neutral"]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


def neutral(profile: CostProfile) -> CostProfile:
    """Return the profile with nothing but physics: full rates, no alphas, no caps."""
    return replace(
        profile,
        launch_s=0.0,
        protocols={
            name: replace(entry, extra_launch_s=0.0) for name, entry in profile.protocols.items()
        },
        efficiency=dict.fromkeys(profile.efficiency, 1.0),
        alpha_s=dict.fromkeys(profile.alpha_s, 0.0),
        generation_efficiency={},
        channel_Bps={},
        level_alpha_s={},
        switch_share={},
        switch_alpha_s=0.0,
        closing_share=0.0,
        network_extra_s={},
        host_share=1.0,
        network_channel_Bps={},
        exchange_share=1.0,
        tree_channel_share=1.0,
        exchange_channel_share=0.0,
        host_launch_s=0.0,
        switch_level_s=0.0,
        launch_share={},
        alpha_share={},
        chain_share=1.0,
        waiting_s=0.0,
        peer_s={},
    )


_OURS = {"RING": "ring", "TREE": "double_binary_tree", "LL": "LL", "LL128": "LL128"}


def formula(
    case: Case, size_bytes: int, profile: CostProfile, values: Values | None = None
) -> RowFormula | None:
    """Return the formula of one row of a case; None where the call cannot be made.

    Parameters
    ----------
    case, size_bytes
        The row.
    profile
        Whose choice is taken; a profile without tuning model chooses with its present constants.
    values
        The profile's constants: the formula is then tied to the engine's time with them.
    """
    call = Call(
        collective=case.collective, world_size=case.n_ranks, size_bytes=size_bytes, root=case.root
    )
    protocol = {"SIMPLE": "Simple"}.get((case.protocol or "auto").upper(), case.protocol or "auto")
    return formula_on(
        cluster_for(case, profile),
        _bare_cluster(case, profile),
        call,
        np.arange(case.n_ranks),
        algorithm=_OURS.get((case.algorithm or "").upper(), "auto"),
        protocol=protocol,
        together=case.gpus_per_process,
        values=values,
    )


def formula_on(
    full: Cluster,
    bare: Cluster,
    call: Call,
    group: IntArray,
    *,
    algorithm: str = "auto",
    protocol: str = "auto",
    together: int = 1,
    values: Values | None = None,
) -> RowFormula | None:
    """Return the formula of a call on a cluster; None where the call cannot be made.

    Parameters
    ----------
    full, bare
        The cluster, and the same with a `neutral` profile.
    call, group
        What is called on which global ranks.
    algorithm, protocol
        Fixed parts of the choice.
    together
        GPUs for which one process launches.
    values
        The profile's constants: the formula is then tied to the engine's time with them.
    """
    try:
        choice = choose(full, call, group, algorithm=algorithm, protocol=protocol)
        made = bare.collective(call, group, choice)
    except CollsimError:
        return None
    found = _Extractor(bare, made, choice, group).formula()
    found = replace(found, together=together)
    if values is None or call.world_size > _MOST_RANKS_TIED:
        return found
    return found.tied_to(lone_time_s(full, call, group, choice), values)


def bare_of(full: Cluster) -> Cluster:
    """Return a cluster with nothing but physics in its costs."""
    return Cluster(full.fabric, full.lowering.router, neutral(full.profile))


_MOST_RANKS_TIED = 160


_bare: dict[tuple[Any, ...], Cluster] = {}


def _bare_cluster(case: Case, profile: CostProfile) -> Cluster:
    key = (
        (case.node, case.gpus_per_node, case.n_nodes, case.routing),
        (profile.name, case.version, case.environment),
    )
    if key not in _bare:
        if len(_bare) > 8:
            _bare.clear()
        _bare[key] = cluster_for(case, neutral(profile))
    return _bare[key]


class _Extractor:
    def __init__(self, cluster: Cluster, made: Collective, choice: Choice, group: IntArray) -> None:
        self.cluster, self.made, self.choice, self.group = cluster, made, choice, group
        fabric = cluster.fabric
        connections = made.connections
        self.owner = np.repeat(np.arange(len(connections.src)), np.diff(connections.indptr))
        self.kind = cluster.lowering.path_kinds(connections.link, connections.indptr)
        self.generation = fabric.templates[int(fabric.node_of_gpu[int(group[0])])].gpu.generation
        self.generation = _like(self.generation)
        self.n = len(group)
        simulated = max((int(s.channel.max(initial=0)) + 1 for s in made.stages), default=1)
        self.copies = max(1.0, choice.n_channels / simulated)
        self.units = cluster.units(group)
        link_kind = np.asarray(fabric.link_kind)[connections.link]
        self.keys: list[str] = []
        self.entry_key = np.zeros(len(link_kind), dtype=np.int64)
        for index in np.unique(link_kind):
            name = LINK_KINDS[int(index)]
            key = f"links.{name}.efficiency"
            if name == "nvlink" and self.generation in _NVLINK:
                key = f"generations.{self.generation}.links.nvlink"
            self.entry_key[link_kind == index] = len(self.keys)
            self.keys.append(key)

    def formula(self) -> RowFormula:
        launch = f"generations.{self.generation}.launch_share"
        linear: list[tuple[str, float]] = []
        protocol = self.choice.protocol
        linear.append((f"protocols.{protocol}.extra_launch", 1.0))
        stages: list[RingForm | Pipeline | Single] = []
        algorithm = self.choice.algorithm
        merged = self._merged()
        for stage, steps in merged:
            if algorithm in EXCHANGES:
                stages.append(self._single(stage))
            elif algorithm in PIPELINED:
                stages.append(self._pipeline(stage))
            elif (
                (stage.edge_messages == stage.n_steps).all()
                and stage.n_steps > 0
                and (self.made.signature[0] not in ("broadcast", "reduce"))
            ):
                stages.append(self._ring(stage, steps))
            else:
                stages.append(self._chain(stage))
        if algorithm in EXCHANGES:
            connections = self.made.connections
            peers = self.kind[busiest_pairs(connections.src, connections.dst)].tolist()
            linear += [(f"peers.{PATH_KINDS[index]}", 1.0) for index in peers]
        base_s = self._base_s() if algorithm in PIPELINED else 0.0
        levels: list[tuple[str, str, float]] = []
        if algorithm in PIPELINED:
            for key, times in self._levels(protocol):
                if key.startswith("levels.nvlink"):
                    levels.append((key, f"generations.{self.generation}.alpha_share", times))
                else:
                    linear.append((key, times))
        return RowFormula(
            choice=self.choice,
            base_s=base_s,
            launch=launch,
            levels=tuple(levels),
            linear=_summed(linear),
            stages=tuple(stages),
        )

    def _base_s(self) -> float:
        """Return the latency of the links on the way through a pipeline."""
        connections = self.made.connections
        src, dst = connections.src, connections.dst
        links_s = np.asarray(connections.latency_s)  # the neutral profile adds nothing
        real = (src < self.n) & (dst < self.n)
        inside = np.zeros(len(src), dtype=bool)
        inside[real] = self.units[src[real]] == self.units[dst[real]]
        _, per_unit = np.unique(self.units, return_counts=True)
        outside = real & ~inside
        depth = (len(per_unit) - 1).bit_length()
        total = 2 * depth * float(links_s[outside].max(initial=0.0))
        if self.choice.algorithm in SWITCHED:
            return total + 4 * float(links_s[~real].max(initial=0.0))
        return total + 2 * float((per_unit.max() - 1) * links_s[inside].max(initial=0.0))

    def _levels(self, protocol: str) -> list[tuple[str, float]]:
        connections = self.made.connections
        src, dst = connections.src, connections.dst
        real = (src < self.n) & (dst < self.n)
        inside = np.zeros(len(src), dtype=bool)
        inside[real] = self.units[src[real]] == self.units[dst[real]]
        _, per_unit = np.unique(self.units, return_counts=True)
        found: list[tuple[str, float]] = []
        levels = len(per_unit).bit_length() - 1
        if (real & ~inside).any():
            worst = int(self.kind[real & ~inside].max())
            name = f"levels.{PATH_KINDS[worst]}.{protocol}"
            if self.choice.algorithm in SWITCHED:
                name = "switch.level"
            found.append((name, 2.0 * levels))
            crossing = self._network_of(int(np.flatnonzero(real & ~inside)[0]))
            if crossing:
                found.append((crossing, 2.0 * levels))
        if self.choice.algorithm in SWITCHED:
            found.append(("switch.time", 1.0))
        elif inside.any():
            worst = int(self.kind[inside].max())
            found.append((f"levels.{PATH_KINDS[worst]}.{protocol}", 2.0 * (per_unit.max() - 1)))
        return found

    def _merged(self) -> list[tuple[StageTraffic, int]]:
        """Join a reduce-scatter and the all-gather that goes on in the same ring."""
        stages = self.made.stages
        if len(stages) == 2 and np.array_equal(stages[0].connection, stages[1].connection):
            return [(stages[0], stages[0].n_steps + stages[1].n_steps)]
        return [(stage, stage.n_steps) for stage in stages]

    def _edges(self, stage: StageTraffic, *, alpha: bool) -> tuple[list[Edge], IntArray]:
        """Return the kinds of edges of a stage, and the kind of each edge."""
        connections = self.made.connections
        fabric = self.cluster.fabric
        payload = np.bincount(stage.connection, stage.edge_bytes, len(connections.src)).astype(
            np.float64
        )
        active = payload > 0
        if not active.any():
            active = np.ones(len(payload), dtype=bool)
        relative = np.where(active, payload / max(payload.max(), 1.0), 0.0)
        load = np.bincount(
            connections.link,
            connections.weight * np.where(active, np.maximum(relative, 0.02), 0)[self.owner],
            fabric.n_links,
        )
        # A link's capacity, divided among what crosses it in proportion to its bytes.
        capacity = np.asarray(fabric.capacity_Bps)[connections.link]
        own = connections.weight * np.maximum(relative, 0.02)[self.owner]
        rate = (
            capacity
            / np.maximum(load[connections.link], own)
            * np.maximum(relative, 0.02)[self.owner]
        )
        n_keys = len(self.keys)
        limits = np.full((len(connections.src), n_keys), np.inf)
        np.minimum.at(limits, (self.owner, self.entry_key), rate)
        cap = np.asarray(connections.max_rate_Bps)
        # The neutral profile's cap is the pair's rate over its channels: a link's, so its key's.
        tightest = np.argmin(limits, axis=1)
        limits[np.arange(len(cap)), tightest] = np.minimum(
            limits[np.arange(len(cap)), tightest], cap
        )
        message = stage.edge_bytes / np.maximum(stage.edge_messages, 1)
        table = np.column_stack(
            [
                np.round(np.log(np.maximum(limits[stage.connection], 1.0)), 6),
                np.round(np.log(np.maximum(message, 1e-9)), 3),
                self.kind[stage.connection],
                np.round(np.asarray(connections.latency_s)[stage.connection] * 1e9),
                np.maximum(connections.src, connections.dst)[stage.connection] >= self.n,
            ]
        )
        _, first, inverse = np.unique(table, axis=0, return_index=True, return_inverse=True)
        edges = []
        protocol, algorithm = self.choice.protocol, self.choice.algorithm
        for index in first.tolist():
            connection = int(stage.connection[index])
            virtual = max(connections.src[connection], connections.dst[connection]) >= self.n
            path = PATH_KINDS[int(self.kind[connection])]
            caps: tuple[str, ...] = ()
            if not virtual and algorithm not in EXCHANGES:
                caps = (f"generations.{self.generation}.channel_GBps.{protocol}",)
                if path == "network":
                    caps += (f"network_channel_GBps.{protocol}",)
            edges.append(
                Edge(
                    base_s=float(connections.latency_s[connection]) if alpha else 0.0,
                    alpha=f"paths.{path}.{protocol}" if alpha else "",
                    message_bytes=float(message[index]),
                    limits=tuple(
                        (key, float(limit))
                        for key, limit in zip(self.keys, limits[connection], strict=True)
                        if np.isfinite(limit)
                    ),
                    caps=caps,
                    copies=self.copies,
                    stored=path == "host" and self._is_stored(connection),
                    share=f"generations.{self.generation}.switch_share" if virtual else "",
                    alpha_share=f"generations.{self.generation}.alpha_share"
                    if alpha and path == "nvlink"
                    else "",
                    network=self._network_of(connection) if alpha else "",
                    cap_share="tree.channel_share"
                    if algorithm == "double_binary_tree" and protocol == "Simple"
                    else "",
                    streamed=alpha and protocol == STREAMED and path != "network",
                )
            )
        return edges, inverse.ravel()

    def _is_stored(self, connection: int) -> bool:
        indptr = self.made.connections.indptr
        places = self.entry_key[indptr[connection] : indptr[connection + 1]]
        return any(self.keys[place] == "links.memory.efficiency" for place in places.tolist())

    def _network_of(self, connection: int) -> str:
        """Return the constant of the kind of network that a connection crosses."""
        indptr = self.made.connections.indptr
        for place in self.entry_key[indptr[connection] : indptr[connection + 1]].tolist():
            kind = self.keys[place].split(".")[1]
            if kind in NETWORK_KINDS:
                return f"networks.{kind}"
        return ""

    def _ring(self, stage: StageTraffic, steps: int) -> RingForm:
        edges, kind = self._edges(stage, alpha=True)
        connections = self.made.connections
        src, dst = connections.src[stage.connection], connections.dst[stage.connection]
        channel = np.asarray(stage.channel)
        seen: dict[bytes, tuple[tuple[Edge, ...], IntArray]] = {}
        for c in np.unique(channel):
            mine = np.flatnonzero(channel == c)
            after = dict(zip(src[mine].tolist(), mine.tolist(), strict=True))
            start = int(src[mine[0]])
            order, here = [], start
            for _ in range(len(mine)):
                edge = after[here]
                order.append(kind[edge])
                here = int(dst[edge])
                if here == start:
                    break
            cycle = np.array(order)
            lowest = int(np.argmin(cycle)) if len(edges) > 1 else 0
            seen[np.roll(cycle, -lowest).tobytes()] = (tuple(edges), cycle)
        return RingForm(
            cycles=tuple(seen.values()), n_steps=steps, waits=self.choice.protocol in WAITING
        )

    def _chain(self, stage: StageTraffic) -> Pipeline:
        edges, kind = self._edges(stage, alpha=True)
        hops = np.bincount(kind[stage.channel == stage.channel[0]], minlength=len(edges))
        most = int(stage.edge_messages.max())
        return Pipeline(
            edges=tuple(edges),
            messages=(most,) * len(edges),
            fill=tuple(float(h) for h in hops),
            waits=self.choice.protocol in WAITING,
            chain=True,
        )

    def _pipeline(self, stage: StageTraffic) -> Pipeline:
        edges, kind = self._edges(stage, alpha=False)
        most = int(stage.edge_messages.max())
        messages = [int(stage.edge_messages[kind == i].max()) for i in range(len(edges))]
        total = stage.n_steps - most
        connections = self.made.connections
        src, dst = connections.src[stage.connection], connections.dst[stage.connection]
        real = (src < self.n) & (dst < self.n)
        outside = np.zeros(len(src), dtype=bool)
        outside[real] = self.units[src[real]] != self.units[dst[real]]
        levels = 2 * (len(np.unique(self.units)).bit_length() - 1)
        is_out = np.array([bool(outside[kind == i].any()) for i in range(len(edges))])
        fill = np.zeros(len(edges))
        out = [i for i in range(len(edges)) if is_out[i]]
        inner = [i for i in range(len(edges)) if not is_out[i]]
        heavy = [edge.message_bytes for edge in edges]
        if out:
            first = max(out, key=lambda i: heavy[i])
            fill[first] = min(total, levels)
            if self.choice.protocol == STREAMED:
                # Between nodes a whole slot is stored.
                fill[first] *= min(messages[first], STREAMED_PIECES)
        if inner:
            fill[max(inner, key=lambda i: heavy[i])] = max(0, total - (levels if out else 0))
        return Pipeline(
            edges=tuple(edges),
            messages=tuple(messages),
            fill=tuple(fill.tolist()),
            waits=False,
            chain=False,
        )

    def _single(self, stage: StageTraffic) -> Single:
        connections = self.made.connections
        fabric = self.cluster.fabric
        payload = np.bincount(stage.connection, stage.edge_bytes, len(connections.src))
        wire = np.bincount(
            connections.link, connections.weight * payload[self.owner], fabric.n_links
        )
        seconds = wire / np.asarray(fabric.capacity_Bps)
        pair = (connections.src * len(connections.src) + connections.dst)[self.owner]
        once = np.unique(pair * fabric.n_links + connections.link) % fabric.n_links
        flows = np.bincount(once, minlength=fabric.n_links)
        loads = []
        for index, key in enumerate(self.keys):
            links = np.unique(connections.link[self.entry_key == index])
            for crowd, among in (("", flows <= SINGLE), (_CROWD, flows > SINGLE)):
                chosen = links[among[links]]
                if len(chosen):
                    network = key.split(".")[1] in NETWORK_KINDS
                    loads.append((key, crowd if network else "", float(seconds[chosen].max())))
        paths = []
        protocol = self.choice.protocol
        lone = payload / np.asarray(connections.max_rate_Bps)
        for index in np.unique(self.kind[stage.connection]):
            among = self.kind == index
            caps: tuple[str, ...] = ()
            if protocol == "Simple":
                caps = (f"generations.{self.generation}.channel_GBps.{protocol}",)
                if PATH_KINDS[int(index)] == "network":
                    caps += (f"network_channel_GBps.{protocol}",)
            paths.append(
                Path(
                    alpha=f"paths.{PATH_KINDS[int(index)]}.{protocol}",
                    network=self._network_of(int(np.flatnonzero(among)[0])),
                    base_s=float(np.asarray(connections.latency_s)[among].max()),
                    lone_s=float(lone[among].max()),
                    channel_bytes=float(payload[among].max()) / self.choice.n_channels,
                    caps=caps,
                )
            )
        return Single(
            waits=protocol in WAITING,
            stored=any(self._is_stored(i) for i in np.flatnonzero(self.kind == 3)[:1].tolist()),
            loads=tuple(loads),
            paths=tuple(paths),
        )


_CROWD = "exchange.network_share"
_NVLINK = ("volta", "ampere", "hopper", "blackwell")
_LIKE = {
    "kepler": "volta",
    "pascal": "volta",
    "turing": "volta",
    "ada": "ampere",
    "cdna1": "cdna3",
    "cdna2": "cdna3",
    "cdna4": "cdna3",
}


def _like(generation: str) -> str:
    return _LIKE.get(generation, generation)


def _summed(terms: list[tuple[str, float]]) -> tuple[tuple[str, float], ...]:
    total: dict[str, float] = {}
    for key, times in terms:
        total[key] = total.get(key, 0.0) + times
    return tuple(total.items())
