"""Exchanges of very many ranks as one phase: the load of every link, instead of every pair.

An all_to_all of 2,048 ranks has 4.2 million pairs.  Alone, with equal parts, it takes as long as
its most loaded link: that link saturates first under max-min sharing, and its flows keep its full
capacity until they end.  So the loads are summed, and the engine gets one message per rank with
the links of all.  Only the folded level can use it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from simulator.base.errors import Problem, ScenarioError
from simulator.collectives.call import Call
from simulator.compose.lower import WAITING, Lowering
from simulator.costs.profile import PATH_KINDS
from simulator.engine.traffic import Collective, Connections, Messages, StageTraffic
from simulator.fabric.exchange import exchange_load
from simulator.fabric.routing import Router

__all__ = ["BULK_RANKS", "bulk_exchange", "is_bulk", "refuse_pairs"]

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]

BULK_RANKS = 1024
"""From this many ranks on, exchanges are summed."""
HASHED_PAIRS = 1 << 23
"""Up to this many pairs (2,897 ranks) ECMP hashes each: some seconds.  A link of a network then
carries thousands, and the busiest is within some percent of the mean."""
MOST_PAIRS = 1 << 27
"""Pairs that are routed one by one at most: minutes."""
HELD_BYTES = 2200
"""Of a pair that is lowered and simulated by itself (measured: 652 MiB for 512 ranks)."""
MOST_HELD_PAIRS = 1 << 22
"""Pairs that are lowered one by one at most: 2,048 ranks, 9 GiB."""
_BLOCK = 1 << 20
"""Pairs held at a time."""


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
    share = profile.protocols[protocol].payload_share
    payload = _load(router, group, each_bytes)
    kept = lowering.exchange_share(payload / max(each_bytes, 1e-9))
    wire = payload / (lowering.link_efficiency * share * kept)
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
        wire_s=np.full(n, float(costs.routes.latency_s.max())),
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


def refuse_pairs(call: Call, algorithm: str) -> None:
    """Refuse an exchange whose pairs, lowered one by one, would not fit into memory.

    Raises
    ------
    ScenarioError
        More than `MOST_HELD_PAIRS`.
    """
    pairs = call.world_size * (call.world_size - 1)
    if call.collective != "all_to_all" or algorithm not in ("direct", "pairwise"):
        return
    if pairs > MOST_HELD_PAIRS:
        raise ScenarioError(
            Problem(
                key="engine.level",
                message=f"all_to_all of {call.world_size} ranks, pair by pair: {pairs} pairs take "
                f"about {pairs * HELD_BYTES / 2**30:.0f} GiB of memory",
                allowed=f"at most {MOST_HELD_PAIRS} pairs, or engine.level: auto without jitter, "
                "which counts pairs by kind",
            )
        )


def _load(router: Router, group: IntArray, each_bytes: float) -> FloatArray:
    """Return the payload that each link carries.

    ECMP takes a hash of each pair; beyond `HASHED_PAIRS` the mean over hashes stands for it.
    """
    pairs = len(group) * (len(group) - 1)
    if router.policy != "ecmp" or pairs > HASHED_PAIRS:
        folded = exchange_load(router, group, each_bytes)
        if folded is not None:
            return folded
    if pairs > MOST_PAIRS:
        raise ScenarioError(
            Problem(
                key="collective.op",
                message=f"all_to_all of {len(group)} ranks has {pairs} pairs, each with a route "
                "of its own: its nodes are of too many kinds to be counted by kind",
                allowed=f"at most {MOST_PAIRS} pairs, or ranks in nodes alike",
            )
        )
    vertex = np.asarray(router.fabric.gpu_vertex)[group]
    total = np.zeros(router.fabric.n_links)
    block = max(1, _BLOCK // len(group))
    for begin in range(0, len(group), block):
        src = np.repeat(np.arange(begin, min(begin + block, len(group))), len(group))
        dst = np.tile(np.arange(len(group)), len(src) // len(group))
        apart = src != dst
        total += router.load(vertex[src[apart]], vertex[dst[apart]], each_bytes)
    return total
