"""Several kinds of GPU in one job: each computes at its own speed, the fast ones wait."""

from __future__ import annotations

from typing import Any

import pytest

import simulator
from simulator.results.model import RunResult
from simulator.results.training import RankAccount, TrainingStep

A100, H100 = 312e12, 989.4e12
TRAINING = {"model": "gpt2-xl", "data_parallel": "zero1", "seq": 1024, "micro_batch": 2}


def run(*presets: str, **training: Any) -> RunResult:
    groups = [{"node": preset, "nodes": 1} for preset in presets]
    return simulator.run(groups=groups, training={**TRAINING, **training})


def of_ranks(step: TrainingStep, rank: int) -> RankAccount:
    (account,) = [a for a in step.accounts if rank in a.ranks]
    return account


@pytest.mark.parametrize("fold", [True, False])
def test_each_rank_computes_at_its_own_speed(fold: bool) -> None:
    (mixed,) = run("dgx-a100", "dgx-h100", fold=fold).training
    alone = [run(p, p).training[0] for p in ("dgx-a100", "dgx-h100")]
    slow, fast = of_ranks(mixed, 0), of_ranks(mixed, 8)
    for own, same in zip((slow, fast), alone, strict=True):
        for kind, busy_s in same.accounts[0].busy_s.items():
            assert own.busy_s[kind] == pytest.approx(busy_s, rel=0.03)
    assert fast.compute_s < 0.6 * slow.compute_s
    assert sum(fast.waiting_s.values()) > 0.5 * (slow.compute_s - fast.compute_s)
    assert mixed.step_s >= 0.99 * alone[0].step_s


def test_the_peak_is_the_mean_of_all_gpus() -> None:
    (step,) = run("dgx-a100", "dgx-h100").training
    assert step.peak_flops == pytest.approx((A100 + H100) / 2)
    assert step.mfu == pytest.approx(
        step.model_flops / step.step_s / (8 * A100 + 8 * H100), rel=1e-9
    )


def test_titles_name_all_nodes() -> None:
    assert "2 nodes: 1 dgx-a100-80gb + 1 dgx-h100" in run("dgx-a100", "dgx-h100").title
    assert "2 nodes of dgx-h100" in run("dgx-h100", "dgx-h100").title
    groups = [{"node": p, "nodes": n} for p, n in (("dgx-a100", 1), ("dgx-h100", 2))]
    result = simulator.run(groups=groups, collective={"op": "all_reduce", "size": "1 MiB"})
    assert "3 nodes: 1 dgx-a100-80gb + 2 dgx-h100" in result.title


def test_each_stage_is_judged_by_its_own_gpus() -> None:
    (step,) = run("dgx-a100-40gb", "dgx-h100", pipeline=2, micro_batches=2).training
    assert [row.capacity_bytes / 2**30 for row in step.memory] == pytest.approx([40, 80])


def test_others_wait_no_longer_than_the_accounts_say() -> None:
    late = {"late": [{"ranks": [3], "by": "200 ms"}]}
    result = simulator.run(
        node="dgx-a100", nodes=2, training={**TRAINING, "framework": "torch"}, perturb=late
    )
    (step,) = result.training
    told = float(step.straggler.split("wait up to ")[1].split(" ms")[0])
    most = max(sum(a.waiting_s.values()) for a in step.accounts)
    assert told <= most * 1e3 * 1.01
    assert told > 100
