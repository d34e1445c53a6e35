"""Routes between nodes: choice of NICs, rails, PXN, GPUDirect, ECMP, adaptive, static."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

import topologies
from simulator.base.errors import RoutingError
from simulator.fabric.network import mix
from simulator.fabric.routing import Router, RoutingOptions
from tests.fabric.checks import all_pairs, check_routes, names, vertices
from tests.fabric.nodes import GB, US, cube_mesh, dgx, hgx, node, pcie_box, tray

ECMP = RoutingOptions(policy="ecmp")


def build(kind, *nodes, **options):
    return topologies.build(nodes, kind, topologies.option_type(kind)(**options))


def one(fabric, a, b, **options):
    router = Router(fabric, RoutingOptions(**options))
    return router.routes(fabric.gpu_vertex[[a]], fabric.gpu_vertex[[b]])


FABRICS = {
    "single_switch": lambda: build("single_switch", (dgx(), 3)),
    "leaf_spine": lambda: build("leaf_spine", (hgx(), 4), radix=16),
    "fat_tree": lambda: build("fat_tree", (pcie_box(), 16), k=4),
    "fat_tree_8": lambda: build("fat_tree", (hgx(), 6), radix=8),
    "rail_optimized": lambda: build("rail_optimized", (hgx(), 5), radix=8),
    "rail_only": lambda: build("rail_only", (hgx(), 3)),
    "dragonfly": lambda: build("dragonfly", (cube_mesh(), 5)),
    "torus": lambda: build("torus", (pcie_box(), 12)),
    "two_sites": lambda: build("two_sites", (hgx(), 4), radix=16),
    "nvl_domain": lambda: build("nvl_domain", (tray(), 6), nvl_domain=2),
    "mixed": lambda: build("leaf_spine", (hgx(), 1), (cube_mesh(), 2), (pcie_box(), 3), radix=16),
}


@pytest.mark.parametrize("name", FABRICS)
@pytest.mark.parametrize("policy", ["ecmp", "adaptive", "static"])
def test_every_pair_has_a_whole_route(name, policy):
    fabric = FABRICS[name]()
    src, dst = all_pairs(fabric)
    routes = Router(fabric, RoutingOptions(policy=policy)).routes(src, dst)
    check_routes(fabric, routes, src, dst)


@pytest.mark.parametrize("name", ["single_switch", "fat_tree", "nvl_domain", "mixed"])
@pytest.mark.parametrize("options", [{"gpudirect": False}, {"pxn": False}, {"p2p": False}])
def test_every_pair_has_a_whole_route_without(name, options):
    fabric = FABRICS[name]()
    src, dst = all_pairs(fabric)
    check_routes(fabric, Router(fabric, RoutingOptions(**options)).routes(src, dst), src, dst)


def test_latency_is_that_of_the_links():
    """NVLink ×2 and PCIe ×2 at the source, PCIe ×2 behind, two NICs and a switch between.

    6 links of 0.1 us; the cable into the switch costs the NIC's 0.5 us, the one out of it the
    switch's 0.15 us and the NIC's 0.5 us.
    """
    fabric = build("single_switch", (hgx(), 2))
    routes = one(fabric, 0, 8 + 3)
    assert routes.latency_s[0] == pytest.approx(6 * 0.1 * US + 2 * 0.5 * US + 0.15 * US)
    assert routes.latency_s[0] == pytest.approx(fabric.latency_s[routes.link].sum())


@pytest.mark.parametrize("policy", ["ecmp", "adaptive", "static"])
def test_latency_of_longer_ways(policy):
    """Equal paths have equal latency, so every policy gives the sum along any one path."""
    fabric = build("fat_tree", (pcie_box(), 16), k=4)
    src, dst = all_pairs(fabric)
    whole = Router(fabric, RoutingOptions(policy="static")).routes(src, dst)
    owner = np.repeat(np.arange(len(src)), np.diff(whole.indptr))
    wanted = np.bincount(owner, weights=fabric.latency_s[whole.link], minlength=len(src))
    found = Router(fabric, RoutingOptions(policy=policy)).routes(src, dst).latency_s
    np.testing.assert_allclose(found, wanted)


# ------------------------------------------------------------------ choice of NICs


def test_each_gpu_uses_the_nic_on_its_switch():
    fabric = build("single_switch", (hgx(), 2))
    for gpu in range(8):
        assert vertices(fabric, one(fabric, gpu, 8 + gpu)) == [
            f"node0.gpu{gpu}", f"node0.pcie{gpu}", f"node0.nic{gpu}", "leaf0",
            f"node1.nic{gpu}", f"node1.pcie{gpu}", f"node1.gpu{gpu}",
        ]  # fmt: skip


def test_equally_close_nics_share_evenly_rail_by_rail():
    """Two GPUs and two NICs on a switch: both NICs at both ends, half each, never crossed."""
    fabric = build("rail_only", (dgx(), 2))
    routes = one(fabric, 0, 8 + 1)
    shares = dict(zip(names(fabric, routes), routes.share.tolist(), strict=True))
    cables = {name: share for name, share in shares.items() if "rail" in name}
    assert cables == {
        "node0.nic0->rail0": 0.5, "rail0->node1.nic0": 0.5,
        "node0.nic1->rail1": 0.5, "rail1->node1.nic1": 0.5,
    }  # fmt: skip
    assert shares["node0.gpu0->node0.pcie0"] == 1.0


def test_two_gpus_share_one_nic():
    fabric = build("single_switch", (cube_mesh(), 2))
    for gpu in range(8):
        assert f"node0.nic{gpu // 2}->leaf0" in names(fabric, one(fabric, gpu, 8 + gpu))


def test_unequal_numbers_of_nics_are_paired_in_turn():
    """A GPU with 4 NICs sends to a GPU with 1: a quarter over each, all of it into the one."""
    many = node(
        "many",
        [("gpu0", "gpu"), ("pcie0", "pcie_switch"), *((f"nic{i}", "nic") for i in range(4))],
        [("gpu0", "pcie0", "pcie", 60 * GB)]
        + [(f"nic{i}", "pcie0", "pcie", 60 * GB) for i in range(4)],
    )
    single = node("single", [("gpu0", "gpu"), ("nic0", "nic")], [("gpu0", "nic0", "pcie", 60 * GB)])
    fabric = build("single_switch", (many, 1), (single, 1))
    # Without PXN, which would keep to the one rail that both have.
    routes = one(fabric, 0, 1, pxn=False)
    shares = dict(zip(names(fabric, routes), routes.share.tolist(), strict=True))
    assert [shares[f"node0.nic{i}->leaf0"] for i in range(4)] == [0.25] * 4
    assert shares["leaf0->node1.nic0"] == 1.0
    check_routes(fabric, routes, fabric.gpu_vertex[[0]], fabric.gpu_vertex[[1]])


def test_nics_can_be_given():
    fabric = build("rail_optimized", (hgx(), 2), radix=16)
    router = Router(fabric)
    src, dst = fabric.gpu_vertex[[0, 0, 0]], fabric.gpu_vertex[[8, 8, 8]]
    routes = router.routes(src, dst, nics=[2, -1, 5])
    check_routes(fabric, routes, src, dst)
    for pair, nic in enumerate((2, 0, 5)):
        assert f"node0.nic{nic}->rail{nic}.leaf0" in names(fabric, routes, pair)
        assert f"rail{nic}.leaf0->node1.nic{nic}" in names(fabric, routes, pair)
    crossed = router.routes(src[:1], dst[:1], nics=[[2, 3]])
    assert {"node0.nic2->rail2.leaf0", "rail3.leaf0->node1.nic3"} < set(names(fabric, crossed))
    with pytest.raises(RoutingError, match=r"NIC 8 is asked for at node0\.gpu0"):
        router.routes(src[:1], dst[:1], nics=[8])


# ------------------------------------------------------------------ rails and PXN


@pytest.mark.parametrize("kind", ["rail_optimized", "rail_only"])
def test_pxn_keeps_traffic_on_the_rail(kind):
    """Whatever the pair, the data cross exactly one leaf: that of the destination's rail."""
    fabric = build(kind, (hgx(), 2))
    src, dst = all_pairs(fabric)
    routes = Router(fabric).routes(src, dst)
    for pair, (a, b) in enumerate(zip(src.tolist(), dst.tolist(), strict=True)):
        if fabric.vertex_node[a] == fabric.vertex_node[b]:
            continue
        way = vertices(fabric, routes, pair)
        rail = fabric.vertex_name(b)[-1]
        assert [name for name in way if name.startswith("rail")] == [
            f"rail{rail}" if kind == "rail_only" else f"rail{rail}.leaf0"
        ]
        # The relay is the GPU next to that NIC, reached over NVLink.
        relay = fabric.vertex_name(a)[:-1] + rail
        assert way[: 3 if relay != way[0] else 1][-1] == relay


def test_without_pxn_rails_are_crossed_on_the_spines():
    fabric = build("rail_optimized", (hgx(), 2))
    way = vertices(fabric, one(fabric, 0, 8 + 5, pxn=False))
    assert "node0.nic0" in way
    assert "node1.nic5" in way
    assert any(name.startswith("spine") for name in way)


def test_rail_only_refuses_other_rails_without_pxn():
    fabric = build("rail_only", (hgx(), 2))
    with pytest.raises(RoutingError, match=r"node0\.gpu0 to node1\.gpu5[^.]*routing\.pxn: true"):
        one(fabric, 0, 8 + 5, pxn=False)
    assert one(fabric, 5, 8 + 5, pxn=False).n_pairs == 1


def test_cross_nic_off_receives_on_the_senders_rail():
    fabric = build("rail_only", (hgx(), 2))
    way = vertices(fabric, one(fabric, 0, 8 + 5, pxn=False, cross_nic=False))
    assert way[2:5] == ["node0.nic0", "rail0", "node1.nic0"]
    assert "node1.cpu0" in way


def test_pxn_needs_nvlink():
    """Without NVLink the data leave by the sender's own NIC."""
    box = replace(
        hgx(),
        links=tuple(link for link in hgx().links if link.kind != "nvlink"),
        vertices=tuple(v for v in hgx().vertices if v.kind != "nvswitch"),
    )
    fabric = build("rail_optimized", (box, 2))
    assert "node0.nic0" in vertices(fabric, one(fabric, 0, 8 + 5))


def test_pxn_takes_one_nvlink_not_two():
    """In the cube mesh GPU 0 has no NVLink to GPUs 6 and 7, which own NIC 3; it has one to 2."""
    fabric = build("single_switch", (cube_mesh(), 2))
    assert vertices(fabric, one(fabric, 0, 8 + 2))[:4] == [
        "node0.gpu0", "node0.gpu2", "node0.pcie1", "node0.nic1"
    ]  # fmt: skip
    assert "node0.nic0" in vertices(fabric, one(fabric, 0, 8 + 7))


# ------------------------------------------------------------------ GPUDirect


def test_gpudirect_off_goes_through_host_memory_on_both_sides():
    fabric = build("single_switch", (hgx(cpu_memory_Bps=300 * GB), 2))
    for options in ({"gpudirect": False},):
        routes = one(fabric, 4, 8 + 4, **options)
        assert vertices(fabric, routes) == [
            *(f"node0.{name}" for name in ("gpu4", "pcie4", "cpu1", "pcie4", "nic4")),
            "leaf0",
            *(f"node1.{name}" for name in ("nic4", "pcie4", "cpu1", "pcie4", "gpu4")),
        ]
        shares = dict(zip(names(fabric, routes), routes.share.tolist(), strict=True))
        assert shares["node0.cpu1.memory"] == shares["node1.cpu1.memory"] == 2.0


def test_the_preset_can_lack_gpudirect():
    fabric = build("single_switch", (hgx(gpudirect=False), 2))
    assert "node0.cpu0" in vertices(fabric, one(fabric, 0, 8))
    assert "node0.cpu0" not in vertices(fabric, one(fabric, 0, 8, gpudirect=True))


@pytest.mark.parametrize(
    ("level", "near", "far"), [("pxb", True, True), ("phb", False, True), ("sys", False, False)]
)
def test_gdr_level_says_how_far_a_nic_may_be(level, near, far):
    """The box's only NIC is on PCIe switch 0: GPU 1 is one CPU away, GPU 3 two."""
    fabric = build("single_switch", (pcie_box(cpu_memory_Bps=300 * GB), 2))
    for gpu, bounced in ((0, False), (1, near), (3, far)):
        routes = one(fabric, gpu, 4, gdr_level=level)
        memory = [name for name in names(fabric, routes) if name.startswith("node0.cpu")]
        assert any("memory" in name for name in memory) == bounced


def test_chip_to_chip_needs_no_bounce():
    fabric = build("single_switch", (tray(cpu_memory_Bps=300 * GB, nvl_domain_nodes=1), 2))
    assert not any("memory" in name for name in names(fabric, one(fabric, 0, 4)))


# ------------------------------------------------------------------ NVLink domains


def test_a_domain_is_crossed_on_nvlink():
    fabric = build("nvl_domain", (tray(), 4), nvl_domain=2)
    routes = one(fabric, 1, 4 + 2)
    assert sorted(names(fabric, routes)) == [
        "node0.gpu1->nvl0.nvswitch0", "node0.gpu1->nvl0.nvswitch1",
        "nvl0.nvswitch0->node1.gpu2", "nvl0.nvswitch1->node1.gpu2",
    ]  # fmt: skip
    assert routes.share.tolist() == [0.5] * 4
    assert any("rail" in name for name in names(fabric, one(fabric, 1, 8 + 2)))


def test_switches_can_be_ends():
    """NVLS: a GPU and the domain's switch; SHARP: a GPU and a spine."""
    fabric = build("nvl_domain", (tray(), 4), nvl_domain=2, radix=8)
    router = Router(fabric)
    switch = fabric.switch_vertex("nvswitch", [0, 7])
    spine = fabric.vertex("spine1")
    gpu = int(fabric.gpu_vertex[5])
    ends = [
        (gpu, switch),
        (switch, gpu),
        (gpu, spine),
        (spine, gpu),
        (spine, fabric.vertex("spine0")),
    ]
    src, dst = np.array(ends).T
    routes = router.routes(src, dst)
    up = routes.pair(0)
    # Both NVSwitches stand for one: half of the data to each.
    assert [fabric.link_name(link) for link in up[0]] == [
        "node1.gpu1->nvl0.nvswitch0", "node1.gpu1->nvl0.nvswitch1"
    ]  # fmt: skip
    assert up[1] == [0.5, 0.5]
    part = router.routes(src[2:], dst[2:])
    check_routes(fabric, part, src[2:], dst[2:])


def test_other_ends_are_refused():
    fabric = build("single_switch", (hgx(), 2))
    router = Router(fabric)
    for name in ("node0.cpu0", "node0.nic0", "node0.pcie0"):
        with pytest.raises(RoutingError, match=f"cannot begin or end at {name}"):
            router.routes([fabric.vertex(name)], fabric.gpu_vertex[[0]])
    switch = fabric.vertex("node0.nvswitch0")
    off = Router(fabric, RoutingOptions(p2p=False))
    with pytest.raises(RoutingError, match=r"over NVLink, which routing\.p2p: false turns off"):
        off.routes(fabric.gpu_vertex[[0]], [switch])
    with pytest.raises(RoutingError, match=r"node0\.nvswitch0 to node1\.gpu0"):
        router.routes([fabric.vertex("node0.nvswitch0")], fabric.gpu_vertex[[8]])


# ------------------------------------------------------------------ ECMP, adaptive, static


def _spine_counts(fabric, routes):
    spine = {v for v in range(fabric.n_vertices) if fabric.vertex_name(v).startswith("spine")}
    return Counter(int(v) for v in fabric.link_dst[routes.link] if int(v) in spine)


def test_ecmp_is_the_same_for_the_same_seed_only():
    fabric = build("leaf_spine", (hgx(), 8), radix=16)
    src, dst = all_pairs(fabric)
    first, again, other = (
        Router(fabric, RoutingOptions(policy="ecmp", seed=seed)).routes(src, dst)
        for seed in (1, 1, 2)
    )
    assert np.array_equal(first.link, again.link)
    assert not np.array_equal(first.link, other.link)


def test_ecmp_does_not_depend_on_what_is_asked_together():
    fabric = build("fat_tree", (hgx(), 6), radix=8)
    src, dst = all_pairs(fabric)
    router = Router(fabric, ECMP)
    whole = router.routes(src, dst)
    order = np.random.default_rng(3).permutation(len(src))[:50]
    for pair in order.tolist():
        alone = router.routes(src[[pair]], dst[[pair]])
        assert alone.pair(0) == whole.pair(pair)


def test_ecmp_spreads_flows_evenly():
    """Binomial: 4,096 flows over 8 spines, 512 ± 4 standard deviations of 21."""
    fabric = build("leaf_spine", (hgx(), 2), radix=16)
    flows = np.arange(4096)
    src = np.full(4096, fabric.gpu_vertex[0])
    dst = np.full(4096, fabric.gpu_vertex[8])
    counts = _spine_counts(fabric, Router(fabric, ECMP).routes(src, dst, flow=flows))
    assert len(counts) == 8
    assert max(abs(count - 512) for count in counts.values()) < 4 * (4096 / 8 * 7 / 8) ** 0.5


def test_hash_bits_are_fair():
    """Each of 64 output bits is set in half of 10,000 hashes of small numbers, within 5 sigma."""
    bits = np.unpackbits(
        mix(np.arange(10_000, dtype=np.uint64)).view(np.uint8).reshape(-1, 8), axis=1
    )
    assert np.abs(bits.mean(axis=0) - 0.5).max() < 5 * 0.5 / 100


def test_hash_is_splitmix64():
    """First outputs of the published generator seeded with 0 and with 1234567."""
    found = mix(np.array([0, 1234567], dtype=np.uint64)).tolist()
    assert found == [0xE220A8397B1DCDAF, 6457827717110365317]


def test_switches_of_several_tiers_choose_independently():
    """With one hash for all hops spine j would always choose core j: 4 of 16 cores used."""
    fabric = build("fat_tree", (hgx(), 8), k=8)
    flows = np.arange(400)
    src, dst = np.full(400, fabric.gpu_vertex[0]), np.full(400, fabric.gpu_vertex[56])
    routes = Router(fabric, ECMP).routes(src, dst, flow=flows)
    cores = {fabric.vertex_name(v) for v in fabric.link_dst[routes.link].tolist()}
    assert len([name for name in cores if name.startswith("core")]) == 16


def test_subflows_of_a_pair_choose_independently():
    """Two NICs, 8 spines: both subflows meet on one spine in 1/8 of 2,000 flows (5 sigma)."""
    fabric = build("leaf_spine", (dgx(), 2), radix=16)
    flows = np.arange(2000)
    src, dst = np.full(2000, fabric.gpu_vertex[0]), np.full(2000, fabric.gpu_vertex[8])
    routes = Router(fabric, ECMP).routes(src, dst, flow=flows)
    uplinks = np.isin(routes.link, fabric.find_links("leaf0->spine*"))
    owner = np.repeat(flows, np.diff(routes.indptr))
    met = np.bincount(owner[uplinks], minlength=2000) == 1
    assert abs(met.mean() - 1 / 8) < 5 * (1 / 8 * 7 / 8 / 2000) ** 0.5
    check_routes(fabric, routes, src, dst)


def test_an_odd_number_of_local_links_moves_no_cable():
    """One memory link per node and three nodes: cables begin at an odd index."""
    fabric = build("leaf_spine", (tray(cpu_memory_Bps=GB), 3), radix=8)
    assert fabric.first_cable % 2 == 1
    src, dst = all_pairs(fabric)
    check_routes(fabric, Router(fabric).routes(src, dst), src, dst)


def test_adaptive_uses_all_spines_evenly():
    fabric = build("leaf_spine", (hgx(), 2), radix=16)
    routes = one(fabric, 0, 8, policy="adaptive")
    shares = dict(zip(names(fabric, routes), routes.share.tolist(), strict=True))
    assert [shares[f"leaf0->spine{i}"] for i in range(8)] == pytest.approx([1 / 8] * 8)


def test_adaptive_in_three_levels():
    """k = 4 across pods: 2 spines carry a half each, 4 cores a quarter each."""
    fabric = build("fat_tree", (pcie_box(), 16), k=4)
    routes = one(fabric, 0, 60, policy="adaptive")
    shares = dict(zip(names(fabric, routes), routes.share.tolist(), strict=True))
    assert sorted(s for n, s in shares.items() if n.startswith("leaf0->spine")) == [0.5, 0.5]
    assert sorted(s for n, s in shares.items() if "->core" in n) == [0.25] * 4


def test_adaptive_follows_capacity():
    """Two ways of 2:1 capacity carry 2:1."""
    from topologies.custom import build_custom

    fabric = build_custom(
        {
            "templates": [
                {
                    "name": "host",
                    "vertices": [{"name": "gpu0", "kind": "gpu"}, {"name": "nic0", "kind": "nic"}],
                    "links": [{"a": "gpu0", "b": "nic0", "kind": "pcie", "bandwidth": "32 GB/s"}],
                }
            ],
            "repeat": [{"template": "host", "count": 2}],
            "vertices": [
                {"name": "leaf", "kind": "leaf", "count": 2},
                {"name": "spine", "kind": "spine", "count": 2},
            ],
            "links": [
                {
                    "a": "node*.nic0",
                    "b": "leaf*",
                    "kind": "roce",
                    "bandwidth": "100 Gbit/s",
                    "pairs": True,
                },
                {"a": "leaf*", "b": "spine0", "kind": "roce", "bandwidth": "200 Gbit/s"},
                {"a": "leaf*", "b": "spine1", "kind": "roce", "bandwidth": "100 Gbit/s"},
            ],
        }
    )
    routes = one(fabric, 0, 1, policy="adaptive")
    shares = dict(zip(names(fabric, routes), routes.share.tolist(), strict=True))
    assert shares["leaf0->spine0"] == pytest.approx(2 / 3)
    assert shares["spine1->leaf1"] == pytest.approx(1 / 3)


def test_static_routes_of_a_shift_do_not_collide():
    """D-mod-k: a shift permutation on a full non-blocking tree loads every link at most once."""
    fabric = build("fat_tree", (pcie_box(), 16), k=4)
    own = fabric.gpu_vertex[::4]  # the GPU next to each node's NIC
    router = Router(fabric, RoutingOptions(policy="static"))
    for shift in range(1, 16):
        load = router.load(own, np.roll(own, -shift))
        assert load.max() == pytest.approx(1.0)


def test_static_routes_spread_again_behind_a_gateway():
    """Eight flows between two sites: eight spines up, and eight spines down."""
    fabric = build("two_sites", (hgx(), 8), radix=32)
    src, dst = fabric.gpu_vertex[:8], fabric.gpu_vertex[-8:]
    load = Router(fabric, RoutingOptions(policy="static")).load(src, dst)
    for pattern in ("site0.leaf*->spine*", "spine*->site1.leaf*"):
        assert sorted(load[fabric.find_links(pattern)].tolist())[-9:] == [0.0] + [1.0] * 8


def test_static_depends_on_the_destination_alone():
    fabric = build("fat_tree", (hgx(), 6), radix=8)
    routers = [Router(fabric, RoutingOptions(policy="static", seed=seed)) for seed in (0, 9)]
    src, dst = all_pairs(fabric)
    assert np.array_equal(routers[0].routes(src, dst).link, routers[1].routes(src, dst).link)


def test_policy_by_default_is_that_of_the_cables():
    for kind, policy in (
        ("infiniband", "static"),
        ("roce", "ecmp"),
        ("ethernet", "ecmp"),
        ("efa", "static"),
        ("slingshot", "static"),
    ):
        fabric = build("leaf_spine", (hgx(), 2), radix=16, link_kind=kind)
        src, dst = all_pairs(fabric)
        router = Router(fabric)
        assert router.policy == policy
        named = Router(fabric, RoutingOptions(policy=policy))
        assert np.array_equal(router.routes(src, dst).link, named.routes(src, dst).link)


def test_unknown_policy_shows_the_nearest():
    with pytest.raises(RoutingError, match="Did you mean 'adaptive'"):
        Router(FABRICS["single_switch"](), RoutingOptions(policy="adaptve"))


@pytest.mark.parametrize("policy", ["ecmp", "adaptive"])
def test_load_is_the_sum_of_routes(policy):
    fabric = build("fat_tree", (hgx(), 6), radix=8)
    src, dst = all_pairs(fabric)
    weight = np.random.default_rng(0).random(len(src))
    router = Router(fabric, RoutingOptions(policy=policy))
    routes = router.routes(src, dst)
    owner = np.repeat(np.arange(len(src)), np.diff(routes.indptr))
    wanted = np.bincount(
        routes.link, weights=weight[owner] * routes.share, minlength=fabric.n_links
    )
    np.testing.assert_allclose(router.load(src, dst, weight), wanted)


def test_all_to_all_over_adaptive_routes_loads_trunks_evenly():
    """Every leaf sends 8 × 8 × 7 pairs out over 8 spines: 56 units on each uplink."""
    fabric = build("leaf_spine", (hgx(), 8), radix=16)
    src, dst = all_pairs(fabric)
    load = Router(fabric, RoutingOptions(policy="adaptive")).load(src, dst)
    uplinks = fabric.find_links("leaf*->spine*")
    np.testing.assert_allclose(load[uplinks], 8 * 8 * 7 / 8)


def test_empty_request():
    routes = Router(FABRICS["single_switch"]()).routes([], [])
    assert routes.n_pairs == 0
    assert len(routes.link) == 0
