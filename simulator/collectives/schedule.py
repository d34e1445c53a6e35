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
    """Borders, when sizes differ: shape (period + 1,), where the sizes repeat after *period*
    chunks and *period* divides `n_chunks` (mostly it is `n_chunks`)."""
    part: IntArray | None = None
    """Part of the specification that each chunk belongs to, shape (n_chunks,); None: the parts
    follow each other, ``chunk // (n_chunks // n_parts)``.  Within a part, chunks are in order of
    their bytes."""

    def size_bytes(self, start: IntArray, count: IntArray | int) -> NDArray[np.float64]:
        """Return the bytes in each cyclic range ``start … start + count − 1`` (mod n_chunks).

        With one size for all chunks the result has the shape of *count*, else that of *start*.
        """
        if self.uniform_bytes is not None:
            return np.asarray(count, dtype=np.float64) * float(self.uniform_bytes)
        start = np.asarray(start) % self.n_chunks
        end = start + np.asarray(count)
        wrapped = np.maximum(end - self.n_chunks, 0)
        inner = self._before(np.minimum(end, self.n_chunks)) - self._before(start)
        return np.asarray(inner + self._before(wrapped), dtype=np.float64)

    def sizes(self) -> NDArray[np.float64]:
        """Return the bytes of every chunk, shape (n_chunks,), without copies where they repeat."""
        if self.uniform_bytes is not None:
            return np.broadcast_to(np.float64(self.uniform_bytes), (self.n_chunks,))
        assert self.offset_bytes is not None
        period = np.diff(self.offset_bytes).astype(np.float64)
        repeats = self.n_chunks // len(period)
        return period if repeats == 1 else np.tile(period, repeats)

    def _before(self, chunk: IntArray) -> IntArray:
        """Return the bytes of all chunks before *chunk*."""
        assert self.offset_bytes is not None
        period = len(self.offset_bytes) - 1
        if period == self.n_chunks:
            return np.asarray(self.offset_bytes[chunk])
        whole, rest = np.divmod(chunk, period)
        return np.asarray(whole * self.offset_bytes[-1] + self.offset_bytes[rest])


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """The pieces of one step; all arrays have shape (pieces,)."""

    edge: IntArray | slice
    """Index into the stage's edges, not decreasing; ``slice(None)`` means one piece on every
    edge, in order."""
    start: IntArray
    """First chunk of the piece."""
    count: IntArray | int
    """Number of chunks (cyclic range); 0 is a message without data (barrier)."""
    reduce: bool | NDArray[np.bool_]
    """True: add into the destination's chunk.  False: overwrite it.  One value for all pieces,
    or one per piece where a pipeline reduces and broadcasts in the same step."""


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
    first_step: IntArray | None = None
    """Set for pipelines: each edge's first step; it sends in as many steps in a row as it has
    messages, all of one size but for the rounding of pieces.  Shape (edges,)."""
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
