"""Small cases built by hand: networks, collectives and programs without any algorithm's code.

`Wires` collects links, `Cable` is one connection, `stage` and `collective` turn plain lists into
the engine's arrays.  The factories below them return a `Collective` each and add their links to a
`Wires`, so that several can share links or stand side by side in one network.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from simulator.collectives.schedule import Schedule
from simulator.engine.traffic import (
    Collective,
    Connections,
    Messages,
    Network,
    Program,
    StageTraffic,
    Start,
)

__all__ = [
    "Cable",
    "Route",
    "Wires",
    "chain",
    "collective",
    "from_schedule",
    "mesh",
    "point_to_point",
    "programs",
    "random_collective",
    "ring",
    "stage",
    "star",
    "tree",
    "two_level",
]

Route = Callable[[int, int], Sequence[int]]
"""Links from one slot to another."""


class Wires:
    """Links, numbered as they are added."""

    def __init__(self) -> None:
        self.capacity_Bps: list[float] = []

    def add(self, capacity_Bps: float) -> int:
        """Add a directed link and return its index."""
        self.capacity_Bps.append(float(capacity_Bps))
        return len(self.capacity_Bps) - 1

    def network(self) -> Network:
        """Return what was added so far."""
        return Network(
            capacity_Bps=np.array(self.capacity_Bps, dtype=np.float64),
            link_name=lambda link: f"link {link}",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Cable:
    """One connection."""

    src: int
    dst: int
    links: Sequence[int]
    latency_s: float = 0.0
    weight: float = 1.0
    max_rate_Bps: float = math.inf


def _connections(cables: Sequence[Cable]) -> Connections:
    links = [link for cable in cables for link in cable.links]
    weights = [cable.weight for cable in cables for _ in cable.links]
    return Connections(
        src=np.array([cable.src for cable in cables], dtype=np.int64),
        dst=np.array([cable.dst for cable in cables], dtype=np.int64),
        indptr=np.cumsum([0] + [len(cable.links) for cable in cables], dtype=np.int64),
        link=np.array(links, dtype=np.int64),
        weight=np.array(weights, dtype=np.float64),
        latency_s=np.array([cable.latency_s for cable in cables], dtype=np.float64),
        max_rate_Bps=np.array([cable.max_rate_Bps for cable in cables], dtype=np.float64),
    )


def stage(
    name: str,
    edges: Sequence[tuple[int, int]],
    steps: Sequence[dict[int, float]],
    *,
    mixed: bool = False,
) -> StageTraffic:
    """Return a stage of (connection, channel) edges whose steps are {edge: bytes}.

    Messages of one size are written as one number, as the engine's fast path wants it, if all
    steps of the stage are of that kind; with `mixed`, in each step that is.
    """
    short = [len(set(step.values())) == 1 for step in steps]
    ready = []
    for number, step in enumerate(steps):
        carrying = sorted(step)
        sizes = [float(step[edge]) for edge in carrying]
        one_size = short[number] if mixed else all(short)
        ready.append(
            Messages(
                edge=None
                if carrying == list(range(len(edges)))
                else np.array(carrying, dtype=np.int64),
                size_bytes=sizes[0] if one_size else np.array(sizes, dtype=np.float64),
            )
        )
    return StageTraffic(
        name=name,
        connection=np.array([connection for connection, _ in edges], dtype=np.int64),
        channel=np.array([channel for _, channel in edges], dtype=np.int64),
        n_steps=len(ready),
        messages=ready.__getitem__,
        edge_bytes=np.array(
            [sum(step.get(edge, 0.0) for step in steps) for edge in range(len(edges))],
            dtype=np.float64,
        ),
        edge_messages=np.array(
            [sum(edge in step for step in steps) for edge in range(len(edges))], dtype=np.int64
        ),
    )


def collective(
    name: str,
    cables: Sequence[Cable],
    stages: Sequence[StageTraffic],
    *,
    group: Sequence[int],
    n_slots: int | None = None,
    launch_s: float = 0.0,
) -> Collective:
    """Return a collective on the global ranks `group`."""
    return Collective(
        name=name,
        signature=(name,),
        group=np.array(group, dtype=np.int64),
        n_slots=len(group) if n_slots is None else n_slots,
        connections=_connections(cables),
        stages=tuple(stages),
        launch_s=launch_s,
    )


def programs(
    what: Collective, starts_s: Sequence[float] | float = 0.0, *, communicator: str = "world"
) -> list[Program]:
    """Return one program per rank, or one for all, that calls the collective at the given time."""
    calls = (Start(collective=what, communicator=communicator),)
    if isinstance(starts_s, int | float):
        return [Program(ranks=what.group, operations=calls, start_s=float(starts_s))]
    return [
        Program(ranks=what.group[slot : slot + 1], operations=calls, start_s=float(start_s))
        for slot, start_s in enumerate(starts_s)
    ]


# --- patterns ---------------------------------------------------------------------------------


def _each(value: float | Sequence[float], n: int) -> list[float]:
    return [float(value)] * n if isinstance(value, int | float) else [float(v) for v in value]


def ring(
    wires: Wires,
    n: int,
    message_bytes: float,
    rate_Bps: float | Sequence[float],
    latency_s: float | Sequence[float] = 0.0,
    *,
    n_channels: int = 1,
    steps_of_stages: Sequence[int] | None = None,
    group: Sequence[int] | None = None,
    links: Sequence[int] | None = None,
    weight: float = 1.0,
    launch_s: float = 0.0,
) -> Collective:
    """Return a ring on n ranks; edge i goes from slot i to slot i+1 over a link of its own.

    Parameters
    ----------
    message_bytes
        Size of each message of each channel.
    rate_Bps, latency_s
        One number or one per edge.
    n_channels
        Channels, all on the one connection of each hop.
    steps_of_stages
        Default: an all_reduce, two stages of n−1 steps.
    links
        Existing links to use in place of new ones.
    """
    rates, latencies = _each(rate_Bps, n), _each(latency_s, n)
    used = [wires.add(rate) for rate in rates] if links is None else links
    cables = [
        Cable(src=i, dst=(i + 1) % n, links=[used[i]], latency_s=latencies[i], weight=weight)
        for i in range(n)
    ]
    edges = [(hop, channel) for channel in range(n_channels) for hop in range(n)]
    full = dict.fromkeys(range(len(edges)), message_bytes)
    counts = [n - 1, n - 1] if steps_of_stages is None else steps_of_stages
    stages = [stage(f"ring {i}", edges, [full] * count) for i, count in enumerate(counts)]
    return collective("ring", cables, stages, group=group or range(n), launch_s=launch_s)


def point_to_point(
    size_bytes: float,
    links: Sequence[int],
    latency_s: float = 0.0,
    *,
    group: Sequence[int] = (0, 1),
    max_rate_Bps: float = math.inf,
    weight: float = 1.0,
) -> Collective:
    """Return one message from the first to the second rank of the group."""
    cable = Cable(
        src=0, dst=1, links=links, latency_s=latency_s, max_rate_Bps=max_rate_Bps, weight=weight
    )
    return collective(
        "send_recv", [cable], [stage("send", [(0, 0)], [{0: size_bytes}])], group=group
    )


def chain(
    wires: Wires, n: int, n_pieces: int, piece_bytes: float, rate_Bps: float, latency_s: float
) -> Collective:
    """Return a broadcast in pieces along 0 → 1 → … → n−1; in step s rank i sends piece s−i."""
    cables = [
        Cable(src=i, dst=i + 1, links=[wires.add(rate_Bps)], latency_s=latency_s)
        for i in range(n - 1)
    ]
    steps = [
        {i: piece_bytes for i in range(n - 1) if 0 <= step - i < n_pieces}
        for step in range(n_pieces + n - 2)
    ]
    edges = [(i, 0) for i in range(n - 1)]
    return collective("broadcast", cables, [stage("chain", edges, steps)], group=range(n))


def tree(
    wires: Wires,
    depth: int,
    n_pieces: int,
    piece_bytes: float,
    rate_Bps: float,
    latency_s: float,
    *,
    shared: bool,
    up: bool = False,
) -> Collective:
    """Return a pipelined broadcast down (or reduction up) a complete binary tree rooted at 0.

    With `shared`, both connections between a parent and its children use one link at the parent.
    """
    n = 2 ** (depth + 1) - 1
    port = [wires.add(rate_Bps) for _ in range(n)]
    cables, first_step = [], []
    for child in range(1, n):
        parent, level = (child - 1) // 2, (child + 1).bit_length() - 1
        links = [port[parent] if shared else wires.add(rate_Bps)]
        src, dst = (child, parent) if up else (parent, child)
        cables.append(Cable(src=src, dst=dst, links=links, latency_s=latency_s))
        first_step.append(depth - level if up else level - 1)
    steps = [
        {e: piece_bytes for e, first in enumerate(first_step) if 0 <= step - first < n_pieces}
        for step in range(n_pieces + depth - 1)
    ]
    edges = [(e, 0) for e in range(n - 1)]
    return collective("tree", cables, [stage("tree", edges, steps)], group=range(n))


# --- fabrics for schedules --------------------------------------------------------------------


def star(wires: Wires, n: int, rate_Bps: float | Sequence[float]) -> Route:
    """Return the routes of n ranks around one switch: an uplink and a downlink each.

    A slot beyond the ranks is the switch itself.
    """
    rates = _each(rate_Bps, n)
    up, down = [wires.add(rate) for rate in rates], [wires.add(rate) for rate in rates]

    def route(src: int, dst: int) -> list[int]:
        return up[src : src + 1] + (down[dst : dst + 1] if dst < n else [])

    return route


def mesh(wires: Wires, rate_Bps: float) -> Route:
    """Return routes that give each pair of slots a link of its own, added when asked for."""
    link_of_pair: dict[tuple[int, int], int] = {}

    def route(src: int, dst: int) -> list[int]:
        if (src, dst) not in link_of_pair:
            link_of_pair[src, dst] = wires.add(rate_Bps)
        return [link_of_pair[src, dst]]

    return route


def two_level(
    wires: Wires, n: int, per_node: int, gpu_Bps: float, nic_Bps: float, core_Bps: float
) -> Route:
    """Return the routes of nodes with one shared NIC each, under one shared core link.

    Slots beyond the ranks are switches in the core.
    """
    n_nodes = -(-n // per_node)
    up, down = [wires.add(gpu_Bps) for _ in range(n)], [wires.add(gpu_Bps) for _ in range(n)]
    out, into = ([wires.add(nic_Bps) for _ in range(n_nodes)] for _ in range(2))
    core = wires.add(core_Bps)

    def route(src: int, dst: int) -> list[int]:
        if src < n and dst < n and src // per_node == dst // per_node:
            return [up[src], down[dst]]
        leaving = [up[src], out[src // per_node]] if src < n else []
        return leaving + [core] + ([into[dst // per_node], down[dst]] if dst < n else [])

    return route


def from_schedule(
    schedule: Schedule,
    route: Route,
    *,
    latency_s: Callable[[int, int], float] = lambda src, dst: 0.0,
    max_rate_Bps: float = math.inf,
    weight: float = 1.0,
    group: Sequence[int] | None = None,
    launch_s: float = 0.0,
) -> Collective:
    """Return a schedule's traffic: one connection per (source, destination), pieces summed.

    Pieces of one step on one edge travel as one message.
    """
    pairs: dict[tuple[int, int], int] = {}
    stages = []
    for part in schedule.stages:
        edges = []
        for src, dst, channel in zip(part.src, part.dst, part.channel, strict=True):
            number = pairs.setdefault((int(src), int(dst)), len(pairs))
            edges.append((number, int(channel)))
        steps = []
        for step in part.steps():
            n_edges = len(edges)
            edge = np.arange(n_edges)[step.edge] if isinstance(step.edge, slice) else step.edge
            start = np.broadcast_to(np.asarray(step.start), edge.shape)
            count = np.broadcast_to(np.asarray(step.count), edge.shape)
            sent: dict[int, float] = {}
            for e, size_bytes in zip(edge, schedule.chunks.size_bytes(start, count), strict=True):
                sent[int(e)] = sent.get(int(e), 0.0) + float(size_bytes)
            steps.append(sent)
        stages.append(stage(part.name, edges, steps))
    cables = [
        Cable(
            src=src,
            dst=dst,
            links=route(src, dst),
            latency_s=latency_s(src, dst),
            max_rate_Bps=max_rate_Bps,
            weight=weight,
        )
        for src, dst in pairs
    ]
    n = schedule.world_size
    return collective(
        f"{schedule.collective} {schedule.algorithm}",
        cables,
        stages,
        group=range(n) if group is None else group,
        n_slots=n + len(schedule.virtual),
        launch_s=launch_s,
    )


def random_collective(
    dice: random.Random,
    links: Sequence[int],
    *,
    group: Sequence[int],
    name: str = "random",
    max_connections: int = 8,
    max_channels: int = 3,
    max_steps: int = 5,
    max_switches: int = 1,
) -> Collective:
    """Return a collective without sense: random routes, stages, steps and sizes.

    Two connections may join the same pair of ranks; routes may be empty if the connection has a
    largest rate of its own; messages may be empty; switches may take part.
    """
    n = len(group) + dice.randint(0, max_switches)
    cables = []
    for _ in range(dice.randint(1, max_connections)):
        src = dice.randrange(n)
        dst = (src + dice.randint(1, n - 1)) % n
        path = dice.sample(links, dice.randint(0, min(3, len(links))))
        capped = not path or dice.random() < 0.3
        cables.append(
            Cable(
                src=src,
                dst=dst,
                links=path,
                latency_s=dice.choice([0.0, 1e-6, 3e-6, 1e-5]),
                weight=dice.choice([1.0, 1.0, 1.25, 0.5]),
                max_rate_Bps=dice.choice([3e9, 1e10, 7e10]) if capped else math.inf,
            )
        )
    n_channels = dice.randint(1, max_channels)
    sizes = [0.0, 1e3, 3e4, 1e5, 7e5]
    stages = []
    for number in range(dice.randint(1, 3)):
        everything = [(c, k) for c in range(len(cables)) for k in range(n_channels)]
        edges = dice.sample(everything, dice.randint(1, len(everything)))
        steps = []
        for _ in range(dice.randint(1, max_steps)):
            carrying = dice.sample(range(len(edges)), dice.randint(0, len(edges)))
            if dice.random() < 0.3:
                carrying = list(range(len(edges)))
            one_size = dice.choice(sizes) if dice.random() < 0.4 else None
            steps.append(
                {e: dice.choice(sizes) if one_size is None else one_size for e in carrying}
            )
        stages.append(stage(f"stage {number}", edges, steps))
    return collective(
        name, cables, stages, group=group, n_slots=n, launch_s=dice.choice([0.0, 2e-6])
    )
