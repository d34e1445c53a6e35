"""The `steps` level with contention: every message an entity of the fluid network.

Not one event per message: all that happens at one instant is one pass of numpy operations over
the messages concerned.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from simulator.engine.clock import Clock
from simulator.engine.intervals import union_lengths
from simulator.engine.messages import MessageTable, MessageTimes
from simulator.engine.network import FluidNetwork
from simulator.engine.traffic import Connections

__all__ = ["FlowRun"]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

_NONE = np.empty(0, dtype=np.int64)


class FlowRun:
    """One collective call, message by message.

    Parameters
    ----------
    clock, network
        Of the run.
    table
        The messages.
    connections
        The routes that they take now.
    on_end
        Called with (ranks' positions in the group, time in s) when ranks are done.
    account
        Called with (routes, payload bytes of each connection) for what has crossed them.
    record
        Keep the times of every message.
    """

    def __init__(
        self,
        clock: Clock,
        network: FluidNetwork,
        table: MessageTable,
        connections: Connections,
        on_end: Callable[[IntArray, float], None],
        account: Callable[[Connections, FloatArray], None],
        *,
        record: bool,
    ) -> None:
        self._clock = clock
        self._table = table
        self._group = network.open(connections, self)
        self._network = network
        self._on_end = on_end
        self._account = account
        self._n_ranks = len(table.collective.group)
        n_slots = table.collective.n_slots
        self._pending = table.node_duties.copy()
        self._begun = np.zeros(table.n_nodes, dtype=bool)
        self._need = 1 + table.has_previous.astype(np.int8)
        self._lanes_left = np.array([len(nodes) for nodes in table.first_nodes])
        self._nodes_left = table.n_nodes
        self._open = True
        self._switches_on = False
        self._sending = np.zeros(n_slots, dtype=np.int64)
        self._sending_since_s = np.zeros(n_slots)
        self._transfer_s = np.zeros(n_slots)
        self._sent_bytes = np.zeros(len(connections.src))
        self._credit: dict[int, float] = {}
        self.stage_end_s = np.full(len(table.collective.stages), -np.inf)
        """Last leave or arrival of each stage so far."""
        self.times: MessageTimes | None = None
        """Times of all messages, when recorded."""
        if record:
            self.times = MessageTimes(
                start_s=np.full(table.n, np.nan),
                leave_s=np.full(table.n, np.nan),
                arrive_s=np.full(table.n, np.nan),
            )

    @property
    def transfer_s(self) -> FloatArray:
        """Time in which each rank had a send on the wire, so far."""
        return self._transfer_s[: self._n_ranks]

    def call(self, positions: IntArray, begin_s: FloatArray) -> None:
        """Let ranks call; their first sends may leave at *begin_s* (now or later)."""
        if not self._switches_on:
            self._switches_on = True
            self._begin(np.arange(self._n_ranks, self._table.collective.n_slots))
        for at_s in np.unique(begin_s):
            self._begin_at(float(at_s), positions[begin_s == at_s])

    def resume(self, begin_s: FloatArray, times: MessageTimes) -> None:
        """Take over, now, a call that has gone as *times* say until now.

        Parameters
        ----------
        begin_s
            When each rank's first send may leave (inf: it has not called), shape (ranks,).
        times
            Uncontended times; those up to now hold, the rest is forgotten.
        """
        now, table = self._clock.time_s, self._table
        left = times.leave_s <= now
        arrived = times.arrive_s <= now
        started = times.start_s <= now
        flying = np.flatnonzero(left & ~arrived)
        on_wire = np.flatnonzero(started & ~left)
        if self.times is not None:
            self.times.start_s[started] = times.start_s[started]
            self.times.leave_s[left] = times.leave_s[left]
            self.times.arrive_s[left] = times.arrive_s[left]
        sent = np.flatnonzero(started & (table.amount_bytes > 0))
        self._transfer_s += union_lengths(
            table.src_slot[sent],
            times.start_s[sent],
            np.minimum(times.leave_s[sent], now),
            len(self._transfer_s),
        )
        np.maximum.at(self.stage_end_s, table.stage[left], times.leave_s[left])
        np.maximum.at(self.stage_end_s, table.stage[arrived], times.arrive_s[arrived])
        np.add.at(self._sent_bytes, table.connection[left], table.size_bytes[left])
        gone = np.flatnonzero(left)
        np.subtract.at(self._pending, table.src_node[gone], 1)
        after = table.next_on_connection[gone]
        self._need[after[after >= 0]] -= 1
        np.subtract.at(self._pending, table.dst_node[np.flatnonzero(arrived)], 1)
        # Neither those on the wire nor those through can start again.
        self._need[started] += 100
        if len(on_wire):
            share = (times.leave_s[on_wire] - now) / (
                times.leave_s[on_wire] - times.start_s[on_wire]
            )
            self._put(on_wire, table.amount_bytes[on_wire] * share)
        for at_s in np.unique(times.arrive_s[flying]):
            self._arrive_at(float(at_s), flying[times.arrive_s[flying] == at_s])
        self._switches_on = bool(np.isfinite(begin_s).any())
        switches = np.arange(self._n_ranks, table.collective.n_slots)
        ready = np.flatnonzero(begin_s <= now)
        if self._switches_on:
            ready = np.concatenate((ready, switches))
        self._begin(ready)
        waiting = np.flatnonzero(np.isfinite(begin_s) & (begin_s > now))
        for at_s in np.unique(begin_s[waiting]):
            self._begin_at(float(at_s), waiting[begin_s[waiting] == at_s])

    def reroute(self, connections: Connections) -> None:
        """Continue on other routes; what has crossed the old ones stays accounted to them."""
        keys, remaining = self._group.progress()
        table = self._table
        done = (1.0 - remaining / table.amount_bytes[keys]) * table.size_bytes[keys]
        for key, crossed in zip(keys.tolist(), done.tolist(), strict=True):
            self._sent_bytes[table.connection[key]] += crossed - self._credit.get(key, 0.0)
            self._credit[key] = crossed
        self._flush()
        self._group.reroute(connections)

    def left(self, keys: IntArray, time_s: float) -> None:
        """Take note that messages have left (called by the network)."""
        self._advance(left=keys)

    def _flush(self) -> None:
        self._account(self._group.connections, self._sent_bytes)
        self._sent_bytes = np.zeros_like(self._sent_bytes)

    def _begin(self, slots: IntArray) -> None:
        """Begin the first steps of slots; a rank that takes no part in anything is done."""
        nodes = [self._table.first_nodes[int(slot)] for slot in slots]
        idle = slots[(self._lanes_left[slots] == 0) & (slots < self._n_ranks)]
        self._advance(begin=np.concatenate(nodes) if nodes else _NONE)
        if len(idle):
            self._on_end(idle, self._clock.time_s)

    def _begin_at(self, time_s: float, slots: IntArray) -> None:
        if time_s <= self._clock.time_s:
            self._begin(slots)
        else:
            self._clock.at(time_s, lambda: self._begin(slots))

    def _finish(self) -> None:
        if self._nodes_left == 0 and self._open:
            self._open = False
            self._flush()
            self._network.shut(self._group)

    def _arrive_at(self, time_s: float, messages: IntArray) -> None:
        self._clock.at(time_s, lambda: self._advance(arrived=messages))

    def _put(self, messages: IntArray, amount_bytes: FloatArray) -> None:
        slots = self._table.src_slot[messages]
        idle = np.unique(slots[self._sending[slots] == 0])
        self._sending_since_s[idle] = self._clock.time_s
        np.add.at(self._sending, slots, 1)
        self._group.add(self._table.connection[messages], amount_bytes, messages)

    def _take_off(self, messages: IntArray) -> None:
        """Account messages that were on the wire."""
        table, now = self._table, self._clock.time_s
        slots = table.src_slot[messages]
        np.subtract.at(self._sending, slots, 1)
        idle = np.unique(slots[self._sending[slots] == 0])
        self._transfer_s[idle] += now - self._sending_since_s[idle]
        np.add.at(self._sent_bytes, table.connection[messages], table.size_bytes[messages])
        if self._credit:
            for key in messages.tolist():
                self._sent_bytes[table.connection[key]] -= self._credit.pop(key, 0.0)

    def _advance(
        self, *, begin: IntArray = _NONE, left: IntArray = _NONE, arrived: IntArray = _NONE
    ) -> None:
        """Do all that follows, at this instant, from nodes that begin and messages that moved."""
        table, now = self._table, self._clock.time_s
        ended: list[IntArray] = []
        if len(left):
            self._take_off(left)
        while len(begin) or len(left) or len(arrived):
            touched, ready = [begin], []
            if len(left):
                self.stage_end_s[table.stage[left]] = now
                if self.times is not None:
                    self.times.leave_s[left] = now
                    self.times.arrive_s[left] = now + table.latency_s[left]
                np.subtract.at(self._pending, table.src_node[left], 1)
                touched.append(table.src_node[left])
                after = table.next_on_connection[left]
                after = after[after >= 0]
                self._need[after] -= 1
                ready.append(after)
                arrived = np.concatenate((arrived, self._send_off(left)))
            if len(arrived):
                self.stage_end_s[table.stage[arrived]] = now
                np.subtract.at(self._pending, table.dst_node[arrived], 1)
                touched.append(table.dst_node[arrived])
            if len(begin):
                self._begun[begin] = True
                sends = self._sends_of(begin)
                self._need[sends] -= 1
                ready.append(sends)
            nodes = np.unique(np.concatenate(touched))
            done = nodes[(self._pending[nodes] == 0) & self._begun[nodes]]
            self._nodes_left -= len(done)
            last = table.last_of_lane[done]
            ended.append(table.node_slot[done[last]])
            begin = done[~last] + 1
            left, arrived = self._start(ready), _NONE
        self._end(ended)

    def _send_off(self, left: IntArray) -> IntArray:
        """Let messages travel; return those that arrive at once."""
        latency_s = self._table.latency_s[left]
        arrive_s = self._clock.time_s + latency_s
        later = latency_s > 0
        if later.any():
            travelling, arrive_s = left[later], arrive_s[later]
            if (arrive_s == arrive_s[0]).all():
                self._arrive_at(float(arrive_s[0]), travelling)
            else:
                order = np.argsort(arrive_s, kind="stable")
                cuts = np.flatnonzero(np.diff(arrive_s[order])) + 1
                for part in np.split(order, cuts):
                    self._arrive_at(float(arrive_s[part[0]]), travelling[part])
        return np.asarray(left[~later])

    def _sends_of(self, nodes: IntArray) -> IntArray:
        low = self._table.send_ptr[nodes]
        counts = self._table.send_ptr[nodes + 1] - low
        ends = np.cumsum(counts)
        index = np.repeat(low - (ends - counts), counts) + np.arange(int(ends[-1]))
        return self._table.sends[index]

    def _start(self, ready: list[IntArray]) -> IntArray:
        """Put on the wire what may start; return messages without bytes, which leave at once."""
        if not ready:
            return _NONE
        candidates = np.unique(np.concatenate(ready)).astype(np.int64)
        start = candidates[self._need[candidates] == 0]
        if len(start) == 0:
            return _NONE
        if self.times is not None:
            self.times.start_s[start] = self._clock.time_s
        empty = self._table.amount_bytes[start] == 0
        on_wire = start[~empty]
        if len(on_wire):
            self._put(on_wire, self._table.amount_bytes[on_wire])
        return np.asarray(start[empty])

    def _end(self, ended: list[IntArray]) -> None:
        """Tell which ranks are done, once all their channels are."""
        slots = np.concatenate(ended) if ended else _NONE
        if len(slots):
            np.subtract.at(self._lanes_left, slots, 1)
            slots = np.unique(slots)
            done = slots[(self._lanes_left[slots] == 0) & (slots < self._n_ranks)]
            if len(done):
                self._on_end(done, self._clock.time_s)
        self._finish()
