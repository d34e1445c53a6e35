"""TCP between nodes: copies through host memory, and the thread that a rank's sockets share."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from simulator.collectives.schedule import Stage
from simulator.costs.profile import PATH_KINDS
from simulator.costs.sockets import memory_crossings
from simulator.fabric.fabric import Fabric
from simulator.fabric.model import LINK_KINDS, Routes

__all__ = ["copied_weight", "thread_share_of"]

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]


def copied_weight(
    fabric: Fabric, routes: Routes, weight: FloatArray, path_kind: IntArray
) -> FloatArray:
    """Return wire bytes per payload byte where the kernel's copies cross host memory too.

    Parameters
    ----------
    fabric, routes
        Where the links are.
    weight
        Wire bytes per payload byte on each link of the routes.
    path_kind
        Of each route, index into `PATH_KINDS`; only those over the network are copied.
    """
    memory = np.asarray(fabric.link_kind)[routes.link] == LINK_KINDS.index("memory")
    network = path_kind == PATH_KINDS.index("network")
    copied = memory & np.repeat(network, np.diff(routes.indptr))
    # The routes count the two crossings of any way through the host.
    return np.where(copied, weight * memory_crossings() / 2, weight)


def thread_share_of(
    stages: Sequence[Stage],
    connection: IntArray,
    src: IntArray,
    dst: IntArray,
    network: NDArray[np.bool_],
) -> FloatArray:
    """Return the share of a rank's thread that each connection over the network has.

    By bytes, of all that a rank sends and receives, at the end that has most; of a connection with
    several stages the smallest.

    Parameters
    ----------
    stages
        Of the schedule.
    connection
        Connection of every edge, stage after stage.
    src, dst, network
        Of each connection: its ranks, and whether it leaves the node.
    """
    share = np.ones(len(src))
    first = 0
    for stage in stages:
        edges = len(stage.src)
        carried = np.bincount(
            connection[first : first + edges], stage.edge_bytes, minlength=len(src)
        )
        carried = np.where(network, carried, 0.0)
        ranks = int(max(src.max(initial=0), dst.max(initial=0))) + 1
        served = np.bincount(src, carried, ranks) + np.bincount(dst, carried, ranks)
        most = np.maximum(served[src], served[dst])
        used = carried > 0
        share[used] = np.minimum(share[used], carried[used] / most[used])
        first += edges
    return share
