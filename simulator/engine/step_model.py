"""The time of a whole stage that is no ring: trees, chains, exchanges, with its own contention.

The wave's recurrence is run over the stage's steps with, in each step, the rates that its
messages would have if they were all on the wire at once.  Where a step repeats and every rank
falls behind at a constant pace, the repetition is skipped: that is exact, because in a max-plus
recurrence whoever decides a time goes on deciding it as long as none before it is faster.  Where
the pace of the slowest has settled to 1e-4 it is skipped too: the slowest decides the end, and
the others are at most a pipeline's depth away from it.

Not modelled: messages of different steps that meet on a link, but for steps that repeat.
"""

from __future__ import annotations

from functools import partial

import numpy as np
from numpy.typing import NDArray

from simulator.engine.crowd import Crowd, edges_of
from simulator.engine.pace import run_steps, same_messages
from simulator.engine.pipelines import Part, by_first_step, channels_of
from simulator.engine.traffic import Collective, Messages
from simulator.engine.wave import StagePlan, StageTimer, WaveState

__all__ = ["MOST_SOLVES", "StepModel"]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

MOST_SOLVES = 64
"""Different sets of messages that get max-min rates; further ones get each link's load over its
capacity, which is the same where flows are alike."""
_LARGE_EDGES = 50_000
_SAMPLES = 24
"""While a pipeline of at least `_LARGE_EDGES` fills and drains, its rates are found at so many of
its steps instead of at each; on 32 to 256 ranks that changes its time by up to 6 %."""
_PIPELINE_STEPS = 16
"""Stages of fewer steps are not looked at for a pipeline's steady state."""


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
    most_solves
        How many different sets of messages get max-min rates.
    """

    def __init__(
        self,
        collective: Collective,
        stages: tuple[int, ...],
        capacity_Bps: FloatArray,
        most_solves: int = MOST_SOLVES,
    ) -> None:
        self._plans = [
            StagePlan(by_first_step(collective.stages[index]), collective) for index in stages
        ]
        self._quick = len(stages) == 1 and self._plans[0].n_places == 1
        self._parts: list[Part] = []
        self._collective = collective
        self._connections = collective.connections
        self._capacity_Bps = capacity_Bps
        self._n_lanes = max(plan.n_lanes for plan in self._plans)
        self._n_solves, self._most_solves = 0, most_solves
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
        middle, duty = self._middle(plan, rate_Bps)
        begin_Bps = rate_Bps[plan.connection]
        if middle is None or len(plan.all_edges) < _LARGE_EDGES:
            timer = Part.whole(plan).timer(state, begin_Bps, quick=self._quick)
            run_steps(timer, lambda step, messages: self._solve(timer, messages, rate_Bps, duty))
            return
        begin_Bps[middle.edges] = middle.in_turns(duty)
        rates = _SampledRates(self, plan, rate_Bps, begin_Bps, middle, duty)
        for part in self._parts_of(plan):
            timer = part.timer(state, begin_Bps, quick=self._quick)
            run_steps(timer, partial(rates.set, timer, part.edges))

    def _solve(
        self, timer: StageTimer, messages: Messages, rate_Bps: FloatArray, duty: FloatArray | None
    ) -> None:
        """Give the messages of a step the rates that they have on the wire."""
        crowd = self.crowd(timer.plan, messages, rate_Bps)
        if crowd is not None:
            exact = self._n_solves < self._most_solves
            self._n_solves += duty is None and exact
            timer.rate_Bps[crowd.edges] = crowd.in_turns(duty, exact=exact)

    def crowd(self, plan: StagePlan, messages: Messages, rate_Bps: FloatArray) -> Crowd | None:
        """Return who is on the wire in a step."""
        return Crowd.of(plan, messages, rate_Bps, self._connections, self._capacity_Bps)

    def _parts_of(self, plan: StagePlan) -> list[Part]:
        """Return what can be timed one after the other, in memory that is near."""
        if not self._quick or plan.stage.first_step is None or len(plan.all_edges) < _LARGE_EDGES:
            return [Part.whole(plan)]
        if not self._parts:
            self._parts = channels_of(plan, self._collective)
        return self._parts

    def _middle(
        self, plan: StagePlan, rate_Bps: FloatArray
    ) -> tuple[Crowd | None, FloatArray | None]:
        """Return who is on the wire in the middle of a pipeline, and each connection's duty.

        No duty: there is no steady state, or in it the links are busy all the time anyway.
        """
        at, step_of = plan.stage.n_steps // 2, plan.stage.messages
        if plan.stage.n_steps < _PIPELINE_STEPS:
            return None, None
        messages = step_of(at)
        crowd = self.crowd(plan, messages, rate_Bps)
        if crowd is None or not crowd.binds or not same_messages(messages, step_of(at + 1)):
            return crowd, None
        state = WaveState(begin_s=np.zeros(self._n_lanes), free_s=np.full(len(rate_Bps), -np.inf))
        edge_Bps = rate_Bps[plan.connection]
        timers = [part.timer(state, edge_Bps, quick=self._quick) for part in self._parts_of(plan)]

        def repeat(crowd_Bps: FloatArray, n_steps: int) -> float:
            edge_Bps[crowd.edges] = crowd_Bps
            for timer in timers:
                for _ in range(n_steps):
                    timer.step(at, timer.plan.stage.messages(at))
            return float(state.begin_s.max())

        found = crowd.relaxed(repeat)
        if found is None:
            return crowd, None
        duty = np.ones(len(rate_Bps))
        duty[crowd.rows] = found
        return crowd, duty


class _SampledRates:
    """The rates of the edges of a large pipeline, found at a dozen of its steps."""

    def __init__(
        self,
        model: StepModel,
        plan: StagePlan,
        rate_Bps: FloatArray,
        begin_Bps: FloatArray,
        middle: Crowd,
        duty: FloatArray | None,
    ) -> None:
        self._model, self._plan, self._rate_Bps = model, plan, rate_Bps
        self._begin_Bps, self._middle, self._duty = begin_Bps, middle, duty
        self._every = -(-plan.stage.n_steps // _SAMPLES)
        self._known: dict[int, FloatArray] = {}

    def set(self, timer: StageTimer, here: slice, step: int, messages: Messages) -> None:
        """Give the messages of a step to come their rates, if it is one of the dozen."""
        if step % self._every:
            return
        if step not in self._known:
            self._known[step] = self._at(step)
        edges = edges_of(timer.plan, messages)
        timer.rate_Bps[edges] = self._known[step][here][edges]

    def _at(self, step: int) -> FloatArray:
        plan, middle = self._plan, self._middle
        messages, rates = plan.stage.messages(step), self._begin_Bps.copy()
        if len(middle.edges) == len(plan.all_edges) and plan.n_places == 1:
            edges = edges_of(plan, messages)
            rates[edges] = middle.among(edges).in_turns(self._duty, exact=False)[edges]
            return rates
        crowd = self._model.crowd(plan, messages, self._rate_Bps)
        if crowd is not None:
            rates[crowd.edges] = crowd.in_turns(self._duty)
        return rates
