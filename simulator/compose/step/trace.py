"""The timeline of a step as trace events: rows and names as a profiler of PyTorch shows them."""

from __future__ import annotations

from dataclasses import replace

from simulator.compose.cluster import Cluster
from simulator.compose.step.simulate import SimulatedStep
from simulator.results.model import TraceEvent

__all__ = ["step_events"]

MOST_EVENTS = 400_000
"""A trace with more intervals would not open in a viewer."""


def step_events(cluster: Cluster, simulated: SimulatedStep) -> tuple[TraceEvent, ...]:
    """Return what the streams of one rank of each class did; empty where it would be too much.

    Computes that the engine took as one are shown as the tasks that they consist of; tensor- and
    context-parallel calls among them are on the compute stream, as they hold it up.
    """
    timeline = simulated.timeline
    node = cluster.fabric.node_of_gpu
    rank_of = {
        rank: int(timeline.classes.representative[unit])
        for rank, unit in timeline.unit_of_rank.items()
    }
    events: list[TraceEvent] = []
    for item in timeline.outcome.intervals:
        if item.end_s <= item.start_s:
            continue
        rank = rank_of[item.rank]
        whole = TraceEvent(
            rank=rank,
            node=int(node[rank]),
            stream=item.stream,
            name=item.name,
            kind="collective" if item.kind == "collective" else "wait",
            start_s=item.start_s,
            end_s=item.end_s,
        )
        if item.kind != "compute":
            events.append(whole)
            continue
        parts = timeline.parts[item.name]
        total = sum(part.duration_s for part in parts)
        stretch = (item.end_s - item.start_s) / total if total > 0 else 0.0
        at = item.start_s
        for part in parts:
            end = min(item.end_s, at + part.duration_s * stretch)
            events.append(
                replace(
                    whole,
                    name=part.name,
                    kind="collective" if part.is_call else "compute",
                    start_s=at,
                    end_s=end,
                    args={"purpose": part.purpose},
                )
            )
            at = end
        if len(events) > MOST_EVENTS:
            return ()
    return tuple(events)
