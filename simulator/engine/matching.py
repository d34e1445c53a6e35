"""Which calls of which ranks belong together, and what is wrong when they do not."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from simulator.base.errors import Problem, SimulationError
from simulator.engine.calls import Call
from simulator.engine.programs import StartKey
from simulator.engine.traffic import Collective, Program, Start

__all__ = ["key_calls", "rank_list", "stuck"]

IntArray = NDArray[np.int64]


def rank_list(ranks: Iterable[int]) -> str:
    """Return ranks in short form.

    Examples
    --------
    >>> rank_list([7, 0, 1, 2, 3])
    'ranks 0-3,7'
    >>> rank_list([5])
    'rank 5'
    """
    ordered = sorted({int(rank) for rank in ranks})
    parts: list[str] = []
    k = 0
    while k < len(ordered):
        end = k
        while end + 1 < len(ordered) and ordered[end + 1] == ordered[end] + 1:
            end += 1
        parts.append(f"{ordered[k]}-{ordered[end]}" if end > k else str(ordered[k]))
        k = end + 1
    return ("rank " if len(ordered) == 1 else "ranks ") + ",".join(parts)


def key_calls(programs: Sequence[Program]) -> list[list[StartKey | None]]:
    """Return, for each program and operation, which call it starts.

    Raises
    ------
    SimulationError
        Ranks that call different things as the same call of a communicator, ranks outside the
        group that they call on, or one rank in two programs that use one communicator.
    """
    groups: dict[bytes, int] = {}
    group_of: dict[int, int] = {}
    first: dict[StartKey, list[tuple[Program, Collective]]] = {}
    result: list[list[StartKey | None]] = []
    for program in programs:
        counters: dict[tuple[str, int], int] = {}
        keys: list[StartKey | None] = []
        for operation in program.operations:
            if not isinstance(operation, Start):
                keys.append(None)
                continue
            collective = operation.collective
            group = group_of.get(id(collective))
            if group is None:
                _check_members(program, operation)
                group = groups.setdefault(collective.group.tobytes(), len(groups))
                group_of[id(collective)] = group
            place = (operation.communicator, group)
            index = counters.get(place, 0)
            counters[place] = index + 1
            key = StartKey(operation.communicator, group, index)
            keys.append(key)
            first.setdefault(key, []).append((program, collective))
        result.append(keys)
    problems: list[Problem] = []
    for key, users in first.items():
        if any(one is not users[0][1] for _, one in users) or len(users) > 1:
            problems += _compare(key, users)
        if problems:
            break
    if problems:
        raise SimulationError(problems)
    return result


def _check_members(program: Program, start: Start) -> None:
    outside = np.setdiff1d(program.ranks, start.collective.group)
    if len(outside):
        raise SimulationError(
            Problem(
                message=(
                    f"{rank_list(outside)} would call {start.collective.name} on communicator "
                    f"{start.communicator!r}, but not being of its group"
                ),
                allowed=f"{rank_list(start.collective.group)}",
            )
        )


def _compare(key: StartKey, users: list[tuple[Program, Collective]]) -> list[Problem]:
    """Return the problem of one call whose ranks do not agree, if they do not."""
    by_signature: dict[tuple[object, ...], tuple[list[IntArray], str]] = {}
    for program, collective in users:
        found, _ = by_signature.setdefault(collective.signature, ([], collective.name))
        found.append(program.ranks)
    if len(by_signature) > 1:
        differ = _differing(list(by_signature))
        said = "; ".join(
            f"{rank_list(np.concatenate(ranks))}: {name} {_words(signature, differ)}"
            for signature, (ranks, name) in by_signature.items()
        )
        return [
            Problem(
                message=(
                    f"call {key.index} of communicator {key.communicator!r} is not the same on "
                    f"all ranks: {said}"
                ),
                allowed=(
                    "one collective, size, root, dtype, redop, algorithm, protocol and number of "
                    "channels per call. Likely cause: a rank skips or repeats an earlier call, or "
                    "was given another value"
                ),
            )
        ]
    ranks = np.concatenate([program.ranks for program, _ in users])
    names, counts = np.unique(ranks, return_counts=True)
    if (counts > 1).any():
        return [
            Problem(
                message=(
                    f"{rank_list(names[counts > 1])} is in two programs that both make call "
                    f"{key.index} of communicator {key.communicator!r}"
                ),
                allowed="one program per rank and communicator",
            )
        ]
    return []


def _differing(signatures: list[tuple[object, ...]]) -> list[int]:
    """Return the places at which signatures differ; all places of different collectives."""
    everything = list(range(max(map(len, signatures))))
    if len({len(signature) for signature in signatures}) > 1:
        return everything
    found = [k for k in everything if len({signature[k] for signature in signatures}) > 1]
    return everything if 0 in found else found


def _words(signature: tuple[object, ...], places: list[int]) -> str:
    return "(" + ", ".join(str(signature[k]) for k in places if k < len(signature)) + ")"


def stuck(
    calls: dict[StartKey, Call],
    programs: Sequence[Program],
    keys: Sequence[Sequence[StartKey | None]],
) -> list[Problem]:
    """Return what each unfinished call waits for, in words."""
    planned: dict[StartKey, list[IntArray]] = {}
    for program, of_program in zip(programs, keys, strict=True):
        for key in of_program:
            if key is not None:
                planned.setdefault(key, []).append(program.ranks)
    waiting_in: dict[int, Call] = {}
    for call in calls.values():
        group = call.given.group
        for rank in group[np.isfinite(call.call_s) & np.isnan(call.end_s)].tolist():
            waiting_in.setdefault(rank, call)
    problems = []
    for key, call in calls.items():
        group = call.given.group
        called = np.isfinite(call.call_s)
        waiting = group[called & np.isnan(call.end_s)]
        missing = group[~called]
        will = np.concatenate(planned.get(key, [np.empty(0, dtype=np.int64)]))
        causes = []
        never = np.setdiff1d(missing, will)
        if len(never):
            causes.append(f"{rank_list(never)} never makes this call (a skipped or missing call)")
        by_call: dict[str, list[int]] = {}
        for rank in np.intersect1d(missing, will).tolist():
            other = waiting_in.get(rank)
            where = "an earlier operation" if other is None else _call_name(other)
            by_call.setdefault(where, []).append(rank)
        causes += [
            f"{rank_list(ranks)} {_wait(len(ranks))} in {where} first (calls in another "
            "order, or behind one that cannot end)"
            for where, ranks in by_call.items()
        ]
        said = "; ".join(causes) or "all ranks have called, but no message can move"
        who = f"{rank_list(waiting)} {_wait(len(waiting))} in" if len(waiting) else "nobody ends"
        problems.append(Problem(message=f"{who} {_call_name(call)}: {said}"))
    return problems


def _wait(n_ranks: int) -> str:
    return "waits" if n_ranks == 1 else "wait"


def _call_name(call: Call) -> str:
    return f"{call.given.name} (communicator {call.key.communicator!r}, call {call.key.index})"
