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
from simulator.engine.routes import entries_of
from simulator.engine.traffic import Collective, Messages
from simulator.engine.wave import StagePlan, StageTimer, WaveState

__all__ = ["StepModel"]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

_MOST_SOLVES = 64
"""Different sets of messages that get max-min rates; further ones get each link's load over its
capacity, which is the same where flows are alike."""
_SAME_PACE = 1e-9


class StepModel:
    """Consecutive stages as a whole.

    Parameters
    ----------
    collective
        The stages' owner.
    stages
        Indices of the stages.
    capacity_Bps
        Of the links.
    """

    def __init__(
        self, collective: Collective, stages: tuple[int, ...], capacity_Bps: FloatArray
    ) -> None:
        self._plans = [StagePlan(collective.stages[index], collective) for index in stages]
        self._connections = collective.connections
        self._capacity_Bps = capacity_Bps
        self._n_lanes = max(plan.n_lanes for plan in self._plans)
        self._n_solves = 0
        self.stage_end_s: FloatArray = np.zeros(len(stages))
        """Ends of the stages, as timed last."""
        self._lane_end_s: FloatArray = np.zeros(self._n_lanes)

    def duration_s(self, rate_Bps: FloatArray) -> float:
        """Return the stages' time when connections, each on its own, travel at *rate_Bps*."""
        self._n_solves = 0
        state = WaveState(begin_s=np.zeros(self._n_lanes), free_s=np.full(len(rate_Bps), -np.inf))
        for index, plan in enumerate(self._plans):
            self._run_stage(plan, state, rate_Bps)
            self.stage_end_s[index] = state.begin_s.max(initial=0.0)
        self._lane_end_s = state.begin_s
        return float(state.begin_s.max(initial=0.0))

    def slot_end_s(self, n_slots: int) -> FloatArray:
        """Return when each slot was through with all channels, as timed last."""
        return np.asarray(self._lane_end_s.reshape(-1, n_slots).max(axis=0))

    def _run_stage(self, plan: StagePlan, state: WaveState, rate_Bps: FloatArray) -> None:
        stage = plan.stage
        timer = StageTimer(index=0, plan=plan, state=state, rate_Bps=rate_Bps[plan.connection])
        before: Messages | None = None
        pace_s: FloatArray | None = None
        step = 0
        while step < stage.n_steps:
            messages = stage.messages(step)
            repeats = before is not None and _same(messages, before)
            before = messages
            step += 1
            if not repeats:
                self._set_rates(plan, timer, messages, rate_Bps)
                pace_s = None
                timer.step(step - 1, messages)
                continue
            begin_s, free_s = state.begin_s.copy(), state.free_s[plan.used]
            timer.step(step - 1, messages)
            last_pace_s, pace_s = pace_s, state.begin_s - begin_s
            if last_pace_s is not None and _steady(plan, pace_s, last_pace_s, messages):
                skipped = 0
                while step < stage.n_steps and _same(stage.messages(step), messages):
                    skipped += 1
                    step += 1
                state.begin_s += skipped * pace_s
                moved = np.isfinite(free_s)
                rows = plan.used[moved]
                state.free_s[rows] += skipped * (state.free_s[rows] - free_s[moved])

    def _set_rates(
        self, plan: StagePlan, timer: StageTimer, messages: Messages, rate_Bps: FloatArray
    ) -> None:
        """Give the step's messages the rates that they have together."""
        edges = _edges(plan, messages)
        loaded = np.broadcast_to(np.asarray(messages.size_bytes) > 0, edges.shape)
        if not loaded.any():
            return
        edges = edges[loaded]
        # A connection sends the messages of its channels one at a time.
        rows, row_of_edge = np.unique(plan.connection[edges], return_inverse=True)
        connections = self._connections
        entry, counts = entries_of(connections, rows)
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
                indptr = np.concatenate(([0], np.cumsum(counts)))
                shared_Bps = max_min_rates(indptr, link, weight, self._capacity_Bps, alone_Bps)
            else:
                crowd = np.maximum(load[link] / self._capacity_Bps[link], 1.0)
                shared_Bps = alone_Bps.copy()
                routed = counts > 0
                heads = (np.cumsum(counts) - counts)[routed]
                shared_Bps[routed] /= np.maximum.reduceat(crowd, heads)
        timer.rate_Bps[edges] = shared_Bps[row_of_edge]


def _edges(plan: StagePlan, messages: Messages) -> IntArray:
    return plan.all_edges if messages.edge is None else messages.edge


def _steady(
    plan: StagePlan, pace_s: FloatArray, last_pace_s: FloatArray, messages: Messages
) -> bool:
    """Return whether the pace is constant, and nobody waits for one that falls behind less."""
    slack_s = _SAME_PACE * float(pace_s.max())
    if (np.abs(pace_s - last_pace_s) > slack_s).any():
        return False
    edges = _edges(plan, messages)
    lag_s = pace_s[plan.dst[edges]] - pace_s[plan.src[edges]]
    return bool((lag_s >= -slack_s).all())


def _same(one: Messages, other: Messages) -> bool:
    """Return whether two steps move the same messages."""
    if one is other:
        return True
    if (one.edge is None) != (other.edge is None):
        return False
    if one.edge is not None and not np.array_equal(one.edge, other.edge):  # type: ignore[arg-type]
        return False
    return bool(np.array_equal(one.size_bytes, other.size_bytes))
