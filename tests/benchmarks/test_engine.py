"""How fast the engine is: primitives, the two levels, and a plain loop of one event per message.

Targets, in CPU seconds of one core: max-min of 10,000 flows on a 1,024-GPU fat tree 0.05; `steps`
of a ring all-reduce of one channel on 1,024 ranks 0.1, 4,096 ranks 0.5, 16,384 ranks 5, of eight
channels on 1,024 ranks 0.3; `folded` three overlapping rings with a slow link on 1,024 ranks 1,
a ring or tree on 16,384 ranks 1.
"""

import heapq
import importlib.util
import time
from pathlib import Path

import numpy as np
import pytest

from simulator.collectives import Call, Layout, make_schedule
from simulator.engine.clock import Clock
from simulator.engine.maxmin import max_min_rates
from simulator.engine.routes import alone_rates
from simulator.engine.simulate import simulate
from simulator.engine.traffic import (
    Collective,
    Compute,
    Connections,
    Messages,
    Network,
    Program,
    StageTraffic,
    Start,
)
from simulator.engine.wave import WavePlan

_SPEC = importlib.util.spec_from_file_location(
    "engine_build", Path(__file__).parents[1] / "engine" / "build.py"
)
build = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(build)

pytestmark = pytest.mark.benchmark(timer=time.process_time)

RATE = 50e9
GIB = 2**30


def fat_tree_flows(n_flows=10_000, k=16, seed=0):
    """Random pairs of the 1,024 hosts of a three-level fat tree, each on a random path."""
    rng = np.random.default_rng(seed)
    half, n = k // 2, k**3 // 4
    n_edge = n // half
    src = rng.integers(n, size=n_flows)
    dst = (src + rng.integers(1, n, size=n_flows)) % n
    up, core = rng.integers(half, size=n_flows), rng.integers(half, size=n_flows)
    edge_up, edge_down = 2 * n, 2 * n + n_edge * half
    core_up, core_down = edge_down + n_edge * half, edge_down + 2 * n_edge * half
    edge_s, edge_d = src // half, dst // half
    pod_s, pod_d = src // half**2, dst // half**2
    hops = np.stack(
        [
            src,
            np.where(edge_s != edge_d, edge_up + edge_s * half + up, -1),
            np.where(pod_s != pod_d, core_up + (pod_s * half + up) * half + core, -1),
            np.where(pod_s != pod_d, core_down + (pod_d * half + up) * half + core, -1),
            np.where(edge_s != edge_d, edge_down + edge_d * half + up, -1),
            n + dst,
        ],
        axis=1,
    )
    used = hops >= 0
    indptr = np.concatenate(([0], np.cumsum(used.sum(axis=1))))
    link = hops[used]
    return (
        indptr,
        link,
        np.ones(len(link)),
        np.full(core_down + n_edge * half, RATE),
        np.full(n_flows, np.inf),
    )


def program(collective, start_s=0.0, communicator="world"):
    return Program(
        ranks=collective.group,
        operations=(Start(collective=collective, communicator=communicator),),
        start_s=start_s,
    )


def leaf_spine(src, dst, n, up):
    """Routes over leaves of 32 ranks, spine by the pair."""
    leaves = -(-n // 32)
    spine = (src + dst) % up
    near = src // 32 == dst // 32
    hops = np.stack(
        [
            src,
            np.where(near, -1, 2 * n + (src // 32) * up + spine),
            np.where(near, -1, 2 * n + leaves * up + (dst // 32) * up + spine),
            n + dst,
        ],
        axis=1,
    )
    used = hops >= 0
    indptr = np.concatenate(([0], np.cumsum(used.sum(axis=1))))
    return indptr, hops[used], 2 * n + 2 * leaves * up


def scheduled(collective, algorithm, n, size_bytes):
    """A registered algorithm on a leaf-spine network, one connection per pair."""
    layout = Layout(world_size=n, nodes=np.arange(n) // 8)
    call = Call(collective=collective, world_size=n, size_bytes=size_bytes)
    schedule = make_schedule(call, algorithm, layout)
    pairs = np.concatenate([stage.src * n + stage.dst for stage in schedule.stages])
    names, inverse = np.unique(pairs, return_inverse=True)
    src, dst = names // n, names % n
    indptr, link, n_links = leaf_spine(src, dst, n, 32)
    connections = Connections(
        src=src,
        dst=dst,
        indptr=indptr,
        link=link,
        weight=np.ones(len(link)),
        latency_s=np.full(len(src), 2e-6),
        max_rate_Bps=np.full(len(src), np.inf),
    )

    def messages_of(stage):
        def messages(index):
            step = stage.step(index)
            count = np.broadcast_to(step.count, np.shape(step.start))
            size = schedule.chunks.size_bytes(step.start, count)
            edge = None if isinstance(step.edge, slice) else np.asarray(step.edge)
            return Messages(edge=edge, size_bytes=size)

        return messages

    stages, first = [], 0
    for stage in schedule.stages:
        stages.append(
            StageTraffic(
                name=stage.name,
                connection=inverse[first : first + len(stage.src)],
                channel=stage.channel,
                n_steps=stage.n_steps,
                messages=messages_of(stage),
                edge_bytes=stage.edge_bytes,
                edge_messages=stage.edge_messages,
                first_step=stage.first_step,
            )
        )
        first += len(stage.src)
    what = Collective(
        name=f"{collective} {algorithm}",
        signature=(collective,),
        group=np.arange(n),
        n_slots=n,
        connections=connections,
        stages=tuple(stages),
        launch_s=5e-6,
    )
    return Network(capacity_Bps=np.full(n_links, RATE), link_name=str), what


# Primitives -----------------------------------------------------------------------------------


def test_max_min_of_10000_flows_on_a_fat_tree(benchmark):
    problem = fat_tree_flows()
    rates = benchmark(max_min_rates, *problem)
    assert (rates > 0).all()


def test_clock_events(benchmark):
    def run():
        clock = Clock()
        for k in range(20_000):
            clock.at(k * 1e-6, lambda: None)
        clock.run()
        return clock.n_events

    assert benchmark(run) == 20_000


# steps ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("n", "channels"), [(1024, 1), (1024, 8), (4096, 1), (16384, 1)], ids=lambda v: str(v)
)
def test_ring_all_reduce_in_steps(benchmark, n, channels):
    ring = build.ring_all_reduce(n, GIB, channels=channels, latency_s=1e-6)
    network = build.network(np.full(n, RATE))
    rounds = 1 if n > 4096 else 3
    outcome = benchmark.pedantic(
        simulate, (network, [program(ring)]), {"level": "steps"}, rounds=rounds
    )
    assert outcome.collectives[0].level == "steps"


def test_ring_of_each_channel_its_own_in_steps(benchmark):
    """Eight channels that leave each node of eight at another rank, as NCCL builds them."""
    n, channels = 1024, 8
    orders = [
        np.concatenate([node * 8 + np.roll(np.arange(8), -ch) for node in range(n // 8)])
        for ch in range(channels)
    ]
    pairs = np.concatenate([order * n + np.roll(order, -1) for order in orders])
    names, inverse = np.unique(pairs, return_inverse=True)
    conns = build.connections(
        [(int(x) // n, int(x) % n) for x in names],
        [[k] for k in range(len(names))],
        latency_s=1e-6,
    )
    stages = [
        build.lazy_stage(name, inverse, np.repeat(np.arange(channels), n), n - 1, GIB / n / 8)
        for name in ("reduce_scatter", "all_gather")
    ]
    plan = WavePlan(build.collective(conns, stages, n))
    rate = alone_rates(conns, np.full(len(names), RATE))
    wave = benchmark.pedantic(plan.run, (np.zeros(n), rate), rounds=3)
    assert np.isfinite(wave.rank_end_s).all()


def one_event_per_message(ring, capacity):
    """The same recurrence as a plain heap of departures and arrivals, on a ring of one channel."""
    conns, n = ring.connections, len(ring.group)
    rate, latency = alone_rates(conns, capacity).tolist(), conns.latency_s.tolist()
    size = float(ring.stages[0].edge_bytes[0]) / ring.stages[0].n_steps
    n_steps = sum(stage.n_steps for stage in ring.stages)
    sent, received, step = [0] * n, [0] * n, [0] * n
    heap = [(size / rate[slot], 0, slot) for slot in range(n)]
    heapq.heapify(heap)
    now = 0.0
    while heap:
        now, arrival, slot = heapq.heappop(heap)
        if arrival:
            received[slot] += 1
        else:
            sent[slot] += 1
            heapq.heappush(heap, (now + latency[slot], 1, (slot + 1) % n))
        following = step[slot] + 1
        if following < n_steps and sent[slot] >= following and received[slot] >= following:
            step[slot] = following
            heapq.heappush(heap, (now + size / rate[slot], 0, slot))
    return now


def test_wave_against_one_event_per_message(benchmark):
    """The ratio of their CPU times is kept with the result."""
    n = 256
    ring = build.ring_all_reduce(n, GIB, latency_s=1e-6)
    capacity = RATE * np.random.default_rng(0).uniform(0.5, 1, size=n)
    begin = time.process_time()
    plain_end_s = one_event_per_message(ring, capacity)
    plain_s = time.process_time() - begin
    plan, rate = WavePlan(ring), alone_rates(ring.connections, capacity)
    wave = benchmark(plan.run, np.zeros(n), rate)
    begin = time.process_time()
    plan.run(np.zeros(n), rate)
    benchmark.extra_info["plain loop over wave"] = plain_s / (time.process_time() - begin)
    assert wave.rank_end_s.max() == pytest.approx(plain_end_s)


def test_contending_rings_in_steps(benchmark):
    n = 32
    rings = [
        build.ring_all_reduce(n, GIB * (k + 1), latency_s=1e-6, group=np.arange(n) + k * n)
        for k in range(3)
    ]
    capacity = np.full(n, RATE)
    capacity[n // 3] *= 0.5
    programs = [program(r, 0.004 * k, f"job{k}") for k, r in enumerate(rings)]
    outcome = benchmark.pedantic(
        simulate, (build.network(capacity), programs), {"level": "steps"}, rounds=1
    )
    benchmark.extra_info["messages"] = 3 * 2 * n * (n - 1)
    benchmark.extra_info["events"] = outcome.n_events


# folded ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [128, 1024])
def test_three_overlapping_rings_with_a_slow_link_folded(benchmark, n):
    rings = [
        build.ring_all_reduce(n, GIB / 4 * (k + 1), latency_s=1e-6, group=np.arange(n) + k * n)
        for k in range(3)
    ]
    capacity = np.full(n, RATE)
    capacity[n // 3] *= 0.5
    programs = [program(r, 0.004 * k, f"job{k}") for k, r in enumerate(rings)]
    outcome = benchmark.pedantic(
        simulate, (build.network(capacity), programs), {"level": "folded"}, rounds=3
    )
    assert outcome.n_events <= 50


@pytest.mark.parametrize(
    "algorithm", ["ring", "tree", "double_binary_tree", "halving_doubling", "hierarchical"]
)
def test_all_reduce_on_16384_ranks_folded(benchmark, algorithm):
    network, what = scheduled("all_reduce", algorithm, 16384, GIB)
    benchmark.pedantic(simulate, (network, [program(what)]), {"level": "folded"}, rounds=1)


@pytest.mark.parametrize("algorithm", ["direct", "pairwise"])
def test_all_to_all_on_1024_ranks_folded(benchmark, algorithm):
    network, what = scheduled("all_to_all", algorithm, 1024, GIB)
    benchmark.pedantic(simulate, (network, [program(what)]), {"level": "folded"}, rounds=1)


def test_many_collectives_folded(benchmark):
    """A step of 2,000 calls on 1,024 ranks, half of them beside a compute."""
    n = 1024
    ring = build.ring_all_reduce(n, GIB / 64, latency_s=1e-6)
    operations = []
    for _ in range(1000):
        operations += [
            Start(collective=ring),
            Compute(name="layer", duration_s=1e-3),
            Start(collective=ring),
        ]
    step = Program(ranks=np.arange(n), operations=tuple(operations))
    network = build.network(np.full(n, RATE))
    outcome = benchmark.pedantic(simulate, (network, [step]), {"level": "folded"}, rounds=1)
    assert len(outcome.collectives) == 2000
