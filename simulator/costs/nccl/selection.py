"""NCCL_ALGO and NCCL_PROTO: lists, ``^`` for all but these, and since 2.24 lists per function."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from simulator.base.errors import Problem, nearest
from simulator.costs.nccl.graph import ALGORITHMS, COLLECTIVES, PROTOCOLS
from simulator.costs.nccl.tables import read_table
from simulator.costs.nccl.version import NcclVersion

__all__ = ["Selection", "parse_selection"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """What a variable allows, by collective."""

    by_collective: Mapping[str, frozenset[str]]

    def allows(self, collective: str, name: str) -> bool:
        """Return whether the algorithm or protocol may be chosen for the collective."""
        allowed = self.by_collective.get(collective)
        return allowed is None or name in allowed


def _spellings(variable: str, version: NcclVersion) -> dict[str, tuple[str, ...]]:
    """Return the names a version knows, folded, each with ours."""
    if variable == "NCCL_PROTO":
        return {name.lower(): (name,) for name in PROTOCOLS}
    known = {}
    for spelling, entry in read_table("environment")["algorithms"].items():
        since = NcclVersion.parse(entry.get("since", "2.4"))
        until = NcclVersion.parse(entry.get("until", "2.99"))
        if since <= version < until:
            known[spelling.lower()] = tuple(entry["name"])
    return known


def parse_selection(
    variable: str, text: str, version: NcclVersion
) -> tuple[Selection, list[Problem], list[str]]:
    """Return what ``NCCL_ALGO`` or ``NCCL_PROTO`` allows, with problems and warnings.

    Parameters
    ----------
    variable
        ``NCCL_ALGO`` or ``NCCL_PROTO``.
    text
        ``Ring,Tree``; ``^NVLS``; since 2.24 also ``allreduce:tree,ring;allgather:ring``.
    version
        Decides which names exist.  Since 2.24 an unknown name stops the run, before it was
        skipped without a word; here it gives a problem or a warning.
    """
    strict = version.since(2, 24)
    known = _spellings(variable, version)
    every = frozenset(PROTOCOLS if variable == "NCCL_PROTO" else ALGORITHMS)
    functions = {name.replace("_", ""): name for name in COLLECTIVES}
    allowed: dict[str, frozenset[str]] = {}
    problems: list[Problem] = []
    warnings: list[str] = []
    for part in text.split(";") if strict else [text]:
        head, colon, listing = part.partition(":")
        targets: tuple[str, ...] = COLLECTIVES
        if colon and strict:
            if head.strip().lower() not in functions:
                problems.append(
                    Problem(
                        message=f"unknown function {head.strip()!r}",
                        key=variable,
                        allowed=", ".join(functions),
                        suggestion=nearest(head, functions),
                    )
                )
                continue
            targets = (functions[head.strip().lower()],)
        else:
            listing = part
        listing = listing.strip()
        inverted = listing.startswith("^")
        named: set[str] = set()
        for token in filter(None, (t.strip() for t in listing.lstrip("^").split(","))):
            ours = known.get(token.lower())
            if ours is not None:
                named.update(ours)
                continue
            problem = Problem(
                message=f"unknown name {token!r} for NCCL {version}",
                key=variable,
                allowed=", ".join(known),
                suggestion=nearest(token, known),
            )
            if strict:
                problems.append(problem)
            else:
                warnings.append(f"{problem}; NCCL {version} skips it")
        chosen = frozenset(every - named if inverted else named)
        allowed.update(dict.fromkeys(targets, chosen))
    return Selection(by_collective=allowed), problems, warnings
