"""The engine's input: routed connections, the traffic of collectives, programs of ranks.

Nothing here knows schedules, algorithms or cost models: `simulator.lower` turns those into the
plain arrays below.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "Collective",
    "Compute",
    "Connections",
    "LinkChange",
    "Messages",
    "Network",
    "Program",
    "StageTraffic",
    "Start",
    "Wait",
]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """Directed links as arrays."""

    capacity_Bps: FloatArray
    """Wire capacity per direction, shape (links,)."""
    link_name: Callable[[int], str]
    """Name of a link, for messages and traces."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Connections:
    """Directed (source slot, destination slot) pairs with their routes (CSR over links).

    A slot is a position in the collective's group: 0 … n−1 are its ranks, beyond are switches.
    """

    src: IntArray
    dst: IntArray
    indptr: IntArray
    """Shape (connections + 1,); links of connection i: ``link[indptr[i]:indptr[i + 1]]``."""
    link: IntArray
    weight: FloatArray
    """Wire bytes on that link per payload byte: 1 / protocol efficiency, times the share of the
    connection that takes this link when it is split over several paths."""
    latency_s: FloatArray
    """From the last byte leaving the source to its use at the destination, shape (connections,)."""
    max_rate_Bps: FloatArray
    """Payload rate that the connection itself cannot exceed (inf: links only)."""
    wire_s: FloatArray | float = 0.0
    """Part of `latency_s` that data travel: nothing that is known of software shortens it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Messages:
    """The messages of one step: at most one per edge."""

    edge: IntArray | None
    """Edges that carry a message, ascending; None: all edges."""
    size_bytes: FloatArray | float
    """Payload, shape (messages,) or one number for all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTraffic:
    """One stage: edges are (connection, channel) pairs; each carries ≤ 1 message per step."""

    name: str
    connection: IntArray
    channel: IntArray
    n_steps: int
    messages: Callable[[int], Messages]
    edge_bytes: FloatArray
    """Payload over all steps of each edge (closed form, for the folded level)."""
    edge_messages: IntArray
    first_step: IntArray | None = None
    """Set for pipelines: each edge's first step; it sends in as many steps in a row as it has
    messages, all of one size but for rounding (for the folded level)."""
    wire_bytes: FloatArray | None = None
    """Wire bytes of the whole stage on each link, shape (links,), where the connections stand
    for so many pairs that their routes are not given; the folded level alone can time it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective:
    """One collective call on a group of ranks."""

    name: str
    """As shown in traces, such as ``all_reduce ring Simple 1 GiB``."""
    signature: tuple[object, ...]
    """What all ranks of the group must agree on (collective, size, root, dtype)."""
    group: IntArray
    """Global ranks of the group, in group order."""
    n_slots: int
    """Group size plus switches."""
    connections: Connections
    stages: tuple[StageTraffic, ...]
    launch_s: float
    """Time from the call on a rank to its first send."""
    launch_wire_s: float = 0.0
    """Part of `launch_s` that data travel: a pipeline's latencies are counted once, there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compute:
    """Keep a stream of the rank busy for a time (on an unloaded network)."""

    name: str
    duration_s: float
    stream: str = "compute"


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Enqueue a collective on a stream.  Later operations of that stream wait for it."""

    collective: Collective
    communicator: str = "world"
    """Ranks match calls by order within one communicator."""
    stream: str = "comm"
    slows: bool = True
    """The rank's computes run slower from this call to its end; no: a receive posted early, which
    takes no part of the GPU while it waits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """Make `stream` wait until all operations enqueued so far on `on` are done."""

    on: str
    stream: str = "compute"
    leave: int = 0
    """All but the latest `leave` calls and computes on `on` must be done: prefetch runs on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """What a set of ranks that act alike does, in order."""

    ranks: IntArray
    operations: tuple[Compute | Start | Wait, ...]
    start_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkChange:
    """At a time, set a link's capacity to a share of its nominal one (0: it fails)."""

    time_s: float
    link: int
    factor: float


Level = Literal["auto", "steps", "folded"]
