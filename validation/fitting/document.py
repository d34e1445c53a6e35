"""A profile's YAML file with fitted constants in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from validation.fitting.problem import Parameter

__all__ = ["profile_path", "with_constants"]


def profile_path(name: str) -> Path:
    """Return where a shipped profile lies."""
    return Path(str(resources.files("simulator.costs") / "profiles" / f"{name}.yaml"))


def with_constants(
    document: dict[str, Any], given: Sequence[Parameter], values: Mapping[str, float]
) -> dict[str, Any]:
    """Return the document with the parameters set, three digits each, in the file's units."""
    for parameter in given:
        *path, last = parameter.key.split(".")
        place = document
        for word in path:
            place = place.setdefault(word, {})
        number = float(f"{values[parameter.key] / parameter.scale:.3g}")
        place[last] = f"{number:g} us" if parameter.unit == "us" else number
    return document
