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

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulator.engine.contention import FITS
from simulator.engine.maxmin import max_min_rates
from simulator.engine.routes import entries_of
from simulator.engine.traffic import Collective, Connections, Messages
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
_RELAX_ROUNDS = 5
_RELAX_STEPS = 12
_TOGETHER = 0.5
"""Part of what is not duty in which messages of one sender and step meet all the same; chosen so
that double binary trees and CollNet on 8 to 64 ranks come within 7 % of message by message."""
_NEAR_BOUND = 1.1
"""A pace this close to the busiest link's time per step is left as it is."""
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
        duty = self._duty(plan, rate_Bps)
        steady = len(plan.all_edges) >= _LARGE_EDGES and stage.n_steps >= _PIPELINE_STEPS
        if steady:
            middle = self._crowd(plan, stage.messages(stage.n_steps // 2), rate_Bps)
            if middle is not None and duty is not None:
                timer.rate_Bps[middle.edges] = middle.thinned(duty[middle.rows])
            elif middle is not None:
                timer.rate_Bps[middle.edges] = middle.together(exact=True)
        before: Messages | None = None
        pace: _Pace | None = None
        step = 0
        while step < stage.n_steps:
            messages = stage.messages(step)
            timer_step, step = step, step + 1
            if before is None or not _same(messages, before):
                skips = steady and timer_step % -(-stage.n_steps // _SAMPLES)
                crowd = None if skips else self._crowd(plan, messages, rate_Bps)
                if crowd is not None and duty is not None:
                    timer.rate_Bps[crowd.edges] = crowd.thinned(duty[crowd.rows])
                elif crowd is not None:
                    exact = self._n_solves < _MOST_SOLVES
                    self._n_solves += exact
                    timer.rate_Bps[crowd.edges] = crowd.together(exact=exact)
                timer.step(timer_step, messages)
                before, pace = messages, _Pace(plan, state, messages)
                continue
            timer.step(timer_step, messages)
            assert pace is not None
            if pace.settled():
                skipped = 0
                while step < stage.n_steps and _same(stage.messages(step), messages):
                    skipped += 1
                    step += 1
                pace.skip(skipped)

    def _crowd(self, plan: StagePlan, messages: Messages, rate_Bps: FloatArray) -> _Crowd | None:
        return _Crowd.of(plan, messages, rate_Bps, self._connections, self._capacity_Bps)

    def _duty(self, plan: StagePlan, rate_Bps: FloatArray) -> FloatArray | None:
        """Return each connection's duty in a pipeline's steady state, or None.

        None: the stage has no steady state, or in it the links are busy all the time anyway.
        """
        stage, middle = plan.stage, plan.stage.n_steps // 2
        if stage.n_steps < _PIPELINE_STEPS:
            return None
        messages = stage.messages(middle)
        if not _same(messages, stage.messages(middle + 1)):
            return None
        crowd = self._crowd(plan, messages, rate_Bps)
        if crowd is None or not crowd.binds:
            return None
        found = crowd.relaxed(
            StageTimer(
                index=0,
                plan=plan,
                state=WaveState(
                    begin_s=np.zeros(self._n_lanes), free_s=np.full(len(rate_Bps), -np.inf)
                ),
                rate_Bps=rate_Bps[plan.connection],
            ),
            messages,
        )
        if found is None:
            return None
        duty = np.ones(len(rate_Bps))
        duty[crowd.rows] = found
        return duty


@dataclass(slots=True, kw_only=True)
class _Crowd:
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
    link: IntArray
    weight: FloatArray
    counts: IntArray
    """Route entries of the connections."""
    asked: FloatArray
    """Share of the link that each entry asks for when alone."""
    capacity_Bps: FloatArray

    @classmethod
    def of(
        cls,
        plan: StagePlan,
        messages: Messages,
        rate_Bps: FloatArray,
        connections: Connections,
        capacity_Bps: FloatArray,
    ) -> _Crowd | None:
        """Return the crowd of a step, or None if nothing has bytes."""
        edges = _edges(plan, messages)
        size_bytes = np.broadcast_to(np.asarray(messages.size_bytes, dtype=float), edges.shape)
        loaded = size_bytes > 0
        if not loaded.any():
            return None
        edges, size_bytes = edges[loaded], size_bytes[loaded]
        # A connection sends the messages of its channels one at a time.
        rows, row_of_edge = plan.connection[edges], np.arange(len(edges))
        if plan.n_places > 1:
            rows, row_of_edge = np.unique(rows, return_inverse=True)
        entry, counts = entries_of(connections, rows)
        link, weight = connections.link[entry], connections.weight[entry]
        lane = np.empty(len(rows), dtype=np.int64)
        lane[row_of_edge] = plan.src[edges]
        alone_Bps = rate_Bps[rows]
        finite = np.where(np.isfinite(alone_Bps), alone_Bps, 0.0)
        busy_s = np.zeros(len(rows))
        np.add.at(busy_s, row_of_edge, size_bytes / alone_Bps[row_of_edge])
        return cls(
            edges=edges,
            row_of_edge=row_of_edge,
            rows=rows,
            lane=lane,
            n_lanes=plan.n_lanes,
            alone_Bps=alone_Bps,
            busy_s=busy_s,
            link=link,
            weight=weight,
            counts=counts,
            asked=weight * np.repeat(finite, counts) / capacity_Bps[link],
            capacity_Bps=capacity_Bps,
        )

    def _load(self, by_entry: FloatArray) -> FloatArray:
        """Return the sums on each link, by entry."""
        return np.bincount(self.link, by_entry, len(self.capacity_Bps)).astype(float)[self.link]

    @property
    def binds(self) -> bool:
        """True when the connections together ask for more than some link has."""
        return bool((self._load(self.asked) > FITS).any())

    def together(self, *, exact: bool) -> FloatArray:
        """Return the rate of each edge when all are on the wire: max-min, or by loads."""
        if not self.binds:
            return self.alone_Bps[self.row_of_edge]
        if not exact:
            return self._stretched(self._load(self.asked))
        indptr = np.concatenate(([0], np.cumsum(self.counts)))
        rate_Bps = max_min_rates(indptr, self.link, self.weight, self.capacity_Bps, self.alone_Bps)
        return rate_Bps[self.row_of_edge]

    def _stretched(self, load: FloatArray) -> FloatArray:
        """Return each edge's rate alone over the largest load (≥ 1) of its links."""
        return (self.alone_Bps / self._largest(np.maximum(load, 1.0), 1.0))[self.row_of_edge]

    def _largest(self, by_entry: FloatArray, otherwise: float) -> FloatArray:
        """Return the largest value over each connection's entries."""
        result = np.full(len(self.counts), otherwise)
        routed = self.counts > 0
        heads = (np.cumsum(self.counts) - self.counts)[routed]
        result[routed] = np.maximum.reduceat(by_entry, heads)
        return result

    def thinned(self, duty: FloatArray) -> FloatArray:
        """Return each edge's rate when others are on the wire for part of the time."""
        asked = self.asked * np.repeat(duty, self.counts)
        # Messages that a (slot, channel) sends in one step begin together and end apart.
        _, together = np.unique(
            self.link * self.n_lanes + np.repeat(self.lane, self.counts), return_inverse=True
        )
        more = np.bincount(together, self.asked - asked).astype(float)[together]
        return self._stretched(self._load(asked) + _TOGETHER * more)

    def relaxed(self, timer: StageTimer, messages: Messages) -> FloatArray | None:
        """Return the duty of each connection when this step repeats for ever.

        Where messages wait for each other, a link is shared with another connection only for the
        part of a step's time (its duty) in which that one has a message on the wire.  Rates,
        pace and duties are iterated to a fixed point, as mean-value analysis does for closed
        queueing networks [1]_.

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
        timer.rate_Bps[self.edges] = self.together(exact=True)
        for round_ in range(_RELAX_ROUNDS):
            middle_s = 0.0
            for k in range(2 * _RELAX_STEPS):
                if k == _RELAX_STEPS:
                    middle_s = float(timer.state.begin_s.max())
                timer.step(0, messages)
            pace_s = (float(timer.state.begin_s.max()) - middle_s) / _RELAX_STEPS
            if round_ == 0 and pace_s <= _NEAR_BOUND * bound_s:
                return None
            rate_Bps = np.empty(len(self.counts))
            rate_Bps[self.row_of_edge] = timer.rate_Bps[self.edges]
            on_wire_s = self.busy_s * self.alone_Bps / rate_Bps
            now = np.minimum(on_wire_s / max(pace_s, bound_s), 1.0)
            duty = now if round_ == 0 else 0.5 * (duty + now)
            timer.rate_Bps[self.edges] = self.thinned(duty)
        return duty


def _edges(plan: StagePlan, messages: Messages) -> IntArray:
    return plan.all_edges if messages.edge is None else messages.edge


class _Pace:
    """How far a step that repeats puts each (slot, channel) and connection behind."""

    def __init__(self, plan: StagePlan, state: WaveState, messages: Messages) -> None:
        self._plan = plan
        self._state = state
        edges = _edges(plan, messages)
        self._src, self._dst = plan.src[edges], plan.dst[edges]
        self._n = 0
        self._begin_s, self._free_s = self._now()
        self._pace_s: FloatArray | None = None
        self._marks = [(self._begin_s, self._free_s)]
        self._lanes_s = self._links_s = np.empty(0)

    def _now(self) -> tuple[FloatArray, FloatArray]:
        return self._state.begin_s.copy(), self._state.free_s[self._plan.used]

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
        return bool((pace_s[self._dst] - pace_s[self._src] >= -slack_s).all())

    def skip(self, n_steps: int) -> None:
        """Let the step repeat *n_steps* times more."""
        self._state.begin_s += n_steps * self._lanes_s
        moved = np.isfinite(self._links_s)
        self._state.free_s[self._plan.used[moved]] += n_steps * self._links_s[moved]


def _same(one: Messages, other: Messages) -> bool:
    """Return whether two steps move the same messages."""
    if one is other:
        return True
    if (one.edge is None) != (other.edge is None):
        return False
    if one.edge is not None and not np.array_equal(one.edge, other.edge):  # type: ignore[arg-type]
        return False
    return bool(np.array_equal(one.size_bytes, other.size_bytes))
