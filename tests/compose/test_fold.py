"""Channels that are copies are simulated once: the same time, from fewer connections."""

from __future__ import annotations

import numpy as np
import pytest

import simulator.compose.cluster
from simulator.collectives.call import Call, Layout
from simulator.compose.build import build_cluster
from simulator.compose.choose import lone_time_s
from simulator.compose.cluster import Choice
from simulator.compose.fold import distinct_channels
from simulator.scenario.resolve import from_words


def rows(*orders: tuple[int, ...]) -> Layout:
    table = np.array(orders)
    return Layout(
        world_size=table.shape[1], n_channels=len(orders), rings=table, chains=table.copy()
    )


def test_turned_rings_are_one_ring_but_not_one_chain() -> None:
    layout = rows((0, 1, 2, 3), (1, 2, 3, 0), (2, 3, 0, 1), (3, 0, 1, 2))
    folded, copies = distinct_channels(layout, "ring")
    assert (folded.n_channels, copies) == (1, 4)
    assert folded.pipeline_bytes == 4 * layout.pipeline_bytes
    assert distinct_channels(layout, "hierarchical") == (layout, 1)


def test_unequal_numbers_of_copies_are_left_alone() -> None:
    layout = rows((0, 1, 2, 3), (0, 1, 2, 3), (0, 2, 1, 3))
    assert distinct_channels(layout, "ring") == (layout, 1)


def test_each_order_is_on_both_trees() -> None:
    layout = rows(*[(0, 1, 2, 3), (1, 0, 2, 3)] * 3)
    folded, copies = distinct_channels(layout, "double_binary_tree")
    assert (folded.n_channels, copies) == (4, 1.5)
    assert folded.chains is not None
    half = len(folded.chains) // 2
    assert (folded.chains[:half] == folded.chains[half:]).all()


@pytest.mark.parametrize("node", ["dgx-h100", "mi300x", "pcie-l40s-4"])
@pytest.mark.parametrize("nodes", [1, 2, 3])
@pytest.mark.parametrize("algorithm", ["ring", "hierarchical", "nvls"])
@pytest.mark.parametrize("size", [2**12, 2**20, 2**28])
def test_the_fold_takes_as_long(
    node: str, nodes: int, algorithm: str, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = {"node": node, "nodes": str(nodes), "collective.op": "all_reduce"}
    cluster = build_cluster(from_words(words | {"collective.sizes": "1M"}).variants[0])
    group = np.arange(cluster.n_gpus)
    call = Call(collective="all_reduce", world_size=len(group), size_bytes=size, element_bytes=4)
    choice = Choice(algorithm=algorithm, protocol="Simple", n_channels=16)
    try:
        folded_s = lone_time_s(cluster, call, group, choice)
    except Exception:  # the algorithm refuses this cluster
        pytest.skip("not for this cluster")
    monkeypatch.setattr(
        simulator.compose.cluster, "distinct_channels", lambda layout, _name: (layout, 1.0)
    )
    # Chunk borders fall elsewhere when fewer channels share a small buffer; and where connections
    # contend, links are shared by connection, of which a fold has fewer.
    assert folded_s == pytest.approx(lone_time_s(cluster, call, group, choice), rel=3e-2)
