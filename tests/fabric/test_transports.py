"""Routes when transports are switched off or confined: SHM, P2P level, GPUDirect, NICs, flows."""

from __future__ import annotations

import re

import numpy as np
import pytest

from simulator.base.errors import RoutingError
from simulator.fabric.routing import Router, RoutingOptions
from topologies import build, hardware, option_type

NIC = re.compile(r"nic\d+")


def cluster(name, nodes=2, kind="single_switch", **options):
    return build([(hardware.load(name), nodes)], kind, option_type(kind)(**options))


def path(fabric, a, b, **options):
    router = Router(fabric, RoutingOptions(**options))
    links, shares = router.routes(fabric.gpu_vertex[[a]], fabric.gpu_vertex[[b]]).pair(0)
    return {fabric.link_name(link): share for link, share in zip(links, shares, strict=True)}


def test_without_shared_memory_gpus_of_a_node_talk_over_their_nics():
    used = path(cluster("dgx-h100"), 0, 1, p2p=False, shm=False)
    assert {"node0.nic0->leaf0", "leaf0->node0.nic1"} <= set(used)
    assert not any("nvswitch" in link or "memory" in link for link in used)


def test_what_nvlink_joins_does_not_care_about_shared_memory():
    assert path(cluster("dgx-h100"), 0, 1, shm=False) == path(cluster("dgx-h100"), 0, 1)


def test_memory_that_both_ends_cross_stands_once():
    # GPU 0 → host memory → NIC, and back: written and read twice.
    used = path(cluster("pcie-t4-4-sw", 1), 0, 1, p2p=False, shm=False)
    assert used["node0.cpu0.memory"] == 4.0
    fabric = cluster("pcie-t4-4-sw", 2)
    for policy in ("ecmp", "static", "adaptive"):
        router = Router(fabric, RoutingOptions(p2p=False, shm=False, policy=policy))
        a, b = (x.ravel() for x in np.meshgrid(fabric.gpu_vertex, fabric.gpu_vertex))
        routes = router.routes(a, b)
        for pair in range(routes.n_pairs):
            links, _ = routes.pair(pair)
            assert len(links) == len(set(links))


def test_without_a_network_there_is_no_way_round_shared_memory():
    with pytest.raises(RoutingError):
        path(cluster("pcie-t4-4", 1, "none"), 0, 1, p2p=False, shm=False)


def test_p2p_levels_admit_longer_paths_one_by_one():
    # Of this box, cards 0 and 1 share a switch; 0 and 7 are on two sockets.
    fabric = cluster("pcie-a100-8-sw", 1, "none")

    def bounces(a, b, level):
        return any("memory" in link for link in path(fabric, a, b, p2p_level=level))

    assert [bounces(0, 1, level) for level in ("nvl", "pix", "pxb", "phb", "sys")] == [
        True,
        False,
        False,
        False,
        False,
    ]
    assert [bounces(0, 7, level) for level in ("pix", "pxb", "phb", "sys")] == [
        True,
        True,
        True,
        False,
    ]


def test_a_level_of_nvlink_only_keeps_nvlink():
    assert path(cluster("dgx-h100"), 0, 1, p2p_level="nvl") == path(cluster("dgx-h100"), 0, 1)


def test_without_gdr_read_only_the_sending_side_goes_through_host_memory():
    used = path(cluster("dgx-h100"), 0, 8, gdr_read=False)
    assert "node0.cpu0.memory" in used
    assert not any(link.startswith("node1") and "memory" in link for link in used)


def test_only_the_chosen_nics_are_used():
    fabric = cluster("dgx-h100")
    for a, b in ((0, 8), (3, 15), (7, 9)):
        used = {nic for link in path(fabric, a, b, nics=(2, 5)) for nic in NIC.findall(link)}
        assert used
        assert used <= {"nic2", "nic5"}


def test_several_flows_of_one_connection_use_several_uplinks():
    fabric = cluster("dgx-h100", 4, "leaf_spine", radix=16)
    one = path(fabric, 0, 24, policy="ecmp", pxn=False)
    eight = path(fabric, 0, 24, policy="ecmp", pxn=False, flows=8)
    spines = {link for link in eight if "->spine" in link}
    assert len({link for link in one if "->spine" in link}) == 1
    assert len(spines) > 1
    assert sum(eight[link] for link in spines) == pytest.approx(1.0)
    # The NIC's own cable is one, whatever the number of flows.
    assert eight["node0.nic0->leaf0"] == pytest.approx(1.0)
