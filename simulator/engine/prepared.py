"""What is worked out once per collective, routes and capacities, and used by every call of it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from simulator.engine.contention import Demand, analyse, stages_fit
from simulator.engine.messages import count_messages
from simulator.engine.phases import Phase, phases_of
from simulator.engine.routes import (
    alone_rates,
    distinct,
    entries_of,
    link_demand,
    merged,
    payload_of_connections,
)
from simulator.engine.traffic import Collective, Connections
from simulator.engine.wave import WavePlan

__all__ = ["Prepared", "PreparedCalls", "wire_bytes"]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

NEAR_BOUND = 1.01
"""A folded call this close to its busiest link's time is held to be right."""


def wire_bytes(connections: Connections, payload: FloatArray, n_links: int) -> FloatArray:
    """Return the wire bytes on each link of *payload* bytes per connection."""
    return link_demand(connections, payload, np.flatnonzero(payload), n_links)


class Prepared:
    """A collective on given routes, with the capacities of now; all parts are made on demand."""

    def __init__(self, collective: Collective, capacity_Bps: FloatArray) -> None:
        self.collective = collective
        self.capacity_Bps = capacity_Bps
        self.n_messages = count_messages(collective)
        self._rate_Bps: FloatArray | None = None
        self._demand: Demand | None = None
        self._plan: WavePlan | None = None
        self._phases: list[Phase] | None = None
        self._wire: FloatArray | None = None
        self._links: NDArray[np.bool_] | None = None
        self._blockers: dict[int, bool] = {}
        self._doubt: str | None = None

    def with_capacity(self, capacity_Bps: FloatArray) -> Prepared:
        """Return the same on links of other capacities, with what does not depend on them."""
        other = Prepared(self.collective, capacity_Bps)
        other._plan, other._wire, other._links = self._plan, self._wire, self._links
        return other

    @property
    def rate_Bps(self) -> FloatArray:
        """Payload rate of each connection alone."""
        if self._rate_Bps is None:
            self._rate_Bps = alone_rates(self.collective.connections, self.capacity_Bps)
        return self._rate_Bps

    @property
    def demand(self) -> Demand:
        """What the collective can ask of the links."""
        if self._demand is None:
            self._demand = analyse(self.collective, self.rate_Bps, self.capacity_Bps)
        return self._demand

    @property
    def peak_Bps(self) -> FloatArray:
        """What the collective can put on each link at most."""
        return np.minimum(self.demand.total_Bps, self.capacity_Bps)

    @property
    def plan(self) -> WavePlan:
        """The collective prepared for the wave."""
        if self._plan is None:
            self._plan = WavePlan(self.collective)
        return self._plan

    @property
    def phases(self) -> list[Phase]:
        """The collective's phases."""
        if self._phases is None:
            self._phases = phases_of(self.collective, self.capacity_Bps)
        return self._phases

    @property
    def doubt(self) -> str:
        """Why the folded level may time the call wrongly; empty: it is right.

        Notes
        -----
        Folded, a message keeps the rate that it has with all messages of its step on the wire,
        and those of other steps are not met.  That is right where no link can be overfull, where
        there is but one step, and where the busiest link works all the time anyway.
        """
        if self._doubt is None:
            self._doubt = self._doubted()
        return self._doubt

    def _doubted(self) -> str:
        one_step = len(self.phases) == 1 and self.phases[0].model is None
        if self.demand.resolve == "never" or one_step:
            return ""
        if self.demand.resolve == "stages":
            return "" if self._stages_apart() else "messages of different stages meet on links"
        whole_s = sum(phase.alone_s + phase.tail_s for phase in self.phases)
        wire = sum((phase.wire_bytes for phase in self.phases), np.zeros(len(self.capacity_Bps)))
        used = wire > 0
        least_s = float((wire[used] / self.capacity_Bps[used]).max(initial=0.0))
        if whole_s <= NEAR_BOUND * least_s:
            return ""
        return "messages that wait for each other share links"

    def _stages_apart(self) -> bool:
        """Return whether stages that share a link do so one after the other, all ranks on time."""
        call_s = np.zeros(len(self.collective.group))
        wave = self.plan.run(call_s, self.rate_Bps, spans=True)
        return stages_fit(self.collective, wave, self.demand, self.rate_Bps, self.capacity_Bps)

    @property
    def wire(self) -> FloatArray:
        """Wire bytes of one call on each link."""
        if self._wire is None:
            self._wire = wire_bytes(
                self.collective.connections,
                payload_of_connections(self.collective),
                len(self.capacity_Bps),
            )
        return self._wire

    @property
    def links(self) -> NDArray[np.bool_]:
        """Links that connections with messages cross, shape (links,)."""
        if self._links is None:
            self._links = np.zeros(len(self.capacity_Bps), dtype=bool)
            connections = self.collective.connections
            for stage in self.collective.stages:
                rows = distinct(stage.connection[stage.edge_messages > 0])
                entry, _ = entries_of(connections, rows)
                self._links[connections.link[entry]] = True
        return self._links

    def blocks_all(self, position: int) -> bool:
        """Return whether no rank can end before the rank at *position* has called."""
        known = self._blockers.get(position)
        if known is None:
            call_s = np.zeros(len(self.collective.group))
            call_s[position] = np.inf
            ends = self.plan.run(call_s, self.rate_Bps).rank_end_s
            known = self._blockers[position] = bool(np.isinf(ends).all())
        return known


class PreparedCalls:
    """Prepared collectives by object, for the capacities of now."""

    def __init__(self, capacity_Bps: FloatArray) -> None:
        self._capacity_Bps = capacity_Bps
        self._entries: dict[int, tuple[object, Prepared]] = {}

    def get(self, collective: Collective) -> Prepared:
        """Return what is known of *collective*."""
        entry = self._entries.get(id(collective))
        if entry is None:
            routes = merged(collective.connections)
            whole = collective
            if routes is not collective.connections:
                whole = replace(collective, connections=routes)
            # Holding the object keeps its id from being used again.
            entry = (collective, Prepared(whole, self._capacity_Bps))
            self._entries[id(collective)] = entry
        return entry[1]

    def change(self, capacity_Bps: FloatArray) -> None:
        """Go on with other capacities."""
        self._capacity_Bps = capacity_Bps
        self._entries = {
            name: (owner, prepared.with_capacity(capacity_Bps))
            for name, (owner, prepared) in self._entries.items()
        }
