"""The fluid network: everything on the wire shares its links max-min fairly, at every instant.

An *entity* is a message, or a whole phase of a collective, with the links that one payload byte
of it loads.  At an instant at which entities come or go, or a capacity changes, one solve gives
new rates to those that the change can reach; all others keep theirs, untouched by rounding.

A link can only bind while the alone-rates of its entities add up to more than its capacity (it is
*over*).  So a change reaches the entities that are connected to it through such links, and all
entities outside run at their alone-rate.

Two ways lead to the same rates: few entities at a time are followed one by one through lists of
who uses which link; with large groups or whole phases on the network, numpy does all at once.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from simulator.engine.clock import SOLVE, Alarm, Clock
from simulator.engine.contention import FITS
from simulator.engine.group import UNSOLVED, FlowGroup, Fold, Owner
from simulator.engine.maxmin import max_min_rates, max_min_rates_few
from simulator.engine.traffic import Connections
from simulator.engine.views import flags, floats

__all__ = ["FluidNetwork"]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]
Reached = list[tuple[FlowGroup, IntArray]]
"""Rows by group."""

_CACHE_ENTRIES = 4096
_BATCH = 128
"""When more entities than this come or go at once, numpy takes over."""
_CALM = 16
"""After this many solves in a row of at most `_FEW` entities come and gone, it hands back."""
_FEW = 24
"""Up to this many entities are solved without numpy."""
_MOST_THINNED = 8
"""With more phases than this in one component, gaps are left out (rates stay max-min)."""
_THINNING_ROUNDS = 4
"""Rounds of the fixed point of rates and gaps; each gains a factor of the gap."""


class FluidNetwork:
    """Links shared by the entities of all groups.

    Parameters
    ----------
    clock
        The run's clock.
    capacity_Bps
        Wire capacity of each link, shape (links,).
    """

    def __init__(self, clock: Clock, capacity_Bps: FloatArray) -> None:
        self.clock = clock
        self.capacity_Bps = np.array(capacity_Bps, dtype=np.float64)
        self.groups: list[FlowGroup] = []
        n_links = len(self.capacity_Bps)
        self.over: BoolArray = np.zeros(n_links, dtype=bool)
        """Links that are asked for more than they have."""
        self._demand_Bps = np.zeros(n_links)
        self._fits_Bps = self.capacity_Bps * FITS
        self._one_demand = floats(self._demand_Bps)
        self._one_fits = floats(self._fits_Bps)
        self._one_over = flags(self.over)
        self._next_base = 0
        # What has changed since the last solve.
        self._touched: list[IntArray] = []
        self._touched_one: list[int] = []
        self._fresh: list[tuple[FlowGroup, IntArray]] = []
        self._fresh_one: list[tuple[FlowGroup, int]] = []
        self._solving: Alarm | None = None
        # Who uses each link, while entities are followed one by one.
        self._one_by_one = True
        self._n_changed = 0
        self._n_calm = 0
        self._users: dict[int, dict[int, tuple[FlowGroup, int]]] = {}
        self._shapes: dict[int, tuple[int, Connections]] = {}
        self._cache: dict[tuple[tuple[int, bytes], ...], list[FloatArray]] = {}

    # Groups -----------------------------------------------------------------------------------

    def open(self, connections: Connections, owner: Owner, fold: Fold | None = None) -> FlowGroup:
        """Return a new, empty group."""
        group = FlowGroup(self, connections, owner, fold, self._next_base)
        self._next_base += len(connections.src)
        self.groups.append(group)
        if fold is not None:
            self._one_by_one = False
        return group

    def shut(self, group: FlowGroup) -> None:
        """Forget a group."""
        group.close()
        self.groups.remove(group)
        self._fresh = [pair for pair in self._fresh if pair[0] is not group]
        self._fresh_one = [pair for pair in self._fresh_one if pair[0] is not group]

    def _choose_way(self) -> None:
        """Go back to one by one when little has moved for a while."""
        self._n_calm = self._n_calm + 1 if self._n_changed <= _FEW else 0
        self._n_changed = 0
        if self._n_calm < _CALM or any(group.fold is not None for group in self.groups):
            return
        self._n_calm = 0
        self._one_by_one = True
        self._users = {}
        for group in self.groups:
            for row in group.active().tolist():
                for link in group.route(row)[0]:
                    self._users.setdefault(link, {})[group.base + row] = (group, row)

    def set_capacity(self, link: int, capacity_Bps: float) -> None:
        """Change a link's capacity from now on."""
        affected = [group for group in self.groups if group.on_links[link]]
        for group in affected:
            group.withdraw()
        self.capacity_Bps[link] = capacity_Bps
        self._fits_Bps[link] = capacity_Bps * FITS
        self._cache.clear()
        self._touched_one.append(link)
        for group in affected:
            group.enter(group.connections)
        self._solve_soon()

    # Entities come and go ---------------------------------------------------------------------

    def enter(self, group: FlowGroup, rows: IntArray) -> None:
        """Let the entities on *rows* of a group ask for their links."""
        self._one_by_one = self._one_by_one and len(rows) <= _BATCH
        if self._one_by_one:
            for row in rows.tolist():
                self.enter_one(group, row)
            return
        self._ask(group, rows, 1.0)
        self._fresh.append((group, rows))

    def enter_one(self, group: FlowGroup, row: int) -> None:
        """Let one entity ask for its links."""
        if not self._one_by_one:
            self.enter(group, np.array([row]))
            return
        links, weights, alone_Bps = group.route(row)
        name, user = group.base + row, (group, row)
        for link, weight in zip(links, weights, strict=True):
            self._one_demand[link] += weight * alone_Bps
            users = self._users.get(link)
            if users is None:
                users = self._users[link] = {}
            users[name] = user
        self._touched_one += links
        self._fresh_one.append(user)
        self._solve_soon()

    def leave(self, group: FlowGroup, rows: IntArray) -> None:
        """Free the links of the entities on *rows*."""
        self._one_by_one = self._one_by_one and len(rows) <= _BATCH
        if not self._one_by_one:
            self._ask(group, rows, -1.0)
            return
        for row in rows.tolist():
            links, weights, alone_Bps = group.route(row)
            name = group.base + row
            for link, weight in zip(links, weights, strict=True):
                self._one_demand[link] -= weight * alone_Bps
                del self._users[link][name]
            self._touched_one += links
        self._solve_soon()

    def _ask(self, group: FlowGroup, rows: IntArray, sign: float) -> None:
        entry, counts = group.entries(rows)
        links = group.connections.link[entry]
        asked_Bps = group.connections.weight[entry] * np.repeat(group.alone_Bps[rows], counts)
        np.add.at(self._demand_Bps, links, sign * asked_Bps)
        self._n_changed += len(rows)
        self._touched.append(links)
        self._solve_soon()

    def _solve_soon(self) -> None:
        if self._solving is None:
            self._solving = self.clock.at(self.clock.time_s, self._solve, SOLVE)

    # The solve --------------------------------------------------------------------------------

    def _solve(self) -> None:
        self._solving = None
        if not any(group.n_active for group in self.groups):
            self._demand_Bps[:] = 0.0  # nothing is on the wire: drop what rounding has left
        if self._one_by_one and not self._touched and not self._fresh:
            self._solve_one_by_one()
        else:
            self._solve_all()
            if not self._one_by_one:
                self._choose_way()

    def _solve_one_by_one(self) -> None:
        touched, self._touched_one = self._touched_one, []
        fresh, self._fresh_one = self._fresh_one, []
        over, demand, fits = self._one_over, self._one_demand, self._one_fits
        hot: dict[int, None] = {}
        for link in touched:
            now_over = demand[link] > fits[link]
            if now_over or over[link]:
                hot[link] = None
        for link in hot:
            over[link] = demand[link] > fits[link]
        reached: dict[int, tuple[FlowGroup, int]] = {}
        stack = list(hot)
        while stack:
            for name, user in self._users.get(stack.pop(), {}).items():
                if name not in reached:
                    reached[name] = user
                    for link in user[0].route(user[1])[0]:
                        if over[link] and link not in hot:
                            hot[link] = None
                            stack.append(link)
        woken: dict[FlowGroup, None] = {}
        for group, row in fresh:
            if group.one_rate[row] == UNSOLVED and group.base + row not in reached:
                group.set_rate(row, group.route(row)[2])
                woken[group] = None
        if reached:
            users = list(reached.values())
            for (group, row), rate_Bps in zip(users, self._few_rates(users), strict=True):
                if group.one_rate[row] != rate_Bps:
                    group.set_rate(row, rate_Bps)
                    woken[group] = None
        for group in woken:
            group.wake()

    def _few_rates(self, users: list[tuple[FlowGroup, int]]) -> list[float]:
        """Return the max-min rates of single entities."""
        if len(users) > _FEW:
            by_group: dict[FlowGroup, list[int]] = {}
            for group, row in users:
                by_group.setdefault(group, []).append(row)
            reached = [(group, np.array(rows)) for group, rows in by_group.items()]
            rates = {
                group.base + row: rate
                for (group, rows), found in zip(reached, self._max_min(reached), strict=True)
                for row, rate in zip(rows.tolist(), found.tolist(), strict=True)
            }
            return [rates[group.base + row] for group, row in users]
        links, weights, limits = [], [], []
        for group, row in users:
            of_row, weight, alone_Bps = group.route(row)
            binding = [(x, w) for x, w in zip(of_row, weight, strict=True) if self._one_over[x]]
            links.append([x for x, _ in binding])
            weights.append([w for _, w in binding])
            limits.append(alone_Bps)
        return max_min_rates_few(links, weights, limits, self.capacity_Bps)

    def _solve_all(self) -> None:
        touched = np.zeros(len(self.over), dtype=bool)
        for links in self._touched:
            touched[links] = True
        touched[self._touched_one] = True
        fresh = self._fresh
        fresh += [(group, np.array([row])) for group, row in self._fresh_one]
        self._touched, self._touched_one, self._fresh, self._fresh_one = [], [], [], []
        over_now = self._demand_Bps > self._fits_Bps
        hot = touched & (over_now | self.over)
        self.over[:] = over_now
        reached = self._reached(hot, over_now | hot) if hot.any() else []
        woken: dict[FlowGroup, None] = {}
        if reached:
            for (group, rows), rates in zip(reached, self._rates(reached), strict=True):
                group.set_rates(rows, rates)
                woken[group] = None
        for group, rows in fresh:
            # What has no rate yet is out of reach of every link that is over.
            rows = rows[(group.rate_Bps[rows] == UNSOLVED) & (group.key[rows] >= 0)]
            group.set_rates(rows, group.alone_Bps[rows])
            woken[group] = None
        for group in woken:
            group.wake()

    def _reached(self, hot: BoolArray, binding: BoolArray) -> Reached:
        """Return the entities connected to *hot* links through *binding* links."""
        owners: list[tuple[FlowGroup, IntArray]] = []
        links, entities, total = [], [], 0
        for group in self.groups:
            if group.n_active == 0 or not binding[group.connections.link].any():
                continue
            rows = group.active()
            entry, counts = group.entries(rows)
            link = group.connections.link[entry]
            on_binding = binding[link]
            owners.append((group, rows))
            links.append(link[on_binding])
            entities.append(total + np.repeat(np.arange(len(rows)), counts)[on_binding])
            total += len(rows)
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
        for group, rows in owners:
            which = rows[inside[low : low + len(rows)]]
            if len(which):
                result.append((group, which))
            low += len(rows)
        return result

    def _rates(self, reached: Reached) -> list[FloatArray]:
        """Return the rates of the reached entities, by group."""
        base = self._max_min(reached)
        # A phase that waits for a dead link leaves the others all they can have already.
        phases = [k for k, (group, _) in enumerate(reached) if group.fold and base[k][0] > 0]
        if not phases or len(reached) == 1 or len(phases) > _MOST_THINNED:
            return base
        return self._thinned(reached, base, phases)

    def _thinned(
        self, reached: Reached, base: list[FloatArray], phases: list[int]
    ) -> list[FloatArray]:
        """Return rates that count what phases leave to others in their latencies.

        A phase of messages with latency between them is on the wire for a part of its time (its
        duty) only.  To first order in the gaps, an entity's rate on the wire is that with all
        others, plus, for each phase, the gap's share of what it would gain without it.
        """
        gains = {}
        for k in phases:
            without = self._max_min(reached[:k] + reached[k + 1 :])
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
            for i, (group, rows) in enumerate(reached):
                rate_Bps = base[i] + sum(idle[k] * gains[k][i] for k in phases if k != i)
                rates.append(np.clip(rate_Bps, 0.5 * base[i], group.alone_Bps[rows]))
        return rates

    def _max_min(self, reached: Reached) -> list[FloatArray]:
        """Return max-min rates of entities, by group; known sets are looked up."""
        orders = []
        names = []
        for group, rows in reached:
            order = np.argsort(rows)
            orders.append(order)
            names.append((self._shape(group.connections), rows[order].tobytes()))
        name = tuple(names)
        found = self._cache.get(name)
        if found is None:
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

    def _shape(self, connections: Connections) -> int:
        """Return a number that names these routes, for the cache of solutions."""
        known = self._shapes.get(id(connections))
        if known is None:
            # Holding the object keeps its id from being used again.
            known = self._shapes[id(connections)] = (len(self._shapes), connections)
        return known[0]

    def _solve_rates(self, reached: Reached, orders: list[IntArray]) -> list[FloatArray]:
        links, weights, counts, limits = [], [], [], []
        for (group, which), order in zip(reached, orders, strict=True):
            rows = which[order]
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
