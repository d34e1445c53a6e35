"""Whole questions, from words to answer: the figures of docs/benchmarks.md.

python -m pytest tests/benchmarks/test_whole.py -n0 -o addopts=""
"""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import simulator
from simulator.engine.maxmin import max_min_rates
from simulator.fabric.routing import Router
from topologies import build, hardware, option_type


def ask(**sections: Any) -> float:
    return simulator.run(workers=1, **sections).rows[0].time_s


@pytest.mark.parametrize("algorithm", ["ring", "tree", "double_binary_tree", "hierarchical"])
def test_all_reduce_on_16384_gpus_folded(benchmark: Any, algorithm: str) -> None:
    """Target: 2 s."""
    call = {"op": "all_reduce", "size": "1 GiB", "protocol": "Simple", "algorithm": algorithm}
    time_s = benchmark.pedantic(
        lambda: ask(
            node="dgx-h100", nodes=2048, fabric="fat_tree", collective=call, engine="folded"
        ),
        rounds=1,
    )
    assert time_s > 0


def test_all_to_all_on_2048_gpus_folded(benchmark: Any) -> None:
    """Target: 5 s and 1 GiB."""
    call = {"op": "all_to_all", "size": "1 GiB", "protocol": "Simple", "algorithm": "direct"}
    time_s = benchmark.pedantic(
        lambda: ask(
            node="dgx-h100", nodes=256, fabric="fat_tree", collective=call, engine="folded"
        ),
        rounds=1,
    )
    assert time_s > 0


@pytest.mark.parametrize("profile", ["nccl", "ideal"])
def test_all_to_all_on_32768_gpus(benchmark: Any, profile: str) -> None:
    """Target: 10 s of CPU and 2 GiB."""
    call = {"op": "all_to_all", "size": "1 GiB"}
    asked = {"node": "dgx-h100", "nodes": 4096, "fabric": "rail_optimized", "collective": call}
    time_s = benchmark.pedantic(lambda: ask(**asked, costs={"profile": profile}), rounds=1)
    assert time_s > 0


def test_preset_question(benchmark: Any) -> None:
    """Target: 1.5 s wall with the interpreter's start."""
    words = ["-m", "simulator.cli", "bench", "all_reduce", "-N", "4", "-b", "1M", "-e", "1G", "-q"]
    benchmark.pedantic(
        lambda: subprocess.run([sys.executable, *words], check=True, capture_output=True), rounds=3
    )


def test_help(benchmark: Any) -> None:
    """Target: 0.4 s wall with the interpreter's start."""
    words = ["-m", "simulator.cli", "--help"]
    benchmark.pedantic(
        lambda: subprocess.run([sys.executable, *words], check=True, capture_output=True), rounds=3
    )


def test_max_min_of_10000_flows(benchmark: Any) -> None:
    """Target: 50 ms on a 1,024-GPU fat tree, random pairs."""
    fabric = build([(hardware.load("dgx-h100"), 128)], "fat_tree", option_type("fat_tree")())
    rng = np.random.default_rng(1)
    src = rng.integers(0, fabric.n_gpus, 10_000)
    dst = (src + rng.integers(1, fabric.n_gpus, 10_000)) % fabric.n_gpus
    routes = Router(fabric).routes(fabric.gpu_vertex[src], fabric.gpu_vertex[dst])
    limit = np.full(10_000, np.inf)
    rates = benchmark(
        lambda: max_min_rates(routes.indptr, routes.link, routes.share, fabric.capacity_Bps, limit)
    )
    assert (rates > 0).all()


def test_a_log_is_fitted(benchmark: Any) -> None:
    """Target: 10 s for 31 sizes."""
    from simulator.importers.nccl_tests import read
    from simulator.verdict.guess import guess
    from validation.fitting.machine import Table, fit_machine

    (table,) = read("tests/importers/data/superbench_nccl_allreduce.log").tables
    tables = [Table(file="log", table=table, set_up=guess(table))]
    found = benchmark.pedantic(lambda: fit_machine(tables, name="x"), rounds=1)
    assert found.file.data[0].rows == 32
