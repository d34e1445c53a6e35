"""A profile's YAML file with fitted constants in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from validation.fitting.problem import Parameter

__all__ = ["profile_path", "read_document", "with_constants", "write_document"]


def profile_path(name: str) -> Path:
    """Return where a shipped profile lies."""
    return Path(str(resources.files("simulator.costs") / "profiles" / f"{name}.yaml"))


def read_document(name: str) -> dict[str, Any]:
    """Return a shipped profile's file as it is."""
    import yaml

    found: dict[str, Any] = yaml.safe_load(profile_path(name).read_text("utf-8"))
    return found


def write_document(name: str, document: dict[str, Any]) -> None:
    """Write a profile's file."""
    import yaml

    text = yaml.safe_dump(document, sort_keys=False, width=100, allow_unicode=True)
    head = "# Written by `python -m validation.fit --write`; the fit is described under `fitted`.\n"
    profile_path(name).write_text(head + text, "utf-8")


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
