"""Exchanges of very many ranks as one phase: the load of every link, instead of every pair.

An all_to_all of 2,048 ranks has 4.2 million pairs.  Alone, with equal parts, it takes as long as
its most loaded link: that link saturates first under max-min sharing, and its flows keep its full
capacity until they end.  So the loads are summed, and the engine gets one message per rank with
the links of all.  Only the folded level can use it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from simulator.collectives.call import Call
from simulator.compose.lower import WAITING, Lowering
from simulator.costs.profile import PATH_KINDS
from simulator.engine.traffic import Collective, Connections, Messages, StageTraffic
from simulator.fabric.routing import Router

__all__ = ["BULK_RANKS", "bulk_exchange", "is_bulk"]

IntArray = NDArray[np.int64]

BULK_RANKS = 1024
"""From this many ranks on, exchanges are summed."""


def is_bulk(call: Call, algorithm: str) -> bool:
    """Return whether a call is an exchange of equal parts that is summed at the folded level."""
    return (
        call.collective == "all_to_all"
        and algorithm in ("direct", "pairwise")
        and call.world_size >= BULK_RANKS
    )


def bulk_exchange(
    lowering: Lowering,
    call: Call,
    group: IntArray,
    *,
    protocol: str,
    channels: int,
    name: str,
    signature: tuple[object, ...],
    router: Router | None = None,
) -> Collective:
    """Return an all_to_all as one stage of one message per rank.

    Parameters
    ----------
    lowering
        Fabric, routes and costs.
    call
        all_to_all of n ranks.
    group
        Global ranks, shape (n,).
    channels
        Of each pair of ranks.
    protocol, name, signature, router
        As in `Lowering.collective`.
    """
    router = router or lowering.router
    profile, fabric, n = lowering.profile, lowering.fabric, call.world_size
    vertex = fabric.gpu_vertex[group]
    each_bytes = call.size_bytes / n
    src = np.repeat(np.arange(n), n - 1)
    dst = (src + np.tile(np.arange(1, n), n)) % n
    share = profile.protocols[protocol].payload_share
    payload = router.load(vertex[src], vertex[dst], each_bytes)
    kept = lowering.exchange_share(payload / max(each_bytes, 1e-9))
    wire = payload / (lowering.link_efficiency * share * kept)
    del src, dst
    # The ranks of one node stand for everybody: exchanges have the same kinds of paths from all.
    node = np.asarray(fabric.node_of_gpu)[group]
    few = np.flatnonzero(node == node[0])
    first, second = np.repeat(few, n - 1), (few[:, None] + np.arange(1, n)).ravel() % n
    costs = lowering.pair_costs(vertex[first], vertex[second], protocol, router)
    costs = lowering.crowded(costs)
    latency_s = costs.latency_s
    most = channels * lowering.exchange_channel_Bps(costs.path_kind, group, protocol)
    network = costs.path_kind == PATH_KINDS.index("network")
    most = np.where(network, np.minimum(most, channels * profile.socket_Bps), most)
    rate_Bps = np.minimum(costs.rate_Bps, most)
    # Peers of one rank beyond its node, which its proxy thread serves where there are sockets.
    remote = int(network[: n - 1].sum())
    # Half of what it copies is received.
    thread_Bps = profile.socket_rank_Bps / 2 * (n - 1) / max(remote, 1)
    if protocol in WAITING:
        latency_s = latency_s + np.sqrt(profile.waiting_s * each_bytes / rate_Bps)
    per_peer = np.array([profile.peer_s.get(kind, 0.0) for kind in PATH_KINDS])
    connections = Connections(
        src=np.arange(n),
        dst=(np.arange(n) + 1) % n,
        indptr=np.zeros(n + 1, dtype=np.int64),
        link=np.zeros(0, dtype=np.int64),
        weight=np.zeros(0),
        latency_s=np.full(n, float(latency_s.max())),
        # All messages of a rank are one, which takes no less than one of them on its channels.
        max_rate_Bps=np.full(n, min(float(most.min()) * (n - 1), thread_Bps)),
    )
    sent = np.full(n, each_bytes * (n - 1))
    message = Messages(edge=None, size_bytes=float(sent[0]))
    stage = StageTraffic(
        name="all_to_all",
        connection=np.arange(n),
        channel=np.zeros(n, dtype=np.int64),
        n_steps=1,
        messages=lambda _step: message,
        edge_bytes=sent,
        edge_messages=np.ones(n, dtype=np.int64),
        wire_bytes=wire,
    )
    return Collective(
        name=name,
        signature=signature,
        group=group,
        n_slots=n,
        connections=connections,
        stages=(stage,),
        launch_s=lowering.launch_s(group, protocol)
        + float(per_peer[costs.path_kind[: n - 1]].sum()),
    )
