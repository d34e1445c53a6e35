"""The `folded` level: one fluid entity per stage of a collective, with its closed-form time.

Not modelled: stages of one call that overlap (each begins when all ranks have ended the one
before), and ranks that run ahead of a late one (a call begins when its last sender has called;
in a ring that is exact to within the pipeline's fill).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from simulator.engine.clock import Clock
from simulator.engine.group import FlowGroup
from simulator.engine.maxmin import max_min_rates
from simulator.engine.network import FluidNetwork
from simulator.engine.phases import Chain, Ring, first_steps
from simulator.engine.ring_wave import cycles_of, followers
from simulator.engine.routes import alone_rates, link_demand
from simulator.engine.traffic import Collective, Connections, StageTraffic

__all__ = ["FoldedRun", "Phase", "phases_of"]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]


@dataclass(slots=True, kw_only=True)
class Phase:
    """One or more stages of a collective as one entity."""

    stages: tuple[int, ...]
    """Indices of the stages that it stands for."""
    connections: Connections
    """Of the collective."""
    route: Connections
    """One row: wire bytes on each link per payload byte of the connection with most bytes."""
    amount_bytes: float
    """Payload of that connection."""
    payload_bytes: FloatArray
    """Payload of each connection."""
    alone_Bps: float
    """Rate of that connection when the phase is alone."""
    rate_Bps: FloatArray
    """Rate of each connection when the phase is alone (inf: it carries nothing)."""
    tail_s: float
    """Latency after the last byte has left (a stage of one step)."""
    model: Ring | Chain | None
    """None: the bytes at the rate, then the tail."""
    fixed_s: float | None
    """Latency on top of the bytes of a stage whose messages go one by one; None: the model's."""
    sends: BoolArray
    """Ranks that send in the phase."""
    receives: BoolArray
    transfer_s: FloatArray
    """Time that each rank has a send on the wire, alone: its busiest connection's."""
    known_s: dict[tuple[float, bytes], float] = field(default_factory=dict)

    @property
    def alone_s(self) -> float:
        """Time of the phase alone, without the tail."""
        return self.duration_s(self.alone_Bps, np.zeros(0, dtype=bool))

    def duration_s(self, rate_Bps: float, over: BoolArray) -> float:
        """Return the time of the phase, without the tail, at a rate of its busiest connection.

        Connections that cross links that are *over* loaded are held to that rate; the others keep
        their own.
        """
        bytes_s = self.amount_bytes / rate_Bps if self.amount_bytes else 0.0
        if self.model is None:
            return bytes_s
        if self.fixed_s is not None:
            return bytes_s + self.fixed_s
        held = np.zeros(0, dtype=bool)
        if rate_Bps < self.alone_Bps * (1 - 1e-12):
            held = self._crossing(over)
        name = (rate_Bps if held.any() else self.alone_Bps, held.tobytes())
        if name not in self.known_s:
            rates = self.rate_Bps
            if held.any():
                share = self.payload_bytes / self.amount_bytes
                rates = np.where(held, np.minimum(rates, rate_Bps * share), rates)
            self.known_s[name] = self.model.duration_s(rates)
        return self.known_s[name]

    def _crossing(self, over: BoolArray) -> BoolArray:
        """Return which connections with bytes cross links that are over."""
        connections = self.connections
        crossed = np.concatenate(([0], np.cumsum(over[connections.link])))
        counts = crossed[connections.indptr[1:]] - crossed[connections.indptr[:-1]]
        return np.asarray((counts > 0) & (self.payload_bytes > 0))


def phases_of(collective: Collective, capacity_Bps: FloatArray) -> list[Phase]:
    """Return the phases of a collective on links of these capacities.

    Consecutive stages that are the same ring (reduce-scatter, then all-gather) are one phase:
    the second flows on where the first is through.
    """
    runs: list[list[int]] = []
    for index, stage in enumerate(collective.stages):
        if runs and _continues(collective.stages[runs[-1][-1]], stage):
            runs[-1].append(index)
        else:
            runs.append([index])
    return [_phase(collective, tuple(run), capacity_Bps) for run in runs]


def _continues(before: StageTraffic, stage: StageTraffic) -> bool:
    return (
        stage.n_steps > 1
        and _steady(before)
        and _steady(stage)
        and np.array_equal(before.connection, stage.connection)
        and np.array_equal(before.channel, stage.channel)
        and bool(
            np.allclose(
                before.edge_bytes * stage.n_steps, stage.edge_bytes * before.n_steps, rtol=1e-3
            )
        )
    )


def _steady(stage: StageTraffic) -> bool:
    return bool((stage.edge_messages == stage.n_steps).all())


def _phase(collective: Collective, stages: tuple[int, ...], capacity_Bps: FloatArray) -> Phase:
    connections, n_ranks = collective.connections, len(collective.group)
    first = collective.stages[stages[0]]
    n = len(connections.src)
    edge_bytes = np.zeros(len(first.connection))
    edge_messages = np.zeros(len(first.connection), dtype=np.int64)
    for index in stages:
        edge_bytes = edge_bytes + collective.stages[index].edge_bytes
        edge_messages = edge_messages + collective.stages[index].edge_messages
    n_steps = sum(collective.stages[index].n_steps for index in stages)
    payload = np.bincount(first.connection, edge_bytes, n).astype(np.float64)
    amount = float(payload.max(initial=0.0))
    route = _folded_route(connections, payload, amount, len(capacity_Bps))
    alone = float(alone_rates(route, capacity_Bps)[0])
    active = payload > 0
    latency_s = np.asarray(connections.latency_s)[first.connection]
    moving = edge_messages > 0
    sends, receives = np.zeros(n_ranks, dtype=bool), np.zeros(n_ranks, dtype=bool)
    for flags, ends in ((sends, connections.src), (receives, connections.dst)):
        slots = ends[first.connection[moving]]
        flags[slots[slots < n_ranks]] = True
    tail_s, fixed_s = 0.0, None
    model: Ring | Chain | None = None
    if n_steps <= 1:
        tail_s = float(latency_s[moving].max(initial=0.0))
        rate_Bps = np.where(active, alone * payload / max(amount, 1e-300), np.inf)
    else:
        model = _ring(collective, first, edge_bytes, edge_messages, n_steps)
        if model is None:
            model = _chain(collective, first, edge_bytes, edge_messages, n_steps)
        rate_Bps = alone_rates(connections, capacity_Bps)
        sequential = bool((edge_messages <= 1).all())
        if not sequential:
            rate_Bps = _shared_rates(connections, rate_Bps, active, capacity_Bps)
        rate_Bps = np.where(active, rate_Bps, np.inf)
        if sequential or amount == 0:
            # One message at a time at its lone rate; links that several senders share in a step,
            # or other traffic, stretch the bytes and not the latencies.
            whole_s = model.duration_s(rate_Bps)
            fixed_s = max(whole_s - (amount / alone if amount else 0.0), 0.0)
    phase = Phase(
        stages=stages,
        connections=connections,
        route=route,
        amount_bytes=amount,
        payload_bytes=payload,
        alone_Bps=alone,
        rate_Bps=rate_Bps,
        tail_s=tail_s,
        model=model,
        fixed_s=fixed_s,
        sends=sends,
        receives=receives,
        transfer_s=np.zeros(n_ranks),
    )
    busy_s = np.zeros(collective.n_slots)
    np.maximum.at(busy_s, connections.src, payload / rate_Bps)
    phase.transfer_s = np.minimum(busy_s[:n_ranks], phase.alone_s)
    return phase


def _folded_route(
    connections: Connections, payload: FloatArray, amount: float, n_links: int
) -> Connections:
    """Return the single row of a phase: each link's wire bytes over the amount."""
    active = payload > 0
    wire = link_demand(connections, payload, active, n_links)
    link = np.flatnonzero(wire)
    with np.errstate(divide="ignore"):
        limits = connections.max_rate_Bps[active] * (amount / payload[active])
    return Connections(
        src=np.zeros(1, dtype=np.int64),
        dst=np.zeros(1, dtype=np.int64),
        indptr=np.array([0, len(link)], dtype=np.int64),
        link=link,
        weight=wire[link] / amount if amount else wire[link],
        latency_s=np.zeros(1),
        max_rate_Bps=np.array([limits.min(initial=np.inf)]),
    )


def _shared_rates(
    connections: Connections, lone_Bps: FloatArray, active: BoolArray, capacity_Bps: FloatArray
) -> FloatArray:
    """Return the connections' max-min rates when all active ones send at once."""
    demand = link_demand(connections, lone_Bps, active, len(capacity_Bps))
    if (demand <= capacity_Bps * (1 + 1e-9)).all():
        return lone_Bps
    counts = np.diff(connections.indptr)
    keep = np.repeat(active, counts)
    rate = lone_Bps.copy()
    rate[active] = max_min_rates(
        np.concatenate(([0], np.cumsum(counts[active]))),
        connections.link[keep],
        connections.weight[keep],
        capacity_Bps,
        connections.max_rate_Bps[active],
    )
    return rate


def _lanes(collective: Collective, stage: StageTraffic) -> tuple[IntArray, IntArray, int]:
    """Return the (channel, slot) of the source and destination of each edge, and their number."""
    connections, n_slots = collective.connections, collective.n_slots
    base = np.asarray(stage.channel, dtype=np.int64) * n_slots
    n_lanes = (int(stage.channel.max(initial=0)) + 1) * n_slots
    return (
        base + connections.src[stage.connection],
        base + connections.dst[stage.connection],
        n_lanes,
    )


def _ring(
    collective: Collective,
    stage: StageTraffic,
    edge_bytes: FloatArray,
    edge_messages: IntArray,
    n_steps: int,
) -> Ring | None:
    """Return the stage as rings, or None if it is not."""
    if not (edge_messages == n_steps).all():
        return None
    src, dst, _ = _lanes(collective, stage)
    after = followers(src, dst)
    if after is None:
        return None
    latency_s = np.asarray(collective.connections.latency_s)[stage.connection]
    return Ring(
        cycles=tuple(cycles_of(after)),
        connection=stage.connection,
        edge_bytes=edge_bytes,
        latency_s=latency_s,
        n_steps=n_steps,
    )


def _chain(
    collective: Collective,
    stage: StageTraffic,
    edge_bytes: FloatArray,
    edge_messages: IntArray,
    n_steps: int,
) -> Chain:
    first = first_steps(stage)
    live = np.flatnonzero(edge_messages > 0)
    order = live[np.argsort(first[live], kind="stable")]
    cuts = np.flatnonzero(np.diff(first[order])) + 1
    src, dst, n_lanes = _lanes(collective, stage)
    many = np.flatnonzero(edge_messages > 1)
    return Chain(
        groups=tuple(np.split(order, cuts)),
        src_lane=src,
        dst_lane=dst,
        n_lanes=n_lanes,
        connection=stage.connection,
        edge_bytes=edge_bytes,
        edge_messages=edge_messages,
        latency_s=np.asarray(collective.connections.latency_s)[stage.connection],
        n_steps=n_steps,
        cyclic=_has_cycle(src[many], dst[many]),
    )


def _has_cycle(src: IntArray, dst: IntArray) -> bool:
    """Return whether the edges form a directed cycle."""
    waiting: dict[int, int] = {}
    onward: dict[int, list[int]] = {}
    for a, b in zip(src.tolist(), dst.tolist(), strict=True):
        waiting[b] = waiting.get(b, 0) + 1
        waiting.setdefault(a, 0)
        onward.setdefault(a, []).append(b)
    free = [lane for lane, count in waiting.items() if count == 0]
    seen = 0
    while free:
        lane = free.pop()
        seen += 1
        for other in onward.get(lane, ()):
            waiting[other] -= 1
            if waiting[other] == 0:
                free.append(other)
    return seen < len(waiting)


class FoldedRun:
    """One collective call, phase by phase.

    Parameters
    ----------
    clock, network
        Of the run.
    collective
        With the routes that it takes now.
    on_end
        Called with (ranks' positions, time in s) when ranks are done.
    account
        Called with (routes, payload bytes of each connection) for what has crossed them.
    """

    def __init__(
        self,
        clock: Clock,
        network: FluidNetwork,
        collective: Collective,
        phases: list[Phase],
        on_end: Callable[[IntArray, float], None],
        account: Callable[[Connections, FloatArray], None],
    ) -> None:
        self._clock = clock
        self._network = network
        self._collective = collective
        self._phases = phases
        self._on_end = on_end
        self._account = account
        self._index = 0
        self._began_s = 0.0
        self._skipped = 0.0
        self._credited = 0.0
        self._group: FlowGroup | None = None
        n_ranks = len(collective.group)
        self.transfer_s = np.zeros(n_ranks)
        self.stage_end_s = np.full(len(collective.stages), -np.inf)
        # A rank is done with the last phase in which it takes part.
        self._last_phase = np.full(n_ranks, -1)
        for index, phase in enumerate(phases):
            self._last_phase[phase.sends | phase.receives] = index

    def begin(self, begin_s: float, *, phase: int = 0, done: float = 0.0) -> None:
        """Start at *begin_s*, with *done* (share) of phase *phase* behind already."""
        self._index = phase
        self._skipped = done
        self._clock.at(begin_s, self._first)

    def _first(self) -> None:
        if self._index == 0 and self._skipped == 0:
            self._finish(np.flatnonzero(self._last_phase < 0))
        self._next()

    def _finish(self, positions: IntArray) -> None:
        if len(positions):
            self._on_end(positions, self._clock.time_s)

    def _next(self) -> None:
        if self._index == len(self._phases):
            return
        phase = self._phases[self._index]
        self._began_s = self._clock.time_s
        self._credited = self._skipped
        if phase.alone_s == 0:
            self.left(np.zeros(1, dtype=np.int64), self._clock.time_s)
            return
        self._open(phase, 1.0 - self._skipped)

    def _open(self, phase: Phase, remaining: float) -> None:
        self._group = self._network.open(phase.route, self, phase)
        zero = np.zeros(1, dtype=np.int64)
        self._group.add(zero, np.array([remaining]), zero)

    def left(self, keys: IntArray, time_s: float) -> None:
        """Take note that the phase's last byte has left (called by the network)."""
        phase = self._phases[self._index]
        if self._group is not None:
            self._network.shut(self._group)
            self._group = None
        self._account(self._collective.connections, phase.payload_bytes * (1.0 - self._credited))
        lasted_s, alone_s = time_s - self._began_s, phase.alone_s * (1.0 - self._skipped)
        stretch = lasted_s / alone_s if alone_s > 0 else 1.0
        self.transfer_s += phase.transfer_s * (1.0 - self._skipped) * stretch
        self._skipped = 0.0
        if phase.tail_s > 0:
            # Who only sends is done when its last byte has left.
            mine = self._last_phase == self._index
            self._finish(np.flatnonzero(mine & ~phase.receives))
            self._clock.at(time_s + phase.tail_s, self._landed)
        else:
            self._landed()

    def _landed(self) -> None:
        phase = self._phases[self._index]
        self.stage_end_s[list(phase.stages)] = self._clock.time_s
        if len(phase.stages) > 1:
            # Stages that were one phase end in proportion to their steps.
            steps = np.cumsum([self._collective.stages[k].n_steps for k in phase.stages])
            whole_s = self._clock.time_s - self._began_s
            self.stage_end_s[list(phase.stages)] = self._began_s + whole_s * steps / steps[-1]
        mine = self._last_phase == self._index
        if phase.tail_s > 0:
            mine &= phase.receives
        self._index += 1
        self._next()
        self._finish(np.flatnonzero(mine))

    def refresh(self, collective: Collective, phases: list[Phase]) -> None:
        """Continue on other routes or capacities."""
        before = self._collective
        self._collective = collective
        if self._group is not None:
            remaining = float(self._group.progress()[1][0])
            crossed = (1.0 - remaining) - self._credited
            if before.connections is not collective.connections:
                self._account(before.connections, self._phases[self._index].payload_bytes * crossed)
                self._credited = 1.0 - remaining
            self._network.shut(self._group)
            self._phases = phases
            self._open(phases[self._index], remaining)
        else:
            self._phases = phases
