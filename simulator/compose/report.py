"""From the engine's arrays to the records of the results room."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from simulator.base.units import format_time
from simulator.compose.cluster import Cluster
from simulator.compose.programs import Planned
from simulator.engine.outcome import Interval, MessageRecord, Outcome
from simulator.engine.traffic import Collective, LinkChange
from simulator.fabric.model import LINK_KINDS, VERTEX_KINDS
from simulator.results.model import (
    Device,
    LinkEvent,
    LinkLoad,
    RankTimes,
    StepSummary,
    TraceEvent,
    TraceKind,
    Vertex,
)
from simulator.results.trace import kernel_name

__all__ = [
    "devices",
    "link_busy_s",
    "link_events",
    "link_loads",
    "payload_shares",
    "rank_events",
    "rank_times",
    "step_summary",
    "type_name",
    "union_s",
    "vertices",
]

MOST_VERTICES = 20_000
"""Larger fabrics are not listed vertex by vertex: no picture of them could be read."""
MOST_LINKS = 2_000
"""Of larger fabrics only the busiest links are listed."""
MOST_DEVICES = 8_192
"""Of larger clusters no GPU is listed: nobody reads a head of so many lines."""
MOST_LINK_EVENTS = 200_000
"""A trace with more link intervals than this would not open in a viewer."""


def link_loads(
    cluster: Cluster,
    outcome: Outcome,
    *,
    changes: Sequence[LinkChange] = (),
    payload_share: NDArray[np.float64] | None = None,
) -> tuple[LinkLoad, ...]:
    """Return the loads of links that carried anything or had a fault, at most `MOST_LINKS`.

    Links with a fault come first, then the busiest.

    Parameters
    ----------
    cluster, outcome
        Where, and what a run tells.
    changes
        Faults of links, in the order of time.
    payload_share
        Data per byte on the wire of each link, shape (links,); None: all of them.
    """
    fabric = cluster.fabric
    mean, faults = _mean_capacity(fabric.capacity_Bps, changes, outcome.end_s)
    faulty = np.zeros(len(mean), dtype=bool)
    faulty[list(faults)] = True
    used = np.flatnonzero((outcome.link_bytes > 0) | faulty)
    moved = outcome.link_bytes[used]
    span = mean[used] * outcome.end_s
    share = np.divide(moved, span, out=np.zeros(len(used)), where=span > 0)
    order = np.lexsort((-share, ~faulty[used]))[:MOST_LINKS]
    listed = used[order]
    data = outcome.link_bytes[listed] * (1.0 if payload_share is None else payload_share[listed])
    columns = (
        listed,
        np.minimum(share[order], 1.0),
        fabric.link_kind[listed],
        mean[listed],
        outcome.link_bytes[listed],
        data,
        fabric.link_src[listed],
        fabric.link_dst[listed],
    )
    return tuple(
        LinkLoad(
            name=fabric.link_name(link),
            kind=LINK_KINDS[kind],
            capacity_Bps=capacity_Bps,
            wire_bytes=wire_bytes,
            payload_bytes=payload_bytes,
            utilisation=part,
            src=fabric.vertex_name(src),
            dst=fabric.vertex_name(dst),
            fault=faults.get(link, ""),
        )
        for link, part, kind, capacity_Bps, wire_bytes, payload_bytes, src, dst in zip(
            *(column.tolist() for column in columns), strict=True
        )
    )


def _mean_capacity(
    nominal_Bps: NDArray[np.float64], changes: Sequence[LinkChange], end_s: float
) -> tuple[NDArray[np.float64], dict[int, str]]:
    """Return each link's mean capacity over a run, and words for those that had a fault."""
    mean = np.array(nominal_Bps, dtype=np.float64)
    of_link: dict[int, list[LinkChange]] = {}
    for change in changes:
        of_link.setdefault(int(change.link), []).append(change)
    words = {}
    for link, own in of_link.items():
        # Several faults of one link are told by the last of them at an instant, as the engine acts.
        times = [min(max(change.time_s, 0.0), end_s) for change in own] + [end_s]
        factors = [change.factor for change in own]
        held = [b - a for a, b in pairwise(times)]
        healthy_s = times[0]
        lived = healthy_s + sum(f * s for f, s in zip(factors, held, strict=True))
        mean[link] *= lived / end_s if end_s > 0 else factors[0]
        words[link] = ", ".join(_fault_words(change) for change in own)
    return mean, words


def _fault_words(change: LinkChange) -> str:
    what = {0.0: "down", 1.0: "back"}.get(change.factor, f"x {change.factor:g}")
    return what if change.time_s <= 0 else f"{what} from {format_time(change.time_s)}"


def payload_shares(cluster: Cluster, planned: Planned, outcome: Outcome) -> NDArray[np.float64]:
    """Return how many of the bytes on each link's wire are data, shape (links,).

    Of each call the protocol's share and the link's efficiency; links that carry several calls take
    the mean by bytes.
    """
    wire = np.zeros(cluster.fabric.n_links)
    data = np.zeros(cluster.fabric.n_links)
    efficiency = cluster.lowering.link_efficiency
    counts = Counter(id(record.collective) for record in outcome.collectives)
    for collective in planned.collectives():
        _, _, choice = planned.calls[id(collective)]
        moved = link_busy_s(cluster, collective) * cluster.fabric.capacity_Bps
        moved *= counts.get(id(collective), 0)
        wire += moved
        data += moved * efficiency * cluster.profile.protocols[choice.protocol].payload_share
    return np.divide(data, wire, out=np.array(efficiency, dtype=np.float64), where=wire > 0)


def link_busy_s(cluster: Cluster, collective: Collective) -> NDArray[np.float64]:
    """Return how long each link needs for one call at its full capacity, shape (links,)."""
    connections = collective.connections
    payload = np.zeros(len(connections.src))
    for stage in collective.stages:
        np.add.at(payload, stage.connection, stage.edge_bytes)
    owner = np.repeat(np.arange(len(payload)), np.diff(connections.indptr))
    wire = np.bincount(
        connections.link,
        weights=connections.weight * payload[owner],
        minlength=len(cluster.fabric.capacity_Bps),
    ).astype(np.float64)
    for stage in collective.stages:
        if stage.wire_bytes is not None:
            wire = wire + stage.wire_bytes
    return np.asarray(wire / cluster.fabric.capacity_Bps)


def step_summary(outcome: Outcome) -> StepSummary:
    """Return a whole run of programs in five numbers."""
    n = len(outcome.rank_end_s)
    computing: list[list[tuple[float, float]]] = [[] for _ in range(n)]
    spans: list[list[tuple[float, float]]] = [[] for _ in range(n)]
    for item in outcome.intervals:
        if item.kind == "compute":
            computing[item.rank].append((item.start_s, item.end_s))
        elif item.kind == "collective":
            spans[item.rank].append((item.start_s, item.end_s))
    sent = np.zeros(n)
    for record in outcome.collectives:
        made = record.collective
        connections = made.connections
        payload = np.zeros(made.n_slots)
        for stage in made.stages:
            np.add.at(payload, connections.src[stage.connection], stage.edge_bytes)
        sent[record.group] += payload[: len(record.group)]
    # Streams of a rank compute at once: their times do not add up.
    busiest = max((union_s(each) for each in computing), default=0.0)
    return StepSummary(
        time_s=outcome.end_s,
        compute_s=busiest,
        communication_s=max((union_s(each) for each in spans), default=0.0),
        exposed_s=outcome.end_s - busiest,
        n_calls=len(outcome.collectives),
        sent_bytes=float(np.max(sent, initial=0.0)),
    )


def union_s(spans: list[tuple[float, float]]) -> float:
    """Return how long at least one of some (begin, end) lasts, seconds."""
    total, reached = 0.0, -np.inf
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return float(total)


def rank_times(cluster: Cluster, outcome: Outcome) -> RankTimes:
    """Return the times of every rank that took part, summed over its collectives."""
    n = cluster.n_gpus
    first, last = np.full(n, np.inf), np.zeros(n)
    transfer, wait = np.zeros(n), np.zeros(n)
    for record in outcome.collectives:
        first[record.group] = np.minimum(first[record.group], record.call_s)
        last[record.group] = np.maximum(last[record.group], record.end_s)
        transfer[record.group] += record.transfer_s
        wait[record.group] += record.wait_s
    first[np.isinf(first)] = 0.0
    return RankTimes.of(
        call_s=first.tolist(),
        end_s=last.tolist(),
        transfer_s=transfer.tolist(),
        wait_s=wait.tolist(),
        node=cluster.fabric.node_of_gpu.tolist(),
    )


def vertices(cluster: Cluster) -> tuple[Vertex, ...]:
    """Return the fabric's vertices for pictures; empty for very large fabrics."""
    fabric = cluster.fabric
    if fabric.n_vertices > MOST_VERTICES:
        return ()
    return tuple(
        Vertex(
            name=fabric.vertex_name(index),
            kind=VERTEX_KINDS[int(fabric.vertex_kind[index])],
            node=None if fabric.vertex_node[index] < 0 else int(fabric.vertex_node[index]),
        )
        for index in range(fabric.n_vertices)
    )


def devices(cluster: Cluster) -> tuple[Device, ...]:
    """Return the GPU of every rank as nccl-tests lists it; empty beyond `MOST_DEVICES`."""
    if cluster.n_gpus > MOST_DEVICES:
        return ()
    fabric = cluster.fabric
    names = [compiled.template.gpu.name for compiled in fabric.compiled]
    node, local = fabric.node_of_gpu, fabric.local_of_gpu
    kind = np.asarray(fabric.template_of_node)[node]
    return tuple(
        Device(rank=rank, node=f"node{of_rank}", local_rank=place, name=names[which])
        for rank, (of_rank, place, which) in enumerate(
            zip(node.tolist(), local.tolist(), kind.tolist(), strict=True)
        )
    )


def type_name(element_bytes: int) -> str:
    """Return nccl-tests' name of an element's type where only its size is known."""
    return {1: "uint8", 2: "half", 4: "float"}.get(element_bytes, "double")


def _kernel_names(planned: Planned) -> dict[str, str]:
    """Return the kernel's name by the collective's own name."""
    names: dict[str, str] = {}
    for collective in planned.collectives():
        call, _, choice = planned.calls[id(collective)]
        kernel = kernel_name(
            call.collective,
            dtype=type_name(call.element_bytes),
            algorithm=choice.algorithm,
            protocol=choice.protocol,
        )
        names[collective.name] = kernel
    return names


def rank_events(cluster: Cluster, outcome: Outcome, planned: Planned) -> tuple[TraceEvent, ...]:
    """Return what every rank's streams did, and each message on the row of its channel."""
    node = cluster.fabric.node_of_gpu
    kernels = _kernel_names(planned)
    events = [_interval(item, int(node[item.rank]), kernels) for item in outcome.intervals]
    for record in outcome.messages:
        events += _sends(record, node)
    return tuple(events)


def _interval(item: Interval, node: int, kernels: dict[str, str]) -> TraceEvent:
    kinds: dict[str, TraceKind] = {
        "compute": "compute",
        "collective": "collective",
        "wait": "wait",
    }
    name = kernels.get(item.name, item.name) if item.kind == "collective" else item.name
    return TraceEvent(
        rank=item.rank,
        node=node,
        stream=item.stream,
        name=name,
        kind=kinds[item.kind],
        start_s=item.start_s,
        end_s=item.end_s,
        args={"call": item.name} if name != item.name else {},
    )


def _sends(record: MessageRecord, node: NDArray[np.int64]) -> list[TraceEvent]:
    columns = (
        record.src_rank,
        record.dst_rank,
        record.channel,
        record.size_bytes,
        record.start_s,
        record.leave_s,
        record.arrive_s,
    )
    return [
        TraceEvent(
            rank=int(src),
            node=int(node[src]),
            stream=f"channel {channel}",
            name=f"send {record.stage} {record.step} to "
            + (f"rank {dst}" if dst >= 0 else "switch"),
            kind="transfer",
            start_s=float(start),
            end_s=float(leave),
            args={
                "bytes": float(size),
                "step": record.step,
                "stage": record.stage,
                "channel": int(channel),
                "arrives_us": float(arrive) * 1e6,
                "rate_GBps": float(size) / (leave - start) / 1e9 if leave > start else 0.0,
            },
        )
        for src, dst, channel, size, start, leave, arrive in zip(*columns, strict=True)
        if src >= 0
    ]


def link_events(cluster: Cluster, outcome: Outcome) -> tuple[LinkEvent, ...]:
    """Return every message on every link of its route; empty where there would be too many."""
    fabric = cluster.fabric
    called = {
        (call.communicator, call.index, call.name): call.collective for call in outcome.collectives
    }
    events: list[LinkEvent] = []
    for record in outcome.messages:
        key = (record.communicator, record.index, record.collective)
        connections = called[key].connections
        for index, connection in enumerate(record.connection):
            first, last = connections.indptr[connection], connections.indptr[connection + 1]
            events += [
                LinkEvent(
                    link=fabric.link_name(int(link)),
                    kind=LINK_KINDS[int(fabric.link_kind[link])],
                    name=f"{record.stage} {record.step} of rank {int(record.src_rank[index])}",
                    start_s=float(record.start_s[index]),
                    end_s=float(record.leave_s[index]),
                    args={"bytes": float(record.size_bytes[index])},
                )
                for link in connections.link[first:last]
            ]
            if len(events) > MOST_LINK_EVENTS:
                return ()
    return tuple(events)
