"""The entities that one owner has on the fluid network."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from simulator.engine.clock import Alarm
from simulator.engine.routes import alone_rates, entries_of
from simulator.engine.traffic import Connections
from simulator.engine.views import floats, ints

if TYPE_CHECKING:
    from simulator.engine.network import FluidNetwork

__all__ = ["UNSOLVED", "FlowGroup", "Fold", "Owner"]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]

_SAME_INSTANT = 1.0 + 1e-12
"""Ends closer than this ratio of the time are one instant: they differ by rounding."""
UNSOLVED = -1.0
"""Rate of an entity that has not been given one yet."""


class Owner(Protocol):
    """Whoever put entities on the network."""

    def left(self, keys: IntArray, time_s: float) -> None:
        """Take note that these entities are through."""


class Fold(Protocol):
    """A phase of a collective, as one entity of amount 1."""

    amount_bytes: float

    def duration_s(self, rate_Bps: float, over: BoolArray) -> float:
        """Return how long the phase takes at a rate, with these links overloaded."""


class FlowGroup:
    """At most one entity on each row (connection) of a routing table.

    All arrays have one value per row.  Views of the same memory serve single entities: an
    instant at which one message moves must not cost as much as one at which thousands do.

    Parameters
    ----------
    network
        The network they run on.
    connections
        Routes.
    owner
        Told what has left.
    fold
        None: an entity of amount A at rate x takes A / x.  Otherwise the only entity is this
        phase, of amount 1.
    base
        Number of row 0 among the rows of all groups.
    """

    def __init__(
        self,
        network: FluidNetwork,
        connections: Connections,
        owner: Owner,
        fold: Fold | None,
        base: int,
    ) -> None:
        n = len(connections.src)
        self.network = network
        self.owner = owner
        self.fold = fold
        self.base = base
        self.n_active = 0
        self.key: IntArray = np.full(n, -1, dtype=np.int64)
        """The owner's name of the entity on each row; −1: none."""
        self.rate_Bps: FloatArray = np.full(n, UNSOLVED)
        self.finish_s: FloatArray = np.full(n, np.inf)
        self._remaining: FloatArray = np.zeros(n)
        self._since_s: FloatArray = np.zeros(n)
        self._speed: FloatArray = np.zeros(n)
        self.one_key = ints(self.key)
        self.one_rate = floats(self.rate_Bps)
        self._one_finish = floats(self.finish_s)
        self._one_remaining = floats(self._remaining)
        self._one_since = floats(self._since_s)
        self._one_speed = floats(self._speed)
        self._alarm: Alarm | None = None
        self._alarm_s = np.inf
        self._known_routes: dict[int, tuple[list[int], list[float], float]] = {}
        self._load_routes(connections)

    def _load_routes(self, connections: Connections) -> None:
        self.connections = connections
        self.alone_Bps = alone_rates(connections, self.network.capacity_Bps)
        self.on_links = np.zeros(len(self.network.capacity_Bps), dtype=bool)
        self.on_links[connections.link] = True
        self._known_routes = {}

    def active(self) -> IntArray:
        """Return the rows that hold an entity."""
        return np.flatnonzero(self.key >= 0)

    def entries(self, rows: IntArray) -> tuple[IntArray, IntArray]:
        """Return the route entries of *rows*, and how many each row has."""
        if len(rows) == 1:  # a phase, or a lone message
            low, high = self.connections.indptr[rows[0] : rows[0] + 2].tolist()
            return np.arange(low, high), np.array([high - low])
        return entries_of(self.connections, rows)

    def route(self, row: int) -> tuple[list[int], list[float], float]:
        """Return one row's links, their weights, and its rate alone."""
        known = self._known_routes.get(row)
        if known is None:
            low, high = self.connections.indptr[row : row + 2].tolist()
            known = self._known_routes[row] = (
                self.connections.link[low:high].tolist(),
                self.connections.weight[low:high].tolist(),
                float(self.alone_Bps[row]),
            )
        return known

    def add(self, rows: IntArray, amounts: FloatArray, keys: IntArray) -> None:
        """Put entities on the wire now; they get their rates in this instant's solve."""
        self.key[rows] = keys
        self.rate_Bps[rows] = UNSOLVED
        self._remaining[rows] = amounts
        self._since_s[rows] = self.network.clock.time_s
        self._speed[rows] = 0.0
        self.n_active += len(rows)
        self.network.enter(self, rows)

    def add_one(self, row: int, amount: float, key: int) -> None:
        """Put one entity on the wire now."""
        self.one_key[row] = key
        self.one_rate[row] = UNSOLVED
        self._one_remaining[row] = amount
        self._one_since[row] = self.network.clock.time_s
        self._one_speed[row] = 0.0
        self.n_active += 1
        self.network.enter_one(self, row)

    def progress(self) -> tuple[IntArray, FloatArray]:
        """Return the keys on the wire and how much of each remains now."""
        rows = self.active()
        gone = self._speed[rows] * (self.network.clock.time_s - self._since_s[rows])
        return self.key[rows], np.maximum(self._remaining[rows] - gone, 0.0)

    def withdraw(self) -> None:
        """Take back what the entities ask of the links; `enter` or `close` must follow."""
        if self.n_active:
            self.network.leave(self, self.active())

    def enter(self, connections: Connections) -> None:
        """Continue on these routes (same rows); what remains of each entity takes them."""
        self._load_routes(connections)
        rows = self.active()
        self.rate_Bps[rows] = UNSOLVED
        if len(rows):
            self.network.enter(self, rows)

    def reroute(self, connections: Connections) -> None:
        """Leave the old routes for new ones."""
        self.withdraw()
        self.enter(connections)

    def close(self) -> None:
        """Take everything off the wire, without a word to the owner."""
        self.withdraw()
        self.n_active = 0
        self.key[:] = -1
        self.finish_s[:] = np.inf
        self.wake()

    def set_rates(self, rows: IntArray, rate_Bps: FloatArray) -> None:
        """Give the entities on *rows* new rates from now on; `wake` must follow."""
        changed = self.rate_Bps[rows] != rate_Bps
        rows, rate_Bps = rows[changed], rate_Bps[changed]
        if len(rows) == 0:
            return
        now = self.network.clock.time_s
        remaining = self._remaining[rows] - self._speed[rows] * (now - self._since_s[rows])
        np.maximum(remaining, 0.0, out=remaining)
        speed = rate_Bps
        if self.fold is not None:
            over = self.network.over
            speed = np.array(
                [1.0 / self.fold.duration_s(float(x), over) if x > 0 else 0.0 for x in rate_Bps]
            )
        self._remaining[rows] = remaining
        self._since_s[rows] = now
        self._speed[rows] = speed
        self.rate_Bps[rows] = rate_Bps
        with np.errstate(divide="ignore", invalid="ignore"):
            self.finish_s[rows] = np.where(remaining > 0, now + remaining / speed, now)

    def set_rate(self, row: int, rate_Bps: float) -> None:
        """Give the message on one row a new rate from now on; `wake` must follow."""
        if self.one_rate[row] == rate_Bps:
            return
        now = self.network.clock.time_s
        remaining = self._one_remaining[row] - self._one_speed[row] * (now - self._one_since[row])
        self._one_since[row] = now
        self._one_speed[row] = self.one_rate[row] = rate_Bps
        if remaining <= 0.0:
            self._one_remaining[row] = 0.0
            self._one_finish[row] = now
        else:
            self._one_remaining[row] = remaining
            self._one_finish[row] = now + remaining / rate_Bps if rate_Bps > 0 else np.inf

    def wake(self) -> None:
        """Set the alarm to the next end."""
        time_s = float(self.finish_s.min(initial=np.inf))
        if time_s == self._alarm_s:
            return
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        self._alarm_s = time_s
        if time_s < np.inf:
            self._alarm = self.network.clock.at(time_s, self._finish)

    def _finish(self) -> None:
        now = self.network.clock.time_s
        self._alarm, self._alarm_s = None, np.inf
        rows = np.flatnonzero(self.finish_s <= now * _SAME_INSTANT)
        keys = self.key[rows]
        self.network.leave(self, rows)
        self.key[rows] = -1
        self.finish_s[rows] = np.inf
        self.n_active -= len(rows)
        self.wake()
        self.owner.left(keys, now)
