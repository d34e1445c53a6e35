"""DDP buckets and ZeRO volumes against PyTorch's rule and the ZeRO paper."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.training.ddp import buckets, ddp_step
from simulator.training.tasks import Call, Compute, Wait, traffic_bytes
from simulator.training.zero import zero_step

MIB = 2**20


def test_first_bucket_is_small_and_holds_the_last_layer() -> None:
    # Ten gradients of 10 MiB: the last one alone passes 1 MiB and closes the first bucket; then
    # three of 10 MiB pass 25 MiB.
    plan = buckets([10 * MIB] * 10, first_bucket_bytes=MIB, bucket_cap_bytes=25 * MIB)
    assert [bucket.size_bytes // MIB for bucket in plan] == [10, 30, 30, 30]
    assert plan[0].members == (9,)
    assert plan[1].members == (8, 7, 6)


@given(st.lists(st.integers(1, 10**9), min_size=1, max_size=50), st.integers(1, 10**8))
def test_every_gradient_is_in_one_bucket_and_only_the_last_may_be_short(
    sizes: list[int], cap: int
) -> None:
    plan = buckets(sizes, first_bucket_bytes=MIB, bucket_cap_bytes=cap)
    members = [index for bucket in plan for index in bucket.members]
    assert members == list(reversed(range(len(sizes))))
    assert sum(bucket.size_bytes for bucket in plan) == sum(sizes)
    for position, bucket in enumerate(plan[:-1]):
        limit = cap if position else MIB
        assert bucket.size_bytes >= limit
        # Without its last member the bucket was still open.
        assert bucket.size_bytes - sizes[bucket.members[-1]] < limit


def ddp(overlap: bool) -> tuple:
    return ddp_step(
        [10 * MIB] * 10,
        first_bucket_bytes=MIB,
        bucket_cap_bytes=25 * MIB,
        forward_s=1.0,
        backward_s=2.0,
        optimizer_s=0.5,
        overlap=overlap,
    )


def test_ddp_moves_twice_its_gradients() -> None:
    assert traffic_bytes(ddp(True)) == 2 * 100 * MIB


def test_overlap_only_changes_the_order() -> None:
    with_, without = ddp(True), ddp(False)
    assert sorted(map(str, with_)) == sorted(map(str, without))
    assert isinstance(with_[2], Call)
    assert isinstance(without[2], Compute)


def test_backward_time_is_kept() -> None:
    total = sum(t.duration_s for t in ddp(True) if isinstance(t, Compute))
    assert total == pytest.approx(3.5)


def zero(stage: int, **changes: object) -> tuple:
    options = {
        "parameter_bytes": 1000,
        "layers": 7,
        "forward_s": 1.0,
        "backward_s": 2.0,
        "optimizer_s": 0.5,
        "prefetch": 1,
        "overlap": True,
        "bucket_bytes": None,
    }
    return zero_step(stage=stage, **(options | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(("stage", "passes"), [(1, 2), (2, 2), (3, 3)])
@pytest.mark.parametrize("bucket", [None, 10, 64, 10**6])
@pytest.mark.parametrize("prefetch", [0, 1, 2, 100])
def test_volume_of_each_stage(stage: int, passes: int, bucket: int | None, prefetch: int) -> None:
    # Rajbhandari et al. 2020, section 7: 2Ψ for stages 1 and 2, 3Ψ for stage 3.
    tasks = zero(stage, bucket_bytes=bucket, prefetch=prefetch)
    assert traffic_bytes(tasks) == passes * 1000


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_every_layer_computes_once_per_pass(stage: int) -> None:
    names = [t.name for t in zero(stage) if isinstance(t, Compute)]
    assert sorted(n for n in names if n.startswith("forward")) == [f"forward {i}" for i in range(7)]
    assert len([n for n in names if n.startswith("backward")]) == 7


@pytest.mark.parametrize("prefetch", [0, 1, 2, 5])
@pytest.mark.parametrize("bucket", [None, 64])
def test_a_layer_computes_after_its_gather_and_the_prefetched_ones_may_run_on(
    prefetch: int, bucket: int | None
) -> None:
    calls: list[str] = []
    for task in zero(3, prefetch=prefetch, bucket_bytes=bucket):
        if isinstance(task, Call):
            calls.append(task.name)
        elif isinstance(task, Wait):
            waited = calls[: len(calls) - task.leave]
        elif isinstance(task, Compute) and task.name != "optimizer":
            pass_, layer = task.name.split()
            gather = f"{pass_} parameters {layer}"
            assert waited[-1] == gather, "waits for its own gather, and for nothing after it"
            ahead = [c for c in calls[calls.index(gather) + 1 :] if "parameters" in c]
            assert len(ahead) <= prefetch


def test_stage_one_reduces_after_the_backward_when_not_overlapped() -> None:
    tasks = zero(1, overlap=False)
    first_call = next(i for i, t in enumerate(tasks) if isinstance(t, Call))
    last_backward = max(
        i for i, t in enumerate(tasks) if isinstance(t, Compute) and "backward" in t.name
    )
    assert first_call > last_backward
