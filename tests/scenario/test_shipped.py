"""The scenarios that come with the program ask real questions and are read without a word."""

from __future__ import annotations

import pytest

from simulator.base.errors import Problem, RoutingError, TopologyError
from simulator.scenario import dump, load, loads
from tests.scenario.resolving import FILES, KEPT, text_of


def test_there_are_scenarios_for_every_kind():
    assert len(FILES) >= 15
    kinds = {variant.kind for path in FILES for variant in load(path).variants}
    assert kinds == {"collective", "training", "steps", "jobs"}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_it_is_read_without_warnings_and_resolves_to_itself(path):
    found = load(path)
    assert found.warnings == ()
    for variant in found.variants:
        assert loads(dump(variant)).variants == (variant,)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_it_says_what_it_asks(path):
    description = load(path).variants[0].description
    assert len(description) > 40
    assert "?" in description or "same model" in description


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_it_means_what_it_meant(path):
    """Regression; after a wanted change: ``python -m tests.scenario.resolving``."""
    assert text_of(path) == (KEPT / f"{path.stem}.json").read_text("utf-8")


def test_nothing_is_kept_of_scenarios_that_are_gone():
    assert {path.stem for path in KEPT.glob("*.json")} == {path.stem for path in FILES}


def test_errors_of_building_get_their_line(tmp_path):
    path = tmp_path / "a.yaml"
    path.write_text(
        "schema_version: 1\nnode: dgx-h100\nnodes: 2\n"
        "fabric: {kind: leaf_spine, radix: 8}\ncollective: {op: all_reduce, size: 1 MiB}\n"
    )
    (variant,) = load(path, overrides=["seed=3"]).variants
    error = TopologyError(
        [
            Problem(key="fabric.radix", message="does not fit"),
            Problem(key="seed", message="is odd"),
            Problem(key="routing.pxn", message="cannot be"),
            Problem(key="elsewhere", message="unknown here"),
        ]
    )
    located = variant.located(error)
    assert isinstance(located, TopologyError)
    assert str(located).splitlines() == [
        f"{path}:4: fabric.radix: does not fit",
        "--set: seed: is odd",
        "routing.pxn: cannot be",
        "elsewhere: unknown here",
    ]
    assert variant.located(RoutingError("cut")).exit_code == 1
