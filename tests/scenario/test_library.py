"""The library is that of the GPUs' vendor where nothing is said, and a foreign one is told."""

from __future__ import annotations

import pytest

from simulator.compose.run import run_resolved
from simulator.scenario import from_words, loads

CALL = {"collective.op": "all_reduce", "collective.size": "128M"}


@pytest.mark.parametrize(
    ("node", "profile"),
    [("mi355x", "rccl"), ("mi250x", "rccl"), ("dgx-h100", "nccl"), ("cpu-2", "gloo")],
)
def test_the_gpus_tell_the_library(node: str, profile: str) -> None:
    left_open = from_words({"node": node, **CALL})
    said = from_words({"node": node, **CALL, "costs": profile})
    assert left_open.variants[0].costs == said.variants[0].costs
    assert left_open.variants[0].costs.profile == profile
    assert left_open.variants[0].origins["costs.profile"].startswith("library of ")
    assert not [*left_open.warnings, *said.warnings]


def test_amd_nodes_are_predicted_with_rccl_and_say_so() -> None:
    words = {"node": "mi355x", "nodes": "2", **CALL}
    usual, said, foreign = (
        run_resolved(from_words({**words, **costs}).variants[0])
        for costs in ({}, {"costs": "rccl"}, {"costs": "nccl"})
    )
    assert usual.rows[0].time_s == said.rows[0].time_s != foreign.rows[0].time_s
    assert usual.title.endswith("of mi355x, RCCL")
    assert usual.provenance.scenario["costs"]["profile"] == "rccl"


@pytest.mark.parametrize(
    ("node", "costs", "whose"), [("mi300x", "nccl", "NVIDIA"), ("hgx-h100", "rccl", "AMD")]
)
def test_a_library_of_another_vendor_is_told(node: str, costs: str, whose: str) -> None:
    (warning,) = from_words({"node": node, **CALL, "costs.profile": costs}).warnings
    assert f"it is {whose}'s library" in warning.message
    assert warning.key == "costs.profile"


def test_own_topologies_and_mixed_groups_tell_it_too() -> None:
    text = """schema_version: 1
topology:
  templates:
    - {name: box, gpu: GPU, vertices: [{name: gpu, kind: gpu, count: 2}],
       links: [{a: gpu0, b: gpu1, kind: xgmi, bandwidth: 50 GB/s}]}
  repeat: [{template: box}]
collective: {op: all_reduce, size: 1M}
"""
    (amd,) = loads(text.replace("GPU,", "mi300x,")).variants
    (plain,) = loads(text.replace("gpu: GPU, ", "")).variants
    assert (amd.costs.profile, plain.costs.profile) == ("rccl", "nccl")
    mixed = loads(
        "schema_version: 1\ngroups: [{node: hgx-h100}, {node: mi300x}]\n"
        "collective: {op: all_reduce, size: 1M}"
    )
    assert mixed.variants[0].costs.profile == "nccl"
    assert "no library of a vendor joins" in mixed.warnings[0].message
