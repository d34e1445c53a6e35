"""The timeline of a step as trace events: rows and names as a profiler of PyTorch shows them."""

from __future__ import annotations

from dataclasses import replace

from simulator.compose.cluster import Cluster
from simulator.compose.step.account import CallSpan, call_spans
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
    representative = timeline.classes.representative.tolist()
    events: list[TraceEvent] = []
    for unit, spans in enumerate(call_spans(timeline)):
        rank = representative[unit]
        for span in spans:
            kernel = timeline.kernels.get(span.name, span.name)
            events += _call(span, kernel, rank, int(node[rank]))
    for item in timeline.outcome.intervals:
        if item.end_s <= item.start_s or item.kind == "collective":
            continue
        rank = representative[timeline.unit_of_rank[item.rank]]
        whole = TraceEvent(
            rank=rank,
            node=int(node[rank]),
            stream=item.stream,
            name=item.name,
            kind="wait",
            start_s=item.start_s,
            end_s=item.end_s,
        )
        if item.kind != "compute":
            if item.stream == "compute":
                events.append(whole)
            continue
        parts = timeline.parts[item.name]
        total = sum(part.duration_s for part in parts)
        stretch = (item.end_s - item.start_s) / total if total > 0 else 0.0
        at = item.start_s
        for part in parts:
            end = min(item.end_s, at + part.duration_s * stretch)
            if part.hidden_s > 0:
                start = max(item.start_s, at - part.hidden_s)
                events.append(
                    replace(
                        whole,
                        name=timeline.kernels.get(part.name, part.name),
                        kind="collective",
                        stream=part.purpose,
                        start_s=start,
                        end_s=end,
                        args={"purpose": part.purpose, "call": part.name},
                    )
                )
            if part.hidden_s > 0 or end <= at:
                at = end
                continue
            if part.waits_for is not None:
                waits = f"{part.name}: waits for peers"
                events.append(replace(whole, name=waits, start_s=at, end_s=end))
                at = end
                continue
            events.append(
                replace(
                    whole,
                    name=timeline.kernels.get(part.name, part.name) if part.is_call else part.name,
                    kind="collective" if part.is_call else "compute",
                    start_s=at,
                    end_s=end,
                    args={"purpose": part.purpose, "call": part.name},
                )
            )
            at = end
        if len(events) > MOST_EVENTS:
            return ()
    return tuple(events)


def _call(span: CallSpan, kernel: str, rank: int, node: int) -> list[TraceEvent]:
    """Return the time in which a call waits for its last member, and that in which data move.

    A receive is posted early and waits for the sender's compute: that is no event of its own.
    """
    moving = TraceEvent(
        rank=rank,
        node=node,
        stream=span.stream,
        name=kernel,
        kind="collective",
        start_s=span.begin_s,
        end_s=span.end_s,
        args={"purpose": span.traffic, "call": span.name},
    )
    found = [moving] if span.end_s > span.begin_s else []
    if span.traffic != "pipeline" and span.begin_s > span.call_s:
        found.insert(
            0,
            replace(
                moving,
                name=f"{span.name}: waits for peers",
                kind="wait",
                start_s=span.call_s,
                end_s=span.begin_s,
            ),
        )
    return found
