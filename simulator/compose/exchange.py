"""How NCCL carries out sends and receives: protocol and channels of one pair of ranks.

An all_to_all, gather, scatter or send_recv is a group of sends and receives.  A pair of ranks may
use only so many channels, and a channel moves only so much, so that a single pair seldom fills its
link: NCCL src/graph/paths.cc (ncclTopoComputeP2pChannels), src/enqueue.cc (addP2pToPlan).

Not modelled: that pairs of one node may use LL while pairs over nodes of the same call do not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from simulator.collectives.call import Call
from simulator.costs.nccl.links import nvlink_count
from simulator.costs.nccl.p2p import P2pPlan, p2p_channels, p2p_plan
from simulator.fabric.model import NodeTemplate

if TYPE_CHECKING:
    from simulator.compose.cluster import Cluster

__all__ = ["EXCHANGE_CALLS", "exchange_plan"]

IntArray = NDArray[np.int64]

EXCHANGE_CALLS = ("all_to_all", "all_to_allv", "gather", "scatter", "send_recv")
"""Collectives that are groups of sends and receives."""


def exchange_plan(cluster: Cluster, call: Call, group: IntArray) -> P2pPlan | None:
    """Return how one message of a call is cut; None where the library's rules are not known.

    Parameters
    ----------
    cluster
        With a profile whose library is NCCL.
    call
        One of `EXCHANGE_CALLS`.
    group
        Global ranks, shape (n,).
    """
    if call.collective not in EXCHANGE_CALLS or call.world_size < 2:
        return None
    inp = cluster.tuning_input(group)
    if inp is None:
        return None
    template = cluster.template_of(int(group[0]))
    fabric = cluster.fabric
    node = np.asarray(fabric.node_of_gpu)[group]
    first = np.asarray(fabric.local_of_gpu)[group[node == node[0]]].tolist()
    links = _nvlinks_between(template, first, inp.min_sm)
    nics = sum(vertex.kind == "nic" for vertex in template.vertices)
    gpus = sum(vertex.kind == "gpu" for vertex in template.vertices)
    each = -(-nics // max(gpus, 1))
    channels = p2p_channels(
        inp.version,
        inp.n_ranks,
        inp.n_nodes,
        inp.channels,
        nvlinks_between=links,
        net_GBps=each * template.nic_rate_Bps / 1e9,
        nics_per_gpu=max(1, each),
        environment=inp.environment,
    )
    size_bytes = call.size_bytes
    if call.collective != "send_recv":
        size_bytes = -(-size_bytes // call.world_size)
    return p2p_plan(
        inp.version,
        max(size_bytes, 1),
        channels,
        n_ranks=inp.n_ranks,
        n_nodes=inp.n_nodes,
        remote=inp.n_nodes > 1,
        all_nvlink=links is not None,
        environment=inp.environment,
    )


def _nvlinks_between(template: NodeTemplate, locals_: Sequence[int], sm: int) -> int | None:
    """Return the links' worth of NVLink between the worst pair of GPUs; None without."""
    names = [vertex.name for vertex in template.vertices if vertex.kind == "gpu"]
    own = [names[i] for i in locals_]
    switches = {vertex.name for vertex in template.vertices if vertex.kind == "nvswitch"}
    rate_Bps: dict[frozenset[str], float] = {}
    for link in template.links:
        if link.kind == "nvlink":
            ends = frozenset("switch" if end in switches else end for end in (link.a, link.b))
            rate_Bps[ends] = rate_Bps.get(ends, 0.0) + link.bandwidth_Bps
    if len(own) < 2:
        return None
    if switches:
        pairs = [frozenset((gpu, "switch")) for gpu in own]
    else:
        pairs = [frozenset((a, b)) for i, a in enumerate(own) for b in own[i + 1 :]]
    least = min(rate_Bps.get(pair, 0.0) for pair in pairs)
    return nvlink_count(least / 1e9, sm=sm) if least > 0 else None
