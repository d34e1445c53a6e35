"""Programs of ranks: streams of computes, collective calls and waits, as a graph of operations.

The host enqueues a program's operations at once, as CUDA streams allow; an operation begins on a
rank when the one before it in its stream is done there, and for a `Wait` also what the other
stream held when the wait was enqueued.  Ranks of a program move in batches: all ranks for which
an operation ends at one instant go on together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulator.engine.clock import Alarm, Clock
from simulator.engine.outcome import Interval
from simulator.engine.traffic import Compute, Program, Start

__all__ = ["ProgramRun", "StartKey"]

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class StartKey:
    """Which call a `Start` is: its communicator, group and order."""

    communicator: str
    group: int
    """Number of the group among those of the run."""
    index: int
    """Order of the call among those of its communicator and group."""


class ProgramRun:
    """One program on its ranks.

    Parameters
    ----------
    clock
        The run's clock.
    program
        What to do.
    keys
        For each operation, the call that it starts (None: it is no `Start`).
    call
        Called with (operation, local indices of ranks) when ranks reach a `Start`.
    slowdown
        While the rank communicates, its computes take 1 + slowdown times as long.
    record_all
        Keep intervals of all ranks instead of the first only.
    """

    def __init__(
        self,
        clock: Clock,
        program: Program,
        keys: Sequence[StartKey | None],
        call: Callable[[int, IntArray], None],
        *,
        slowdown: float,
        record_all: bool,
    ) -> None:
        self.program = program
        self.keys = keys
        self.ranks = np.asarray(program.ranks, dtype=np.int64)
        self._clock = clock
        self._call = call
        self._everyone = np.arange(len(self.ranks))
        n_ops = len(program.operations)
        self._stream_next: list[list[int]] = [[] for _ in range(n_ops)]
        self._wait_next: list[list[int]] = [[] for _ in range(n_ops)]
        self._needs = [0] * n_ops
        self._arrived: dict[int, NDArray[np.int8]] = {}
        self._compile()
        self.n_left = np.full(n_ops, len(self.ranks), dtype=np.int64)
        """Ranks that each operation is not done on."""
        self.end_s = np.full(len(self.ranks), program.start_s)
        self._noted = self._everyone if record_all else self._everyone[:1]
        self._started_s: dict[int, FloatArray] = {}
        self.intervals: list[Interval] = []
        self._computing = _ComputePool(clock, len(self.ranks), slowdown, self.done)

    def _compile(self) -> None:
        last: dict[str, int] = {}
        work: dict[str, list[int]] = {}
        for index, operation in enumerate(self.program.operations):
            before = last.get(operation.stream)
            if before is not None:
                self._stream_next[before].append(index)
                self._needs[index] += 1
            if not isinstance(operation, Compute | Start):
                awaited = last.get(operation.on)
                if operation.leave:
                    earlier = work.get(operation.on, [])[: -operation.leave]
                    awaited = earlier[-1] if earlier else None
                if awaited is not None and awaited != before:
                    self._wait_next[awaited].append(index)
                    self._needs[index] += 1
            else:
                work.setdefault(operation.stream, []).append(index)
            last[operation.stream] = index

    def begin(self) -> None:
        """Begin at the program's start."""
        self._clock.at(self.program.start_s, self._first)

    def _first(self) -> None:
        streams: set[str] = set()
        for index, operation in enumerate(self.program.operations):
            if operation.stream not in streams:
                streams.add(operation.stream)
                self._note_start(index, self._everyone)
                if self._needs[index] == 0:
                    self._run(index, self._everyone)

    def _run(self, index: int, who: IntArray) -> None:
        operation = self.program.operations[index]
        if isinstance(operation, Start):
            self._call(index, who)
        elif isinstance(operation, Compute):
            self._computing.begin(index, who, operation.duration_s)
        else:
            self.done(index, who)

    def done(self, index: int, who: IntArray) -> None:
        """Take note that an operation is done on some ranks now; begin what it held up."""
        now = self._clock.time_s
        self.n_left[index] -= len(who)
        self.end_s[who] = now
        self._note_end(index, who)
        for after in self._stream_next[index]:
            self._note_start(after, who)
            self._step_towards(after, who)
        for after in self._wait_next[index]:
            self._step_towards(after, who)

    def _step_towards(self, index: int, who: IntArray) -> None:
        if self._needs[index] == 1:
            self._run(index, who)
            return
        arrived = self._arrived.get(index)
        if arrived is None:
            arrived = self._arrived[index] = np.zeros(len(self.ranks), dtype=np.int8)
        arrived[who] += 1
        ready = who[arrived[who] == self._needs[index]]
        if len(ready):
            if (arrived == self._needs[index]).all():
                del self._arrived[index]
            self._run(index, ready)

    def communicates(self, who: IntArray, change: int) -> None:
        """Take note that ranks begin (+1) or end (−1) a collective."""
        self._computing.communicates(who, change)

    def _note_start(self, index: int, who: IntArray) -> None:
        noted = who[who < len(self._noted)]
        if len(noted):
            started = self._started_s.get(index)
            if started is None:
                started = self._started_s[index] = np.zeros(len(self._noted))
            started[noted] = self._clock.time_s

    def _note_end(self, index: int, who: IntArray) -> None:
        noted = who[who < len(self._noted)]
        if len(noted) == 0:
            return
        operation = self.program.operations[index]
        kind, name = "wait", ""
        if isinstance(operation, Start):
            kind, name = "collective", operation.collective.name
        elif isinstance(operation, Compute):
            kind, name = "compute", operation.name
        else:
            name = f"wait for {operation.on}"
        now = self._clock.time_s
        for local, start_s in zip(
            noted.tolist(), self._started_s[index][noted].tolist(), strict=True
        ):
            if kind == "wait" and start_s == now:
                continue
            self.intervals.append(
                Interval(
                    rank=int(self.ranks[local]),
                    stream=operation.stream,
                    name=name,
                    kind=kind,
                    start_s=start_s,
                    end_s=now,
                )
            )

    @property
    def finished(self) -> bool:
        """True when every operation is done on every rank."""
        return bool((self.n_left == 0).all())


@dataclass(slots=True, eq=False)
class _Batch:
    """Ranks in one compute that run alike."""

    index: int
    who: IntArray
    remaining_s: float
    since_s: float
    slow: bool
    alarm: Alarm


class _ComputePool:
    """Computes of one program; those of ranks that communicate run slower."""

    def __init__(
        self, clock: Clock, n_ranks: int, slowdown: float, done: Callable[[int, IntArray], None]
    ) -> None:
        self._clock = clock
        self._slowdown = slowdown
        self._done = done
        self._communicating = np.zeros(n_ranks, dtype=np.int64)
        self._batches: dict[_Batch, None] = {}

    def begin(self, index: int, who: IntArray, duration_s: float) -> None:
        """Let ranks compute for *duration_s* of undisturbed time."""
        if self._slowdown == 0:
            end_s = self._clock.time_s + duration_s
            self._clock.at(end_s, lambda: self._done(index, who))
            return
        busy = self._communicating[who] > 0
        for slow in (False, True):
            part = who[busy == slow]
            if len(part):
                self._put(index, part, duration_s, slow)

    def _put(self, index: int, who: IntArray, remaining_s: float, slow: bool) -> None:
        now = self._clock.time_s
        pace = 1.0 + self._slowdown if slow else 1.0
        batch: _Batch

        def finish() -> None:
            del self._batches[batch]
            self._done(index, who)

        alarm = self._clock.at(now + remaining_s * pace, finish)
        batch = _Batch(index, who, remaining_s, now, slow, alarm)
        self._batches[batch] = None

    def communicates(self, who: IntArray, change: int) -> None:
        """Change the pace of ranks that begin or end to communicate."""
        if self._slowdown == 0:
            return
        before = self._communicating > 0
        self._communicating[who] += change
        changed = before != (self._communicating > 0)
        if not changed.any():
            return
        now = self._clock.time_s
        for batch in list(self._batches):
            turned = changed[batch.who]
            if not turned.any():
                continue
            pace = 1.0 + self._slowdown if batch.slow else 1.0
            remaining_s = max(batch.remaining_s - (now - batch.since_s) / pace, 0.0)
            batch.alarm.cancel()
            del self._batches[batch]
            for part, slow in (
                (batch.who[turned], not batch.slow),
                (batch.who[~turned], batch.slow),
            ):
                if len(part):
                    self._put(batch.index, part, remaining_s, slow)
