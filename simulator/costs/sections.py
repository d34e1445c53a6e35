"""Sections of profiles' files: laid over each other, and by dotted key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import yaml

__all__ = ["below", "merged", "nested"]

_WHOLE = ("rules",)
"""Sections that a profile replaces as a whole: tables of rules are no sum of two libraries'."""


def merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Return a profile's data laid over those of the profile it extends, section by section.

    Examples
    --------
    >>> merged({"launch": {"time": "1 us", "source": "a"}}, {"launch": {"time": "2 us"}})
    {'launch': {'time': '2 us', 'source': 'a'}}
    """
    found = dict(base)
    for key, value in over.items():
        below = found.get(key)
        both = isinstance(value, Mapping) and isinstance(below, Mapping) and key not in _WHOLE
        found[key] = merged(below, value) if both else value  # type: ignore[arg-type]
    return found


def below(node: yaml.Node, words: Sequence[str]) -> yaml.Node:
    """Return the node at a path that is there."""
    for word in words:
        node = next(value for key, value in node.value if key.value == word)
    return node


def nested(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Return values by dotted key as sections.

    Examples
    --------
    >>> nested({"launch.time": "2 us"})
    {'launch': {'time': '2 us'}}
    """
    found: dict[str, Any] = {}
    for path, value in flat.items():
        *words, last = path.split(".")
        place = found
        for word in words:
            place = place.setdefault(word, {})
        place[last] = value
    return found
