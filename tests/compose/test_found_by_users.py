"""Mistakes that users found, so that they stay mended."""

from __future__ import annotations

import pytest

from simulator.base.errors import CollsimError, ScenarioError, TopologyError
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
    with pytest.raises(CollsimError, match="262144"):
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


CALLS_OF_ONE_NAME = """
schema_version: 1
node: dgx-h100
programs:
- do:
  - {collective: {op: all_reduce, sizes: 64 MiB, algorithm: ring, protocol: Simple}}
  - {collective: {op: all_reduce, sizes: 1 GiB, algorithm: ring, protocol: Simple}}
"""

JOBS_OF_ONE_NAME = """
schema_version: 1
node: dgx-h100
jobs:
- {name: all, collective: {op: all_reduce, sizes: 64 MiB, algorithm: ring, protocol: Simple}}
- {name: half, ranks: 0-7:2,
   collective: {op: all_reduce, sizes: 32 MiB, algorithm: ring, protocol: Simple}}
"""


@pytest.mark.parametrize("record", [False, True])
def test_calls_of_one_name_and_other_sizes_are_told_apart(record: bool):
    result = run_resolved(loads(CALLS_OF_ONE_NAME).variants[0], record=record)
    small, large = sorted(result.rows, key=lambda row: row.size_bytes)
    assert (small.size_bytes, large.size_bytes) == (2**26, 2**30)
    assert small.time_s < large.time_s / 8
    # A ring sends 2 (n − 1) / n of each buffer.
    assert result.steps[0].sent_bytes == pytest.approx(1.75 * (2**26 + 2**30))


@pytest.mark.parametrize("record", [False, True])
def test_jobs_whose_calls_have_one_name_are_told_apart(record: bool):
    result = run_resolved(loads(JOBS_OF_ONE_NAME).variants[0], record=record)
    assert {(row.world_size, row.size_bytes) for row in result.rows} == {(8, 2**26), (4, 2**25)}
    assert result.steps[0].sent_bytes == pytest.approx(1.75 * 2**26 + 1.5 * 2**25)


def test_calls_without_recorded_messages_are_told():
    text = CALLS_OF_ONE_NAME + "engine: {level: folded}\n"
    result = run_resolved(loads(text).variants[0], record=True)
    assert not any(event.kind == "transfer" for event in result.trace)
    assert any("messages of 2 of 2 calls are not in traces" in told for told in result.warnings)
    quiet = run_resolved(loads(CALLS_OF_ONE_NAME).variants[0], record=True)
    assert not any("messages of" in told for told in quiet.warnings)
