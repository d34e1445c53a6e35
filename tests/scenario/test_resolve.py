"""After resolving nothing is open, every value knows its origin, and nothing changes again."""

from __future__ import annotations

import dataclasses
import json
import pickle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.scenario import describe, dump, from_words, load, loads, to_json, to_mapping
from simulator.scenario.nodes import node_template

CALL = "collective: {op: all_reduce, size: 1 MiB}\n"
FILE = f"schema_version: 1\nnode: dgx-h100\nnodes: 2\n{CALL}"

EVERYTHING = """\
schema_version: 1
description: "no: really"
seed: 3
source: here
node: {preset: dgx-h100, nic_rate: 200 Gbit/s, links: {nvlink: {bandwidth: 300 GB/s}}}
nodes: 4
gpus_per_node: 4
fabric: {kind: leaf_spine, oversubscription: 2}
routing: {policy: adaptive, pxn: no}
collective:
  op: allgather
  sizes: {from: 1 KiB, to: 1 MiB, factor: 4}
  algorithm: ring
  protocol: LL128
  channels: 2
  dtype: bf16
  ranks: 0-15:2
costs: {profile: ideal, overrides: {links.nvlink.efficiency: 80 %}}
env: {NCCL_ALGO: Ring}
engine: {level: folded, record: yes}
perturb:
  late: [{ranks: 3, by: 1 ms}]
  skew: 2 us
  jitter: {sigma: 5 %, latency: 1 us}
  links:
  - {link: node0.nic0->*, factor: 0.5, at: 1 ms, until: 2 ms}
  - {link: node1.nic1->*, down: yes}
output: {csv: a.csv, plots: [busbw]}
"""
STEPS = """\
schema_version: 1
groups: [{node: dgx-h100, nodes: 2}, {node: dgx-a100, gpus_per_node: 4}]
programs:
- ranks: 0-15
  start: 1 ms
  do:
  - repeat: 3
    do:
    - {compute: 2 ms, name: forward}
    - collective: {op: all_reduce, size: 25 MiB}
      group: node
      after: nothing
    - {collective: {op: all_gather, size: 1 MiB}, group: [0-3, 9], communicator: mine}
    - {wait: comm, leave: 1}
"""
JOBS = """\
schema_version: 1
node: dgx-h100
nodes: 2
jobs:
- {name: a, ranks: 0-7, collective: {op: all_reduce, size: 1 MiB}, repeat: 3}
- name: b
  ranks: 8-15
  start: 2 ms
  generator: {ddp: {gradients: [1 MiB, 2 MiB], forward: 1 ms, backward: 2 ms}}
"""
ZERO = """\
schema_version: 1
node: 4xH100
generator: {zero: {stage: 3, parameters: 7e9, layers: 32, forward: 1 ms, backward: 2 ms}}
"""
UNEVEN = """\
schema_version: 1
node: dgx-h100
collective: {op: all_to_allv, ranks: 0-1, counts: [[0 B, 4 KiB], [8 KiB, 0 B]]}
"""
TOPOLOGY = (
    """\
schema_version: 1
topology:
  templates:
  - name: box
    vertices:
    - {name: gpu, kind: gpu, count: 2}
    - {name: nic0, kind: nic}
    - {name: sw, kind: pcie_switch}
    links:
    - {a: gpu*, b: sw, kind: pcie, bandwidth: 32 GB/s, latency: 500 ns}
    - {a: nic0, b: sw, kind: pcie, bandwidth: 32 GB/s}
  repeat: [{template: box, count: 2}]
  vertices: [{name: leaf0, kind: leaf}]
  links: [{a: node*.nic0, b: leaf0, kind: infiniband, bandwidth: 100 Gbit/s}]
"""
    + CALL
)
TEXTS = [FILE, EVERYTHING, STEPS, JOBS, ZERO, UNEVEN, TOPOLOGY]


@pytest.mark.parametrize("text", TEXTS)
def test_dump_loads_to_the_same_and_resolving_twice_changes_nothing(text):
    (first,) = loads(text).variants
    (second,) = loads(dump(first)).variants
    assert second == first
    assert dump(second) == dump(first)
    assert loads(to_json(first)).variants == (first,)


@pytest.mark.parametrize("text", TEXTS)
def test_resolving_warns_about_nothing_in_what_it_wrote_itself(text):
    found = loads(text)
    assert found.warnings == ()


@pytest.mark.parametrize("text", TEXTS)
def test_variants_travel_between_processes(text):
    (first,) = loads(text).variants
    assert pickle.loads(pickle.dumps(first)) == first
    assert json.loads(to_json(first)) == to_mapping(first)


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_any_numbers_survive(data):
    def draw(low, high):
        return data.draw(st.floats(low, high, allow_nan=False))

    words = {
        "node.preset": "dgx-h100",
        "node.nic_rate": f"{draw(1, 1e12)!r} B/s",
        "nodes": str(data.draw(st.integers(1, 30_000))),
        "collective.op": "all_reduce",
        "collective.size": f"{data.draw(st.integers(1, 10**13))} B",
        "collective.dtype": "uint8",
        "perturb.skew": f"{draw(0, 1e3)!r} s",
        "perturb.jitter.sigma": repr(draw(0, 10)),
        "perturb.compute_slowdown": repr(draw(1, 10)),
        "seed": str(data.draw(st.integers(0, 2**63 - 1))),
        "description": repr(
            data.draw(st.text(st.characters(codec="ascii", exclude_characters="'\\")))
        ),
    }
    (first,) = from_words(words).variants
    assert loads(dump(first)).variants == (first,)


def test_values_are_in_internal_units():
    (found,) = loads(EVERYTHING).variants
    assert found.node.nic_rate_Bps == 25e9
    assert found.perturb.late[0].by_s == 1e-3
    assert found.perturb.jitter.sigma == 0.05
    assert found.perturb.links[1].down
    assert found.collective.sizes_bytes == (1024, 4096, 16384, 65536, 262144, 2**20)
    assert (found.collective.op, found.collective.dtype) == ("all_gather", "bfloat16")
    assert found.collective.element_bytes == 2
    assert found.collective.ranks == tuple(range(0, 16, 2))
    assert found.routing.pxn is False
    assert found.description == "no: really"


def test_operations_are_read_as_written():
    (found,) = loads(STEPS).variants
    (repeat,) = found.programs[0].do
    compute, call, other, wait = repeat.do
    assert (repeat.times, compute.duration_s, compute.stream) == (3, 2e-3, "compute")
    assert (call.group, call.after, call.stream) == ("node", "nothing", "comm")
    assert (other.group, other.communicator, other.after) == ((0, 1, 2, 3, 9), "mine", "compute")
    assert (wait.on, wait.stream, wait.leave) == ("comm", "compute", 1)
    assert found.kind == "steps"
    assert [(g.node.preset, g.nodes, g.gpus_per_node) for g in found.node_groups] == [
        ("dgx-h100", 2, 8),
        ("dgx-a100-80gb", 1, 4),
    ]


def test_presets_get_their_own_name_and_number_of_gpus():
    (found,) = loads(ZERO).variants
    assert found.node.preset == "hgx-h100+4gpus"
    assert found.gpus_per_node == 4
    assert found.origins["gpus_per_node"] == "preset hgx-h100+4gpus"


def test_uneven_counts_give_the_size():
    (found,) = loads(UNEVEN).variants
    # nccl-tests' size of all_to_all: bytes of all pairs over the ranks, 12 KiB / 2.
    assert found.collective.sizes_bytes == (6144,)
    assert found.collective.counts_bytes == ((0, 4096), (8192, 0))


def test_a_barrier_has_no_size():
    (found,) = loads(FILE.replace("op: all_reduce, size: 1 MiB", "op: barrier")).variants
    assert found.collective.sizes_bytes == (0,)


@pytest.mark.parametrize(("nodes", "kind"), [(1, None), (2, "single_switch")])
def test_several_nodes_are_joined_even_when_nothing_is_said(nodes, kind):
    (found,) = loads(FILE.replace("nodes: 2", f"nodes: {nodes}")).variants
    assert (found.fabric and found.fabric.kind) == kind


def test_numbers_of_the_node_can_be_changed():
    (found,) = loads(EVERYTHING).variants
    template = node_template(found.node)
    assert template.nic_rate_Bps == 25e9
    nvlink = [link for link in template.links if link.kind == "nvlink"]
    assert nvlink
    assert {link.bandwidth_Bps for link in nvlink} == {300e9}
    assert all(link.latency_s > 0 for link in nvlink)


def test_every_value_tells_its_origin(tmp_path):
    path = tmp_path / "a.yaml"
    path.write_text(FILE)
    (found,) = load(path, overrides=["seed=4"]).variants
    rows = {key: (value, origin) for key, value, origin in describe(found)}
    assert rows["nodes"] == ("2", f"{path}:3")
    assert rows["node.preset"] == ("dgx-h100", f"{path}:2")
    assert rows["collective.sizes"] == ("[1 MiB]", f"{path}:4")
    assert rows["seed"] == ("4", "--set")
    assert rows["perturb.skew"] == ("0 s", "default")
    assert rows["gpus_per_node"] == ("8", "preset dgx-h100")
    assert rows["fabric.kind"] == ("single_switch", "default")
    value, origin = rows["preset dgx-h100.nic.infiniband"]
    assert value == "8 × 50 GB/s (400 Gbit/s), 600 ns"
    assert origin.startswith("preset dgx-h100: ")
    value, origin = rows["profile nccl.launch.time"]
    assert value.endswith(" us")
    assert origin.startswith("profile nccl: ")


def test_describe_leaves_nothing_out():
    (found,) = loads(EVERYTHING).variants
    keys = [key for key, _, _ in describe(found)]

    def leaves(value, path=""):
        if isinstance(value, dict):
            for key, item in value.items():
                yield from leaves(item, f"{path}.{key}" if path else key)
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            for index, item in enumerate(value):
                yield from leaves(item, f"{path}[{index}]")
        elif value != []:
            yield path

    assert [key for key in keys if not key.startswith(("preset ", "profile "))] == list(
        leaves(to_mapping(found))
    )
    assert all(value and origin for _, value, origin in describe(found))


def test_overridden_constants_show_who_overrode_them():
    (found,) = loads(EVERYTHING, name="e.yaml").variants
    rows = {key: (value, origin) for key, value, origin in describe(found)}
    assert rows["profile ideal.links.nvlink.efficiency"] == ("0.8", "e.yaml:18")
    assert rows["preset dgx-h100.links.nvlink"][1] == "scenario"


@pytest.mark.parametrize(
    ("text", "key", "words"),
    [
        (FILE.replace("size", "root: 3, size"), "collective.root", "has no effect on all_reduce"),
        (
            FILE.replace("all_reduce, size", "all_gather, redop: max, size"),
            "collective.redop",
            "has no effect on all_gather",
        ),
        (
            FILE.replace("all_reduce", "barrier"),
            "collective.size",
            "has no effect on barrier",
        ),
        (
            FILE.replace("nodes: 2", "fabric: {kind: leaf_spine, oversubscription: 2}"),
            "fabric.oversubscription",
            "has no effect on a single node",
        ),
        (
            FILE.replace("nodes: 2", "routing: {pxn: no}"),
            "routing.pxn",
            "has no effect on a single node",
        ),
        (
            FILE + "perturb: {compute_slowdown: 1.2}\n",
            "perturb.compute_slowdown",
            "has no effect: nothing is computed",
        ),
        (
            FILE + "engine: {level: folded, max_transfers: 5}\n",
            "engine.max_transfers",
            "has no effect",
        ),
        (FILE + "output: {plot_format: pdf}\n", "output.plot_format", "has no effect"),
    ],
)
def test_inputs_without_effect_are_warned_about(text, key, words):
    found = loads(text, name="f.yaml")
    warning = next(warning for warning in found.warnings if warning.key == key)
    assert warning.message == words
    assert warning.file == "f.yaml"
    assert warning.line is not None


def test_a_warning_of_one_variant_names_it():
    found = loads(FILE.replace("nodes: 2", "nodes: [1, 2]\nrouting: {pxn: no}"))
    (warning,) = found.warnings
    assert warning.message == "has no effect on a single node (with nodes 1)"


def test_the_resolved_tree_is_frozen():
    (found,) = loads(FILE).variants
    with pytest.raises(dataclasses.FrozenInstanceError):
        found.seed = 3
    with pytest.raises(dataclasses.FrozenInstanceError):
        found.collective.op = "x"


def test_words_need_no_file():
    words = {"node": "dgx-h100", "collective.op": "all_reduce_perf", "collective.size": "1G"}
    (found,) = from_words(words).variants
    assert found.collective.op == "all_reduce"
    assert found.origins["node"] == "command line"
