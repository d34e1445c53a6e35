"""Building and routing large clusters: 2,048 nodes of 8 GPUs on a three-level fat tree."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

import topologies
from simulator.fabric.fabric import Fabric
from simulator.fabric.routing import Router, RoutingOptions
from topologies import hardware


def build(nodes: int) -> Fabric:
    return topologies.build([(hardware.load("dgx-h100"), nodes)], "fat_tree")


def test_build_16384_gpus(benchmark):
    fabric = benchmark.pedantic(build, args=(2048,), rounds=3, warmup_rounds=1)
    assert fabric.n_gpus == 16_384


def test_memory_of_16384_gpus():
    tracemalloc.start()
    fabric = build(2048)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert fabric.n_gpus == 16_384
    assert peak < 200 * 2**20


@pytest.mark.parametrize("policy", ["ecmp", "static", "adaptive"])
def test_ring_of_16384_gpus(benchmark, policy):
    """A cold router each time: node classes, distances and next hops included."""
    fabric = build(2048)
    gpus = fabric.gpu_vertex

    def ring():
        vars(fabric).pop("network", None)
        return Router(fabric, RoutingOptions(policy=policy)).routes(gpus, np.roll(gpus, -1))

    routes = benchmark.pedantic(ring, rounds=3)
    assert routes.n_pairs == 16_384


def test_all_to_all_of_2048_gpus_in_chunks(benchmark):
    fabric = build(256)
    gpus = fabric.gpu_vertex
    router = Router(fabric)

    def all_pairs():
        total = 0
        for first in range(0, 2048, 16):
            src = np.repeat(gpus[first : first + 16], 2048)
            total += router.routes(src, np.tile(gpus, 16)).n_pairs
        return total

    assert benchmark.pedantic(all_pairs, rounds=1) == 2048**2


@pytest.mark.parametrize("policy", ["ecmp", "adaptive"])
def test_link_load_of_an_all_to_all_of_2048_gpus(benchmark, policy):
    fabric = build(256)
    gpus = fabric.gpu_vertex
    router = Router(fabric, RoutingOptions(policy=policy))
    src, dst = np.repeat(gpus, 2048), np.tile(gpus, 2048)
    load = benchmark.pedantic(router.load, args=(src, dst), rounds=1)
    assert load.max() >= 2040


def test_first_use_of_one_node(benchmark):
    """What a question about a single node pays for fabric and routes."""
    template = hardware.load("dgx-h100")

    def one():
        fabric = topologies.build([(template, 1)], "none")
        return Router(fabric).routes(fabric.gpu_vertex, np.roll(fabric.gpu_vertex, -1))

    assert benchmark.pedantic(one, rounds=5).n_pairs == 8
