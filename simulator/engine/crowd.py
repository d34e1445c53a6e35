"""The messages of one step on the links that they share: their rates, together and in turns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from simulator.engine.contention import FITS
from simulator.engine.maxmin import max_min_rates
from simulator.engine.routes import entries_of
from simulator.engine.traffic import Connections, Messages
from simulator.engine.wave import StagePlan

__all__ = ["Crowd", "edges_of"]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

_RELAX_ROUNDS = 5
_RELAX_STEPS = 12
_TOGETHER = 0.5
"""Part of what is not duty in which messages of one sender and step meet all the same; chosen so
that double binary trees and CollNet on 8 to 64 ranks come within 7 % of message by message."""
_NEAR_BOUND = 1.1
"""A pace this close to the busiest link's time per step is left as it is."""


def edges_of(plan: StagePlan, messages: Messages) -> IntArray:
    """Return the edges that carry a message in a step."""
    return plan.all_edges if messages.edge is None else messages.edge


@dataclass(slots=True, kw_only=True)
class Crowd:
    """The messages of one step, by connection, on the links that they share."""

    edges: IntArray
    row_of_edge: IntArray
    """Edges with bytes, and which connection of the arrays below carries each."""
    rows: IntArray
    """The connections."""
    lane: IntArray
    n_lanes: int
    """(Slot, channel) that sends on each connection, and their number."""
    alone_Bps: FloatArray
    busy_s: FloatArray
    """Time of a connection's messages of one step, alone."""
    latency_s: FloatArray
    link: IntArray
    weight: FloatArray
    counts: IntArray
    """Route entries of the connections."""
    asked: FloatArray
    """Share of the link that each entry asks for when alone."""
    capacity_Bps: FloatArray
    of_sender: IntArray | None = None
    """Number of the (link, lane) of each entry, once asked for."""
    load: FloatArray | None = None
    """Load of each link, by what is asked alone over the capacity, once asked for."""
    max_min_Bps: FloatArray | None = None
    """Rates of the connections with all on the wire, once asked for."""

    @classmethod
    def of(
        cls,
        plan: StagePlan,
        messages: Messages,
        rate_Bps: FloatArray,
        connections: Connections,
        capacity_Bps: FloatArray,
    ) -> Crowd | None:
        """Return the crowd of a step, or None if nothing has bytes."""
        edges = edges_of(plan, messages)
        size_bytes = np.broadcast_to(np.asarray(messages.size_bytes, dtype=float), edges.shape)
        loaded = size_bytes > 0
        if not loaded.any():
            return None
        edges, size_bytes = edges[loaded], size_bytes[loaded]
        # A connection sends the messages of its channels one at a time.
        rows, row_of_edge = plan.connection[edges], np.arange(len(edges))
        lane = plan.src[edges]
        if plan.n_places > 1:
            rows, row_of_edge = np.unique(rows, return_inverse=True)
            lane = np.empty(len(rows), dtype=np.int64)
            lane[row_of_edge] = plan.src[edges]
        entry, counts = entries_of(connections, rows)
        link, weight = connections.link[entry], connections.weight[entry]
        alone_Bps = rate_Bps[rows]
        finite = np.where(np.isfinite(alone_Bps), alone_Bps, 0.0)
        row_s = size_bytes / alone_Bps[row_of_edge]
        busy_s = np.bincount(row_of_edge, row_s, len(rows)).astype(float)
        return cls(
            edges=edges,
            row_of_edge=row_of_edge,
            rows=rows,
            lane=lane,
            n_lanes=plan.n_lanes,
            alone_Bps=alone_Bps,
            busy_s=busy_s,
            latency_s=connections.latency_s[rows],
            link=link,
            weight=weight,
            counts=counts,
            asked=weight * np.repeat(finite, counts) / capacity_Bps[link],
            capacity_Bps=capacity_Bps,
        )

    def among(self, edges: IntArray) -> Crowd:
        """Return a crowd in which only *edges* of this one are on the wire.

        For a crowd in which edge and connection are one; rates by loads only.
        """
        on_wire = np.zeros(len(self.rows))
        on_wire[edges] = 1.0
        return replace(
            self,
            asked=self.asked * np.repeat(on_wire, self.counts),
            load=None,
            max_min_Bps=None,
        )

    def in_turns(self, duty: FloatArray | None, *, exact: bool = True) -> FloatArray:
        """Return the edges' rates with each connection's duty; None: all are on the wire."""
        return self.together(exact=exact) if duty is None else self.thinned(duty[self.rows])

    def _senders(self) -> IntArray:
        if self.of_sender is None:
            _, self.of_sender = np.unique(
                self.link * self.n_lanes + np.repeat(self.lane, self.counts), return_inverse=True
            )
        return self.of_sender

    def _load(self, by_entry: FloatArray) -> FloatArray:
        """Return the sums on each link."""
        return np.bincount(self.link, by_entry, len(self.capacity_Bps)).astype(float)

    def _asked_load(self) -> FloatArray:
        if self.load is None:
            self.load = self._load(self.asked)
        return self.load

    @property
    def binds(self) -> bool:
        """True when the connections together ask for more than some link has."""
        return bool((self._asked_load() > FITS).any())

    def together(self, *, exact: bool) -> FloatArray:
        """Return the rate of each edge when all are on the wire: max-min, or by loads."""
        if not self.binds:
            return self.alone_Bps[self.row_of_edge]
        if not exact:
            return self._stretched(np.maximum(self._asked_load(), 1.0)[self.link])
        if self.max_min_Bps is None:
            self.max_min_Bps = max_min_rates(
                np.concatenate(([0], np.cumsum(self.counts))),
                self.link,
                self.weight,
                self.capacity_Bps,
                self.alone_Bps,
            )
        return self.max_min_Bps[self.row_of_edge]

    def _stretched(self, load: FloatArray) -> FloatArray:
        """Return each edge's rate alone over the largest load of its entries, all ≥ 1."""
        return (self.alone_Bps / self._largest(load, 1.0))[self.row_of_edge]

    def _largest(self, by_entry: FloatArray, otherwise: float) -> FloatArray:
        """Return the largest value over each connection's entries."""
        heads = np.cumsum(self.counts) - self.counts
        if len(heads) and self.counts.min() > 0:
            return np.asarray(np.maximum.reduceat(by_entry, heads))
        result = np.full(len(self.counts), otherwise)
        routed = self.counts > 0
        result[routed] = np.maximum.reduceat(by_entry, heads[routed])
        return result

    def thinned(self, duty: FloatArray) -> FloatArray:
        """Return each edge's rate when others are on the wire for part of the time."""
        asked = self.asked * np.repeat(duty, self.counts)
        # Messages that a (slot, channel) sends in one step begin together and end apart.
        together = self._senders()
        more = np.bincount(together, self.asked - asked).astype(float)[together]
        return self._stretched(np.maximum(self._load(asked)[self.link] + _TOGETHER * more, 1.0))

    def relaxed(self, repeat: Callable[[FloatArray, int], float]) -> FloatArray | None:
        """Return the duty of each connection when this step repeats for ever.

        Where messages wait for each other, a link is shared with another connection only for the
        part of a step's time (its duty) in which that one has a message on the wire.  Rates,
        pace and duties are iterated to a fixed point, as mean-value analysis does for closed
        queueing networks [1]_.

        Parameters
        ----------
        repeat
            Repeats the step so many times more at these rates of `edges`; returns when the last
            sender may begin the next.

        Returns
        -------
        numpy.ndarray or None
            None if the pace with all on the wire at once is near that of the busiest link.

        References
        ----------
        .. [1] P. Schweitzer, "Approximate analysis of multiclass closed networks of queues",
           1979.
        """
        duty = np.ones(len(self.counts))
        bound_s = float(self._load(self.asked * np.repeat(self.busy_s, self.counts)).max())
        edge_Bps = self.together(exact=True)
        hop_s = self._on_wire_s(edge_Bps) + self.latency_s
        if hop_s.max() <= _NEAR_BOUND * bound_s:
            return None  # no step takes longer than its longest hop
        for round_ in range(_RELAX_ROUNDS):
            middle_s = repeat(edge_Bps, _RELAX_STEPS)
            pace_s = (repeat(edge_Bps, _RELAX_STEPS) - middle_s) / _RELAX_STEPS
            if round_ == 0 and pace_s <= _NEAR_BOUND * bound_s:
                return None
            now = np.minimum(self._on_wire_s(edge_Bps) / max(pace_s, bound_s), 1.0)
            duty = now if round_ == 0 else 0.5 * (duty + now)
            edge_Bps = self.thinned(duty)
        return duty

    def _on_wire_s(self, edge_Bps: FloatArray) -> FloatArray:
        """Return the time of each connection's messages of one step at these rates."""
        rate_Bps = np.empty(len(self.counts))
        rate_Bps[self.row_of_edge] = edge_Bps
        return self.busy_s * self.alone_Bps / rate_Bps
