"""The clock: SimPy's environment and queue, with light events at absolute times."""

from __future__ import annotations

import math
from collections.abc import Callable
from heapq import heappush

import simpy
from simpy.events import Event, EventPriority

__all__ = ["ACT", "DECIDE", "SOLVE", "Alarm", "Clock"]

ACT = EventPriority(1)
"""Things happen: a message leaves, a rank calls, a compute ends."""
DECIDE = EventPriority(2)
"""After all that happens at an instant: collectives called at it choose how they run."""
SOLVE = EventPriority(3)
"""Last at an instant: the network shares its links anew."""


class Alarm(Event):
    """An event that calls one function, once, unless it is cancelled.

    SimPy's `Timeout` takes a delay, so that its absolute time is rounded twice; and a generator
    per message would cost 30 times as much as the message.
    """

    __slots__ = ("_ok", "_value", "action", "callbacks", "cancelled", "env")

    def __init__(self, env: simpy.Environment, action: Callable[[], None]) -> None:
        self.env = env
        self.action = action
        self.cancelled = False
        self.callbacks = [_ring]
        self._ok = True
        self._value = None

    def cancel(self) -> None:
        """Drop the alarm; it stays in the queue and does nothing."""
        self.cancelled = True


def _ring(event: Event) -> None:
    assert isinstance(event, Alarm)
    if not event.cancelled:
        event.action()


class Clock(simpy.Environment):
    """A SimPy environment that can be asked to act at an absolute time.

    Parameters
    ----------
    on_progress
        Called with (simulated time in s, events so far) every `progress_every` events.
    progress_every
        Events between two reports.

    Examples
    --------
    >>> clock = Clock()
    >>> seen = []
    >>> _ = clock.at(2.0, lambda: seen.append(clock.now))
    >>> clock.at(1.0, lambda: seen.append(clock.now)).cancel()
    >>> clock.run()
    >>> seen
    [2.0]
    """

    def __init__(
        self,
        on_progress: Callable[[float, int], None] | None = None,
        progress_every: int = 256,
    ) -> None:
        super().__init__(0.0)
        self.n_events = 0
        self._on_progress = on_progress
        self._progress_every = progress_every

    def at(self, time_s: float, action: Callable[[], None], priority: EventPriority = ACT) -> Alarm:
        """Call *action* at the absolute time *time_s* (now, if that has passed).

        Ties follow the priority, then the order of the calls to `at`.
        """
        alarm = Alarm(self, action)
        heappush(self._queue, (max(time_s, self._now), priority, next(self._eid), alarm))
        return alarm

    def step(self) -> None:
        """Process the next event and count it."""
        super().step()
        self.n_events += 1
        if self._on_progress is not None and self.n_events % self._progress_every == 0:
            self._on_progress(float(self._now), self.n_events)

    @property
    def time_s(self) -> float:
        """Simulated time in s."""
        return float(self._now)

    @property
    def idle(self) -> bool:
        """True when nothing is left to happen."""
        return math.isinf(self.peek())
