"""What NCCL believes of a group of ranks: its graphs, its tuning model, its choice for a call.

The belief decides algorithm, protocol, channels and chunks; how long the call then takes is the
engine's answer with the profile's constants, and usually another number.

Nodes of several kinds get what all of them can do; nodes of one kind with different numbers of
ranks are not told apart (the first stands for all).  Not modelled: NCCL's search over a multi-node
NVLink domain (the graphs of one of its nodes stand for it).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from simulator.base.errors import CollsimError
from simulator.collectives.call import Call
from simulator.collectives.names import NCCL_ALGORITHMS
from simulator.costs.nccl import (
    ChannelGraph,
    ChunkPlan,
    NcclEnvironment,
    NcclVersion,
    SearchLink,
    SearchOptions,
    SearchSystem,
    SearchVertex,
    TuningInput,
    choose,
    nccl_link_GBps,
    nearest_supported,
    parse_environment,
    plan_call,
    predict_table,
    search_graphs,
    socket_GBps,
)
from simulator.costs.nccl.links import SM_BY_GENERATION
from simulator.costs.nccl.nics import chosen_nics
from simulator.fabric.fabric import Fabric
from simulator.fabric.model import NodeTemplate

__all__ = [
    "Belief",
    "believe",
    "environment_of",
    "library_name",
    "own_name",
    "sm_of",
    "tuning_input",
]

IntArray = NDArray[np.int64]

NVLS_OVER_NODES = "nvls_sharp"
"""Name in the registry of what NCCL calls NVLS on several nodes."""

_SM = {"gb300": 103, "b300-sxm": 103, "b300": 103, "k80": 37, "gtx1080": 61}
_GA102 = ("rtx3090", "a10", "a10g", "a40", "a6000")
_CONSUMER_BLACKWELL = ("rtx5090", "rtxpro6000", "rtxpro5000", "rtx6000d")


@dataclass(frozen=True, slots=True, kw_only=True)
class Belief:
    """NCCL's choice for a call and how it cuts the data."""

    algorithm: str
    """Name in the registry of algorithms."""
    protocol: str
    expected_s: float
    """What the tuning model expects; not the simulated time.  Infinite where it has no formula."""
    plan: ChunkPlan


def own_name(algorithm: str, n_nodes: int) -> str:
    """Return the name in the registry of one of NCCL's algorithms.

    Examples
    --------
    >>> own_name("tree", 1), own_name("nvls", 1), own_name("nvls", 2)
    ('double_binary_tree', 'nvls', 'nvls_sharp')
    """
    return NVLS_OVER_NODES if algorithm == "nvls" and n_nodes > 1 else NCCL_ALGORITHMS[algorithm]


def library_name(algorithm: str) -> str | None:
    """Return NCCL's name of an algorithm of the registry; None where it has none."""
    names = {ours: theirs for theirs, ours in NCCL_ALGORITHMS.items()}
    return {**names, NVLS_OVER_NODES: "nvls"}.get(algorithm)


def sm_of(template: NodeTemplate) -> int | None:
    """Return the compute capability × 10 of a node's GPUs, None for other vendors."""
    name = template.gpu.name.lower()
    if name in _SM:
        return _SM[name]
    if name in _GA102:
        return 86
    if name in _CONSUMER_BLACKWELL:
        return 120
    return SM_BY_GENERATION.get(template.gpu.generation)


def environment_of(
    variables: Mapping[str, object], version: str
) -> tuple[NcclVersion, NcclEnvironment]:
    """Return the version whose rules hold, and the environment in it."""
    release, _ = nearest_supported(NcclVersion.parse(version))
    return release, parse_environment(variables, release)


def tuning_input(
    fabric: Fabric,
    group: IntArray,
    version: NcclVersion,
    environment: NcclEnvironment | None = None,
) -> TuningInput | None:
    """Return the communicator as NCCL's tuning model sees it.

    Returns
    -------
    TuningInput or None
        None for GPUs without NCCL (other vendors), and where the search finds no graph.
    """
    node = np.asarray(fabric.node_of_gpu)[group]
    n_nodes = len(np.unique(fabric.unit_of_node[node]))
    spread = max(1, len(np.unique(node)) // n_nodes)
    env = environment or NcclEnvironment()
    _, firsts = np.unique(np.asarray(fabric.template_of_node)[node], return_index=True)
    found: list[TuningInput] = []
    for first in np.sort(firsts):
        template = fabric.node_template(int(node[first]))
        sm = sm_of(template)
        if sm is None:
            return None
        local = np.asarray(fabric.local_of_gpu)[group[node == node[first]]]
        gpus = tuple(int(i) for i in local)
        inp = _tuning_input(_Key(template, gpus, n_nodes, len(group), sm, version, env, spread))
        if inp is None:
            return None
        found.append(inp)
    return found[0] if len(found) == 1 else _common(found)


def _common(found: list[TuningInput]) -> TuningInput:
    """Return the communicator of nodes of several kinds.

    All ranks tell each other their graphs and take the fewest channels, the lowest bandwidths and
    the farthest paths; an algorithm that one of them has no graph for is off (NCCL 2.21
    src/init.cc, initTransportsRank).
    """
    shared = set.intersection(*(set(inp.graphs) for inp in found))
    return replace(
        found[0],
        min_sm=min(inp.min_sm for inp in found),
        max_sm=max(inp.max_sm for inp in found),
        graphs={
            name: _weakest([inp.graphs[name] for inp in found])
            for name in found[0].graphs
            if name in shared
        },
        nvswitch=all(inp.nvswitch for inp in found),
        collnet=all(inp.collnet for inp in found),
    )


def _weakest(graphs: list[ChannelGraph]) -> ChannelGraph:
    count = min(graph.n_channels for graph in graphs)
    return replace(
        graphs[0],
        n_channels=count,
        bw_intra_GBps=min(graph.bw_intra_GBps for graph in graphs),
        bw_inter_GBps=min(graph.bw_inter_GBps for graph in graphs),
        type_intra=max(graph.type_intra for graph in graphs),
        type_inter=max(graph.type_inter for graph in graphs),
        latency_inter_us=max(graph.latency_inter_us for graph in graphs),
        same_channels=all(graph.same_channels for graph in graphs),
        cross_nic=max(graph.cross_nic for graph in graphs),
        channels=graphs[0].channels[:count],
    )


SEARCHED = (
    "NCCL_P2P_DISABLE",
    "NCCL_P2P_LEVEL",
    "NCCL_SHM_DISABLE",
    "NCCL_NVB_DISABLE",
    "NCCL_PXN_DISABLE",
    "NCCL_NET_GDR_LEVEL",
    "NCCL_CROSS_NIC",
    "NCCL_NVLS_ENABLE",
    "NCCL_COLLNET_ENABLE",
    "NCCL_IB_HCA",
)
"""Variables that the graph search reads; the others leave its graphs as they are."""


class _Key:
    """Arguments of the search, compared by what it depends on."""

    def __init__(
        self,
        template: NodeTemplate,
        gpus: tuple[int, ...],
        n_nodes: int,
        n_ranks: int,
        sm: int,
        version: NcclVersion,
        environment: NcclEnvironment,
        spread: int = 1,
    ) -> None:
        self.spread = spread
        self.template, self.gpus, self.n_nodes = template, gpus, n_nodes
        self.n_ranks, self.sm, self.version = n_ranks, sm, version
        self.environment = environment
        values = tuple(
            sorted((name, str(v)) for name, v in environment.values.items() if name in SEARCHED)
        )
        self.node = (
            template.vertices,
            template.links,
            template.p2p,
            template.gpudirect,
            gpus,
            min(n_nodes, 2),
            sm,
            version,
            values,
            template.nic_rate_Bps,
        )
        chosen = tuple(sorted((name, str(v)) for name, v in environment.values.items()))
        self.all = (self.node, chosen, n_nodes, n_ranks, spread)

    def __hash__(self) -> int:
        return hash(self.all)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Key) and self.all == other.all


class _NodeKey(_Key):
    """As `_Key`, without the size of the communicator."""

    def __hash__(self) -> int:
        return hash(self.node)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Key) and self.node == other.node


@lru_cache(maxsize=512)
def _tuning_input(key: _Key) -> TuningInput | None:
    node = _NodeKey(
        key.template, key.gpus, key.n_nodes, key.n_ranks, key.sm, key.version, key.environment
    )
    graphs = _graphs(node)
    if graphs is None or "ring" not in graphs or "tree" not in graphs:
        return None
    template = key.template
    if key.spread > 1 and "nvls" in graphs:
        graphs = {**graphs, "nvls": _domain_switch_graph(graphs["nvls"], node, key)}
    return TuningInput(
        version=key.version,
        n_ranks=key.n_ranks,
        n_nodes=key.n_nodes,
        min_sm=key.sm,
        max_sm=key.sm,
        cpu=template.cpu_arch,
        graphs=graphs,
        nvswitch=any(vertex.kind == "nvswitch" for vertex in template.vertices),
        collnet=key.n_nodes > 1
        and template.nic_kind == "infiniband"
        and key.environment.integer("NCCL_COLLNET_ENABLE", 0) == 1,
        environment=key.environment,
    )


def _domain_switch_graph(graph: ChannelGraph, node: _NodeKey, key: _Key) -> ChannelGraph:
    """Return the NVLS graph of a domain of several nodes.

    A node of a few GPUs has as many heads; the domain has enough to fill a GPU's NVLinks.
    """
    alone = _graphs(_NodeKey(key.template, key.gpus, 1, 0, key.sm, key.version, key.environment))
    if alone is None or "ring" not in alone:
        return graph
    heads = min(MOST_HEADS, len(key.gpus) * key.spread)
    inside = alone["ring"].bandwidth_GBps / heads
    if key.n_nodes == 1:
        return replace(
            graph, n_channels=heads, bw_intra_GBps=inside, bw_inter_GBps=inside, channels=()
        )
    return replace(graph, n_channels=heads, bw_intra_GBps=inside, channels=())


MOST_HEADS = 16


@lru_cache(maxsize=256)
def _graphs(key: _NodeKey) -> dict[str, ChannelGraph] | None:
    system = _system(key)
    try:
        return search_graphs(system, network=key.n_nodes > 1).graphs
    except CollsimError:
        return None


def _system(key: _Key) -> SearchSystem:
    """Return the part of a node that NCCL's search sees, in NCCL's constants."""
    template, sm, version = key.template, key.sm, key.version
    own = [vertex.name for vertex in template.vertices if vertex.kind == "gpu"]
    kept = {own[i] for i in key.gpus}
    card = _cards(template)
    ports = Counter(card.values())
    unused = _unused(template, key.environment)
    name_of: dict[str, str] = {}
    vertices: list[SearchVertex] = []
    for vertex in template.vertices:
        if vertex.kind == "gpu" and vertex.name not in kept:
            continue
        if vertex.kind == "nic" and (key.n_nodes == 1 or vertex.name in unused):
            continue
        name = "nvs" if vertex.kind == "nvswitch" else card.get(vertex.name, vertex.name)
        if name in name_of.values():
            name_of[vertex.name] = name
            continue
        name_of[vertex.name] = name
        vertices.append(
            SearchVertex(
                name=name,
                kind=vertex.kind,
                sm=sm if vertex.kind == "gpu" else 0,
                net_GBps=template.nic_rate_Bps * ports.get(name, 1) / 1e9
                if vertex.kind == "nic"
                else 0.0,
                gpudirect=template.gpudirect,
                collnet=vertex.kind == "nic" and template.nic_kind == "infiniband",
            )
        )
    merged: dict[tuple[str, str, str], float] = {}
    kinds = {"nvlink": "nvlink", "pcie": "pcie", "nvlink_c2c": "c2c"}
    for link in template.links:
        if link.kind not in kinds or link.a not in name_of or link.b not in name_of:
            continue
        ends = sorted((name_of[link.a], name_of[link.b]))
        if ends[0] == ends[1]:
            continue
        where = (ends[0], ends[1], link.kind)
        merged[where] = merged.get(where, 0.0) + link.bandwidth_Bps
    links = tuple(
        SearchLink(
            a=a,
            b=b,
            kind=kinds[kind],
            bandwidth_GBps=nccl_link_GBps(kind, rate, sm=sm, version=version),
        )
        for (a, b, kind), rate in merged.items()
    )
    return SearchSystem(
        version=version,
        vertices=tuple(vertices),
        links=links,
        cpu=template.cpu_arch,
        socket_GBps=socket_GBps(template.cpu_arch, template.cpu_model, version),
        gpu_p2p=template.p2p,
        options=SearchOptions.from_environment(key.environment),
    )


def _unused(template: NodeTemplate, environment: NcclEnvironment) -> set[str]:
    """Return the NICs that NCCL_IB_HCA leaves out."""
    nics = [vertex.name for vertex in template.vertices if vertex.kind == "nic"]
    text = environment.values.get("NCCL_IB_HCA")
    if not text or template.nic_kind not in ("infiniband", "roce"):
        return set()
    kept, _ = chosen_nics(str(text), len(nics))
    return {name for index, name in enumerate(nics) if index not in kept} if kept else set()


def _cards(template: NodeTemplate) -> dict[str, str]:
    """Return the NIC that stands for each where several ports serve one GPU.

    NCCL joins the ports of a card (NCCL_IB_MERGE_NICS), the plugin for EFA all that hang on one
    PCIe switch; both only matter where there are more ports than GPUs.
    """
    nics = [vertex.name for vertex in template.vertices if vertex.kind == "nic"]
    gpus = sum(vertex.kind == "gpu" for vertex in template.vertices)
    if len(nics) <= gpus:
        return {}
    ends = [(link.a, link.b) for link in template.links]
    parent = {nic: other for a, b in ends for nic, other in ((a, b), (b, a)) if nic in nics}
    per_gpu = len(nics) // max(gpus, 1)
    cards: dict[str, str] = {}
    filled: dict[str, list[str]] = {}
    for nic in nics:
        group = filled.setdefault(parent.get(nic, nic), [])
        group.append(nic)
        cards[nic] = group[(len(group) - 1) // per_gpu * per_gpu]
    return cards


def believe(
    inp: TuningInput,
    call: Call,
    *,
    algorithm: str | None = None,
    protocol: str | None = None,
    datatype: str = "float32",
    without: Collection[str] = (),
) -> Belief:
    """Return NCCL's choice for a call, or its plan for a given algorithm and protocol.

    Parameters
    ----------
    inp
        The communicator.
    call
        One of the five collectives with a tuning model.
    algorithm, protocol
        NCCL's names; None: NCCL chooses, among those that are left.
    datatype
        Decides about NVLS.
    without
        NCCL's names of algorithms that it may not choose.

    Raises
    ------
    ScenarioError
        Nothing is left to choose from.
    """
    if algorithm is not None and protocol is not None:
        plan = plan_call(inp, call.collective, algorithm, protocol, call.size_bytes)
        table = predict_table(inp, call.collective, call.size_bytes, datatype=datatype)
        return Belief(
            algorithm=own_name(algorithm, inp.n_nodes),
            protocol=protocol,
            expected_s=table[algorithm, protocol].time_s,
            plan=plan,
        )
    values = dict(inp.environment.values)
    restricted = inp
    if algorithm is not None or protocol is not None:
        extra: dict[str, object] = {}
        if algorithm is not None:
            extra["NCCL_ALGO"] = {"nvls_tree": "NVLSTree"}.get(algorithm, algorithm)
        if protocol is not None:
            extra["NCCL_PROTO"] = protocol
        asked = parse_environment(extra, inp.version)
        values |= dict(asked.values)
        restricted = replace(inp, environment=NcclEnvironment(values=values))
    chosen = choose(
        restricted, call.collective, call.size_bytes, datatype=datatype, without=without
    )
    plan = plan_call(inp, call.collective, chosen.algorithm, chosen.protocol, call.size_bytes)
    return Belief(
        algorithm=own_name(chosen.algorithm, inp.n_nodes),
        protocol=chosen.protocol,
        expected_s=chosen.entry.time_s,
        plan=plan,
    )
