"""Own topologies from data."""

from __future__ import annotations

import copy

import numpy as np
import pytest

from simulator.base.errors import RoutingError, TopologyError
from simulator.fabric.model import LINK_KINDS
from simulator.fabric.routing import Router
from tests.fabric.checks import all_pairs, check_routes
from topologies.custom import build_custom

BOX = {
    "templates": [
        {
            "name": "box",
            "vertices": [
                {"name": "gpu", "kind": "gpu", "count": 4},
                {"name": "sw", "kind": "pcie_switch"},
                {"name": "cpu0", "kind": "cpu", "numa": 0},
                {"name": "nic", "kind": "nic", "count": 2},
            ],
            "links": [
                {"a": "gpu*", "b": "sw", "kind": "pcie", "bandwidth": "32 GB/s", "latency": "1 us"},
                {"a": "nic*", "b": "sw", "kind": "pcie", "bandwidth": "32 GB/s"},
                {"a": "sw", "b": "cpu0", "kind": "pcie", "bandwidth": "32 GB/s"},
                {"a": "gpu0", "b": "gpu1", "kind": "nvlink", "bandwidth": "100 GB/s"},
            ],
        }
    ],
    "repeat": [{"template": "box", "count": 3}],
    "vertices": [{"name": "leaf", "kind": "leaf", "count": 2}, {"name": "top", "kind": "spine"}],
    "links": [
        {"a": "node*.nic0", "b": "leaf0", "kind": "roce", "bandwidth": "100 Gbit/s"},
        {"a": "node*.nic1", "b": "leaf1", "kind": "roce", "bandwidth": "100 Gbit/s"},
        {"a": "leaf*", "b": "top", "kind": "roce", "bandwidth": "200 Gbit/s", "latency": "5 us"},
    ],
}


def changed(**sections):
    data = copy.deepcopy(BOX)
    data.update(sections)
    return data


def test_counts_rates_and_names():
    fabric = build_custom(BOX)
    assert fabric.counts() == {
        "gpu": 12, "pcie_switch": 3, "cpu": 3, "nic": 6, "leaf": 2, "spine": 1
    }  # fmt: skip
    (link,) = fabric.find_links("leaf1->top")
    assert fabric.capacity_Bps[link] == 25e9
    assert LINK_KINDS[fabric.link_kind[link]] == "roce"
    assert fabric.latency_s[link] == pytest.approx(5e-6 + 0.8e-6)  # the cable and the switch
    (link,) = fabric.find_links("node2.gpu3->node2.sw")
    assert fabric.latency_s[link] == pytest.approx(1e-6)
    assert fabric.capacity_Bps[fabric.find_links("node1.nic1->leaf1")].tolist() == [12.5e9]


def test_routes_exist():
    fabric = build_custom(BOX)
    src, dst = all_pairs(fabric)
    check_routes(fabric, Router(fabric).routes(src, dst), src, dst)


def test_node_presets_can_be_repeated():
    data = {
        "repeat": [{"template": "dgx-h100", "count": 2, "name": "dgx"}],
        "vertices": [{"name": "leaf0", "kind": "leaf"}],
        "links": [
            {"a": "dgx*.nic*", "b": "leaf0", "kind": "infiniband", "bandwidth": "400 Gbit/s"}
        ],
    }
    fabric = build_custom(data)
    assert fabric.n_gpus == 16
    assert fabric.vertex_name(0).startswith("dgx0.")


def test_nodes_cabled_back_to_back():
    """No switch: NIC i of one node on NIC i of the other; a NIC forwards nothing."""
    data = changed(
        repeat=[{"template": "box", "count": 2}],
        vertices=[],
        links=[
            {"a": "node0.nic*", "b": "node1.nic*", "kind": "roce", "bandwidth": "100 Gbit/s",
             "pairs": True}
        ],
    )  # fmt: skip
    fabric = build_custom(data)
    src, dst = all_pairs(fabric)
    routes = Router(fabric).routes(src, dst)
    check_routes(fabric, routes, src, dst)
    cables = routes.link[routes.link >= fabric.first_cable]
    assert len(np.unique(cables)) == 4


def test_a_nic_on_two_switches():
    """Dual-homed NICs reach each other over both leaves, in two hops."""
    data = changed(
        links=[{"a": "node*.nic*", "b": "leaf*", "kind": "roce", "bandwidth": "100 Gbit/s"}],
        vertices=[{"name": "leaf", "kind": "leaf", "count": 2}],
    )
    fabric = build_custom(data)
    src, dst = all_pairs(fabric)
    router = Router(fabric)
    check_routes(fabric, router.routes(src, dst), src, dst)
    many = router.routes(
        np.full(200, fabric.gpu_vertex[0]), np.full(200, fabric.gpu_vertex[4]), flow=np.arange(200)
    )
    leaves = {fabric.vertex_name(v) for v in fabric.link_dst[many.link]} & {"leaf0", "leaf1"}
    assert leaves == {"leaf0", "leaf1"}


def test_a_nic_does_not_forward():
    """Two leaves with only a dual-homed NIC between them: their hosts cannot talk over it."""
    data = changed(
        vertices=[{"name": "leaf", "kind": "leaf", "count": 2}],
        links=[
            {"a": "node0.nic0", "b": "leaf0", "kind": "roce", "bandwidth": "100 Gbit/s"},
            {"a": "node1.nic0", "b": "leaf*", "kind": "roce", "bandwidth": "100 Gbit/s"},
            {"a": "node2.nic0", "b": "leaf1", "kind": "roce", "bandwidth": "100 Gbit/s"},
        ],
    )
    fabric = build_custom(data)
    router = Router(fabric)
    for a, b in ((0, 4), (4, 8), (8, 4)):
        assert router.routes(fabric.gpu_vertex[[a]], fabric.gpu_vertex[[b]]).n_pairs == 1
    with pytest.raises(RoutingError, match=r"from node0\.gpu0 to node2\.gpu0"):
        router.routes(fabric.gpu_vertex[[0]], fabric.gpu_vertex[[8]])


def _vertex(**item):
    return changed(vertices=[*BOX["vertices"], item])


def _cable(**item):
    return changed(links=[*BOX["links"], {"kind": "roce", "bandwidth": "1 GB/s", **item}])


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (changed(repeat=[]), "repeat: there is no node"),
        (changed(repeat=[{"template": "bux"}]), r"repeat\[0\]\.template[^?]*Did you mean 'box'"),
        (changed(repeat=[{"template": "box", "count": 0}]), r"repeat\[0\]\.count: 0 is not"),
        (changed(repeat="box"), "repeat: 'box' is not a list"),
        (changed(links=["x"]), r"links\[0\]: 'x' is not a section"),
        (changed(templates=BOX["templates"] * 2), r"templates\[1\]\.name: a second 'box'"),
        (_vertex(name="leaf0", kind="leaf"), "two vertices are called 'leaf0'"),
        (_vertex(name="x", kind="gpu"), r"vertices\[2\]\.kind: 'gpu' is unknown"),
        (_vertex(kind="leaf"), r"vertices\[2\]\.name: is missing"),
        (_cable(a="node0.nic0", b="leaf7"), r"links\[3\]\.b[^?]*Did you mean 'leaf"),
        (_cable(a="node0.gpu0", b="leaf0"), r"links\[3\]\.a: no vertex is called 'node0.gpu0'"),
        (_cable(a="node0.nic0", b="leaf0"), "joined twice"),
        (_cable(a="leaf*", b="top", pairs=True), r"2 vertices cannot be paired with 1"),
        (_cable(a="leaf0", b="leaf1", bandwidth="400"), r"links\[3\]\.bandwidth: '400' has no"),
        (_cable(a="leaf0", b="leaf1", latency="1 GB/s"), r"links\[3\]\.latency"),
        (_cable(a="leaf0", b="leaf1", kind="nvlink"), r"links\[3\]\.kind: 'nvlink' is unknown"),
        (changed(links=BOX["links"][:1]), "pieces"),
    ],
)  # fmt: skip
def test_bad_data_is_refused_with_its_key(data, said):
    with pytest.raises(TopologyError, match=said):
        build_custom(data)


def test_all_problems_come_together():
    data = _cable(a="node0.nic9", b="leaf9")
    with pytest.raises(TopologyError) as caught:
        build_custom(data)
    assert [problem.key for problem in caught.value.problems] == ["links[3].a", "links[3].b"]


def test_an_unknown_gpu_model_is_named():
    data = copy.deepcopy(BOX)
    data["templates"][0]["gpu"] = "h1000"
    with pytest.raises(TopologyError, match=r"templates\[0\]\.gpu"):
        build_custom(data)
