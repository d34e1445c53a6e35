"""Phases: the stages of a collective as entities of the fluid network."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from simulator.engine.maxmin import max_min_rates
from simulator.engine.ring_time import Ring
from simulator.engine.ring_wave import cycles_of, followers
from simulator.engine.routes import alone_rates, entries_of, link_demand
from simulator.engine.step_model import MOST_SOLVES, StepModel
from simulator.engine.traffic import Collective, Connections, StageTraffic

__all__ = ["Phase", "phases_of"]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]

_DUTY_ROUNDS = 6
_TOGETHER = 0.25
"""Part of what is not duty in which messages of one rank meet all the same; chosen so that rings
of several channels in nodes of eight come within 3 % of message by message."""
_NEAR_BOUND = 1.01
"""A ring this close to its busiest link's time is left as it is."""
_END_CLASSES = 16
"""A phase lets its ranks go at no more than this many moments; in between, at the next."""


@dataclass(slots=True, kw_only=True)
class Phase:
    """One or more stages of a collective as one entity."""

    stages: tuple[int, ...]
    """Indices of the stages that it stands for."""
    steps_of_stages: tuple[int, ...]
    connections: Connections
    """Of the collective."""
    route: Connections
    """One row: wire bytes on each link per payload byte of the connection with most bytes."""
    amount_bytes: float
    """Payload of that connection."""
    payload_bytes: FloatArray
    """Payload of each connection."""
    wire_bytes: FloatArray
    """Wire bytes on each link, shape (links,)."""
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
    end_share: FloatArray
    """At which share of the phase's time each rank is done with it."""
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

    def stage_shares(self) -> FloatArray:
        """Return at which share of the phase's time each of its stages ends."""
        if isinstance(self.model, StepModel):
            ends_s = self.model.stage_end_s
            return ends_s / ends_s[-1] if ends_s[-1] > 0 else np.ones_like(ends_s)
        steps = np.cumsum(self.steps_of_stages)
        return np.asarray(steps / steps[-1])

    def _crossing(self, over: BoolArray) -> BoolArray:
        """Return which connections with bytes cross links that are over."""
        connections = self.connections
        crossed = np.concatenate(([0], np.cumsum(over[connections.link])))
        counts = crossed[connections.indptr[1:]] - crossed[connections.indptr[:-1]]
        return np.asarray((counts > 0) & (self.payload_bytes > 0))


def phases_of(
    collective: Collective, capacity_Bps: FloatArray, *, most_solves: int = MOST_SOLVES
) -> list[Phase]:
    """Return the phases of a collective on links of these capacities.

    Of a phase's different sets of messages, *most_solves* get max-min rates.

    Consecutive stages that are the same ring (reduce-scatter, then all-gather) are one phase:
    the second flows on where the first is through.  So are consecutive stages of one step each:
    a rank that is through with one does not wait for the others.
    """
    runs: list[list[int]] = []
    for index, stage in enumerate(collective.stages):
        if runs and _continues(collective, collective.stages[runs[-1][-1]], stage):
            runs[-1].append(index)
        else:
            runs.append([index])
    return [_phase(collective, tuple(run), capacity_Bps, most_solves) for run in runs]


def _continues(collective: Collective, before: StageTraffic, stage: StageTraffic) -> bool:
    if stage.n_steps == 1 and before.n_steps == 1:
        return True
    return (
        stage.n_steps > 1
        and np.array_equal(before.connection, stage.connection)
        and np.array_equal(before.channel, stage.channel)
        and _ring_order(collective, before) is not None
        and _ring_order(collective, stage) is not None
        and bool(
            np.allclose(
                before.edge_bytes * stage.n_steps, stage.edge_bytes * before.n_steps, rtol=1e-3
            )
        )
    )


def _phase(
    collective: Collective, stages: tuple[int, ...], capacity_Bps: FloatArray, most_solves: int
) -> Phase:
    connections, n_ranks = collective.connections, len(collective.group)
    members = [collective.stages[index] for index in stages]
    payload = np.zeros(len(connections.src))
    sends, receives = np.zeros(n_ranks, dtype=bool), np.zeros(n_ranks, dtype=bool)
    for stage in members:
        np.add.at(payload, stage.connection, stage.edge_bytes)
        moving = stage.connection[stage.edge_messages > 0]
        for flags, ends in ((sends, connections.src), (receives, connections.dst)):
            slots = ends[moving]
            flags[slots[slots < n_ranks]] = True
    amount = float(payload.max(initial=0.0))
    wire = link_demand(connections, payload, np.flatnonzero(payload), len(capacity_Bps))
    for stage in members:
        if stage.wire_bytes is not None:
            wire = wire + stage.wire_bytes
    route = _folded_route(connections, payload, amount, wire)
    alone = float(alone_rates(route, capacity_Bps)[0])
    active = payload > 0
    first = members[0]
    tail_s = 0.0
    model: Ring | StepModel | None = None
    if len(members) == 1 and first.n_steps <= 1:
        moving = first.connection[first.edge_messages > 0]
        tail_s = float(connections.latency_s[moving].max(initial=0.0))
        rate_Bps = np.full(len(payload), np.inf)
        rate_Bps[active] = alone * payload[active] / amount if amount else np.inf
    else:
        rate_Bps = alone_rates(connections, capacity_Bps)
        after = _ring_order(collective, first) if first.n_steps > 1 else None
        if after is not None:
            model = Ring(
                cycles=tuple(cycles_of(after)),
                connection=first.connection,
                edge_bytes=sum((stage.edge_bytes for stage in members), np.zeros(len(after))),
                latency_s=np.asarray(connections.latency_s)[first.connection],
                n_steps=sum(stage.n_steps for stage in members),
            )
            rate_Bps = _ring_rates(model, connections, rate_Bps, payload, capacity_Bps)
        else:
            model = StepModel(collective, stages, capacity_Bps, most_solves)
        rate_Bps = np.where(active, rate_Bps, np.inf)
    phase = Phase(
        stages=stages,
        steps_of_stages=tuple(stage.n_steps for stage in members),
        connections=connections,
        route=route,
        amount_bytes=amount,
        payload_bytes=payload,
        wire_bytes=wire,
        alone_Bps=alone,
        rate_Bps=rate_Bps,
        tail_s=tail_s,
        model=model,
        sends=sends,
        receives=receives,
        transfer_s=np.zeros(n_ranks),
        end_share=np.ones(n_ranks),
    )
    busy_s = np.zeros(collective.n_slots)
    np.maximum.at(busy_s, connections.src, payload / rate_Bps)
    phase.transfer_s = np.minimum(busy_s[:n_ranks], phase.alone_s)
    if isinstance(model, StepModel):
        phase.end_share = _end_shares(model.slot_end_s(collective.n_slots)[:n_ranks])
    return phase


def _end_shares(rank_end_s: FloatArray) -> FloatArray:
    """Return the ranks' ends as shares of the last, in at most a few different values."""
    last_s = float(rank_end_s.max(initial=0.0))
    if last_s == 0:
        return np.ones_like(rank_end_s)
    share = rank_end_s / last_s
    share[share > 1 - 1e-9] = 1.0
    if len(np.unique(share)) > _END_CLASSES:
        share = np.ceil(share * _END_CLASSES) / _END_CLASSES
    return share


def _folded_route(
    connections: Connections, payload: FloatArray, amount: float, wire: FloatArray
) -> Connections:
    """Return the single row of a phase: each link's wire bytes over the amount."""
    active = payload > 0
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


def _ring_rates(
    ring: Ring,
    connections: Connections,
    lone_Bps: FloatArray,
    payload: FloatArray,
    capacity_Bps: FloatArray,
) -> FloatArray:
    """Return the rates of a ring's connections when they share links with each other.

    Notes
    -----
    First their max-min rates with all on the wire at once.  If the ring is then slower than its
    busiest link allows, its connections rest for a part of each step, and a link is shared with
    another only while that one is on the wire (its duty): rates, pace and duties are iterated to
    a fixed point, as mean-value analysis does for closed queueing networks [1]_.

    References
    ----------
    .. [1] P. Schweitzer, "Approximate analysis of multiclass closed networks of queues", 1979.
    """
    rows = np.flatnonzero(payload)
    entry, counts = entries_of(connections, rows)
    link, owner = connections.link[entry], np.repeat(np.arange(len(rows)), counts)
    finite_Bps = np.where(np.isfinite(lone_Bps[rows]), lone_Bps[rows], 0.0)
    asked = connections.weight[entry] * finite_Bps[owner] / capacity_Bps[link]

    def load(by_entry: FloatArray) -> FloatArray:
        return np.bincount(link, by_entry, len(capacity_Bps)).astype(np.float64)[link]

    if (load(asked) <= 1 + 1e-9).all():
        return lone_Bps
    rate_Bps = lone_Bps.copy()
    rate_Bps[rows] = max_min_rates(
        np.concatenate(([0], np.cumsum(counts))),
        link,
        connections.weight[entry],
        capacity_Bps,
        connections.max_rate_Bps[rows],
    )
    n_slots = int(connections.src.max()) + 1
    _, together = np.unique(link * n_slots + connections.src[rows][owner], return_inverse=True)
    turn_s = payload[rows] / ring.n_steps / lone_Bps[rows]
    bound_s = float(load(asked * turn_s[owner]).max())
    duty = np.ones(len(rows))
    for round_ in range(_DUTY_ROUNDS):
        pace_s = ring.duration_s(rate_Bps) / ring.n_steps
        if round_ == 0 and pace_s <= _NEAR_BOUND * bound_s:
            break
        now = np.minimum(turn_s * lone_Bps[rows] / rate_Bps[rows] / max(pace_s, bound_s), 1.0)
        duty = now if round_ == 0 else 0.5 * (duty + now)
        thinned = asked * duty[owner]
        # A connection is always on the wire when its own message is; those of one rank, which
        # begin together in part, meet a little more often than their duties say.
        rest = asked - thinned
        more = np.bincount(together, rest).astype(np.float64)[together]
        stretch = np.ones(len(rows))
        np.maximum.at(stretch, owner, load(thinned) + rest + _TOGETHER * (more - rest))
        rate_Bps[rows] = lone_Bps[rows] / stretch
    return rate_Bps


def _lanes(collective: Collective, stage: StageTraffic) -> tuple[IntArray, IntArray]:
    """Return the (channel, slot) of the source and destination of each edge."""
    connections = collective.connections
    base = np.asarray(stage.channel, dtype=np.int64) * collective.n_slots
    return base + connections.src[stage.connection], base + connections.dst[stage.connection]


def _ring_order(collective: Collective, stage: StageTraffic) -> IntArray | None:
    """Return the edge after each if every edge sends in every step and they permute the slots."""
    if not (stage.edge_messages == stage.n_steps).all():
        return None
    return followers(*_lanes(collective, stage))
