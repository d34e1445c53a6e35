"""The `folded` level: one fluid entity per stage of a collective, with its time as a whole.

Not modelled: stages of one call that overlap (each begins when all ranks have ended the one
before), and ranks that run ahead of a late one (a call begins when its last sender has called;
in a ring that is exact to within the pipeline's fill).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from simulator.engine.clock import Clock
from simulator.engine.group import FlowGroup
from simulator.engine.network import FluidNetwork
from simulator.engine.phases import Phase
from simulator.engine.traffic import Collective

__all__ = ["FoldedRun"]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


class FoldedRun:
    """One collective call, phase by phase.

    Parameters
    ----------
    clock, network
        Of the run.
    collective
        With the routes that it takes now.
    on_end
        Called with (ranks' positions, time in s) when ranks are done.
    account
        Called with the wire bytes of each link for what has crossed them.
    """

    def __init__(
        self,
        clock: Clock,
        network: FluidNetwork,
        collective: Collective,
        phases: list[Phase],
        on_end: Callable[[IntArray, float], None],
        account: Callable[[FloatArray], None],
    ) -> None:
        self._clock = clock
        self._network = network
        self._collective = collective
        self._phases = phases
        self._on_end = on_end
        self._account = account
        self._index = 0
        self._began_s = 0.0
        # Shares of the running phase: left out at its begin, behind now, next to report,
        # and accounted to routes that are no longer taken.
        self._skipped = 0.0
        self._done = 0.0
        self._mark = 1.0
        self._credited = 0.0
        self._group: FlowGroup | None = None
        n_ranks = len(collective.group)
        self.transfer_s = np.zeros(n_ranks)
        self.stage_end_s = np.full(len(collective.stages), -np.inf)
        # A rank is done with the last phase in which it takes part.
        self._last_phase = np.full(n_ranks, -1)
        for index, phase in enumerate(phases):
            self._last_phase[phase.sends | phase.receives] = index

    def begin(self, begin_s: float, *, phase: int = 0, done: float = 0.0) -> None:
        """Start at *begin_s*, with *done* (share) of phase *phase* behind already."""
        self._index = phase
        self._skipped = done
        self._clock.at(begin_s, self._first)

    def _first(self) -> None:
        if self._index == 0 and self._skipped == 0:
            self._finish(np.flatnonzero(self._last_phase < 0))
        self._next()

    def _finish(self, positions: IntArray) -> None:
        if len(positions):
            self._on_end(positions, self._clock.time_s)

    def _next(self) -> None:
        if self._index == len(self._phases):
            return
        phase = self._phases[self._index]
        self._began_s = self._clock.time_s
        self._credited = self._done = self._skipped
        if phase.alone_s == 0:
            self._mark = 1.0
            self.left(np.zeros(1, dtype=np.int64), self._clock.time_s)
            return
        self._group = self._network.open(phase.route, self, phase)
        self._go_on(phase)

    def _go_on(self, phase: Phase) -> None:
        """Put the phase on the wire up to the next share at which ranks are done with it."""
        assert self._group is not None
        mine = phase.end_share[self._last_phase == self._index]
        self._mark = float(mine[mine > self._done].min(initial=1.0))
        zero = np.zeros(1, dtype=np.int64)
        self._group.add(zero, np.array([self._mark - self._done]), zero)

    def left(self, keys: IntArray, time_s: float) -> None:
        """Take note that the phase has come to its mark (called by the network)."""
        phase = self._phases[self._index]
        before, self._done = self._done, self._mark
        if self._done < 1.0:
            share = phase.end_share
            early = (share > before) & (share <= self._done) & (self._last_phase == self._index)
            self._go_on(phase)
            self._finish(np.flatnonzero(early))
            return
        if self._group is not None:
            self._network.shut(self._group)
            self._group = None
        self._account(phase.wire_bytes * (1.0 - self._credited))
        lasted_s, alone_s = time_s - self._began_s, phase.alone_s * (1.0 - self._skipped)
        stretch = lasted_s / alone_s if alone_s > 0 else 1.0
        self.transfer_s += phase.transfer_s * (1.0 - self._skipped) * stretch
        self._skipped = 0.0
        if phase.tail_s > 0:
            # Who only sends is done when its last byte has left.
            mine = self._last_phase == self._index
            self._finish(np.flatnonzero(mine & ~phase.receives))
            self._clock.at(time_s + phase.tail_s, self._landed)
        else:
            self._landed()

    def _landed(self) -> None:
        phase = self._phases[self._index]
        self.stage_end_s[list(phase.stages)] = self._clock.time_s
        if len(phase.stages) > 1:
            whole_s = self._clock.time_s - self._began_s
            self.stage_end_s[list(phase.stages)] = self._began_s + whole_s * phase.stage_shares()
        mine = (self._last_phase == self._index) & (phase.end_share >= 1.0)
        if phase.tail_s > 0:
            mine &= phase.receives
        self._index += 1
        self._next()
        self._finish(np.flatnonzero(mine))

    def refresh(self, collective: Collective, phases: list[Phase]) -> None:
        """Continue on other routes or capacities."""
        before = self._collective
        self._collective = collective
        if self._group is not None:
            behind = self._mark - float(self._group.progress()[1][0])
            if before.connections is not collective.connections:
                crossed = behind - self._credited
                self._account(self._phases[self._index].wire_bytes * crossed)
                self._credited = behind
            self._network.shut(self._group)
            self._done = behind
            self._group = self._network.open(phases[self._index].route, self, phases[self._index])
            self._go_on(phases[self._index])
        self._phases = phases
