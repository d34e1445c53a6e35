"""Pairwise exchanges of very many ranks: steps that follow each other, timed from some of them.

Their links' loads are summed like those of any exchange (`simulator.compose.bulk`), but a rank
starts a step when the one before has left it and reached it, so that each costs a latency.  The
steps are alike but for where they lead, so some runs of them, spread evenly, stand for all.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from simulator.engine.phases import phases_of
from simulator.engine.step_model import MOST_SOLVES
from simulator.engine.traffic import Collective, Messages

__all__ = ["RUN_STEPS", "in_turns", "runs_of"]

FloatArray = NDArray[np.float64]

RUN_STEPS = 8
_RUNS = 16
"""Runs of so many steps that are timed: on 512 to 1,000 ranks within 4 % of all steps."""
_MESSAGES = 1 << 20
"""Messages of the sample at most, but for two runs: some hundred MiB."""


def runs_of(n_ranks: int) -> int:
    """Return how many runs of steps are timed."""
    return min(_RUNS, max(2, _MESSAGES // (RUN_STEPS * n_ranks)))


def in_turns(summed: Collective, sample: Collective, capacity_Bps: FloatArray) -> Collective:
    """Return a summed exchange whose ranks send their messages one after the other.

    Parameters
    ----------
    summed
        All messages of a rank as one, and the load of each link.
    sample
        The same call with some of its steps, a stage each.
    capacity_Bps
        Of the links, shape (links,).
    """
    n = len(summed.group)
    # As many of them are solved exactly as if all steps were timed.
    solves = MOST_SOLVES * len(sample.stages) // (n - 1)
    phase = phases_of(sample, capacity_Bps, most_solves=solves)[0]
    step_s = (phase.alone_s + phase.tail_s) / len(sample.stages)
    with np.errstate(divide="ignore", invalid="ignore"):
        each_s = np.where(phase.payload_bytes > 0, phase.payload_bytes / phase.rate_Bps, 0.0)
    longest_s = [each_s[stage.connection].max(initial=0.0) for stage in sample.stages]
    on_wire_s = min(float(np.mean(longest_s)), step_s)
    stage = summed.stages[0]
    sent_bytes = float(stage.edge_bytes[0])
    message = Messages(edge=None, size_bytes=sent_bytes / (n - 1))
    rate_Bps = sent_bytes / (n - 1) / on_wire_s if on_wire_s > 0 else np.inf
    return replace(
        summed,
        connections=replace(
            summed.connections,
            latency_s=np.full(n, step_s - on_wire_s),
            wire_s=min(float(np.mean(sample.connections.wire_s)), step_s - on_wire_s),
            max_rate_Bps=np.full(n, rate_Bps),
        ),
        stages=(
            replace(
                stage,
                n_steps=n - 1,
                messages=lambda _step: message,
                edge_messages=np.full(n, n - 1, dtype=np.int64),
            ),
        ),
    )
