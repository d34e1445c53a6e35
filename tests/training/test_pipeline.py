"""Pipeline schedules: bubbles by formula, no deadlock, memory of micro-batches in flight."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.training.pipeline import Pass, in_flight, schedule
from simulator.training.plan import Role, Transfer, Wait
from simulator.training.step import plan_step
from simulator.training.strategy import Strategy
from tests.training.list_schedule import StuckError, computes, list_schedule
from tests.training.stubs import SecondsGpu, plain_model


def step_s(
    kind: str, p: int, m: int, v: int = 1, transfer_s: float = 0.0, framework: str = "megatron"
) -> float:
    model = plain_model(p * v)
    strategy = Strategy(
        pipeline=p,
        virtual=v,
        schedule=kind,  # type: ignore[arg-type]
        micro_batches=m,
        optimizer="none",
        framework=framework,  # type: ignore[arg-type]
    )
    plan = plan_step(model, strategy, SecondsGpu())
    return max(d.end_s for d in list_schedule(plan.roles, transfer_s=transfer_s))


@pytest.mark.parametrize("kind", ["gpipe", "1f1b"])
@pytest.mark.parametrize(("p", "m"), [(1, 3), (2, 2), (4, 4), (4, 9), (8, 8), (8, 32), (5, 3)])
def test_bubble_of_one_chunk(kind: str, p: int, m: int) -> None:
    # The last stage begins after p − 1 forwards and the first ends p − 1 backwards after it; in
    # between the last stage is busy: (m + p − 1) (F + B).  As a share of m (F + B): (p − 1) / m
    # (Narayanan et al. 2021, section 2.2.1).
    forward, backward = 1.0, 2.0
    ideal = m * (forward + backward)
    bubble = (p - 1) / m
    assert step_s(kind, p, m) == pytest.approx(ideal * (1 + bubble))


@pytest.mark.parametrize(("p", "m", "v"), [(2, 2, 2), (2, 4, 3), (4, 4, 2), (4, 16, 4), (8, 16, 2)])
def test_bubble_of_interleaved_chunks(p: int, m: int, v: int) -> None:
    # Section 2.2.2: a chunk takes 1/v of the stage, and so does the bubble: (p − 1) / (v m).
    ideal = m * v * 3.0
    assert step_s("interleaved", p, m, v) == pytest.approx(ideal * (1 + (p - 1) / (v * m)))


@pytest.mark.parametrize(("p", "m"), [(2, 4), (4, 8), (4, 12), (8, 16)])
def test_bubble_of_zero_bubble_h1(p: int, m: int) -> None:
    # Qi et al. 2024, table 2: (p − 1) (F + B − W) instead of 1F1B's (p − 1) (F + B + W).
    assert step_s("zb_h1", p, m) == pytest.approx(3.0 * m + (p - 1))
    assert step_s("1f1b", p, m) == pytest.approx(3.0 * m + 3 * (p - 1))


@pytest.mark.parametrize(("p", "m"), [(2, 4), (4, 8), (4, 12), (8, 24)])
def test_zero_bubble_h2_leaves_no_gap(p: int, m: int) -> None:
    # Table 2: (p − 1) (F + B − 2 W) = 0 for F = B = W: a stage is busy from its first task on.
    strategy = Strategy(pipeline=p, schedule="zb_h2", micro_batches=m, optimizer="none")
    done = list_schedule(plan_step(plain_model(p), strategy, SecondsGpu()).roles)
    for stage in range(p):
        own = computes(done, stage)
        assert own[0].start_s == stage
        assert max(d.end_s for d in own) - own[0].start_s == pytest.approx(3.0 * m)


@pytest.mark.parametrize("p", [2, 4, 8])
def test_micro_batches_in_flight(p: int) -> None:
    m = 4 * p

    def held(kind: str, stage: int, v: int = 1) -> int:
        return in_flight(schedule(kind, stages=p, stage=stage, micro_batches=m, virtual=v))

    for stage in range(p):
        assert held("gpipe", stage) == m
        assert held("1f1b", stage) == p - stage
        # H1 keeps to the memory of 1F1B's first stage, H2 takes up to twice of it.
        assert held("zb_h1", stage) <= p
        assert held("zb_h2", stage) <= 2 * p - 1
        # Warm-up chunks and the one in work (Narayanan et al. 2021, section 2.2.2).
        assert held("interleaved", stage, 2) == min(2 * (p - stage - 1) + p + 1, 2 * m)


def test_interleaved_order_of_two_stages() -> None:
    # Megatron-LM's schedule table for p = 2, m = 4, v = 2: micro-batches 0 1 through chunk 0,
    # then through chunk 1, then 2 3; the first stage runs (2 − 0 − 1) 2 + 2 = 4 forwards ahead.
    passes = schedule("interleaved", stages=2, stage=0, micro_batches=4, virtual=2)
    forwards = [(p.chunk, p.micro_batch) for p in passes if p.kind == "forward"]
    assert forwards == [(0, 0), (0, 1), (1, 0), (1, 1), (0, 2), (0, 3), (1, 2), (1, 3)]
    backwards = [(p.chunk, p.micro_batch) for p in passes if p.kind == "backward"]
    assert backwards == [(1, 0), (1, 1), (0, 0), (0, 1), (1, 2), (1, 3), (0, 2), (0, 3)]
    assert [p.kind for p in passes[:6]] == ["forward"] * 5 + ["backward"]


KINDS = st.sampled_from(["gpipe", "1f1b", "interleaved", "zb_h1", "zb_h2"])


@settings(max_examples=60, deadline=None)
@given(KINDS, st.integers(1, 6), st.integers(1, 5), st.integers(2, 4), st.booleans())
def test_no_schedule_deadlocks(kind: str, p: int, groups: int, chunks: int, overlap: bool) -> None:
    v = chunks if kind == "interleaved" else 1
    if kind == "interleaved" and p == 1:
        p = 2
    m = groups * p if kind == "interleaved" else groups
    strategy = Strategy(
        pipeline=p,
        virtual=v,
        schedule=kind,  # type: ignore[arg-type]
        micro_batches=m,
        overlap_p2p=overlap,
    )
    plan = plan_step(plain_model(p * v), strategy, SecondsGpu())
    done = list_schedule(plan.roles, transfer_s=0.1)
    # Each of p v parts computes m times forward and backward, for 3 seconds in all.
    assert sum(d.end_s - d.start_s for d in computes(done)) == pytest.approx(3.0 * m * p * v)


@settings(max_examples=60, deadline=None)
@given(KINDS, st.integers(2, 8), st.integers(1, 4), st.integers(2, 4))
def test_every_micro_batch_passes_each_chunk_once(kind: str, p: int, groups: int, v: int) -> None:
    v = v if kind == "interleaved" else 1
    m = groups * p
    for stage in range(p):
        passes = schedule(kind, stages=p, stage=stage, micro_batches=m, virtual=v)
        split = kind.startswith("zb")
        kinds = ["forward", *(["input_gradient", "weight_gradient"] if split else ["backward"])]
        wanted = [Pass(k, c, j) for k in kinds for c in range(v) for j in range(m)]  # type: ignore[arg-type]
        assert sorted(passes, key=str) == sorted(wanted, key=str)
        at = {one: index for index, one in enumerate(passes)}
        for c in range(v):
            for j in range(m):
                order = [at[Pass(k, c, j)] for k in kinds]  # type: ignore[arg-type]
                assert order == sorted(order)


def test_the_check_sees_a_deadlock() -> None:
    # Two stages that both wait to receive before they send.
    def role(stage: int) -> Role:
        kinds = {"name": "x", "size_bytes": 1, "peer": 1 - stage}
        recv = Transfer(**kinds, direction="recv", tag="a", stream="recv", after=None)  # type: ignore[arg-type]
        send = Transfer(**kinds, direction="send", tag="a", stream="send")  # type: ignore[arg-type]
        from simulator.training.plan import Compute

        tasks = (recv, Wait(on="recv"), Compute(name="c", duration_s=1, purpose="other"), send)
        return Role(stage=stage, tasks=tasks)

    with pytest.raises(StuckError):
        list_schedule((role(0), role(1)))


def test_transfers_that_cost_lengthen_the_step_by_the_fill_and_drain() -> None:
    # GPipe with transfers of t: p − 1 of them before the last stage begins, p − 1 after it ends,
    # the rest hidden behind computes longer than they are.
    p, m, t = 4, 8, 0.25
    found = step_s("gpipe", p, m, transfer_s=t, framework="torch")
    assert found == pytest.approx((m + p - 1) * 3 + 2 * (p - 1) * t)


def test_megatron_waits_for_transfers_between_its_computes() -> None:
    # Each of the slowest stage's sends holds it up: m − 1 more in the forward, m − 1 in the
    # backward.
    p, m, t = 4, 8, 0.25
    found = step_s("gpipe", p, m, transfer_s=t)
    assert found == pytest.approx((m + p - 1) * 3 + 2 * (p - 1) * t + 2 * (m - 1) * t)
