"""The wave against a plain loop, and against closed forms."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.engine.jitter import JitterSpec, MessageJitter
from simulator.engine.routes import alone_rates
from simulator.engine.wave import WavePlan


def run(built, capacity, call_s=None, **options):
    call_s = np.zeros(len(built.group)) if call_s is None else np.asarray(call_s, dtype=float)
    rate = alone_rates(built.connections, np.asarray(capacity, dtype=float))
    return WavePlan(built).run(call_s, rate, **options)


def logged(built, capacity, call_s, **options):
    log = []

    def sink(times):
        log.extend(
            zip(
                [times.stage] * len(times.edge),
                [times.step] * len(times.edge),
                times.edge.tolist(),
                times.start_s.tolist(),
                times.leave_s.tolist(),
                times.arrive_s.tolist(),
                strict=True,
            )
        )

    wave = run(built, capacity, call_s, sink=sink, **options)
    return wave, sorted(log)


@settings(max_examples=200, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_equals_the_plain_loop_on_random_collectives(build, seed):
    rng = np.random.default_rng(seed)
    built, capacity = build.random_collective(rng)
    call_s = rng.choice([0.0, 1.0], size=len(built.group)) * rng.random(len(built.group))
    ends, log = build.plain_wave(built, call_s, alone_rates(built.connections, capacity))
    wave, seen = logged(built, capacity, call_s)
    assert wave.rank_end_s.tolist() == ends.tolist()
    assert seen == log


def rings(build, rng, *, own_rings, uneven):
    """Several channels, each a ring: the same for all, or its own order of the ranks."""
    n, n_channels = int(rng.integers(2, 8)), int(rng.integers(1, 5))
    orders = [rng.permutation(n) if own_rings else np.arange(n) for _ in range(n_channels)]
    pairs = sorted({(int(o[i]), int(o[(i + 1) % n])) for o in orders for i in range(n)})
    conns = build.connections(
        pairs, [[i] for i in range(len(pairs))], latency_s=rng.random(len(pairs))
    )
    at = {pair: i for i, pair in enumerate(pairs)}
    edges = [
        (at[int(o[i]), int(o[(i + 1) % n])], ch) for ch, o in enumerate(orders) for i in range(n)
    ]
    rng.shuffle(edges)
    steps = [
        (None, rng.random(len(edges)) if uneven else 1.0 + (step > 3)) for step in range(2 * n)
    ]
    part = [e[0] for e in edges], [e[1] for e in edges]
    stages = [build.stage("a", *part, steps), build.stage("b", *part, steps)]
    return build.collective(conns, stages, n), rng.uniform(0.5, 2, size=len(pairs))


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), own_rings=st.booleans(), uneven=st.booleans())
def test_ring_layouts_equal_the_plain_loop(build, seed, own_rings, uneven):
    rng = np.random.default_rng(seed)
    built, capacity = rings(build, rng, own_rings=own_rings, uneven=uneven)
    call_s = rng.random(len(built.group))
    ends, log = build.plain_wave(built, call_s, alone_rates(built.connections, capacity))
    wave, seen = logged(built, capacity, call_s)
    assert wave.rank_end_s.tolist() == ends.tolist()
    assert seen == log
    assert run(built, capacity, call_s).rank_end_s.tolist() == ends.tolist()


@pytest.mark.parametrize("n", [2, 3, 8, 33])
def test_ring_all_reduce_takes_its_closed_form(build, n):
    # 2(n−1) steps of S/n bytes, each α + S/(nB): 2(n−1)(α + S/(nB)).
    alpha, size, bandwidth = 2e-6, 1e6, 1e9
    built = build.ring_all_reduce(n, size, latency_s=alpha)
    expected = 2 * (n - 1) * (alpha + size / (n * bandwidth))
    wave = run(built, np.full(n, bandwidth))
    assert wave.rank_end_s == pytest.approx(np.full(n, expected), rel=1e-12)


@pytest.mark.parametrize("latency_s", [0.0, 1e-6, 1e-5, 1e-4, 1e-3])
def test_channels_hide_latency_behind_each_other(build, latency_s):
    # C channels share a connection.  Either it never rests, K·C messages and one last latency;
    # or a channel waits for its own round trip, K·(d + L), and the last one is C−1 behind.
    n, channels, size, bandwidth = 9, 4, 1e6, 1e9
    d, k = size / n / channels / bandwidth, 2 * (n - 1)
    built = build.ring_all_reduce(n, size, channels=channels, latency_s=latency_s)
    expected = max(k * channels * d + latency_s, k * (d + latency_s) + (channels - 1) * d)
    assert run(built, np.full(n, bandwidth)).rank_end_s.max() == pytest.approx(expected, rel=1e-12)


def test_late_rank_delays_the_ring_by_its_lateness(build):
    # t[r] after k steps = max over j ≤ k of s[r−j] + k·d; with k ≥ n−1 that is max(s) + k·d.
    n, d = 8, 1.0
    built = build.ring_all_reduce(n, float(n))
    call_s = np.array([0, 0, 0, 0.7, 0, 0, 0.3, 0])
    assert run(built, np.ones(n), call_s).rank_end_s == pytest.approx(
        np.full(n, 0.7 + 2 * (n - 1) * d)
    )


def test_slow_link_sets_the_pace(build):
    # One link at half speed: every step of the steady state takes its 2 d, and the message that
    # crossed it last still has n−1 … no further hop to make: 2(n−1)·2d.
    n = 8
    built = build.ring_all_reduce(n, float(n))
    capacity = np.ones(n)
    capacity[3] = 0.5
    assert run(built, capacity).rank_end_s.max() == pytest.approx(2 * (n - 1) * 2.0)


def test_rank_that_depends_on_a_missing_one_never_ends(build):
    chain = build.collective(
        build.connections([(0, 1), (1, 2)], [[0], [1]]),
        [build.stage("s", [0, 1], [0, 0], [([0], 1.0), ([1], 1.0)])],
        3,
    )
    # Rank 1 is missing: rank 0 has sent, ranks 1 and 2 cannot end.
    assert run(chain, [1.0, 1.0], [0.0, np.inf, 0.0]).rank_end_s.tolist() == [1.0, np.inf, np.inf]


def test_jitter_is_seeded_and_the_same_on_both_paths(build):
    spec = JitterSpec(transfer_sigma=0.3, latency_s=0.1)
    rng = np.random.default_rng(5)
    built, capacity = rings(build, rng, own_rings=False, uneven=False)
    call_s = np.zeros(len(built.group))
    jitter = MessageJitter(spec, 7)
    first, log = logged(built, capacity, call_s, jitter=jitter)
    plan = WavePlan(built)
    for part in plan._stages:
        part.ring = None  # force the general path
    rate = alone_rates(built.connections, capacity)
    general = plan.run(call_s, rate, jitter=jitter.again())
    assert general.rank_end_s.tolist() == first.rank_end_s.tolist()
    assert general.busy_s == pytest.approx(first.busy_s)
    other = run(built, capacity, call_s, jitter=MessageJitter(spec, 8))
    assert other.rank_end_s.tolist() != first.rank_end_s.tolist()
    assert log


def test_busy_time_is_bytes_over_rate(build):
    built = build.ring_all_reduce(4, 4.0, latency_s=3.0)
    # 6 messages of 1 byte at 2 bytes/s.
    assert run(built, np.full(4, 2.0)).busy_s.tolist() == [3.0] * 4


def test_steps_of_one_size_after_steps_of_several(build):
    # d = 2, 4, 6 in step 0, then 2 everywhere.  After step 0 the ranks stand at the later of
    # their own message and the left neighbour's, 6, 4, 6; after step 1 at 8, 8, 8.
    n = 3
    conns = build.connections([(i, (i + 1) % n) for i in range(n)], [[i] for i in range(n)])
    steps = [(None, np.array([2.0, 4.0, 6.0])), (None, 2.0)]
    ring = build.collective(conns, [build.stage("s", range(n), [0] * n, steps)], n)
    assert run(ring, np.ones(n)).rank_end_s.tolist() == [8.0, 8.0, 8.0]
