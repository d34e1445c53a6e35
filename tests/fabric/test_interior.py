"""Paths inside one node."""

from __future__ import annotations

import numpy as np
import pytest

import topologies
from simulator.fabric.model import LINK_KINDS
from simulator.fabric.routing import Router, RoutingOptions
from tests.fabric.checks import all_pairs, check_routes, names, vertices
from tests.fabric.nodes import CUBE_MESH, GB, US, cube_mesh, dgx, node, pcie_box


def route(template, a, b, **options):
    fabric = topologies.build([(template, 1)], "none")
    router = Router(fabric, RoutingOptions(**options))
    routes = router.routes(fabric.gpu_vertex[[a]], fabric.gpu_vertex[[b]])
    return fabric, routes


def path(template, a, b, **options):
    return [name.removeprefix("node0.") for name in vertices(*route(template, a, b, **options))]


@pytest.mark.parametrize("template", [dgx(), cube_mesh(), pcie_box(), pcie_box(p2p=False)])
@pytest.mark.parametrize("options", [{}, {"p2p": False}, {"p2p": True}, {"p2p_level": "sys"}])
def test_all_pairs_are_joined(template, options):
    fabric = topologies.build([(template, 1)], "none")
    src, dst = all_pairs(fabric)
    check_routes(fabric, Router(fabric, RoutingOptions(**options)).routes(src, dst), src, dst)


def test_a_gpu_with_itself_has_no_link():
    _, routes = route(dgx(), 3, 3)
    assert routes.indptr.tolist() == [0, 0]
    assert routes.latency_s.tolist() == [0.0]


def test_nvswitch_comes_before_pcie():
    assert path(dgx(), 0, 1) == ["gpu0", "nvswitch0", "gpu1"]


def test_latency_is_the_sum_of_the_links():
    _, routes = route(dgx(), 0, 1)
    assert routes.latency_s[0] == pytest.approx(2 * 0.1 * US)


def test_several_nvswitches_share_by_their_width():
    """Links of 2 and 1 units: two thirds and one third."""
    wide = node(
        "wide",
        [("gpu0", "gpu"), ("gpu1", "gpu"), ("nvswitch0", "nvswitch"), ("nvswitch1", "nvswitch")],
        [
            ("gpu0", "nvswitch0", "nvlink", 100 * GB),
            ("gpu1", "nvswitch0", "nvlink", 100 * GB),
            ("gpu0", "nvswitch1", "nvlink", 50 * GB),
            ("gpu1", "nvswitch1", "nvlink", 50 * GB),
        ],
    )
    fabric, routes = route(wide, 0, 1)
    shares = dict(zip(names(fabric, routes), routes.share.tolist(), strict=True))
    assert shares["node0.gpu0->node0.nvswitch0"] == pytest.approx(2 / 3)
    assert shares["node0.nvswitch1->node0.gpu1"] == pytest.approx(1 / 3)
    check_routes(fabric, routes, fabric.gpu_vertex[[0]], fabric.gpu_vertex[[1]])


def test_cube_mesh_uses_direct_links_where_there_are_any():
    for a, b in CUBE_MESH:
        assert path(cube_mesh(), a, b) == [f"gpu{a}", f"gpu{b}"]


def test_cube_mesh_takes_two_nvlinks_elsewhere():
    """Every GPU has 4 neighbours, so 3 others are two NVLinks away; the widest way is taken."""
    width = {frozenset(pair): count for pair, count in CUBE_MESH.items()}
    for a in range(8):
        for b in set(range(8)) - {a}:
            if frozenset((a, b)) in width:
                continue
            way = path(cube_mesh(), a, b)
            assert len(way) == 3
            middle = int(way[1][3:])
            bottleneck = min(width[frozenset((a, middle))], width[frozenset((middle, b))])
            best = max(
                min(width.get(frozenset((a, c)), 0), width.get(frozenset((c, b)), 0))
                for c in range(8)
            )
            assert bottleneck == best


def test_without_nvb_the_far_pairs_go_over_pcie_and_host_memory():
    """GPU 0 and 5 hang on different sockets: level pxb does not reach, host memory does."""
    assert path(cube_mesh(), 0, 5, nvb=False) == [
        "gpu0", "pcie0", "cpu0", "cpu1", "pcie2", "gpu5"
    ]  # fmt: skip


def test_p2p_over_pcie_stays_below_the_switch():
    box = node(
        "box",
        [("gpu0", "gpu"), ("gpu1", "gpu"), ("pcie0", "pcie_switch"), ("cpu0", "cpu")],
        [
            ("gpu0", "pcie0", "pcie", 32 * GB),
            ("gpu1", "pcie0", "pcie", 32 * GB),
            ("pcie0", "cpu0", "pcie", 32 * GB),
        ],
        cpu_memory_Bps=100 * GB,
    )
    assert path(box, 0, 1) == ["gpu0", "pcie0", "gpu1"]
    # Off, the data climb to the CPU, are written and read, and come down the same switch.
    fabric, routes = route(box, 0, 1, p2p=False)
    assert vertices(fabric, routes) == [
        f"node0.{name}" for name in ("gpu0", "pcie0", "cpu0", "pcie0", "gpu1")
    ]
    shares = dict(zip(names(fabric, routes), routes.share.tolist(), strict=True))
    assert shares.pop("node0.cpu0.memory") == 2.0
    assert set(shares.values()) == {1.0}


def test_host_bounce_is_in_the_memory_of_the_receiver():
    fabric, routes = route(pcie_box(cpu_memory_Bps=100 * GB), 0, 3)
    assert "node0.cpu1.memory" in names(fabric, routes)
    assert "node0.cpu0.memory" not in names(fabric, routes)
    kinds = [LINK_KINDS[fabric.link_kind[link]] for link in routes.pair(0)[0]]
    assert kinds == ["pcie", "pcie", "upi", "memory", "pcie", "pcie"]


@pytest.mark.parametrize(
    ("level", "near_bounces", "far_bounces"),
    [("pxb", True, True), ("phb", False, True), ("sys", False, False)],
)
def test_p2p_level_says_how_many_cpus_may_be_crossed(level, near_bounces, far_bounces):
    """GPUs 0 and 1 share a CPU, GPUs 0 and 2 are on different sockets."""
    template = pcie_box(cpu_memory_Bps=100 * GB)
    for peer, bounces in ((1, near_bounces), (2, far_bounces)):
        fabric, routes = route(template, 0, peer, p2p_level=level)
        assert any("memory" in name for name in names(fabric, routes)) == bounces


def test_two_gpus_on_amd_may_cross_sockets():
    """NCCL's exception: level sys on AMD with at most two GPUs."""
    pair = node(
        "pair",
        [("gpu0", "gpu"), ("gpu1", "gpu"), ("cpu0", "cpu"), ("cpu1", "cpu")],
        [
            ("gpu0", "cpu0", "pcie", 32 * GB),
            ("gpu1", "cpu1", "pcie", 32 * GB),
            ("cpu0", "cpu1", "xgmi", 32 * GB),
        ],
        cpu_memory_Bps=100 * GB,
    )
    from dataclasses import replace

    for arch, bounces in (("x86_intel", True), ("x86_amd", False)):
        fabric, routes = route(replace(pair, cpu_arch=arch), 0, 1)
        assert any("memory" in name for name in names(fabric, routes)) == bounces


def test_presets_without_p2p_bounce_but_keep_their_nvlink():
    fabric, routes = route(pcie_box(p2p=False), 0, 1)
    assert "node0.cpu0" in vertices(fabric, routes)
    assert path(dgx(p2p=False), 0, 1) == ["gpu0", "nvswitch0", "gpu1"]


def test_p2p_off_leaves_nvlink_unused():
    for template in (dgx(), cube_mesh()):
        assert "cpu0" in path(template, 0, 1, p2p=False)


def test_xgmi_forwards_over_any_number_of_dies():
    chain = node(
        "chain",
        [(f"gpu{i}", "gpu") for i in range(4)] + [("nic0", "nic")],
        [(f"gpu{i}", f"gpu{i + 1}", "xgmi", 50 * GB) for i in range(3)]
        + [("gpu3", "nic0", "pcie", 32 * GB)],
    )
    assert path(chain, 0, 3) == ["gpu0", "gpu1", "gpu2", "gpu3"]
    # The only NIC hangs on GPU 3: others reach it over xGMI, in both directions.
    fabric = topologies.build([(chain, 2)], "single_switch")
    routes = Router(fabric).routes(fabric.gpu_vertex[[0]], fabric.gpu_vertex[[4 + 1]])
    assert vertices(fabric, routes) == [
        *(f"node0.{name}" for name in ("gpu0", "gpu1", "gpu2", "gpu3", "nic0")),
        "leaf0",
        *(f"node1.{name}" for name in ("nic0", "gpu3", "gpu2", "gpu1")),
    ]


def test_the_host_reaches_a_nic_on_a_gpu_through_it():
    """MI250X: the NIC hangs on a GPU; without GPUDirect the way is GPU, CPU, that GPU, NIC."""
    pair = node(
        "pair",
        [("gpu0", "gpu"), ("gpu1", "gpu"), ("cpu0", "cpu"), ("nic0", "nic")],
        [
            ("gpu0", "gpu1", "xgmi", 200 * GB),
            ("gpu0", "cpu0", "xgmi", 36 * GB),
            ("gpu1", "cpu0", "xgmi", 36 * GB),
            ("gpu1", "nic0", "pcie", 25 * GB),
        ],
    )
    fabric = topologies.build([(pair, 2)], "single_switch")
    for options, ways in (
        ({}, (["gpu0", "gpu1", "nic0"], ["gpu1", "nic0"])),
        (
            {"gpudirect": False},
            (["gpu0", "cpu0", "gpu1", "nic0"], ["gpu1", "cpu0", "gpu1", "nic0"]),
        ),
    ):
        router = Router(fabric, RoutingOptions(**options))
        for gpu, way in enumerate(ways):
            routes = router.routes(fabric.gpu_vertex[[gpu]], fabric.gpu_vertex[[2 + gpu]])
            there = [f"node0.{name}" for name in way]
            back = [f"node1.{name}" for name in reversed(way)]
            assert vertices(fabric, routes) == [*there, "leaf0", *back]


def test_nvlink_is_relayed_once_at_most():
    """GPUs 0 and 3 of a chain are three NVLinks apart: the data go through host memory."""
    chain = node(
        "chain",
        [*((f"gpu{i}", "gpu") for i in range(4)), ("cpu0", "cpu")],
        [(f"gpu{i}", f"gpu{i + 1}", "nvlink", 50 * GB) for i in range(3)]
        + [(f"gpu{i}", "cpu0", "pcie", 16 * GB) for i in range(4)],
    )
    assert path(chain, 0, 2) == ["gpu0", "gpu1", "gpu2"]
    assert path(chain, 0, 3) == ["gpu0", "cpu0", "gpu3"]


def test_nvlink_to_the_cpu_is_a_way_to_the_nic():
    """Power 9: GPUs hang on the CPU by NVLink, NICs by PCIe."""
    power = node(
        "power",
        [("gpu0", "gpu"), ("cpu0", "cpu"), ("nic0", "nic")],
        [("gpu0", "cpu0", "nvlink", 75 * GB), ("cpu0", "nic0", "pcie", 16 * GB)],
    )
    fabric = topologies.build([(power, 2)], "single_switch")
    routes = Router(fabric).routes(fabric.gpu_vertex[[0]], fabric.gpu_vertex[[1]])
    assert "node0.gpu0->node0.cpu0" in names(fabric, routes)


def test_gpu_to_nvswitch_and_back():
    fabric = topologies.build([(dgx(), 1)], "none")
    switch = np.array([fabric.switch_vertex("nvswitch", range(8))])
    router = Router(fabric)
    assert names(fabric, router.routes(fabric.gpu_vertex[[2]], switch)) == [
        "node0.gpu2->node0.nvswitch0"
    ]
    assert names(fabric, router.routes(switch, fabric.gpu_vertex[[2]])) == [
        "node0.nvswitch0->node0.gpu2"
    ]
