"""Folded phases against the same traffic message by message, within half a percent."""

import numpy as np
import pytest

from simulator.engine.phases import phases_of
from simulator.engine.simulate import simulate
from simulator.engine.traffic import LinkChange, Program, Start
from simulator.engine.validate import validate_run

N = 24
STEP_S = 80e-6
LATENCY_S = 1e-6
RATE = 50e9
SIZE = N * STEP_S * RATE


def both(network, programs, **options):
    outcomes = {}
    for level in ("steps", "folded"):
        outcomes[level] = simulate(network, programs, level=level, **options)
        validate_run(network, outcomes[level], programs)
        assert {r.level for r in outcomes[level].collectives} == {level}
    return outcomes["steps"], outcomes["folded"]


def agree(network, programs, rel=5e-3, **options):
    steps, folded = both(network, programs, **options)
    ends = {(r.communicator, r.index): r.end_s.max() for r in steps.collectives}
    for record in folded.collectives:
        assert record.end_s.max() == pytest.approx(ends[record.communicator, record.index], rel=rel)
    return steps, folded


def ring(build, k=0, size=SIZE, **options):
    return build.ring_all_reduce(
        N, size, latency_s=LATENCY_S, group=np.arange(N) + k * N, **options
    )


def jobs(*collectives, start_s=(0.0, 0.0, 0.0)):
    return [
        Program(
            ranks=c.group, operations=(Start(collective=c, communicator=f"job{i}"),), start_s=at
        )
        for i, (c, at) in enumerate(zip(collectives, start_s, strict=False))
    ]


@pytest.mark.parametrize("channels", [1, 4])
def test_alone(build, channels):
    steps, folded = agree(
        build.network(np.full(N, RATE)), jobs(ring(build, channels=channels)), rel=1e-9
    )
    assert folded.n_events < 10
    for (name, found), (_, expected) in zip(
        folded.collectives[0].stage_end_s, steps.collectives[0].stage_end_s, strict=True
    ):
        assert found == pytest.approx(expected, rel=2e-3), name
    assert folded.collectives[0].transfer_s == pytest.approx(steps.collectives[0].transfer_s)


@pytest.mark.parametrize("factor", [0.8, 0.2])
def test_slow_link(build, factor):
    capacity = np.full(N, RATE)
    capacity[5] *= factor
    agree(build.network(capacity), jobs(ring(build)), rel=1e-9)


def test_late_rank_and_skewed_start(build):
    for starts in ([0.0] * 7 + [1e-3] + [0.0] * (N - 8), np.linspace(0, 1e-3, N).tolist()):
        what = ring(build)
        programs = [
            Program(ranks=np.array([r]), operations=(Start(collective=what),), start_s=at)
            for r, at in enumerate(starts)
        ]
        agree(build.network(np.full(N, RATE)), programs)


def test_three_overlapping_rings_with_a_slow_link(build):
    capacity = np.full(N, RATE)
    capacity[5] *= 0.5
    rings = [ring(build, k, SIZE * (k + 1) / 2) for k in range(3)]
    agree(build.network(capacity), jobs(*rings, start_s=(0.0, 1e-3, 2.5e-3)))


def test_ring_and_point_to_point(build):
    send = build.send_recv(SIZE, [5], latency_s=LATENCY_S, group=(N, N + 1))
    agree(build.network(np.full(N, RATE)), jobs(ring(build), send, start_s=(0.0, 5e-4)))


def test_link_that_degrades_on_the_way(build):
    agree(
        build.network(np.full(N, RATE)),
        jobs(ring(build)),
        changes=[LinkChange(time_s=1e-3, link=7, factor=0.5)],
    )


def test_one_shot_exchange_takes_its_busiest_link(build):
    # All to all in one step: T = max over links of load / capacity; links in have room to spare.
    n = 5
    pairs = [(a, b) for a in range(n) for b in range(n) if a != b]
    conns = build.connections(pairs, [[a, n + b] for a, b in pairs], latency_s=0.5)
    part = build.stage("exchange", range(len(pairs)), [0] * len(pairs), [(None, 2.0)])
    exchange = build.collective(conns, [part], n)
    network = build.network([1.0] * n + [3.0] * n)
    _, folded = agree(network, jobs(exchange), rel=1e-12)
    assert folded.end_s == pytest.approx(2.0 * (n - 1) / 1.0 + 0.5)


def pipeline(build, pieces, rates, latency_s):
    """A chain of hops, each piece forwarded one step after it came."""
    hops = len(rates)
    conns = build.connections(
        [(i, i + 1) for i in range(hops)], [[i] for i in range(hops)], latency_s=latency_s
    )
    steps = []
    for k in range(pieces + hops - 1):
        live = [h for h in range(hops) if 0 <= k - h < pieces]
        steps.append((live, 1.0))
    return build.collective(conns, [build.stage("chain", range(hops), [0] * hops, steps)], hops + 1)


@pytest.mark.parametrize("pieces", [1, 2, 5, 200])
@pytest.mark.parametrize("slow", [1.0, 0.25])
def test_pipelined_chain(build, pieces, slow):
    # D hops of d + L, then the other P − 1 pieces behind at the slowest hop's d.
    rates = np.array([1.0, 1.0, slow, 1.0])
    chain = pipeline(build, pieces, rates, latency_s=0.5)
    expected = (1 / rates + 0.5).sum() + (pieces - 1) / rates.min()
    _, folded = agree(build.network(rates), jobs(chain), rel=1e-9)
    assert folded.end_s == pytest.approx(expected)
    assert folded.n_events < 20


def test_root_of_a_pipeline_goes_on_before_its_leaves(build):
    chain = pipeline(build, 4, np.ones(3), latency_s=0.0)
    steps, folded = both(build.network(np.ones(3)), jobs(chain))
    assert folded.rank_end_s == pytest.approx(steps.rank_end_s)
    assert folded.rank_end_s.tolist() == pytest.approx([4.0, 5.0, 6.0, 6.0])


def test_same_rings_in_a_row_are_one_phase(build):
    what = ring(build)
    phases = phases_of(what, np.full(N, RATE))
    assert [phase.stages for phase in phases] == [(0, 1)]


def test_two_sends_of_a_rank_over_one_link(build):
    # Both children of a node over its one link out: pieces leave at half rate each.
    pieces = 20
    conns = build.connections([(0, 1), (0, 2)], [[0, 1], [0, 2]], latency_s=0.5)
    part = build.stage("fan", [0, 1], [0, 0], [(None, 1.0)] * pieces)
    fan = build.collective(conns, [part], 3)
    _, folded = agree(build.network(np.ones(3)), jobs(fan), rel=1e-9)
    assert folded.end_s == pytest.approx(pieces * 2.0 + 0.5)


def test_rings_in_lockstep_take_turns_in_the_fold(build):
    # Begun together, the two rings' latencies coincide and each step takes 2 d + L; the fold
    # knows no lockstep and lets one send while the other waits, 2 d.
    rings = [ring(build, k) for k in range(2)]
    steps, folded = both(build.network(np.full(N, RATE)), jobs(*rings))
    n_steps = 2 * (N - 1)
    assert steps.end_s == pytest.approx(n_steps * (2 * STEP_S + LATENCY_S))
    assert folded.end_s == pytest.approx(n_steps * 2 * STEP_S, rel=1e-3)
