"""Run a `Schedule` for real: its messages by batched send and receive, its data checked.

Each rank compiles its own part of the schedule once: per step the messages that it sends and
receives, as ranges of its buffer.  The buffer holds only the chunks that the rank touches.
Program order is that of `simulator.collectives.schedule`, except that the channels of one step
are issued together and the next step waits for all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from simulator.base.errors import Problem
from simulator.collectives import Call, Layout, Schedule, Stage, Step, get_algorithm
from simulator.collectives.spec import specification
from validation.harness.operations import Group, Prepared
from validation.harness.options import MeasureError

__all__ = ["Message", "Program", "RankStep", "compile_rank", "make", "prepare_schedule"]

IntArray = NDArray[np.int64]
Range = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Message:
    """What one rank sends to, or receives from, a peer in one step on one channel."""

    peer: int
    channel: int
    ranges: tuple[Range, ...]
    """Half-open element ranges of this rank's buffer; empty: a message without data."""
    reduces: tuple[bool, ...]
    """Per range: added to what is there, or put over it."""
    direct: bool
    """A receive that may land in the buffer at once: one range, not added, not sent in the
    same step."""

    @property
    def n_elements(self) -> int:
        """Elements of the message."""
        return sum(end - start for start, end in self.ranges)


@dataclass(frozen=True, slots=True)
class RankStep:
    """One rank's messages of one step."""

    sends: tuple[Message, ...]
    receives: tuple[Message, ...]


@dataclass(frozen=True, slots=True)
class Program:
    """One rank's part of a schedule."""

    n_elements: int
    """Length of the buffer."""
    steps: tuple[RankStep, ...]
    fills: tuple[tuple[Range, int, int], ...]
    """(range, contributing rank, first element index in the whole data)."""
    results: tuple[tuple[Range, int | None, int], ...]
    """(range, rank or None for the sum of all, first element index)."""


def make(collective: str, algorithm: str, call: Call, layout: Layout) -> Schedule:
    """Return the schedule, or refuse one that needs a switch.

    Raises
    ------
    MeasureError
        In-switch algorithms: no send and receive does what a switch does.
    """
    schedule = get_algorithm(collective, algorithm).function(call, layout)
    if schedule.virtual:
        raise MeasureError(
            Problem(
                message=f"{algorithm} reduces in a switch ({schedule.virtual[0].kind})",
                allowed="algorithms whose messages go from rank to rank",
            )
        )
    return schedule


def compile_rank(schedule: Schedule, call: Call, rank: int) -> Program:
    """Return what *rank* does in *schedule*.

    Raises
    ------
    MeasureError
        Chunk borders that are no multiples of the element size.
    """
    element = call.element_bytes
    sizes = schedule.chunks.sizes()
    if np.any(sizes % element):
        raise MeasureError(f"{schedule.algorithm}: chunks are not whole elements")
    lengths = (sizes // element).astype(np.int64)
    needed = specification(call)
    part = _parts(schedule, needed.n_parts)
    touched = needed.contributes[rank, part] | needed.holds[rank, part]
    raw = [
        (own, _own_pieces(stage, step, rank, schedule.chunks.n_chunks))
        for stage in schedule.stages
        for own in [_touches(stage, rank)]
        if own
        for step in stage.steps()
    ]
    for _, pieces in raw:
        for _, _, _, chunk, _ in pieces:
            touched[chunk] = True
    # Buffer offset of every chunk; those never touched take no room.
    local = np.concatenate([[0], np.cumsum(np.where(touched, lengths, 0))])
    steps = tuple(
        compiled for _, pieces in raw if (compiled := _step(pieces, local, rank)) is not None
    )
    first = np.concatenate([[0], np.cumsum(lengths)])
    return Program(
        n_elements=int(local[-1]),
        steps=steps,
        fills=_fills(needed.contributes[rank, part], local, first, rank),
        results=_results(needed.contributes, needed.holds[rank], part, local, first),
    )


def prepare_schedule(program: Program, group: Group, buffer: Any, *, redop: str) -> Prepared:
    """Return the schedule as a call on the front of *buffer*."""
    import torch

    data = buffer[: program.n_elements]
    largest = max(
        (
            sum(message.n_elements for message in step.receives if not message.direct)
            for step in program.steps
        ),
        default=0,
    )
    landing = torch.empty(max(largest, 1), dtype=data.dtype, device=data.device)
    token = torch.zeros(1, dtype=torch.uint8, device=data.device)
    runs = [_runner(step, data, landing, token, redop) for step in program.steps]

    def call() -> None:
        for run in runs:
            run()

    return Prepared(
        call,
        [(data[start:end], rank, first) for (start, end), rank, first in program.fills],
        [(data[start:end], rank, first) for (start, end), rank, first in program.results],
        [data],
    )


def _touches(stage: Stage, rank: int) -> bool:
    return bool((stage.src == rank).any() or (stage.dst == rank).any())


# A piece: peer, channel, is a send, chunk indices in order, is reduced.
_Piece = tuple[int, int, bool, IntArray, bool]


def _own_pieces(stage: Stage, step: Step, rank: int, n_chunks: int) -> list[_Piece]:
    edge = np.arange(len(stage.src))[step.edge]
    count = np.broadcast_to(np.asarray(step.count), edge.shape)
    reduce = np.broadcast_to(np.asarray(step.reduce), edge.shape)
    mine = np.flatnonzero((stage.src[edge] == rank) | (stage.dst[edge] == rank))
    pieces: list[_Piece] = []
    for place in mine.tolist():
        at = edge[place]
        chunk = (int(step.start[place]) + np.arange(int(count[place]))) % n_chunks
        is_send = int(stage.src[at]) == rank
        peer = int(stage.dst[at] if is_send else stage.src[at])
        pieces.append((peer, int(stage.channel[at]), is_send, chunk, bool(reduce[place])))
    return pieces


def _step(pieces: list[_Piece], local: IntArray, rank: int) -> RankStep | None:
    """Join the pieces of one edge to one message; both ends order messages by channel."""
    if not pieces:
        return None
    grouped: dict[tuple[int, int, bool], list[tuple[Range, bool]]] = {}
    for peer, channel, is_send, chunk, reduce in pieces:
        found = grouped.setdefault((channel, peer, is_send), [])
        for start, end in _ranges(chunk, local):
            # Neighbouring pieces of one kind are one range.
            if found and found[-1][1] == reduce and found[-1][0][1] == start:
                found[-1] = ((found[-1][0][0], end), reduce)
            else:
                found.append(((start, end), reduce))
    sent = [span for (_, _, is_send), spans in grouped.items() if is_send for span, _ in spans]
    messages = [
        (
            is_send,
            Message(
                peer=peer,
                channel=channel,
                ranges=tuple(span for span, _ in spans),
                reduces=tuple(reduce for _, reduce in spans),
                direct=len(spans) == 1
                and not spans[0][1]
                and not any(_overlap(spans[0][0], other) for other in sent),
            ),
        )
        for (channel, peer, is_send), spans in sorted(grouped.items())
    ]
    return RankStep(
        sends=tuple(message for is_send, message in messages if is_send),
        receives=tuple(message for is_send, message in messages if not is_send),
    )


def _ranges(chunk: IntArray, local: IntArray) -> list[Range]:
    """Return the element ranges of chunks, neighbours joined, empty ones left out."""
    ranges: list[Range] = []
    for index in chunk.tolist():
        start, end = int(local[index]), int(local[index + 1])
        if start == end:
            continue
        if ranges and ranges[-1][1] == start:
            ranges[-1] = (ranges[-1][0], end)
        else:
            ranges.append((start, end))
    return ranges


def _overlap(one: Range, other: Range) -> bool:
    return one[0] < other[1] and other[0] < one[1]


def _parts(schedule: Schedule, n_parts: int) -> IntArray:
    chunks = schedule.chunks
    if chunks.part is not None:
        return chunks.part
    return np.arange(chunks.n_chunks) // (chunks.n_chunks // n_parts)


def _fills(
    mine: NDArray[np.bool_], local: IntArray, first: IntArray, rank: int
) -> tuple[tuple[Range, int, int], ...]:
    spans = [
        ((int(local[chunk]), int(local[chunk + 1])), rank, int(first[chunk]))
        for chunk in np.flatnonzero(mine).tolist()
    ]
    return tuple(_joined(spans))


def _results(
    contributes: NDArray[np.bool_],
    holds: NDArray[np.bool_],
    part: IntArray,
    local: IntArray,
    first: IntArray,
) -> tuple[tuple[Range, int | None, int], ...]:
    givers = [np.flatnonzero(contributes[:, p]).tolist() for p in range(contributes.shape[1])]
    n_ranks = contributes.shape[0]
    results: list[tuple[Range, int | None, int]] = []
    for chunk in np.flatnonzero(holds[part]).tolist():
        ranks = givers[int(part[chunk])]
        # One contributor: its own data; otherwise all ranks contribute.
        giver = ranks[0] if len(ranks) == 1 and n_ranks > 1 else None
        results.append(((int(local[chunk]), int(local[chunk + 1])), giver, int(first[chunk])))
    return tuple(_joined(results))


Span = TypeVar("Span", bound=int | None)


def _joined(spans: list[tuple[Range, Span, int]]) -> list[tuple[Range, Span, int]]:
    """Return spans with neighbours of one giver joined and empty ones left out."""
    joined: list[tuple[Range, Span, int]] = []
    for (start, end), giver, first in spans:
        if start == end:
            continue
        if joined:
            (before, until), other, begin = joined[-1]
            if until == start and other == giver and begin + until - before == first:
                joined[-1] = ((before, end), giver, begin)
                continue
        joined.append(((start, end), giver, first))
    return joined


def _reducer(redop: str) -> Callable[[Any, Any], None]:
    import torch

    if redop == "sum":
        return lambda target, other: target.add_(other)
    if redop == "prod":
        return lambda target, other: target.mul_(other)
    pick = torch.minimum if redop == "min" else torch.maximum

    def reduce(target: Any, other: Any) -> None:
        pick(target, other, out=target)

    return reduce


def _runner(step: RankStep, data: Any, landing: Any, token: Any, redop: str) -> Callable[[], None]:
    """Return a function that makes the messages of one step and then adds what arrived."""
    import torch
    import torch.distributed as dist

    reducer = _reducer(redop)
    receives: list[tuple[Message, Any]] = []
    place = 0
    for message in step.receives:
        if not message.ranges:
            receives.append((message, token.clone()))
        elif message.direct:
            start, end = message.ranges[0]
            receives.append((message, data[start:end]))
        else:
            receives.append((message, landing[place : place + message.n_elements]))
            place += message.n_elements
    sends = [(message, [data[a:b] for a, b in message.ranges]) for message in step.sends]
    parts: list[tuple[bool, Any, Any]] = []
    for message, target in receives:
        if message.direct or not message.ranges:
            continue
        offset = 0
        for (start, end), reduce in zip(message.ranges, message.reduces, strict=True):
            parts.append((reduce, data[start:end], target[offset : offset + end - start]))
            offset += end - start
    # The executor's order: what is put over first, then what is added.
    parts.sort(key=lambda part: part[0])

    def run() -> None:
        ends = []
        for message, views in sends:
            tensor = token if not views else views[0] if len(views) == 1 else torch.cat(views)
            ends.append(dist.P2POp(dist.isend, tensor, message.peer, tag=message.channel))
        ends.extend(
            dist.P2POp(dist.irecv, target, message.peer, tag=message.channel)
            for message, target in receives
        )
        for work in dist.batch_isend_irecv(ends):
            work.wait()
        for reduce, target, arrived in parts:
            if reduce:
                reducer(target, arrived)
            else:
                target.copy_(arrived)

    return run
