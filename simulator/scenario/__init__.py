"""Scenario files: YAML → frozen dataclasses → resolved scenarios, and back."""

from simulator.scenario.dump import describe, dump, to_json, to_mapping
from simulator.scenario.resolve import ScenarioSet, from_words, load, loads
from simulator.scenario.resolved import Resolved

__all__ = [
    "Resolved",
    "ScenarioSet",
    "describe",
    "dump",
    "from_words",
    "load",
    "loads",
    "to_json",
    "to_mapping",
]
