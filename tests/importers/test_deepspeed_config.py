"""DeepSpeed's configurations become strategies; what DeepSpeed refuses is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from simulator.importers import IMPORTERS, deepspeed_config
from simulator.importers.deepspeed_config import read
from simulator.importers.source import ForeignFileError

DATA = Path(__file__).parent / "data" / "configs"


def zero(stage: int, **more: Any) -> dict[str, Any]:
    return {
        "train_micro_batch_size_per_gpu": 2,
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": stage, **more},
    }


def told(source: Any, **more: Any) -> str:
    with pytest.raises(ForeignFileError) as caught:
        read(source, **({"world_size": 8} | more))
    return str(caught.value)


def test_stage_3_of_a_file() -> None:
    plan = read(DATA / "ds_config_zero3_full.json", world_size=16)
    data = plan.strategy.data_parallel
    assert (data.kind, plan.strategy.data) == ("zero3", 16)
    assert (data.overlap_reduce, data.prefetch, data.reduce_every_micro_batch) == (True, 1, True)
    # 5e7 elements of bf16.
    assert (data.bucket_bytes, data.gather_bucket_bytes) == (100_000_000, 100_000_000)
    assert plan.strategy.precision.compute == "bfloat16"
    assert plan.strategy.precision.reduce_bytes == 2
    assert plan.strategy.framework == "deepspeed"
    assert plan.warnings == ()


def test_stage_2_with_accumulation() -> None:
    plan = read(DATA / "ds_zero2_gas3.json", world_size=8)
    strategy = plan.strategy
    assert (strategy.data_parallel.kind, strategy.precision.compute) == ("zero2", "half")
    assert (strategy.micro_batch, strategy.micro_batches, strategy.global_batch) == (8, 3, 192)
    # Stages below 3 overlap only if told to.
    assert not strategy.data_parallel.overlap_reduce
    assert "activation_checkpointing" in plan.warnings[0]
    assert read(DATA / "ds_zero2_gas3.json", world_size=8, recompute="full").warnings == ()


def test_offload_and_what_is_not_simulated() -> None:
    plan = read(DATA / "zf_config.json", world_size=4)
    assert plan.strategy.data_parallel.offload_optimizer == "cpu"
    assert (plan.strategy.data, plan.strategy.micro_batch) == (4, 2)
    assert "zenflow is not simulated" in plan.warnings
    compressed = read(DATA / "deepspeed_bsz4k_01adam_config_seq128_nccl.json", world_size=64)
    assert compressed.strategy.micro_batches == 4
    assert "ZeroOneAdam" in compressed.warnings[0]


def test_batch_sizes_complete_each_other() -> None:
    def sizes(world_size: int | None = 8, **values: int) -> tuple[int, int, int]:
        strategy = read(values, world_size=world_size).strategy
        return strategy.data, strategy.micro_batch, strategy.micro_batches

    assert sizes(train_batch_size=64) == (8, 8, 1)
    assert sizes(train_batch_size=64, gradient_accumulation_steps=2) == (8, 4, 2)
    assert sizes(train_batch_size=64, train_micro_batch_size_per_gpu=2) == (8, 2, 4)
    assert sizes(train_micro_batch_size_per_gpu=2) == (8, 2, 1)
    # Without the number of GPUs, it follows.
    three = {
        "train_batch_size": 64,
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": 4,
    }
    assert sizes(None, **three) == (8, 2, 4)


def test_batch_sizes_that_contradict_each_other() -> None:
    three = {
        "train_batch_size": 60,
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": 4,
    }
    assert "60 is not 2 per GPU x 4 steps x 8 replicas" in told(three)
    assert "no multiple of 8" in told({"train_batch_size": 60})
    assert "neither it nor train_batch_size" in told(DATA / "template_zero3.json")
    assert "number of GPUs" in told(zero(1), world_size=None)
    assert "a multiple of 3" in told(zero(0), tensor=3)


def test_auto_needs_what_replaces_it() -> None:
    path = DATA / "ds_config_fp16_z3.json"
    message = told(path)
    assert "'auto' is filled in by the training script" in message
    assert "--per_device_train_batch_size" in message
    for arguments in (
        ["--fp16", "--per_device_train_batch_size", "4"],
        ["--per-device-train-batch-size=4"],
        {"per_device_train_batch_size": 4},
    ):
        assert read(path, world_size=8, arguments=arguments).strategy.micro_batch == 4
    types = {"bf16": {"enabled": "auto"}, "train_micro_batch_size_per_gpu": "auto"}
    given = ["--bf16", "--per_device_train_batch_size", "4"]
    assert read(types, world_size=8, arguments=given).strategy.precision.compute == "bfloat16"


def test_automatic_bucket_sizes_follow_the_hidden_size() -> None:
    # transformers/integrations/deepspeed.py: hidden^2.
    source = zero(3, reduce_bucket_size="auto", stage3_prefetch_bucket_size="auto")
    plan = read(source, world_size=8, arguments={"hidden_size": 4096})
    assert plan.strategy.data_parallel.bucket_bytes == 4096**2 * 2
    assert "the model's hidden size" in told(source)


def test_automatic_values_that_cost_no_time_are_left_alone() -> None:
    source = zero(1) | {
        "gradient_clipping": "auto",
        "train_batch_size": "auto",
        "optimizer": {"type": "AdamW", "params": {"lr": "auto"}},
    }
    assert read(source, world_size=8).strategy.global_batch == 16


@pytest.mark.parametrize("stage", [2, 3])
def test_sharded_gradients_with_a_pipeline_are_refused_as_there(stage: int) -> None:
    message = told(zero(stage), pipeline=4)
    assert f"ZeRO-{stage} and a pipeline of 4 stages" in message
    assert "0, 1, or no pipeline" in message
    assert read(zero(1), world_size=8, pipeline=4).strategy.data == 2


@pytest.mark.parametrize(
    ("source", "parts"),
    [
        (zero(4), ["4 is no stage", "0, 1, 2, 3"]),
        ({"zero_optimization": True}, ['{"stage": 1}']),
        (zero(2, offload_param={"device": "cpu"}), ["offload_param", "stage 3"]),
        (zero(0, offload_optimizer={"device": "cpu"}), ["offload_optimizer", "stage 1"]),
        (zero(2, offload_optimizer={"device": "gpu"}), ["'gpu'", "none, cpu, nvme"]),
        (zero(1, reduce_bucket_size="5e8"), ["reduce_bucket_size", "whole number"]),
        (zero(1, reduce_bucket_size=0.5), ["reduce_bucket_size", "whole number"]),
        (zero(1, overlap_comm="yes"), ["overlap_comm", "true, false"]),
        (zero(1) | {"fp16": {"enabled": True}}, ["fp16 and bf16"]),
        (zero(1) | {"fp16": 1}, ["fp16"]),
        (zero(1) | {"communication_data_type": "fp12"}, ["fp12", "fp32"]),
    ],
)
def test_values_that_are_refused(source: dict[str, Any], parts: list[str]) -> None:
    if "fp16" in source and source["fp16"] == 1:
        # A number where a section stands has no keys: nothing is enabled.
        assert read(source, world_size=8).strategy.precision.compute == "bfloat16"
        return
    message = told(source)
    for part in parts:
        assert part in message


def test_all_problems_are_told_at_once() -> None:
    source = zero(3, offload_optimizer={"device": "disk"}, reduce_bucket_size=-1)
    assert told(source, pipeline=2).count("allowed:") == 3


def test_a_template_is_named_as_one() -> None:
    message = told(DATA / "ds_config.json.template")
    assert "ds_config.json.template:2: a Jinja template" in message


def test_misspelt_keys_are_warned_of() -> None:
    source = zero(1, reduce_buckt_size=5) | {"train_batchsize": 3}
    warnings = " ".join(read(source, world_size=8).warnings)
    assert "'train_batch_size'" in warnings
    assert "'zero_optimization.reduce_bucket_size'" in warnings


def test_zero_plus_plus_and_mics() -> None:
    plus = {
        "zero_hpz_partition_size": 8,
        "zero_quantized_weights": True,
        "zero_quantized_gradients": True,
    }
    data = read(zero(3, **plus), world_size=64).strategy.data_parallel
    assert (data.secondary_shard, data.quantized_weights, data.quantized_gradients) == (
        8,
        True,
        True,
    )
    assert read(zero(3, mics_shard_size=8), world_size=64).strategy.data_parallel.shard == 8
    nvme = zero(3, offload_param={"device": "nvme"}, offload_optimizer={"device": "nvme"})
    data = read(nvme, world_size=8).strategy.data_parallel
    assert (data.offload_parameters, data.offload_optimizer) == ("nvme", "nvme")


def test_sequence_and_tensor_parallel_sizes() -> None:
    strategy = read(DATA / "autosp_config.json", world_size=2).strategy
    assert (strategy.context, strategy.context_kind, strategy.data) == (2, "ulysses", 1)
    source = zero(1) | {"tensor_parallel": {"autotp_size": 4}}
    assert read(source, world_size=8).strategy.tensor == 4


def test_whole_precision_and_widths_of_gradients() -> None:
    single = read({"train_micro_batch_size_per_gpu": 1}, world_size=2).strategy.precision
    assert (single.compute, single.parameter_bytes, single.master_bytes) == ("float32", 4, 0)
    wide = zero(1) | {"data_types": {"grad_accum_dtype": "fp32"}, "communication_data_type": "fp32"}
    precision = read(wide, world_size=2).strategy.precision
    assert (precision.gradient_bytes, precision.reduce_bytes) == (4, 4)


def test_it_is_registered() -> None:
    assert IMPORTERS["deepspeed_config"].value is deepspeed_config.read


@pytest.mark.parametrize("stage", ["4", "-1", "{}", "[3]", '"3"', "true", "1.5"])
def test_a_stage_that_there_is_not_is_refused(stage: str) -> None:
    text = f'{{"train_batch_size": 16, "zero_optimization": {{"stage": {stage}}}}}'
    with pytest.raises(ForeignFileError, match=r"zero_optimization\.stage"):
        read(text, world_size=4)
