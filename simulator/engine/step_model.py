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

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from simulator.engine.crowd import Crowd, edges_of
from simulator.engine.traffic import Collective, Messages, StageTraffic
from simulator.engine.wave import StagePlan, StageTimer, WaveState

__all__ = ["StepModel"]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

_MOST_SOLVES = 64
"""Different sets of messages that get max-min rates; further ones get each link's load over its
capacity, which is the same where flows are alike."""
_SAME_PACE = 1e-9
_WINDOW = 16
"""Repetitions over which a pace is averaged where it does not become constant at once."""
_LARGE_EDGES = 50_000
_SAMPLES = 12
"""While a pipeline of at least `_LARGE_EDGES` fills and drains, its rates are found at so many of
its steps instead of at each; on 32 to 256 ranks that changes its time by up to 6 %."""
_PIPELINE_STEPS = 16
"""Stages of fewer steps are not looked at for a pipeline's steady state."""
_SETTLED = 1e-4
"""Relative change of the slowest pace from window to window at which it counts as settled."""


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
        self._plans = [
            StagePlan(_by_first_step(collective.stages[index]), collective) for index in stages
        ]
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
        n_steps, step_of = plan.stage.n_steps, plan.stage.messages
        timer = StageTimer(
            index=0,
            plan=plan,
            state=state,
            rate_Bps=rate_Bps[plan.connection],
            quick=len(self._plans) == 1 and plan.n_places == 1,
        )
        middle, duty = self._middle(plan, rate_Bps, quick=timer.quick)
        steady = len(plan.all_edges) >= _LARGE_EDGES and middle is not None
        if steady and middle is not None:
            timer.rate_Bps[middle.edges] = middle.in_turns(duty)
        before: Messages | None = None
        pace: _Pace | None = None
        step = 0
        while step < n_steps:
            messages = step_of(step)
            timer_step, step = step, step + 1
            if before is None or not _same(messages, before):
                if not steady:
                    self._solve(timer, messages, rate_Bps, duty)
                elif timer_step % -(-n_steps // _SAMPLES) == 0:
                    self._sample(timer, messages, rate_Bps, duty, middle)
                timer.step(timer_step, messages)
                before, pace = messages, _Pace(timer, messages)
                continue
            timer.step(timer_step, messages)
            assert pace is not None
            if pace.settled():
                skipped = 0
                while step < n_steps and _same(step_of(step), messages):
                    skipped += 1
                    step += 1
                pace.skip(skipped)

    def _solve(
        self,
        timer: StageTimer,
        messages: Messages,
        rate_Bps: FloatArray,
        duty: FloatArray | None,
    ) -> None:
        """Give the messages of a step the rates that they have on the wire."""
        crowd = self._crowd(timer.plan, messages, rate_Bps)
        if crowd is None:
            return
        exact = self._n_solves < _MOST_SOLVES
        self._n_solves += duty is None and exact
        timer.rate_Bps[crowd.edges] = crowd.in_turns(duty, exact=exact)

    def _sample(
        self,
        timer: StageTimer,
        messages: Messages,
        rate_Bps: FloatArray,
        duty: FloatArray | None,
        middle: Crowd | None,
    ) -> None:
        """Do the same for one of many steps, by what is known of the middle."""
        whole = middle is not None and len(middle.edges) == len(timer.plan.all_edges)
        if middle is None or not whole or not timer.quick:
            self._solve(timer, messages, rate_Bps, duty)
            return
        edges = edges_of(timer.plan, messages)
        timer.rate_Bps[edges] = middle.among(edges).in_turns(duty, exact=False)[edges]

    def _crowd(self, plan: StagePlan, messages: Messages, rate_Bps: FloatArray) -> Crowd | None:
        return Crowd.of(plan, messages, rate_Bps, self._connections, self._capacity_Bps)

    def _middle(
        self, plan: StagePlan, rate_Bps: FloatArray, *, quick: bool
    ) -> tuple[Crowd | None, FloatArray | None]:
        """Return who is on the wire in the middle of a pipeline, and each connection's duty.

        No duty: there is no steady state, or in it the links are busy all the time anyway.
        """
        at, step_of = plan.stage.n_steps // 2, plan.stage.messages
        if plan.stage.n_steps < _PIPELINE_STEPS:
            return None, None
        messages = step_of(at)
        crowd = self._crowd(plan, messages, rate_Bps)
        if crowd is None or not _same(messages, step_of(at + 1)) or not crowd.binds:
            return crowd, None
        timer = StageTimer(
            index=0,
            plan=plan,
            state=WaveState(
                begin_s=np.zeros(self._n_lanes), free_s=np.full(len(rate_Bps), -np.inf)
            ),
            rate_Bps=rate_Bps[plan.connection],
            quick=quick,
        )
        found = crowd.relaxed(timer, messages)
        if found is None:
            return crowd, None
        duty = np.ones(len(rate_Bps))
        duty[crowd.rows] = found
        return crowd, duty


def _by_first_step(stage: StageTraffic) -> StageTraffic:
    """Return a pipeline with its edges in the order in which they begin, and end, to send.

    The messages of a step are then a run of edges.
    """
    if stage.first_step is None or not (stage.edge_messages > 0).all():
        return stage
    behind = np.asarray(stage.first_step + stage.edge_messages)
    order = np.lexsort((behind, stage.first_step))
    first, behind = stage.first_step[order], behind[order]
    n_messages, edge_bytes = stage.edge_messages[order], stage.edge_bytes[order]
    size_bytes = edge_bytes / n_messages
    alike = bool((size_bytes == size_bytes[0]).all())
    every = Messages(edge=None, size_bytes=float(size_bytes[0]) if alike else size_bytes)
    all_from, all_before = int(first[-1]), int(behind.min())

    def messages(step: int) -> Messages:
        if all_from <= step < all_before:
            return every
        edge = np.flatnonzero((first <= step) & (step < behind))
        return Messages(edge=edge, size_bytes=every.size_bytes if alike else size_bytes[edge])

    return replace(
        stage,
        connection=stage.connection[order],
        channel=stage.channel[order],
        messages=messages,
        edge_bytes=edge_bytes,
        edge_messages=n_messages,
        first_step=first,
    )


class _Pace:
    """How far a step that repeats puts each (slot, channel) and connection behind."""

    def __init__(self, timer: StageTimer, messages: Messages) -> None:
        self._plan, self._state = timer.plan, timer.state
        self._messages = messages
        self._used = np.empty(0, dtype=np.int64) if timer.quick else timer.plan.used
        self._n = 0
        self._begin_s, self._free_s = self._now()
        self._pace_s: FloatArray | None = None
        self._marks = [(self._begin_s, self._free_s)]
        self._lanes_s = self._links_s = np.empty(0)

    def _now(self) -> tuple[FloatArray, FloatArray]:
        return self._state.begin_s.copy(), self._state.free_s[self._used]

    def settled(self) -> bool:
        """Return, after one more repetition, whether the rest can be skipped."""
        self._n += 1
        begin_s, free_s = self._now()
        before_s, self._pace_s = self._pace_s, begin_s - self._begin_s
        self._lanes_s, self._links_s = self._pace_s, free_s - self._free_s
        self._begin_s, self._free_s = begin_s, free_s
        if before_s is not None and self._is_constant(self._pace_s, before_s):
            return True
        if self._n % _WINDOW:
            return False
        self._marks = [*self._marks[-2:], (begin_s, free_s)]
        if len(self._marks) < 3:
            return False
        (begin_0, _), (begin_1, free_1), (begin_2, free_2) = self._marks
        slowest = [float((b - a).max()) for a, b in ((begin_0, begin_1), (begin_1, begin_2))]
        if abs(slowest[1] - slowest[0]) > _SETTLED * slowest[1]:
            return False
        self._lanes_s, self._links_s = (begin_2 - begin_1) / _WINDOW, (free_2 - free_1) / _WINDOW
        return True

    def _is_constant(self, pace_s: FloatArray, before_s: FloatArray) -> bool:
        """Return whether nothing will change: constant pace, and nobody waits for a faster one."""
        slack_s = _SAME_PACE * float(pace_s.max())
        if (np.abs(pace_s - before_s) > slack_s).any():
            return False
        edges = edges_of(self._plan, self._messages)
        ahead_s = pace_s[self._plan.dst[edges]] - pace_s[self._plan.src[edges]]
        return bool((ahead_s >= -slack_s).all())

    def skip(self, n_steps: int) -> None:
        """Let the step repeat *n_steps* times more."""
        self._state.begin_s += n_steps * self._lanes_s
        moved = np.isfinite(self._links_s)
        self._state.free_s[self._used[moved]] += n_steps * self._links_s[moved]


def _same(one: Messages, other: Messages) -> bool:
    """Return whether two steps move the same messages."""
    if one is other:
        return True
    if (one.edge is None) != (other.edge is None):
        return False
    if one.edge is not None and not np.array_equal(one.edge, other.edge):  # type: ignore[arg-type]
        return False
    return bool(np.array_equal(one.size_bytes, other.size_bytes))
