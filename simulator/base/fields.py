"""Configuration fields: one declaration gives type, unit, default, limits and documentation.

Option dataclasses of every room (topologies, routing, costs, scenario sections) declare their
fields with `option`.  The scenario reader converts YAML scalars by the declared kind, and
``collsim show --resolved`` prints them with their unit.
"""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Iterator
from decimal import Decimal
from typing import Any, Literal

from simulator.base.errors import Problem, UnitError, nearest
from simulator.base.limits import KIND_LIMITS, MOST_RANKS, MOST_TIME_S, shortened
from simulator.base.units import (
    exact_rate,
    exact_size,
    exact_time,
    parse_fraction,
    parse_rate,
    parse_size,
    parse_time,
)

__all__ = [
    "KIND_WORDS",
    "MOST_TIME_S",
    "Kind",
    "OptionField",
    "format_ranks",
    "option",
    "option_fields",
    "parse_count",
    "parse_flag",
    "parse_ranks",
]

Kind = Literal["rate", "time", "size", "count", "fraction", "flag", "name", "text", "ranks"]
"""``rate`` → float bytes/s, ``time`` → float seconds, ``size`` → int bytes, ``count`` → int ≥ 0,
``fraction`` → float ≥ 0, ``flag`` → bool, ``name`` → str out of a set, ``text`` → any str,
``ranks`` → tuple of int."""

KIND_WORDS: dict[Kind, str] = {
    "rate": "bandwidth, `400 Gbit/s`",
    "time": "time, `2.5 us`",
    "size": "size, `25 MiB`",
    "count": "whole number",
    "fraction": "number or percent",
    "flag": "yes or no",
    "name": "name",
    "text": "text",
    "ranks": "ranks, `0-7,16`",
}
"""How each kind is written, for documentation."""

_SUFFIX = {"rate": "_Bps", "time": "_s", "size": "_bytes"}
_TRUE, _FALSE = ("true", "yes", "on"), ("false", "no", "off")
_RANGE = re.compile(r"^\s*(\d{1,18})\s*(?:-\s*(\d{1,18})\s*(?::\s*(\d{1,18})\s*)?)?$", re.ASCII)


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
    maximum: float | None = None
    many: bool = False
    sweep: bool = True
    spelled: str | None = None

    @property
    def key(self) -> str:
        """Return the key in files: the name without its unit (``delay`` for ``delay_s``)."""
        return self.spelled or self.name.removesuffix(_SUFFIX.get(self.kind, "\0"))

    def parse(self, text: str) -> Any:
        """Return the value of one scalar, in internal units.

        Raises
        ------
        UnitError
            Not of the declared kind, an unknown name, or outside the limits.
        """
        value = self._convert(text)
        low, high = self.limits
        if low is not None and value < low:
            raise UnitError(self._outside(text, "small"))
        if high is not None and value > high:
            raise UnitError(self._outside(text, "large"))
        return value

    @property
    def limits(self) -> tuple[float | None, float | None]:
        """Least and most in internal units: the option's own, else those of its kind."""
        low, high = KIND_LIMITS.get(self.kind, (None, None))
        return (
            low if self.minimum is None else self.minimum,
            high if self.maximum is None else self.maximum,
        )

    def _outside(self, text: str, how: str) -> Problem:
        return Problem(message=f"{shortened(text)} is too {how}", allowed=self._range(*self.limits))

    def _range(self, low: float | None, high: float | None) -> str:
        if low is not None and high is not None:
            return f"{self.show(low)} … {self.show(high)}"
        return f"≥ {self.show(low)}" if low is not None else f"≤ {self.show(high)}"

    def _convert(self, text: str) -> Any:
        match self.kind:
            case "rate":
                return parse_rate(text)
            case "time":
                return parse_time(text)
            case "size":
                return parse_size(text, zero=self.minimum == 0)
            case "count":
                return parse_count(text)
            case "fraction":
                return parse_fraction(text)
            case "flag":
                return parse_flag(text)
            case "ranks":
                return parse_ranks(text)
            case "name" if self.choices is not None and text not in self.choices:
                raise UnitError(
                    Problem(
                        message=f"unknown {self.key} {text!r}",
                        allowed=", ".join(self.choices),
                        suggestion=nearest(text, self.choices),
                    )
                )
        return text

    def show(self, value: Any) -> str:
        """Return the value with its unit, so that `parse` gives exactly the value back."""
        if value is None:
            return "null"
        match self.kind:
            case "rate":
                return exact_rate(value)
            case "time":
                return exact_time(value)
            case "size":
                return exact_size(int(value))
            case "fraction":
                return f"{value:g}" if float(f"{value:g}") == value else repr(float(value))
            case "flag":
                return "true" if value else "false"
            case "ranks":
                return format_ranks(value)
        return str(value)


def option(
    kind: Kind,
    default: Any = dataclasses.MISSING,
    *,
    doc: str,
    choices: tuple[str, ...] | None = None,
    minimum: float | None = None,
    maximum: float | None = None,
    many: bool = False,
    sweep: bool = True,
    key: str | None = None,
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
    minimum, maximum
        Smallest and largest allowed value in internal units.
    many
        The value is a list by nature (a tuple of the kind's values), never a sweep.
    sweep
        A list of values makes variants; False: a list is an error.
    key
        Key in files, where it is not the field's name without its unit.
    """
    metadata = {
        "kind": kind,
        "doc": doc,
        "choices": choices,
        "minimum": minimum,
        "maximum": maximum,
        "many": many,
        "sweep": sweep,
        "spelled": key,
    }
    return dataclasses.field(default=default, metadata=metadata)


def option_fields(owner: type[Any]) -> Iterator[OptionField]:
    """Generate the declared options of a dataclass, in order."""
    for item in dataclasses.fields(owner):
        if "kind" in item.metadata:
            yield OptionField(
                name=item.name,
                required=item.default is dataclasses.MISSING,
                default=None if item.default is dataclasses.MISSING else item.default,
                **item.metadata,
            )


def parse_count(text: str) -> int:
    """Return a whole number ≥ 0; ``7e9`` and ``1_024`` are read as such.

    Examples
    --------
    >>> parse_count("7e9"), parse_count("16")
    (7000000000, 16)
    """
    shown = shortened(text)
    problem = Problem(message=f"{shown!r} is not a whole number", allowed="such as 8 or 7e9")
    if not re.fullmatch(r"\s*[+-]?\d[\d_]*(\.\d*)?([eE]\+?\d{1,2})?\s*", text, re.ASCII):
        raise UnitError(problem)
    value = Decimal(text.strip().replace("_", ""))
    if value != value.to_integral_value():
        raise UnitError(problem)
    if value < 0:
        raise UnitError(Problem(message=f"{shown} is negative", allowed="a whole number ≥ 0"))
    return int(value)


def parse_flag(text: str) -> bool:
    """Return True or False.

    Examples
    --------
    >>> parse_flag("yes"), parse_flag("off")
    (True, False)
    """
    folded = text.strip().lower()
    if folded not in _TRUE + _FALSE:
        raise UnitError(Problem(message=f"{text!r} is not yes or no", allowed="true, false"))
    return folded in _TRUE


def parse_ranks(text: str) -> tuple[int, ...]:
    """Return the ranks of a list of ranges, in the order written.

    Parameters
    ----------
    text
        Comma-separated ranks, ranges ``first-last`` (last included) and ``first-last:stride``.

    Raises
    ------
    UnitError
        Not such a list, a range that runs backwards, or a rank named twice.

    Examples
    --------
    >>> parse_ranks("0-3,16"), parse_ranks("0-6:2")
    ((0, 1, 2, 3, 16), (0, 2, 4, 6))
    """
    ranks: list[int] = []
    for part in text.split(","):
        match = _RANGE.match(part)
        if match is None:
            raise UnitError(
                Problem(
                    message=f"{shortened(part.strip())!r} is no rank",
                    allowed="such as 0-7,16 or 0-6:2",
                )
            )
        first = int(match[1])
        last = first if match[2] is None else int(match[2])
        stride = 1 if match[3] is None else int(match[3])
        if last < first or stride < 1:
            raise UnitError(Problem(message=f"{part.strip()!r} is empty", allowed="first ≤ last"))
        if (last - first) // stride + len(ranks) >= MOST_RANKS:
            raise UnitError(
                Problem(message=f"{part.strip()!r} has too many ranks", allowed=f"≤ {MOST_RANKS}")
            )
        ranks += range(first, last + 1, stride)
    if len(set(ranks)) != len(ranks):
        twice = min(rank for rank, times in Counter(ranks).items() if times > 1)
        raise UnitError(Problem(message=f"rank {twice} is named twice", allowed="each rank once"))
    return tuple(ranks)


def format_ranks(ranks: tuple[int, ...]) -> str:
    """Return ranks as ranges; `parse_ranks` gives the same order back.

    Examples
    --------
    >>> format_ranks((0, 1, 2, 3, 16)), format_ranks((0, 8, 16, 24)), format_ranks((5,))
    ('0-3,16', '0-24:8', '5')
    """
    parts: list[str] = []
    start = 0
    while start < len(ranks):
        end = start + 1
        stride = ranks[end] - ranks[start] if end < len(ranks) else 0
        while end + 1 < len(ranks) and ranks[end + 1] - ranks[end] == stride:
            end += 1
        length = end - start + 1
        if stride >= 1 and (length >= 3 or stride == 1):
            step = "" if stride == 1 else f":{stride}"
            parts.append(f"{ranks[start]}-{ranks[end]}{step}")
            start = end + 1
        else:
            parts.append(str(ranks[start]))
            start += 1
    return ",".join(parts)
