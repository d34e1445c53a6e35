"""The load of an exchange, folded by kinds of nodes, is the sum over all pairs."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from simulator.compose.build import build_cluster
from simulator.compose.cluster import Cluster
from simulator.fabric.exchange import exchange_load
from simulator.scenario.resolve import from_words

CASES = {
    "one switch": {},
    "rails": {"fabric.kind": "rail_optimized"},
    "rails only": {"fabric.kind": "rail_only"},
    "leaf–spine": {"fabric.kind": "leaf_spine", "fabric.radix": "16"},
    "leaf–spine 4:1": {
        "fabric.kind": "leaf_spine",
        "fabric.radix": "20",
        "fabric.oversubscription": "4",
    },
    "fat tree": {"fabric.kind": "fat_tree", "fabric.radix": "8"},
    "dragonfly": {"fabric.kind": "dragonfly"},
    "two sites": {"fabric.kind": "two_sites"},
    "torus": {"fabric.kind": "torus"},
    "no PXN": {"fabric.kind": "rail_optimized", "routing.pxn": "no"},
    "PCIe": {"node": "pcie-l40s-8", "fabric.kind": "leaf_spine", "fabric.radix": "8"},
    "two cables": {"node": "dgx-1-v100", "fabric.kind": "fat_tree", "fabric.radix": "8"},
    "NVLink domains": {"node": "gb200-nvl72", "fabric.kind": "rail_optimized"},
    "some GPUs": {"gpus_per_node": "3", "fabric.kind": "rail_optimized"},
}


@pytest.mark.parametrize("policy", ["static", "adaptive"])
@pytest.mark.parametrize("nodes", [1, 4, 10])
@pytest.mark.parametrize("case", CASES)
def test_equals_all_pairs(case: str, nodes: int, policy: str) -> None:
    words = {"node": "dgx-h100", "nodes": str(nodes), "routing.policy": policy, **CASES[case]}
    words |= {"collective.op": "all_to_all", "collective.sizes": "1M"}
    if nodes == 1:
        words = {k: v for k, v in words.items() if not k.startswith("fabric.")}
    cluster = build_cluster(from_words(words).variants[0])
    _compare(cluster, np.arange(cluster.n_gpus))


def test_some_ranks_of_unlike_nodes() -> None:
    words = {"nodes": "6", "node": "dgx-h100", "fabric.kind": "leaf_spine", "fabric.radix": "16"}
    words |= {"collective.op": "all_to_all", "collective.sizes": "1M"}
    cluster = build_cluster(from_words(words).variants[0])
    _compare(cluster, np.array([0, 3, 9, 10, 16, 19, 24, 27, 33, 47]))


def test_more_kinds_of_nodes_than_are_worth_folding() -> None:
    words = {"nodes": "17", "node": "dgx-h100", "collective.op": "all_to_all"}
    words["collective.sizes"] = "1M"
    cluster = build_cluster(from_words(words).variants[0])
    # Another set of GPUs of each node.
    gpus = [8 * node + place for node in range(17) for place in range(8) if node + 3 >> place & 1]
    assert exchange_load(cluster.lowering.router, np.array(gpus), 1.0) is None


def test_hashed_pairs_have_the_mean_over_hashes() -> None:
    words = {"nodes": "8", "node": "dgx-h100", "fabric.kind": "leaf_spine", "fabric.radix": "16"}
    words |= {"collective.op": "all_to_all", "collective.sizes": "1M", "routing.policy": "ecmp"}
    seeds = range(200)
    mean = 0.0
    for seed in seeds:
        resolved = from_words({**words, "routing.seed": str(seed)}).variants[0]
        cluster = build_cluster(resolved)
        gpus = np.arange(cluster.n_gpus)
        vertex = np.asarray(cluster.fabric.gpu_vertex)
        src, dst = (end.ravel() for end in np.meshgrid(vertex, vertex, indexing="ij"))
        router = cluster.lowering.router
        mean = mean + router.load(src[src != dst], dst[src != dst], 1.0) / len(seeds)
    folded = exchange_load(router, gpus, 1.0)
    assert folded is not None
    np.testing.assert_allclose(folded, mean, rtol=0.05, atol=1e-9)


def _compare(cluster: Cluster, gpus: NDArray[np.int64]) -> None:
    router = cluster.lowering.router
    vertex = np.asarray(cluster.fabric.gpu_vertex)[gpus]
    src, dst = (end.ravel() for end in np.meshgrid(vertex, vertex, indexing="ij"))
    pairs = router.load(src[src != dst], dst[src != dst], 3.0)
    folded = exchange_load(router, gpus, 3.0)
    assert folded is not None
    np.testing.assert_allclose(folded, pairs, rtol=1e-9, atol=1e-9)
