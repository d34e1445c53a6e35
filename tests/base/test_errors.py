"""A problem says where, what, what is allowed, and the nearest name."""

from __future__ import annotations

import pytest

from simulator.base import errors
from simulator.base.errors import CollsimError, Problem, ScenarioError, nearest, unknown_name
from simulator.base.registry import Registry


def test_problem_in_full():
    problem = Problem(
        file="scenarios/fsdp.yaml",
        line=12,
        key="collective.algorithm",
        message="unknown algorithm 'rign' for all_reduce",
        allowed="halving_doubling, ring, tree",
        suggestion="ring",
    )
    assert str(problem) == (
        "scenarios/fsdp.yaml:12: collective.algorithm: unknown algorithm 'rign' for all_reduce\n"
        "  allowed: halving_doubling, ring, tree. Did you mean 'ring'?"
    )


def test_problem_with_the_message_alone():
    assert str(Problem(message="is empty")) == "is empty"
    assert str(Problem(message="m", suggestion="x")) == "m\n  Did you mean 'x'?"


def test_an_error_takes_text_one_problem_or_many():
    assert CollsimError("a").problems == (Problem(message="a"),)
    assert str(CollsimError([Problem(message="a"), Problem(message="b")])) == "a\nb"
    assert CollsimError(Problem(message="a")).problems == (Problem(message="a"),)


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("ScenarioError", 2),
        ("TopologyError", 2),
        ("ScheduleError", 2),
        ("CalibrationError", 2),
        ("UnitError", 2),
        ("RoutingError", 1),
        ("SimulationError", 1),
    ],
)
def test_every_error_is_one_of_ours_with_its_exit_code(name, code):
    error = getattr(errors, name)
    assert issubclass(error, CollsimError)
    assert error.exit_code == code


@pytest.mark.parametrize(
    ("found", "best"),
    [("rign", "ring"), ("Ring", "ring"), ("double-binary-tree", "double_binary_tree"), ("q", None)],
)
def test_nearest(found, best):
    assert nearest(found, ["tree", "ring", "double_binary_tree"]) == best


def test_nearest_of_nothing():
    assert nearest("ring", []) is None


def test_unknown_name_sorts_what_is_allowed():
    assert unknown_name("fabric", "x", ["b", "a"]).allowed == "a, b"


def test_registry_refuses_a_second_plugin_of_one_name():
    registry = Registry[int]("shape")
    registry.register("one", summary="s", reference="r")(1)
    with pytest.raises(ValueError, match="shape 'one' is registered twice"):
        registry.register("one", summary="s", reference="r")(2)
    assert (list(registry), len(registry), "one" in registry) == (["one"], 1, True)


def test_registry_names_the_nearest():
    registry = Registry[int]("shape")
    for name in ("two", "one"):
        registry.register(name, summary=f"s {name}", reference="r")(1)
    with pytest.raises(CollsimError) as found:
        registry["onee"]
    assert str(found.value) == "unknown shape 'onee'\n  allowed: one, two. Did you mean 'one'?"
    assert [entry.name for entry in registry.entries()] == ["one", "two"]


def test_scenario_errors_can_be_caught_as_ours():
    with pytest.raises(CollsimError):
        raise ScenarioError("x")
