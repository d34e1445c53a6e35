"""What-ifs are merges: base files, patches and words."""

from __future__ import annotations

import pytest

from simulator.base.errors import ScenarioError
from simulator.scenario import load, loads
from simulator.scenario.patch import apply_words, merge, split_key
from simulator.scenario.tree import parse_text, plain

FILE = """\
schema_version: 1
node: dgx-h100
nodes: 2
fabric: {kind: leaf_spine, oversubscription: 2}
collective: {op: all_reduce, size: 1 MiB}
"""


def merged(under: str, over: str) -> object:
    return plain(merge(parse_text(under, "under"), parse_text(over, "over")))


@pytest.mark.parametrize(
    ("under", "over", "result"),
    [
        ("{a: {b: 1, c: 2}}", "{a: {b: 3}}", {"a": {"b": "3", "c": "2"}}),
        ("{a: [1, 2]}", "{a: [3]}", {"a": ["3"]}),
        ("{a: {b: 1}}", "{a.b: 2, a.c.d: 3}", {"a": {"b": "2", "c": {"d": "3"}}}),
        # options of one kind mean nothing to another
        ("{f: {kind: x, o: 1}}", "{f: {kind: y}}", {"f": {"kind": "y"}}),
        ("{f: {kind: x, o: 1}}", "{f: {kind: x, p: 2}}", {"f": {"kind": "x", "o": "1", "p": "2"}}),
        ("{f: {kind: x, o: 1}}", "{f: {p: 2}}", {"f": {"kind": "x", "o": "1", "p": "2"}}),
        # short forms
        ("{node: a}", "{node.nic_rate: 1}", {"node": {"preset": "a", "nic_rate": "1"}}),
        ("{fabric: a}", "{fabric: {o: 1}}", {"fabric": {"kind": "a", "o": "1"}}),
        ("{node: {preset: a, nic_rate: 1}}", "{node: b}", {"node": "b"}),
        # two ways to say one thing
        ("{c: {size: 1}}", "{c: {sizes: [1, 2]}}", {"c": {"sizes": ["1", "2"]}}),
        ("{node: a, nodes: 2}", "{groups: [{node: b}]}", {"groups": [{"node": "b"}]}),
        ("{c: {size: 1}}", "{c: {sizes: null}}", {"c": {"size": "1", "sizes": None}}),
        # entries of lists
        ("{l: [{a: 1}, {a: 2}]}", "{'l[1].a': 3}", {"l": [{"a": "1"}, {"a": "3"}]}),
        ("{l: [{a: 1}, {a: 2}]}", "{l.0: {b: 3}}", {"l": [{"a": "1", "b": "3"}, {"a": "2"}]}),
        ("{l: [1, 2]}", "{l.0: 3}", {"l": ["3", "2"]}),
        # a key set in a swept section is set in each of its values
        (
            "{fabric: [a, {kind: b}]}",
            "{fabric.o: 1}",
            {"fabric": [{"kind": "a", "o": "1"}, {"kind": "b", "o": "1"}]},
        ),
    ],
)
def test_merge(under, over, result):
    assert merged(under, over) == result


def test_dotted_keys_are_taken_apart():
    assert split_key("perturb.links[0].factor") == ["perturb", "links", 0, "factor"]
    assert split_key("a") == ["a"]


def test_words_may_be_any_yaml():
    tree = apply_words(parse_text("{a: 1}", "f"), [("b", "[1, 2]"), ("a", "{c: d}")])
    assert plain(tree) == {"a": {"c": "d"}, "b": ["1", "2"]}


def test_bases_are_found_from_where_the_file_stands(tmp_path):
    (tmp_path / "below").mkdir()
    (tmp_path / "base.yaml").write_text(FILE)
    (tmp_path / "below" / "middle.yaml").write_text("base: ../base.yaml\nnodes: 4\nseed: 1\n")
    (tmp_path / "below" / "top.yaml").write_text("base: middle.yaml\nseed: 2\n")
    (found,) = load(tmp_path / "below" / "top.yaml").variants
    assert (found.nodes, found.seed) == (4, 2)
    assert found.origins["nodes"] == f"{tmp_path}/below/middle.yaml:2"
    assert found.origins["seed"] == f"{tmp_path}/below/top.yaml:2"
    assert found.origins["collective.op"] == f"{tmp_path}/below/../base.yaml:5"


def test_a_base_of_null_is_none(tmp_path):
    (tmp_path / "a.yaml").write_text("base: null\n" + FILE)
    assert load(tmp_path / "a.yaml").variants[0].nodes == 2


def test_patches_are_named_variants_beside_the_base():
    found = loads(
        FILE + "patches:\n  full: {fabric.oversubscription: 1}\n  more: {nodes: [4, 8]}\n"
    )
    assert [(v.label, v.nodes, v.fabric.options.oversubscription) for v in found.variants] == [
        ("patch=base", 2, 2.0),
        ("patch=full", 2, 1.0),
        ("patch=more, nodes=4", 4, 2.0),
        ("patch=more, nodes=8", 8, 2.0),
    ]
    assert found.dimensions == {"patch": ("base", "full", "more"), "nodes": ("4", "8")}


def test_words_win_over_patches_and_the_last_word_wins():
    text = FILE + "patches: {more: {nodes: 4}}\n"
    found = loads(text, overrides=["nodes=16", "nodes=8", "patches.more.seed=3"])
    assert [(v.nodes, v.seed) for v in found.variants] == [(8, 0), (8, 3)]
    assert {v.origins["nodes"] for v in found.variants} == {"--set"}


def test_all_bad_words_are_reported_together():
    with pytest.raises(ScenarioError) as found:
        loads(FILE, overrides=["nodes=[1", "seed={"])
    assert [problem.key for problem in found.value.problems] == ["nodes", "seed"]


@pytest.mark.parametrize(("key", "text"), [("costs.profile", "-"), ("costs", ""), ("nodes", "-")])
def test_a_word_that_says_nothing_is_no_default(key: str, text: str) -> None:
    with pytest.raises(ScenarioError, match=f"{key}: '{text}' is no value"):
        apply_words(parse_text(FILE, "x"), [(key, text)])
