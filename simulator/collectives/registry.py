"""The table of algorithms: (collective, name) → a function ``(call, layout) -> Schedule``."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from simulator.base.errors import Problem, ScheduleError, nearest
from simulator.collectives.call import Call, Layout
from simulator.collectives.schedule import ChunkMap, Schedule

__all__ = ["Algorithm", "algorithm", "algorithms", "collectives", "get_algorithm", "make_schedule"]


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
    """Register a function as algorithm *name* of *collective*; a duplicate raises ValueError.

    The table holds the function behind `_guard`, so that an algorithm need not care about a
    world of one rank or a layout of another world.
    """

    def add(function: AlgorithmFunction) -> AlgorithmFunction:
        if (collective, name) in _TABLE:
            raise ValueError(f"algorithm {name!r} of {collective} is registered twice")
        _TABLE[collective, name] = Algorithm(
            collective=collective,
            name=name,
            function=_guard(collective, name, function),
            summary=summary,
            reference=reference,
            formula=formula,
        )
        return function

    return add


def _guard(collective: str, name: str, function: AlgorithmFunction) -> AlgorithmFunction:
    """Return *function* with its call and layout checked and a world of one rank answered."""

    @functools.wraps(function)
    def checked(call: Call, layout: Layout) -> Schedule:
        if call.collective != collective:
            raise ScheduleError(f"{name} of {collective} was given a call of {call.collective}")
        if call.world_size != layout.world_size:
            raise ScheduleError(
                f"the call has {call.world_size} ranks, the layout {layout.world_size}"
            )
        if call.world_size == 1:
            return Schedule(
                collective=collective,
                algorithm=name,
                world_size=1,
                chunks=ChunkMap(n_chunks=1, uniform_bytes=call.size_bytes),
                n_channels=1,
                stages=(),
            )
        return function(call, layout)

    return checked


def make_schedule(call: Call, name: str, layout: Layout | None = None) -> Schedule:
    """Return the schedule of algorithm *name* for a call.

    Parameters
    ----------
    call
        What is called.
    name
        Algorithm, such as ``ring``.
    layout
        Where the ranks sit; None: one node, rank order, one channel.

    Raises
    ------
    ScheduleError
        Unknown collective or algorithm, or a call that the algorithm cannot do.

    Examples
    --------
    >>> call = Call(collective="all_reduce", world_size=4, size_bytes=1024)
    >>> make_schedule(call, "ring").n_steps
    6
    """
    entry = get_algorithm(call.collective, name)
    return entry.function(call, Layout(world_size=call.world_size) if layout is None else layout)


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
