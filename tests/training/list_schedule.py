"""A slow, plain scheduler of planned steps: every task begins when what it needs is done."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

from simulator.training.plan import Call, Compute, Role, Task, Transfer, Wait

ACROSS_STAGES = ("world", "model", "ends", "pipeline")


@dataclass
class Done:
    """When a task ran."""

    stage: int
    task: Task
    start_s: float
    end_s: float


class StuckError(Exception):
    """No task can go on."""


def needs_of(tasks: tuple[Task, ...]) -> list[list[int]]:
    """Return, for each task of a rank, the earlier ones that must be done."""
    needs: list[list[int]] = []
    last: dict[str, int] = {}
    work: dict[str, list[int]] = defaultdict(list)
    for index, task in enumerate(tasks):
        own = [last[task.stream]] if task.stream in last else []
        if isinstance(task, Wait):
            if task.leave:
                held = work[task.on][: -task.leave]
                own += held[-1:]
            elif task.on in last:
                own.append(last[task.on])
        else:
            after = getattr(task, "after", None)
            if after is not None and after in last:
                own.append(last[after])
            work[task.stream].append(index)
        last[task.stream] = index
        needs.append(own)
    return needs


def list_schedule(
    roles: tuple[Role, ...],
    *,
    call_s: Callable[[Call], float] = lambda call: 0.0,
    transfer_s: float = 0.0,
) -> list[Done]:
    """Return when every task of every stage runs, each on a machine of its own."""
    partners: dict[tuple[object, ...], list[tuple[int, int]]] = defaultdict(list)
    for at, role in enumerate(roles):
        seen: dict[tuple[object, ...], int] = defaultdict(int)
        for index, task in enumerate(role.tasks):
            key: tuple[object, ...] = (at, index)
            if isinstance(task, Transfer):
                ends = (role.stage, task.peer)
                sender, receiver = ends if task.direction == "send" else ends[::-1]
                kind = (sender, receiver, task.tag)
                key = (*kind, seen[(task.direction, kind)])
                seen[(task.direction, kind)] += 1
            elif isinstance(task, Call) and task.axis in ACROSS_STAGES:
                key = (task.axis, seen[(task.axis,)])
                seen[(task.axis,)] += 1
            partners[key].append((at, index))
    meets = {member: members for members in partners.values() for member in members}
    for members in partners.values():
        tasks = [roles[at].tasks[index] for at, index in members]
        if isinstance(tasks[0], Transfer):
            if len(members) != 2:
                raise StuckError(f"{tasks[0]} has no partner")
            assert {t.direction for t in tasks} == {"send", "recv"}  # type: ignore[union-attr]
            assert len({t.size_bytes for t in tasks}) == 1  # type: ignore[union-attr]
    needs = [needs_of(role.tasks) for role in roles]
    end: dict[tuple[int, int], float] = {}
    done: list[Done] = []
    # What waits for a task; a task runs when nothing is left that it waits for.
    left = {(a, i): len(set(n)) for a, of in enumerate(needs) for i, n in enumerate(of)}
    after: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    for at, of in enumerate(needs):
        for index, own in enumerate(of):
            for earlier in set(own):
                after[(at, earlier)].append((at, index))
    ready = [member for member, count in left.items() if count == 0]
    while ready:
        member = ready.pop()
        members = meets[member]
        if member in end or any(left[other] for other in members):
            continue
        start_s = max(
            (end[(a, earlier)] for a, i in members for earlier in needs[a][i]), default=0.0
        )
        for other in members:
            at, index = other
            task = roles[at].tasks[index]
            seconds = 0.0
            if isinstance(task, Compute):
                seconds = task.duration_s
            elif isinstance(task, Call):
                seconds = call_s(task)
            elif isinstance(task, Transfer):
                seconds = transfer_s
            end[other] = start_s + seconds
            done.append(Done(roles[at].stage, task, start_s, end[other]))
            for later in after[other]:
                left[later] -= 1
                if left[later] == 0:
                    ready.append(later)
    if len(end) != len(left):
        raise StuckError(f"{len(left) - len(end)} tasks never begin")
    return done


def computes(done: list[Done], stage: int | None = None) -> list[Done]:
    """Return the computes of one stage or of all, by start."""
    found = [d for d in done if isinstance(d.task, Compute) and (stage is None or d.stage == stage)]
    return sorted(found, key=lambda d: d.start_s)
