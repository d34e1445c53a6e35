"""How much a collective sends through its busiest NIC, by the way it is done.

busbw compares with the NICs' rate only for a ring: each NIC then sends busbw × NICs' share.  A
tree over two nodes sends each byte once where a ring sends it nearly twice, so its busbw may pass
the ring's limit.  The payload per NIC says how much data the NIC passed on whatever the algorithm.
Headers, flags of LL and what else a model adds on the wire are left out: they were not measured.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from simulator.base.errors import CollsimError
from simulator.compose.cluster import Cluster
from simulator.compose.run import run_resolved
from simulator.importers import MeasuredTable
from simulator.results.model import LinkLoad, Row
from simulator.verdict.predict import Clusters, PredictedRow
from simulator.verdict.setup import SetUp, call_words

__all__ = ["Choice", "choice_of", "nic_shares"]

Choice = tuple[str, str, int]
"""Algorithm, protocol, channels."""

_OUT = re.compile(r"\.nic\d+$")


def choice_of(row: Row) -> Choice:
    """Return how a row is done."""
    return row.algorithm, row.protocol, row.n_channels


def nic_shares(
    set_up: SetUp, table: MeasuredTable, rows: Sequence[PredictedRow], clusters: Clusters
) -> dict[Choice, float]:
    """Return payload bytes that the busiest NIC sends per byte of the call's size, by choice.

    Empty where nothing leaves a node through NICs.  One size of each choice is simulated: bytes
    are proportional to the size.
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
    algorithm, protocol, channels = choice
    fixed = replace(
        resolved,
        collective=replace(spec, algorithm=algorithm, protocol=protocol, channels=channels),
    )
    try:
        links = run_resolved(fixed, cluster=_bare(clusters.of(fixed))).links
    except CollsimError:
        return None
    return max((link.wire_bytes for link in links if _leaves(link)), default=None)


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


def _leaves(link: LinkLoad) -> bool:
    return bool(_OUT.search(link.src)) and link.kind not in ("pcie", "nvlink", "xgmi")
