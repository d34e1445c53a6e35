"""The page of all keys is the one that the program would write."""

from __future__ import annotations

import re
from pathlib import Path

from simulator.scenario import loads, plugins
from simulator.scenario.reference import markdown
from topologies.hardware_build import gpu_spec

PAGE = Path(__file__).parents[2] / "docs" / "scenario.md"


def test_the_page_is_up_to_date():
    """To make it again, see `simulator.scenario.reference`."""
    assert PAGE.read_text("utf-8") == markdown()


def test_every_fabric_and_section_is_on_the_page():
    text = markdown()
    for kind in plugins.fabric_kinds():
        assert f"### `kind: {kind}`" in text
    for key in (
        "collective",
        "perturb.links",
        "training",
        "reliability",
        "jobs",
        "topology.templates",
    ):
        assert f"## `{key}`" in text


def test_the_example_on_the_page_is_a_scenario():
    example = markdown().split("```yaml\n")[1].split("```")[0]
    found = loads(example)
    assert len(found.variants) == 2
    assert found.warnings == ()


def test_the_gpu_named_as_an_example_is_one():
    (example,) = re.findall(r"`gpu` \| text \| null \| GPU model, such as `([^`]+)`", markdown())
    assert gpu_spec(example).name == example
