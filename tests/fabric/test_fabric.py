"""The cluster as arrays: tiling, names, search, pieces."""

from __future__ import annotations

import numpy as np
import pytest

import topologies
from simulator.base.errors import TopologyError
from simulator.fabric.fabric import Fabric, components
from simulator.fabric.model import LINK_KINDS, VERTEX_KINDS
from simulator.fabric.wiring import Ports, WiringBuilder
from tests.fabric.nodes import GB, dgx, hgx, node, pcie_box, tray


def star(*nodes, **options) -> Fabric:
    ports = Ports.of(nodes)
    builder = WiringBuilder(ports)
    builder.attach(np.repeat(builder.switches("leaf", 1), ports.n_nics), None)
    return Fabric(nodes, builder.finish(), **options)


def test_every_link_is_where_its_template_says():
    """Tiling equals building the links of each node by hand, from names."""
    fabric = star((dgx(cpu_memory_Bps=GB), 2), (pcie_box(), 3))
    wanted = {}
    for number, template in enumerate(fabric.templates):
        for link in template.links:
            for a, b in ((link.a, link.b), (link.b, link.a)):
                wanted[f"node{number}.{a}->node{number}.{b}"] = (link.kind, link.bandwidth_Bps)
        if template.cpu_memory_Bps:
            for cpu in ("cpu0", "cpu1"):
                wanted[f"node{number}.{cpu}.memory"] = ("memory", template.cpu_memory_Bps)
        for vertex in template.vertices:
            if vertex.kind == "nic":
                name = f"node{number}.{vertex.name}"
                wanted[f"{name}->leaf0"] = wanted[f"leaf0->{name}"] = ("infiniband", 50 * GB)
    found = {
        fabric.link_name(link): (
            LINK_KINDS[fabric.link_kind[link]],
            float(fabric.capacity_Bps[link]),
        )
        for link in range(fabric.n_links)
    }
    assert found == wanted


def test_ranks_follow_the_nodes():
    fabric = star((dgx(), 2), (pcie_box(), 3))
    assert fabric.n_gpus == 2 * 8 + 3 * 4
    assert fabric.node_of_gpu.tolist() == [0] * 8 + [1] * 8 + [2] * 4 + [3] * 4 + [4] * 4
    for gpu, vertex in enumerate(fabric.gpu_vertex.tolist()):
        node_, local = fabric.node_of_gpu[gpu], fabric.local_of_gpu[gpu]
        assert fabric.vertex_name(vertex) == f"node{node_}.gpu{local}"
        assert fabric.vertex_node[vertex] == node_
        assert VERTEX_KINDS[fabric.vertex_kind[vertex]] == "gpu"
    for nic, vertex in enumerate(fabric.nic_vertex.tolist()):
        assert fabric.vertex_name(vertex) == (
            f"node{fabric.node_of_nic[nic]}.nic{fabric.local_of_nic[nic]}"
        )


def test_names_lead_back_to_vertices_and_links():
    fabric = star((dgx(), 2), (tray(nvl_domain_nodes=2), 2))
    for vertex in range(fabric.n_vertices):
        assert fabric.vertex(fabric.vertex_name(vertex)) == vertex
    for link in range(fabric.n_links):
        assert fabric.find_links(fabric.link_name(link)) == [link]


def test_globs_and_both_directions():
    fabric = star((dgx(), 2))
    out = fabric.find_links("node1.nic*->*")
    assert len(out) == 16  # 8 NICs, each to its PCIe switch and to the leaf
    assert all(fabric.link_name(link).startswith("node1.nic") for link in out)
    both = fabric.find_links("node0.nic3<->leaf0")
    assert sorted(map(fabric.link_name, both)) == ["leaf0->node0.nic3", "node0.nic3->leaf0"]
    assert set(fabric.find_links("node0.nic*<->leaf?")) == {
        link for nic in range(8) for link in fabric.find_links(f"node0.nic{nic}<->leaf0")
    }


@pytest.mark.parametrize("wrong", ["node0.nic3->leaf1", "node0.nic33->leaf0", "nide0.nic3->leaf0"])
def test_an_unknown_link_shows_the_nearest(wrong):
    with pytest.raises(TopologyError, match=r"no link matches[^?]*Did you mean 'node0\.nic3"):
        star((dgx(), 2)).find_links(wrong)


def test_a_glob_without_match_is_an_error():
    with pytest.raises(TopologyError, match="no link matches 'node7"):
        star((dgx(), 2)).find_links("node7.*->*")


def test_an_unknown_vertex_shows_the_nearest():
    with pytest.raises(TopologyError, match=r"Did you mean 'node1\.gpu7'"):
        star((dgx(), 2)).vertex("node1.gpo7")


def test_networkx_graph_holds_the_same():
    fabric = star((dgx(), 2))
    graph = fabric.graph
    assert graph.number_of_nodes() == fabric.n_vertices
    assert graph.number_of_edges() == fabric.n_links
    edge = graph.edges["node1.gpu0", "node1.nvswitch0"]
    assert edge["kind"] == "nvlink"
    assert edge["bandwidth_Bps"] == 450 * GB
    assert fabric.link_name(edge["index"]) == "node1.gpu0->node1.nvswitch0"
    assert graph.nodes["leaf0"] == {"kind": "leaf", "node": -1}


def test_nodes_of_a_domain_share_their_nvswitches():
    """5 trays in domains of 2: three pairs of switches, none left inside a node."""
    fabric = star((tray(), 5), nvl_domain=2)
    assert fabric.domain_of_node.tolist() == [0, 0, 1, 1, 2]
    assert fabric.counts()["nvswitch"] == 6
    switch = fabric.vertex("nvl1.nvswitch1")
    assert fabric.vertex_node[switch] == -1
    inward = fabric.link_src[fabric.link_dst == switch]
    assert [fabric.vertex_name(v) for v in inward] == [
        f"node{n}.gpu{g}" for n in (2, 3) for g in range(4)
    ]


def test_the_template_says_how_wide_a_domain_is():
    assert star((tray(nvl_domain_nodes=4), 4)).counts()["nvswitch"] == 2
    assert star((tray(nvl_domain_nodes=4), 4), nvl_domain=1).counts()["nvswitch"] == 8


def test_a_domain_needs_nvswitches():
    with pytest.raises(TopologyError, match="no node has an NVSwitch to share"):
        star((pcie_box(), 4), nvl_domain=2)


def test_pieces_are_named():
    """Without cables every node is a piece."""
    wiring = WiringBuilder(Ports.of([(dgx(), 3)])).finish()
    with pytest.raises(TopologyError, match="3 pieces: no link joins node1, node2 with node0"):
        Fabric([(dgx(), 3)], wiring)


def test_a_lonely_vertex_is_named():
    lonely = node("lonely", [("gpu0", "gpu"), ("gpu1", "gpu")], [])
    with pytest.raises(TopologyError, match=r"no link joins node0\.gpu1 with node0\.gpu0"):
        topologies.build([(lonely, 1)], "none")


def test_no_node_and_no_count_are_refused():
    empty = WiringBuilder(Ports.of([])).finish()
    with pytest.raises(TopologyError, match="no node"):
        Fabric([], empty)
    with pytest.raises(TopologyError, match="0 nodes of 'dgx'"):
        Fabric([(dgx(), 0)], empty)


def test_names_are_used_once():
    with pytest.raises(TopologyError, match="two nodes are called 'a'"):
        star((dgx(), 2), node_names=["a", "a"])
    with pytest.raises(TopologyError, match="'leaf0' is a node and a switch"):
        star((dgx(), 2), node_names=["a", "leaf0"])
    with pytest.raises(TopologyError, match="1 names for 2 nodes"):
        star((dgx(), 2), node_names=["a"])
    assert star((dgx(), 2), node_names=["a", "b"]).vertex_name(0) == "a.gpu0"


def test_nvswitch_of_a_node_and_of_a_domain():
    fabric = star((dgx(), 2), (tray(nvl_domain_nodes=2), 2))
    assert fabric.vertex_name(fabric.switch_vertex("nvswitch", [8, 9])) == "node1.nvswitch0"
    assert fabric.vertex_name(fabric.switch_vertex("nvswitch", [16, 23])) == "nvl0.nvswitch0"
    for members in ([0, 8], [0, 16]):
        with pytest.raises(TopologyError, match="share no NVSwitch"):
            fabric.switch_vertex("nvswitch", members)
    with pytest.raises(TopologyError, match="unknown kind of switch 'nvswich'"):
        fabric.switch_vertex("nvswich", [0])


def test_sharp_switch_is_the_lowest_common_one():
    """Leaves of two nodes: within a leaf the leaf itself, across leaves one of the spines."""
    option = topologies.option_type("leaf_spine")(nics_per_leaf=16, radix=32)
    fabric = topologies.build([(hgx(), 4)], "leaf_spine", option)
    assert fabric.vertex_name(fabric.switch_vertex("sharp", range(16))) == "leaf0"
    assert fabric.vertex_name(fabric.switch_vertex("sharp", range(16, 32))) == "leaf1"
    found = {fabric.switch_vertex("sharp", range(32), index) for index in range(20)}
    assert {fabric.vertex_name(v) for v in found} == {f"spine{i}" for i in range(16)}


def test_cut_counts_links_that_leave():
    fabric = star((dgx(), 2))
    inside = np.flatnonzero(fabric.vertex_node == 0)
    assert fabric.cut_Bps(inside.tolist()) == 8 * 50 * GB


def test_components_of_random_graphs_agree_with_networkx():
    import networkx as nx

    rng = np.random.default_rng(7)
    for edges in (5, 30, 60):
        src, dst = rng.integers(0, 60, (2, edges))
        label = components(60, src, dst)
        graph = nx.Graph(list(zip(src.tolist(), dst.tolist(), strict=True)))
        graph.add_nodes_from(range(60))
        for piece in nx.connected_components(graph):
            assert set(label[list(piece)].tolist()) == {min(piece)}


def test_components_follow_long_chains():
    order = np.random.default_rng(1).permutation(5000)
    assert (components(5000, order[:-1], order[1:]) == 0).all()
