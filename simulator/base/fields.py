"""Configuration fields: one declaration gives type, unit, default, limits and documentation.

Option dataclasses of every room (topologies, routing, costs, scenario sections) declare their
fields with `option`.  The scenario reader converts YAML scalars by the declared kind, and
``collsim show --resolved`` prints them with their unit.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any, Literal

__all__ = ["Kind", "OptionField", "option", "option_fields"]

Kind = Literal["rate", "time", "size", "count", "fraction", "flag", "name", "text"]
"""``rate`` → float bytes/s, ``time`` → float seconds, ``size`` → int bytes, ``count`` → int ≥ 0,
``fraction`` → float ≥ 0, ``flag`` → bool, ``name`` → str out of a set, ``text`` → any str."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class OptionField:
    """One field of an option dataclass, as the scenario reader sees it."""

    name: str
    kind: Kind
    required: bool
    default: Any
    doc: str
    choices: tuple[str, ...] | None
    minimum: float | None


def option(
    kind: Kind,
    default: Any = dataclasses.MISSING,
    *,
    doc: str,
    choices: tuple[str, ...] | None = None,
    minimum: float | None = None,
) -> Any:
    """Declare a configuration field of a dataclass.

    Parameters
    ----------
    kind
        How the YAML scalar is read, see `Kind`.
    default
        Value in internal units (seconds, bytes, bytes/s); missing means required.
        None means "derive from the rest of the scenario".
    doc
        Meaning, unit and interaction, one sentence.
    choices
        Allowed names of a ``name``.
    minimum
        Smallest allowed value in internal units.
    """
    metadata = {"kind": kind, "doc": doc, "choices": choices, "minimum": minimum}
    return dataclasses.field(default=default, metadata=metadata)


def option_fields(owner: type[Any]) -> Iterator[OptionField]:
    """Generate the declared options of a dataclass, in order."""
    for item in dataclasses.fields(owner):
        if "kind" in item.metadata:
            yield OptionField(
                name=item.name,
                kind=item.metadata["kind"],
                required=item.default is dataclasses.MISSING,
                default=None if item.default is dataclasses.MISSING else item.default,
                doc=item.metadata["doc"],
                choices=item.metadata["choices"],
                minimum=item.metadata["minimum"],
            )
