"""A list where one value is meant makes variants: the Cartesian product, in order."""

from __future__ import annotations

import pytest

from simulator.base.errors import ScenarioError
from simulator.scenario import from_words, loads

FILE = """\
schema_version: 1
node: dgx-h100
nodes: 2
collective: {op: all_reduce, size: 1 MiB}
"""


def values(text, *keys, overrides=()):
    found = loads(FILE + text, overrides=overrides)
    return [tuple(dict(variant.labels).get(key) for key in keys) for variant in found.variants]


def test_no_list_no_label():
    (only,) = loads(FILE).variants
    assert only.labels == ()
    assert only.label == ""


def test_product_in_the_order_of_the_schema_first_key_slowest():
    text = (
        "perturb: {skew: [0 us, 5 us]}\nfabric: {kind: leaf_spine, oversubscription: [1, 2, 4]}\n"
    )
    assert values(text, "fabric.oversubscription", "perturb.skew") == [
        *(("1", "0 us"), ("1", "5 us")),
        *(("2", "0 us"), ("2", "5 us")),
        *(("4", "0 us"), ("4", "5 us")),
    ]


def test_a_list_inside_a_listed_section_is_labelled_once():
    text = "fabric: [torus, {kind: fat_tree, radix: 16, oversubscription: [1, 2]}]\n"
    assert values(text, "fabric", "fabric.oversubscription") == [
        ("torus", None),
        ("kind=fat_tree radix=16", "1"),
        ("kind=fat_tree radix=16", "2"),
    ]


@pytest.mark.parametrize(
    ("text", "key", "expected"),
    [
        ("seed: [1, 2]", "seed", ["1", "2"]),
        ("fabric: [single_switch, leaf_spine]", "fabric", ["single_switch", "leaf_spine"]),
        ("fabric: {kind: [torus, leaf_spine]}", "fabric.kind", ["torus", "leaf_spine"]),
        (
            "fabric: [{kind: torus}, {kind: leaf_spine, radix: 32}]",
            "fabric",
            ["kind=torus", "kind=leaf_spine radix=32"],
        ),
        ("costs: [nccl, ideal]", "costs", ["nccl", "ideal"]),
        (
            "costs: {overrides: {links.nvlink.efficiency: [70 %, 80 %]}}",
            "costs.overrides.links.nvlink.efficiency",
            ["70 %", "80 %"],
        ),
        ("env: {NCCL_ALGO: [Ring, Tree]}", "env.NCCL_ALGO", ["Ring", "Tree"]),
        (
            "perturb: {late: [{ranks: 3, by: [1 ms, 2 ms]}]}",
            "perturb.late[0].by",
            ["1 ms", "2 ms"],
        ),
        (
            "perturb: {links: [{link: node0.nic0->*, factor: [1, 0.5]}]}",
            "perturb.links[0].factor",
            ["1", "0.5"],
        ),
        ("routing: {pxn: [yes, no]}", "routing.pxn", ["yes", "no"]),
    ],
)
def test_any_value_may_be_swept(text, key, expected):
    assert values(text + "\n", key) == [(value,) for value in expected]


def test_a_generator_may_be_swept():
    found = loads(
        "schema_version: 1\nnode: dgx-h100\ngenerator:\n"
        "  zero: {stage: [1, 2, 3], parameters: 7e9, forward: 1 ms, backward: 2 ms}\n"
    )
    assert [variant.generator.zero.stage for variant in found.variants] == [1, 2, 3]


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("{op: all_reduce, size: [1 KiB, 1 MiB]}", (1024, 2**20)),
        ("{op: all_reduce, sizes: [1 KiB, 1 MiB]}", (1024, 2**20)),
        ("{op: all_reduce, sizes: {from: 8 B, to: 64 B}}", (8, 16, 32, 64)),
        ("{op: all_reduce, sizes: {from: 8 B, to: 40 B, step: 16 B}}", (8, 24, 40)),
        ("{op: all_reduce, sizes: {from: 8 B, to: 100 B, factor: 3}}", (8, 24, 72)),
    ],
)
def test_sizes_are_a_list_by_nature(text, read):
    (only,) = loads("schema_version: 1\nnode: dgx-h100\ncollective: " + text).variants
    assert only.collective.sizes_bytes == read


def test_ranks_are_a_list_by_nature():
    (only,) = loads(FILE.replace("MiB}", "MiB, ranks: [0-3, 8, 9]}")).variants
    assert only.collective.ranks == (0, 1, 2, 3, 8, 9)


def test_commas_in_words_separate_values():
    found = from_words(
        {
            "node": "dgx-h100,dgx-a100",
            "collective.op": "all_reduce",
            "collective.size": "8,1M",
            "collective.algorithm": "ring,tree",
            "collective.ranks": "0-3,5",
            "description": "one, two",
        }
    )
    assert len(found.variants) == 4
    assert {variant.collective.sizes_bytes for variant in found.variants} == {(8, 2**20)}
    assert {variant.collective.ranks for variant in found.variants} == {(0, 1, 2, 3, 5)}
    assert {variant.description for variant in found.variants} == {"one, two"}
    assert [variant.label for variant in found.variants][:2] == [
        "node=dgx-h100, collective.algorithm=ring",
        "node=dgx-h100, collective.algorithm=tree",
    ]


def test_commas_in_a_file_separate_nothing():
    with pytest.raises(ScenarioError, match="'1,2' is not a whole number"):
        loads(FILE + "seed: 1,2\n")


def test_bare_sizes_are_bytes_in_words_only():
    words = {"node": "dgx-h100", "collective.op": "all_reduce", "collective.size": "8"}
    assert from_words(words).variants[0].collective.sizes_bytes == (8,)
    with pytest.raises(ScenarioError, match="has no unit"):
        loads(FILE.replace("1 MiB", "8"))


def test_a_problem_of_one_variant_names_it():
    with pytest.raises(ScenarioError) as found:
        loads(FILE.replace("size", "root: 12, size").replace("nodes: 2", "nodes: [1, 2]"))
    assert found.value.problems[0].message == (
        "root 12 is outside the group of 8 ranks (with nodes 1)"
    )


def test_a_problem_of_all_variants_names_none():
    with pytest.raises(ScenarioError) as found:
        loads(FILE.replace("nodes: 2", "nodes: [1, 2]") + "sed: 1\n")
    assert [problem.message for problem in found.value.problems] == ["unknown key 'sed'"]


def test_too_many_variants_are_refused_before_they_are_read(monkeypatch):
    def read_too_early(*_args):
        raise AssertionError("a variant was resolved before the sweep's length was checked")

    monkeypatch.setattr("simulator.scenario.resolve.resolve", read_too_early)
    hundred = ", ".join(map(str, range(100)))
    text = f"seed: [{hundred}]\nrouting: {{seed: [{hundred}]}}\nperturb: {{skew: [0 s, 1 s]}}\n"
    with pytest.raises(ScenarioError, match="has more than 10,000 variants"):
        loads(FILE + text)
