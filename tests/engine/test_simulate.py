"""Programs, calls and the choice of how to simulate them, against closed forms."""

import numpy as np
import pytest

from simulator.base.errors import RoutingError, SimulationError
from simulator.engine.jitter import JitterSpec
from simulator.engine.simulate import simulate
from simulator.engine.traffic import Compute, LinkChange, Program, Start, Wait
from simulator.engine.validate import validate_run

LEVELS = ["steps", "folded"]


def program(ranks, *operations, start_s=0.0):
    return Program(
        ranks=np.atleast_1d(np.asarray(ranks)), operations=tuple(operations), start_s=start_s
    )


def checked(network, programs, *, rerouted=False, **options):
    outcome = simulate(network, programs, **options)
    validate_run(network, outcome, programs, rerouted=rerouted)
    return outcome


def record_of(outcome, communicator="world", index=0):
    (found,) = [
        r for r in outcome.collectives if (r.communicator, r.index) == (communicator, index)
    ]
    return found


# Closed forms ---------------------------------------------------------------------------------


@pytest.mark.parametrize("level", ["auto", *LEVELS])
def test_ring_all_reduce(build, level):
    # 2(n−1)(α + S/(nB)).
    n, size, alpha, bandwidth = 16, 1e6, 1e-6, 1e9
    ring = build.ring_all_reduce(n, size, latency_s=alpha, launch_s=5e-6)
    network = build.network(np.full(n, bandwidth))
    outcome = checked(network, [program(np.arange(n), Start(collective=ring))], level=level)
    assert outcome.end_s == pytest.approx(
        5e-6 + 2 * (n - 1) * (alpha + size / n / bandwidth), rel=1e-12
    )
    assert outcome.collectives[0].level == ("folded" if level == "folded" else "steps")
    # Each link carries all steps: 2(n−1)/n S.
    assert outcome.link_bytes == pytest.approx(np.full(n, 2 * (n - 1) / n * size))


@pytest.mark.parametrize("level", LEVELS)
def test_point_to_point(build, level):
    # Sender: S/B.  Receiver: S/B + α.
    network = build.network([2.0, 4.0])
    send = build.send_recv(8.0, [0, 1], latency_s=0.5)
    outcome = checked(network, [program([0, 1], Start(collective=send))], level=level)
    assert outcome.rank_end_s.tolist() == [4.0, 4.5]


@pytest.mark.parametrize("level", LEVELS)
def test_two_flows_share_a_link_equally(build, level):
    # 8 and 4 bytes at 1 byte/s each until 4 s, then the longer alone at 2: 4 + 4/2.
    network = build.network([2.0])
    sends = [
        build.send_recv(8.0, [0], group=(0, 1)),
        build.send_recv(4.0, [0], group=(2, 3)),
    ]
    programs = [program(s.group, Start(collective=s)) for s in sends]
    outcome = checked(network, programs, level=level)
    assert outcome.rank_end_s.tolist() == pytest.approx([6.0, 6.0, 4.0, 4.0])


@pytest.mark.parametrize("level", LEVELS)
def test_late_flow_slows_the_first_down(build, level):
    # The first has sent 4 of 8 bytes when the second comes at 2 s; 1 byte/s each: both done 4 s
    # later, at 6 s.
    network = build.network([2.0])
    first = build.send_recv(8.0, [0], group=(0, 1))
    second = build.send_recv(4.0, [0], group=(2, 3))
    programs = [
        program([0, 1], Start(collective=first)),
        program([2, 3], Start(collective=second), start_s=2.0),
    ]
    outcome = checked(network, programs, level=level)
    assert outcome.rank_end_s.tolist() == pytest.approx([6.0, 6.0, 6.0, 6.0])


@pytest.mark.parametrize("level", LEVELS)
def test_edges_of_one_call_share_their_link(build, level):
    # Both halves of a 4-ring's links are one link: 2 messages at once, each at half rate.
    ring = build.ring_all_reduce(4, 4.0, links=[0, 0, 1, 1])
    network = build.network([1.0, 1.0])
    outcome = checked(network, [program(np.arange(4), Start(collective=ring))], level=level)
    assert outcome.end_s == pytest.approx(6 * 2.0)


def test_stages_apart_in_time_stay_on_the_wave(build):
    # Two stages over one link, one after the other by program order: no contention.
    conns = build.connections([(0, 1), (1, 2)], [[0], [0]])
    stages = [
        build.stage("first", [0], [0], [(None, 2.0)]),
        build.stage("then", [1], [0], [(None, 2.0)]),
    ]
    chain = build.collective(conns, stages, 3)
    network = build.network([1.0])
    outcome = checked(network, [program(np.arange(3), Start(collective=chain))], level="steps")
    assert outcome.rank_end_s.tolist() == [2.0, 4.0, 4.0]
    assert outcome.n_events <= 6  # a start, a decision and an end per instant: no flows


def test_same_chain_contends_when_the_second_does_not_wait(build):
    # 0 → 1 and 2 → 3 over one link, in two stages: no program order between them.
    conns = build.connections([(0, 1), (2, 3)], [[0], [0]])
    stages = [
        build.stage("first", [0], [0], [(None, 2.0)]),
        build.stage("then", [1], [0], [(None, 2.0)]),
    ]
    pair = build.collective(conns, stages, 4)
    network = build.network([1.0])
    outcome = checked(network, [program(np.arange(4), Start(collective=pair))], level="steps")
    assert outcome.rank_end_s.tolist() == pytest.approx([4.0] * 4)


# Streams --------------------------------------------------------------------------------------


def test_streams_overlap_and_wait(build):
    # compute 3; all_reduce from 3 to 3 + 6; compute 1 overlaps; wait until 9; compute 2 → 11.
    ring = build.ring_all_reduce(4, 4.0)
    network = build.network(np.ones(4))
    work = program(
        np.arange(4),
        Compute(name="backward", duration_s=3.0),
        Wait(on="compute", stream="comm"),
        Start(collective=ring),
        Compute(name="more", duration_s=1.0),
        Wait(on="comm"),
        Compute(name="step", duration_s=2.0),
    )
    outcome = checked(network, [work], record=True)
    assert outcome.rank_end_s == pytest.approx(np.full(4, 11.0))
    mine = [i for i in outcome.intervals if i.rank == 2]
    assert [(i.stream, i.kind, i.start_s, i.end_s) for i in mine] == [
        ("comm", "wait", 0.0, 3.0),
        ("compute", "compute", 0.0, 3.0),
        ("comm", "collective", 3.0, 9.0),
        ("compute", "compute", 3.0, 4.0),
        ("compute", "wait", 4.0, 9.0),
        ("compute", "compute", 9.0, 11.0),
    ]


def test_only_the_first_rank_of_a_program_is_noted_without_record(build):
    work = program(np.arange(4), Compute(name="a", duration_s=1.0))
    outcome = checked(build.network([1.0]), [work])
    assert [interval.rank for interval in outcome.intervals] == [0]


def test_late_rank(build):
    # Everyone ends at max(s) + T.
    n = 8
    ring = build.ring_all_reduce(n, float(n), latency_s=0.25)
    network = build.network(np.ones(n))
    late = [
        program(np.delete(np.arange(n), 3), Start(collective=ring)),
        program([3], Compute(name="slow", duration_s=5.0, stream="comm"), Start(collective=ring)),
    ]
    expected = 5.0 + 2 * (n - 1) * 1.25
    for level in LEVELS:
        outcome = checked(network, late, level=level)
        assert outcome.end_s == pytest.approx(expected)
        record = outcome.collectives[0]
        assert record.call_s.tolist() == [0, 0, 0, 5, 0, 0, 0, 0]


def test_compute_slows_down_while_its_rank_communicates(build):
    # all_reduce from 0 to 6 s; compute of 10 s goes at 1/1.5 for 6 s (4 s done), then 6 s more.
    ring = build.ring_all_reduce(4, 4.0)
    work = program(np.arange(4), Start(collective=ring), Compute(name="gemm", duration_s=10.0))
    outcome = checked(build.network(np.ones(4)), [work], compute_slowdown=0.5)
    assert outcome.rank_end_s == pytest.approx(np.full(4, 12.0))
    assert checked(build.network(np.ones(4)), [work]).end_s == pytest.approx(10.0)


def test_calls_match_by_order_within_a_communicator(build):
    big, small = build.ring_all_reduce(2, 8.0), build.ring_all_reduce(2, 2.0)
    work = program([0, 1], Start(collective=big), Start(collective=small))
    outcome = checked(build.network(np.ones(2)), [work])
    assert [r.index for r in outcome.collectives] == [0, 1]
    # 2 steps of 4 bytes, then 2 of 1.
    assert [r.end_s.max() for r in outcome.collectives] == pytest.approx([8.0, 10.0])


def test_a_sender_does_not_wait_for_its_receiver(build):
    # 0 sends to 1 and goes on at 2 s, though 1 calls at 10 s only; 1 has it at once.
    send = build.send_recv(2.0, [0])
    programs = [
        program([0], Start(collective=send)),
        program([1], Start(collective=send), start_s=10.0),
    ]
    for level in LEVELS:
        outcome = checked(build.network([1.0]), programs, level=level)
        assert outcome.rank_end_s.tolist() == [2.0, 10.0]


def test_early_ranks_of_a_tree_go_on_before_the_last_calls(build):
    # A chain 0 → 1 → 2: rank 0 ends at 1 s, rank 1 at 2 s, whenever 2 calls.
    chain = build.collective(
        build.connections([(0, 1), (1, 2)], [[0], [1]]),
        [build.stage("s", [0, 1], [0, 0], [([0], 1.0), ([1], 1.0)])],
        3,
    )
    programs = [
        program([0, 1], Start(collective=chain)),
        program([2], Start(collective=chain), start_s=10.0),
    ]
    outcome = checked(build.network([1.0, 1.0]), programs, level="steps")
    assert outcome.rank_end_s.tolist() == [1.0, 2.0, 10.0]


# Sharing between calls ------------------------------------------------------------------------


def test_wave_turns_into_flows_when_another_job_comes(build):
    # Ring a alone for 7 of its 14 steps of 1 s; then b on the same links: each at half rate.
    n = 8
    a = build.ring_all_reduce(n, float(n), name="a")
    b = build.ring_all_reduce(n, float(n), group=np.arange(n) + n, name="b")
    network = build.network(np.ones(n))
    programs = [
        program(np.arange(n), Start(collective=a, communicator="a")),
        program(np.arange(n) + n, Start(collective=b, communicator="b"), start_s=7.0),
    ]
    for level in LEVELS:
        outcome = checked(network, programs, level=level, record=level == "steps")
        # a: 7 s + 7 messages at half rate = 21 s.  b: 7 messages by then, 7 more alone: 28 s.
        assert record_of(outcome, "a").end_s == pytest.approx(np.full(n, 21.0))
        assert record_of(outcome, "b").end_s == pytest.approx(np.full(n, 28.0))
        # Busy from end to end.
        assert record_of(outcome, "a").transfer_s == pytest.approx(np.full(n, 21.0))


def test_jobs_on_links_with_room_for_both_stay_apart(build):
    # Each message is capped at half the link: two jobs fit, on the wave, as if alone.
    n = 4
    rings = [
        build.ring_all_reduce(n, float(n), max_rate_Bps=0.5, group=np.arange(n) + k * n)
        for k in (0, 1)
    ]
    programs = [program(r.group, Start(collective=r)) for r in rings]
    outcome = checked(build.network(np.ones(n)), programs, level="steps")
    assert outcome.end_s == pytest.approx(2 * (n - 1) * 2.0)
    assert outcome.n_events <= 8


def test_order_of_programs_changes_nothing(build):
    rings = [
        build.ring_all_reduce(4, 4.0, latency_s=0.1, group=np.arange(4) + 4 * k) for k in range(3)
    ]
    programs = [program(r.group, Start(collective=r), start_s=0.3 * k) for k, r in enumerate(rings)]
    network = build.network(np.ones(4))
    for level in LEVELS:
        first = checked(network, programs, level=level)
        second = checked(network, programs[::-1], level=level)
        assert first.rank_end_s == pytest.approx(second.rank_end_s, rel=1e-12)


@pytest.mark.parametrize("level", LEVELS)
def test_doubled_bandwidth_halves_communication_without_latency(build, level):
    rings = [build.ring_all_reduce(4, 4.0, group=np.arange(4) + 4 * k) for k in range(2)]
    programs = [program(r.group, Start(collective=r)) for r in rings]
    slow = checked(build.network(np.ones(4)), programs, level=level)
    fast = checked(build.network(np.full(4, 2.0)), programs, level=level)
    assert fast.end_s == pytest.approx(slow.end_s / 2)


# Links that change ----------------------------------------------------------------------------


@pytest.mark.parametrize("level", LEVELS)
def test_degraded_link_stretches_what_remains(build, level):
    # 10 bytes at 1 byte/s; at 4 s the link halves: 6 bytes more at 0.5 → 16 s.
    send = build.send_recv(10.0, [0])
    outcome = checked(
        build.network([1.0]),
        [program([0, 1], Start(collective=send))],
        level=level,
        changes=[LinkChange(time_s=4.0, link=0, factor=0.5)],
    )
    assert outcome.end_s == pytest.approx(16.0)


@pytest.mark.parametrize("level", LEVELS)
def test_failed_link_is_left_for_another_of_half_the_rate(build, level):
    # 4 bytes over link 0; then link 1 at half rate takes the other 6: 4 + 12.
    send = build.send_recv(10.0, [0])

    def reroute(collective, dead):
        assert dead == frozenset({0})
        return build.connections([(0, 1)], [[1]])

    outcome = checked(
        build.network([1.0, 0.5]),
        [program([0, 1], Start(collective=send))],
        level=level,
        changes=[LinkChange(time_s=4.0, link=0, factor=0.0)],
        reroute=reroute,
        rerouted=True,
    )
    assert outcome.end_s == pytest.approx(16.0)
    assert outcome.link_bytes == pytest.approx([4.0, 6.0])


@pytest.mark.parametrize("level", LEVELS)
def test_rerouted_ring_shares_the_link_that_is_left(build, level):
    # Link 0 of a 4-ring fails at 3 s, half way through its 6 steps; its messages take link 1
    # beside those of connection 1: from then on each step takes 2 s.
    ring = build.ring_all_reduce(4, 4.0)

    def reroute(collective, dead):
        return build.ring_all_reduce(4, 4.0, links=[1, 1, 2, 3]).connections

    outcome = checked(
        build.network(np.ones(4)),
        [program(np.arange(4), Start(collective=ring))],
        level=level,
        changes=[LinkChange(time_s=3.0, link=0, factor=0.0)],
        reroute=reroute,
        rerouted=True,
    )
    assert outcome.end_s == pytest.approx(3.0 + 3 * 2.0)
    assert outcome.link_bytes == pytest.approx([3.0, 9.0, 6.0, 6.0])


def test_later_calls_avoid_a_dead_link_and_return_when_it_is_back(build):
    send = build.send_recv(1.0, [0])
    calls = []

    def reroute(collective, dead):
        calls.append(dead)
        return build.connections([(0, 1)], [[1]])

    work = program(
        [0, 1],
        Compute(name="a", duration_s=2.0, stream="comm"),
        Start(collective=send),
        Start(collective=send),
        Compute(name="b", duration_s=5.0, stream="comm"),
        Start(collective=send),
    )
    outcome = checked(
        build.network([1.0, 1.0]),
        [work],
        changes=[
            LinkChange(time_s=1.0, link=0, factor=0.0),
            LinkChange(time_s=6.0, link=0, factor=1.0),
        ],
        reroute=reroute,
        rerouted=True,
    )
    assert outcome.link_bytes.tolist() == [1.0, 2.0]
    assert len(calls) == 1  # the second call reuses the routes


@pytest.mark.parametrize("level", LEVELS)
def test_cut_fabric_names_the_link_and_the_pair(build, level):
    send = build.send_recv(10.0, [0], group=(4, 9), name="send_recv 10 B")
    programs = [program([4, 9], Start(collective=send, communicator="pp"))]
    change = [LinkChange(time_s=4.0, link=0, factor=0.0)]
    with pytest.raises(SimulationError, match=r"send_recv 10 B .*'pp', call 0.*t = 4 s.*link0"):
        simulate(build.network([1.0]), programs, level=level, changes=change)
    with pytest.raises(SimulationError, match="rank 4 → rank 9"):
        simulate(build.network([0.0]), programs, level=level)

    def no_path(collective, dead):
        raise RoutingError("no path")

    with pytest.raises(SimulationError, match="link0"):
        simulate(build.network([0.0]), programs, level=level, reroute=no_path)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("with_router", [False, True])
def test_a_cut_that_ends_is_waited_for(build, level, with_router):
    # 4 bytes until the cut at 4 s, nothing until 9 s, then the other 6: 9 + 6.
    def no_path(collective, dead):
        raise RoutingError("no path")

    outcome = checked(
        build.network([1.0]),
        [program([0, 1], Start(collective=build.send_recv(10.0, [0])))],
        level=level,
        changes=[
            LinkChange(time_s=4.0, link=0, factor=0.0),
            LinkChange(time_s=9.0, link=0, factor=1.0),
        ],
        reroute=no_path if with_router else None,
    )
    assert outcome.end_s == pytest.approx(15.0)
    assert outcome.link_bytes == pytest.approx([10.0])


@pytest.mark.parametrize("level", LEVELS)
def test_a_call_that_begins_during_a_cut_waits_and_leaves_what_it_shares_to_others(build, level):
    # Both sends cross link 1 (1 byte/s).  Link 0 is back at half its rate at 5 s: until then the
    # second send goes alone, 5 of its 8 bytes; then both run at 0.5: 5 + 3 / 0.5 = 11 s.  The
    # first has 10 - 3 bytes left and is held at 0.5 by link 0: 11 + 7 / 0.5 = 25 s.
    first, second = build.send_recv(10.0, [0, 1]), build.send_recv(8.0, [1], group=(2, 3))
    outcome = checked(
        build.network([1.0, 1.0]),
        [
            program([0, 1], Start(collective=first, communicator="a")),
            program([2, 3], Start(collective=second, communicator="b")),
        ],
        level=level,
        changes=[
            LinkChange(time_s=0.0, link=0, factor=0.0),
            LinkChange(time_s=5.0, link=0, factor=0.5),
        ],
    )
    assert record_of(outcome, "b").end_s == pytest.approx([11.0, 11.0])
    assert record_of(outcome, "a").end_s == pytest.approx([25.0, 25.0])


@pytest.mark.parametrize("level", LEVELS)
def test_a_ring_waits_for_one_of_its_links(build, level):
    # Six steps of 1 s; link 2 is away from 2 s to 7 s, between two steps.
    outcome = checked(
        build.network(np.ones(4)),
        [program(np.arange(4), Start(collective=build.ring_all_reduce(4, 4.0)))],
        level=level,
        changes=[
            LinkChange(time_s=2.0, link=2, factor=0.0),
            LinkChange(time_s=7.0, link=2, factor=1.0),
        ],
    )
    assert outcome.end_s == pytest.approx(6.0 + 5.0)


def test_a_cut_without_end_is_an_error_though_another_link_comes_back(build):
    changes = [
        LinkChange(time_s=1.0, link=0, factor=0.0),
        LinkChange(time_s=2.0, link=1, factor=0.0),
        LinkChange(time_s=9.0, link=0, factor=1.0),
    ]
    send = build.send_recv(10.0, [0, 1])
    with pytest.raises(SimulationError, match=r"t = 2 s: no capacity on link1,") as error:
        simulate(
            build.network([1.0, 1.0]), [program([0, 1], Start(collective=send))], changes=changes
        )
    assert "link0" not in str(error.value)


@pytest.mark.parametrize("level", LEVELS)
def test_a_second_failure_asks_for_routes_of_the_call_as_given(build, level):
    # 2 bytes on link 0, 3 on link 1 until that fails too, 5 on link 2.
    asked = []

    def reroute(collective, dead):
        asked.append((collective, dead))
        return build.connections([(0, 1)], [[min({0, 1, 2} - dead)]])

    send = build.send_recv(10.0, [0])
    outcome = checked(
        build.network([1.0, 1.0, 1.0]),
        [program([0, 1], Start(collective=send))],
        level=level,
        changes=[
            LinkChange(time_s=2.0, link=0, factor=0.0),
            LinkChange(time_s=5.0, link=1, factor=0.0),
        ],
        reroute=reroute,
        rerouted=True,
    )
    assert outcome.link_bytes == pytest.approx([2.0, 3.0, 5.0])
    assert all(collective is send for collective, _ in asked)


# Runs that cannot finish ----------------------------------------------------------------------


def test_mismatched_sizes_are_named_before_anything_runs(build):
    big, small = (
        build.ring_all_reduce(4, 8.0, name="8 B"),
        build.ring_all_reduce(4, 4.0, name="4 B"),
    )
    programs = [
        program([0, 1, 3], Start(collective=big)),
        program([2], Start(collective=small)),
    ]
    with pytest.raises(SimulationError, match=r"ranks 0-1,3: 8 B .*; rank 2: 4 B") as error:
        simulate(build.network(np.ones(4)), programs)
    assert "Likely cause" in str(error.value)


@pytest.mark.parametrize("level", LEVELS)
def test_missing_rank_is_named(build, level):
    ring = build.ring_all_reduce(4, 4.0, name="all_reduce 4 B")
    programs = [program([0, 1, 3], Start(collective=ring))]
    with pytest.raises(
        SimulationError,
        match=r"ranks 0-1,3 waits? in all_reduce 4 B \(communicator 'world', call 0\): "
        r"rank 2 never",
    ):
        simulate(build.network(np.ones(4)), programs, level=level)


@pytest.mark.parametrize("level", LEVELS)
def test_calls_in_another_order_are_a_deadlock(build, level):
    a, b = build.ring_all_reduce(2, 2.0, name="a"), build.ring_all_reduce(2, 2.0, name="b")
    programs = [
        program([0], Start(collective=a, communicator="x"), Start(collective=b, communicator="y")),
        program([1], Start(collective=b, communicator="y"), Start(collective=a, communicator="x")),
    ]
    with pytest.raises(SimulationError) as error:
        simulate(build.network(np.ones(2)), programs, level=level)
    said = str(error.value)
    assert "rank 0 waits in a (communicator 'x', call 0): rank 1 waits in b" in said
    assert "rank 1 waits in b (communicator 'y', call 0): rank 0 waits in a" in said


def test_rank_outside_the_group(build):
    ring = build.ring_all_reduce(2, 2.0)
    with pytest.raises(SimulationError, match="rank 5 "):
        simulate(build.network(np.ones(2)), [program([0, 1, 5], Start(collective=ring))])


def test_rank_in_two_programs_of_one_call(build):
    ring = build.ring_all_reduce(2, 2.0)
    programs = [program([0, 1], Start(collective=ring)), program([1], Start(collective=ring))]
    with pytest.raises(SimulationError, match="rank 1 is in two programs"):
        simulate(build.network(np.ones(2)), programs)


# The level ------------------------------------------------------------------------------------


def test_auto_folds_beyond_the_limit(build):
    n = 8
    ring = build.ring_all_reduce(n, float(n))
    programs = [program(np.arange(n), Start(collective=ring))]
    network = build.network(np.ones(n))
    messages = 2 * n * (n - 1)
    levels = [
        checked(network, programs, max_transfers=limit).collectives[0].level
        for limit in (messages, messages - 1)
    ]
    assert levels == ["steps", "folded"]


def test_auto_folds_what_contends_beyond_a_thousandth_of_the_limit(build):
    ring = build.ring_all_reduce(4, 4.0, links=[0, 0, 1, 1])
    programs = [program(np.arange(4), Start(collective=ring))]
    network = build.network([1.0, 1.0])
    levels = [
        checked(network, programs, max_transfers=limit).collectives[0].level
        for limit in (24_000, 23_999)
    ]
    assert levels == ["steps", "folded"]


def test_wave_folds_midway_when_flows_are_too_many(build):
    # As in the test of the wave that turns into flows, with no budget for flows.
    n = 8
    rings = [build.ring_all_reduce(n, float(n), group=np.arange(n) + k * n) for k in (0, 1)]
    programs = [
        program(rings[0].group, Start(collective=rings[0], communicator="a")),
        program(rings[1].group, Start(collective=rings[1], communicator="b"), start_s=7.0),
    ]
    outcome = checked(build.network(np.ones(n)), programs, max_transfers=300)
    assert {r.level for r in outcome.collectives} == {"folded"}
    assert record_of(outcome, "a").end_s == pytest.approx(np.full(n, 21.0))
    assert record_of(outcome, "b").end_s == pytest.approx(np.full(n, 28.0))


def test_jitter_asks_for_steps_and_is_reproducible(build):
    n = 8
    ring = build.ring_all_reduce(n, float(n), latency_s=0.1)
    programs = [program(np.arange(n), Start(collective=ring))]
    network = build.network(np.ones(n))
    spec = JitterSpec(transfer_sigma=0.1, latency_s=0.05, skew_s=0.5)

    def ends(seed):
        outcome = simulate(
            network, programs, jitter=spec, rng=np.random.default_rng(seed), max_transfers=1
        )
        assert outcome.collectives[0].level == "steps"
        assert outcome.warnings
        return outcome.rank_end_s.tolist()

    assert ends(1) == ends(1) != ends(2)
    calm = simulate(network, programs).end_s
    assert max(ends(1)) > calm


def test_jitter_draws_are_the_same_under_flows(build):
    # The second job comes when the first is over on its last rank: converting the wave to flows
    # must not change a single draw.
    n = 4
    a = build.ring_all_reduce(n, float(n), latency_s=0.1)
    other = build.send_recv(1.0, [0], group=(n, n + 1))
    network = build.network(np.ones(n))
    spec = JitterSpec(transfer_sigma=0.3, latency_s=0.2)

    def run(*more):
        programs = [program(np.arange(n), Start(collective=a)), *more]
        return simulate(network, programs, jitter=spec, rng=np.random.default_rng(3))

    alone = run()
    late = program(
        [n, n + 1], Start(collective=other, communicator="p"), start_s=alone.end_s * (1 - 1e-6)
    )
    assert run(late).rank_end_s[:n] == pytest.approx(alone.rank_end_s, rel=1e-4)


def test_folded_leaves_jitter_out_and_says_so(build):
    ring = build.ring_all_reduce(4, 4.0)
    programs = [program(np.arange(4), Start(collective=ring))]
    outcome = simulate(
        build.network(np.ones(4)), programs, level="folded", jitter=JitterSpec(latency_s=1.0)
    )
    assert outcome.end_s == pytest.approx(6.0)
    assert "jitter" in outcome.warnings[0]


# Small worlds and odd inputs ------------------------------------------------------------------


@pytest.mark.parametrize("level", LEVELS)
def test_world_of_one_ends_at_its_launch(build, level):
    one = build.collective(build.connections([], []), [], 1, launch_s=2.0)
    outcome = checked(build.network([1.0]), [program([0], Start(collective=one))], level=level)
    assert outcome.rank_end_s.tolist() == [2.0]


@pytest.mark.parametrize("level", LEVELS)
def test_messages_without_bytes_take_their_latency(build, level):
    # A barrier as a ring of empty messages: 2(n−1) α.
    ring = build.ring_all_reduce(4, 0.0, latency_s=0.5)
    outcome = checked(
        build.network(np.ones(4)), [program(np.arange(4), Start(collective=ring))], level=level
    )
    assert outcome.end_s == pytest.approx(3.0)
    assert outcome.link_bytes.tolist() == [0.0] * 4


@pytest.mark.parametrize("level", LEVELS)
def test_switch_slot_multicasts(build, level):
    # Rank 0 → switch → ranks 1 and 2, each over a link of its own.
    conns = build.connections([(0, 3), (3, 1), (3, 2)], [[0], [1], [2]])
    stages = [
        build.stage("up", [0], [0], [(None, 2.0)]),
        build.stage("down", [1, 2], [0, 0], [(None, 2.0)]),
    ]
    cast = build.collective(conns, stages, 3, n_slots=4)
    outcome = checked(
        build.network(np.ones(3)), [program([0, 1, 2], Start(collective=cast))], level=level
    )
    assert outcome.rank_end_s.tolist() == [2.0, 4.0, 4.0]


def test_messages_are_recorded_on_request(build):
    ring = build.ring_all_reduce(3, 3.0, latency_s=0.5)
    programs = [
        program(
            [5, 6, 7],
            Start(collective=build.collective(ring.connections, ring.stages, group=[5, 6, 7])),
        )
    ]
    outcome = checked(build.network(np.ones(3)), programs, record=True)
    assert [(m.stage, m.step) for m in outcome.messages] == [
        ("reduce_scatter", 0),
        ("reduce_scatter", 1),
        ("all_gather", 0),
        ("all_gather", 1),
    ]
    second = outcome.messages[1]
    assert second.src_rank.tolist() == [5, 6, 7]
    assert second.dst_rank.tolist() == [6, 7, 5]
    assert second.start_s.tolist() == [1.5] * 3
    assert second.arrive_s.tolist() == [3.0] * 3


def test_progress_is_reported(build):
    seen = []
    work = program([0], *[Compute(name="a", duration_s=1.0)] * 600)
    simulate(build.network([1.0]), [work], on_progress=lambda t, n: seen.append((t, n)))
    assert len(seen) >= 2
    assert seen == sorted(seen)
