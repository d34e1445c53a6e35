"""Stages of which each edge's first and last step are known: their steps need not be generated."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from simulator.engine.traffic import Collective, Messages, StageTraffic
from simulator.engine.wave import StagePlan, StageTimer, WaveState

__all__ = ["Part", "by_first_step", "channels_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Edges of a stage that no other edge of it waits for or is waited for by."""

    plan: StagePlan
    edges: slice
    """In the stage."""
    lanes: slice
    """Of the (channel, slot) of the stage; the plan counts them from 0."""

    @classmethod
    def whole(cls, plan: StagePlan) -> Part:
        """Return all of a stage."""
        return cls(plan=plan, edges=slice(len(plan.all_edges)), lanes=slice(plan.n_lanes))

    def timer(self, state: WaveState, edge_Bps: NDArray[np.float64], *, quick: bool) -> StageTimer:
        """Return a timer on the part's share of the stage's state and of its edges' rates."""
        return StageTimer(
            index=0,
            plan=self.plan,
            state=WaveState(begin_s=state.begin_s[self.lanes], free_s=state.free_s),
            rate_Bps=edge_Bps[self.edges],
            quick=quick,
        )


def channels_of(plan: StagePlan, collective: Collective) -> list[Part]:
    """Return the channels of a pipeline in the order of `by_first_step`.

    Where no connection carries several channels, these meet on links only.
    """
    stage, n_slots = plan.stage, collective.n_slots
    assert stage.first_step is not None
    borders = np.searchsorted(stage.channel, np.arange(int(stage.channel[-1]) + 2)).tolist()
    parts = []
    for channel, (low, high) in enumerate(pairwise(borders)):
        if low == high:
            continue
        here = slice(low, high)
        own = replace(
            stage,
            connection=stage.connection[here],
            channel=np.zeros(high - low, dtype=np.int64),
            edge_bytes=stage.edge_bytes[here],
            edge_messages=stage.edge_messages[here],
            first_step=stage.first_step[here],
        )
        parts.append(
            Part(
                plan=StagePlan(_with_windows(own), collective),
                edges=here,
                lanes=slice(channel * n_slots, (channel + 1) * n_slots),
            )
        )
    return parts


def by_first_step(stage: StageTraffic) -> StageTraffic:
    """Return a pipeline with its edges by channel and, in each, as they begin to send."""
    if stage.first_step is None or not (stage.edge_messages > 0).all():
        return stage
    order = np.argsort(stage.channel * stage.n_steps + stage.first_step, kind="stable")
    return _with_windows(
        replace(
            stage,
            connection=stage.connection[order],
            channel=stage.channel[order],
            edge_bytes=stage.edge_bytes[order],
            edge_messages=stage.edge_messages[order],
            first_step=stage.first_step[order],
        )
    )


def _with_windows(stage: StageTraffic) -> StageTraffic:
    """Return a stage that knows its messages from the edges' first steps."""
    assert stage.first_step is not None
    first, behind = stage.first_step, stage.first_step + stage.edge_messages
    size_bytes = stage.edge_bytes / stage.edge_messages
    alike = bool((size_bytes == size_bytes[0]).all())
    every = Messages(edge=None, size_bytes=float(size_bytes[0]) if alike else size_bytes)
    all_from, all_before = int(first.max()), int(behind.min())
    ordered = bool((first[1:] >= first[:-1]).all() and (behind[1:] >= behind[:-1]).all())
    edges = np.arange(len(first), dtype=np.int64)

    def messages(step: int) -> Messages:
        if all_from <= step < all_before:
            return every
        if ordered:
            low, high = (
                np.searchsorted(behind, step, "right"),
                np.searchsorted(first, step, "right"),
            )
            edge = edges[low:high]
        else:
            edge = np.flatnonzero((first <= step) & (step < behind))
        return Messages(edge=edge, size_bytes=every.size_bytes if alike else size_bytes[edge])

    return replace(stage, messages=messages)
