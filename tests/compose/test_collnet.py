"""NCCL_COLLNET_ENABLE=1: the network's switches reduce, in every collective that NCCL does so."""

from __future__ import annotations

import json

import numpy as np
import pytest

from simulator.collectives.call import Call
from simulator.compose.build import build_cluster
from simulator.compose.choose import candidates
from simulator.compose.lower import OVER_NETWORK_SWITCHES
from simulator.compose.run import run_resolved
from simulator.results.model import RunResult
from simulator.scenario.resolve import from_words
from simulator.scenario.resolved import Resolved


def resolved(node: str, nodes: int, op: str, size: str, **more: str) -> Resolved:
    words = {"node": node, "nodes": str(nodes), "env.NCCL_COLLNET_ENABLE": json.dumps("1"), **more}
    return from_words({"collective.op": op, "collective.sizes": size, **words}).variants[0]


def run(node: str, nodes: int, op: str, size: str = "1M", **more: str) -> RunResult:
    return run_resolved(resolved(node, nodes, op, size, **more))


@pytest.mark.parametrize("op", ["all_reduce", "all_gather", "reduce_scatter", "broadcast"])
@pytest.mark.parametrize("version", ["2.19", "2.23", "2.28"])
@pytest.mark.parametrize(
    ("node", "nodes"), [("dgx-h100", 2), ("dgx-b200", 4), ("dgx-a100", 2), ("perlmutter", 2)]
)
def test_no_choice_lacks_a_schedule(node: str, nodes: int, op: str, version: str) -> None:
    result = run(node, nodes, op, "[1K, 1M, 64M, 1G]", **{"costs.version": version})
    assert len(result.rows) == 4
    assert all(row.time_s > 0 for row in result.rows)


@pytest.mark.parametrize(
    ("node", "op", "size", "algorithm"),
    [
        ("dgx-h100", "all_reduce", "64M", "nvls_sharp"),
        ("dgx-a100", "all_reduce", "64M", "collnet_direct"),
        ("dgx-a100", "all_gather", "1M", "collnet_direct"),
        ("dgx-a100", "reduce_scatter", "1M", "collnet_direct"),
    ],
)
def test_the_switches_of_the_network_are_used(
    node: str, op: str, size: str, algorithm: str
) -> None:
    result = run(node, 4, op, size)
    assert result.rows[0].algorithm == algorithm
    assert any("CollNet (SHARP) is not fitted" in text for text in result.notes)
    assert not result.warnings
    off = run(node, 4, op, size, **{"env.NCCL_COLLNET_ENABLE": '"0"'})
    assert off.rows[0].algorithm not in OVER_NETWORK_SWITCHES
    assert not any("CollNet" in text for text in off.notes)
    # With four nodes the network's switches save levels, and half of the bytes of an all_reduce.
    assert result.rows[0].time_s < off.rows[0].time_s


def test_time_hardly_grows_with_the_nodes_that_the_switches_join() -> None:
    few, many = (run("dgx-h100", nodes, "all_reduce", "1G").rows[0] for nodes in (2, 8))
    assert few.algorithm == many.algorithm == "nvls_sharp"
    assert many.time_s == pytest.approx(few.time_s, rel=0.05)


def test_the_next_best_is_taken_where_no_schedule_does_it_and_said_once() -> None:
    # 8 and 7 ranks: the sharded schedules need nodes of one size.
    result = run("dgx-a100", 2, "all_gather", "[1M, 2M]", **{"collective.ranks": "0-14"})
    assert {row.algorithm for row in result.rows} == {"ring"}
    said = [text for text in result.warnings if "would choose collnet_direct" in text]
    assert len(said) == 1
    assert "ring is taken instead" in said[0]
    assert "7 to 8 ranks" in said[0]


def test_the_candidates_name_them() -> None:
    made = build_cluster(resolved("dgx-h100", 2, "all_reduce", "1M"))
    call = Call(collective="all_reduce", world_size=16, size_bytes=2**20, element_bytes=4)
    named = {option.algorithm for option in candidates(made, call, np.arange(16))}
    assert set(OVER_NETWORK_SWITCHES) < named
