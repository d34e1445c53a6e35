"""Environment variables of all libraries: which belong to which, their values, warnings.

NCCL's own are in `simulator.costs.nccl.environment`; this module adds those of RCCL, gloo, MPI and
PyTorch, and tells a variable of another library from one that nobody knows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Any

import yaml

from simulator.base.errors import Problem, ScenarioError, nearest
from simulator.costs.nccl.environment import (
    NcclEnvironment,
    Variable,
    parse_environment,
    parse_value,
    remark_on,
    row,
    variables,
)
from simulator.costs.nccl.version import NcclVersion

__all__ = ["LIBRARIES", "Parsed", "library_variables", "markdown", "parse_variables", "write_docs"]

LIBRARIES = ("nccl", "rccl", "gloo", "mpi", "mpich")
"""Libraries with variables; RCCL also takes NCCL's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parsed:
    """The variables of a run."""

    nccl: NcclEnvironment = field(default_factory=NcclEnvironment)
    """NCCL's own, for NCCL and RCCL."""
    values: Mapping[str, Any] = field(default_factory=dict)
    """All that may act, NCCL's too: int, `PathType`, `Selection`, tuple or str by main name."""
    warnings: tuple[str, ...] = ()

    def integer(self, name: str, default: int) -> int:
        """Return a flag or whole number, or the default when it is not set."""
        value = self.values.get(name)
        return default if value is None else int(value)

    def names(self, name: str) -> tuple[str, ...]:
        """Return a list of names; empty when it is not set."""
        value = self.values.get(name, ())
        return tuple(value.split(",")) if isinstance(value, str) else tuple(value)


@cache
def _table() -> dict[str, dict[str, Variable]]:
    text = (resources.files("simulator.costs") / "variables.yaml").read_text("utf-8")
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    data: dict[str, dict[str, Any]] = yaml.load(text, Loader=loader)
    return {
        library: {name: row(name, entry) for name, entry in section.items()}
        for library, section in data.items()
    }


def library_variables(library: str) -> dict[str, Variable]:
    """Return the variables that a library reads, by name."""
    own = variables() if library in ("nccl", "rccl") else {}
    return {**own, **_table().get(library, {}), **_table()["any"]}


def parse_variables(
    mapping: Mapping[str, object], library: str, version: NcclVersion, *, file: str = ""
) -> Parsed:
    """Return the variables of a run for one library.

    Parameters
    ----------
    mapping
        Names and values as in a shell or a scenario.
    library
        One of `LIBRARIES`.
    version
        Of NCCL; other libraries ignore it.
    file
        Where the mapping stands, for messages.

    Raises
    ------
    ScenarioError
        Values that are not of their variable's kind, all of them together.

    Examples
    --------
    >>> parse_variables({"GLOO_SOCKET_IFNAM": "eth0"}, "gloo", NcclVersion(2, 23)).warnings
    ("GLOO_SOCKET_IFNAM is not known. Did you mean 'GLOO_SOCKET_IFNAME'?",)
    """
    known = library_variables(library) if mapping else {}
    reads_nccl = library in ("nccl", "rccl")
    problems: list[Problem] = []
    nccl = NcclEnvironment()
    if reads_nccl:
        try:
            own = {
                name: row
                for name, row in _table().get(library, {}).items()
                if name.startswith("NCCL_")
            }
            nccl = parse_environment(mapping, version, file=file, instead=own)
        except ScenarioError as error:
            problems += error.problems
    values: dict[str, Any] = dict(nccl.values)
    warnings = list(nccl.warnings)
    for name, raw in mapping.items():
        if reads_nccl and name.startswith("NCCL_"):
            continue
        variable = known.get(name)
        if variable is None:
            warnings.append(_stranger(name, library, known))
            continue
        text = str(int(raw)) if isinstance(raw, bool) else str(raw).strip()
        remark = remark_on(variable)
        if remark is not None:
            warnings.append(remark)
        value = parse_value(text, variable)
        if isinstance(value, Problem):
            problems.append(
                Problem(
                    message=value.message,
                    key=name,
                    file=file,
                    allowed=variable.allowed,
                    suggestion=value.suggestion,
                )
            )
        elif remark is None:
            values[name] = value
    if problems:
        raise ScenarioError(problems)
    return Parsed(nccl=nccl, values=values, warnings=tuple(warnings))


def _stranger(name: str, library: str, known: Mapping[str, Variable]) -> str:
    """Return the warning about a variable that the library does not read."""
    for other in LIBRARIES:
        if other != library and name in library_variables(other):
            return f"{name} belongs to {other}: no effect with {library}"
    close = nearest(name, known)
    return f"{name} is not known." + ("" if close is None else f" Did you mean {close!r}?")


_HEAD = """\
# Environment variables

What `env:` in a scenario, and `--env NAME=VALUE`, may hold. Made by `simulator.costs.variables`.
Only the variables of the chosen profile's library count: `env: {NCCL_P2P_DISABLE: 1}` with
`costs: nccl`. A value of the wrong kind is an error; an unknown variable, one of another library,
and one without effect on this cluster are warnings that say why.

**acts on** names what changes: `choice` is the library's choice of algorithm, protocol, channels
and chunks; otherwise it is the key of a scenario that does the same. A key that the scenario
itself sets wins over the variable. **needs** names what must be there for any effect: several
nodes (`network`), InfiniBand or RoCE ports driven by `verbs`, TCP `sockets`, `gpudirect`,
networks that hash flows (`ecmp`), `nvswitch` or `infiniband`.
"""


def markdown() -> str:
    """Return the page of all variables."""
    lines = [_HEAD]
    sections = {"nccl": variables(), **_table()}
    for library, rows in sections.items():
        title = {"any": "With every library", "mpi": "Open MPI", "nccl": "NCCL and RCCL"}
        lines += [f"## {title.get(library, library)}", ""]
        acting = [row for row in rows.values() if row.effect == "modelled"]
        if acting:
            lines += ["| variable | value | acts on | needs | meaning |", "|---|---|---|---|---|"]
            lines += [
                f"| {_names(row)} | {_value(row)} | {row.acts} | {row.needs} | {_note(row)} |"
                for row in acting
            ]
            lines.append("")
        for effect, words in (("none", "No effect in the model"), ("unknown", "Not modelled")):
            idle = [
                f"`{row.name}` ({row.note})"
                for row in rows.values()
                if row.effect == effect or (effect == "none" and row.effect == "plan")
            ]
            if idle:
                lines += [f"{words}: {'; '.join(idle)}.", ""]
    return "\n".join(lines)


def _names(variable: Variable) -> str:
    return ", ".join(f"`{name}`" for name in (variable.name, *variable.aliases))


def _value(variable: Variable) -> str:
    return (
        variable.allowed if variable.default is None else f"{variable.allowed}; {variable.default}"
    )


def _note(variable: Variable) -> str:
    ages = [f"since {variable.since}"] if variable.since else []
    ages += [f"until {variable.until}"] if variable.until else []
    return variable.note + (f" ({', '.join(ages)})" if ages else "")


def write_docs(path: str) -> None:
    """Write the page of `markdown` to a file."""
    with open(path, "w", encoding="utf-8") as stream:
        stream.write(markdown())
