"""A key after which nothing stands is an error, wherever a section, a list or a value is meant."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from simulator.base.errors import ScenarioError
from simulator.base.fields import OptionField
from simulator.scenario import loads
from simulator.scenario.reader import declared
from simulator.scenario.resolved import TASKS, Resolved

MACHINE = "schema_version: 1\nnode: dgx-h100\n"
CALL = "collective: {op: all_reduce, size: 1 MiB}\n"


def refusal(text: str, *overrides: str) -> str:
    with pytest.raises(ScenarioError) as found:
        loads(text, name="a.yaml", overrides=overrides)
    return str(found.value)


@pytest.mark.parametrize("task", TASKS)
def test_a_task_whose_body_is_commented_out(task):
    told = refusal(f"{MACHINE}{task}:\n  # op: all_reduce\n")
    assert told.startswith(f"a.yaml:3: {task}: is empty\n  allowed: a section with ")


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("nothing", ["null", "~", "[]"])
def test_a_task_that_is_taken_away_leaves_nothing_to_do(task, nothing):
    told = refusal(f"{MACHINE}{task}: {nothing}\n")
    assert told.startswith(f"a.yaml:3: {task}: is ")
    assert "empty" in told


def test_a_task_taken_away_by_a_word():
    told = refusal(MACHINE + CALL, "collective=null")
    assert told.startswith("--set: collective: is empty: nothing is to be done")


def keys_of(owner: type[Any], path: str) -> Iterator[str]:
    """Generate every dotted key below a section; entries of lists are left out."""
    for item in declared(owner):
        key = f"{path}.{item.key}" if path else item.key
        yield key
        if not isinstance(item, OptionField) and not item.shape.words().startswith("list"):
            below = item.shape.owner()
            # A table's entries stand below names of their own.
            if below is not None and not item.shape.words().startswith("sections by name"):
                yield from keys_of(below, key)


KEYS = sorted(keys_of(Resolved, ""))


def test_there_are_keys():
    assert len(KEYS) > 150
    assert {"perturb.jitter.sigma", "costs", "generator.ddp.layers", "topology.repeat"} <= set(KEYS)


@pytest.mark.parametrize("key", KEYS)
def test_no_key_may_stand_without_a_value(key):
    *above, last = key.split(".")
    lines = [f"{'  ' * depth}{name}:" for depth, name in enumerate(above)]
    lines.append(f"{'  ' * len(above)}{last}:")
    told = refusal("\n".join(lines) + "\n")
    line = f"a.yaml:{len(lines)}: {key}: is empty\n  allowed: "
    assert line in told


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("perturb: {late: [null]}", "perturb.late[0]"),
        ("perturb:\n  links:\n  -\n", "perturb.links[0]"),
        ("costs: {overrides: {launch.time: }}", "costs.overrides.launch.time"),
        ("costs: {overrides: {launch: null}}", "costs.overrides.launch"),
        ("env: {NCCL_ALGO: }", "env.NCCL_ALGO"),
        ("nodes: [1, ~, '']", "nodes"),
        ("node: {preset: dgx-h100, links: {nvlink: }}", "node.links.nvlink"),
        ("output: {plots: [busbw, ]}\nnodes:", "nodes"),
        ("patches:", "patches"),
    ],
)
def test_nothing_as_an_entry(text, where):
    machine = "schema_version: 1\n" if text.startswith("node:") else MACHINE
    assert f"{where}: " in refusal(machine + CALL + text + "\n")


def test_a_base_that_is_forgotten(tmp_path):
    (tmp_path / "a.yaml").write_text(f"base:\n{MACHINE}{CALL}")
    from simulator.scenario import load

    with pytest.raises(ScenarioError, match=r"a\.yaml:1: base: is empty"):
        load(tmp_path / "a.yaml")


def test_a_written_null_takes_away_what_the_base_says():
    text = f"{MACHINE}{CALL}nodes: 2\nfabric: fat_tree\npatches: {{plain: {{fabric: null}}}}\n"
    kinds = [variant.fabric.kind for variant in loads(text).variants if variant.fabric]
    assert kinds == ["fat_tree", "single_switch"]


@pytest.mark.parametrize(
    "key", ["nodes", "fabric", "collective.algorithm", "costs.profile", "env.X"]
)
def test_a_word_without_a_value(key):
    assert refusal(MACHINE + CALL, f"{key}=") == (
        f"--set: {key}: '' is no value\n  allowed: a value."
    )


def test_a_word_that_ends_with_a_comma():
    assert "--set: nodes: is empty" in refusal(MACHINE + CALL, "nodes=1,")
    assert "collective.sizes: " in refusal(MACHINE + CALL, "collective.sizes=1 MiB,")


def test_operations_of_nothing():
    assert "programs[0].do: is an empty list" in refusal(f"{MACHINE}programs: [{{do: []}}]\n")
