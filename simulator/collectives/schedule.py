"""What an algorithm produces: stages of steps, as numpy arrays generated lazily.

A `Schedule` is a sequence of `Stage` objects.  A stage is a run of steps whose messages use one
fixed set of *edges* (source rank, destination rank, channel).  One `Step` lists the pieces that
move: which edge, which range of chunks, reduced into or copied over the destination.  Pieces of
one step on one edge travel as one message.

Program order (the model shared by the engine, the executor and the measuring harness): a rank
runs the steps of one channel in order.  In a step it first issues its sends, with the data it
held before the step, then takes its receives.  It starts the next step when its sends have left
and its receives have arrived.  A rank without any piece in a step passes it at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

__all__ = ["ChunkMap", "Schedule", "Stage", "Step", "VirtualRank"]

IntArray = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkMap:
    """How the collective's data are cut into chunks.

    The chunk index space is that of the collective's specification (`spec.py`), multiplied by
    channels and pipeline pieces where an algorithm cuts finer.  Either all chunks have one size,
    or `offset_bytes` gives the borders.
    """

    n_chunks: int
    uniform_bytes: int | None = None
    """Size of every chunk when all are equal; then nothing of length `n_chunks` is held."""
    offset_bytes: IntArray | None = None
    """Borders, shape (n_chunks + 1,), when sizes differ."""

    def size_bytes(self, start: IntArray, count: IntArray) -> NDArray[np.float64]:
        """Return the bytes in each cyclic range ``start … start + count − 1`` (mod n_chunks)."""
        if self.uniform_bytes is not None:
            return np.asarray(count, dtype=np.float64) * float(self.uniform_bytes)
        assert self.offset_bytes is not None
        offset = self.offset_bytes
        start = np.asarray(start) % self.n_chunks
        end = start + np.asarray(count)
        wrapped = np.maximum(end - self.n_chunks, 0)
        inner = offset[np.minimum(end, self.n_chunks)] - offset[start]
        return np.asarray(inner + offset[wrapped], dtype=np.float64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """The pieces of one step; all arrays have shape (pieces,)."""

    edge: IntArray | slice
    """Index into the stage's edges; ``slice(None)`` means one piece on every edge, in order."""
    start: IntArray
    """First chunk of the piece."""
    count: IntArray | int
    """Number of chunks (cyclic range); 0 is a message without data (barrier)."""
    reduce: bool
    """True: add into the destination's chunk.  False: overwrite it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A run of steps over one set of edges."""

    name: str
    """Such as ``reduce_scatter``; shown in traces and explanations."""
    src: IntArray
    """Source rank of each edge, shape (edges,).  Ranks ≥ world_size are virtual (switches)."""
    dst: IntArray
    """Destination rank of each edge, shape (edges,)."""
    channel: IntArray
    """Channel of each edge, shape (edges,)."""
    n_steps: int
    step: Callable[[int], Step]
    """Generate step 0 … n_steps − 1.  Pure: the same index gives the same step."""
    edge_bytes: NDArray[np.float64]
    """Payload of the whole stage on each edge, shape (edges,), in closed form."""
    edge_messages: IntArray
    """Number of steps of the stage in which the edge carries a message, shape (edges,)."""
    uniform_step_bytes: float | None = None
    """Set when every edge carries one message of this size in every step (the fast path)."""

    def steps(self) -> Iterator[Step]:
        """Generate all steps in order."""
        return (self.step(index) for index in range(self.n_steps))


@dataclass(frozen=True, slots=True, kw_only=True)
class VirtualRank:
    """A participant that is not a GPU: a switch that reduces and multicasts.

    Its buffer starts at zero, so that the first reduce into it is a copy.
    """

    kind: str
    """``nvswitch`` (in-node or NVLink-domain switch) or ``sharp`` (network switch)."""
    members: tuple[int, ...]
    """Ranks below the switch, by which the fabric finds its vertex."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """A collective as ordered stages over ranks 0 … world_size − 1."""

    collective: str
    algorithm: str
    world_size: int
    chunks: ChunkMap
    n_channels: int
    stages: tuple[Stage, ...]
    virtual: tuple[VirtualRank, ...] = field(default=())
    """Virtual ranks world_size, world_size + 1, …"""
    concurrent: bool = False
    """True: stages may overlap on different edges (each rank still keeps its program order)."""

    @property
    def n_steps(self) -> int:
        """Total number of steps over all stages."""
        return sum(stage.n_steps for stage in self.stages)
