"""Streams named by mistake, and programs of ranks that take part in none of their calls."""

from __future__ import annotations

import pytest

from simulator.base.errors import ScenarioError
from simulator.scenario import loads

CALL = "collective: {op: all_reduce, size: 1 MiB}"


def loaded(*programs: str):
    lines = "".join(f"- {program}\n" for program in programs)
    return loads(f"schema_version: 1\nnode: dgx-h100\nprograms:\n{lines}", name="a.yaml")


def refusal(*programs: str) -> str:
    with pytest.raises(ScenarioError) as found:
        loaded(*programs)
    return str(found.value)


@pytest.mark.parametrize(
    ("operations", "key", "near"),
    [
        (f"{{compute: 1 ms}}, {{{CALL}}}, {{wait: com}}", "do[2].wait", "comm"),
        (f"{{compute: 1 ms}}, {{{CALL}, after: comput}}", "do[1].after", "compute"),
        (f"{{compute: 1 ms}}, {{{CALL}, after: nothin}}", "do[1].after", "nothing"),
        (f"{{compute: 1 ms}}, {{{CALL}}}, {{wait: comm, stream: computr}}", "do[2].stream", "c"),
        (f"{{compute: 1 ms, stream: computt}}, {{{CALL}}}", "do[0].stream", "compute"),
        (f"{{compute: 1 ms}}, {{{CALL}, stream: com}}", "do[1].stream", "comm"),
        (f"{{repeat: 2, do: [{{{CALL}}}, {{wait: com}}]}}", "do[0].do[1].wait", "comm"),
        (
            f"{{{CALL}, stream: pipeline}}, {{wait: pipeline}}, {{{CALL}, stream: pipelin}}",
            "do[2].stream",
            "pipeline",
        ),
    ],
)
def test_a_slip_in_a_stream(operations, key, near):
    told = refusal(f"do: [{operations}]")
    assert told.startswith(f"a.yaml:4: programs[0].{key}: ")
    assert f"Did you mean '{near}" in told
    assert told.count("a.yaml") == 1


@pytest.mark.parametrize(
    "operations",
    [
        f"{{compute: 1 ms}}, {{{CALL}}}, {{wait: comm}}",
        f"{{{CALL}}}, {{{CALL}, stream: comm2}}, {{wait: comm2}}",
        f"{{{CALL}}}, {{{CALL}, stream: comm1}}, {{{CALL}, stream: comm_nodes}}",
        f"{{compute: 1 ms, stream: side}}, {{{CALL}}}",
        f"{{repeat: 2, do: [{{wait: dp}}, {{{CALL}, stream: dp}}]}}",
        f"{{{CALL}}}, {{wait: comm}}",
    ],
)
def test_streams_of_own_names_are_no_slip(operations):
    assert loaded(f"do: [{operations}]").warnings == ()


def test_a_wait_for_a_usual_stream_on_which_nothing_runs():
    (warning,) = loaded(f"do: [{{{CALL}, after: compute}}]").warnings
    assert str(warning) == (
        "a.yaml:4: programs[0].do[0].after: has no effect: nothing runs on stream 'compute'"
    )


def test_a_program_whose_ranks_are_outside_the_group():
    told = refusal(f"{{ranks: 5, do: [{{{CALL}, group: 0-3}}]}}")
    assert told == (
        "a.yaml:4: programs[0].do[0].group: no rank of this program (5) is in the group\n"
        "  allowed: a group with some of the ranks 5 of the cluster."
    )


def test_a_rank_that_takes_part_in_no_call():
    told = refusal(
        f"{{ranks: 0-6, do: [{{{CALL}, group: 0-2}}, {{repeat: 2, do: [{{{CALL}, group: 3-5}}]}}]}}"
    )
    assert told == (
        "a.yaml:4: programs[0].ranks: rank 6 takes part in no call of this program\n"
        "  allowed: ranks that are in the group of at least one call."
    )


def test_ranks_that_take_part_in_some_calls():
    loaded(f"do: [{{{CALL}, group: 0-3}}, {{{CALL}, group: 4-7}}, {{compute: 1 ms}}]")


def test_a_program_that_only_computes():
    loaded("{ranks: 0-3, do: [{compute: 1 ms}]}", f"{{ranks: 4-7, do: [{{{CALL}, group: 4-7}}]}}")
