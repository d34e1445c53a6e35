"""All messages of one collective call as flat arrays, with what each must wait for."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from simulator.engine.jitter import MessageJitter
from simulator.engine.outcome import MessageRecord
from simulator.engine.traffic import Collective
from simulator.engine.wave import StepTimes, Wave, WavePlan

__all__ = ["MessageTable", "MessageTimes", "count_messages", "records", "wave_times"]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


def count_messages(collective: Collective) -> int:
    """Return the number of messages of one call."""
    return int(sum(int(stage.edge_messages.sum()) for stage in collective.stages))


@dataclass(slots=True, kw_only=True)
class MessageTimes:
    """Start, leave and arrive of every message, shape (messages,)."""

    start_s: FloatArray
    leave_s: FloatArray
    arrive_s: FloatArray


class MessageTable:
    """The messages in the order (stage, step, edge), and the nodes of the program order.

    A *node* is one step of one (slot, channel) in which it sends or receives.  A message may
    start when its source's node has begun and the previous message of its connection has left.
    A node is done when it has begun, its sends have left and its receives have arrived; then the
    next node of that (slot, channel) begins.
    """

    def __init__(self, collective: Collective, jitter: MessageJitter | None = None) -> None:
        self.collective = collective
        connections, n_slots = collective.connections, collective.n_slots
        stage_of: list[int] = []
        step_of: list[int] = []
        edges: list[IntArray] = []
        sizes: list[FloatArray] = []
        factors: list[FloatArray] = []
        added: list[FloatArray] = []
        for stage_index, stage in enumerate(collective.stages):
            every = np.arange(len(stage.connection), dtype=np.int64)
            for step in range(stage.n_steps):
                messages = stage.messages(step)
                edge = every if messages.edge is None else messages.edge
                if len(edge) == 0:
                    continue
                stage_of.append(stage_index)
                step_of.append(step)
                edges.append(edge)
                sizes.append(np.broadcast_to(messages.size_bytes, edge.shape))
                factor, more_s = (None, None) if jitter is None else jitter.draw(len(edge))
                if factor is not None:
                    factors.append(factor)
                if more_s is not None:
                    added.append(more_s)
        counts = np.array([len(edge) for edge in edges], dtype=np.int64)
        self.n = int(counts.sum())
        """Number of messages."""
        self.borders = np.concatenate(([0], np.cumsum(counts)))
        """Messages of the k-th step that has any: ``borders[k] … borders[k + 1] − 1``."""
        self.stage_of_step = np.array(stage_of, dtype=np.int64)
        self.step_of_step = np.array(step_of, dtype=np.int64)
        ordinal = np.repeat(np.arange(len(counts)), counts)
        self.stage = self.stage_of_step[ordinal]
        self.edge = np.concatenate(edges) if edges else np.empty(0, dtype=np.int64)
        self.size_bytes: FloatArray = np.concatenate(sizes).astype(float) if sizes else np.empty(0)
        self.connection = np.empty(self.n, dtype=np.int64)
        self.channel = np.empty(self.n, dtype=np.int64)
        for index, stage in enumerate(collective.stages):
            here = self.stage == index
            self.connection[here] = stage.connection[self.edge[here]]
            self.channel[here] = stage.channel[self.edge[here]]
        self.latency_s: FloatArray = np.asarray(connections.latency_s)[self.connection]
        if added:
            self.latency_s = self.latency_s + np.concatenate(added)
        # A message whose time is stretched by jitter acts as one of more bytes.
        self.amount_bytes = self.size_bytes
        if factors:
            self.amount_bytes = self.size_bytes * np.concatenate(factors)
        self.src_slot = connections.src[self.connection]
        self.dst_slot = connections.dst[self.connection]
        self.n_channels = int(self.channel.max(initial=0)) + 1
        self._link_up(ordinal, n_slots)

    def _link_up(self, ordinal: IntArray, n_slots: int) -> None:
        """Give numbers to the nodes and find each message's successor on its connection."""
        n_ordinals = len(self.borders) - 1
        lane_src = self.src_slot * self.n_channels + self.channel
        lane_dst = self.dst_slot * self.n_channels + self.channel
        key = np.concatenate((lane_src, lane_dst)) * max(n_ordinals, 1) + np.tile(ordinal, 2)
        names, node = np.unique(key, return_inverse=True)
        self.src_node: IntArray = node[: self.n]
        self.dst_node: IntArray = node[self.n :]
        self.n_nodes = len(names)
        node_lane = names // max(n_ordinals, 1)
        self.node_slot: IntArray = node_lane // self.n_channels
        self.node_duties: IntArray = np.bincount(node, minlength=self.n_nodes)
        self.last_of_lane = np.ones(self.n_nodes, dtype=bool)
        self.last_of_lane[:-1] = node_lane[1:] != node_lane[:-1]
        first = np.ones(self.n_nodes, dtype=bool)
        first[1:] = self.last_of_lane[:-1]
        firsts = np.flatnonzero(first)
        by_slot = np.searchsorted(self.node_slot[firsts], np.arange(n_slots + 1))
        self.first_nodes = [firsts[low:high] for low, high in pairwise(by_slot)]
        """First node of each channel, per slot."""
        by_node = np.argsort(self.src_node, kind="stable")
        self.sends: IntArray = by_node
        """Messages ordered by source node; those of node v: `send_ptr[v] … send_ptr[v + 1]`."""
        sent = np.bincount(self.src_node, minlength=self.n_nodes)
        self.send_ptr = np.concatenate(([0], np.cumsum(sent)))
        order = np.lexsort((self.channel, ordinal, self.connection))
        self.next_on_connection: IntArray = np.full(self.n, -1, dtype=np.int64)
        same = self.connection[order[1:]] == self.connection[order[:-1]]
        self.next_on_connection[order[:-1][same]] = order[1:][same]
        self.has_previous = np.zeros(self.n, dtype=bool)
        self.has_previous[order[1:][same]] = True


def wave_times(
    plan: WavePlan,
    call_s: FloatArray,
    rate_Bps: FloatArray,
    jitter: MessageJitter | None,
    *,
    spans: bool = False,
) -> tuple[MessageTimes, Wave]:
    """Return the wave's times of all messages, in the table's order, and the wave itself."""
    parts: list[StepTimes] = []
    wave = plan.run(call_s, rate_Bps, jitter=jitter, sink=parts.append, spans=spans)
    empty = np.empty(0)
    times = MessageTimes(
        start_s=np.concatenate([part.start_s for part in parts]) if parts else empty,
        leave_s=np.concatenate([part.leave_s for part in parts]) if parts else empty,
        arrive_s=np.concatenate([part.arrive_s for part in parts]) if parts else empty,
    )
    return times, wave


def records(
    table: MessageTable, times: MessageTimes, communicator: str, index: int
) -> list[MessageRecord]:
    """Return one record per step that has messages."""
    collective = table.collective
    n_ranks = len(collective.group)
    ranks = np.concatenate(
        (collective.group, -1 - np.arange(n_ranks, collective.n_slots, dtype=np.int64))
    )
    result = []
    for k, (low, high) in enumerate(pairwise(table.borders.tolist())):
        here = slice(low, high)
        result.append(
            MessageRecord(
                collective=collective.name,
                stage=collective.stages[int(table.stage_of_step[k])].name,
                step=int(table.step_of_step[k]),
                connection=table.connection[here],
                channel=table.channel[here],
                src_rank=ranks[table.src_slot[here]],
                dst_rank=ranks[table.dst_slot[here]],
                size_bytes=table.size_bytes[here],
                start_s=times.start_s[here],
                leave_s=times.leave_s[here],
                arrive_s=times.arrive_s[here],
                communicator=communicator,
                index=index,
            )
        )
    return result
