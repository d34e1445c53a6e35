"""Folded steps equal those with every rank and call on the whole network; accounts add up."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from simulator.base.errors import ScenarioError
from simulator.compose.step.account import accounts, critical_path, latecomer
from simulator.compose.step.simulate import simulate_plan
from simulator.compose.step.timeline import Timeline
from simulator.training.plan import Call, Compute, Role, StepPlan, Transfer, Wait
from tests.compose.step.conftest import cluster_of, mesh_of, pipeline_plan

SHAPES = [(1, 2, 2, 2), (2, 4, 2, 2), (4, 8, 2, 2), (2, 2, 8, 1), (2, 1, 16, 1), (2, 4, 1, 4)]
"""Nodes; tensor, data, stages."""


def _stages(plan: StepPlan, timeline: Timeline) -> list[int]:
    return plan.mesh.stage_of_rank[timeline.classes.representative].tolist()


@pytest.mark.parametrize(("nodes", "tensor", "data", "stages"), SHAPES)
@pytest.mark.parametrize("slow", [{}, {1: 1.5}])
def test_folded_equals_unfolded(
    nodes: int, tensor: int, data: int, stages: int, slow: dict[int, float]
) -> None:
    plan = pipeline_plan(tensor, data, stages)
    cluster = cluster_of(nodes)
    folded = simulate_plan(cluster, plan, slow=slow, slowdown=0.05)
    exact = simulate_plan(cluster, plan, slow=slow, slowdown=0.05, exact=True)
    assert exact.classes.n_classes == plan.mesh.world_size >= folded.classes.n_classes
    assert folded.outcome.end_s == pytest.approx(exact.outcome.end_s, rel=0.01)


@pytest.mark.parametrize("late", [{}, {3: 0.2}])
def test_parts_of_every_account_sum_to_the_step(late: dict[int, float]) -> None:
    plan = pipeline_plan(4, 2, 2)
    timeline = simulate_plan(cluster_of(2), plan, late_s=late)
    found = accounts(timeline, _stages(plan, timeline))
    assert len(found) == timeline.classes.n_classes
    for account in found:
        parts = [account.busy_s, account.exposed_s, account.waiting_s]
        total = sum(sum(part.values()) for part in parts) + account.idle_s
        assert total == pytest.approx(timeline.outcome.end_s, rel=1e-9)
        assert min(min(part.values(), default=0.0) for part in parts) >= 0.0


def test_computes_are_those_of_the_plan() -> None:
    # 4 micro-batches x 3 layers x 2 ms forward, twice that backward, 2 ms optimizer.
    plan = pipeline_plan(4, 2, 2)
    timeline = simulate_plan(cluster_of(2), plan)
    for account in accounts(timeline, _stages(plan, timeline)):
        assert account.busy_s["forward"] == pytest.approx(24e-3)
        assert account.busy_s["backward"] == pytest.approx(48e-3)
        assert account.busy_s["optimizer"] == pytest.approx(2e-3)


@pytest.mark.parametrize("slow", [{}, {1: 1.5}])
@pytest.mark.parametrize("exact", [False, True])
def test_the_critical_path_has_no_gap(slow: dict[int, float], exact: bool) -> None:
    plan = pipeline_plan(4, 2, 2)
    timeline = simulate_plan(cluster_of(2), plan, slow=slow, exact=exact)
    path = critical_path(timeline)
    assert path[0].start_s == pytest.approx(0.0, abs=1e-6)
    assert path[-1].end_s == pytest.approx(timeline.outcome.end_s)
    for before, after in itertools.pairwise(path):
        assert after.start_s == pytest.approx(before.end_s, abs=1e-6)


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("rank", [5, 12])
def test_a_rank_that_begins_late_is_named(exact: bool, rank: int) -> None:
    plan = pipeline_plan(4, 2, 2)
    timeline = simulate_plan(cluster_of(2), plan, late_s={rank: 0.1}, exact=exact)
    stage = _stages(plan, timeline)
    late = latecomer(timeline, accounts(timeline, stage), stage)
    assert late is not None
    assert np.flatnonzero(timeline.classes.class_of_rank == late[0]).tolist() == [rank]


@pytest.mark.parametrize("exact", [False, True])
def test_the_straggler_is_named_not_those_who_wait_for_it(exact: bool) -> None:
    plan = pipeline_plan(4, 2, 2)
    timeline = simulate_plan(cluster_of(2), plan, slow={5: 1.3}, exact=exact)
    stage = _stages(plan, timeline)
    late = latecomer(timeline, accounts(timeline, stage), stage)
    assert late is not None
    ranks = np.flatnonzero(timeline.classes.class_of_rank == late[0])
    assert ranks.tolist() == [5]
    # It computes 12 x 2 ms and 12 x 4 ms three tenths longer, and others stand for just that.
    assert late[1] == pytest.approx(0.3 * 72e-3)


def test_nobody_is_blamed_where_all_are_on_time() -> None:
    plan = pipeline_plan(4, 2, 2)
    timeline = simulate_plan(cluster_of(2), plan)
    stage = _stages(plan, timeline)
    assert latecomer(timeline, accounts(timeline, stage), stage) is None


def test_calls_of_two_axes_on_one_nic_share_it() -> None:
    """Two calls at once on the same links: as long as on the whole network, longer than one."""
    mesh = mesh_of(1, 16, 1)
    mesh.groups["shard"] = mesh.groups["data"]

    def plan(*axes: str) -> StepPlan:
        calls = [
            Call(
                name=axis,
                axis=axis,
                stream=axis,
                collective="all_gather",
                size_bytes=2**30,
                traffic="data",
            )
            for axis in axes
        ]
        tasks = (*calls, *(Wait(on=axis) for axis in axes))
        return StepPlan(mesh=mesh, roles=(Role(stage=0, tasks=tasks),))

    cluster = cluster_of(2)
    one = simulate_plan(cluster, plan("data")).outcome.end_s
    two = simulate_plan(cluster, plan("data", "shard")).outcome.end_s
    exact = simulate_plan(cluster, plan("data", "shard"), exact=True).outcome.end_s
    assert two == pytest.approx(exact, rel=0.03)
    assert two > 1.4 * one


def test_a_call_beside_a_compute_hides_and_slows_it() -> None:
    mesh = mesh_of(8, 1, 1)
    call = Call(
        name="gather",
        collective="all_gather",
        size_bytes=2**28,
        axis="tensor",
        traffic="tensor",
        stream="tensor",
    )
    tail = (Wait(on="tensor"),)

    def end(seconds: float) -> float:
        work = Compute(name="w", duration_s=seconds, purpose="backward")
        plan = StepPlan(mesh=mesh, roles=(Role(stage=0, tasks=(call, work, *tail)),))
        return simulate_plan(cluster_of(1), plan, slowdown=0.25).outcome.end_s

    alone = end(0.0)
    assert end(alone * 0.4) == pytest.approx(alone, rel=1e-6)
    # Computes at 4/5 of their pace while the call runs, which does 4/5 of it in that time.
    assert end(alone * 2) == pytest.approx(alone + 2 * alone - 0.8 * alone, rel=1e-6)
    exact = StepPlan(
        mesh=mesh,
        roles=(
            Role(
                stage=0,
                tasks=(call, Compute(name="w", duration_s=2 * alone, purpose="backward"), *tail),
            ),
        ),
    )
    whole = simulate_plan(cluster_of(1), exact, slowdown=0.25, exact=True).outcome.end_s
    assert whole == pytest.approx(2.2 * alone, rel=0.01)


def test_too_many_ranks_for_unfolded_are_refused() -> None:
    plan = pipeline_plan(8, 80, 1, micro_batches=1)
    with pytest.raises(ScenarioError, match="too many"):
        simulate_plan(cluster_of(80), plan, exact=True)


def test_a_plan_larger_than_the_cluster_is_refused() -> None:
    with pytest.raises(ScenarioError, match="needs 16 ranks"):
        simulate_plan(cluster_of(1), pipeline_plan(8, 2, 1))


def test_a_rank_outside_the_job_is_refused() -> None:
    with pytest.raises(ScenarioError, match="rank 99"):
        simulate_plan(cluster_of(2), pipeline_plan(8, 2, 1), slow={99: 2.0})


@pytest.mark.parametrize("exact", [False, True])
def test_a_posted_receive_does_not_slow_computes(exact: bool) -> None:
    """Stage 1 waits for 10 ms with its receive posted; its own compute meanwhile takes 10 ms."""
    mesh = mesh_of(1, 1, 2)
    move = dict(size_bytes=1024, tag="forward", stream="p2p")
    first = (
        Compute(name="a", duration_s=10e-3, purpose="forward"),
        Transfer(name="s", peer=1, direction="send", **move),
    )
    second = (
        Transfer(name="r", peer=0, direction="recv", after=None, **move),
        Compute(name="b", duration_s=9e-3, purpose="forward"),
    )
    plan = StepPlan(mesh=mesh, roles=(Role(stage=0, tasks=first), Role(stage=1, tasks=second)))
    timeline = simulate_plan(cluster_of(1), plan, slowdown=0.5, exact=exact)
    computes = [i for i in timeline.outcome.intervals if i.kind == "compute"]
    lengths = sorted(i.end_s - i.start_s for i in computes)
    assert lengths == pytest.approx([9e-3, 10e-3])
