"""Checks of programs: streams that nothing runs on, and calls of groups that leave ranks out.

Streams have no declaration: the first operation on a name makes one.  So a name is a slip where
something waits for it and nothing ever runs there, or where a single operation runs on a name that
nothing else mentions and that is close to one that is used.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from simulator.base.errors import nearest
from simulator.base.fields import format_ranks
from simulator.scenario.reader import Reader, join
from simulator.scenario.steps import (
    CallOp,
    ComputeOp,
    Operation,
    ProgramSpec,
    RepeatOp,
    WaitOp,
)

__all__ = ["check_members", "check_streams"]

USUAL = ("compute", "comm")
"""Streams that operations use when none is named."""
AT_ONCE = "nothing"
"""``after: nothing`` waits for no stream."""


def check_streams(reader: Reader, programs: Sequence[ProgramSpec], path: str) -> None:
    """Refuse streams in a job's programs that are named by mistake; *path* is its list's key."""
    mentions: Counter[str] = Counter()
    for index, program in enumerate(programs):
        for operation, where in _walk(program.do, f"{path}[{index}].do"):
            mentions.update(_runs_on(operation))
            mentions.update(name for _, name in _waits_for(reader, operation, where))
    for index, program in enumerate(programs):
        _check_program(reader, program, f"{path}[{index}].do", mentions)


def _check_program(reader: Reader, program: ProgramSpec, path: str, mentions: Counter[str]) -> None:
    operations = list(_walk(program.do, path))
    busy = {name for operation, _ in operations for name in _runs_on(operation)}
    for operation, where in operations:
        for key, name in _waits_for(reader, operation, where):
            if name in busy:
                continue
            if name in USUAL:
                reader.warn(key, f"has no effect: nothing runs on stream {name!r}")
                continue
            allowed = ", ".join(sorted({*busy, *USUAL}))
            reader.refuse(
                key,
                f"nothing runs on stream {name!r}",
                allowed=allowed if not key.endswith(".after") else f"{allowed}, {AT_ONCE}",
                suggestion=nearest(name, sorted({*busy, *USUAL, AT_ONCE})),
            )
        for name in _runs_on(operation):
            known = [other for other, times in mentions.items() if times > 1 and other != name]
            near = nearest(name, sorted({*known, *USUAL}))
            alone = mentions[name] == 1 and name not in USUAL
            # comm2 or comm_nodes beside comm are streams of their own.
            if alone and near is not None and not name.startswith(near):
                reader.refuse(
                    join(where, "stream"),
                    f"stream {name!r} is named nowhere else",
                    allowed="a stream that something waits for, or that has several operations",
                    suggestion=near,
                )


def _walk(operations: Sequence[Operation], path: str) -> Iterator[tuple[Operation, str]]:
    """Generate all operations with their dotted keys, those of a repeat once."""
    for index, operation in enumerate(operations):
        where = f"{path}[{index}]"
        if isinstance(operation, RepeatOp):
            yield from _walk(operation.do, f"{where}.do")
        else:
            yield operation, where


def _runs_on(operation: Operation) -> tuple[str, ...]:
    return (operation.stream,) if isinstance(operation, ComputeOp | CallOp) else ()


def _waits_for(reader: Reader, operation: Operation, where: str) -> list[tuple[str, str]]:
    """Return the streams that somebody wrote as waiting or being waited for, with their keys."""
    if isinstance(operation, WaitOp):
        named = [("wait", operation.on), ("stream", operation.stream)]
    elif isinstance(operation, CallOp) and operation.after != AT_ONCE:
        named = [("after", operation.after)]
    else:
        named = []
    found = [(join(where, key), name) for key, name in named]
    return [(key, name) for key, name in found if key in reader.places]


def check_members(
    reader: Reader, program: ProgramSpec, path: str, n_ranks: int | None, who: str
) -> None:
    """Refuse calls on groups that none of a program's ranks is in, and ranks in none of them.

    Parameters
    ----------
    reader
        Takes the problems.
    program
        What some ranks do.
    path
        Its dotted key.
    n_ranks
        Ranks of the job; None when the cluster itself has a problem.
    who
        The job, in words.
    """
    if n_ranks is None or reader.has_problem(path):
        return
    ranks = set(range(n_ranks) if program.ranks is None else program.ranks)
    idle, calls = set(ranks), 0
    for operation, where in _walk(program.do, f"{path}.do"):
        if not isinstance(operation, CallOp):
            continue
        calls += 1
        group = set(operation.group) if isinstance(operation.group, tuple) else ranks
        idle -= group
        if not ranks & group:
            reader.refuse(
                join(where, "group"),
                f"no rank of this program ({_short(ranks)}) is in the group",
                allowed=f"a group with some of the ranks {_short(ranks)} of the {who}",
            )
    if calls and idle and not reader.has_problem(path):
        reader.refuse(
            join(path, "ranks"),
            f"rank{'s' * (len(idle) > 1)} {_short(idle)} take{'s' * (len(idle) == 1)} part in no "
            "call of this program",
            allowed="ranks that are in the group of at least one call",
        )


def _short(ranks: set[int]) -> str:
    return format_ranks(tuple(sorted(ranks)))
