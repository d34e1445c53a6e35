"""Building blocks of schedules: rings, single steps and pipelines as stages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from simulator.collectives.call import Call
from simulator.collectives.schedule import ChunkMap, Schedule, Stage, Step, VirtualRank

__all__ = [
    "Moves",
    "Rings",
    "finish",
    "pipeline_stage",
    "pipelined",
    "ring_stage",
    "single_step",
]

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]
_ALL = slice(None)


def finish(
    call: Call,
    algorithm: str,
    chunks: ChunkMap,
    stages: Sequence[Stage],
    *,
    n_channels: int = 1,
    virtual: Sequence[VirtualRank] = (),
) -> Schedule:
    """Return the schedule of a call, without stages that have no step."""
    return Schedule(
        collective=call.collective,
        algorithm=algorithm,
        world_size=call.world_size,
        chunks=chunks,
        n_channels=n_channels,
        stages=tuple(stage for stage in stages if stage.n_steps > 0 and len(stage.src) > 0),
        virtual=tuple(virtual),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Rings:
    """The edges of several disjoint rings of one length; edge = ring × length + position."""

    n_rings: int
    length: int
    src: IntArray
    dst: IntArray
    channel: IntArray

    @classmethod
    def of(cls, orders: IntArray, channel: IntArray) -> Rings:
        """Return the rings that visit the rows of *orders*, each on its channel."""
        n_rings, length = orders.shape
        return cls(
            n_rings=n_rings,
            length=length,
            src=orders.ravel(),
            dst=np.roll(orders, -1, axis=1).ravel(),
            channel=np.repeat(channel, length),
        )


def ring_stage(
    name: str,
    rings: Rings,
    start: IntArray,
    *,
    count: int,
    shift: int,
    reduce: bool,
    chunks: ChunkMap,
) -> Stage:
    """Return length − 1 steps in which every position sends to the next one.

    In step k position p sends the chunks of position (p − k + shift) mod length.

    Parameters
    ----------
    start
        First chunk that belongs to each position, shape (n_rings, length).
    count
        Chunks that belong to each position; 0 for messages without data.
    shift
        0 to gather (own chunks first), −1 to reduce-scatter (a position ends with its own).
    """
    length = rings.length
    twice = np.concatenate([start, start], axis=1)

    def step(index: int) -> Step:
        low = (shift - index) % length
        return Step(
            edge=_ALL, start=twice[:, low : low + length].reshape(-1), count=count, reduce=reduce
        )

    edges = rings.n_rings * length
    if chunks.uniform_bytes is not None:
        step_bytes: float | None = float(chunks.uniform_bytes * count)
        edge_bytes = np.full(edges, step_bytes * (length - 1))  # type: ignore[operator]
    else:
        # Each edge carries the chunks of all positions but one.
        step_bytes = None
        size = chunks.size_bytes(start, count)
        missing = np.roll(size, -(1 + shift), axis=1)
        edge_bytes = (size.sum(axis=1, keepdims=True) - missing).ravel()
    return Stage(
        name=name,
        src=rings.src,
        dst=rings.dst,
        channel=rings.channel,
        n_steps=length - 1,
        step=step,
        edge_bytes=edge_bytes,
        edge_messages=np.full(edges, length - 1, dtype=np.int64),
        uniform_step_bytes=step_bytes,
    )


def single_step(
    name: str,
    src: IntArray,
    dst: IntArray,
    *,
    start: IntArray | Callable[[], IntArray],
    count: IntArray | int,
    reduce: bool,
    chunks: ChunkMap,
    pieces: int = 1,
) -> Stage:
    """Return a stage of one step in which every edge carries *pieces* pieces.

    Parameters
    ----------
    start
        First chunk of each piece, shape (edges × pieces,), edge by edge; or a function that
        gives it, called when the step is generated, so that large arrays are not kept.
    count
        Chunks of every piece: one number, or shape (edges,) with one piece per edge.
    """
    edges = len(src)

    def first() -> IntArray:
        return start() if callable(start) else start

    def step(_: int) -> Step:
        edge = _ALL if pieces == 1 else np.repeat(np.arange(edges), pieces)
        return Step(edge=edge, start=first(), count=count, reduce=reduce)

    step_bytes: float | None = None
    if chunks.uniform_bytes is not None and not isinstance(count, np.ndarray):
        step_bytes = float(chunks.uniform_bytes * count * pieces)
        edge_bytes: FloatArray = np.broadcast_to(np.float64(step_bytes), (edges,))
    else:
        size = chunks.size_bytes(first(), count)
        edge_bytes = size if pieces == 1 else size.reshape(edges, pieces).sum(axis=1)
    return Stage(
        name=name,
        src=src,
        dst=dst,
        channel=np.broadcast_to(np.int64(0), (edges,)),
        n_steps=1,
        step=step,
        edge_bytes=edge_bytes,
        edge_messages=np.broadcast_to(np.int64(1), (edges,)),
        uniform_step_bytes=step_bytes,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Moves:
    """What happens to every piece of a pipeline, all arrays of shape (moves,).

    Piece j of a channel's data passes a move in step ``lag + j``.  A piece consists of *block*
    chunks (one per head, for algorithms that share a piece between heads); chunk =
    (channel × n_pieces + piece) × block + head.
    """

    src: IntArray
    dst: IntArray
    channel: IntArray
    lag: IntArray
    head: IntArray
    """First chunk within the piece."""
    count: IntArray
    """Number of chunks; 0 for messages without data."""
    reduce: NDArray[np.bool_]

    @classmethod
    def make(
        cls,
        src: IntArray,
        dst: IntArray,
        *,
        channel: IntArray | int,
        lag: IntArray | int,
        reduce: bool,
        head: IntArray | int = 0,
        count: IntArray | int = 1,
    ) -> Moves:
        """Return moves with numbers broadcast to the shape of *src*."""

        def full(value: IntArray | int) -> IntArray:
            return np.broadcast_to(np.asarray(value, dtype=np.int64), src.shape)

        return cls(
            src=src,
            dst=full(dst),
            channel=full(channel),
            lag=full(lag),
            head=full(head),
            count=full(count),
            reduce=np.full(src.shape, reduce),
        )

    @classmethod
    def join(cls, moves: Sequence[Moves]) -> Moves:
        """Return all moves in one."""
        names = [field.name for field in fields(cls)]
        return cls(**{name: np.concatenate([getattr(m, name) for m in moves]) for name in names})


def pipelined(
    call: Call,
    algorithm: str,
    name: str,
    moves: Sequence[Moves],
    *,
    chunks: ChunkMap,
    n_channels: int,
    n_pieces: int,
    block: int,
    virtual: Sequence[VirtualRank] = (),
) -> Schedule:
    """Return the schedule of one `pipeline_stage`."""
    stage = pipeline_stage(
        name,
        Moves.join(moves),
        n_channels=n_channels,
        n_pieces=n_pieces,
        block=block,
        chunks=chunks,
    )
    return finish(call, algorithm, chunks, [stage], n_channels=n_channels, virtual=virtual)


def pipeline_stage(
    name: str, moves: Moves, *, n_channels: int, n_pieces: int, block: int, chunks: ChunkMap
) -> Stage:
    """Return a stage in which pieces follow each other through the same moves, one per step.

    Moves with the same source, destination and channel share an edge; what they carry in one
    step travels as one message.
    """
    # One number per move sorts ten times as fast as np.lexsort on the four.
    slots, lags = 1 + int(max(moves.src.max(), moves.dst.max())), 1 + int(moves.lag.max())
    pair = (moves.channel * slots + moves.src) * slots + moves.dst
    order = np.argsort(pair * lags + moves.lag, kind="stable")
    moves = Moves(**{f.name: getattr(moves, f.name)[order] for f in fields(Moves)})
    pair = pair[order]
    is_new = np.ones(len(order), dtype=bool)
    is_new[1:] = pair[1:] != pair[:-1]
    edge = np.cumsum(is_new) - 1
    first = np.flatnonzero(is_new)
    lag, reduce = moves.lag, moves.reduce
    base = moves.channel * (n_pieces * block) + moves.head
    longest = int(lag.max())
    uniform_count = int(moves.count[0]) if (moves.count == moves.count[0]).all() else None
    uniform_reduce = bool(reduce[0]) if (reduce == reduce[0]).all() else None
    single = len(first) == len(order)

    def step(index: int) -> Step:
        piece = index - lag
        if longest <= index < n_pieces:
            return Step(
                edge=_ALL if single else edge,
                start=base + piece * block,
                count=moves.count if uniform_count is None else uniform_count,
                reduce=reduce if uniform_reduce is None else uniform_reduce,
            )
        active = np.flatnonzero((piece >= 0) & (piece < n_pieces))
        return Step(
            edge=edge[active],
            start=base[active] + piece[active] * block,
            count=moves.count[active] if uniform_count is None else uniform_count,
            reduce=reduce[active] if uniform_reduce is None else uniform_reduce,
        )

    # An edge is busy in the union of the intervals lag … lag + n_pieces − 1 of its moves.
    gap = np.diff(lag, append=0)
    last = np.append(is_new[1:], True)
    messages = np.add.reduceat(np.where(last, n_pieces, np.minimum(gap, n_pieces)), first)
    size = _move_bytes(moves, n_channels, n_pieces, block, chunks)
    return Stage(
        name=name,
        src=moves.src[first],
        dst=moves.dst[first],
        channel=moves.channel[first],
        n_steps=longest + n_pieces,
        step=step,
        edge_bytes=np.add.reduceat(size, first),
        edge_messages=messages.astype(np.int64),
        first_step=lag if single else None,
    )


def _move_bytes(
    moves: Moves, n_channels: int, n_pieces: int, block: int, chunks: ChunkMap
) -> FloatArray:
    """Return the bytes of each move over all pieces."""
    if chunks.uniform_bytes is not None:
        return moves.count.astype(np.float64) * (chunks.uniform_bytes * n_pieces)
    per_head = chunks.sizes().reshape(n_channels, n_pieces, block).sum(axis=1)
    before: FloatArray = np.zeros((n_channels, block + 1))
    np.cumsum(per_head, axis=1, out=before[:, 1:])
    end = moves.head + moves.count
    size = before[moves.channel, end] - before[moves.channel, moves.head]
    return np.asarray(size, dtype=np.float64)
