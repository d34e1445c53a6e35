"""Tensor-parallel ranks of several classes, followed together from one real meeting to the next.

Where one rank of a tensor-parallel group is slow, its peers wait for it in every call.  From a
call on, in which all of them end together, their clocks are known as long as they only compute
and call each other: such calls need no event of the engine.  All members of a group have the same
tasks, so each of them is cut at the same places.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from simulator.training.plan import Call, Compute, Task, Wait

__all__ = ["Beside", "Part", "beside_at", "exposed_parts", "lockstep", "overlapped"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A task inside one compute of the engine."""

    name: str
    duration_s: float
    purpose: str
    """Purpose of a compute, or traffic of a call."""
    is_call: bool
    hidden_s: float = 0.0
    """Time in which the call ran beside the computes before it in the same group of parts."""
    waits_for: int | None = None
    """Class of the last member of a call that this one waits for; None: it does not wait."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """Calls on a stream of their own, computes meanwhile, and a wait for all of the calls."""

    calls: tuple[Call, ...]
    computes: tuple[Compute, ...]
    after: int
    """Index of the task behind the wait."""


def beside_at(tasks: Sequence[Task], index: int) -> Beside | None:
    """Return the calls beside computes that begin with a task, if they do."""
    first = tasks[index]
    if not isinstance(first, Call) or first.stream == "compute" or first.after != "compute":
        return None
    at = index
    calls: list[Call] = []
    while isinstance(call := tasks[at], Call) and call.stream == first.stream:
        if call.traffic != first.traffic:
            return None
        calls.append(call)
        at += 1
    computes: list[Compute] = []
    while isinstance(compute := tasks[at], Compute) and compute.stream == "compute":
        computes.append(compute)
        at += 1
    wait = tasks[at]
    waits = isinstance(wait, Wait) and wait.on == first.stream and wait.leave == 0
    if not waits or wait.stream != "compute":
        return None
    return Beside(calls=tuple(calls), computes=tuple(computes), after=at + 1)


def lockstep(
    tasks: Sequence[Task],
    members: Sequence[int],
    slow: Sequence[float],
    *,
    axis: str,
    slowdown: float,
    size: Callable[[Call], int],
    time_s: Callable[[Call], float | None],
) -> list[dict[int, tuple[list[Part], int]]]:
    """Return, by member, the parts that stand for calls at an index, and the index behind them.

    Parameters
    ----------
    tasks
        Of each member.
    members, slow
        Classes of the group, and the factors on their computes.
    axis
        The axis of the group.
    slowdown
        Share by which computes take longer beside calls.
    size, time_s
        Members of a call's group; its time, or None where it cannot stand alone.
    """
    found: list[dict[int, tuple[list[Part], int]]] = [{} for _ in members]
    clock: list[float] | None = None
    index = 0
    while index < len(tasks):
        task = tasks[index]
        beside = None if clock is None else beside_at(tasks, index)
        if isinstance(task, Compute) and task.stream == "compute":
            if clock is not None:
                clock = [at + task.duration_s * f for at, f in zip(clock, slow, strict=True)]
        elif isinstance(task, Call) and size(task) < 2 and beside is None:
            pass
        elif isinstance(task, Call) and task.stream == "compute" and task.axis == axis:
            length = time_s(task)
            if clock is not None and length is not None:
                start = max(clock)
                last = members[clock.index(start)]
                for own, at in zip(found, clock, strict=True):
                    own[index] = (exposed_parts(task, start - at, length, 0.0, last), index + 1)
                clock = [start + length] * len(members)
            else:
                clock = [0.0] * len(members)
        elif clock is not None and beside is not None and _alone(beside, axis, size, time_s):
            length = sum(time_s(call) or 0.0 for call in beside.calls if size(call) > 1)
            start = max(clock)
            last = members[clock.index(start)]
            ends = []
            for own, at, factor in zip(found, clock, slow, strict=True):
                busy = sum(compute.duration_s for compute in beside.computes) * factor
                early = min(busy, start - at)
                parts, together = overlapped(beside, factor, length, slowdown, early_s=early)
                exposed = max(0.0, length - together)
                waits = start - at - early
                parts += exposed_parts(beside.calls[0], waits, exposed, length - exposed, last)
                own[index] = (parts, beside.after)
                ends.append(start + together + exposed)
            clock = ends
            index = beside.after
            continue
        else:
            clock = None
        index += 1
    return found


def _alone(
    beside: Beside,
    axis: str,
    size: Callable[[Call], int],
    time_s: Callable[[Call], float | None],
) -> bool:
    real = [call for call in beside.calls if size(call) > 1]
    return bool(real) and all(call.axis == axis and time_s(call) is not None for call in real)


def overlapped(
    beside: Beside, slow: float, calls_s: float, slowdown: float, *, early_s: float = 0.0
) -> tuple[list[Part], float]:
    """Return computes beside calls as parts, and the time from the calls' begin to their end.

    Calls of time T beside computes of c, which take 1 + s times longer meanwhile: computes of
    c (1 + s) ≤ T end before the calls; others take c + T s / (1 + s) and hide them.

    Parameters
    ----------
    beside
        Calls and computes.
    slow
        Factor on the computes.
    calls_s, slowdown
        T and s.
    early_s
        Part of the computes that is done before the calls begin.
    """
    busy_s = sum(compute.duration_s for compute in beside.computes) * slow
    rest_s, pace = busy_s - early_s, 1.0 + slowdown
    together_s = rest_s * pace if rest_s * pace <= calls_s else rest_s + calls_s * (1 - 1 / pace)
    stretch = slow * (early_s + together_s) / busy_s if busy_s > 0 else 0.0
    parts = [
        Part(
            name=compute.name,
            duration_s=compute.duration_s * stretch,
            purpose=compute.purpose,
            is_call=False,
        )
        for compute in beside.computes
    ]
    return parts, together_s


def exposed_parts(
    task: Call, waits: float, length: float, hidden: float, last: int | None = None
) -> list[Part]:
    """Return a call as parts: its wait for class `last`, and what of it nothing hides."""
    parts = []
    if waits > 0.0:
        parts.append(
            Part(
                name=task.name,
                duration_s=waits,
                purpose=task.traffic,
                is_call=True,
                waits_for=last,
            )
        )
    parts.append(
        Part(
            name=task.name,
            duration_s=length,
            purpose=task.traffic,
            is_call=True,
            hidden_s=hidden,
        )
    )
    return parts
