"""Run a schedule on integers and prove that it computes its collective.

Every (rank, chunk) contribution is a 64-bit pseudo-random number and sums wrap, so that a sum
tells which contributions are in it: one that is missing or added twice gives another number.
Everything that a rank does not contribute starts as such a number too, so that a buffer which is
added to before it was overwritten is found.

Two orders of execution follow the program-order rule of `schedule`: all ranks in lock-step, and
an arbitrary interleaving, in which ranks are ordered only by the messages that they receive.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from simulator.base.errors import ScheduleError
from simulator.collectives.call import Call
from simulator.collectives.schedule import Schedule, Stage, Step
from simulator.collectives.spec import Specification, part_bytes, specification

__all__ = ["check_totals", "execute", "execute_interleaved", "verify"]

IntArray = NDArray[np.int64]
Data = NDArray[np.uint64]
Known = NDArray[np.bool_]


def verify(
    schedule: Schedule, call: Call, *, interleave: np.random.Generator | None = None
) -> None:
    """Raise ScheduleError unless *schedule* computes *call*.

    Parameters
    ----------
    schedule
        Any schedule, registered or not.
    call
        What it must achieve.
    interleave
        None: all ranks in lock-step.  A generator: one arbitrary order of the ranks' steps that
        respects program order and messages; slow, for small worlds.

    Raises
    ------
    ScheduleError
        Names the rank, the part and what is wrong: a contribution missing or added twice, a
        foreign value, an edge out of range, chunks that do not make up the data.
    """
    needed = specification(call)
    part = _part_of_chunk(schedule, needed)
    _check_sizes(schedule, call, part)
    start = _contributions(schedule)
    if interleave is None:
        data, known = execute(schedule, start)
    else:
        data, known = execute_interleaved(schedule, start, interleave)
    n = schedule.world_size
    if needed.synchronises and not known[:n].all():
        rank, other = (int(i) for i in np.argwhere(~known[:n])[0])
        raise ScheduleError(f"rank {rank} may leave the barrier before rank {other} has come")
    _check_data(schedule, needed, part, start, data)


def execute(schedule: Schedule, data: Data) -> tuple[Data, Known]:
    """Run all ranks in lock-step.

    Parameters
    ----------
    data
        Buffers before the call, shape (world_size + virtual ranks, n_chunks).

    Returns
    -------
    tuple
        Buffers afterwards, and which ranks' start each rank's end depends on, shape
        (slots, world_size).
    """
    data = data.copy()
    known = _nobody_known(schedule)
    for stage in schedule.stages:
        _check_edges(schedule, stage)
        for step in stage.steps():
            edge, piece, chunk, reduce = _expand(schedule, stage, step)
            sent = data[stage.src[edge[piece]], chunk]
            target = stage.dst[edge[piece]]
            copied = ~reduce
            data[target[copied], chunk[copied]] = sent[copied]
            np.add.at(data, (target[reduce], chunk[reduce]), sent[reduce])
            messages = np.unique(edge)
            np.logical_or.at(known, stage.dst[messages], known[stage.src[messages]])
    return data, known


@dataclass(slots=True)
class _Message:
    chunk: IntArray
    reduce: NDArray[np.bool_]
    target: tuple[int, int]
    """Destination slot and channel."""
    sent: Data | None = None
    known: Known | None = None


@dataclass(slots=True)
class _Turn:
    """What one slot does on one channel in one step."""

    sends: list[_Message] = field(default_factory=list)
    receives: list[_Message] = field(default_factory=list)


def execute_interleaved(
    schedule: Schedule, data: Data, order: np.random.Generator
) -> tuple[Data, Known]:
    """Run the ranks in an arbitrary order, see `execute`.

    A slot issues the sends of a step on a channel with what it holds at that moment, then takes
    the step's receives in any order once they were sent, then goes to its next step.  Nothing
    else orders slots and channels.

    Some slot can always go on: the one that is furthest behind waits for nobody, since sends come
    before receives within a step.
    """
    data = data.copy()
    known = _nobody_known(schedule)
    programs = _programs(schedule)
    while programs:
        ready = list(programs)
        order.shuffle(ready)
        progress = False
        for slot, channel in ready:
            turns = programs[slot, channel]
            # Now and then a slot is left behind, so that the others overtake it.
            if progress and order.random() < 0.5:
                continue
            progress |= _advance(turns[0], slot, data, known, order)
            if not turns[0].receives and not turns[0].sends:
                turns.popleft()
                if not turns:
                    del programs[slot, channel]
    return data, known


def check_totals(schedule: Schedule) -> None:
    """Raise ScheduleError unless the closed forms of a schedule equal the sums over its steps.

    Compares `edge_bytes`, `edge_messages`, `first_step` and `uniform_step_bytes` of every stage.
    """
    for stage in schedule.stages:
        edges = len(stage.src)
        total, messages = np.zeros(edges), np.zeros(edges, dtype=np.int64)
        first, last = np.full(edges, stage.n_steps), np.full(edges, -1)
        uniform = True
        for index, step in enumerate(stage.steps()):
            edge = np.arange(edges)[step.edge]
            size = np.broadcast_to(schedule.chunks.size_bytes(step.start, step.count), edge.shape)
            here = np.bincount(edge, weights=size, minlength=edges)
            present = np.bincount(edge, minlength=edges) > 0
            total += here
            messages += present
            first[present] = np.minimum(first[present], index)
            last[present] = index
            uniform &= bool(present.all()) and bool((here == stage.uniform_step_bytes).all())
        for what, found, claimed in (
            ("bytes", total, stage.edge_bytes),
            ("messages", messages, stage.edge_messages),
        ):
            if not np.array_equal(found, claimed):
                worst = int(np.argmax(found != claimed))
                raise ScheduleError(
                    f"stage {stage.name}: edge {worst} carries {found[worst]} {what} in its "
                    f"steps, the stage claims {claimed[worst]}"
                )
        if stage.first_step is not None:
            in_a_row = (first == stage.first_step) & (last - first + 1 == messages)
            if not in_a_row.all():
                worst = int(np.argmin(in_a_row))
                raise ScheduleError(
                    f"stage {stage.name}: edge {worst} does not send in {messages[worst]} steps "
                    f"in a row from step {stage.first_step[worst]} on, as the stage claims"
                )
        if stage.uniform_step_bytes is not None and not uniform:
            raise ScheduleError(f"stage {stage.name}: its messages are not all of one size")


def _advance(turn: _Turn, slot: int, data: Data, known: Known, order: np.random.Generator) -> bool:
    """Issue the turn's sends, or take one receive that was sent; return whether one was done."""
    if turn.sends:
        for message in turn.sends:
            message.sent = data[slot, message.chunk]
            message.known = known[slot].copy()
        turn.sends = []
        return True
    arrived = [index for index, message in enumerate(turn.receives) if message.known is not None]
    if not arrived:
        return False
    message = turn.receives.pop(int(order.choice(arrived)))
    assert message.sent is not None
    copied = ~message.reduce
    data[slot, message.chunk[copied]] = message.sent[copied]
    np.add.at(data[slot], message.chunk[message.reduce], message.sent[message.reduce])
    known[slot] |= message.known
    return True


def _programs(schedule: Schedule) -> dict[tuple[int, int], deque[_Turn]]:
    """Return the turns of each (slot, channel), without steps in which it does nothing."""
    programs: dict[tuple[int, int], deque[_Turn]] = {}
    for stage in schedule.stages:
        _check_edges(schedule, stage)
        for step in stage.steps():
            turns: dict[tuple[int, int], _Turn] = {}
            for source, message in _messages(schedule, stage, step):
                turns.setdefault(source, _Turn()).sends.append(message)
                turns.setdefault(message.target, _Turn()).receives.append(message)
            for place, turn in turns.items():
                programs.setdefault(place, deque()).append(turn)
    return programs


def _messages(
    schedule: Schedule, stage: Stage, step: Step
) -> Iterator[tuple[tuple[int, int], _Message]]:
    edge, piece, chunk, reduce = _expand(schedule, stage, step)
    owner = edge[piece]
    for found in np.unique(edge):
        mine = owner == found
        channel = int(stage.channel[found])
        yield (
            (int(stage.src[found]), channel),
            _Message(
                chunk=chunk[mine], reduce=reduce[mine], target=(int(stage.dst[found]), channel)
            ),
        )


def _expand(
    schedule: Schedule, stage: Stage, step: Step
) -> tuple[IntArray, IntArray, IntArray, NDArray[np.bool_]]:
    """Return the edge of each piece and, for each chunk moved, its piece, index and reduce."""
    edge = np.arange(len(stage.src))[step.edge]
    if len(edge) != len(step.start) or (np.diff(edge) < 0).any():
        raise ScheduleError(f"stage {stage.name}: pieces and edges of a step do not match")
    count = np.broadcast_to(np.asarray(step.count), edge.shape)
    if len(count) and (count.min() < 0 or count.max() > schedule.chunks.n_chunks):
        raise ScheduleError(f"stage {stage.name}: a piece has more chunks than there are")
    piece = np.repeat(np.arange(len(edge)), count)
    within = np.arange(len(piece)) - np.repeat(np.cumsum(count) - count, count)
    chunk = (step.start[piece] + within) % schedule.chunks.n_chunks
    reduce = np.broadcast_to(np.asarray(step.reduce), edge.shape)[piece]
    return edge, piece, chunk, reduce


def _check_edges(schedule: Schedule, stage: Stage) -> None:
    slots = schedule.world_size + len(schedule.virtual)
    ends = np.stack([stage.src, stage.dst])
    if ends.min() < 0 or ends.max() >= slots or (stage.src == stage.dst).any():
        raise ScheduleError(f"stage {stage.name}: an edge is out of range or leads to its source")
    keys = {*zip(stage.src.tolist(), stage.dst.tolist(), stage.channel.tolist(), strict=True)}
    if len(keys) != len(stage.src):
        raise ScheduleError(f"stage {stage.name}: two edges have the same ends and channel")


def _nobody_known(schedule: Schedule) -> Known:
    n = schedule.world_size
    return np.eye(n + len(schedule.virtual), n, dtype=bool)


def _part_of_chunk(schedule: Schedule, needed: Specification) -> IntArray:
    chunks = schedule.chunks
    if chunks.part is not None:
        return chunks.part
    if chunks.n_chunks % needed.n_parts:
        raise ScheduleError(f"{chunks.n_chunks} chunks cannot make up {needed.n_parts} parts")
    return np.arange(chunks.n_chunks) // (chunks.n_chunks // needed.n_parts)


def _check_sizes(schedule: Schedule, call: Call, part: IntArray) -> None:
    parts = part_bytes(call)
    found = np.bincount(part, weights=schedule.chunks.sizes())
    wanted = np.resize(parts, found.shape)
    if not np.array_equal(found, wanted):
        worst = int(np.argmax(found != wanted))
        raise ScheduleError(
            f"the chunks of part {worst} make {found[worst]:.0f} B, the part has {wanted[worst]} B"
        )


def _contributions(schedule: Schedule) -> Data:
    """Return the buffers before the call; switches start at zero."""
    n = schedule.world_size
    slots = n + len(schedule.virtual)
    # One fixed stream: a failure must be the same in every run.
    numbers = np.random.Generator(np.random.PCG64(20)).integers(
        1, 2**63, size=(slots, schedule.chunks.n_chunks), dtype=np.uint64
    )
    numbers[n:] = 0
    return numbers


def _check_data(
    schedule: Schedule, needed: Specification, part: IntArray, start: Data, data: Data
) -> None:
    n = schedule.world_size
    gives = needed.contributes[:, part]
    wanted = np.where(gives, start[:n], np.uint64(0)).sum(axis=0, dtype=np.uint64)
    wrong = needed.holds[:, part] & (data[:n] != wanted)
    if not wrong.any():
        return
    rank, chunk = (int(i) for i in np.argwhere(wrong)[0])
    # Arrays, not scalars: their arithmetic wraps without a warning.
    own = start[:n, chunk]
    excess = data[[rank], chunk] - wanted[[chunk]]
    twice = np.flatnonzero(gives[:, chunk] & (own == excess))
    missing = np.flatnonzero(gives[:, chunk] & (own + excess == 0))
    if len(twice):
        what = f"the contribution of rank {twice[0]} twice"
    elif len(missing):
        what = f"a sum without the contribution of rank {missing[0]}"
    else:
        what = "another value than the one required"
    raise ScheduleError(
        f"{schedule.collective} {schedule.algorithm}: rank {rank} ends with {what} in chunk "
        f"{chunk} (part {int(part[chunk])})"
    )
