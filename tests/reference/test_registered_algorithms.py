"""Registered algorithms, timed message by message, take the time that their papers say."""

from __future__ import annotations

import math

import pytest

from simulator.collectives import Call, Layout, make_schedule
from tests.reference import builders, closed_forms
from tests.reference.builders import Wires
from tests.reference.message_sim import reference_simulate

B = 25e9
L = 2e-6
PART = 60_000


def time_of(
    collective: str,
    algorithm: str,
    n: int,
    size_bytes: int,
    *,
    on_star: bool = False,
    layout: Layout | None = None,
) -> float:
    """Return the time on private links per pair, or on a star."""
    call = Call(collective=collective, world_size=n, size_bytes=size_bytes)
    wires = Wires()
    route = builders.star(wires, n, B) if on_star else builders.mesh(wires, B)
    what = builders.from_schedule(
        make_schedule(call, algorithm, layout), route, latency_s=lambda src, dst: L
    )
    return reference_simulate(wires.network(), builders.programs(what)).last_end_s


@pytest.mark.parametrize("on_star", [False, True])
@pytest.mark.parametrize("n", [2, 5, 8])
def test_rings(n: int, on_star: bool) -> None:
    size = n * PART
    for collective, formula in (
        ("all_reduce", closed_forms.ring_all_reduce),
        ("all_gather", closed_forms.ring_all_gather),
        ("reduce_scatter", closed_forms.ring_all_gather),
    ):
        found = time_of(collective, "ring", n, size, on_star=on_star)
        assert found == pytest.approx(formula(n, size, B, L), rel=1e-12)


@pytest.mark.parametrize("n_channels", [2, 3])
def test_ring_of_several_channels(n_channels: int) -> None:
    # Two stages of 5 steps follow each other in program order like one stage of 10.
    n, size = 6, 6 * n_channels * PART
    found = time_of(
        "all_reduce", "ring", n, size, layout=Layout(world_size=n, n_channels=n_channels)
    )
    expected = closed_forms.channels_on_a_ring(10, n_channels, PART / B, L)
    assert found == pytest.approx(expected, rel=1e-12)


def test_bidirectional_ring_halves_the_messages() -> None:
    # A ring per direction, half of the data each; with n > 2 they use different links.
    found = time_of("all_reduce", "bidirectional_ring", 6, 12 * PART)
    assert found == pytest.approx(closed_forms.ring_all_reduce(6, 6 * PART, B, L), rel=1e-12)


def test_ring_broadcast_is_a_chain_of_pieces() -> None:
    layout = Layout(world_size=5, pipeline_bytes=PART)
    found = time_of("broadcast", "ring", 5, 8 * PART, layout=layout)
    assert found == pytest.approx(closed_forms.chain_pipelined(5, 8, PART / B, L), rel=1e-12)


@pytest.mark.parametrize("on_star", [False, True])
@pytest.mark.parametrize("n", range(2, 18))
def test_halving_and_doubling_in_any_world(n: int, on_star: bool) -> None:
    size = n * PART * 16  # halves down to a sixteenth stay whole
    halving = time_of("all_reduce", "halving_doubling", n, size, on_star=on_star)
    expected = closed_forms.halving_doubling_all_reduce(n, size, B, L)
    assert halving == pytest.approx(expected, rel=1e-12)
    doubling = time_of("all_reduce", "recursive_doubling", n, size, on_star=on_star)
    assert doubling == pytest.approx(closed_forms.recursive_doubling(n, size, B, L), rel=1e-12)
    scatter = time_of("reduce_scatter", "recursive_halving", n, size, on_star=on_star)
    expected = closed_forms.recursive_halving_reduce_scatter(n, size, B, L)
    assert scatter == pytest.approx(expected, rel=1e-3)
    gather = time_of("all_gather", "recursive_doubling", n, size, on_star=on_star)
    expected = closed_forms.recursive_doubling_all_gather(n, size, B, L)
    if n & (n - 1) == 0:
        assert gather == pytest.approx(expected, rel=1e-12)
    else:  # messages of one and two parts meet at ports: its formula says up to 30 % more
        # … and a rank need not wait for what arrives while it still sends: an α less per step.
        assert expected - n.bit_length() * L < gather < 1.3 * expected


@pytest.mark.parametrize("on_star", [False, True])
@pytest.mark.parametrize("n", [2, 3, 5, 8])
def test_bruck(n: int, on_star: bool) -> None:
    found = time_of("all_gather", "bruck", n, n * PART, on_star=on_star)
    assert found == pytest.approx(closed_forms.bruck_all_gather(n, n * PART, B, L), rel=1e-12)
    # S is the total of nccl-tests: each rank's buffer of n parts is S itself.
    found = time_of("all_to_all", "bruck", n, n * PART, on_star=on_star)
    assert found == pytest.approx(closed_forms.bruck_all_to_all(n, PART, B, L), rel=1e-12)


@pytest.mark.parametrize("n", [2, 3, 5, 8])
def test_all_to_all(n: int) -> None:
    for on_star in (False, True):
        found = time_of("all_to_all", "pairwise", n, n * PART, on_star=on_star)
        assert found == pytest.approx(closed_forms.pairwise_all_to_all(n, PART, B, L), rel=1e-12)
    # At once: on a star n−1 messages share each uplink; on private links nothing is shared.
    at_once = time_of("all_to_all", "direct", n, n * PART, on_star=True)
    assert at_once == pytest.approx((n - 1) * PART / B + L, rel=1e-12)
    at_once = time_of("all_to_all", "direct", n, n * PART)
    assert at_once == pytest.approx(PART / B + L, rel=1e-12)


@pytest.mark.parametrize("n", [2, 3, 8, 13])
def test_barrier(n: int) -> None:
    found = time_of("barrier", "dissemination", n, 0)
    assert found == pytest.approx(math.ceil(math.log2(n)) * L, rel=1e-12)
