"""Resolved dataclasses → plain YAML data that reads back to the same."""

from __future__ import annotations

from typing import Any

from simulator.base.fields import OptionField
from simulator.scenario.reader import declared

__all__ = ["to_plain"]


def to_plain(instance: Any) -> dict[str, Any]:
    """Return a section as a dict of keys to numbers, texts with units, lists and dicts."""
    result: dict[str, Any] = {}
    for item in declared(type(instance)):
        value = getattr(instance, item.name)
        if not isinstance(item, OptionField):
            result[item.key] = item.shape.plain(value)
        elif item.many and value is not None:
            result[item.key] = [_scalar(item, part) for part in value]
        else:
            result[item.key] = _scalar(item, value)
    return result


def _scalar(item: OptionField, value: Any) -> Any:
    if value is None:
        return None if item.kind in ("name", "text") else "auto"
    if item.kind in ("count", "flag", "fraction"):
        return value
    return item.show(value)
