"""Small networks and collectives for the engine's tests, built without any other part."""

import numpy as np

from simulator.engine.traffic import (
    Collective,
    Connections,
    Messages,
    Network,
    StageTraffic,
)


def network(capacity_Bps):
    capacity = np.asarray(capacity_Bps, dtype=float)
    return Network(capacity_Bps=capacity, link_name=lambda index: f"link{index}")


def connections(pairs, routes, latency_s=0.0, weight=None, max_rate_Bps=np.inf):
    """Routes: list of lists of links; weight: None or list of lists."""
    n = len(pairs)
    counts = [len(route) for route in routes]
    link = np.array([x for route in routes for x in route], dtype=np.int64)
    weights = np.ones(len(link)) if weight is None else np.array([x for row in weight for x in row])
    return Connections(
        src=np.array([p[0] for p in pairs], dtype=np.int64),
        dst=np.array([p[1] for p in pairs], dtype=np.int64),
        indptr=np.concatenate(([0], np.cumsum(counts))).astype(np.int64),
        link=link,
        weight=weights,
        latency_s=np.broadcast_to(np.asarray(latency_s, dtype=float), (n,)).copy(),
        max_rate_Bps=np.broadcast_to(np.asarray(max_rate_Bps, dtype=float), (n,)).copy(),
    )


def stage(name, connection, channel, steps):
    """Steps: list of (edges or None, size or sizes)."""
    connection = np.asarray(connection, dtype=np.int64)
    channel = np.asarray(channel, dtype=np.int64)
    edge_bytes = np.zeros(len(connection))
    edge_messages = np.zeros(len(connection), dtype=np.int64)
    kept = []
    for edges, size in steps:
        index = np.arange(len(connection)) if edges is None else np.asarray(edges, dtype=np.int64)
        edge_bytes[index] += size
        edge_messages[index] += 1
        if not np.isscalar(size):
            size = np.asarray(size, dtype=float)
        kept.append(Messages(edge=None if edges is None else index, size_bytes=size))
    return StageTraffic(
        name=name,
        connection=connection,
        channel=channel,
        n_steps=len(steps),
        messages=kept.__getitem__,
        edge_bytes=edge_bytes,
        edge_messages=edge_messages,
    )


def collective(conns, stages, n_ranks=None, *, group=None, n_slots=None, launch_s=0.0, name="c"):
    if group is None:
        group = np.arange(n_ranks)
    group = np.asarray(group, dtype=np.int64)
    return Collective(
        name=name,
        signature=(name,),
        group=group,
        n_slots=n_slots or len(group),
        connections=conns,
        stages=tuple(stages),
        launch_s=launch_s,
    )


def lazy_stage(name, connection, channel, n_steps, size_bytes):
    """Every edge sends size_bytes in every step; nothing of length n_steps is held."""
    messages = Messages(edge=None, size_bytes=float(size_bytes))
    n = len(connection)
    return StageTraffic(
        name=name,
        connection=np.asarray(connection, dtype=np.int64),
        channel=np.asarray(channel, dtype=np.int64),
        n_steps=n_steps,
        messages=lambda step: messages,
        edge_bytes=np.full(n, float(size_bytes) * n_steps),
        edge_messages=np.full(n, n_steps, dtype=np.int64),
    )


def ring_all_reduce(
    n,
    size_bytes,
    *,
    channels=1,
    latency_s=0.0,
    links=None,
    group=None,
    launch_s=0.0,
    weight=1.0,
    max_rate_Bps=np.inf,
    name="all_reduce",
):
    """A ring of n slots; connection i goes from slot i to i + 1 over link ``links[i]`` (i)."""
    links = np.arange(n) if links is None else np.asarray(links)
    conns = connections(
        [(i, (i + 1) % n) for i in range(n)],
        [list(np.atleast_1d(links[i])) for i in range(n)],
        latency_s=latency_s,
        weight=[[weight] * len(np.atleast_1d(links[i])) for i in range(n)],
        max_rate_Bps=max_rate_Bps,
    )
    connection = np.tile(np.arange(n), channels)
    channel = np.repeat(np.arange(channels), n)
    piece = size_bytes / n / channels
    stages = [
        lazy_stage(part, connection, channel, n - 1, piece)
        for part in ("reduce_scatter", "all_gather")
    ]
    return collective(conns, stages if n > 1 else [], n, group=group, launch_s=launch_s, name=name)


def send_recv(size_bytes, route, *, latency_s=0.0, group=(0, 1), launch_s=0.0, name="send_recv"):
    conns = connections([(0, 1)], [list(route)], latency_s=latency_s)
    return collective(
        conns,
        [lazy_stage("send", [0], [0], 1, size_bytes)],
        group=group,
        launch_s=launch_s,
        name=name,
    )


def random_collective(rng, *, n_ranks=None, n_switches=None, shared_links=False):
    """A random valid collective and the capacities of its links.

    Any edges, any steps, several channels, several sends of a slot per step, zero-size
    messages; nothing about it is a known algorithm.
    """
    n_ranks = n_ranks or int(rng.integers(2, 7))
    n_switches = int(rng.integers(0, 2)) if n_switches is None else n_switches
    n_slots = n_ranks + n_switches
    pairs = [(a, b) for a in range(n_slots) for b in range(n_slots) if a != b]
    rng.shuffle(pairs)
    pairs = pairs[: int(rng.integers(1, len(pairs) + 1))]
    k = len(pairs)
    n_links = max(1, k // 3) if shared_links else k
    routes, weights = [], []
    for i in range(k):
        if shared_links:
            length = int(rng.integers(1, min(3, n_links) + 1))
            routes.append(list(rng.choice(n_links, size=length, replace=False)))
        else:
            routes.append([i])
        weights.append(list(rng.choice([1.0, 1.25, 0.5], size=len(routes[-1]))))
    conns = connections(
        pairs,
        routes,
        latency_s=rng.choice([0.0, 0.5, 1.0], size=k) * rng.random(),
        weight=weights,
        max_rate_Bps=rng.choice([np.inf, 0.7], size=k),
    )
    n_channels = int(rng.integers(1, 4))
    stages = []
    for index in range(int(rng.integers(1, 4))):
        edges = [(c, ch) for c in range(k) for ch in range(n_channels)]
        rng.shuffle(edges)
        edges = edges[: int(rng.integers(1, len(edges) + 1))]
        steps = []
        for _ in range(int(rng.integers(1, 6))):
            if rng.random() < 0.3:
                steps.append((None, float(rng.integers(0, 4))))
            else:
                chosen = np.flatnonzero(rng.random(len(edges)) < 0.6)
                steps.append((chosen, rng.integers(0, 5, size=len(chosen)).astype(float)))
        stages.append(stage(f"stage{index}", [e[0] for e in edges], [e[1] for e in edges], steps))
    built = collective(
        conns, stages, n_ranks, n_slots=n_slots, launch_s=float(rng.choice([0.0, 0.1]))
    )
    return built, rng.uniform(0.5, 2.0, size=n_links)


def plain_wave(built, call_s, rate):
    """The recurrence, one message at a time: what the vectorised wave must reproduce."""
    n, conns = len(built.group), built.connections
    n_channels = 1 + max((int(s.channel.max(initial=0)) for s in built.stages), default=0)
    begin = {}
    for ch in range(n_channels):
        for slot in range(built.n_slots):
            begin[slot, ch] = min(call_s) if slot >= n else call_s[slot] + built.launch_s
    free = dict.fromkeys(range(len(conns.src)), -np.inf)
    log = []
    for index, part in enumerate(built.stages):
        for step in range(part.n_steps):
            messages = part.messages(step)
            edges = range(len(part.connection)) if messages.edge is None else messages.edge
            sizes = np.broadcast_to(messages.size_bytes, (len(edges),))
            sent = [
                (int(part.connection[e]), int(part.channel[e]), int(e), float(m))
                for e, m in zip(edges, sizes, strict=True)
            ]
            after = dict(begin)
            for conn, ch, edge, m in sorted(sent):
                src, dst = (int(conns.src[conn]), ch), (int(conns.dst[conn]), ch)
                start = max(begin[src], free[conn])
                leave = start + m / rate[conn]
                arrive = leave + conns.latency_s[conn]
                free[conn] = leave
                after[src] = max(after[src], leave)
                after[dst] = max(after[dst], arrive)
                log.append((index, step, edge, start, leave, arrive))
            begin = after
    ends = [max(begin[slot, ch] for ch in range(n_channels)) for slot in range(n)]
    return np.array(ends), sorted(log)
