"""When a step that repeats goes on as it does, so that the rest of it need not be followed."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from simulator.engine.crowd import edges_of
from simulator.engine.traffic import Messages
from simulator.engine.wave import StageTimer

__all__ = ["run_steps", "same_messages"]

FloatArray = NDArray[np.float64]

_SAME_PACE = 1e-9
_WINDOW = 16
"""Repetitions over which a pace is averaged where it does not become constant at once."""
_SETTLED = 1e-4
"""Relative change of the slowest pace from window to window at which it counts as settled."""


def run_steps(timer: StageTimer, on_change: Callable[[int, Messages], None]) -> None:
    """Run the steps of a stage; *on_change* is called before a step unlike the one before."""
    stage = timer.plan.stage
    before: Messages | None = None
    pace: _Pace | None = None
    step = 0
    while step < stage.n_steps:
        messages = stage.messages(step)
        if pace is None or before is None or not same_messages(messages, before):
            on_change(step, messages)
            timer.step(step, messages)
            before, pace = messages, _Pace(timer, messages)
            step += 1
            continue
        timer.step(step, messages)
        step += 1
        if pace.settled():
            skipped = 0
            while step < stage.n_steps and same_messages(stage.messages(step), messages):
                skipped += 1
                step += 1
            pace.skip(skipped)


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


def same_messages(one: Messages, other: Messages) -> bool:
    """Return whether two steps move the same messages."""
    if one is other:
        return True
    if (one.edge is None) != (other.edge is None):
        return False
    if one.edge is not None and not np.array_equal(one.edge, other.edge):  # type: ignore[arg-type]
        return False
    return bool(np.array_equal(one.size_bytes, other.size_bytes))
