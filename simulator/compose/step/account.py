"""Where the time of a step goes: busy, exposed, waiting, hidden; and its critical path."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from simulator.compose.report import union_s
from simulator.compose.step.timeline import Part, Timeline
from simulator.engine.outcome import Interval

__all__ = ["Account", "CallSpan", "Segment", "accounts", "call_spans", "critical_path", "latecomer"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CallSpan:
    """A call as one class of ranks lives it."""

    name: str
    traffic: str
    stream: str
    call_s: float
    begin_s: float
    """When the last member (of a transfer: the sender) has called."""
    end_s: float
    last: int
    """Class that called last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """The step of one class of ranks, seconds; the parts of `busy` and `lost` sum to the step."""

    unit: int
    begin_s: float
    """When its first work begins."""
    busy_s: dict[str, float]
    """By purpose of the computes."""
    exposed_s: dict[str, float]
    """By traffic: its compute stream stands while data move."""
    waiting_s: dict[str, float]
    """By traffic: its compute stream stands because a peer has not called yet; ``pipeline`` where
    that peer is of another stage."""
    idle_s: float
    """Neither: it has not begun, is done, or waits for another stream's computes."""
    traffic_s: dict[str, float]
    """By traffic: time with data moving, hidden or not."""


Spans = Sequence[Sequence[CallSpan]]
"""Calls of each class, by time of call."""


def call_spans(timeline: Timeline) -> list[list[CallSpan]]:
    """Return the calls of each class, by time of call."""
    position = _positions(timeline)
    records: dict[tuple[int, str], list[tuple[float, float, int, str]]] = defaultdict(list)
    for record in timeline.outcome.collectives:
        traffic = record.communicator.split("|")[0]
        last = 0 if traffic == "pipeline" else int(np.argmax(record.call_s))
        begin = float(record.call_s[last])
        group = [position[int(member)] for member in record.group]
        for place, unit in enumerate(group):
            end = float(record.end_s[place])
            records[unit, record.name].append((end, begin, group[last], traffic))
    spans: list[list[CallSpan]] = [[] for _ in range(timeline.classes.n_classes)]
    lived: dict[tuple[int, str], list[Interval]] = defaultdict(list)
    for item in timeline.outcome.intervals:
        if item.kind == "collective":
            lived[position[item.rank], item.name].append(item)
    for key, items in lived.items():
        unit = key[0]
        items.sort(key=lambda item: item.end_s)
        for item, (_, begin, last, traffic) in zip(items, sorted(records[key]), strict=True):
            spans[unit].append(
                CallSpan(
                    name=item.name,
                    traffic=traffic,
                    stream=item.stream,
                    call_s=item.start_s,
                    begin_s=min(max(begin, item.start_s), item.end_s),
                    end_s=item.end_s,
                    last=last,
                )
            )
    for own in spans:
        own.sort(key=lambda span: (span.call_s, span.end_s))
    return spans


def _positions(timeline: Timeline) -> dict[int, int]:
    """Return the class by the engine's rank: folded programs run on classes themselves."""
    found = timeline.unit_of_rank
    return {int(rank): unit for rank, unit in found.items()}


def accounts(timeline: Timeline, stage: Sequence[int], spans: Spans | None = None) -> list[Account]:
    """Return the account of every class.

    Parameters
    ----------
    timeline
        What the engine did.
    stage
        Pipeline stage of each class.
    spans
        Of `call_spans`, where they are known already.
    """
    spans = call_spans(timeline) if spans is None else spans
    position = _positions(timeline)
    intervals: list[list[Interval]] = [[] for _ in spans]
    for item in timeline.outcome.intervals:
        if item.stream == "compute":
            intervals[position[item.rank]].append(item)
    return [
        _account(unit, intervals[unit], spans[unit], timeline, stage) for unit in range(len(spans))
    ]


def _account(
    unit: int,
    intervals: Sequence[Interval],
    spans: Sequence[CallSpan],
    timeline: Timeline,
    stage: Sequence[int],
) -> Account:
    busy: dict[str, float] = defaultdict(float)
    exposed: dict[str, float] = defaultdict(float)
    waiting: dict[str, float] = defaultdict(float)
    traffic: dict[str, float] = defaultdict(float)
    streams: dict[str, list[CallSpan]] = defaultdict(list)
    for span in sorted(spans, key=lambda span: span.end_s):
        streams[span.stream].append(span)
    ends = {stream: [span.end_s for span in own] for stream, own in streams.items()}
    for item in intervals:
        if item.kind == "compute":
            for part, length in _shares(timeline.parts[item.name], item.end_s - item.start_s):
                if part.waits_for is not None:
                    waiting[part.purpose] += length
                elif part.is_call:
                    exposed[part.purpose] += length
                    traffic[part.purpose] += length + part.hidden_s
                else:
                    busy[part.purpose] += length
            continue
        # A wait, or a call on the compute stream: what ends in it there is what held it up.
        stream = "compute" if item.kind == "collective" else item.name.removeprefix("wait for ")
        first = bisect_left(ends.get(stream, []), item.start_s)
        reached = item.start_s
        for span in streams[stream][first:]:
            if span.call_s >= item.end_s or span.end_s > item.end_s + 1e-12:
                break
            if span.end_s <= reached:
                continue
            middle = min(max(span.begin_s, reached), span.end_s)
            other_stage = stage[span.last] != stage[unit]
            waiting["pipeline" if other_stage else span.traffic] += middle - reached
            exposed[span.traffic] += span.end_s - middle
            reached = span.end_s
    for span in spans:
        traffic[span.traffic] += span.end_s - span.begin_s
    told = sum(busy.values()) + sum(exposed.values()) + sum(waiting.values())
    return Account(
        unit=unit,
        begin_s=min((item.start_s for item in intervals), default=0.0),
        busy_s=dict(busy),
        exposed_s={key: value for key, value in exposed.items() if value > 0.0},
        waiting_s={key: value for key, value in waiting.items() if value > 0.0},
        # Less than rounding leaves of a sum is none.
        idle_s=rest if (rest := timeline.outcome.end_s - told) > 1e-9 * told else 0.0,
        traffic_s=dict(traffic),
    )


def _shares(parts: Sequence[Part], length_s: float) -> list[tuple[Part, float]]:
    """Return the parts of a compute with their shares of the time it really took."""
    total = sum(part.duration_s for part in parts)
    stretch = length_s / total if total > 0 else 0.0
    return [(part, part.duration_s * stretch) for part in parts]


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A piece of the critical path."""

    unit: int
    what: str
    """Purpose of a compute, or traffic of a call."""
    name: str
    start_s: float
    end_s: float


def critical_path(timeline: Timeline, spans: Spans | None = None) -> list[Segment]:
    """Return the chain of computes and transfers that ends last, in order of time.

    Backwards from the end: a compute came after what its stream did before; a wait ended with the
    call it waited for, which began when its last member called, and is followed there.
    """
    spans = call_spans(timeline) if spans is None else spans
    by_end = [sorted(own, key=lambda span: span.end_s) for own in spans]
    ends = [[span.end_s for span in own] for own in by_end]
    position = _positions(timeline)
    computes: list[list[Interval]] = [[] for _ in spans]
    for item in timeline.outcome.intervals:
        if item.kind == "compute":
            computes[position[item.rank]].append(item)
    for own in computes:
        own.sort(key=lambda item: item.end_s)
    done = [[item.end_s for item in own] for own in computes]

    unit = int(np.argmax([max([*a, *b], default=0.0) for a, b in zip(ends, done, strict=True)]))
    now = max([*ends[unit], *done[unit]], default=0.0)
    path: list[Segment] = []
    tiny = 1e-9 * max(now, 1e-9)
    while now > tiny:
        compute = _last_until(computes[unit], done[unit], now, tiny)
        call = _last_until(by_end[unit], ends[unit], now, tiny)
        if isinstance(compute, Interval) and (call is None or compute.end_s >= call.end_s - tiny):
            unit, compute = _held_up(timeline, computes, unit, compute, tiny)
            for part, length in reversed(
                _shares(timeline.parts[compute.name], compute.end_s - compute.start_s)
            ):
                end = path[-1].start_s if path and path[-1].start_s <= compute.end_s else now
                end = min(end, compute.end_s)
                path.append(
                    Segment(
                        unit=unit,
                        what=part.purpose,
                        name=part.name,
                        start_s=max(end - length, compute.start_s),
                        end_s=end,
                    )
                )
            now = compute.start_s
        elif isinstance(call, CallSpan):
            path.append(
                Segment(
                    unit=unit,
                    what=call.traffic,
                    name=call.name,
                    start_s=call.begin_s,
                    end_s=call.end_s,
                )
            )
            # What held up its begin: the last to call.
            unit = call.last
            now = call.begin_s if call.begin_s < call.end_s else call.begin_s - tiny
        else:
            break
        if len(path) > 1_000_000:
            break
    return path[::-1]


def _held_up(
    timeline: Timeline,
    computes: Sequence[Sequence[Interval]],
    unit: int,
    item: Interval,
    tiny: float,
) -> tuple[int, Interval]:
    """Return who held up a compute that waits for others in lockstep, and what that one did."""
    for part in reversed(timeline.parts[item.name]):
        if part.waits_for is None:
            continue
        for other in computes[part.waits_for]:
            if abs(other.start_s - item.start_s) <= tiny and other.end_s > other.start_s:
                return part.waits_for, other
    return unit, item


def _last_until(
    items: Sequence[Interval] | Sequence[CallSpan], ends: Sequence[float], now: float, tiny: float
) -> Interval | CallSpan | None:
    """Return the longest-lasting item among those that end last, at `now` or before."""
    place = bisect_left(ends, now + tiny) - 1
    while place >= 0:
        item = items[place]
        start = item.start_s if isinstance(item, Interval) else item.begin_s
        if item.end_s > start:
            return item
        place -= 1
    return None


def latecomer(
    timeline: Timeline, found: Sequence[Account], stage: Sequence[int]
) -> tuple[int, float] | None:
    """Return (class, longest wait of another) of the straggler; None where nobody holds others up.

    Who arrives last at calls makes the others of its pipeline stage wait (that stages wait for
    each other is the schedule's doing); ranks that wait for a straggler in one group
    arrive late in their other groups, too.  So of those who arrive last the one that begins later
    and computes longer than the others of its stage is the cause, and where none does, the one
    that itself waits least: its links are slow.
    """
    held_up: dict[int, dict[int, list[tuple[float, float]]]] = defaultdict(
        lambda: defaultdict(list)
    )
    position = _positions(timeline)
    for record in timeline.outcome.collectives:
        traffic = record.communicator.split("|")[0]
        if traffic == "pipeline" or len(record.group) < 2:
            continue
        last = int(np.argmax(record.call_s))
        suspect = position[int(record.group[last])]
        for place, member in enumerate(record.group.tolist()):
            victim = position[member]
            if stage[victim] == stage[suspect] and record.call_s[place] < record.call_s[last]:
                span = (float(record.call_s[place]), float(record.call_s[last]))
                held_up[suspect][victim].append(span)
    for item in timeline.outcome.intervals:
        parts = timeline.parts.get(item.name, ()) if item.kind == "compute" else ()
        if not any(part.waits_for is not None for part in parts):
            continue
        at = item.start_s
        for part, length in _shares(parts, item.end_s - item.start_s):
            if part.waits_for is not None:
                held_up[part.waits_for][position[item.rank]].append((at, at + length))
            at += length
    # What computes hide until the last one arrives is no waiting: the accounts know how much is.
    waited = [sum(s for kind, s in a.waiting_s.items() if kind != "pipeline") for a in found]
    blamed = {
        unit: max(
            (min(union_s(spans), waited[victim]) for victim, spans in own.items()), default=0.0
        )
        for unit, own in held_up.items()
    }
    worst = max(blamed.values(), default=0.0)
    if worst < 0.01 * timeline.outcome.end_s:
        return None
    suspects = [unit for unit, total in blamed.items() if total > 0.2 * worst]
    own = {
        unit: account.begin_s + sum(account.busy_s.values()) for unit, account in enumerate(found)
    }
    least = {which: min(own[u] for u in own if stage[u] == which) for which in set(stage)}
    excess = {suspect: own[suspect] - least[stage[suspect]] for suspect in suspects}
    unit = max(suspects, key=lambda suspect: excess[suspect])
    if excess[unit] < 0.1 * worst:
        unit = min(suspects, key=lambda suspect: sum(found[suspect].waiting_s.values()))
    return unit, blamed[unit]
