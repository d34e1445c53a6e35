"""The latency lower bound of a call on a cluster: no schedule is faster than its data travel.

Whoever needs data of another rank has them no sooner than a first byte has come by the shortest
way through all links, whichever the routes take.  The bound belongs to (collective, root, group,
fabric) and to no algorithm: the longest such way among pairs of which one needs the other.
"""

from __future__ import annotations

from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from simulator.collectives.call import Call
from simulator.compose.cluster import Cluster
from simulator.fabric.fabric import Fabric

__all__ = ["latency_bound_s"]

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]

_FROM_ROOT = ("broadcast", "scatter")
_TO_ROOT = ("reduce", "gather")
_BY_NEIGHBOUR = ("send_recv",)

_known: WeakKeyDictionary[Cluster, dict[tuple[object, ...], float]] = WeakKeyDictionary()


def latency_bound_s(cluster: Cluster, call: Call, group: IntArray) -> float:
    """Return the latency lower bound of a call on a group of global ranks, seconds.

    Parameters
    ----------
    cluster
        Where.
    call
        What; 0 where some rank has no part of its own or parts are uneven, so that not all need
        each other.
    group
        Global ranks in group order, shape (n,).

    Notes
    -----
    Where all need all, the longest of all shortest ways is sought from the first rank and from
    the rank that is farthest from it: in a tree that finds it, elsewhere it is a bound.
    """
    n = call.world_size
    if n == 1 or call.counts_bytes is not None:
        return 0.0
    whole = call.collective in ("broadcast", "reduce", "all_reduce", "barrier", "send_recv")
    if call.size_bytes < (0 if call.collective == "barrier" else 1 if whole else n):
        return 0.0
    root = call.root if call.collective in _FROM_ROOT + _TO_ROOT else -1
    known = _known.setdefault(cluster, {})
    key = (call.collective, root, group.tobytes())
    if key not in known:
        known[key] = _longest_s(cluster.fabric, call.collective, root, group)
    return known[key]


def _longest_s(fabric: Fabric, collective: str, root: int, group: IntArray) -> float:
    vertex = np.asarray(fabric.gpu_vertex)[group]
    if collective in _FROM_ROOT:
        return _finite_max(_ways_s(fabric, int(vertex[root]))[vertex])
    if collective in _TO_ROOT:
        return _finite_max(_ways_s(fabric, int(vertex[root]), backwards=True)[vertex])
    first_s = _ways_s(fabric, int(vertex[0]))[vertex]
    if collective in _BY_NEIGHBOUR:
        return _finite_max(first_s[1:2])
    reached = np.where(np.isfinite(first_s), first_s, 0.0)
    far = int(vertex[int(np.argmax(reached))])
    return max(_finite_max(first_s), _finite_max(_ways_s(fabric, far)[vertex]))


def _finite_max(ways_s: FloatArray) -> float:
    """Return the longest way; a rank that cannot be reached is the run's to tell."""
    return float(ways_s[np.isfinite(ways_s)].max(initial=0.0))


def _ways_s(fabric: Fabric, source: int, *, backwards: bool = False) -> FloatArray:
    """Return the shortest propagation from a vertex to each, or from each to it (Bellman-Ford)."""
    tail, head = np.asarray(fabric.link_src), np.asarray(fabric.link_dst)
    if backwards:
        tail, head = head, tail
    latency_s = np.asarray(fabric.latency_s)
    order = np.argsort(head, kind="stable")
    tail, latency_s = tail[order], latency_s[order]
    heads, start = np.unique(head[order], return_index=True)
    ways_s = np.full(len(fabric.vertex_kind), np.inf)
    ways_s[source] = 0.0
    while True:
        shorter = np.minimum(ways_s[heads], np.minimum.reduceat(ways_s[tail] + latency_s, start))
        if np.array_equal(shorter, ways_s[heads]):
            return ways_s
        ways_s[heads] = shorter
