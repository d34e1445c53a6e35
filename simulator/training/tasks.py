"""The alphabet of a training step: compute, call a collective, wait for a stream."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

__all__ = ["Call", "Compute", "Task", "Wait", "traffic_bytes"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Compute:
    """Keep the compute stream busy."""

    name: str
    duration_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """Enqueue a collective over the data-parallel group on the communication stream.

    It begins when the work enqueued so far on the compute stream is done.
    """

    name: str
    collective: str
    size_bytes: int
    """nccl-tests' S."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """Make the compute stream wait for the communication enqueued so far, but for the last few."""

    leave: int = 0
    """How many of the latest calls need not be done (prefetched ones)."""


Task: TypeAlias = Compute | Call | Wait


def traffic_bytes(tasks: tuple[Task, ...]) -> int:
    """Return the elements moved per rank for large worlds, in bytes.

    An all_reduce moves its buffer twice, all_gather and reduce_scatter once
    (Rajbhandari et al. 2020, arXiv:1910.02054, section 7.1).
    """
    passes = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1}
    return sum(
        passes[task.collective] * task.size_bytes for task in tasks if isinstance(task, Call)
    )
