"""NCCL's tuning model: latency and bandwidth it expects of an algorithm and protocol.

This is what NCCL *believes* before it runs, and only good for its choice: measured times differ
from it by tens of percent, see the module ``tuning``.

References
----------
NCCL src/graph/tuning.cc, ncclTopoTuneModel, 2.12 … 2.30.
"""

from __future__ import annotations

import math

from simulator.costs.nccl.communicator import TuningInput
from simulator.costs.nccl.graph import PROTOCOLS, ChannelGraph, PathType, Pattern
from simulator.costs.nccl.tables import read_table, since

__all__ = ["bandwidth_GBps", "floor_log2", "latency_us"]


def floor_log2(value: int) -> int:
    """Return the whole part of log2 of a positive integer, and 0 for 0."""
    return max(value, 1).bit_length() - 1


def _scale(inp: TuningInput) -> int:
    """Return the column of the bandwidth tables: one node, two, more."""
    return min(inp.n_nodes, 3) - 1


def _n_steps(inp: TuningInput, collective: str) -> int:
    n = inp.n_ranks
    return {"all_reduce": 2 * (n - 1), "all_gather": n - 1, "reduce_scatter": n - 1}.get(
        collective, n
    )


def _n_inter_steps(inp: TuningInput, collective: str) -> int:
    nodes = inp.n_nodes
    if inp.version.since(2, 23):
        return 0 if nodes == 1 else (2 if collective == "all_reduce" else 1) * (nodes - 1)
    if collective == "all_reduce":
        return 2 * nodes if nodes > 1 else 0
    return nodes - 1


def _ll_max_GBps(inp: TuningInput) -> float:
    """On one node by GPU, over nodes by CPU."""
    row = since("tuning", "ll_max_GBps", inp.version)
    name = inp.generation
    if inp.n_nodes > 1:
        name = "ampere" if inp.cpu == "x86_amd" else "volta"
    return float(row[name][_scale(inp)])


def _per_channel(inp: TuningInput, key: str) -> float:
    return float(since("tuning", key, inp.version)[inp.generation][_scale(inp)])


def _graph_bus_GBps(
    inp: TuningInput, collective: str, algorithm: str, graph: ChannelGraph
) -> float:
    """Return channels × bandwidth of a channel, before the corrections."""
    intra, inter = graph.bw_intra_GBps, graph.bw_inter_GBps
    few = inp.n_nodes <= 2
    per_node = inp.ranks_per_node
    bw = intra if few or algorithm.startswith("collnet") else inter
    if algorithm in ("nvls", "nvls_tree"):
        if inp.version.since(2, 28):
            efficiency = read_table("tuning")["nvls_efficiency"][inp.generation]
            inside = intra * efficiency * (graph.n_channels - 1) / graph.n_channels
            # All-reduce runs a reduce-scatter and an all-gather at the same time.
            inside *= 2 if collective == "all_reduce" else (per_node - 1) / per_node
            outside = inter * (2 if few and algorithm == "nvls_tree" else 1)
            bw = min(inside, outside)
            if algorithm == "nvls_tree":
                bw = min(bw, _per_channel(inp, "nvls_tree_channel_GBps"))
        elif inp.version.since(2, 19):
            if algorithm == "nvls_tree":
                inter = inter if few else inter / 2
            elif collective != "all_reduce" and inp.version.since(2, 27):
                intra, inter = intra * (per_node - 1) / per_node, 0.9 * inter
            bw = min(intra, inter)
    return graph.n_channels * bw


def _ring_GBps(
    inp: TuningInput, collective: str, protocol: str, bus: float, n_channels: int
) -> float:
    if protocol == "LL":
        if inp.version.since(2, 21):
            factor = 0.5
        else:
            shared = inp.n_nodes > 1 or collective in ("all_reduce", "reduce")
            factor = 1 / 4 if shared else 1 / 3
        return min(_ll_max_GBps(inp), bus * factor)
    if protocol == "LL128":
        alone = inp.ranks_per_node < 2 and not inp.version.since(2, 23)
        most = n_channels * _per_channel(inp, "ring_ll128_channel_GBps")
        return min(bus * (0.7 if alone else 0.92), most)
    return bus


def _tree_GBps(inp: TuningInput, protocol: str, bus: float, graph: ChannelGraph) -> float:
    bus = min(bus * 0.92, graph.n_channels * _per_channel(inp, "tree_channel_GBps"))
    if protocol == "LL":
        bus = min(bus / 3.8, _ll_max_GBps(inp))
    elif protocol == "LL128":
        share = 7 / 9 if inp.n_nodes == 1 else 120 / 128
        most = graph.n_channels * _per_channel(inp, "tree_ll128_channel_GBps")
        bus = min(bus * share, most)
    # All network traffic of the node goes through one GPU.
    return bus * 0.85 if graph.pattern is Pattern.TREE else bus


def _collnet_GBps(
    inp: TuningInput, collective: str, algorithm: str, bus: float, graph: ChannelGraph
) -> float:
    per_node = inp.ranks_per_node
    if algorithm == "collnet_chain":
        return bus * (0.75 if inp.version.since(2, 14) and not inp.version.since(2, 18) else 1.0)
    if collective == "all_reduce":
        ratio = per_node / graph.n_channels  # GPUs per NIC
        ratio -= (ratio - 1) / 2
        return bus / ratio * (0.85 if inp.min_sm >= 90 else 1.0)
    if inp.version.since(2, 27):
        return per_node * min(graph.bw_intra_GBps, 0.9 * graph.bw_inter_GBps)
    weight = (per_node - 1) / 7
    return per_node * graph.bw_intra_GBps * (weight * 0.85 + (1 - weight) * 0.95)


def _algorithm_share(inp: TuningInput, collective: str, algorithm: str) -> float:
    """Return algorithm bandwidth over bus bandwidth."""
    by_steps = inp.n_ranks / _n_steps(inp, collective)
    if algorithm == "ring":
        return by_steps
    if collective != "all_reduce" and (inp.version.since(2, 23) or algorithm == "collnet_direct"):
        return 1.0
    if algorithm in ("nvls", "nvls_tree"):
        if inp.version.since(2, 28):
            return by_steps
        if algorithm == "nvls_tree" and not inp.version.since(2, 19):
            return 0.70 * inp.n_nodes / (2 * (inp.n_nodes - 1))
        return 5 / 6
    return 0.5


def bandwidth_GBps(inp: TuningInput, collective: str, algorithm: str, protocol: str) -> float:
    """Return the algorithm bandwidth NCCL expects, GB/s; 0 when there is none."""
    graph = inp.graph(algorithm)
    if graph is None or graph.n_channels == 0:
        return 0.0
    bus = _graph_bus_GBps(inp, collective, algorithm, graph)
    bus = min(bus, since("tuning", "bus_cap_GBps", inp.version).get(inp.generation, bus))
    if algorithm == "ring":
        bus = _ring_GBps(inp, collective, protocol, bus, graph.n_channels)
    elif algorithm == "tree":
        bus = _tree_GBps(inp, protocol, bus, graph)
    elif algorithm.startswith("collnet"):
        bus = _collnet_GBps(inp, collective, algorithm, bus, graph)
    elif algorithm == "pat":
        bus *= since("tuning", "pat", inp.version)["factor"]
    return float(bus * _algorithm_share(inp, collective, algorithm))


def _hop_us(inp: TuningInput, where: str, algorithm: str, protocol: str) -> float:
    name = "tree" if algorithm == "pat" else algorithm
    value = since("tuning", f"hop_latency_us.{where}", inp.version)[name]
    if where == "pcie" and algorithm == "tree" and protocol == "Simple" and inp.cpu == "power":
        value = since("tuning", "hop_latency_us.pcie", inp.version)["ring"]
    if isinstance(value, list):
        return float(value[PROTOCOLS.index(protocol)])
    return float(value)


def _net_overhead_us(inp: TuningInput, protocol: str) -> float:
    """CPU time to post a network step, which a step inside the node cannot undercut."""
    if inp.n_nodes == 1 or not inp.version.since(2, 18):
        return 0.0
    row = since("tuning", "net_overhead_us", inp.version)
    overhead = float(row.get(inp.cpu, row["other"]))
    given = inp.environment.integer("NCCL_NET_OVERHEAD", -1)
    if given >= 0:
        overhead = given * 1e-3
    return 3 * overhead if protocol == "Simple" else overhead


def _base_us(inp: TuningInput, algorithm: str, protocol: str) -> float:
    if algorithm == "pat":
        return float(since("tuning", "pat", inp.version)["base_us"])
    name = "collnet" if algorithm.startswith("collnet") else algorithm
    row = since("tuning", "base_latency_us", inp.version)
    return float(row[name][PROTOCOLS.index(protocol)])


def latency_us(inp: TuningInput, collective: str, algorithm: str, protocol: str) -> float:
    """Return the latency NCCL expects, microseconds."""
    graph = inp.graph(algorithm)
    if graph is None:
        return math.inf
    near = "nvlink" if graph.type_intra <= PathType.NVL else "pcie"
    if graph.type_intra is PathType.LOC:
        near = "pcie"  # one GPU per node: NCCL compares with NVL only
    intra = _hop_us(inp, near, algorithm, protocol)
    exposed = inp.ranks_per_node == 1 and inp.version.since(2, 23)
    inter = _hop_us(inp, "network", "tree" if exposed else algorithm, protocol)
    # Simple also pays the flush after a receive.
    inter += graph.latency_inter_us * (2 if protocol == "Simple" else 1)
    base = _base_us(inp, algorithm, protocol)
    inside = inp.n_ranks // inp.n_nodes - 1
    levels = floor_log2(inp.n_nodes)
    if algorithm == "ring":
        return base + _ring_us(inp, collective, protocol, graph, near, intra, inter)
    if algorithm == "tree":
        return base + 2 * (inside * intra + levels * inter)
    if algorithm == "collnet_direct":
        arity = 0.4 if inp.version.since(2, 19) else 0.5
        return base + 2 * (min(1, inside) * intra + inside * arity) + inter
    if algorithm == "collnet_chain":
        return base + 2 * inside * intra + inter
    if algorithm == "pat":
        row = since("tuning", "pat", inp.version)
        divisor, per_rank = float(row["level_divisor"]), float(row["rank_us"])
        return base + levels * inter / divisor + inp.n_ranks * per_rank
    if not inp.version.since(2, 19):
        # The first versions put the whole of NVLS into the base.
        if algorithm == "nvls":
            return base + (inter if inp.n_nodes > 1 else 0.0)
        return base + 2 * (inp.n_nodes - 1) * inter
    if algorithm == "nvls":
        return intra + (inter if inp.n_nodes > 1 else 0.0)
    return base + intra + 2 * levels * inter


def _ring_us(
    inp: TuningInput,
    collective: str,
    protocol: str,
    graph: ChannelGraph,
    near: str,
    intra: float,
    inter: float,
) -> float:
    steps = _n_steps(inp, collective)
    if collective in ("broadcast", "reduce"):
        where = near if inp.n_nodes == 1 else "network"
        if graph.same_channels:
            return _hop_us(inp, where, "ring", protocol)
        # Channels of different order: a chunk waits in each of them.
        name = "tree" if protocol == "Simple" else "ring"
        return steps * _hop_us(inp, where, name, protocol)
    if protocol == "LL" and inp.n_nodes > 1 and not inp.version.since(2, 18):
        intra *= 1.8
    outside = _n_inter_steps(inp, collective)
    return (steps - outside) * max(intra, _net_overhead_us(inp, protocol)) + outside * inter
