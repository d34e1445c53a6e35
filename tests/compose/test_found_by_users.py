"""Mistakes that users found, so that they stay mended."""

from __future__ import annotations

import pytest

from simulator.base.errors import ScenarioError, TopologyError
from simulator.compose.build import build_cluster
from simulator.compose.explain import step_table
from simulator.compose.run import run_resolved
from simulator.scenario.resolve import loads

HEAD = "schema_version: 1\nnode: dgx-h100\nnodes: 2\ncollective: {op: all_reduce, size: 1 MiB"


def test_environment_restricts_what_the_library_chooses() -> None:
    free = run_resolved(loads(HEAD + "}").variants[0])
    bound = run_resolved(loads(HEAD + "}\nenv: {NCCL_ALGO: Ring, NCCL_FOO: 1}").variants[0])
    assert free.rows[0].algorithm != "ring"
    assert bound.rows[0].algorithm == "ring"
    assert any("NCCL_FOO" in text for text in bound.warnings)


def test_environment_without_a_library_is_refused() -> None:
    with pytest.raises(ScenarioError, match="no environment variables"):
        run_resolved(loads(HEAD + "}\ncosts: ideal\nenv: {NCCL_ALGO: Ring}").variants[0])


def test_a_cluster_beyond_memory_is_refused() -> None:
    text = HEAD.replace("nodes: 2", "nodes: 1000000000") + "}"
    with pytest.raises(TopologyError, match="at most"):
        build_cluster(loads(text).variants[0])


@pytest.mark.parametrize("algorithm", ["double_binary_tree", "tree", "nvls_tree", "ring"])
def test_steps_of_pipelines_are_told(algorithm: str) -> None:
    import numpy as np

    from simulator.collectives.call import Call
    from simulator.compose.cluster import Choice

    cluster = build_cluster(loads(HEAD + "}").variants[0])
    call = Call(collective="all_reduce", world_size=16, size_bytes=4096, element_bytes=4)
    channels = 1 if algorithm == "ring" else 2
    choice = Choice(algorithm=algorithm, protocol="Simple", n_channels=channels)
    lines = list(step_table(cluster.schedule(call, np.arange(16), choice)))
    assert any("adds" in line for line in lines)
    assert any("keeps" in line for line in lines)


def test_gpus_may_have_any_name() -> None:
    text = """
schema_version: 1
topology:
  templates:
    - name: box
      vertices: [{name: acc, kind: gpu, count: 4}, {name: switch, kind: nvswitch}]
      links: [{a: acc*, b: switch, kind: nvlink, bandwidth: 10 GB/s, latency: 1 us}]
  repeat: [{template: box}]
collective: {op: all_reduce, size: 1 MiB}
"""
    assert run_resolved(loads(text).variants[0]).rows[0].time_s > 0


def test_an_unknown_link_names_its_key() -> None:
    text = HEAD + "}\nperturb: {links: [{link: nosuch, factor: 0.5}]}"
    with pytest.raises(TopologyError, match=r"perturb\.links\[0\]\.link"):
        run_resolved(loads(text).variants[0])
