"""The reference equals pencil and paper."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest

from simulator.engine.traffic import Collective, Compute, LinkChange, Program, Start, Wait
from tests.reference import builders, closed_forms
from tests.reference.builders import Cable, Wires, collective, programs, stage
from tests.reference.max_min import is_max_min, progressive_filling
from tests.reference.message_sim import ReferenceOutcome, reference_simulate

GB = 1e9
US = 1e-6


def run(wires: Wires, what: Collective, starts_s: list[float] | float = 0.0) -> ReferenceOutcome:
    return reference_simulate(wires.network(), programs(what, starts_s))


def ends(outcome: ReferenceOutcome) -> list[float]:
    return [end_s for _, end_s in sorted(outcome.rank_end_s.items())]


# --- rings ------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [2, 3, 8])
def test_ring_all_reduce_is_its_formula(n: int) -> None:
    wires = Wires()
    outcome = run(wires, builders.ring(wires, n, 1e6 / n, 25 * GB, 3 * US))
    expected = closed_forms.ring_all_reduce(n, 1e6, 25 * GB, 3 * US)
    assert ends(outcome) == pytest.approx([expected] * n, rel=1e-12)


def test_ring_all_gather_is_its_formula() -> None:
    wires = Wires()
    outcome = run(wires, builders.ring(wires, 5, 2e5, 25 * GB, 3 * US, steps_of_stages=[4]))
    assert outcome.last_end_s == pytest.approx(
        closed_forms.ring_all_gather(5, 1e6, 25 * GB, 3 * US), rel=1e-12
    )


@pytest.mark.parametrize("n_channels", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("latency_s", [0.0, 1 * US, 5 * US, 100 * US])
def test_channels_of_one_connection_queue(n_channels: int, latency_s: float) -> None:
    # d = 1e5 B / 50 GB/s = 2 µs: the latencies stand for both sides of C·d = d + L.
    wires = Wires()
    what = builders.ring(wires, 4, 1e5, 50 * GB, latency_s, n_channels=n_channels)
    expected = closed_forms.channels_on_a_ring(6, n_channels, 2 * US, latency_s)
    assert ends(run(wires, what)) == pytest.approx([expected] * 4, rel=1e-12)


def test_launch_comes_before_the_first_send() -> None:
    wires = Wires()
    what = builders.ring(wires, 4, 1e5, 50 * GB, 1 * US, launch_s=7 * US)
    expected = 7 * US + closed_forms.ring_all_reduce(4, 4e5, 50 * GB, 1 * US)
    assert run(wires, what).last_end_s == pytest.approx(expected, rel=1e-12)


def test_late_rank_of_a_uniform_ring() -> None:
    starts_s = [0.0, 3 * US, 40 * US, 0.0, 1 * US, 0.0]
    wires = Wires()
    what = builders.ring(wires, 6, 1e5, 50 * GB, 1 * US)
    expected = closed_forms.ring_late_ranks(starts_s, 10, 2 * US, 1 * US)
    assert ends(run(wires, what, starts_s)) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("seed", range(5))
def test_heterogeneous_ring_is_a_max_plus_power(seed: int) -> None:
    dice = random.Random(seed)
    n = dice.randint(2, 7)
    rate_Bps = [dice.uniform(5, 50) * GB for _ in range(n)]
    latency_s = [dice.uniform(0, 5) * US for _ in range(n)]
    starts_s = [dice.uniform(0, 20) * US for _ in range(n)]
    wires = Wires()
    what = builders.ring(wires, n, 1e5, rate_Bps, latency_s, steps_of_stages=[13])
    expected = closed_forms.max_plus_ring(
        starts_s, 13, [1e5 / rate for rate in rate_Bps], latency_s
    )
    assert ends(run(wires, what, starts_s)) == pytest.approx(expected, rel=1e-12)


def test_max_plus_power_is_the_repeated_step() -> None:
    dice = random.Random(4)
    step = [[dice.choice([-math.inf, dice.uniform(0, 9)]) for _ in range(5)] for _ in range(5)]
    state = [dice.uniform(0, 9) for _ in range(5)]
    by_power = closed_forms.max_plus_apply(closed_forms.max_plus_power(step, 11), state)
    for _ in range(11):
        state = closed_forms.max_plus_apply(step, state)
    assert by_power == pytest.approx(state, rel=1e-12)


# --- chains and trees -------------------------------------------------------------------------


@pytest.mark.parametrize(("n", "k"), [(2, 1), (2, 5), (5, 1), (5, 9)])
@pytest.mark.parametrize("latency_s", [0.0, 1 * US, 9 * US])
def test_chain_is_pipelined(n: int, k: int, latency_s: float) -> None:
    wires = Wires()
    outcome = run(wires, builders.chain(wires, n, k, 1e5, 50 * GB, latency_s))
    assert outcome.last_end_s == pytest.approx(
        closed_forms.chain_pipelined(n, k, 2 * US, latency_s), rel=1e-12
    )


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("up", [False, True])
@pytest.mark.parametrize(("depth", "k"), [(1, 1), (1, 4), (3, 1), (3, 6)])
def test_tree_is_pipelined(depth: int, k: int, up: bool, shared: bool) -> None:
    wires = Wires()
    what = builders.tree(wires, depth, k, 1e5, 50 * GB, 3 * US, shared=shared, up=up)
    expected = closed_forms.binary_tree_pipelined(depth, k, 2 * US, 3 * US, shared_egress=shared)
    assert run(wires, what).last_end_s == pytest.approx(expected, rel=1e-12)


# --- patterns on a star -----------------------------------------------------------------------


def on_a_star(
    n: int, steps: list[dict[tuple[int, int], float]], rate_Bps: float, latency_s: float
) -> ReferenceOutcome:
    wires = Wires()
    route = builders.star(wires, n, rate_Bps)
    pairs = sorted({pair for step in steps for pair in step})
    cables = [
        Cable(src=src, dst=dst, links=route(src, dst), latency_s=latency_s) for src, dst in pairs
    ]
    edges = [(connection, 0) for connection in range(len(pairs))]
    by_edge = [{pairs.index(pair): size for pair, size in step.items()} for step in steps]
    return run(wires, collective("star", cables, [stage("steps", edges, by_edge)], group=range(n)))


@pytest.mark.parametrize("n", [2, 4, 8])
def test_halving_doubling_is_its_formula(n: int) -> None:
    q = n.bit_length() - 1
    halving = [{(r, r ^ (n >> i + 1)): 1e6 / 2 ** (i + 1) for r in range(n)} for i in range(q)]
    outcome = on_a_star(n, halving + halving[::-1], 25 * GB, 2 * US)
    expected = closed_forms.halving_doubling_all_reduce(n, 1e6, 25 * GB, 2 * US)
    assert ends(outcome) == pytest.approx([expected] * n, rel=1e-12)


@pytest.mark.parametrize("n", [2, 4, 8])
def test_recursive_doubling_is_its_formula(n: int) -> None:
    q = n.bit_length() - 1
    outcome = on_a_star(n, [{(r, r ^ 2**i): 1e6 for r in range(n)} for i in range(q)], GB, 2 * US)
    expected = closed_forms.recursive_doubling(n, 1e6, GB, 2 * US)
    assert ends(outcome) == pytest.approx([expected] * n, rel=1e-12)


@pytest.mark.parametrize("n", [2, 5, 8, 9])
def test_bruck_all_gather_is_its_formula(n: int) -> None:
    rounds = range((n - 1).bit_length())
    steps = [{((r + 2**j) % n, r): min(2**j, n - 2**j) * 1e6 / n for r in range(n)} for j in rounds]
    expected = closed_forms.bruck_all_gather(n, 1e6, GB, 2 * US)
    assert ends(on_a_star(n, steps, GB, 2 * US)) == pytest.approx([expected] * n, rel=1e-12)


@pytest.mark.parametrize("n", [2, 5, 8, 9])
def test_bruck_all_to_all_is_its_formula(n: int) -> None:
    steps = [
        {(r, (r + 2**j) % n): 1e5 * sum(i >> j & 1 for i in range(n)) for r in range(n)}
        for j in range((n - 1).bit_length())
    ]
    expected = closed_forms.bruck_all_to_all(n, 1e5, GB, 2 * US)
    assert ends(on_a_star(n, steps, GB, 2 * US)) == pytest.approx([expected] * n, rel=1e-12)


@pytest.mark.parametrize("n", [2, 5, 8])
def test_pairwise_all_to_all_is_its_formula(n: int) -> None:
    steps = [{(r, (r + i) % n): 1e5 for r in range(n)} for i in range(1, n)]
    expected = closed_forms.pairwise_all_to_all(n, 1e5, GB, 2 * US)
    assert ends(on_a_star(n, steps, GB, 2 * US)) == pytest.approx([expected] * n, rel=1e-12)


def test_all_to_all_at_once_shares_every_uplink() -> None:
    # Each uplink carries n−1 messages at once, each at B/(n−1): (n−1)·b/B + L.
    steps = [{(r, s): 1e5 for r in range(6) for s in range(6) if r != s}]
    outcome = on_a_star(6, steps, GB, 2 * US)
    assert ends(outcome) == pytest.approx([5 * 1e5 / GB + 2 * US] * 6, rel=1e-12)


@pytest.mark.parametrize("n", [2, 5, 16])
def test_barrier_costs_latency_only(n: int) -> None:
    steps = [{(r, (r + 2**j) % n): 0.0 for r in range(n)} for j in range((n - 1).bit_length())]
    expected = closed_forms.dissemination_barrier(n, 2 * US)
    assert ends(on_a_star(n, steps, GB, 2 * US)) == pytest.approx([expected] * n, rel=1e-12)


def test_hierarchical_all_reduce_is_its_formula() -> None:
    g, nodes, size = 4, 3, 1.2e6
    wires, cables = Wires(), []
    for node in range(nodes):
        for i in range(g):
            here, there = node * g + i, node * g + (i + 1) % g
            cables.append(Cable(src=here, dst=there, links=[wires.add(100 * GB)], latency_s=1 * US))
    for node in range(nodes):
        for i in range(g):
            here, there = node * g + i, (node + 1) % nodes * g + i
            cables.append(Cable(src=here, dst=there, links=[wires.add(25 * GB)], latency_s=5 * US))
    inside, rails = [(c, 0) for c in range(12)], [(c, 0) for c in range(12, 24)]
    stages = [
        stage("inside", inside, [dict.fromkeys(range(12), size / g)] * (g - 1)),
        stage("rails", rails, [dict.fromkeys(range(12), size / g / nodes)] * (2 * (nodes - 1))),
        stage("inside", inside, [dict.fromkeys(range(12), size / g)] * (g - 1)),
    ]
    expected = closed_forms.hierarchical_all_reduce(
        g, nodes, size, 100 * GB, 1 * US, 25 * GB, 5 * US
    )
    outcome = run(wires, collective("2-D", cables, stages, group=range(g * nodes)))
    assert ends(outcome) == pytest.approx([expected] * 12, rel=1e-12)


# --- sharing ----------------------------------------------------------------------------------


@pytest.mark.parametrize("later_s", [0.0, 10 * US, 50 * US, 100 * US, 300 * US])
@pytest.mark.parametrize("second_bytes", [1e5, 1e6, 3e6])
def test_two_flows_share_one_link(second_bytes: float, later_s: float) -> None:
    wires = Wires()
    link = wires.add(10 * GB)
    first = builders.point_to_point(1e6, [link], group=[0, 1])
    second = builders.point_to_point(second_bytes, [link], group=[2, 3])
    outcome = reference_simulate(
        wires.network(),
        programs(first, communicator="first") + programs(second, later_s, communicator="second"),
    )
    expected = closed_forms.two_flows_on_one_link(1e6, second_bytes, 10 * GB, later_s)
    leaves = {message.call[0]: message.leave_s for message in outcome.messages}
    assert (leaves["first"], leaves["second"]) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("sizes", [(1e6, 1e6, 1e6), (2e6, 1e5, 3e6), (1e5, 4e6, 1e6)])
def test_dumbbell_of_three(sizes: tuple[float, float, float]) -> None:
    wires = Wires()
    a, b = wires.add(10 * GB), wires.add(16 * GB)
    jobs = [
        programs(builders.point_to_point(size, path, group=[2 * i, 2 * i + 1]), communicator=str(i))
        for i, (size, path) in enumerate(zip(sizes, ([a, b], [a], [b]), strict=True))
    ]
    outcome = reference_simulate(wires.network(), [p for job in jobs for p in job])
    leaves = [message.leave_s for message in outcome.messages]
    assert leaves == pytest.approx(closed_forms.dumbbell_of_three(sizes, 10e9, 16e9), rel=1e-12)


def test_weight_counts_wire_bytes() -> None:
    # 1 MB of payload is 1.25 MB on a 10 GB/s wire: 125 µs.
    wires = Wires()
    what = builders.point_to_point(1e6, [wires.add(10 * GB)], weight=1.25)
    outcome = run(wires, what)
    assert outcome.last_end_s == pytest.approx(125 * US, rel=1e-12)
    assert outcome.link_bytes == pytest.approx({0: 1.25e6})


def test_capped_flow_leaves_the_rest_to_the_other() -> None:
    # 10 GB/s shared by a flow capped at 2 GB/s and a free one: 2 and 8 GB/s.
    wires = Wires()
    link = wires.add(10 * GB)
    capped = builders.point_to_point(1e6, [link], group=[0, 1], max_rate_Bps=2 * GB)
    free = builders.point_to_point(1e6, [link], group=[2, 3])
    outcome = reference_simulate(
        wires.network(), programs(capped, communicator="a") + programs(free, communicator="b")
    )
    assert ends(outcome)[1::2] == pytest.approx([500 * US, 125 * US], rel=1e-12)


def test_link_change_acts_on_messages_under_way() -> None:
    # 1 MB at 10 GB/s: 400 kB in 40 µs, the other 600 kB at a quarter of the rate in 240 µs; or
    # nothing between 40 and 90 µs and then the rest at full rate.
    wires = Wires()
    what = builders.point_to_point(1e6, [wires.add(10 * GB)])
    slower = [LinkChange(time_s=40 * US, link=0, factor=0.25)]
    outcome = reference_simulate(wires.network(), programs(what), changes=slower)
    assert outcome.last_end_s == pytest.approx(280 * US, rel=1e-12)
    pause = [
        LinkChange(time_s=40 * US, link=0, factor=0.0),
        LinkChange(time_s=90 * US, link=0, factor=1.0),
    ]
    outcome = reference_simulate(wires.network(), programs(what), changes=pause)
    assert outcome.last_end_s == pytest.approx(150 * US, rel=1e-12)
    with pytest.raises(RuntimeError, match=r"ranks \[0, 1\] never end"):
        reference_simulate(wires.network(), programs(what), changes=pause[:1])


def test_jitter_stretches_one_message() -> None:
    # Ring of 3, two steps; the message of hop 1 in step 0 takes 3d: after step 0 ranks 1 (own) and
    # 2 (from rank 1) stand at 3d, rank 0 at d; after step 1 all stand at 4d: rank 0 waits for
    # rank 2, the others for themselves.
    wires = Wires()
    what = builders.ring(wires, 3, 1e5, 50 * GB, 0.0, steps_of_stages=[2])
    jitter = {(0, 0, 1, 0): (3.0, 0.0)}
    outcome = reference_simulate(wires.network(), programs(what), jitter=jitter)
    assert ends(outcome) == pytest.approx([8 * US, 8 * US, 8 * US], rel=1e-12)
    leaves = [m.leave_s for m in outcome.messages if m.step == 0]
    assert leaves == pytest.approx([2 * US, 6 * US, 2 * US], rel=1e-12)


def test_message_overtaken_on_its_edge_is_still_the_one_waited_for() -> None:
    # Rank 0 sends pieces 0 and 1 (leave 2 and 4 µs), piece 0 is 20 µs late (arrives 22 µs) and is
    # overtaken.  Rank 1 passes piece 0 on from 22 to 24 µs, then piece 1 from 24 to 26 µs.
    wires = Wires()
    what = builders.chain(wires, 3, 2, 1e5, 50 * GB, 0.0)
    jitter = {(0, 0, 0, 0): (1.0, 20 * US)}
    outcome = reference_simulate(wires.network(), programs(what), jitter=jitter)
    assert ends(outcome) == pytest.approx([4 * US, 26 * US, 26 * US], rel=1e-12)


def test_connection_keeps_its_order_even_if_a_later_message_is_ready() -> None:
    # Rank 0 may send on channel 1 at once, but channel 0 of the same connection comes first and
    # waits for rank 2's message (10 µs).  d = 2 µs: they leave at 12 and 14 µs.
    wires = Wires()
    cables = [
        Cable(src=2, dst=0, links=[wires.add(10 * GB)]),
        Cable(src=0, dst=1, links=[wires.add(50 * GB)]),
    ]
    stages = [
        stage("in", [(0, 0)], [{0: 1e5}]),
        stage("out", [(1, 0), (1, 1)], [{0: 1e5, 1: 1e5}]),
    ]
    outcome = run(wires, collective("order", cables, stages, group=range(3)))
    leaves = [message.leave_s for message in outcome.messages if message.stage == 1]
    assert leaves == pytest.approx([12 * US, 14 * US], rel=1e-12)


def test_switch_is_there_from_the_first_call_on() -> None:
    # Ranks 0 and 1 send to switch slot 2, which answers both in the next step; rank 1 is 9 µs late.
    wires = Wires()
    route = builders.star(wires, 2, 50 * GB)
    pairs = [(0, 2), (1, 2), (2, 0), (2, 1)]
    cables = [Cable(src=s, dst=d, links=route(s, d), latency_s=1 * US) for s, d in pairs]
    edges = [(i, 0) for i in range(4)]
    steps = [{0: 1e5, 1: 1e5}, {2: 1e5, 3: 1e5}]
    what = collective("nvls", cables, [stage("all", edges, steps)], group=[0, 1], n_slots=3)
    assert ends(run(wires, what, [0.0, 9 * US])) == pytest.approx([15 * US] * 2, rel=1e-12)


# --- streams ----------------------------------------------------------------------------------


def test_streams_run_side_by_side_until_a_wait() -> None:
    # compute 10 | all_reduce 2·(2 + 1) = 6 from 0 to 6 | wait | compute 5: 15; with 3 µs of
    # compute it is the collective that is waited for: 6 + 5 = 11.
    for compute_s, expected_s in ((10 * US, 15 * US), (3 * US, 11 * US)):
        wires = Wires()
        what = builders.ring(wires, 2, 1e5, 50 * GB, 1 * US)
        program = Program(
            ranks=np.arange(2),
            operations=(
                Compute(name="forward", duration_s=compute_s),
                Start(collective=what),
                Wait(on="comm"),
                Compute(name="update", duration_s=5 * US),
            ),
        )
        outcome = reference_simulate(wires.network(), [program])
        assert ends(outcome) == pytest.approx([expected_s] * 2, rel=1e-12)


def test_wait_may_leave_the_latest_operations() -> None:
    # Two computes of 10 and 7 µs and a wait on stream a; b waits for both, or for the first, or
    # for none (waits are not counted out), and then computes for 9 µs.
    for leave, expected_s in ((0, 26 * US), (1, 19 * US), (2, 17 * US), (5, 17 * US)):
        program = Program(
            ranks=np.arange(1),
            operations=(
                Compute(name="first", duration_s=10 * US, stream="a"),
                Compute(name="second", duration_s=7 * US, stream="a"),
                Wait(on="c", stream="a"),
                Wait(on="a", stream="b", leave=leave),
                Compute(name="third", duration_s=9 * US, stream="b"),
            ),
        )
        wires = Wires()
        wires.add(1.0)
        outcome = reference_simulate(wires.network(), [program])
        assert ends(outcome) == pytest.approx([expected_s], rel=1e-12)


def test_calls_of_a_stream_follow_each_other_per_rank() -> None:
    # A rank without messages goes on at once: rank 2 of a send from 0 to 1 has nothing to do and
    # starts its next call, a message to rank 0, which is received after rank 0's send.
    wires = Wires()
    there = collective(
        "there",
        [Cable(src=0, dst=1, links=[wires.add(10 * GB)])],
        [stage("send", [(0, 0)], [{0: 1e5}])],
        group=range(3),
    )
    back = collective(
        "back",
        [Cable(src=2, dst=0, links=[wires.add(10 * GB)])],
        [stage("send", [(0, 0)], [{0: 1e5}])],
        group=range(3),
    )
    calls = (Start(collective=there), Start(collective=back))
    outcome = reference_simulate(wires.network(), [Program(ranks=np.arange(3), operations=calls)])
    assert ends(outcome) == pytest.approx([10 * US, 10 * US, 10 * US], rel=1e-12)
    assert outcome.call_s["world", 1] == pytest.approx({0: 10 * US, 1: 10 * US, 2: 0.0})


# --- max-min ----------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(30))
def test_progressive_filling_meets_the_bottleneck_condition(seed: int) -> None:
    dice = random.Random(seed)
    capacity = {link: dice.choice([1.0, 2.0, 5.0, dice.uniform(0.5, 9)]) for link in range(5)}
    routes = [
        dict.fromkeys(dice.sample(range(5), dice.randint(1, 4)), dice.choice([1.0, 1.0, 0.5, 1.3]))
        for _ in range(dice.randint(1, 12))
    ]
    limits = [dice.choice([math.inf, math.inf, 0.3, 1.0]) for _ in routes]
    rates = progressive_filling(capacity, routes, limits)
    assert is_max_min(capacity, routes, limits, rates)
    # The condition can fail: nobody may be a little faster or slower.
    for flow in range(len(routes)):
        for factor in (0.9, 1.1):
            other = [*rates[:flow], rates[flow] * factor, *rates[flow + 1 :]]
            assert not is_max_min(capacity, routes, limits, other)


def test_progressive_filling_of_a_known_case() -> None:
    # Bertsekas and Gallager's pattern: flows a: {0}, b: {0, 1}, c: {1}; capacities 1 and 3.
    # Link 0 freezes a and b at 0.5, c takes 2.5.  With b of weight 3 on link 0: a and b at 0.25.
    capacity = {0: 1.0, 1: 3.0}
    routes: list[dict[int, float]] = [{0: 1.0}, {0: 1.0, 1: 1.0}, {1: 1.0}]
    assert progressive_filling(capacity, routes, [math.inf] * 3) == pytest.approx([0.5, 0.5, 2.5])
    routes[1] = {0: 3.0, 1: 1.0}
    assert progressive_filling(capacity, routes, [math.inf] * 3) == pytest.approx(
        [0.25, 0.25, 2.75]
    )
