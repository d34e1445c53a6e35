"""The time of a whole stage that is no ring: trees, chains, exchanges, with its own contention.

The wave's recurrence is run over the stage's steps with, in each step, the rates that its
messages would have if they were all on the wire at once.  Where a step repeats and every rank
falls behind at a constant pace, the repetition is skipped: that is exact, because in a max-plus
recurrence whoever decides a time goes on deciding it as long as none before it is faster.

Not modelled: messages of different steps that meet on a link.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from simulator.engine.contention import FITS
from simulator.engine.maxmin import max_min_rates
from simulator.engine.traffic import Collective, Messages, StageTraffic
from simulator.engine.wave import StagePlan, StageTimer, WaveState

__all__ = ["StepModel"]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

_MOST_SOLVES = 64
"""Different sets of messages that get max-min rates; further ones get each link's load over its
capacity, which is the same where flows are alike."""
_SAME_PACE = 1e-9


class StepModel:
    """One stage as a whole.

    Parameters
    ----------
    collective, stage
        The stage and its owner.
    capacity_Bps
        Of the links.
    """

    def __init__(
        self, collective: Collective, stage: StageTraffic, capacity_Bps: FloatArray
    ) -> None:
        self._plan = StagePlan(stage, collective)
        self._stage = stage
        self._connections = collective.connections
        self._capacity_Bps = capacity_Bps
        self._n_solves = 0

    def duration_s(self, rate_Bps: FloatArray) -> float:
        """Return the stage's time when connections, each on its own, travel at *rate_Bps*."""
        plan, stage = self._plan, self._stage
        self._n_solves = 0
        state = WaveState(begin_s=np.zeros(plan.n_lanes), free_s=np.full(len(rate_Bps), -np.inf))
        timer = StageTimer(
            index=0, plan=plan, state=state, rate_Bps=rate_Bps[plan.connection].copy()
        )
        before: Messages | None = None
        pace_s: FloatArray | None = None
        step = 0
        while step < stage.n_steps:
            messages = stage.messages(step)
            repeats = before is not None and _same(messages, before)
            if not repeats:
                self._set_rates(timer, messages, rate_Bps)
                pace_s = None
            begin_s, free_s = state.begin_s.copy(), state.free_s.copy()
            timer.step(step, messages)
            step += 1
            last_pace_s, pace_s = pace_s, state.begin_s - begin_s
            before = messages
            if repeats and last_pace_s is not None and self._steady(pace_s, last_pace_s, messages):
                skipped = 0
                while step < stage.n_steps and _same(stage.messages(step), messages):
                    skipped += 1
                    step += 1
                state.begin_s += skipped * pace_s
                used = np.isfinite(free_s)
                state.free_s[used] += skipped * (state.free_s - free_s)[used]
        return float(state.begin_s.max(initial=0.0))

    def _steady(self, pace_s: FloatArray, last_pace_s: FloatArray, messages: Messages) -> bool:
        """Return whether the pace is constant, and nobody waits for one that falls behind less."""
        slack_s = _SAME_PACE * float(pace_s.max())
        if (np.abs(pace_s - last_pace_s) > slack_s).any():
            return False
        edges = self._edges(messages)
        lag_s = pace_s[self._plan.dst[edges]] - pace_s[self._plan.src[edges]]
        return bool((lag_s >= -slack_s).all())

    def _edges(self, messages: Messages) -> IntArray:
        return self._plan.all_edges if messages.edge is None else messages.edge

    def _set_rates(self, timer: StageTimer, messages: Messages, rate_Bps: FloatArray) -> None:
        """Give the step's messages the rates that they have together."""
        edges = self._edges(messages)
        loaded = np.broadcast_to(np.asarray(messages.size_bytes) > 0, edges.shape)
        if not loaded.any():
            return
        edges = edges[loaded]
        # A connection sends the messages of its channels one at a time.
        rows, row_of_edge = np.unique(self._plan.connection[edges], return_inverse=True)
        connections = self._connections
        low = connections.indptr[rows]
        counts = connections.indptr[rows + 1] - low
        ends = np.cumsum(counts)
        entry = np.repeat(low - (ends - counts), counts) + np.arange(int(ends[-1]))
        link, weight = connections.link[entry], connections.weight[entry]
        alone_Bps = rate_Bps[rows]
        asked_Bps = np.where(np.isfinite(alone_Bps), alone_Bps, 0.0)
        load = np.bincount(
            link, weights=weight * np.repeat(asked_Bps, counts), minlength=len(self._capacity_Bps)
        )
        shared_Bps = alone_Bps
        if (load > self._capacity_Bps * FITS).any():
            if self._n_solves < _MOST_SOLVES:
                self._n_solves += 1
                indptr = np.concatenate(([0], ends))
                shared_Bps = max_min_rates(indptr, link, weight, self._capacity_Bps, alone_Bps)
            else:
                crowd = np.maximum(load[link] / self._capacity_Bps[link], 1.0)
                shared_Bps = alone_Bps.copy()
                routed = counts > 0
                heads = (ends - counts)[routed]
                shared_Bps[routed] /= np.maximum.reduceat(crowd, heads)
        timer.rate_Bps[edges] = shared_Bps[row_of_edge]


def _same(one: Messages, other: Messages) -> bool:
    """Return whether two steps move the same messages."""
    if one is other:
        return True
    if (one.edge is None) != (other.edge is None):
        return False
    if one.edge is not None and not np.array_equal(one.edge, other.edge):  # type: ignore[arg-type]
        return False
    return bool(np.array_equal(one.size_bytes, other.size_bytes))
