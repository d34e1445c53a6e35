"""The table of algorithms: (collective, name) → a function ``(call, layout) -> Schedule``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from simulator.base.errors import Problem, ScheduleError, nearest
from simulator.collectives.call import Call, Layout
from simulator.collectives.schedule import Schedule

__all__ = ["Algorithm", "algorithm", "algorithms", "collectives", "get_algorithm"]


class AlgorithmFunction(Protocol):
    """A pure function from a call and a layout to a schedule."""

    def __call__(self, call: Call, layout: Layout) -> Schedule: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Algorithm:
    """One registered algorithm of one collective."""

    collective: str
    name: str
    function: AlgorithmFunction
    summary: str
    reference: str
    formula: str
    """Closed form of its time in alpha, S, B, n, for ``explain`` and the docs."""


_TABLE: dict[tuple[str, str], Algorithm] = {}


def algorithm(
    collective: str, name: str, *, summary: str, reference: str, formula: str
) -> Callable[[AlgorithmFunction], AlgorithmFunction]:
    """Register a function as algorithm *name* of *collective*; a duplicate raises ValueError."""

    def add(function: AlgorithmFunction) -> AlgorithmFunction:
        if (collective, name) in _TABLE:
            raise ValueError(f"algorithm {name!r} of {collective} is registered twice")
        _TABLE[collective, name] = Algorithm(
            collective=collective,
            name=name,
            function=function,
            summary=summary,
            reference=reference,
            formula=formula,
        )
        return function

    return add


def collectives() -> list[str]:
    """Return the collectives that have at least one algorithm, sorted."""
    return sorted({collective for collective, _ in _TABLE})


def algorithms(collective: str) -> list[str]:
    """Return the names of the algorithms of *collective*, sorted."""
    return sorted(name for owner, name in _TABLE if owner == collective)


def get_algorithm(collective: str, name: str) -> Algorithm:
    """Return one algorithm; an unknown collective or name raises ScheduleError."""
    found = _TABLE.get((collective, name))
    if found is not None:
        return found
    known = algorithms(collective)
    if not known:
        known = collectives()
        raise ScheduleError(
            Problem(
                message=f"unknown collective {collective!r}",
                allowed=", ".join(known),
                suggestion=nearest(collective, known),
            )
        )
    raise ScheduleError(
        Problem(
            message=f"unknown algorithm {name!r} for {collective}",
            allowed=", ".join(known),
            suggestion=nearest(name, known),
        )
    )
