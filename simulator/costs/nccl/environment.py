"""NCCL's environment variables: which are honoured, their values, warnings for the rest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from simulator.base.errors import Problem, ScenarioError, nearest
from simulator.base.units import is_whole
from simulator.costs.nccl.graph import PathType
from simulator.costs.nccl.selection import Selection, parse_selection
from simulator.costs.nccl.tables import read_table
from simulator.costs.nccl.version import NcclVersion

__all__ = [
    "NcclEnvironment",
    "Variable",
    "parse_environment",
    "parse_value",
    "remark_on",
    "row",
    "variables",
]

_OLD_LEVELS = (PathType.LOC, PathType.PIX, PathType.PXB, PathType.PHB, PathType.SYS)
"""Meaning of the numbers 0 … 4 that older versions took for a level."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Variable:
    """One variable of the table."""

    name: str
    kind: str
    """``flag``, ``int``, ``level``, ``algorithms``, ``protocols``, ``numbers``, ``list``,
    ``choice`` or ``text``."""
    effect: str
    """``modelled``, ``none`` (changes nothing here), ``plan`` (no time, only the plan of sends and
    receives) or ``unknown``."""
    note: str
    acts: str = ""
    """What a modelled variable changes: ``choice``, or the key of ``routing`` or ``node``."""
    needs: str = ""
    """Without which it does nothing: ``network``, ``verbs``, ``sockets``, ``gpudirect``, …"""
    default: int | None = None
    """NCCL's own default where it is one number."""
    minimum: int | None = None
    maximum: int | None = None
    multiple: int = 1
    count: int = 0
    """How many numbers a ``numbers`` value has."""
    since: str | None = None
    until: str | None = None
    aliases: tuple[str, ...] = ()
    values: tuple[str, ...] = ()
    """What a ``choice`` may be."""

    @property
    def allowed(self) -> str:
        """What a value may be, in words."""
        if self.kind == "flag":
            return "0 or 1"
        if self.kind == "int":
            low = "" if self.minimum is None else f" ≥ {self.minimum}"
            high = "" if self.maximum is None else f" and ≤ {self.maximum}"
            step = "" if self.multiple == 1 else f", a multiple of {self.multiple}"
            return f"a whole number{low}{high}{step}"
        if self.kind == "level":
            return "LOC, NVL, PIX, PXB, PHB, SYS or 0 … 4"
        if self.kind == "numbers":
            return f"{self.count} whole numbers"
        if self.kind == "choice":
            return ", ".join(self.values)
        return "names after commas" if self.kind == "list" else "text"


@dataclass(frozen=True, slots=True, kw_only=True)
class NcclEnvironment:
    """The variables of a run, parsed."""

    values: Mapping[str, Any] = field(default_factory=dict)
    """By main name: int, `PathType`, `Selection`, tuple of int or str."""
    warnings: tuple[str, ...] = ()

    def integer(self, name: str, default: int) -> int:
        """Return a flag or whole number, or the default when it is not set."""
        value = self.values.get(name)
        return default if value is None else int(value)

    def level(self, name: str) -> PathType | None:
        """Return a path level, or None when it is not set."""
        value = self.values.get(name)
        return value if isinstance(value, PathType) else None

    def allows(self, variable: str, collective: str, name: str) -> bool:
        """Return whether ``NCCL_ALGO`` or ``NCCL_PROTO`` lets a choice be made."""
        value = self.values.get(variable)
        return value.allows(collective, name) if isinstance(value, Selection) else True


def variables() -> dict[str, Variable]:
    """Return the table by main name."""
    return {
        name: row(name, entry) for name, entry in read_table("environment")["variables"].items()
    }


def row(name: str, entry: Mapping[str, Any]) -> Variable:
    """Return a variable from its row in a data file."""
    known = dict(entry)
    known["minimum"] = known.pop("min", None)
    known["maximum"] = known.pop("max", None)
    known["aliases"] = tuple(known.pop("aliases", ()))
    known["values"] = tuple(known.pop("values", ()))
    return Variable(name=name, **known)


def _integer(text: str, variable: Variable) -> int | Problem:
    try:
        value = int(text, 0)
    except ValueError:
        return Problem(message=f"{text!r} is not a whole number", allowed=variable.allowed)
    low = 0 if variable.kind == "flag" else variable.minimum
    high = 1 if variable.kind == "flag" else variable.maximum
    if (
        (low is not None and value < low)
        or (high is not None and value > high)
        or value % variable.multiple
    ):
        return Problem(message=f"{value} is outside its range", allowed=variable.allowed)
    return value


def _level(text: str, variable: Variable) -> PathType | Problem:
    if text in PathType.__members__:
        return PathType[text]
    if is_whole(text):
        return _OLD_LEVELS[min(int(text), len(_OLD_LEVELS) - 1)]
    names = ("LOC", "NVL", "PIX", "PXB", "PHB", "SYS")
    return Problem(
        message=f"{text!r} is not a path level",
        allowed=variable.allowed,
        suggestion=nearest(text, names),
    )


def _numbers(text: str, variable: Variable) -> tuple[int, ...] | Problem:
    parts = text.split()
    if len(parts) != variable.count or not all(is_whole(part.removeprefix("-")) for part in parts):
        return Problem(message=f"{text!r} are not its numbers", allowed=variable.allowed)
    return tuple(int(part) for part in parts)


def parse_value(text: str, variable: Variable) -> Any:
    """Return the parsed value or a `Problem`."""
    if variable.kind in ("flag", "int"):
        return _integer(text, variable)
    if variable.kind == "level":
        return _level(text, variable)
    if variable.kind == "numbers":
        return _numbers(text, variable)
    if variable.kind == "list":
        return tuple(part.strip() for part in text.split(",") if part.strip())
    if variable.kind == "choice" and text not in variable.values:
        return Problem(
            message=f"unknown value {text!r}",
            allowed=variable.allowed,
            suggestion=nearest(text, variable.values),
        )
    return text


def remark_on(variable: Variable) -> str | None:
    """Return a warning when the variable does nothing in the model."""
    if variable.effect in ("none", "plan"):
        return f"{variable.name} has no effect in the model: {variable.note}"
    if variable.effect == "unknown":
        return f"{variable.name} is not modelled: {variable.note}"
    return None


def _remark(variable: Variable, version: NcclVersion) -> str | None:
    """Return a warning when the variable does nothing in this version or in the model."""
    if variable.since is not None and version < NcclVersion.parse(variable.since):
        return f"{variable.name} came with NCCL {variable.since}: no effect in {version}"
    if variable.until is not None and version >= NcclVersion.parse(variable.until):
        return f"{variable.name} has no effect in NCCL {version}: {variable.note}"
    return remark_on(variable)


def parse_environment(
    mapping: Mapping[str, object],
    version: NcclVersion,
    *,
    file: str = "",
    instead: Mapping[str, Variable] | None = None,
) -> NcclEnvironment:
    """Return the NCCL variables of *mapping*; variables of others are left alone.

    Parameters
    ----------
    mapping
        Names and values, as in a shell or a scenario; values may be numbers.
    version
        Decides which variables and names exist.
    file
        Where the mapping stands, for messages.
    instead
        Rows of a library with NCCL's names but other ranges (RCCL).

    Raises
    ------
    ScenarioError
        Values that are not of their variable's kind, all of them together.  NCCL itself replaces
        most of them by a default with a line in its log.

    Examples
    --------
    >>> parse_environment({"NCCL_MAX_NCHANELS": 4}, NcclVersion(2, 21)).warnings
    ("NCCL_MAX_NCHANELS is not known. Did you mean 'NCCL_MAX_NCHANNELS'?",)
    """
    table = {**variables(), **(instead or {})}
    by_name = {alias: row for row in table.values() for alias in (row.name, *row.aliases)}
    values: dict[str, Any] = {}
    problems: list[Problem] = []
    warnings: list[str] = []
    for name, raw in mapping.items():
        if not name.startswith("NCCL_"):
            continue
        variable = by_name.get(name)
        if variable is None:
            close = nearest(name, by_name)
            hint = "" if close is None else f" Did you mean {close!r}?"
            warnings.append(f"{name} is not known.{hint}")
            continue
        text = str(int(raw)) if isinstance(raw, bool) else str(raw).strip()
        remark = _remark(variable, version)
        if remark is not None:
            warnings.append(remark)
        if variable.kind in ("algorithms", "protocols"):
            value, found, notes = parse_selection(variable.name, text, version)
            warnings += notes
            problems += [_placed(problem, name, file) for problem in found]
        else:
            value = parse_value(text, variable)
            if isinstance(value, Problem):
                problems.append(_placed(value, name, file))
                continue
        # The main name wins over its aliases, as in NCCL.
        kept = remark is None or variable.effect == "plan"
        if kept and (name == variable.name or variable.name not in mapping):
            values[variable.name] = value
    if problems:
        raise ScenarioError(problems)
    return NcclEnvironment(values=values, warnings=tuple(warnings))


def _placed(problem: Problem, name: str, file: str) -> Problem:
    return Problem(
        message=problem.message,
        key=name,
        file=file,
        allowed=problem.allowed,
        suggestion=problem.suggestion,
    )
