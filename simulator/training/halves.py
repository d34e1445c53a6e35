"""Two halves of a micro-batch in turn, so that one's exchange of tokens hides behind the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from simulator.training.plan import Call, Compute, Task, Wait

__all__ = ["in_halves"]


def in_halves(tasks: Sequence[Task]) -> tuple[Task, ...]:
    """Return a pass whose expert exchanges run beside the computes of its other half.

    Notes
    -----
    Between two exchanges each half computes in turn, and sends while the other one computes
    (DeepSeek-V3's overlap of two micro-batches, arXiv:2412.19437, section 3.2.1, and in its
    decoding).  Half a kernel is taken to last half as long.
    """
    segments: list[tuple[list[Task], list[Call]]] = [([], [])]
    for task in tasks:
        if isinstance(task, Call) and _exchanges(task):
            size_bytes = -(-task.size_bytes // 2)
            call = replace(task, size_bytes=size_bytes, stream="expert", after="compute")
            segments[-1][1].append(call)
        else:
            if segments[-1][1]:
                segments.append(([], []))
            segments[-1][0].append(_half(task))
    if not segments[0][1]:
        return tuple(tasks)
    made: list[Task] = []
    sent = 0
    for work, calls in segments:
        # What the other half sent since may still be under way.
        for behind in (sent, len(calls)):
            if sent:
                made.append(Wait(on="expert", leave=behind))
            made += [*work, *calls]
        sent = len(calls)
    if sent:
        made.append(Wait(on="expert"))
    return tuple(made)


def _exchanges(call: Call) -> bool:
    return call.traffic == "expert" and call.stream == "compute"


def _half(task: Task) -> Task:
    if isinstance(task, Compute):
        return replace(task, duration_s=task.duration_s / 2)
    if isinstance(task, Call):
        return replace(task, size_bytes=-(-task.size_bytes // 2))
    return task
