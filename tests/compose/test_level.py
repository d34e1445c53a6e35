"""Which level of detail a run takes: never one that does not hold without a word."""

from __future__ import annotations

from typing import Any

import pytest

import simulator as collsim
from simulator.results.model import RunResult
from simulator.results.tables import comparison_table, summary_table

SPINE = {
    "node": "dgx-h100",
    "gpus_per_node": 1,
    "fabric": {"kind": "leaf_spine", "oversubscription": 2},
    "routing": {"policy": "ecmp"},
    "costs": {"profile": "ideal"},
}
"""Pairs of ranks share uplinks unevenly."""


def halving(nodes: int | list[int], sizes: list[str], **more: Any) -> RunResult:
    call = {"op": "all_reduce", "algorithm": "halving_doubling", "sizes": sizes}
    return collsim.run(**{**SPINE, "nodes": nodes, "collective": call, **more}, workers=1)


def test_more_messages_are_followed_where_the_folded_level_is_in_doubt() -> None:
    """1,024 ranks send 20,480 messages; folded they take a tenth less."""
    fabric = {**SPINE["fabric"], "radix": 128}
    auto = halving(1024, ["64 MiB"], fabric=fabric)
    steps = halving(1024, ["64 MiB"], fabric=fabric, engine={"level": "steps"})
    assert [row.level for row in auto.rows] == ["steps"]
    assert auto.rows[0].time_s == steps.rows[0].time_s


def test_a_level_that_is_in_doubt_is_told() -> None:
    few = {"level": "auto", "max_transfers": 20_000}
    result = halving(64, ["64 MiB"], engine=few)
    assert result.rows[0].level == "folded"
    assert any("share links, and 768 are too many" in text for text in result.warnings)


def test_no_doubt_where_all_are_on_the_wire_at_once() -> None:
    call = {"op": "all_to_all", "algorithm": "direct", "size": "64 MiB"}
    few = {"level": "auto", "max_transfers": 100_000}
    result = collsim.run(**SPINE, nodes=32, collective=call, engine=few)
    steps = collsim.run(**SPINE, nodes=32, collective=call, engine={"level": "steps"})
    assert result.rows[0].level == "folded"
    assert not result.warnings
    assert result.rows[0].time_s == pytest.approx(steps.rows[0].time_s, rel=0.01)


def test_more_transfers_than_asked_for_are_told() -> None:
    result = halving(64, ["64 MiB"], engine={"level": "auto", "max_transfers": 700})
    assert result.rows[0].level == "folded"
    assert any("768 transfers, more than engine.max_transfers (700)" in t for t in result.warnings)


def test_the_sizes_of_a_sweep_have_one_level() -> None:
    """Open MPI gathers by recursive doubling and by a ring, by size; one of them is too much."""
    call = {"op": "all_gather", "sizes": ["4 KiB", "64 MiB"]}
    costs = {"profile": "mpi"}
    few = {"level": "auto", "max_transfers": 500}
    asked = {**SPINE, "nodes": 32, "costs": costs, "engine": few}
    alone = collsim.run(**asked, collective={**call, "sizes": ["4 KiB"]}).rows[0]
    rows = collsim.run(**asked, collective=call).rows
    assert alone.level == "steps"
    assert [row.level for row in rows] == ["folded", "folded"]
    assert rows[0].level_reason == "as the rest of the sweep"


def test_the_variants_of_a_sweep_have_one_level() -> None:
    few = {"level": "auto", "max_transfers": 100_000}
    result = halving([16, 64], ["64 MiB"], engine=few)
    assert [row.level for row in result.rows] == ["folded", "folded"]
    folded = halving(16, ["64 MiB"], engine={"level": "folded"})
    assert result.rows[0].time_s == folded.rows[0].time_s
    assert "level: folded (as the rest of the sweep), folded (too many messages to follow)" in (
        comparison_table(result.rows, title="").remarks
    )


@pytest.mark.parametrize(
    ("profile", "told"),
    [
        ("ideal", "level: steps"),
        ("nccl", "level: folded (the constants of nccl are fitted there)"),
    ],
)
def test_the_level_stands_below_the_table(profile: str, told: str) -> None:
    call = {"op": "all_reduce", "size": "1 MiB"}
    result = collsim.run(node="dgx-h100", nodes=2, collective=call, costs={"profile": profile})
    assert told in summary_table(result).remarks
