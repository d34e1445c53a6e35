"""Dead links: reroute where a way is left, else say what is cut."""

from __future__ import annotations

import numpy as np
import pytest

import topologies
from simulator.base.errors import RoutingError
from simulator.fabric.routing import Router, RoutingOptions
from tests.fabric.checks import all_pairs, check_routes, names, vertices
from tests.fabric.nodes import cube_mesh, dgx, hgx, pcie_box, tray


def build(kind, *nodes, **options):
    return topologies.build(nodes, kind, topologies.option_type(kind)(**options))


def routed(router, a, b):
    fabric = router.fabric
    return router.routes(fabric.gpu_vertex[[a]], fabric.gpu_vertex[[b]])


@pytest.mark.parametrize("policy", ["ecmp", "adaptive", "static"])
@pytest.mark.parametrize("dead", ["leaf0<->spine*", "spine3<->leaf*", "node1.nic2<->*"])
def test_nothing_uses_a_dead_link(policy, dead):
    fabric = build("leaf_spine", (hgx(), 4), radix=16)
    lost = fabric.find_links(dead)
    lost = lost[: len(lost) - 2] if dead.startswith("leaf0") else lost
    router = Router(fabric, RoutingOptions(policy=policy)).without(lost)
    src, dst = all_pairs(fabric)
    routes = router.routes(src, dst)
    check_routes(fabric, routes, src, dst)
    assert not set(lost) & set(routes.link.tolist())


def test_a_lost_spine_leaves_the_others():
    fabric = build("leaf_spine", (hgx(), 2), radix=16)
    router = Router(fabric, RoutingOptions(policy="ecmp")).without(
        fabric.find_links("leaf0<->spine5")
    )
    flows = np.arange(500)
    src, dst = np.full(500, fabric.gpu_vertex[0]), np.full(500, fabric.gpu_vertex[8])
    used = {
        fabric.vertex_name(v) for v in fabric.link_dst[router.routes(src, dst, flow=flows).link]
    }
    assert {name for name in used if name.startswith("spine")} == {
        f"spine{i}" for i in range(8) if i != 5
    }


def test_failures_add_up():
    fabric = build("leaf_spine", (hgx(), 2), radix=16)
    first = fabric.find_links("leaf0->spine0")
    second = fabric.find_links("leaf0->spine1")
    router = Router(fabric).without(first).without(second)
    assert router.dead_links == frozenset(first + second)
    assert Router(fabric).dead_links == frozenset()


def test_a_lost_nic_hands_over_to_its_neighbours():
    """GPU 3's NIC is dead on node 0: the three others of its socket carry a third each, on their
    own rails, whether it sends or receives."""
    fabric = build("rail_only", (hgx(), 2))
    router = Router(fabric).without(fabric.find_links("node0.nic3<->rail3"))
    for a, b in ((3, 8 + 3), (8 + 3, 3)):
        routes = routed(router, a, b)
        check_routes(fabric, routes, fabric.gpu_vertex[[a]], fabric.gpu_vertex[[b]])
        node = a // 8
        shares = dict(zip(names(fabric, routes), routes.share.tolist(), strict=True))
        cables = {name: share for name, share in shares.items() if "->rail" in name}
        assert cables == pytest.approx({f"node{node}.nic{i}->rail{i}": 1 / 3 for i in range(3)})
    # Others are as before.
    assert "rail5" in vertices(fabric, routed(router, 5, 8 + 5))
    assert names(fabric, routed(router, 5, 8 + 5)) == names(fabric, routed(Router(fabric), 5, 13))


def test_one_direction_can_fail_alone():
    fabric = build("single_switch", (hgx(), 2))
    router = Router(fabric).without(fabric.find_links("node0.nic3->leaf0"))
    assert not any("node0.nic3" in name for name in names(fabric, routed(router, 3, 8 + 3)))
    assert "node0.nic3" in vertices(fabric, routed(router, 8 + 3, 3))


def test_lost_nvlink_falls_back_to_pcie():
    fabric = build("none", (dgx(), 1))
    router = Router(fabric).without(fabric.find_links("node0.gpu0<->node0.nvswitch0"))
    assert vertices(fabric, routed(router, 0, 1)) == ["node0.gpu0", "node0.pcie0", "node0.gpu1"]
    assert "node0.cpu0" in vertices(fabric, routed(router, 0, 7))
    assert vertices(fabric, routed(router, 1, 2))[1] == "node0.nvswitch0"


def test_lost_mesh_link_takes_two_others():
    fabric = build("none", (cube_mesh(), 1))
    router = Router(fabric).without(fabric.find_links("node0.gpu0<->node0.gpu1"))
    way = vertices(fabric, routed(router, 0, 1))
    assert len(way) == 3
    assert way[1] in {"node0.gpu2", "node0.gpu3"}


def test_domain_without_nvlink_turns_to_the_network():
    fabric = build("nvl_domain", (tray(), 2), nvl_domain=2)
    router = Router(fabric).without(fabric.find_links("node0.gpu0->nvl0.nvswitch*"))
    assert any("rail" in name for name in names(fabric, routed(router, 0, 4)))
    assert not any("rail" in name for name in names(fabric, routed(router, 4, 0)))


def test_a_cut_names_both_sides():
    fabric = build("single_switch", (pcie_box(), 3))
    router = Router(fabric).without(fabric.find_links("node1.nic0<->leaf0"))
    with pytest.raises(RoutingError) as caught:
        routed(router, 0, 4)
    text = str(caught.value)
    assert "no path is left from node0.gpu0 to node1.gpu0" in text
    assert "node1.nic0->leaf0" in text
    assert "cut node0, node2, leaf0 from node1" in text
    # Those who are not cut still talk.
    assert routed(router, 0, 8).n_pairs == 1


def test_one_way_cut_is_a_cut():
    fabric = build("single_switch", (pcie_box(), 2))
    router = Router(fabric).without(fabric.find_links("leaf0->node1.nic0"))
    with pytest.raises(RoutingError, match=r"from node0\.gpu0 to node1\.gpu0"):
        routed(router, 0, 4)
    assert routed(router, 4, 0).n_pairs == 1


def test_severed_sites():
    fabric = build("two_sites", (hgx(), 4))
    router = Router(fabric).without(fabric.find_links("site0.gateway<->site1.gateway"))
    with pytest.raises(RoutingError, match=r"cut node0, node1, site0\.leaf0"):
        routed(router, 0, 31)
    assert routed(router, 0, 15).n_pairs == 1


def test_a_gpu_without_any_way_out():
    fabric = build("none", (pcie_box(), 1))
    router = Router(fabric).without(fabric.find_links("node0.gpu2<->*"))
    with pytest.raises(RoutingError, match=r"from node0\.gpu2 to node0\.gpu0"):
        routed(router, 2, 0)
    assert routed(router, 0, 3).n_pairs == 1
