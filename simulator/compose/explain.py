"""One call in plain words: which algorithm, how many steps, the formula with its numbers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulator.base.units import format_rate, format_size, format_time
from simulator.collectives.call import Call
from simulator.collectives.registry import get_algorithm
from simulator.collectives.schedule import Schedule, Stage
from simulator.compose.bound import bound_s
from simulator.compose.choose import candidates, choose, lone_time_s
from simulator.compose.cluster import Choice, Cluster
from simulator.costs.profile import PATH_KINDS
from simulator.engine.traffic import Collective, StageTraffic
from simulator.results.model import Row

__all__ = ["HopTerms", "StageTerms", "explain_call", "stage_terms", "step_table"]

IntArray = NDArray[np.int64]

MOST_STEP_ROWS = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class HopTerms:
    """What a message costs on one kind of path of a stage, at its slowest."""

    path: str
    count: int
    message_bytes: float
    """Mean payload of a message."""
    rate_Bps: float
    latency_s: float
    """Alpha: links and software, per message."""
    src: int
    dst: int

    @property
    def wire_s(self) -> float:
        """Time on the wire, m/B."""
        return self.message_bytes / self.rate_Bps if self.message_bytes else 0.0

    @property
    def step_s(self) -> float:
        """Time of one message: α + m/B."""
        return self.latency_s + self.wire_s


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTerms:
    """What a stage costs: its steps, and a message on each kind of path that it uses."""

    name: str
    n_steps: int
    hops: tuple[HopTerms, ...]
    is_ring: bool
    """Every rank sends to one and receives from one on each channel, all around."""
    busiest: int
    """The link that works longest."""
    busiest_bytes: float
    """What the stage sends over it, on the wire."""
    busiest_s: float
    """How long that takes it: messages that share a link need at least so long."""

    @property
    def alpha_s(self) -> float:
        """Latency of a step: in a ring a message passes all hops in turn, so their mean."""
        if self.is_ring:
            return _mean([(hop.latency_s, hop.count) for hop in self.hops])
        return max(self.hops, key=lambda hop: hop.step_s).latency_s

    @property
    def beta_s(self) -> float:
        """Time on the wire of a step."""
        if self.is_ring:
            return _mean([(hop.wire_s, hop.count) for hop in self.hops])
        return max(self.hops, key=lambda hop: hop.step_s).wire_s

    @property
    def shared_s(self) -> float | None:
        """Time of the stage where links are shared; None where messages alone take longer.

        In a ring the latency of one message hides behind the others on the busiest link; elsewhere
        a rank waits for all messages of a step, which share its links, and then for the latency.
        """
        lone_s = self.n_steps * (self.beta_s + self.alpha_s * self.is_ring)
        if self.busiest_s <= 1.01 * lone_s:
            return None
        return self.busiest_s + (0.0 if self.is_ring else self.n_steps * self.alpha_s)


def _mean(parts: list[tuple[float, int]]) -> float:
    return sum(value * count for value, count in parts) / sum(count for _, count in parts)


def stage_terms(cluster: Cluster, collective: Collective) -> list[StageTerms]:
    """Return the terms of every stage of a lowered call."""
    connections = collective.connections
    per_link = cluster.fabric.capacity_Bps[connections.link] / connections.weight
    slowest = np.minimum.reduceat(per_link, connections.indptr[:-1])
    rate = np.minimum(connections.max_rate_Bps, slowest)
    kind = cluster.lowering.path_kinds(connections.link, connections.indptr)
    capacity_Bps = np.asarray(cluster.fabric.capacity_Bps)
    return [_terms(stage, collective, rate, kind, capacity_Bps) for stage in collective.stages]


def _terms(
    stage: StageTraffic,
    collective: Collective,
    rate: NDArray[np.float64],
    kind: IntArray,
    capacity_Bps: NDArray[np.float64],
) -> StageTerms:
    connections = collective.connections
    mean = stage.edge_bytes / np.maximum(stage.edge_messages, 1)
    wire = np.where(mean > 0, mean / rate[stage.connection], 0.0)
    total = wire + connections.latency_s[stage.connection]
    hops: list[HopTerms] = []
    for path in np.unique(kind[stage.connection]):
        among = np.flatnonzero(kind[stage.connection] == path)
        worst = int(among[np.argmax(total[among])])
        connection = int(stage.connection[worst])
        hops.append(
            HopTerms(
                path=PATH_KINDS[int(path)],
                count=len(among),
                message_bytes=float(mean[worst]),
                rate_Bps=float(rate[connection]),
                latency_s=float(connections.latency_s[connection]),
                src=int(connections.src[connection]),
                dst=int(connections.dst[connection]),
            )
        )
    lanes = connections.src[stage.connection] * (int(stage.channel.max()) + 1) + stage.channel
    around = connections.dst[stage.connection] * (int(stage.channel.max()) + 1) + stage.channel
    is_ring = stage.n_steps > 1 and bool(np.array_equal(np.sort(lanes), np.sort(around)))
    is_ring = is_ring and len(np.unique(lanes)) == len(lanes)
    carried = np.bincount(stage.connection, stage.edge_bytes, minlength=len(connections.src))
    on_link = np.repeat(carried, np.diff(connections.indptr)) * connections.weight
    load = np.bincount(connections.link, on_link, minlength=len(capacity_Bps))
    busiest = int(np.argmax(load / capacity_Bps))
    return StageTerms(
        name=stage.name,
        n_steps=stage.n_steps,
        hops=tuple(hops),
        is_ring=is_ring,
        busiest=busiest,
        busiest_bytes=float(load[busiest]),
        busiest_s=float(load[busiest] / capacity_Bps[busiest]),
    )


def explain_call(
    cluster: Cluster,
    call: Call,
    group: IntArray,
    *,
    row: Row,
    algorithm: str = "auto",
    protocol: str = "auto",
    channels: int | None = None,
) -> list[str]:
    """Return the explanation of one call, line by line.

    Parameters
    ----------
    cluster, call, group
        Where, what, who (global ranks).
    row
        What a run of it says.
    algorithm, protocol, channels
        As in a scenario.
    """
    options = candidates(
        cluster, call, group, algorithm=algorithm, protocol=protocol, channels=channels
    )
    choice = choose(cluster, call, group, algorithm=algorithm, protocol=protocol, channels=channels)
    if not any(_same(option, choice) for option in options):
        options.append(choice)
    timed = sorted(_timed(cluster, call, group, options), key=lambda pair: pair[0])
    entry = get_algorithm(call.collective, choice.algorithm)
    nodes = cluster.group_nodes(group)
    n = call.world_size
    lines = [
        f"{call.collective} of {format_size(call.size_bytes)} ({call.size_bytes} bytes) on "
        f"{n} ranks, {nodes} node{'s' if nodes > 1 else ''}{cluster.library_words}",
        "",
        f"Algorithm: {_named(cluster, choice.algorithm)}, protocol {choice.protocol}, "
        f"{choice.n_channels} channel{'s' if choice.n_channels > 1 else ''}",
        f"  {entry.summary}",
        f"  {entry.reference}",
    ]
    if algorithm == "auto" or protocol == "auto":
        picked = cluster.picked(call, group) if algorithm == "auto" else None
        chooser = (
            "" if algorithm != "auto" and len(timed) == 1 else _chooser(cluster, choice, timed)
        )
        if picked is not None:
            chooser = f"{cluster.profile.name}'s rules: {picked.reason}"
        if chooser:
            lines.append(f"  chosen by {chooser}")
    if len(timed) > 1:
        asked = any(option.expected_s is not None for _, option in timed)
        library = cluster.profile.name.upper()
        lines.append(
            "  what the profile allows, each alone at the folded level"
            + (f", and the time {library}'s own model expects:" if asked else ":")
        )
        lines += [
            f"    {option.algorithm:<20} {option.protocol:<7} "
            f"{option.n_channels:>3} channels  {format_time(each_s):>10}"
            + (f"  {library} {_expected(option):>10}" if asked else "")
            + ("  chosen" if _same(option, choice) else "")
            for each_s, option in timed[:8]
        ]
    schedule = cluster.schedule(call, group, choice)
    if schedule.n_steps == 0:
        lines += ["", "One rank alone has nobody to talk to: no steps."]
        return lines
    collective = cluster.collective(call, group, choice)
    lines += ["", f"Textbook time: {entry.formula}", ""]
    lines += _stage_lines(cluster, collective, group, choice)
    limit_s = bound_s(cluster, call, group)
    lines += ["", f"Simulated time: {format_time(row.time_s)} ({row.level} level, as a run has it)"]
    if cluster.calibrated is not None:
        factor = cluster.factor(call, group, choice)
        lines.append(
            f"In it: the machine's factor of {factor:.3f} ({cluster.calibrated.calibration.file})"
        )
    if limit_s > 0:
        share = 100 * limit_s / row.time_s
        lines.append(
            f"Bandwidth lower bound: {format_time(limit_s)} at the links' physical rates "
            f"({share:.0f} % of the simulated time)"
        )
    return lines


def _named(cluster: Cluster, algorithm: str) -> str:
    """Return an algorithm by the library's name and by that of scenarios."""
    theirs = cluster.library_algorithm(algorithm)
    return f"{theirs} ({algorithm})" if theirs else algorithm


def _expected(option: Choice) -> str:
    """Return what the library's model expects; a dash where it has no formula."""
    return "-" if option.expected_s is None else format_time(option.expected_s)


def _same(one: Choice, other: Choice) -> bool:
    return (one.algorithm, one.protocol, one.n_channels) == (
        other.algorithm,
        other.protocol,
        other.n_channels,
    )


def _chooser(cluster: Cluster, choice: Choice, timed: list[tuple[float, Choice]]) -> str:
    """Return who took the choice, in words."""
    library = cluster.profile.name.upper()
    if choice.by_library and choice.expected_s is not None:
        expected = format_time(choice.expected_s)
        return f"{library}'s own model, which expects {expected}, be it fastest or not"
    if not _same(timed[0][1], choice):
        return f"{library}'s own rules, be it fastest or not"
    if len(timed) == 1:
        return "nobody: the profile has no other"
    return "simulation: the fastest of what the profile allows"


def _timed(
    cluster: Cluster, call: Call, group: IntArray, options: list[Choice]
) -> Iterator[tuple[float, Choice]]:
    from simulator.base.errors import ScheduleError

    refusal: ScheduleError | None = None
    found = False
    for option in options:
        try:
            time_s = lone_time_s(cluster, call, group, option)
        except ScheduleError as error:
            refusal = error
            continue
        found = True
        yield time_s, option
    if not found:
        raise refusal or ScheduleError(f"no algorithm is listed for {call.collective}")


def _stage_lines(
    cluster: Cluster, collective: Collective, group: IntArray, choice: Choice
) -> Iterator[str]:
    alpha_s = beta_s = 0.0
    for term in stage_terms(cluster, collective):
        plural = "s" if term.n_steps > 1 else ""
        yield f"Stage {term.name}: {term.n_steps} step{plural}; a message costs α + m/B:"
        for hop in term.hops:
            ends = " → ".join(
                f"rank {slot}" if slot < len(group) else "switch" for slot in (hop.src, hop.dst)
            )
            yield (
                f"  {hop.path:<8} {format_time(hop.latency_s)} + "
                f"{format_size(hop.message_bytes)} / {format_rate(hop.rate_Bps)}"
                f" = {format_time(hop.step_s)}"
            )
            yield f"  {'':<8} ({hop.count} connections, the slowest is {ends})"
        step_s = term.alpha_s + term.beta_s
        if term.is_ring and len(term.hops) > 1:
            yield (
                "  around the ring a message passes every kind of hop in turn, so a step takes "
                f"their mean, {format_time(step_s)}"
            )
        yield f"  {term.n_steps} × {format_time(step_s)} = {format_time(term.n_steps * step_s)}"
        stage_alpha_s = term.n_steps * term.alpha_s
        stage_beta_s = term.n_steps * term.beta_s
        if term.shared_s is not None:
            capacity_Bps = float(cluster.fabric.capacity_Bps[term.busiest])
            yield (
                f"  messages share links: {cluster.fabric.link_name(term.busiest)} carries "
                f"{format_size(term.busiest_bytes)} at {format_rate(capacity_Bps)} in "
                f"{format_time(term.busiest_s)},"
            )
            yield f"  so the stage takes {format_time(term.shared_s)}"
            stage_beta_s = term.busiest_s
            stage_alpha_s = term.shared_s - term.busiest_s
        alpha_s += stage_alpha_s
        beta_s += stage_beta_s
    yield ""
    total_s = collective.launch_s + alpha_s + beta_s
    yield (
        f"Sum: launch {format_time(collective.launch_s)} + latency (α) {format_time(alpha_s)} + "
        f"bandwidth (β) {format_time(beta_s)} = {format_time(total_s)}"
    )
    if choice.n_channels > 1 and not cluster.profile.per_channel:
        yield "  (channels take turns on a connection, so α hides behind their transfers)"


def step_table(schedule: Schedule) -> Iterator[str]:
    """Generate who sends what to whom, step by step, for a small case."""
    shown = 0
    number = 0
    for stage in schedule.stages:
        yield f"{stage.name}"
        for index in range(stage.n_steps):
            number += 1
            yield f"  step {number}"
            for line in _pieces(schedule, stage, index):
                yield f"    {line}"
                shown += 1
                if shown >= MOST_STEP_ROWS:
                    yield f"    … the rest of {schedule.n_steps} steps is left out"
                    return


def _pieces(schedule: Schedule, stage: Stage, index: int) -> Iterator[str]:
    step = stage.step(index)
    edges = np.arange(len(stage.src))[step.edge]
    starts = np.broadcast_to(step.start, edges.shape)
    counts = np.broadcast_to(np.asarray(step.count), edges.shape)
    sizes = schedule.chunks.size_bytes(starts, counts)
    reduces = np.broadcast_to(np.asarray(step.reduce), edges.shape)
    for edge, start, count, size, reduce in zip(edges, starts, counts, sizes, reduces, strict=True):
        src, dst = int(stage.src[edge]), int(stage.dst[edge])
        what = (
            f"chunk {int(start)}" if count == 1 else f"chunks {int(start)}…{int(start + count - 1)}"
        )
        if count == 0:
            what = "a signal"
        names = [f"rank {x}" if x < schedule.world_size else "switch" for x in (src, dst)]
        verb = "adds" if reduce else "keeps"
        channel = f", channel {int(stage.channel[edge])}" if schedule.n_channels > 1 else ""
        yield (
            f"{names[0]:>8} → {names[1]:<8} {what} ({format_size(float(size))}); "
            f"{names[1]} {verb} it{channel}"
        )
