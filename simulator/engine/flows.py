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
from simulator.engine.routes import distinct
from simulator.engine.traffic import Connections
from simulator.engine.views import flags, floats, ints

__all__ = ["FlowRun"]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

_NONE = np.empty(0, dtype=np.int64)
_FEW = 16
"""Up to this many things at one instant are followed one by one, without numpy."""
_STARTED = 100
"""Added to what a message waits for, once it has started."""


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
        self._one = _Views(self)

    @property
    def transfer_s(self) -> FloatArray:
        """Time in which each rank had a send on the wire, so far."""
        return self._transfer_s[: self._n_ranks]

    def call(self, positions: IntArray, begin_s: FloatArray) -> None:
        """Let ranks call; their first sends may leave at *begin_s* (now or later)."""
        self._turn_switches_on(begin_s)
        for at_s in distinct(begin_s):
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
        self._need[started] += _STARTED
        if len(on_wire):
            share = (times.leave_s[on_wire] - now) / (
                times.leave_s[on_wire] - times.start_s[on_wire]
            )
            self._put(on_wire, table.amount_bytes[on_wire] * share)
        for at_s in distinct(times.arrive_s[flying]):
            self._arrive_at(float(at_s), flying[times.arrive_s[flying] == at_s])
        self._turn_switches_on(begin_s)
        self._begin(np.flatnonzero(begin_s <= now))
        waiting = np.flatnonzero(np.isfinite(begin_s) & (begin_s > now))
        for at_s in distinct(begin_s[waiting]):
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

    def _turn_switches_on(self, begin_s: FloatArray) -> None:
        """Let the switches begin, once, with the first rank's call."""
        call_s = float(begin_s.min()) - self._table.collective.launch_s
        if call_s > self._clock.time_s:
            if call_s < np.inf:
                self._clock.at(call_s, lambda: self._turn_switches_on(begin_s))
        elif not self._switches_on:
            self._switches_on = True
            self._begin(np.arange(self._n_ranks, self._table.collective.n_slots))

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
        idle = distinct(slots[self._sending[slots] == 0])
        self._sending_since_s[idle] = self._clock.time_s
        np.add.at(self._sending, slots, 1)
        self._group.add(self._table.connection[messages], amount_bytes, messages)

    def _take_off(self, messages: IntArray) -> None:
        """Account messages that were on the wire."""
        table, now = self._table, self._clock.time_s
        slots = table.src_slot[messages]
        np.subtract.at(self._sending, slots, 1)
        idle = distinct(slots[self._sending[slots] == 0])
        self._transfer_s[idle] += now - self._sending_since_s[idle]
        np.add.at(self._sent_bytes, table.connection[messages], table.size_bytes[messages])
        if self._credit:
            for key in messages.tolist():
                self._sent_bytes[table.connection[key]] -= self._credit.pop(key, 0.0)

    def _advance(
        self, *, begin: IntArray = _NONE, left: IntArray = _NONE, arrived: IntArray = _NONE
    ) -> None:
        """Do all that follows, at this instant, from nodes that begin and messages that moved."""
        if len(begin) + len(left) + len(arrived) <= _FEW:
            self._advance_few(begin.tolist(), left.tolist(), arrived.tolist())
            return
        table, now = self._table, self._clock.time_s
        ended: list[IntArray] = []
        if len(left):
            self._take_off(left)
        while len(begin) or len(left) or len(arrived):
            touched, ready = [begin], []
            if len(left):
                # Some arrive at switches when the call is over.
                arrive_s = now + table.latency_s[left]
                np.maximum.at(self.stage_end_s, table.stage[left], arrive_s)
                if self.times is not None:
                    self.times.leave_s[left] = now
                    self.times.arrive_s[left] = arrive_s
                np.subtract.at(self._pending, table.src_node[left], 1)
                touched.append(table.src_node[left])
                after = table.next_on_connection[left]
                after = after[after >= 0]
                self._need[after] -= 1
                ready.append(after)
                arrived = np.concatenate((arrived, self._send_off(left)))
            if len(arrived):
                np.subtract.at(self._pending, table.dst_node[arrived], 1)
                touched.append(table.dst_node[arrived])
            if len(begin):
                self._begun[begin] = True
                sends = self._sends_of(begin)
                self._need[sends] -= 1
                ready.append(sends)
            nodes = distinct(np.concatenate(touched))
            done = nodes[(self._pending[nodes] == 0) & self._begun[nodes]]
            self._nodes_left -= len(done)
            last = table.last_of_lane[done]
            ended.append(table.node_slot[done[last]])
            begin = done[~last] + 1
            left, arrived = self._start(ready), _NONE
        self._end(np.concatenate(ended) if ended else _NONE)

    def _advance_few(self, begin: list[int], left: list[int], arrived: list[int]) -> None:
        """Do the same, one by one."""
        one, now = self._one, self._clock.time_s
        pending, need = one.pending, one.need
        ended: list[int] = []
        for message in left:
            self._take_off_one(message)
        while begin or left or arrived:
            touched = dict.fromkeys(begin)
            ready: dict[int, None] = {}
            later: dict[float, list[int]] = {}
            for message in left:
                latency_s, stage = one.latency[message], one.stage[message]
                one.stage_end[stage] = max(one.stage_end[stage], now + latency_s)
                if self.times is not None:
                    self.times.leave_s[message] = now
                    self.times.arrive_s[message] = now + latency_s
                node = one.src_node[message]
                pending[node] -= 1
                touched[node] = None
                after = one.next_on_connection[message]
                if after >= 0:
                    need[after] -= 1
                    ready[after] = None
                if latency_s > 0:
                    later.setdefault(now + latency_s, []).append(message)
                else:
                    arrived.append(message)
            for at_s, messages in later.items():
                self._arrive_at(at_s, np.array(messages))
            for message in arrived:
                node = one.dst_node[message]
                pending[node] -= 1
                touched[node] = None
            for node in begin:
                one.begun[node] = True
                for k in range(one.send_ptr[node], one.send_ptr[node + 1]):
                    message = one.sends[k]
                    need[message] -= 1
                    ready[message] = None
            begin, left, arrived = [], [], []
            for node in touched:
                if pending[node] == 0 and one.begun[node]:
                    self._nodes_left -= 1
                    if one.last_of_lane[node]:
                        ended.append(one.node_slot[node])
                    else:
                        begin.append(node + 1)
            for message in ready:
                if need[message] == 0:
                    need[message] = _STARTED
                    if self.times is not None:
                        self.times.start_s[message] = now
                    if one.amount[message] == 0:
                        left.append(message)
                    else:
                        self._put_one(message)
        self._end(np.array(ended, dtype=np.int64))

    def _put_one(self, message: int) -> None:
        one = self._one
        slot = one.src_slot[message]
        if one.sending[slot] == 0:
            one.sending_since[slot] = self._clock.time_s
        one.sending[slot] += 1
        self._group.add_one(one.connection[message], one.amount[message], message)

    def _take_off_one(self, message: int) -> None:
        one = self._one
        slot = one.src_slot[message]
        one.sending[slot] -= 1
        if one.sending[slot] == 0:
            one.transfer[slot] += self._clock.time_s - one.sending_since[slot]
        credit = self._credit.pop(message, 0.0) if self._credit else 0.0
        self._sent_bytes[one.connection[message]] += one.size[message] - credit

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
        candidates = distinct(np.concatenate(ready)).astype(np.int64)
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

    def _end(self, slots: IntArray) -> None:
        """Tell which ranks are done, once all their channels are (a slot per channel)."""
        if len(slots):
            np.subtract.at(self._lanes_left, slots, 1)
            slots = distinct(slots)
            done = slots[(self._lanes_left[slots] == 0) & (slots < self._n_ranks)]
            if len(done):
                self._on_end(done, self._clock.time_s)
        self._finish()


class _Views:
    """Views of a run's arrays."""

    def __init__(self, run: FlowRun) -> None:
        table = run._table
        self.pending = ints(run._pending)
        self.need = ints(run._need)
        self.begun = flags(run._begun)
        self.sending = ints(run._sending)
        self.sending_since = floats(run._sending_since_s)
        self.transfer = floats(run._transfer_s)
        self.stage_end = floats(run.stage_end_s)
        self.stage = ints(table.stage)
        self.latency = floats(table.latency_s)
        self.amount = floats(table.amount_bytes)
        self.size = floats(table.size_bytes)
        self.connection = ints(table.connection)
        self.src_slot = ints(table.src_slot)
        self.src_node = ints(table.src_node)
        self.dst_node = ints(table.dst_node)
        self.next_on_connection = ints(table.next_on_connection)
        self.send_ptr = ints(table.send_ptr)
        self.sends = ints(table.sends)
        self.last_of_lane = flags(table.last_of_lane)
        self.node_slot = ints(table.node_slot)
