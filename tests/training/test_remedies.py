"""What is proposed against running out of memory helps, is allowed, and is ranked."""

from __future__ import annotations

from typing import Any

import pytest

from simulator.models import get_model
from simulator.training.memory import memory_report
from simulator.training.remedies import Remedy, remedies
from simulator.training.strategy import DataParallel, Strategy

GIB = 2.0**30


def proposed(name: str, gib: float = 80, **choices: Any) -> tuple[Strategy, tuple[Remedy, ...]]:
    strategy = Strategy(**choices)
    return strategy, remedies(get_model(name), strategy, gib * GIB)


CASES: list[tuple[str, dict[str, Any]]] = [
    ("llama-2-7b", {"data": 8, "micro_batch": 4, "framework": "torch"}),
    ("llama-2-70b", {"data": 64, "framework": "deepspeed"}),
    ("megatron-175b", {"tensor": 8, "pipeline": 8, "micro_batches": 64, "attention": "standard"}),
    ("mixtral-8x7b", {"data": 16, "expert": 8, "seq": 4096}),
    ("llama-3.1-405b", {"tensor": 8, "data": 8, "micro_batch": 2, "micro_batches": 8}),
]


@pytest.mark.parametrize(("name", "choices"), CASES)
def test_each_proposal_helps_on_the_same_gpus_and_batch(name: str, choices: dict[str, Any]) -> None:
    model = get_model(name)
    strategy, found = proposed(name, **choices)
    before = memory_report(model, strategy).peak_bytes
    assert before > 80 * GIB
    assert len(found) >= 4
    for remedy in found:
        assert remedy.peak_bytes < before
        assert remedy.peak_bytes == memory_report(model, remedy.strategy).peak_bytes
        assert remedy.strategy.world_size == strategy.world_size
        assert remedy.strategy.global_batch == strategy.global_batch
        assert remedy.fits == (remedy.peak_bytes <= 80 * GIB)
    assert any(remedy.fits for remedy in found)


@pytest.mark.parametrize(("name", "choices"), CASES)
def test_what_fits_comes_first_and_cheapest_first(name: str, choices: dict[str, Any]) -> None:
    _, found = proposed(name, **choices)
    assert [r.fits for r in found] == sorted((r.fits for r in found), reverse=True)
    costs = [r.cost for r in found if r.fits]
    assert costs == sorted(costs)


def test_kernels_that_need_less_for_nothing_come_before_recomputation() -> None:
    _, found = proposed("megatron-175b", dropout=True, **CASES[2][1])
    assert found[0].what == "attention: flash + sequence parallelism"
    assert found[0].strategy.recompute == "none"


def test_names_are_the_frameworks() -> None:
    for framework, name in (("deepspeed", "ZeRO stage 2"), ("torch", "FSDP")):
        _, found = proposed("llama-2-7b", data=8, micro_batch=2, framework=framework)
        assert name in {remedy.what for remedy in found}


def test_what_a_model_or_a_node_forbids_is_not_proposed() -> None:
    # 8 GPUs of a node already share tensors; 25 heads cannot be shared by 2 or 4.
    _, found = proposed("llama-2-70b", tensor=8, data=2)
    assert not any("tensor" in remedy.what for remedy in found)
    _, found = proposed("gpt2-xl", gib=10, data=4, micro_batch=4)
    assert any("context" in remedy.what for remedy in found)
    assert not any("tensor" in remedy.what for remedy in found)
    _, found = proposed("resnet-50", gib=2, data=8, micro_batch=64)
    assert found
    assert not any("parallel" in r.what or "stages" in r.what for r in found)


def test_offload_is_the_last_resort() -> None:
    one = {"data": 1, "micro_batch": 1, "framework": "deepspeed", "recompute": "full"}
    _, found = proposed("llama-2-7b", **one)
    assert [remedy.what for remedy in found if remedy.fits] == ["optimiser on the CPU"]
    assert found[0].report.host_bytes > 70 * GIB


def test_a_sharded_strategy_can_shard_more() -> None:
    narrow = DataParallel(kind="zero3", shard=8)
    _, found = proposed("llama-2-70b", data=64, framework="deepspeed", data_parallel=narrow)
    assert "shard over all replicas" in {remedy.what for remedy in found}
    kept = DataParallel(kind="fsdp", reshard_after_forward=False)
    _, found = proposed("llama-2-70b", data=64, framework="torch", data_parallel=kept)
    assert "reshard after forward" in {remedy.what for remedy in found}


def test_gpipe_can_become_1f1b() -> None:
    choices = {"pipeline": 8, "micro_batches": 64, "schedule": "gpipe", "tensor": 8}
    _, found = proposed("megatron-22b", **choices)
    assert "schedule 1f1b" in {remedy.what for remedy in found}
    choices |= {"schedule": "zb_h2"}
    _, found = proposed("megatron-22b", **choices)
    assert "schedule zb_h1" in {remedy.what for remedy in found}
