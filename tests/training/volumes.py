"""Bytes that a rank sends in a plan, with bandwidth-optimal algorithms."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from simulator.training.plan import Call, Task

PASSES = {"all_reduce": 2.0, "all_gather": 1.0, "reduce_scatter": 1.0, "all_to_all": 1.0}


def sent_bytes(tasks: Iterable[Task], sizes: dict[str, int]) -> dict[str, float]:
    """Return bytes sent per rank, by axis: 2 (n − 1)/n S for all_reduce, (n − 1)/n S for others.

    A `send_recv` passes on all of its bytes.
    """
    found: dict[str, float] = defaultdict(float)
    for task in tasks:
        if isinstance(task, Call):
            n = sizes[task.axis]
            if task.collective == "send_recv":
                found[task.axis] += task.size_bytes
            else:
                found[task.axis] += PASSES[task.collective] * (n - 1) / n * task.size_bytes
    return found
