"""How much a collective sends through its busiest NIC, by the way it is done.

busbw compares with the NICs' rate only for a ring: each NIC then sends busbw × NICs' share.  A
tree over two nodes sends each byte once where a ring sends it nearly twice, so its busbw may pass
the ring's limit.  The payload per NIC says how much data the NIC passed on whatever the algorithm.
Headers, flags of LL and what else a model adds on the wire are left out: they were not measured.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from simulator.base.errors import CollsimError
from simulator.compose.choose import choose
from simulator.compose.cluster import Cluster
from simulator.compose.programs import call_of, plan_call
from simulator.compose.report import link_busy_s
from simulator.fabric.model import LINK_KINDS, VERTEX_KINDS
from simulator.importers import MeasuredTable
from simulator.results.model import Row
from simulator.scenario.schema import CollectiveSpec
from simulator.verdict.predict import Clusters, PredictedRow
from simulator.verdict.setup import SetUp, call_words

__all__ = ["Choice", "choice_of", "nic_shares"]

Choice = tuple[str, str, int]
"""Algorithm, protocol, channels."""

_INSIDE = ("pcie", "nvlink", "xgmi")


def choice_of(row: Row) -> Choice:
    """Return how a row is done."""
    return row.algorithm, row.protocol, row.n_channels


def nic_shares(
    set_up: SetUp, table: MeasuredTable, rows: Sequence[PredictedRow], clusters: Clusters
) -> dict[Choice, float]:
    """Return payload bytes that the busiest NIC sends per byte of the call's size, by choice.

    Empty where nothing leaves a node through NICs.  One size of each choice is planned, not
    simulated: bytes are proportional to the size.
    """
    largest: dict[Choice, int] = {}
    for row in rows:
        choice = choice_of(row.predicted)
        largest[choice] = max(row.size_bytes, largest.get(choice, 0))
    found: dict[Choice, float] = {}
    for choice, size in largest.items():
        words = call_words(table, [size])
        # Logs repeat tables: each is asked once.
        known = clusters.shares
        key = (set_up.key(words), choice)
        if key not in known:
            known[key] = _share(set_up, words, choice, clusters)
        share = known[key]
        if share is not None:
            found[choice] = share / size
    return found


def _share(
    set_up: SetUp, words: Mapping[str, str], choice: Choice, clusters: Clusters
) -> float | None:
    """Return the payload of the busiest NIC in one call; None where no NIC sends."""
    resolved = set_up.resolve(words)
    spec = resolved.collective
    if spec is None or not any(spec.sizes_bytes):
        return None
    try:
        return _sent_bytes(_bare(clusters.of(resolved)), spec, max(spec.sizes_bytes), choice)
    except CollsimError:
        return None


def _sent_bytes(
    cluster: Cluster, spec: CollectiveSpec, size_bytes: int, done: Choice
) -> float | None:
    """Return what the busiest NIC sends to the network in one call; None where none sends."""
    group = np.arange(cluster.n_gpus) if spec.ranks is None else np.array(spec.ranks)
    algorithm, protocol, channels = done
    call = call_of(spec, len(group), size_bytes)
    choice = choose(cluster, call, group, algorithm=algorithm, protocol=protocol, channels=channels)
    in_time = np.zeros(cluster.n_gpus)
    (lowered, *_) = plan_call(cluster, spec, size_bytes, group, choice, in_time).collectives()
    fabric = cluster.fabric
    sent = link_busy_s(cluster, lowered) * fabric.capacity_Bps
    leaves = np.asarray(fabric.vertex_kind)[fabric.link_src] == VERTEX_KINDS.index("nic")
    leaves &= ~np.isin(fabric.link_kind, [LINK_KINDS.index(kind) for kind in _INSIDE])
    return float(sent[leaves].max(initial=0.0)) or None


def _bare(cluster: Cluster) -> Cluster:
    """Return the cluster with links that carry nothing but payload."""
    profile = replace(
        cluster.profile,
        protocols={
            name: replace(protocol, payload_share=1.0)
            for name, protocol in cluster.profile.protocols.items()
        },
        exchange_share=1.0,
        host_share=1.0,
        calibration=None,
    )
    bare = Cluster(cluster.fabric, cluster.lowering.router, profile)
    bare.lowering.link_efficiency = np.ones_like(bare.lowering.link_efficiency)
    bare.hosts, bare.sums_exchanges = cluster.hosts, cluster.sums_exchanges
    return bare
