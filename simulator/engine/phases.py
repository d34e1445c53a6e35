"""Phases: the stages of a collective as entities of the fluid network."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from simulator.engine.maxmin import max_min_rates
from simulator.engine.ring_time import Ring
from simulator.engine.ring_wave import cycles_of, followers
from simulator.engine.routes import alone_rates, link_demand
from simulator.engine.step_model import StepModel
from simulator.engine.traffic import Collective, Connections, StageTraffic

__all__ = ["Phase", "phases_of"]

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
    model: Ring | StepModel | None
    """None: the bytes at the rate, then the tail."""
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
        held = np.zeros(0, dtype=bool)
        if rate_Bps < self.alone_Bps * (1 - 1e-12):
            held = self._crossing(over)
        name = (rate_Bps if held.any() else self.alone_Bps, held.tobytes())
        if name not in self.known_s:
            rates = self.rate_Bps
            if held.any() and isinstance(self.model, Ring):
                share = self.payload_bytes / self.amount_bytes
                rates = np.where(held, np.minimum(rates, rate_Bps * share), rates)
            elif held.any():
                # What is left of the links, whichever of the phase's messages use them.
                rates = np.where(held, rates * (rate_Bps / self.alone_Bps), rates)
            self.known_s[name] = max(self.model.duration_s(rates), bytes_s)
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
        if runs and _continues(collective, collective.stages[runs[-1][-1]], stage):
            runs[-1].append(index)
        else:
            runs.append([index])
    return [_phase(collective, tuple(run), capacity_Bps) for run in runs]


def _continues(collective: Collective, before: StageTraffic, stage: StageTraffic) -> bool:
    return (
        stage.n_steps > 1
        and np.array_equal(before.connection, stage.connection)
        and np.array_equal(before.channel, stage.channel)
        and _is_ring(collective, before, before.edge_messages, before.n_steps)
        and _is_ring(collective, stage, stage.edge_messages, stage.n_steps)
        and bool(
            np.allclose(
                before.edge_bytes * stage.n_steps, stage.edge_bytes * before.n_steps, rtol=1e-3
            )
        )
    )


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
    tail_s = 0.0
    model: Ring | StepModel | None = None
    if n_steps <= 1:
        tail_s = float(latency_s[moving].max(initial=0.0))
        rate_Bps = np.where(active, alone * payload / max(amount, 1e-300), np.inf)
    else:
        rate_Bps = alone_rates(connections, capacity_Bps)
        if _is_ring(collective, first, edge_messages, n_steps):
            src, dst = _lanes(collective, first)
            after = followers(src, dst)
            assert after is not None
            model = Ring(
                cycles=tuple(cycles_of(after)),
                connection=first.connection,
                edge_bytes=edge_bytes,
                latency_s=latency_s,
                n_steps=n_steps,
            )
            rate_Bps = _shared_rates(connections, rate_Bps, active, capacity_Bps)
        else:
            model = StepModel(collective, first, capacity_Bps)
        rate_Bps = np.where(active, rate_Bps, np.inf)
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


def _lanes(collective: Collective, stage: StageTraffic) -> tuple[IntArray, IntArray]:
    """Return the (channel, slot) of the source and destination of each edge."""
    connections = collective.connections
    base = np.asarray(stage.channel, dtype=np.int64) * collective.n_slots
    return base + connections.src[stage.connection], base + connections.dst[stage.connection]


def _is_ring(
    collective: Collective, stage: StageTraffic, edge_messages: IntArray, n_steps: int
) -> bool:
    """Return whether every edge sends in every step, and the edges permute the slots."""
    if not (edge_messages == n_steps).all():
        return False
    return followers(*_lanes(collective, stage)) is not None
