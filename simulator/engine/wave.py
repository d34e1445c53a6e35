"""The `steps` level without contention: a max-plus recurrence over steps, all ranks at once.

Program order per (slot, channel): state T is when it may begin its next step.  A send of the
step starts at ``max(T, previous message of its connection has left)``, takes ``m / rate``, and
arrives a latency later.  After the step, ``T = max(T, own sends left, own receives arrived)``.
Messages of one connection go one at a time in the order (stage, step, channel).  With no link
ever asked for more than its capacity, nothing else decides the times: no queue of events is
needed, and a step of all ranks is a few numpy operations [1]_.

Not modelled: receive-side flow control (buffers are infinite).

References
----------
.. [1] F. Baccelli et al., "Synchronization and Linearity", 1992, chapter 2 (max-plus algebra).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from simulator.engine.jitter import MessageJitter
from simulator.engine.ring_wave import RingPlan, ring_plan
from simulator.engine.routes import distinct, payload_of_connections
from simulator.engine.traffic import Collective, Messages, StageTraffic

__all__ = ["StagePlan", "StageTimer", "StepTimes", "Wave", "WavePlan", "WaveState"]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimes:
    """What one step's messages did; arrays have shape (messages,), edges ascending."""

    stage: int
    step: int
    edge: IntArray
    size_bytes: FloatArray
    start_s: FloatArray
    leave_s: FloatArray
    arrive_s: FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Wave:
    """The times of one collective call."""

    rank_end_s: FloatArray
    """Shape (ranks,); inf for a rank that depends on one that has not called."""
    stage_end_s: tuple[tuple[str, float], ...]
    """Name and last arrival of each stage; one without messages ends when it may begin."""
    busy_s: FloatArray
    """Time each connection has a message on the wire, shape (connections,)."""
    spans: tuple[tuple[IntArray, FloatArray, FloatArray], ...]
    """Per stage, on request: its connections, and the first start and last leave of each."""


@dataclass(slots=True, kw_only=True)
class WaveState:
    """T by (channel, slot), flat, and when each connection is free."""

    begin_s: FloatArray
    free_s: FloatArray


def _distinct(values: IntArray, n: int) -> bool:
    """Return whether no value, of 0 … *n* − 1, comes twice."""
    if n <= _DENSE * len(values):
        return int(np.bincount(values).max(initial=0)) <= 1
    ordered = np.sort(values)
    return bool((ordered[1:] != ordered[:-1]).all())


def _run_of(edges: IntArray) -> IntArray | slice:
    """Return ascending edges as a slice where none between them is left out."""
    if len(edges) and edges[-1] - edges[0] + 1 == len(edges):
        return slice(int(edges[0]), int(edges[-1]) + 1)
    return edges


_DENSE = 8
"""Numbers are counted rather than sorted if at least one in so many is there."""


class StagePlan:
    """The index arrays of one stage."""

    def __init__(self, stage: StageTraffic, collective: Collective) -> None:
        connections, n_slots = collective.connections, collective.n_slots
        self.stage = stage
        self.n_lanes = (1 + int(stage.channel.max(initial=0))) * n_slots
        self.connection = np.asarray(stage.connection, dtype=np.int64)
        channel = np.asarray(stage.channel, dtype=np.int64)
        self.src = channel * n_slots + connections.src[self.connection]
        self.dst = channel * n_slots + connections.dst[self.connection]
        self.latency_s = np.asarray(connections.latency_s, dtype=np.float64)[self.connection]
        self.all_edges = np.arange(len(self.connection), dtype=np.int64)
        self.src_unique = _distinct(self.src, self.n_lanes)
        self.dst_unique = _distinct(self.dst, self.n_lanes)
        # Place of the edge in its connection's order (by channel) within one step.
        self.place = np.zeros(len(channel), dtype=np.int64)
        self.n_places = 1
        if not _distinct(self.connection, len(connections.src)):
            order = np.lexsort((channel, self.connection))
            used = self.connection[order]
            new = np.ones(len(channel), dtype=bool)
            new[1:] = used[1:] != used[:-1]
            heads = np.flatnonzero(new)
            self.place[order] = np.arange(len(order)) - heads[np.cumsum(new) - 1]
            self.n_places = int(self.place.max(initial=0)) + 1
        self._edges: IntArray | None = None
        self._groups: list[IntArray] = []
        self.ring: RingPlan | None = None
        if stage.n_steps > 1 and self.src_unique and self.dst_unique:
            self.ring = ring_plan(self.connection, self.src, self.dst, self.place)

    @cached_property
    def used(self) -> IntArray:
        """The stage's connections, ascending."""
        return distinct(self.connection)

    def groups(self, edges: IntArray) -> list[IntArray]:
        """Return, for place 0, 1, … of a connection's order, which of *edges* stand there.

        Messages of earlier channels of the same connection must be timed first.
        """
        if self._edges is None or not (edges is self._edges or np.array_equal(edges, self._edges)):
            place = self.place[edges]
            order = np.argsort(place, kind="stable")
            borders = np.cumsum(np.bincount(place, minlength=1))[:-1]
            self._groups = [group for group in np.split(order, borders) if len(group)]
            self._edges = edges
        return self._groups


class WavePlan:
    """A collective prepared for the recurrence; run it for any call times and rates."""

    def __init__(self, collective: Collective) -> None:
        self.collective = collective
        self.n_channels = 1 + max(
            (int(stage.channel.max(initial=0)) for stage in collective.stages), default=0
        )
        self._stages = [StagePlan(stage, collective) for stage in collective.stages]
        self._payload_bytes = payload_of_connections(collective)

    def run(
        self,
        call_s: FloatArray,
        rate_Bps: FloatArray,
        *,
        jitter: MessageJitter | None = None,
        sink: Callable[[StepTimes], None] | None = None,
        spans: bool = False,
    ) -> Wave:
        """Time the collective.

        Parameters
        ----------
        call_s
            When each rank calls, shape (ranks,); inf for a rank that has not called yet.
        rate_Bps
            Payload rate of each connection alone, shape (connections,).
        jitter
            Draws for the messages, or None.
        sink
            Called with the times of every step, in order.
        spans
            Fill `Wave.spans`.
        """
        collective = self.collective
        state = self._initial(call_s)
        ready_s = float(call_s.min(initial=np.inf)) + collective.launch_s
        busy_s = np.zeros(len(rate_Bps))
        if jitter is None:
            sent = self._payload_bytes > 0
            busy_s[sent] = self._payload_bytes[sent] / rate_Bps[sent]
        stage_ends: list[tuple[str, float]] = []
        all_spans: list[tuple[IntArray, FloatArray, FloatArray]] = []
        first_s = np.full(len(rate_Bps), np.inf) if spans else np.empty(0)
        for index, plan in enumerate(self._stages):
            if spans:
                first_s[plan.used] = np.inf
            timer = StageTimer(
                index=index,
                plan=plan,
                state=state,
                rate_Bps=rate_Bps[plan.connection],
                jitter=jitter,
                sink=sink,
                first_s=first_s if spans else None,
                busy_s=busy_s if jitter is not None else None,
            )
            timer.run()
            stage_ends.append((plan.stage.name, max(timer.last_s, ready_s)))
            if spans:
                all_spans.append((plan.used, first_s[plan.used], state.free_s[plan.used]))
        by_slot = state.begin_s.reshape(self.n_channels, collective.n_slots)
        return Wave(
            rank_end_s=by_slot[:, : len(collective.group)].max(axis=0),
            stage_end_s=tuple(stage_ends),
            busy_s=busy_s,
            spans=tuple(all_spans),
        )

    def _initial(self, call_s: FloatArray) -> WaveState:
        n_ranks, n_slots = len(self.collective.group), self.collective.n_slots
        begin_s = np.empty((self.n_channels, n_slots))
        begin_s[:, :n_ranks] = call_s + self.collective.launch_s
        # A switch is passive: it is ready from the first call on.
        begin_s[:, n_ranks:] = call_s.min(initial=np.inf)
        return WaveState(
            begin_s=begin_s.reshape(-1),
            free_s=np.full(len(self.collective.connections.src), -np.inf),
        )


@dataclass(slots=True, kw_only=True)
class StageTimer:
    """The steps of one stage of one run."""

    index: int
    plan: StagePlan
    state: WaveState
    rate_Bps: FloatArray
    jitter: MessageJitter | None = None
    sink: Callable[[StepTimes], None] | None = None
    first_s: FloatArray | None = None
    busy_s: FloatArray | None = None
    quick: bool = False
    """Advance T only: each connection has one edge and has sent nothing before the stage, so that
    its sender, which waits for its own sends, also waits for the connection."""
    last_s: float = -np.inf
    """Last arrival."""

    def run(self) -> None:
        """Advance the state over all steps of the stage."""
        stage, plan = self.plan.stage, self.plan
        step = 0
        if plan.ring is not None and len(plan.connection):
            step = self._run_ring(plan.ring)
        while step < stage.n_steps:
            self.step(step, stage.messages(step))
            step += 1

    def _durations(self, messages: Messages, edges: IntArray) -> tuple[FloatArray, FloatArray]:
        """Return the transfer time and the latency of each message, in edge order."""
        part = _run_of(edges)
        duration_s = np.divide(messages.size_bytes, self.rate_Bps[part])
        latency_s = self.plan.latency_s[part]
        if self.jitter is not None:
            factor, added_s = self.jitter.draw(len(edges))
            if factor is not None:
                duration_s = duration_s * factor
            if added_s is not None:
                latency_s = latency_s + added_s
        return duration_s, latency_s

    def _run_ring(self, ring: RingPlan) -> int:
        """Run steps while every edge carries a message; return the first step not run."""
        stage, plan, state = self.plan.stage, self.plan, self.state
        if stage.messages(0).edge is not None:
            return 0
        ring_state = ring.load(state.begin_s, state.free_s)
        if self.first_s is not None:
            np.minimum.at(
                self.first_s,
                plan.connection,
                np.maximum(state.begin_s[plan.src], state.free_s[plan.connection]),
            )
        size_bytes: float | FloatArray | None = None
        duration_s = latency_s = np.empty(0)
        step = 0
        for step in range(stage.n_steps):
            messages = stage.messages(step)
            if messages.edge is not None:
                break
            varies = self.jitter is not None or isinstance(messages.size_bytes, np.ndarray)
            if varies or messages.size_bytes != size_bytes:
                size_bytes = None if varies else messages.size_bytes
                by_edge_s, by_edge_latency_s = self._durations(messages, plan.all_edges)
                duration_s = ring.arrange(by_edge_s)
                latency_s = ring.arrange(by_edge_latency_s)
                if self.busy_s is not None:
                    np.add.at(self.busy_s, plan.connection, by_edge_s)
            ring_state.step(duration_s, latency_s, keep_start=self.sink is not None)
            if self.sink is not None:
                start_s, leave_s, arrive_s = ring_state.times()
                self._emit(step, messages, plan.all_edges, start_s, leave_s, arrive_s)
        else:
            step = stage.n_steps
        ring_state.store(state.begin_s, state.free_s)
        # Every edge's source sends and receives in each step, so T is the last of both.
        self.last_s = float(state.begin_s[plan.src].max())
        return step

    def step(self, step: int, messages: Messages) -> None:
        """Advance the state by one step, whatever its messages."""
        plan, state = self.plan, self.state
        edges = plan.all_edges if messages.edge is None else messages.edge
        if len(edges) == 0:
            return
        duration_s, latency_s = self._durations(messages, edges)
        if self.quick:
            part = _run_of(edges)
            leave_s = state.begin_s[plan.src[part]] + duration_s
            self._advance(plan.src[part], leave_s, plan.dst[part], leave_s + latency_s)
            return
        connection, src, dst = plan.connection[edges], plan.src[edges], plan.dst[edges]
        start_s = state.begin_s[src]
        if plan.n_places == 1:
            np.maximum(start_s, state.free_s[connection], out=start_s)
            leave_s = start_s + duration_s
            state.free_s[connection] = leave_s
        else:
            leave_s = np.empty_like(start_s)
            for group in plan.groups(edges):
                of_group = connection[group]
                started = np.maximum(start_s[group], state.free_s[of_group])
                left = started + duration_s[group]
                start_s[group] = started
                leave_s[group] = left
                state.free_s[of_group] = left
        arrive_s = leave_s + latency_s
        self.last_s = max(self.last_s, float(arrive_s.max()))
        self._advance(src, leave_s, dst, arrive_s)
        if self.first_s is not None:
            np.minimum.at(self.first_s, connection, start_s)
        if self.busy_s is not None:
            np.add.at(self.busy_s, connection, duration_s)
        if self.sink is not None:
            self._emit(step, messages, edges, start_s, leave_s, arrive_s)

    def _advance(
        self, src: IntArray, leave_s: FloatArray, dst: IntArray, arrive_s: FloatArray
    ) -> None:
        """Let T wait for what has left and what has arrived."""
        plan, begin_s = self.plan, self.state.begin_s
        if plan.src_unique:
            begin_s[src] = leave_s
        else:
            np.maximum.at(begin_s, src, leave_s)
        if plan.dst_unique:
            begin_s[dst] = np.maximum(begin_s[dst], arrive_s)
        else:
            np.maximum.at(begin_s, dst, arrive_s)

    def _emit(
        self,
        step: int,
        messages: Messages,
        edges: IntArray,
        start_s: FloatArray,
        leave_s: FloatArray,
        arrive_s: FloatArray,
    ) -> None:
        assert self.sink is not None
        size_bytes = np.broadcast_to(np.asarray(messages.size_bytes, dtype=float), edges.shape)
        self.sink(
            StepTimes(
                stage=self.index,
                step=step,
                edge=edges,
                size_bytes=size_bytes,
                start_s=start_s,
                leave_s=leave_s,
                arrive_s=arrive_s,
            )
        )
