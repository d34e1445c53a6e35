"""Counts, degrees and bisection of every network against closed forms."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest

import topologies
from simulator.base.errors import CollsimError, TopologyError
from simulator.fabric.wiring import HOP_LATENCY_S
from tests.fabric.nodes import GB, US, dgx, hgx, node, pcie_box, tray

RATE = 50 * GB


def build(kind, *nodes, **options):
    return topologies.build(nodes, kind, topologies.option_type(kind)(**options))


def network_degree(fabric, prefix):
    """Cables of each switch whose name begins with the prefix."""
    wanted = [v for v in range(fabric.n_vertices) if fabric.vertex_name(v).startswith(prefix)]
    return [int((fabric.link_src[fabric.first_cable :] == v).sum()) for v in wanted]


def cut_between(fabric, first, second):
    """Largest flow from some nodes' NICs to others', over cables only."""
    graph = nx.DiGraph()
    for link in range(fabric.first_cable, fabric.n_links):
        graph.add_edge(
            int(fabric.link_src[link]),
            int(fabric.link_dst[link]),
            capacity=float(fabric.capacity_Bps[link]),
        )
    for nic, vertex in enumerate(fabric.nic_vertex.tolist()):
        if fabric.node_of_nic[nic] in first:
            graph.add_edge("source", vertex)
        if fabric.node_of_nic[nic] in second:
            graph.add_edge(vertex, "sink")
    return nx.maximum_flow_value(graph, "source", "sink")


def halves(fabric):
    nodes = fabric.n_nodes
    return cut_between(fabric, range(nodes // 2), range(nodes // 2, nodes))


# ---------------------------------------------------------------- single switch, none


def test_single_switch_is_a_star():
    fabric = build("single_switch", (dgx(), 3))
    assert fabric.counts()["leaf"] == 1
    assert network_degree(fabric, "leaf") == [24]
    assert halves(build("single_switch", (dgx(), 4))) == pytest.approx(16 * RATE)


def test_single_switch_with_too_few_ports():
    with pytest.raises(
        TopologyError, match=r"24 NICs do not fit on a switch of 16[^?]*at least 24"
    ):
        build("single_switch", (dgx(), 3), radix=16)


def test_none_is_for_one_node():
    assert build("none", (dgx(), 1)).n_links == 2 * len(dgx().links)
    with pytest.raises(TopologyError, match="2 pieces"):
        build("none", (dgx(), 2))
    assert build("none", (tray(), 4), nvl_domain=4).n_gpus == 16
    with pytest.raises(TopologyError, match=r"nvl_domain: 4"):
        build("none", (tray(), 4), nvl_domain=2)


# ---------------------------------------------------------------- leaf and spine


@pytest.mark.parametrize(
    ("radix", "ratio", "down", "up"),
    [(16, 1.0, 8, 8), (64, 1.0, 32, 32), (48, 2.0, 32, 16), (64, 3.0, 48, 16), (16, 0.5, 5, 10)],
)
def test_ports_are_split_by_the_ratio(radix, ratio, down, up):
    """up = floor(radix / (1 + ratio)), down = floor(up × ratio)."""
    one = node("one", [("gpu0", "gpu"), ("nic0", "nic")], [("gpu0", "nic0", "pcie", RATE)])
    fabric = build("leaf_spine", (one, 4 * down), radix=radix, oversubscription=ratio)
    assert fabric.counts()["leaf"] == 4
    assert fabric.counts()["spine"] == up
    assert network_degree(fabric, "leaf") == [down + up] * 4
    assert network_degree(fabric, "spine") == [4] * up


@pytest.mark.parametrize("ratio", [0.5, 1.0, 1.5, 2.0, 3.0])
def test_bisection_of_full_leaves_is_exact(ratio):
    """NICs × rate / (2 × ratio), or the NICs' own half of it when undersubscribed."""
    one = node("one", [("gpu0", "gpu"), ("nic0", "nic")], [("gpu0", "nic0", "pcie", RATE)])
    nics = {0.5: 5, 1.0: 8, 1.5: 9, 2.0: 10, 3.0: 12}[ratio] * 4
    fabric = build("leaf_spine", (one, nics), radix=16, oversubscription=ratio)
    assert fabric.counts()["leaf"] == 4
    assert halves(fabric) == pytest.approx(nics * RATE / 2 / max(1.0, ratio))


def test_a_ratio_that_ports_cannot_give_is_met_by_the_rate():
    """Radix 8 at 1.5:1: 3 up and 4 down would be 1.33:1, so uplinks run at 4 / 4.5 of the rate."""
    one = node("one", [("gpu0", "gpu"), ("nic0", "nic")], [("gpu0", "nic0", "pcie", RATE)])
    fabric = build("leaf_spine", (one, 16), radix=8, oversubscription=1.5)
    assert network_degree(fabric, "leaf") == [4 + 3] * 4
    assert halves(fabric) == pytest.approx(16 * RATE / 2 / 1.5)


def test_nodes_stay_whole_on_a_leaf():
    """9 ports of a leaf (radix 16, 1.5:1) take one node of 8 NICs."""
    fabric = build("leaf_spine", (hgx(), 3), radix=16, oversubscription=1.5)
    assert fabric.counts()["leaf"] == 3
    for number in range(3):
        assert len(fabric.find_links(f"node{number}.nic*->leaf{number}")) == 8


def test_nodes_of_several_sizes_are_packed_in_order():
    """Leaves of 8 ports: [8], [1, 1, 1], [8]."""
    fabric = build("leaf_spine", (hgx(), 1), (pcie_box(), 3), (hgx(), 1), radix=16)
    joined = [fabric.find_links(f"node*.nic*->leaf{leaf}") for leaf in range(3)]
    assert [len(links) for links in joined] == [8, 3, 8]


def test_fewer_spines_bundle_the_uplinks():
    fabric = build("leaf_spine", (hgx(), 4), radix=16, spines=2)
    assert fabric.counts()["spine"] == 2
    assert fabric.capacity_Bps[fabric.find_links("leaf0->spine0")].tolist() == [4 * RATE]
    assert halves(fabric) == pytest.approx(16 * RATE)


def test_nics_per_leaf():
    fabric = build("leaf_spine", (hgx(), 4), radix=64, nics_per_leaf=16, oversubscription=2.0)
    assert fabric.counts()["leaf"] == 2
    assert fabric.counts()["spine"] == 8
    assert halves(fabric) == pytest.approx(32 * RATE / 2 / 2)
    with pytest.raises(TopologyError, match="64 NICs leave no uplink"):
        build("leaf_spine", (hgx(), 4), radix=64, nics_per_leaf=64)


def test_too_many_leaves_say_what_fits():
    with pytest.raises(TopologyError, match=r"9 leaves do not fit on spines of 8[^?]*fat_tree"):
        build("leaf_spine", (dgx(), 1), (pcie_box(), 28), radix=8)


def test_one_leaf_needs_no_spine():
    assert "spine" not in build("leaf_spine", (hgx(), 2)).counts()


# ---------------------------------------------------------------- fat tree


@pytest.mark.parametrize("k", [4, 6, 8])
def test_full_fat_tree(k):
    """k pods of k/2 leaves and k/2 spines, (k/2)² cores, k³/4 NICs, full bisection."""
    one = node("one", [("gpu0", "gpu"), ("nic0", "nic")], [("gpu0", "nic0", "pcie", RATE)])
    fabric = build("fat_tree", (one, k**3 // 4), k=k)
    counts = fabric.counts()
    assert (counts["leaf"], counts["spine"], counts["core"]) == (k * k // 2, k * k // 2, k * k // 4)
    for tier in ("leaf", "spine", "core"):
        assert set(network_degree(fabric, tier)) == {k}
    assert halves(fabric) == pytest.approx(k**3 / 8 * RATE)


def test_oversubscription_of_both_tiers_multiplies():
    """2:1 at the leaves and 2:1 at the spines: a quarter of the NICs' rate across pods."""
    one = node("one", [("gpu0", "gpu"), ("nic0", "nic")], [("gpu0", "nic0", "pcie", RATE)])
    fabric = build("fat_tree", (one, 64), radix=6, oversubscription=2.0, spine_oversubscription=2.0)
    # Leaves: 4 down, 2 up; pods of 4 leaves and 2 spines with 2 uplinks each: 16 NICs.
    counts = fabric.counts()
    assert (counts["leaf"], counts["spine"], counts["core"]) == (16, 8, 4)
    assert cut_between(fabric, range(16), range(16, 64)) == pytest.approx(16 * RATE / 4)


def test_fat_tree_that_is_too_small_says_what_fits():
    with pytest.raises(
        TopologyError, match=r"40 NICs[^?]*at most 16 NICs, or a radix of at least 6"
    ):
        build("fat_tree", (dgx(), 5), k=4)


def test_one_pod_needs_no_core():
    assert "core" not in build("fat_tree", (hgx(), 8), radix=64).counts()


# ---------------------------------------------------------------- rails


def test_rail_optimized_leaf_per_rail_and_group():
    """Radix 8: groups of 4 nodes; NIC r of a group on one leaf; every leaf on every spine."""
    fabric = build("rail_optimized", (hgx(), 4), radix=8)
    assert fabric.counts()["leaf"] == 8
    for rail in range(8):
        found = fabric.find_links(f"node*.nic*->rail{rail}.leaf0")
        assert sorted(map(fabric.link_name, found)) == [
            f"node{n}.nic{rail}->rail{rail}.leaf0" for n in range(4)
        ]
    assert fabric.counts()["spine"] == 4
    assert network_degree(fabric, "rail") == [8] * 8
    assert network_degree(fabric, "spine") == [8] * 4


def test_rail_optimized_grows_a_third_level():
    """Radix 8, 8 nodes: 16 leaves exceed a spine's 8 ports: 4 pods of 4 leaves, full bisection."""
    fabric = build("rail_optimized", (hgx(), 8), radix=8)
    counts = fabric.counts()
    assert (counts["leaf"], counts["spine"], counts["core"]) == (16, 16, 16)
    assert halves(fabric) == pytest.approx(32 * RATE)


def test_fewer_rails_than_nics():
    fabric = build("rail_optimized", (hgx(), 2), rails=2)
    assert fabric.counts()["leaf"] == 2
    assert len(fabric.find_links("node0.nic*->rail1.leaf0")) == 4


def test_rail_only_has_no_way_between_rails():
    fabric = build("rail_only", (hgx(), 4))
    assert fabric.counts()["leaf"] == 8
    assert "spine" not in fabric.counts()
    assert network_degree(fabric, "rail") == [4] * 8
    assert halves(fabric) == pytest.approx(16 * RATE)


def test_rail_only_grows_per_rail():
    """Radix 4 and 8 nodes: 4 leaves of 2 NICs under 2 spines, for each of 8 rails."""
    fabric = build("rail_only", (hgx(), 8), radix=4)
    assert fabric.counts()["leaf"] == 32
    assert fabric.counts()["spine"] == 16
    assert halves(fabric) == pytest.approx(32 * RATE)


# ---------------------------------------------------------------- dragonfly, torus


def test_balanced_dragonfly():
    """p = h = 2, a = 4: 9 groups of 8 NICs, one link between any two groups."""
    one = node("one", [("gpu0", "gpu"), ("nic0", "nic")], [("gpu0", "nic0", "pcie", RATE)])
    fabric = build("dragonfly", (one, 72))
    assert fabric.counts()["leaf"] == 36
    assert set(network_degree(fabric, "group")) == {2 + 3 + 2}
    for a in range(9):
        for b in range(9):
            if a != b:
                assert len(fabric.find_links(f"group{a}.*->group{b}.*")) == 1
    graph = nx.DiGraph(
        zip(
            fabric.link_src[fabric.first_cable :].tolist(),
            fabric.link_dst[fabric.first_cable :].tolist(),
            strict=True,
        )
    )
    graph.remove_nodes_from(fabric.nic_vertex.tolist())
    assert nx.diameter(graph) == 3


@pytest.mark.parametrize("groups", [2, 3, 4, 5])
def test_dragonfly_with_fewer_groups_has_more_links_between_them(groups):
    """a h = 8 global ports: floor(8 / (G − 1)) between each pair, as capacity."""
    one = node("one", [("gpu0", "gpu"), ("nic0", "nic")], [("gpu0", "nic0", "pcie", RATE)])
    fabric = build(
        "dragonfly", (one, 8 * groups), nics_per_router=2, routers_per_group=4, global_links=2
    )
    for a in range(groups):
        for b in range(groups):
            if a != b:
                links = fabric.find_links(f"group{a}.*->group{b}.*")
                assert fabric.capacity_Bps[links].sum() == 8 // (groups - 1) * RATE
    # No router has more than its two global ports.
    for group in range(groups):
        for router in range(4):
            name = f"group{group}.router{router}"
            out = [
                link
                for link in fabric.find_links(f"{name}->group*")
                if not fabric.link_name(link).split("->")[1].startswith(f"group{group}.")
            ]
            assert fabric.capacity_Bps[out].sum() <= 2 * RATE


def test_dragonfly_that_is_too_small_says_what_fits():
    """p = 4, a = 2, h = 1: 3 groups of 8."""
    with pytest.raises(TopologyError, match=r"at most 24 NICs, or nics_per_router: 2"):
        build("dragonfly", (hgx(), 4), nics_per_router=4, routers_per_group=2, global_links=1)


@pytest.mark.parametrize(
    ("shape", "links", "bisection"),
    [
        # Of N routers: 2 N / k links across the longest dimension k, N / 2 when k = 2.
        ("4x4", 2 * 16, 2 * 16 / 4),
        ("8x2", 16 + 8, 2 * 16 / 8),
        ("4x2x2", 16 + 8 + 8, 2 * 16 / 4),
        ("2x2x2x2", 4 * 8, 16 / 2),
        ("16", 16, 2),
    ],
)
def test_torus(shape, links, bisection):
    one = node("one", [("gpu0", "gpu"), ("nic0", "nic")], [("gpu0", "nic0", "pcie", RATE)])
    fabric = build("torus", (one, 16), shape=shape, trunk=RATE / 16)
    cables = (fabric.n_links - fabric.first_cable) // 2
    assert cables == 16 + links
    # Nodes are numbered with the first dimension slowest, so halves are halves of it.
    assert halves(fabric) == pytest.approx(bisection * RATE / 16)


def test_torus_shape_by_default_is_even():
    one = node("one", [("gpu0", "gpu"), ("nic0", "nic")], [("gpu0", "nic0", "pcie", RATE)])
    assert set(network_degree(build("torus", (one, 27)), "router")) == {1 + 6}
    assert set(network_degree(build("torus", (one, 16), dimensions=2), "router")) == {1 + 4}


@pytest.mark.parametrize("shape", ["4x5", "4 by 4", "x4", "0x16"])
def test_torus_shape_must_fit(shape):
    with pytest.raises(TopologyError, match=r"fabric\.shape[^?]*such as 4x2x2"):
        build("torus", (dgx(), 16), shape=shape)


# ---------------------------------------------------------------- NVLink domains, two sites


@pytest.mark.parametrize("scale_out", ["rail_optimized", "rail_only", "leaf_spine", "fat_tree"])
def test_nvl_domains_with_scale_out(scale_out):
    fabric = build("nvl_domain", (tray(), 6), nvl_domain=3, scale_out=scale_out)
    assert fabric.counts()["nvswitch"] == 4
    assert fabric.domain_of_node.tolist() == [0, 0, 0, 1, 1, 1]
    leaves = {"rail_optimized": 4, "rail_only": 4, "leaf_spine": 1, "fat_tree": 1}[scale_out]
    assert fabric.counts()["leaf"] == leaves


def test_one_domain_needs_no_scale_out():
    fabric = build("nvl_domain", (tray(), 4), nvl_domain=4, scale_out="none")
    assert "leaf" not in fabric.counts()
    with pytest.raises(TopologyError, match="pieces"):
        build("nvl_domain", (tray(), 4), nvl_domain=2, scale_out="none")


def test_two_sites_are_joined_by_the_long_link():
    """Both sites of 2 nodes: 16 NICs each, 8 × 50 GB/s between them, 1 ms one way."""
    fabric = build("two_sites", (hgx(), 4), radix=16, long_latency=1e-3)
    (link,) = fabric.find_links("site0.gateway->site1.gateway")
    assert fabric.capacity_Bps[link] == 8 * RATE
    assert fabric.latency_s[link] == pytest.approx(1e-3 + HOP_LATENCY_S["infiniband"])
    assert halves(fabric) == pytest.approx(8 * RATE)
    # With a link as wide as the sites the sites themselves do not limit.
    assert halves(build("two_sites", (hgx(), 4), radix=16, long_rate=16 * RATE)) == (
        pytest.approx(16 * RATE)
    )


def test_sites_of_unequal_size():
    fabric = build("two_sites", (hgx(), 5), first_site_nodes=1)
    assert len(fabric.find_links("node0.nic*->site0.leaf0")) == 8
    assert len(fabric.find_links("node*.nic*->site1.leaf*")) == 32
    for wrong in (0, 5):
        with pytest.raises(CollsimError, match="first_site_nodes"):
            build("two_sites", (hgx(), 5), first_site_nodes=wrong)


# ---------------------------------------------------------------- options of all


ALL = [name for name in topologies.kinds() if name != "none"]


@pytest.mark.parametrize("kind", ALL)
def test_link_limits_the_nics_and_trunk_the_rest(kind):
    template = tray() if kind == "nvl_domain" else hgx()
    fabric = build(kind, (template, 8), link=RATE / 2, trunk=RATE / 4)
    cables = np.arange(fabric.first_cable, fabric.n_links)
    nic = np.isin(fabric.link_src[cables], fabric.nic_vertex) | np.isin(
        fabric.link_dst[cables], fabric.nic_vertex
    )
    assert set(fabric.capacity_Bps[cables[nic]].tolist()) == {RATE / 2}
    wider = fabric.capacity_Bps[cables[~nic]]
    np.testing.assert_allclose(wider / (RATE / 4), np.round(wider / (RATE / 4)), rtol=0.1)


@pytest.mark.parametrize("kind", ALL)
def test_a_nic_is_never_faster_than_itself(kind):
    template = tray() if kind == "nvl_domain" else hgx()
    fabric = build(kind, (template, 8), link=RATE * 10)
    up = np.isin(fabric.link_src, fabric.nic_vertex) & (
        np.arange(fabric.n_links) >= fabric.first_cable
    )
    assert set(fabric.capacity_Bps[up].tolist()) == {RATE}


@pytest.mark.parametrize("kind", ALL)
def test_hop_latency_and_link_kind(kind):
    template = tray() if kind == "nvl_domain" else hgx()
    fabric = build(kind, (template, 8), hop_latency=2 * US, link_kind="roce")
    up = fabric.find_links("*.nic0->*")
    up = [link for link in up if link >= fabric.first_cable]
    np.testing.assert_allclose(fabric.latency_s[up], 0.5 * US)
    down = [link for link in fabric.find_links("*->*.nic0") if link >= fabric.first_cable]
    np.testing.assert_allclose(fabric.latency_s[down], 2.5 * US)
    assert len(set(fabric.link_kind[fabric.first_cable :].tolist())) == 1


@pytest.mark.parametrize("kind", ALL)
def test_nodes_without_nic_are_named(kind):
    bare = node("bare", [("gpu0", "gpu")], [], nic_kind=None, nic_rate_Bps=0.0)
    with pytest.raises(TopologyError, match=r"node2 \(bare\) has no NIC"):
        build(kind, (hgx(), 2), (bare, 1), **({"nvl_domain": 1} if kind == "nvl_domain" else {}))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"link": 0.0}, "fabric.link"),
        ({"link": float("inf")}, "fabric.link"),
        ({"hop_latency": -1.0}, "fabric.hop_latency"),
        ({"radix": 1}, "fabric.radix"),
        ({"oversubscription": 0.0}, "fabric.oversubscription"),
        ({"oversubscription": float("nan")}, "fabric.oversubscription"),
        ({"oversubscription": 1000.0}, "cannot be oversubscribed 1000:1"),
        ({"link_kind": "infinband"}, "Did you mean 'infiniband'"),
    ],
)
def test_options_out_of_range(options, said):
    with pytest.raises(TopologyError, match=said):
        build("leaf_spine", (hgx(), 8), **options)
