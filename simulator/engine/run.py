"""The state of one simulation: programs, calls, links, and who shares what."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from simulator.base.errors import CollsimError, Problem, SimulationError
from simulator.engine.calls import Call
from simulator.engine.clock import DECIDE, Clock
from simulator.engine.contention import FITS
from simulator.engine.jitter import JitterSpec
from simulator.engine.matching import key_calls, rank_list, stuck
from simulator.engine.network import FluidNetwork
from simulator.engine.outcome import CollectiveRecord, MessageRecord, Outcome
from simulator.engine.prepared import Prepared, PreparedCalls, wire_bytes
from simulator.engine.programs import ProgramRun, StartKey
from simulator.engine.routes import merged
from simulator.engine.traffic import (
    Collective,
    Connections,
    Level,
    LinkChange,
    Network,
    Program,
    Start,
)

__all__ = ["Reroute", "Run"]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

Reroute = Callable[[Collective, frozenset[int]], Connections]
"""New routes for a collective when these links are dead."""

_FLOWS_SHARE = 1000
"""A message that shares links costs about this many times one that does not."""
_DOUBTED_SHARE = 400
"""The same for calls that the folded level may time wrongly: some seconds are well spent there."""
_FLOWS_LIMIT = 30_000_000
"""Messages of one call that `flows` refuses to hold (several GiB)."""


class Run:
    """One simulation; see `simulate` for the parameters."""

    def __init__(
        self,
        network: Network,
        programs: Sequence[Program],
        *,
        level: Level,
        max_transfers: int,
        changes: Sequence[LinkChange],
        reroute: Reroute | None,
        jitter: JitterSpec | None,
        rng: np.random.Generator | None,
        compute_slowdown: float,
        record: bool,
        on_progress: Callable[[float, int], None] | None,
    ) -> None:
        self.network = network
        self.programs = programs
        self.clock = Clock(on_progress)
        self.nominal_Bps = np.array(network.capacity_Bps, dtype=np.float64)
        self.capacity_Bps = self.nominal_Bps.copy()
        self.fluid = FluidNetwork(self.clock, self.capacity_Bps)
        self.prepared_calls = PreparedCalls(self.capacity_Bps)
        self.jitter = jitter if jitter else None
        self.record = record
        self.warnings: list[str] = []
        self._reroute = reroute
        # A generator takes long to import, and only jitter draws from it.
        self._rng = (rng or np.random.default_rng(0)) if self.jitter else None
        self._dead = frozenset(np.flatnonzero(self.capacity_Bps <= 0).tolist())
        self._routed: dict[tuple[int, frozenset[int]], Collective] = {}
        self._waiting: dict[int, Prepared] = {}
        self._repaired_s: dict[int, float] = {}
        self._keys = key_calls(programs)
        self._calls: dict[StartKey, Call] = {}
        self._seeds: dict[StartKey, int] = {}
        self._members: dict[StartKey, list[tuple[int, int]]] = {}
        self._maps: dict[tuple[int, int], tuple[IntArray, IntArray]] = {}
        self._claims: dict[Call, FloatArray] = {}
        self._load_Bps = np.zeros(len(self.nominal_Bps))
        self._deciding: dict[Call, None] | None = None
        self._records: list[CollectiveRecord] = []
        self._messages: list[MessageRecord] = []
        self._link_bytes = np.zeros(len(self.nominal_Bps))
        self.level, self._budget = self._choose(level, max_transfers)
        self._doubted_budget = self._budget * _FLOWS_SHARE / _DOUBTED_SHARE
        self._runs = [
            ProgramRun(
                self.clock,
                program,
                keys,
                partial(self._called, number),
                slowdown=compute_slowdown,
                record_all=record,
            )
            for number, (program, keys) in enumerate(zip(programs, self._keys, strict=True))
        ]
        for change in changes:
            if change.factor > 0:
                last_s = self._repaired_s.get(change.link, change.time_s)
                self._repaired_s[change.link] = max(last_s, change.time_s)
        for at_s in sorted({change.time_s for change in changes}):
            batch = [change for change in changes if change.time_s == at_s]
            self.clock.at(at_s, partial(self._change, batch))

    # The level --------------------------------------------------------------------------------

    def _choose(self, level: Level, max_transfers: int) -> tuple[Level, float]:
        """Return the level and how many contending messages it may simulate one by one."""
        if level == "folded":
            if self.jitter is not None:
                self.warnings.append("jitter and skew are left out at the folded level")
                self.jitter = None
            return "folded", 0.0
        if level == "steps":
            return "steps", float("inf")
        seen: set[StartKey] = set()
        total = 0
        for program, keys in zip(self.programs, self._keys, strict=True):
            for operation, key in zip(program.operations, keys, strict=True):
                if isinstance(operation, Start) and key is not None and key not in seen:
                    seen.add(key)
                    total += self.prepared_calls.get(operation.collective).n_messages
        if self.jitter is not None:
            if total > max_transfers:
                self.warnings.append(
                    f"{total} transfers are simulated one by one: jitter and skew ask for it"
                )
            return "steps", float("inf")
        if total > max_transfers:
            self.warnings.append(
                f"{total} transfers, more than engine.max_transfers ({max_transfers}): they are "
                "timed at the folded level, not one by one"
            )
            return "folded", 0.0
        return "steps", max_transfers / _FLOWS_SHARE

    def afford(self, prepared: Prepared) -> bool:
        """Return whether a call's messages may be simulated one by one under contention.

        More may where the folded level would be in doubt; where they are too many, it is taken
        with a warning.
        """
        n_messages, collective = prepared.n_messages, prepared.collective
        if self._budget == float("inf"):
            if n_messages > _FLOWS_LIMIT:
                raise SimulationError(
                    Problem(
                        message=(
                            f"{collective.name}: {n_messages} messages share links, too many to "
                            "simulate one by one"
                        ),
                        allowed=f"at most {_FLOWS_LIMIT}, or level folded",
                    )
                )
            return True
        doubt = "" if n_messages <= self._budget else prepared.doubt
        if n_messages > (self._doubted_budget if doubt else self._budget):
            if doubt:
                self._warn_of_doubt(n_messages, doubt)
            return False
        self._budget -= n_messages
        self._doubted_budget -= n_messages
        return True

    def _warn_of_doubt(self, n_messages: int, doubt: str) -> None:
        text = (
            f"{doubt}, and {n_messages} are too many to follow: timed at the folded level, which "
            "then is within 5 % of message by message in nine of ten random comparisons, at worst "
            "40 % off (engine.level: steps follows them)"
        )
        if text not in self.warnings:
            self.warnings.append(text)

    # Programs and calls -----------------------------------------------------------------------

    def go(self) -> Outcome:
        """Run to the end."""
        for program in self._runs:
            program.begin()
        self.clock.run()
        unfinished = any(not program.finished for program in self._runs)
        if unfinished or self._calls:
            raise SimulationError(stuck(self._calls, self.programs, self._keys))
        return self._outcome()

    def _called(self, number: int, index: int, who: IntArray) -> None:
        """Let ranks of a program reach a `Start`."""
        program = self._runs[number]
        key, operation = program.keys[index], program.program.operations[index]
        assert key is not None
        assert isinstance(operation, Start)
        call = self._calls.get(key)
        if call is None:
            seed = None
            if self.jitter is not None and self._rng is not None:
                seed = int(self._rng.integers(2**62))
            call = self._calls[key] = Call(self, key, operation.collective, seed)
        members = self._members.setdefault(key, [])
        if (number, index) not in members:
            members.append((number, index))
        position_of, _ = self._map(number, key.group, operation.collective.group)
        if operation.slows:
            program.communicates(who, 1)
        call.call(position_of[who])
        if self._deciding is None:
            self._deciding = {}
            self.clock.at(self.clock.time_s, self._decide, DECIDE)
        self._deciding[call] = None

    def _map(self, number: int, group_number: int, group: IntArray) -> tuple[IntArray, IntArray]:
        """Return (position in the group of each local rank, local rank of each position or −1)."""
        found = self._maps.get((number, group_number))
        if found is None:
            ranks = self._runs[number].ranks
            order = np.argsort(group)
            position_of = order[np.searchsorted(group[order], ranks)]
            local_of = np.full(len(group), -1, dtype=np.int64)
            local_of[position_of] = np.arange(len(ranks))
            found = self._maps[number, group_number] = (position_of, local_of)
        return found

    def _decide(self) -> None:
        calls = list(self._deciding or ())
        self._deciding = None
        for call in calls:
            call.decide()

    def call_ended(self, call: Call, positions: IntArray) -> None:
        """Let the ranks at *positions* of a call go on."""
        for number, index in self._members[call.key]:
            _, local_of = self._map(number, call.key.group, call.given.group)
            who = local_of[positions]
            if len(self._members[call.key]) > 1:
                who = who[who >= 0]
            if len(who):
                program = self._runs[number]
                started = program.program.operations[index]
                if isinstance(started, Start) and started.slows:
                    program.communicates(who, -1)
                program.done(index, who)

    def call_done(
        self, call: Call, record: CollectiveRecord, messages: Sequence[MessageRecord]
    ) -> None:
        """Keep what a finished call has to tell, and free its links."""
        self._records.append(record)
        self._messages += messages
        self._release(call)
        del self._calls[call.key], self._members[call.key]

    # Links ------------------------------------------------------------------------------------

    def claim(self, call: Call) -> bool:
        """Enter a call on its links; return whether others' demands and its own can collide.

        Calls that it can collide with share their links from now on.  A call that waits for a
        dead link collides with its own fault.
        """
        peak_Bps = call.prepared.peak_Bps
        together = self._load_Bps + peak_Bps
        crowded = (together > self.capacity_Bps * FITS) & (peak_Bps > 0)
        conflict = self._waits(call.prepared)
        if crowded.any():
            for other, other_Bps in list(self._claims.items()):
                if (other_Bps[crowded] > 0).any():
                    conflict = True
                    other.share()
        self._claims[call] = peak_Bps
        self._load_Bps = together
        return conflict

    def _release(self, call: Call) -> None:
        claimed = self._claims.pop(call, None)
        if claimed is not None:
            self._load_Bps = self._load_Bps - claimed if self._claims else np.zeros_like(claimed)

    def account(self, connections: Connections, payload: FloatArray) -> None:
        """Count payload bytes per connection on the links of its route."""
        self._link_bytes += wire_bytes(connections, payload, len(self._link_bytes))

    def account_wire(self, wire: FloatArray) -> None:
        """Count wire bytes per link."""
        self._link_bytes += wire

    def route(self, collective: Collective, key: StartKey) -> Prepared:
        """Return *collective* on routes that avoid dead links.

        Where no others are left it keeps those of which every dead link comes back, and waits
        there at rate 0; all its transfers do, also those that could be led around.

        Raises
        ------
        SimulationError
            No other route is left, and what is dead stays so.
        """
        prepared = self.prepared_calls.get(collective)
        if not self._waits(prepared):
            return prepared
        now_s = self.clock.time_s
        lasting = frozenset(x for x in self._dead if self._repaired_s.get(x, -1.0) <= now_s)
        cause = None
        for avoided in dict.fromkeys((self._dead, lasting)):
            try:
                other = self._around(collective, avoided)
            except CollsimError as error:
                cause = error
                continue
            if other is not None and not other.links[list(avoided)].any():
                return self._awaiting(other) if self._waits(other) else other
        raise self._cut(collective, key, lasting) from cause

    def _waits(self, prepared: Prepared) -> bool:
        """Return whether a call crosses a link that is dead now."""
        return bool(self._dead) and bool(prepared.links[list(self._dead)].any())

    def _around(self, collective: Collective, avoided: frozenset[int]) -> Prepared | None:
        """Return *collective* on routes without these links; None: nobody knows any."""
        prepared = self.prepared_calls.get(collective)
        if not prepared.links[list(avoided)].any():
            return prepared
        if self._reroute is None:
            return None
        name = (id(collective), avoided)
        if name not in self._routed:
            routes = self._reroute(collective, avoided)
            self._routed[name] = replace(collective, connections=merged(routes))
        return self.prepared_calls.get(self._routed[name])

    def _awaiting(self, prepared: Prepared) -> Prepared:
        """Return what a call is like that waits for links; only the network holds it at rate 0."""
        name = id(prepared)
        if name not in self._waiting:
            alive_Bps = np.where(self.capacity_Bps > 0, self.capacity_Bps, self.nominal_Bps)
            self._waiting[name] = prepared.with_capacity(alive_Bps)
        return self._waiting[name]

    def _cut(
        self, collective: Collective, key: StartKey, lasting: frozenset[int]
    ) -> SimulationError:
        connections = collective.connections
        owner = np.repeat(np.arange(len(connections.src)), np.diff(connections.indptr))
        on_dead = np.isin(connections.link, list(lasting))
        links = sorted(set(connections.link[on_dead].tolist()))
        lost = np.unique(owner[on_dead])
        group = collective.group

        def end(slot: int) -> str:
            return f"rank {group[slot]}" if slot < len(group) else "its switch"

        pairs = list(
            dict.fromkeys(
                f"{end(int(connections.src[i]))} → {end(int(connections.dst[i]))}" for i in lost
            )
        )
        more = f" and {len(pairs) - 3} more" if len(pairs) > 3 else ""
        names = ", ".join(self.network.link_name(link) for link in links[:4])
        names += f" and {len(links) - 4} more" if len(links) > 4 else ""
        return SimulationError(
            Problem(
                message=(
                    f"{collective.name} (communicator {key.communicator!r}, call {key.index}) on "
                    f"{rank_list(group)} is cut off at t = {self.clock.time_s:.6g} s: no capacity "
                    f"on {names}, and no other route for {', '.join(pairs[:3])}{more}"
                ),
                allowed="a link that works on every route, a fabric with another path, or an end "
                "of the cut, which is waited for",
            )
        )

    def _change(self, batch: Sequence[LinkChange]) -> None:
        """Apply link changes of one instant."""
        touched = [change.link for change in batch]
        active = [
            call
            for call in self._calls.values()
            if call.started and (call.prepared.links[touched].any() or self._waits(call.prepared))
        ]
        for call in active:
            call.share()
        self.capacity_Bps = self.capacity_Bps.copy()
        for change in batch:
            self.capacity_Bps[change.link] = self.nominal_Bps[change.link] * change.factor
        for link in set(touched):
            self.fluid.set_capacity(link, float(self.capacity_Bps[link]))
        self.prepared_calls.change(self.capacity_Bps)
        self._waiting.clear()
        self._dead = frozenset(np.flatnonzero(self.capacity_Bps <= 0).tolist())
        for call in active:
            if call.done:
                continue
            self._release(call)
            now = self.prepared_calls.get(call.collective)
            call.move(self.route(call.given, call.key) if self._waits(now) else now)
            if self.level != "folded":
                self.claim(call)

    # The outcome ------------------------------------------------------------------------------

    def _outcome(self) -> Outcome:
        n_ranks = 1 + max((int(run.ranks.max(initial=-1)) for run in self._runs), default=-1)
        rank_end_s = np.zeros(n_ranks)
        for run in self._runs:
            np.maximum.at(rank_end_s, run.ranks, run.end_s)
        with np.errstate(divide="ignore", invalid="ignore"):
            busy_s = np.where(self._link_bytes > 0, self._link_bytes / self.nominal_Bps, 0.0)
        return Outcome(
            end_s=float(rank_end_s.max(initial=0.0)),
            rank_end_s=rank_end_s,
            collectives=tuple(self._records),
            intervals=tuple(
                sorted(
                    (interval for run in self._runs for interval in run.intervals),
                    key=lambda interval: (interval.start_s, interval.rank, interval.stream),
                )
            ),
            messages=tuple(self._messages),
            link_bytes=self._link_bytes,
            link_busy_s=busy_s,
            n_events=self.clock.n_events,
            warnings=tuple(self.warnings),
        )
