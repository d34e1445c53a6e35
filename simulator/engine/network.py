"""The fluid network: everything on the wire shares its links max-min fairly, at every instant.

An *entity* is a message, or a whole phase of a collective, with the links that one payload byte
of it loads.  Entities of one owner form a `FlowGroup` with one routing table.  At an instant at
which entities come or go, or a capacity changes, one solve gives new rates to those that the
change can reach; all others keep theirs, untouched by rounding.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from simulator.engine.clock import SOLVE, Alarm, Clock
from simulator.engine.contention import FITS
from simulator.engine.maxmin import max_min_rates
from simulator.engine.routes import alone_rates
from simulator.engine.traffic import Connections

__all__ = ["FlowGroup", "FluidNetwork", "Owner"]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]

_SAME_INSTANT = 1.0 + 1e-12
"""Ends closer than this ratio of the time are one instant: they differ by rounding."""
_CACHE_ENTRIES = 4096
_MOST_THINNED = 8
"""With more phases than this in one component, gaps are left out (rates stay max-min)."""
_THINNING_ROUNDS = 4
"""Rounds of the fixed point of rates and gaps; each gains a factor of the gap."""

# Rows of a group's table of numbers.
_REMAINING, _SINCE, _SPEED, _FINISH, _RATE = range(5)
# Rows of its table of indices.
_ROW, _KEY = range(2)


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
    """The entities of one owner.

    Parameters
    ----------
    network
        The network they run on.
    connections
        Routes; an entity names a row.
    owner
        Told what has left.
    fold
        None: an entity of amount A at rate x takes A / x.  Otherwise the only entity is this
        phase, of amount 1.
    """

    def __init__(
        self,
        network: FluidNetwork,
        connections: Connections,
        owner: Owner,
        fold: Fold | None = None,
    ) -> None:
        self.network = network
        self.owner = owner
        self.fold = fold
        self.numbers: FloatArray = np.empty((5, 0))
        self.indices: IntArray = np.empty((2, 0), dtype=np.int64)
        self._alarm: Alarm | None = None
        self._alarm_s = np.inf
        self.connections = connections
        self.alone_Bps: FloatArray = np.empty(0)
        self.on_links: BoolArray = np.empty(0, dtype=bool)
        self._load_routes(connections)

    def _load_routes(self, connections: Connections) -> None:
        self.connections = connections
        self.alone_Bps = alone_rates(connections, self.network.capacity_Bps)
        self.on_links = np.zeros(len(self.network.capacity_Bps), dtype=bool)
        self.on_links[connections.link] = True

    def __len__(self) -> int:
        return int(self.numbers.shape[1])

    def entries(self, rows: IntArray) -> tuple[IntArray, IntArray]:
        """Return the route entries of *rows*, and how many each row has."""
        low = self.connections.indptr[rows]
        counts = self.connections.indptr[rows + 1] - low
        ends = np.cumsum(counts)
        total = int(ends[-1]) if len(ends) else 0
        return np.repeat(low - (ends - counts), counts) + np.arange(total), counts

    def add(self, rows: IntArray, amounts: FloatArray, keys: IntArray) -> None:
        """Put entities on the wire now; they get their rates in this instant's solve."""
        n, now = len(rows), self.network.clock.time_s
        numbers = np.empty((5, n))
        numbers[_REMAINING] = amounts
        numbers[_SINCE] = now
        numbers[_SPEED] = 0.0
        numbers[_FINISH] = np.inf
        numbers[_RATE] = -1.0  # not solved yet
        self.numbers = np.concatenate((self.numbers, numbers), axis=1)
        self.indices = np.concatenate((self.indices, np.stack((rows, keys))), axis=1)
        self.network.ask(self, rows, 1.0)

    def progress(self) -> tuple[IntArray, FloatArray]:
        """Return the keys on the wire and how much of each remains now."""
        numbers = self.numbers
        gone = numbers[_SPEED] * (self.network.clock.time_s - numbers[_SINCE])
        return self.indices[_KEY], np.maximum(numbers[_REMAINING] - gone, 0.0)

    def withdraw(self) -> None:
        """Take back what the entities ask of the links; `enter` or `close` must follow."""
        if len(self):
            self.network.ask(self, self.indices[_ROW], -1.0)

    def enter(self, connections: Connections) -> None:
        """Continue on these routes (same rows); what remains of each entity takes them."""
        self._load_routes(connections)
        self.numbers[_RATE] = -1.0  # to be solved again
        if len(self):
            self.network.ask(self, self.indices[_ROW], 1.0)

    def reroute(self, connections: Connections) -> None:
        """Leave the old routes for new ones."""
        self.withdraw()
        self.enter(connections)

    def close(self) -> None:
        """Take everything off the wire, without a word to the owner."""
        self.withdraw()
        self.numbers, self.indices = np.empty((5, 0)), np.empty((2, 0), dtype=np.int64)
        self._wake_at(np.inf)

    def set_rates(self, which: IntArray, rate_Bps: FloatArray) -> None:
        """Give the entities at *which* new rates from now on."""
        numbers, now = self.numbers, self.network.clock.time_s
        changed = numbers[_RATE, which] != rate_Bps
        which, rate_Bps = which[changed], rate_Bps[changed]
        if len(which):
            remaining = numbers[_REMAINING, which] - numbers[_SPEED, which] * (
                now - numbers[_SINCE, which]
            )
            np.maximum(remaining, 0.0, out=remaining)
            speed = rate_Bps
            if self.fold is not None:
                over = self.network.over
                speed = np.array(
                    [1.0 / self.fold.duration_s(float(x), over) if x > 0 else 0.0 for x in rate_Bps]
                )
            numbers[_REMAINING, which] = remaining
            numbers[_SINCE, which] = now
            numbers[_SPEED, which] = speed
            numbers[_RATE, which] = rate_Bps
            with np.errstate(divide="ignore", invalid="ignore"):
                numbers[_FINISH, which] = np.where(remaining > 0, now + remaining / speed, now)
        self._wake_at(float(numbers[_FINISH].min(initial=np.inf)))

    def _wake_at(self, time_s: float) -> None:
        if time_s == self._alarm_s:
            return
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        self._alarm_s = time_s
        if np.isfinite(time_s):
            self._alarm = self.network.clock.at(time_s, self._finish)

    def _finish(self) -> None:
        now = self.network.clock.time_s
        self._alarm, self._alarm_s = None, np.inf
        done = self.numbers[_FINISH] <= now * _SAME_INSTANT
        rows, keys = self.indices[:, done]
        kept = ~done
        self.numbers, self.indices = self.numbers[:, kept], self.indices[:, kept]
        self.network.ask(self, rows, -1.0)
        self._wake_at(float(self.numbers[_FINISH].min(initial=np.inf)))
        self.owner.left(keys, now)


class FluidNetwork:
    """Links shared by the entities of all groups.

    Parameters
    ----------
    clock
        The run's clock.
    capacity_Bps
        Wire capacity of each link, shape (links,).

    Notes
    -----
    A link can only bind while the alone-rates of its entities add up to more than its capacity
    (`over`).  So the entities that a change can reach are those connected to it through such
    links; all others run at their alone-rate.
    """

    def __init__(self, clock: Clock, capacity_Bps: FloatArray) -> None:
        self.clock = clock
        self.capacity_Bps = np.array(capacity_Bps, dtype=np.float64)
        self.groups: list[FlowGroup] = []
        self.n_solves = 0
        n_links = len(self.capacity_Bps)
        self._demand_Bps = np.zeros(n_links)
        self.over = np.zeros(n_links, dtype=bool)
        """Links that are asked for more than they have."""
        self._touched = np.zeros(n_links, dtype=bool)
        self._asked: dict[FlowGroup, None] = {}
        self._shapes: dict[int, tuple[int, Connections]] = {}
        self._solving: Alarm | None = None
        self._cache: dict[tuple[tuple[int, bytes], ...], list[FloatArray]] = {}

    def open(
        self,
        connections: Connections,
        owner: Owner,
        fold: Fold | None = None,
    ) -> FlowGroup:
        """Return a new, empty group."""
        group = FlowGroup(self, connections, owner, fold)
        self.groups.append(group)
        return group

    def shut(self, group: FlowGroup) -> None:
        """Forget a group."""
        group.close()
        self.groups.remove(group)
        self._asked.pop(group, None)

    def ask(self, group: FlowGroup, rows: IntArray, sign: float) -> None:
        """Add (+1) or take away (−1) the demand of entities, and solve at the end of now."""
        entry, counts = group.entries(rows)
        links = group.connections.link[entry]
        asked_Bps = group.connections.weight[entry] * np.repeat(group.alone_Bps[rows], counts)
        np.add.at(self._demand_Bps, links, sign * asked_Bps)
        self._touched[links] = True
        self._asked[group] = None
        self._solve_soon()

    def set_capacity(self, link: int, capacity_Bps: float) -> None:
        """Change a link's capacity from now on."""
        affected = [group for group in self.groups if group.on_links[link]]
        for group in affected:
            group.withdraw()
        self.capacity_Bps[link] = capacity_Bps
        self._cache.clear()
        self._touched[link] = True
        for group in affected:
            group.enter(group.connections)

    def shape(self, connections: Connections) -> int:
        """Return a number that names these routes, for the cache of solutions."""
        known = self._shapes.get(id(connections))
        if known is None:
            # Holding the object keeps its id from being used again.
            known = self._shapes[id(connections)] = (len(self._shapes), connections)
        return known[0]

    def _solve_soon(self) -> None:
        if self._solving is None:
            self._solving = self.clock.at(self.clock.time_s, self._solve, SOLVE)

    def _solve(self) -> None:
        self._solving = None
        if not any(len(group) for group in self.groups):
            self._demand_Bps[:] = 0.0  # nothing is on the wire: drop what rounding has left
        over_now = self._demand_Bps > self.capacity_Bps * FITS
        hot = self._touched & (over_now | self.over)
        self.over = over_now
        self._touched[:] = False
        binding = over_now | hot
        reached = self._reached(hot, binding) if hot.any() else []
        solved = dict(reached)
        for group in self._asked:
            fresh = np.flatnonzero(group.numbers[_RATE] < 0)
            if group in solved:
                fresh = np.setdiff1d(fresh, solved[group], assume_unique=True)
            rows = group.indices[_ROW, fresh]
            group.set_rates(fresh, group.alone_Bps[rows])
        self._asked.clear()
        if reached:
            for (group, which), rates in zip(reached, self._rates(reached), strict=True):
                group.set_rates(which, rates)

    def _reached(self, hot: BoolArray, binding: BoolArray) -> list[tuple[FlowGroup, IntArray]]:
        """Return the entities connected to *hot* links through *binding* links, by group."""
        owners: list[tuple[FlowGroup, int]] = []
        links, entities, total = [], [], 0
        for group in self.groups:
            if len(group) == 0 or not binding[group.connections.link].any():
                continue
            entry, counts = group.entries(group.indices[_ROW])
            link = group.connections.link[entry]
            on_binding = binding[link]
            owners.append((group, len(group)))
            links.append(link[on_binding])
            entities.append(total + np.repeat(np.arange(len(group)), counts)[on_binding])
            total += len(group)
        if not owners:
            return []
        link, entity = np.concatenate(links), np.concatenate(entities)
        marked = hot.copy()
        inside = np.zeros(total, dtype=bool)
        while True:
            inside[entity[marked[link]]] = True
            grown = marked.copy()
            grown[link[inside[entity]]] = True
            if (grown == marked).all():
                break
            marked = grown
        result, low = [], 0
        for group, size in owners:
            which = np.flatnonzero(inside[low : low + size])
            if len(which):
                result.append((group, which))
            low += size
        return result

    def _rates(self, reached: list[tuple[FlowGroup, IntArray]]) -> list[FloatArray]:
        """Return the rates of the reached entities, by group."""
        base = self._max_min(reached)
        phases = [k for k, (group, _) in enumerate(reached) if group.fold is not None]
        if not phases or len(reached) == 1 or len(phases) > _MOST_THINNED:
            return base
        return self._thinned(reached, base, phases)

    def _thinned(
        self, reached: list[tuple[FlowGroup, IntArray]], base: list[FloatArray], phases: list[int]
    ) -> list[FloatArray]:
        """Return rates that count what phases leave to others in their latencies.

        A phase of messages with latency between them is on the wire for a part of its time (its
        duty) only.  To first order in the gaps, an entity's rate on the wire is that with all
        others, plus, for each phase, the gap's share of what it would gain without it.
        """
        gains = {}
        for k in phases:
            others = reached[:k] + reached[k + 1 :]
            without = self._max_min(others)
            without.insert(k, base[k])
            gains[k] = [a - b for a, b in zip(without, base, strict=True)]
        rates = base
        for _ in range(_THINNING_ROUNDS):
            idle = {}
            for k in phases:
                fold, rate = reached[k][0].fold, float(rates[k][0])
                assert fold is not None
                on_wire = fold.amount_bytes / rate / fold.duration_s(rate, self.over)
                idle[k] = max(1.0 - on_wire, 0.0)
            rates = []
            for i, (group, which) in enumerate(reached):
                rate_Bps = base[i] + sum(idle[k] * gains[k][i] for k in phases if k != i)
                alone_Bps = group.alone_Bps[group.indices[_ROW, which]]
                rates.append(np.clip(rate_Bps, 0.5 * base[i], alone_Bps))
        return rates

    def _max_min(self, reached: list[tuple[FlowGroup, IntArray]]) -> list[FloatArray]:
        """Return max-min rates of entities, by group; known sets are looked up."""
        orders = []
        names = []
        for group, which in reached:
            rows = group.indices[_ROW, which]
            order = np.argsort(rows)
            orders.append(order)
            names.append((self.shape(group.connections), rows[order].tobytes()))
        name = tuple(names)
        found = self._cache.get(name)
        if found is None:
            self.n_solves += 1
            found = self._solve_rates(reached, orders)
            if len(self._cache) >= _CACHE_ENTRIES:
                self._cache.clear()
            self._cache[name] = found
        result = []
        for order, rates in zip(orders, found, strict=True):
            by_entity = np.empty(len(order))
            by_entity[order] = rates
            result.append(by_entity)
        return result

    def _solve_rates(
        self, reached: list[tuple[FlowGroup, IntArray]], orders: list[IntArray]
    ) -> list[FloatArray]:
        links, weights, counts, limits = [], [], [], []
        for (group, which), order in zip(reached, orders, strict=True):
            rows = group.indices[_ROW, which][order]
            entry, count = group.entries(rows)
            links.append(group.connections.link[entry])
            weights.append(group.connections.weight[entry])
            counts.append(count)
            limits.append(group.connections.max_rate_Bps[rows])
        rates = max_min_rates(
            np.concatenate(([0], np.cumsum(np.concatenate(counts)))),
            np.concatenate(links),
            np.concatenate(weights),
            self.capacity_Bps,
            np.concatenate(limits),
        )
        return np.split(rates, np.cumsum([len(order) for order in orders])[:-1])
