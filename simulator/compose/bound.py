"""The bandwidth lower bound of a call on a cluster: no schedule can be faster.

Two cuts are looked at: around each GPU and around each node (or NVLink domain).  What must cross
the cut divided by the physical rate of all links that cross it is a bound; the largest counts.
Cuts inside the network (a leaf, a pod) are not looked at, so the bound is not tight on an
oversubscribed fabric.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from simulator.collectives.call import Call
from simulator.compose.cluster import Cluster

__all__ = ["NETWORK_SWITCH_ALGORITHMS", "NODE_SWITCH_ALGORITHMS", "bound_s", "bytes_across"]

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]

NODE_SWITCH_ALGORITHMS = ("nvls", "nvls_tree")
"""Reduce in NVSwitches: the exchange bound between GPUs does not hold, that between nodes does."""
NETWORK_SWITCH_ALGORITHMS = ("collnet_chain", "collnet_direct", "sharp")
"""Reduce in network switches: the exchange bound between nodes does not hold."""


def bytes_across(call: Call, inside: IntArray) -> tuple[float, float]:
    """Return the bytes that must leave and enter a set of ranks.

    Parameters
    ----------
    call
        The collective; n ranks, S bytes.
    inside
        Ranks (0 … n−1) of the set; neither empty nor all.

    Returns
    -------
    tuple of float
        (out, in), bytes.

    Notes
    -----
    Sums over the set may be formed inside it, so that a reduction sends one partial result: an
    all_reduce moves at least S out of every set and into it.
    """
    n, size = call.world_size, float(call.size_bytes)
    g = len(inside)
    outside = n - g
    name = call.collective
    root_inside = call.root in set(inside.tolist())
    if call.counts_bytes is not None and name == "all_to_allv":
        counts = call.counts_bytes
        mask = np.zeros(n, dtype=bool)
        mask[inside] = True
        return float(counts[mask][:, ~mask].sum()), float(counts[~mask][:, mask].sum())
    if call.counts_bytes is not None:
        own = float(call.counts_bytes[inside].sum())
        rest = float(call.counts_bytes.sum()) - own
    else:
        own, rest = size * g / n, size * outside / n
    match name:
        case "all_reduce":
            return size, size
        case "all_gather":
            return own, rest
        case "reduce_scatter":
            return rest, own
        case "all_to_all":
            each = size / n * g * outside
            return each, each
        case "broadcast":
            return (size, 0.0) if root_inside else (0.0, size)
        case "reduce":
            return (0.0, size) if root_inside else (size, 0.0)
        case "gather":
            return (0.0, rest) if root_inside else (own, 0.0)
        case "scatter":
            return (rest, 0.0) if root_inside else (0.0, own)
        case "send_recv":
            leaving = np.setdiff1d((inside + 1) % n, inside)
            entering = np.setdiff1d((inside - 1) % n, inside)
            return size * len(leaving), size * len(entering)
        case _:
            return 0.0, 0.0


def bound_s(cluster: Cluster, call: Call, group: IntArray, *, algorithm: str) -> float:
    """Return the bandwidth lower bound of a call on a group of global ranks, seconds.

    Parameters
    ----------
    cluster
        Where.
    call
        What.
    group
        Global ranks in group order, shape (n,).
    algorithm
        Those that reduce in switches have a bound of their own.
    """
    if call.world_size == 1 or call.size_bytes == 0:
        return 0.0
    fabric = cluster.fabric
    in_network = algorithm in NETWORK_SWITCH_ALGORITHMS
    in_node = algorithm in NODE_SWITCH_ALGORITHMS
    egress = np.bincount(fabric.link_src, weights=fabric.capacity_Bps, minlength=fabric.n_vertices)
    ingress = np.bincount(fabric.link_dst, weights=fabric.capacity_Bps, minlength=fabric.n_vertices)
    best = 0.0
    special = {call.root, 0, call.world_size - 1}
    ranks = special if call.counts_bytes is None else set(range(call.world_size))
    rate = np.minimum(egress, ingress)[fabric.gpu_vertex[group]]
    slowest = set(np.argsort(rate, kind="stable")[:2].tolist())
    for rank in ranks | slowest:
        out, into = bytes_across(call, np.array([rank]))
        vertex = int(fabric.gpu_vertex[group[rank]])
        best = max(best, out / egress[vertex], into / ingress[vertex])
    if call.collective == "all_reduce" and not (in_network or in_node):
        best = max(best, _exchange_bound_s(call, rate))
    return max(best, _node_bound_s(cluster, call, group, in_network))


def _exchange_bound_s(call: Call, rate_Bps: FloatArray) -> float:
    """Return the bound of an all_reduce among k parties without help from switches.

    Together they send at least 2(k−1)·S (Patarasuk and Yuan 2009, theorem 1), over the sum of
    their rates.
    """
    total = float(np.sum(rate_Bps))
    return 2.0 * (len(rate_Bps) - 1) * call.size_bytes / total if total > 0 else 0.0


def _node_bound_s(cluster: Cluster, call: Call, group: IntArray, in_network: bool) -> float:
    """Return the bound of the cuts around nodes, or NVLink domains of several nodes."""
    fabric = cluster.fabric
    node = fabric.node_of_gpu[group]
    domain = fabric.domain_of_node[node]
    unit = np.where(domain >= 0, fabric.n_nodes + domain, node)
    found, position, size = np.unique(unit, return_index=True, return_counts=True)
    if len(found) == 1:
        return 0.0
    owner = np.where(
        fabric.domain_of_node >= 0,
        fabric.n_nodes + fabric.domain_of_node,
        np.arange(fabric.n_nodes),
    )
    nic = np.zeros(fabric.n_vertices, dtype=bool)
    nic[fabric.nic_vertex] = True
    cable = np.arange(len(fabric.link_src)) >= fabric.first_cable
    rate = np.zeros(2 * fabric.n_nodes + 1)  # by owner
    leaving = np.flatnonzero(cable & nic[fabric.link_src])
    np.add.at(
        rate, owner[fabric.vertex_node[fabric.link_src[leaving]]], fabric.capacity_Bps[leaving]
    )
    best = 0.0
    if call.collective == "all_reduce" and not in_network:
        best = _exchange_bound_s(call, rate[found])
    done: set[tuple[int, float, bool]] = set()
    for index in range(len(found)):
        key = (int(size[index]), float(rate[found[index]]), index in (0, len(found) - 1))
        members = np.flatnonzero(unit == found[index]) if call.counts_bytes is not None else None
        has_root = call.root >= int(position[index]) and call.root < int(position[index]) + key[0]
        if members is None:
            if (*key[:2], has_root or key[2]) in done:
                continue
            done.add((*key[:2], has_root or key[2]))
            members = np.flatnonzero(unit == found[index])
        out, into = bytes_across(call, members)
        if rate[found[index]] > 0:
            best = max(best, out / rate[found[index]], into / rate[found[index]])
    return best
