"""Messages as flows: equal to the wave where nothing is shared, and to themselves either way."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from simulator.engine import flows, network
from simulator.engine.jitter import JitterSpec
from simulator.engine.maxmin import max_min_rates, max_min_rates_few
from simulator.engine.run import Run
from simulator.engine.simulate import simulate
from simulator.engine.traffic import LinkChange, Network, Program, Start
from simulator.engine.validate import validate_run

seeds = st.integers(0, 2**32 - 1)


def programs_of(built, rng):
    """Ranks call at different times, some together."""
    starts = rng.choice([0.0, 0.0, 1.0, 2.5], size=len(built.group))
    return [
        Program(ranks=built.group[starts == at], operations=(Start(collective=built),), start_s=at)
        for at in np.unique(starts)
    ]


def times(outcome):
    """All times of all messages, in one order."""
    rows = sorted(
        (m.stage, m.step, c, ch, a, b, d)
        for m in outcome.messages
        for c, ch, a, b, d in zip(
            m.connection.tolist(),
            m.channel.tolist(),
            m.start_s.tolist(),
            m.leave_s.tolist(),
            m.arrive_s.tolist(),
            strict=True,
        )
    )
    return np.array([row[1:] for row in rows], dtype=float)


def run(built, capacity, programs, **options):
    net = network_of(capacity)
    outcome = simulate(net, programs, level="steps", record=True, **options)
    if "jitter" not in options:
        validate_run(net, outcome, programs)
    return outcome


def network_of(capacity):
    return Network(capacity_Bps=capacity, link_name=str)


@settings(max_examples=60, deadline=None)
@given(seed=seeds)
@example(seed=3208)  # the last message, to a switch, travels on when all ranks are done
def test_flows_equal_the_wave_where_nothing_is_shared(build, seed):
    rng = np.random.default_rng(seed)
    built, capacity = build.random_collective(rng)
    programs = programs_of(built, rng)
    wave = run(built, capacity, programs)
    claim = Run.claim
    Run.claim = lambda self, call: claim(self, call) or True
    try:
        one_by_one = run(built, capacity, programs)
    finally:
        Run.claim = claim
    assert one_by_one.rank_end_s == pytest.approx(wave.rank_end_s, rel=1e-12)
    assert times(one_by_one) == pytest.approx(times(wave), rel=1e-12)
    for a, b in zip(one_by_one.collectives, wave.collectives, strict=True):
        assert a.transfer_s == pytest.approx(b.transfer_s, rel=1e-9, abs=1e-12)
        assert [end for _, end in a.stage_end_s] == pytest.approx(
            [end for _, end in b.stage_end_s], rel=1e-12
        )


@settings(max_examples=60, deadline=None)
@given(seed=seeds, jitter=st.booleans())
def test_turning_a_wave_into_flows_changes_nothing(build, seed, jitter):
    # A link is "changed" to its own capacity on the way: the call goes on as flows, to the same
    # end, from messages left, on the wire, travelling and waiting.
    rng = np.random.default_rng(seed)
    built, capacity = build.random_collective(rng)
    programs = programs_of(built, rng)
    options = {}
    if jitter:
        options["jitter"] = JitterSpec(transfer_sigma=0.4, latency_s=0.3, skew_s=1.0)
    wave = run(built, capacity, programs, **options)
    at_s = float(rng.uniform(0, wave.end_s))
    link = int(rng.integers(len(capacity)))
    change = [LinkChange(time_s=at_s, link=link, factor=1.0)]
    turned = run(built, capacity, programs, changes=change, **options)
    assert turned.rank_end_s == pytest.approx(wave.rank_end_s, rel=1e-9)
    assert times(turned) == pytest.approx(times(wave), rel=1e-9)
    assert turned.link_bytes == pytest.approx(wave.link_bytes)
    for a, b in zip(turned.collectives, wave.collectives, strict=True):
        assert a.transfer_s == pytest.approx(b.transfer_s, rel=1e-6, abs=1e-9)


@pytest.fixture(scope="module")
def ways():
    """Constants that send everything through numpy, through single steps, or through both."""
    return {
        "numpy": {(network, "_BATCH"): -1, (network, "_CALM"): 10**9, (flows, "_FEW"): -1},
        "single": {(network, "_BATCH"): 10**9, (flows, "_FEW"): 10**9},
        "mixed": {
            (network, "_BATCH"): 2,
            (network, "_CALM"): 2,
            (network, "_FEW"): 2,
            (flows, "_FEW"): 2,
        },
    }


@settings(max_examples=60, deadline=None)
@given(seed=seeds)
def test_numpy_and_single_steps_agree_under_contention(build, ways, seed):
    rng = np.random.default_rng(seed)
    built, capacity = build.random_collective(rng, shared_links=True)
    other, _ = build.random_collective(rng, n_ranks=len(built.group), shared_links=True)
    moved = build.collective(
        build.connections(
            list(zip(other.connections.src.tolist(), other.connections.dst.tolist(), strict=True)),
            [[int(x) % len(capacity)] for x in range(len(other.connections.src))],
            latency_s=other.connections.latency_s,
        ),
        other.stages,
        group=other.group + 100,
        n_slots=other.n_slots,
        name="other",
    )
    beside = Program(ranks=moved.group, operations=(Start(collective=moved, communicator="o"),))
    programs = [*programs_of(built, rng), beside]
    ends = {}
    for name, constants in ways.items():
        kept = {place: getattr(*place) for place in constants}
        try:
            for (module, constant), value in constants.items():
                setattr(module, constant, value)
            ends[name] = run(built, capacity, programs).rank_end_s
        finally:
            for (module, constant), value in kept.items():
                setattr(module, constant, value)
    assert ends["numpy"] == pytest.approx(ends["single"], rel=1e-9)
    assert ends["mixed"] == pytest.approx(ends["single"], rel=1e-9)


@settings(max_examples=200, deadline=None)
@given(seed=seeds)
def test_few_flows_get_the_rates_of_many(seed):
    rng = np.random.default_rng(seed)
    n, n_links = int(rng.integers(1, 10)), int(rng.integers(1, 6))
    routes = [
        rng.choice(n_links, size=int(rng.integers(1, n_links + 1)), replace=False).tolist()
        for _ in range(n)
    ]
    weights = [rng.choice([0.5, 1.0, 1.3], size=len(route)).tolist() for route in routes]
    limits = rng.choice([0.2, 1.0, 9.0], size=n)
    capacity = rng.choice([0.0, 1.0, 2.0], size=n_links)
    many = max_min_rates(
        np.concatenate(([0], np.cumsum([len(route) for route in routes]))),
        np.array([x for route in routes for x in route]),
        np.array([x for weight in weights for x in weight]),
        capacity,
        limits,
    )
    few = max_min_rates_few(routes, weights, limits.tolist(), capacity)
    assert few == pytest.approx(many.tolist(), rel=1e-9, abs=1e-12)


def test_head_of_line_keeps_channels_in_order(build):
    # Channels 0 and 1 of one connection: channel 1 is ready first, but its message waits.
    conns = build.connections([(0, 1), (2, 0)], [[0], [1]])
    stages = [
        build.stage("wait", [1], [0], [(None, 3.0)]),
        build.stage("send", [0, 0], [0, 1], [(None, 1.0)]),
    ]
    pair = build.collective(conns, stages, 3)
    outcome = run(
        pair, np.ones(2), [Program(ranks=np.arange(3), operations=(Start(collective=pair),))]
    )
    # Rank 0's channel 0 receives until 3, then sends until 4; channel 1 follows until 5.
    assert outcome.rank_end_s.tolist() == [5.0, 5.0, 3.0]
