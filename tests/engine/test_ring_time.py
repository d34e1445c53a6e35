"""The closed form of rings against the wave."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.engine import ring_time as module
from simulator.engine.ring_time import ring_time
from simulator.engine.wave import WavePlan


def wave_time(build, hop_latency_s, rate_Bps, size_bytes, n_steps, channels):
    n = len(rate_Bps)
    conns = build.connections(
        [(i, (i + 1) % n) for i in range(n)], [[i] for i in range(n)], latency_s=hop_latency_s
    )
    part = build.lazy_stage(
        "s", np.tile(np.arange(n), channels), np.repeat(np.arange(channels), n), n_steps, size_bytes
    )
    ring = build.collective(conns, [part], n)
    return WavePlan(ring).run(np.zeros(n), np.asarray(rate_Bps)).rank_end_s.max()


def closed_form(latency_s, rate_Bps, size_bytes, n_steps, channels):
    message_s = size_bytes / np.asarray(rate_Bps)
    return ring_time(message_s + latency_s, channels * message_s, message_s, n_steps)


@settings(max_examples=200, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_equals_the_wave_on_random_rings(build, seed):
    # T = max over windows of h hops: sum (d + L) + max ((K − h + 1) C d − d).
    rng = np.random.default_rng(seed)
    n, channels = int(rng.integers(2, 9)), int(rng.integers(1, 5))
    n_steps = int(rng.integers(1, 3 * n))
    rate = rng.uniform(0.3, 3.0, size=n)
    latency = rng.random(n) * rng.choice([0.0, 0.3, 5.0])
    expected = wave_time(build, latency, rate, 1.0, n_steps, channels)
    assert closed_form(latency, rate, 1.0, n_steps, channels) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("latency_s", [0.0, 0.5, 50.0])
def test_uniform_ring(build, latency_s):
    # K C d + L while bandwidth rules, K (d + L) + (C − 1) d while latency does.
    n, channels, k = 6, 3, 10
    d = 1.0
    expected = max(k * channels * d + latency_s, k * (d + latency_s) + (channels - 1) * d)
    found = closed_form(np.full(n, latency_s), np.ones(n), d, k, channels)
    assert found == pytest.approx(expected, rel=1e-12)
    assert wave_time(build, latency_s, np.ones(n), d, k, channels) == pytest.approx(expected)


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_long_rings_keep_to_the_wave(build, seed):
    # Nodes of eight: seven fast hops and one over the network, some slow or far.
    rng = np.random.default_rng(seed)
    n = 48
    rate = np.where(np.arange(n) % 8 == 7, 1.0, 8.0)
    rate[rng.integers(n)] *= 0.5
    latency = np.where(np.arange(n) % 8 == 7, 0.5, 0.1) * rng.choice([0.01, 1.0, 20.0])
    k = 2 * (n - 1)
    expected = wave_time(build, latency, rate, 1.0, k, 1)
    limit, module._EXACT_CELLS = module._EXACT_CELLS, 0
    try:
        found = closed_form(latency, rate, 1.0, k, 1)
    finally:
        module._EXACT_CELLS = limit
    assert found == pytest.approx(expected, rel=2e-3)
