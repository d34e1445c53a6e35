"""Text becomes a tree that knows its lines, and nothing in it can exhaust memory."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.base.errors import CollsimError, ScenarioError
from simulator.scenario import tree
from simulator.scenario.tree import Mapping, Place, Scalar, parse_text, plain, read_tree


def test_scalars_stay_text():
    found = parse_text("a: no\nb: 1e9\nc: 0o17\nd: 'x'\n", "f.yaml")
    assert plain(found) == {"a": "no", "b": "1e9", "c": "0o17", "d": "x"}


def test_every_key_and_value_knows_its_line():
    found = parse_text("a: 1\nb:\n  - x\n  - {c: 3}\n", "f.yaml")
    assert isinstance(found, Mapping)
    assert str(found.key_place["b"]) == "f.yaml:2"
    assert [str(item.place) for item in found.get("b").items] == ["f.yaml:3", "f.yaml:4"]


@pytest.mark.parametrize("text", ["", "~", "null", "Null", "NULL"])
def test_null_is_null_unless_quoted(text):
    assert Scalar(Place("f"), text).is_null
    assert not Scalar(Place("f"), text, quoted=True).is_null


def test_aliases_are_expanded():
    found = parse_text("a: &x {b: 1}\nc: *x\nd: [*x, *x]\n", "f")
    assert plain(found) == {"a": {"b": "1"}, "c": {"b": "1"}, "d": [{"b": "1"}, {"b": "1"}]}


def test_merge_keys_yield_to_own_keys():
    found = parse_text("a: &x {b: 1, c: 2}\nd: {c: 3, <<: *x}\ne: {<<: [*x, {f: 4}]}\n", "f")
    assert plain(found) == {
        "a": {"b": "1", "c": "2"},
        "d": {"c": "3", "b": "1"},
        "e": {"b": "1", "c": "2", "f": "4"},
    }


def test_byte_order_mark_is_no_text(tmp_path):
    (tmp_path / "a.yaml").write_bytes("a: ü".encode("utf-8-sig"))
    assert plain(read_tree(tmp_path / "a.yaml")) == {"a": "ü"}


def test_limit_counts_nodes_after_expansion(monkeypatch):
    monkeypatch.setattr(tree, "MAX_NODES", 20)
    # 1 mapping, key and list of 3 with 5 nodes in all, then 4 nodes per alias: a third is too many.
    text = "a: &x [1, 2, 3]\n"
    assert parse_text(text + "b: [*x]\n", "f")
    with pytest.raises(ScenarioError, match="expands to too many values"):
        parse_text(text + "b: [*x, *x, *x, *x]\n", "f")


def test_deepest_allowed_nesting():
    # A mapping is one level; 31 lists below it are 32.
    assert parse_text("a: " + "[" * 31 + "]" * 31, "f")
    with pytest.raises(ScenarioError, match="nested too deeply"):
        parse_text("a: " + "[" * 32 + "]" * 32, "f")


def test_all_duplicate_keys_are_reported_together():
    with pytest.raises(ScenarioError) as found:
        parse_text("a: 1\nb: {c: 1, c: 2}\na: 3\n", "f")
    assert [(problem.line, problem.key) for problem in found.value.problems] == [(2, "b"), (3, "")]


def files_of_problems(read, *args):
    try:
        read(*args)
    except CollsimError as error:
        return {problem.file for problem in error.problems}
    return set()


@given(st.text(max_size=60))
def test_any_text_is_a_tree_or_our_error(text):
    assert files_of_problems(parse_text, text, "f") <= {"f"}


@given(st.binary(max_size=60))
def test_any_bytes_are_a_tree_or_our_error(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("bytes") / "a.yaml"
    path.write_bytes(data)
    assert files_of_problems(read_tree, path) <= {str(path)}
