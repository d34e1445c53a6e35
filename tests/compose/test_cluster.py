"""A cluster: groups, nodes, layouts, and what its hardware cannot run."""

from __future__ import annotations

import numpy as np
import pytest

from simulator.base.errors import ScheduleError
from simulator.collectives.call import Call
from simulator.compose.build import build_cluster, build_fabric
from simulator.compose.cluster import Choice
from simulator.compose.picture import picture_of
from simulator.scenario.resolve import from_words
from tests.compose.clusters import cluster


def test_group_nodes():
    made = cluster("2 x dgx-h100")
    assert made.n_gpus == 16
    assert made.group_nodes(np.arange(8)) == 1
    assert made.group_nodes(np.array([0, 8])) == 2
    assert made.template_of(15).name == "dgx-h100"


def test_layout_follows_the_group():
    made = cluster("2 x dgx-h100")
    layout = made.layout(np.array([2, 5, 8, 9, 15]), 2)
    assert layout.world_size == 5
    assert layout.node_of_rank.tolist() == [0, 0, 1, 1, 1]
    assert made.layout(np.array([2, 5, 8, 9, 15]), 2) is layout  # kept


@pytest.mark.parametrize(
    ("where", "group", "expected"),
    [
        ("dgx-h100", None, 24),  # NVSwitch, Hopper
        ("dgx-1-v100", None, 12),  # mesh, Volta
        ("pcie-l40s-4", None, 2),
        ("4 x 1 of dgx-h100", None, 2),  # a GPU a node: only the network
        ("2 x dgx-h100", [0], 24),  # one rank
    ],
)
def test_most_channels(where: str, group: list[int] | None, expected: int):
    made = cluster(where, "round")
    ranks = np.arange(made.n_gpus) if group is None else np.array(group)
    assert made.most_channels(ranks) == expected


@pytest.mark.parametrize("where", ["dgx-1-v100", "pcie-l40s-4", "2 x perlmutter"])
@pytest.mark.parametrize("algorithm", ["nvls", "nvls_tree"])
def test_switches_that_do_not_reduce(where: str, algorithm: str):
    made = cluster(where)
    group = np.arange(made.n_gpus)
    call = Call(collective="all_reduce", world_size=len(group), size_bytes=1024)
    with pytest.raises(ScheduleError, match=f"{algorithm} needs NVSwitches that reduce"):
        made.schedule(call, group, Choice(algorithm=algorithm, protocol="Simple", n_channels=1))


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        ({"node": "dgx-h100"}, "none"),
        ({"node": "dgx-h100", "nodes": "2"}, "single_switch"),
        ({"node": "dgx-h100", "nodes": "2", "fabric": "rail_only"}, "rail_only"),
    ],
)
def test_network_unless_given(words: dict[str, str], kind: str):
    resolved = from_words({**words, "collective.op": "barrier"}).variants[0]
    assert build_fabric(resolved).kind == kind


def test_subset_of_gpus():
    words = {"node": "dgx-h100", "nodes": "3", "gpus_per_node": "2", "collective.op": "barrier"}
    made = build_cluster(from_words(words).variants[0])
    assert made.n_gpus == 6
    assert made.fabric.node_of_gpu.tolist() == [0, 0, 1, 1, 2, 2]


def test_picture_has_every_vertex_and_link_unloaded():
    words = {"node": "dgx-h100", "nodes": "2", "collective.op": "barrier"}
    picture = picture_of(from_words(words).variants[0])
    fabric = cluster("2 x dgx-h100").fabric
    assert len(picture.vertices) == fabric.n_vertices
    assert len(picture.links) == fabric.n_links
    assert {link.wire_bytes for link in picture.links} == {0.0}
    ends = {vertex.name for vertex in picture.vertices}
    assert all(link.src in ends and link.dst in ends for link in picture.links)
