"""The engine's output: what happened, as arrays."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from simulator.engine.traffic import Collective

__all__ = ["CollectiveRecord", "Interval", "MessageRecord", "Outcome"]

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveRecord:
    """One finished collective.  Its arrays are read-only where all ranks are alike."""

    name: str
    communicator: str
    index: int
    """Position among the communicator's calls."""
    group: NDArray[np.int64]
    level: str
    """``steps`` (wave or flows) or ``folded``."""
    call_s: FloatArray
    """When each rank called, shape (ranks of the group,)."""
    end_s: FloatArray
    """When each rank was done, shape (ranks of the group,)."""
    transfer_s: FloatArray
    """Time in which the rank had a send on the wire, shape (ranks,)."""
    stage_end_s: tuple[tuple[str, float], ...]
    """Name of each stage, and when the last of its messages arrived."""
    collective: Collective
    """What was called, as the program gave it; names need not tell calls apart."""

    @property
    def wait_s(self) -> FloatArray:
        """Time between call and end without a send on the wire, shape (ranks,)."""
        return np.asarray(self.end_s - self.call_s - self.transfer_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """Something with a begin and an end on a stream of a rank: a compute, a call, a wait."""

    rank: int
    stream: str
    name: str
    kind: str
    """``compute``, ``collective`` or ``wait``."""
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageRecord:
    """Messages of one step of one collective, as arrays (only when recording is on)."""

    collective: str
    stage: str
    step: int
    connection: NDArray[np.int64]
    channel: NDArray[np.int64]
    src_rank: NDArray[np.int64]
    """Global rank, or −1 − slot for a switch."""
    dst_rank: NDArray[np.int64]
    size_bytes: FloatArray
    start_s: FloatArray
    leave_s: FloatArray
    arrive_s: FloatArray
    communicator: str = ""
    """With `index`, tells calls of one name apart, as in `CollectiveRecord`."""
    index: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Everything that a run tells."""

    end_s: float
    rank_end_s: FloatArray
    collectives: tuple[CollectiveRecord, ...]
    intervals: tuple[Interval, ...]
    messages: tuple[MessageRecord, ...]
    link_bytes: FloatArray
    """Wire bytes that crossed each link, shape (links,)."""
    link_busy_s: FloatArray
    """Wire bytes over nominal capacity: time the link would need at full rate, shape (links,)."""
    n_events: int
    warnings: tuple[str, ...] = field(default=())
