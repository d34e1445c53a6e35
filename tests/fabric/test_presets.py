"""Every node preset can be routed, inside and between two of it."""

from __future__ import annotations

import pytest

import topologies
from simulator.fabric.routing import Router, RoutingOptions
from tests.fabric.checks import all_pairs, check_routes
from topologies import hardware


def build(name):
    template = hardware.load(name)
    has_nic = any(vertex.kind == "nic" for vertex in template.vertices)
    return topologies.build(
        [(template, 2 if has_nic else 1)], "single_switch" if has_nic else "none"
    )


def test_there_are_presets():
    assert len(hardware.names()) > 40


@pytest.mark.parametrize("name", hardware.names())
def test_all_pairs_of_two_nodes(name):
    fabric = build(name)
    src, dst = all_pairs(fabric)
    for options in (RoutingOptions(), RoutingOptions(pxn=False, gpudirect=False)):
        check_routes(fabric, Router(fabric, options).routes(src, dst), src, dst)


@pytest.mark.parametrize("name", ["dgx-h100", "dgx-1-v100", "pcie-a100-4", "mi300x"])
def test_p2p_off_goes_through_the_cpus_of_presets(name):
    fabric = build(name)
    cpus = {v for v in range(fabric.n_vertices) if ".cpu" in fabric.vertex_name(v)}
    gpus = fabric.gpu_vertex[:4]
    routes = Router(fabric, RoutingOptions(p2p=False)).routes(gpus[:-1], gpus[1:])
    for pair in range(routes.n_pairs):
        assert cpus & {int(fabric.link_dst[link]) for link in routes.pair(pair)[0]}
