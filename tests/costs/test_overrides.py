"""Every override of a cost constant moves a number where it should, or says that it does not."""

from __future__ import annotations

from functools import cache

import pytest

from simulator.compose.run import run_resolved
from simulator.costs.profile import load_profile, profile_names
from simulator.results.model import RunResult
from simulator.scenario import from_words

KEYS = [
    (name, key)
    for name, profile in ((name, load_profile(name)) for name in profile_names())
    for key in list(profile.keys())
]
SIZES = "8,1M"


@cache
def run_of(profile: str, node: str = "dgx-h100", nodes: int = 2, **overrides: str) -> RunResult:
    words = {
        "node": node,
        "nodes": str(nodes),
        "collective.op": "all_reduce",
        "collective.sizes": SIZES,
        "costs.profile": profile,
        **{f"costs.overrides.{key.replace('__', '.')}": text for key, text in overrides.items()},
    }
    return run_resolved(from_words(words).variants[0])


def test_there_are_constants_of_every_profile():
    assert len(KEYS) > 100
    assert {name for name, _ in KEYS} == set(profile_names())


@pytest.mark.parametrize(("profile", "key"), KEYS)
def test_an_override_acts_or_is_told_to_have_no_effect(profile, key):
    node = "mi300x" if profile == "rccl" else "dgx-h100"
    value = "7 ms" if key.startswith(("launch", "paths")) else "0.011"
    usual = run_of(profile, node)
    other = run_of(profile, node, **{key.replace(".", "__"): value})
    moved = [row.time_s for row in usual.rows] != [row.time_s for row in other.rows]
    told = [text for text in other.warnings if f"costs.overrides.{key} has no effect" in text]
    assert moved != bool(told)


def test_the_example_of_the_documentation_acts():
    usual = run_of("nccl", nodes=1)
    slow = run_of("nccl", nodes=1, links__nvlink__efficiency="0.1")
    assert slow.rows[1].time_s > 1.5 * usual.rows[1].time_s
    assert slow.warnings == usual.warnings


def test_the_launch_of_a_call_acts_on_every_profile():
    for profile in profile_names():
        usual, late = run_of(profile), run_of(profile, launch__time="7 ms")
        assert late.rows[0].time_s > usual.rows[0].time_s + 5e-3, profile


def test_the_value_that_a_profile_has_anyway():
    value = load_profile("ideal").efficiency["xgmi"]
    found = run_of("ideal", links__xgmi__efficiency=str(value))
    assert "costs.overrides.links.xgmi.efficiency has no effect: it is the profile's own value" in (
        found.warnings
    )
