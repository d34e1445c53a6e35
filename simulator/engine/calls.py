"""One call of a collective in a run: how it is simulated, and when its ranks are done."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from simulator.engine.clock import Alarm
from simulator.engine.contention import messages_fit, stages_fit
from simulator.engine.flows import FlowRun
from simulator.engine.folded import FoldedRun
from simulator.engine.intervals import union_lengths
from simulator.engine.jitter import MessageJitter
from simulator.engine.messages import MessageTable, MessageTimes, records, wave_times
from simulator.engine.outcome import CollectiveRecord, MessageRecord
from simulator.engine.prepared import Prepared
from simulator.engine.programs import StartKey
from simulator.engine.routes import payload_of_connections
from simulator.engine.traffic import Collective

if TYPE_CHECKING:
    from simulator.engine.run import Run

__all__ = ["Call"]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

_CHECK_MESSAGES = 2_000_000
"""Calls of more messages are not checked message by message for contention."""
_UNION_MESSAGES = 200_000
"""Up to this many messages, a rank's transfer time is the union over its connections; beyond,
its busiest connection's time, a lower bound."""
_SAME_INSTANT = 1.0 + 1e-12


class Call:
    """A collective call from its first caller to its last rank's end.

    Its mode is ``wave`` as long as nothing else can ask for its links' capacity; ``flows`` from
    the instant at which something might, or from the start; or ``folded``.
    """

    def __init__(self, run: Run, key: StartKey, collective: Collective, seed: int | None) -> None:
        self.key = key
        self.prepared: Prepared = run.prepared_calls.get(collective)
        """The collective on the routes that it takes now."""
        self._given = collective
        self.mode = ""
        self._run = run
        self._n = len(collective.group)
        self.call_s = np.full(self._n, np.inf)
        self.end_s = np.full(self._n, np.nan)
        self._delay_s = np.zeros(self._n)
        self._jitter: MessageJitter | None = None
        if seed is not None:
            assert run.jitter is not None
            self._jitter = MessageJitter(run.jitter, seed)
            self._delay_s = run.jitter.skew_s * np.random.default_rng(seed + 1).random(self._n)
        self._pick: IntArray | None = None
        self._fresh: list[IntArray] = []
        self._alarms: list[Alarm] = []
        self._released = np.zeros(self._n, dtype=bool)
        self._flows: FlowRun | None = None
        self._folded: FoldedRun | None = None
        self._table: MessageTable | None = None
        self._transfer_s = np.zeros(self._n)
        self._stage_end_s: tuple[tuple[str, float], ...] = ()
        self._times: MessageTimes | None = None
        self._wave_done = False

    @property
    def given(self) -> Collective:
        """The collective as the program gave it."""
        return self._given

    @property
    def collective(self) -> Collective:
        """The collective, on the routes that it takes now."""
        return self.prepared.collective

    @property
    def done(self) -> bool:
        """True when all ranks are done."""
        return not np.isnan(self.end_s).any()

    @property
    def started(self) -> bool:
        """True from the decision of the first instant on."""
        return self.mode != ""

    def call(self, positions: IntArray) -> None:
        """Let ranks call now; what follows is decided at the end of the instant."""
        self.call_s[positions] = self._run.clock.time_s
        self._fresh.append(positions)

    def decide(self) -> None:
        """Go on from the calls of this instant."""
        fresh = np.concatenate(self._fresh)
        self._fresh = []
        if self.mode == "":
            self.prepared = self._run.route(self._given, self.key)
            self.mode = self._first_mode(len(fresh) == self._n)
            if self.mode == "flows":
                self._start_flows()
        if self.mode == "flows":
            assert self._flows is not None
            self._flows.call(fresh, self._begin_s()[fresh])
        elif self.mode == "folded":
            self._call_folded()
        else:
            self._call_wave()

    # How to begin -----------------------------------------------------------------------------

    def _first_mode(self, all_called: bool) -> str:
        run = self._run
        if run.level == "folded":
            return "folded"
        conflict = run.claim(self)
        unsure = self.prepared.demand.resolve != "never" and not all_called
        if conflict or unsure:
            return self._contended_mode()
        return "wave"

    def _contended_mode(self) -> str:
        """Return ``flows``, or ``folded`` where that is allowed and messages are too many."""
        return "flows" if self._run.afford(self.prepared) else "folded"

    def _begin_s(self) -> FloatArray:
        """When each rank's first send may leave; inf: it has not called."""
        return self.call_s + self._delay_s + self.collective.launch_s

    def _draws(self) -> MessageJitter | None:
        return None if self._jitter is None else self._jitter.again()

    # Wave -------------------------------------------------------------------------------------

    def _call_wave(self) -> None:
        if np.isfinite(self.call_s).all():
            if not self._run_wave():
                self.mode = self._contended_mode()
                if self.mode == "folded":
                    self._call_folded()
                else:
                    self._start_flows()
                    assert self._flows is not None
                    self._flows.call(np.arange(self._n), self._begin_s())
            return
        if self.prepared.blocks_all(self._missing()):
            return
        ends = self.prepared.plan.run(
            self.call_s + self._delay_s, self.prepared.rate_Bps, jitter=self._draws()
        ).rank_end_s
        self._release(ends)

    def _missing(self) -> int:
        """Return a rank that has not called, in an order unlike that of any program."""
        if self._pick is None:
            self._pick = np.random.default_rng(0).permutation(self._n)
        return int(self._pick[np.isinf(self.call_s[self._pick])][0])

    def _run_wave(self) -> bool:
        """Time the whole call; False if its own messages would share links."""
        prepared, run = self.prepared, self._run
        demand, rate_Bps = prepared.demand, prepared.rate_Bps
        call_s = self.call_s + self._delay_s
        per_message = demand.resolve == "messages"
        if per_message and prepared.n_messages > _CHECK_MESSAGES:
            return False
        many_ways = self._several_connections() and prepared.n_messages <= _UNION_MESSAGES
        spans = demand.resolve == "stages"
        if per_message or run.record or many_ways:
            times, wave = wave_times(prepared.plan, call_s, rate_Bps, self._draws(), spans=spans)
            if per_message and not messages_fit(
                self._message_table(),
                times,
                self.collective.connections,
                demand,
                rate_Bps,
                prepared.capacity_Bps,
            ):
                return False
            self._times = times
        else:
            wave = prepared.plan.run(call_s, rate_Bps, jitter=self._draws(), spans=spans)
        if spans and not stages_fit(self.collective, wave, demand, rate_Bps, prepared.capacity_Bps):
            return False
        if self._times is not None:
            sent = np.flatnonzero(self._times.leave_s > self._times.start_s)
            table = self._message_table()
            self._transfer_s = union_lengths(
                table.src_slot[sent],
                self._times.start_s[sent],
                self._times.leave_s[sent],
                self.collective.n_slots,
            )[: self._n]
        else:
            by_slot = np.zeros(self.collective.n_slots)
            np.maximum.at(by_slot, self.collective.connections.src, wave.busy_s)
            self._transfer_s = by_slot[: self._n]
        self._stage_end_s = wave.stage_end_s
        self._wave_done = True
        self._release(wave.rank_end_s)
        return True

    def _several_connections(self) -> bool:
        """Return whether some rank sends on more than one connection."""
        sending = payload_of_connections(self.collective) > 0
        counts = np.bincount(self.collective.connections.src[sending])
        return bool((counts > 1).any())

    def _release(self, end_s: FloatArray) -> None:
        """Set alarms for ranks whose ends are known."""
        known = np.flatnonzero(np.isfinite(end_s) & ~self._released)
        self._released[known] = True
        order = known[np.argsort(end_s[known], kind="stable")]
        if len(order) == 0:
            return
        ends = end_s[order]
        cuts = np.flatnonzero(ends[1:] > ends[:-1] * _SAME_INSTANT) + 1
        for part in np.split(np.arange(len(order)), cuts):
            who, at_s = order[part], float(ends[part[-1]])
            own = ends[part]
            self._alarms.append(self._run.clock.at(at_s, partial(self._end, who, own)))

    # Flows ------------------------------------------------------------------------------------

    def _message_table(self) -> MessageTable:
        if self._table is None:
            self._table = MessageTable(self.collective, self._draws())
        return self._table

    def _start_flows(self) -> None:
        run = self._run
        self._times = None
        self._flows = FlowRun(
            run.clock,
            run.fluid,
            self._message_table(),
            self.collective.connections,
            self._ended_now,
            run.account,
            record=run.record,
        )

    def share(self) -> None:
        """Leave the wave now: from this instant on other traffic may share the links."""
        if self.mode != "wave" or self.done:
            return
        for alarm in self._alarms:
            alarm.cancel()
        self._alarms = []
        self.mode = self._contended_mode()
        if self.mode == "folded":
            self._fold_midway()
            return
        times, _ = wave_times(
            self.prepared.plan,
            self.call_s + self._delay_s,
            self.prepared.rate_Bps,
            self._draws(),
        )
        self._start_flows()
        assert self._flows is not None
        self._flows.resume(self._begin_s(), times)

    # Folded -----------------------------------------------------------------------------------

    def _start_folded(self) -> FoldedRun:
        run = self._run
        self._times = None
        self._released[:] = False
        self._folded = FoldedRun(
            run.clock,
            run.fluid,
            self.collective,
            self.prepared.phases,
            self._ended_now,
            run.account_wire,
        )
        return self._folded

    def _call_folded(self) -> None:
        """Start the phases once every rank that sends has called."""
        if self._folded is None:
            sends = np.zeros(self._n, dtype=bool)
            for phase in self.prepared.phases:
                sends |= phase.sends
            if not np.isfinite(self.call_s[sends]).all():
                return
            begin_s = self._begin_s()
            last_s = begin_s[sends].max(initial=begin_s.min())
            self._start_folded().begin(float(last_s))
            return
        # A rank that only receives, and came late: what was sent to it is there already.
        late = np.flatnonzero(np.isfinite(self.call_s) & np.isnan(self.end_s) & self._released)
        self._release_late(late)

    def _release_late(self, positions: IntArray) -> None:
        for position in positions.tolist():
            at_s = float(self._begin_s()[position])
            who = np.array([position])
            self._run.clock.at(at_s, partial(self._end, who, None))
        self._released[positions] = False

    def _fold_midway(self) -> None:
        """Go on folded from where the wave stands: whole stages, and a share of the running one."""
        now = self._run.clock.time_s
        folded = self._start_folded()
        begin_s = self._begin_s()
        if not self._wave_done:
            last_s = begin_s.max()
            if np.isfinite(last_s):
                folded.begin(max(float(last_s), now))
            else:
                self._folded = None  # begins when its last sender calls
            return
        before_s = float(begin_s.min())
        for index, phase in enumerate(self.prepared.phases):
            end_s = self._stage_end_s[phase.stages[-1]][1]
            if end_s > now:
                share = max(now - before_s, 0.0) / (end_s - before_s)
                # What is behind has crossed its links already.
                for past in self.prepared.phases[:index]:
                    self._run.account_wire(past.wire_bytes)
                self._run.account_wire(phase.wire_bytes * share)
                folded.begin(now, phase=index, done=share)
                return
            before_s = end_s
        folded.begin(now, phase=len(self.prepared.phases))
        self._ended_now(np.arange(self._n), now)

    # Changes of the network -------------------------------------------------------------------

    def move(self, prepared: Prepared) -> None:
        """Go on over other routes, or links of other capacities."""
        moved = prepared.collective.connections is not self.collective.connections
        self.prepared = prepared
        if self._flows is not None and moved:
            self._flows.reroute(prepared.collective.connections)
        elif self._folded is not None:
            self._folded.refresh(prepared.collective, prepared.phases)

    # Ends -------------------------------------------------------------------------------------

    def _ended_now(self, positions: IntArray, time_s: float) -> None:
        positions = positions[np.isnan(self.end_s[positions])]
        late = ~(self._begin_s()[positions] <= time_s)
        if late.any():
            # Its part is over before it called: it is done as soon as it comes.
            self._released[positions[late]] = True
            self._release_late(positions[late & np.isfinite(self.call_s[positions])])
            positions = positions[~late]
        if len(positions):
            self._end(positions, None)

    def _end(self, positions: IntArray, end_s: FloatArray | None) -> None:
        self.end_s[positions] = self._run.clock.time_s if end_s is None else end_s
        self._run.call_ended(self, positions)
        if self.done:
            self._close()

    def _close(self) -> None:
        run = self._run
        if self._flows is not None:
            self._transfer_s = self._flows.transfer_s
            self._times = self._flows.times
            self._stage_end_s = self._named(self._flows.stage_end_s)
        elif self._folded is not None:
            self._transfer_s = self._folded.transfer_s
            self._stage_end_s = self._named(self._folded.stage_end_s)
        else:
            run.account_wire(self.prepared.wire)
        messages: list[MessageRecord] = []
        if run.record and self._times is not None:
            messages = records(
                self._message_table(), self._times, self.key.communicator, self.key.index
            )
        # What still travels to a switch is nobody's end.
        last_s = float(self.end_s.max())
        record = CollectiveRecord(
            name=self.collective.name,
            communicator=self.key.communicator,
            index=self.key.index,
            group=self.collective.group,
            level="folded" if self.mode == "folded" else "steps",
            call_s=_compact(self.call_s),
            end_s=_compact(self.end_s),
            transfer_s=_compact(np.minimum(self._transfer_s, self.end_s - self.call_s)),
            stage_end_s=tuple((name, min(at_s, last_s)) for name, at_s in self._stage_end_s),
            collective=self._given,
        )
        self._table, self._times = None, None
        run.call_done(self, record, messages)

    def _named(self, ends: FloatArray) -> tuple[tuple[str, float], ...]:
        # A stage without messages ends when it may begin.
        begin_s = float(self._begin_s().min())
        return tuple(
            (stage.name, max(float(end), begin_s))
            for stage, end in zip(self.collective.stages, ends, strict=True)
        )


def _compact(values: FloatArray) -> FloatArray:
    """Return *values*, as one number seen many times where all are alike.

    A training step has tens of thousands of calls; their records would fill the memory.
    """
    if len(values) and (values == values[0]).all():
        return np.broadcast_to(values[0].copy(), values.shape)
    return values
