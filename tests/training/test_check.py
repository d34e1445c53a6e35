"""Strategies that cannot run are refused, all reasons at once, each with what would be valid."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simulator.base.errors import ScenarioError
from simulator.models import get_model
from simulator.training.check import check_strategy, notes_of
from simulator.training.strategy import DataParallel, Precision, Strategy


def refused(name: str, strategy: Strategy, world: int | None = None) -> list[str]:
    with pytest.raises(ScenarioError) as caught:
        check_strategy(get_model(name), strategy, world or strategy.world_size, gpus_per_node=8)
    return [str(problem).replace("\n  ", " | ") for problem in caught.value.problems]


@pytest.mark.parametrize(
    ("name", "strategy", "world", "key", "allowed"),
    [
        ("llama-2-7b", Strategy(tensor=8, data=3), 64, "data", "data 8"),
        (
            "llama-2-7b",
            Strategy(tensor=8, pipeline=3, data=2),
            64,
            "data",
            "divides 64: 8, 16, 32, 64",
        ),
        ("gpt2-xl", Strategy(tensor=8), None, "tensor", "1, 5, 25"),
        ("llama-2-70b", Strategy(tensor=3), None, "tensor", "1, 2, 4, 8"),
        ("llama-2-7b", Strategy(pipeline=5), None, "pipeline", "4"),
        (
            "llama-2-7b",
            Strategy(pipeline=4, virtual=2, schedule="interleaved", micro_batches=6),
            None,
            "micro_batches",
            "4, 8",
        ),
        ("llama-2-7b", Strategy(pipeline=4, virtual=2), None, "virtual", "interleaved"),
        ("mixtral-8x7b", Strategy(expert=3, data=3), None, "expert", "1, 2, 4, 8"),
        ("mixtral-8x7b", Strategy(expert=8, data=4), None, "expert", "2, 4"),
        ("llama-2-7b", Strategy(expert=2, data=2), None, "expert", "a model with experts"),
        (
            "mixtral-8x7b",
            Strategy(tensor=2, expert=2, data=2),
            None,
            "sequence_parallel",
            "true",
        ),
        (
            "llama-2-7b",
            Strategy(
                pipeline=2, data=2, framework="deepspeed", data_parallel=DataParallel(kind="zero3")
            ),
            None,
            "data_parallel",
            "zero1",
        ),
        ("llama-2-7b", Strategy(context=4, seq=4094), None, "seq", "4088, 4096"),
        (
            "gpt2-xl",
            Strategy(context=2, context_kind="ulysses"),
            None,
            "context",
            "1, 5",
        ),
        ("resnet-50", Strategy(pipeline=2), None, "pipeline", "1"),
        ("resnet-50", Strategy(tensor=2), None, "tensor", "1"),
        (
            "llama-2-7b",
            Strategy(data=8, data_parallel=DataParallel(kind="fsdp", shard=3)),
            None,
            "shard",
            "1, 2, 4, 8",
        ),
        (
            "llama-2-7b",
            Strategy(data=8, data_parallel=DataParallel(kind="fsdp", hook="fp16")),
            None,
            "hook",
            "ddp",
        ),
        ("llama-2-7b", Strategy(precision=Precision(compute="bfloat")), None, "", "bfloat16"),
        ("llama-2-7b", Strategy(data_parallel=DataParallel(hook="fp15")), None, "", "fp16"),
        ("llama-2-7b", Strategy(micro_batch=0), None, "micro_batch", "1, 2"),
        ("llama-2-7b", Strategy(order=("tensor", "data")), None, "order", "pipeline"),
        (
            "llama-2-7b",
            Strategy(data=8, data_parallel=DataParallel(kind="zero3", secondary_shard=3)),
            None,
            "secondary_shard",
            "2, 4",
        ),
        (
            "llama-2-7b",
            Strategy(data_parallel=DataParallel(quantized_weights=True)),
            None,
            "quantized_weights",
            "zero3",
        ),
        (
            "deepseek-v3",
            Strategy(expert=16, data=16, routed_nodes=4),
            None,
            "routed_nodes",
            "1 … 2",
        ),
    ],
)
def test_what_would_be_valid_is_named(
    name: str, strategy: Strategy, world: int | None, key: str, allowed: str
) -> None:
    found = refused(name, strategy, world)
    own = [line for line in found if line.startswith(f"training.{key}:" if key else "unknown")]
    assert own, found
    assert allowed in own[0].split(" | ")[1]


def test_all_problems_come_at_once() -> None:
    strategy = Strategy(
        tensor=7,
        pipeline=5,
        expert=2,
        data=2,
        data_parallel=DataParallel(kind="zero1", hook="fp16"),
    )
    keys = {
        line.split(":")[0].removeprefix("training.") for line in refused("llama-2-7b", strategy, 64)
    }
    assert keys >= {"data", "tensor", "pipeline", "expert", "hook"}


@pytest.mark.parametrize(
    ("name", "strategy"),
    [
        ("llama-2-70b", Strategy(tensor=8, sequence_parallel=True, pipeline=8, data=4)),
        ("llama-3.1-405b", Strategy(tensor=8, sequence_parallel=True, pipeline=16, data=128)),
        ("mixtral-8x7b", Strategy(expert=8, data=8)),
        ("deepseek-v3", Strategy(expert=64, pipeline=16, data=128, framework="deepspeed")),
        ("resnet-50", Strategy(data=8, framework="torch", optimizer="sgd")),
        ("llama-2-7b", Strategy(data=8)),
    ],
)
def test_known_setups_pass(name: str, strategy: Strategy) -> None:
    check_strategy(get_model(name), strategy, strategy.world_size, gpus_per_node=8)


def test_notes_say_what_is_odd_but_runs() -> None:
    notes = notes_of(
        get_model("llama-3.1-405b"),
        Strategy(sequence_parallel=True, pipeline=16, micro_batches=4),
    )
    assert any("sequence_parallel has no effect" in note for note in notes)
    assert any("7 on the first" in note for note in notes)
    assert any("idle" in note for note in notes)


@pytest.mark.parametrize(
    ("strategy", "key"),
    [(Strategy(micro_batches=10**6), "micro_batches"), (Strategy(seq=8, context=8), "seq")],
)
def test_what_is_allowed_can_be_taken(strategy: Strategy, key: str) -> None:
    # 500,000 passes over 12 blocks; a causal ring of 8 cuts a sequence in 16, and 0 is no length.
    allowed = {"micro_batches": "allowed: at most 41666.", "seq": "allowed: 16."}
    own = [line for line in refused("gpt2-small", strategy, None) if f"training.{key}:" in line]
    assert own[0].split(" | ")[1] == allowed[key]


def test_zero_bubble_with_too_few_micro_batches_is_told() -> None:
    # Qi et al. 2023, section 3: H2 begins with 2 p - 1 forwards on the first stage.
    few = Strategy(pipeline=4, schedule="zb_h2", micro_batches=6)
    assert any("7 micro-batches" in n for n in notes_of(get_model("gpt2-small"), few))
    enough = replace(few, micro_batches=7)
    assert not any("zb_h2" in n for n in notes_of(get_model("gpt2-small"), enough))


def test_a_length_for_images_is_no_secret() -> None:
    assert any("seq" in n for n in notes_of(get_model("resnet-50"), Strategy(seq=7)))
    assert not notes_of(get_model("resnet-50"), Strategy())
