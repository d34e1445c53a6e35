"""Flags of Megatron-LM become a model and a strategy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from simulator.importers import IMPORTERS, megatron_args
from simulator.importers.megatron_args import read
from simulator.importers.source import ForeignFileError
from simulator.models import get_model
from simulator.training.strategy import Precision

DATA = Path(__file__).parent / "data" / "configs"

BASE = {
    "num-layers": 24,
    "hidden-size": 1024,
    "num-attention-heads": 16,
    "seq-length": 1024,
    "micro-batch-size": 4,
    "vocab-size": 50257,
}

# As examples/gpt3/train_gpt3_175b_distributed.sh of Megatron-LM is laid out.
SCRIPT = r"""
#!/bin/bash
# Runs the "175B" parameter model
export CUDA_DEVICE_MAX_CONNECTIONS=1
GPUS_PER_NODE=8
NUM_NODES=16
TP=8
WORLD_SIZE=$(($GPUS_PER_NODE*$NUM_NODES))
DISTRIBUTED_ARGS=(
    --nproc_per_node $GPUS_PER_NODE
    --nnodes $NUM_NODES
    --master_addr $MASTER_ADDR
)
GPT_MODEL_ARGS=(
    --num-layers 96
    --hidden-size 12288
    --num-attention-heads 96
    --seq-length 2048
    --max-position-embeddings 2048
    --attention-backend auto # Can use (flash/fused/unfused/local)
)
TRAINING_ARGS="
    --micro-batch-size 1 \
    --global-batch-size 1536 \
    --rampup-batch-size 16 16 5859375 \
    --fp16 \
    --lr 6.0e-5
"
MODEL_PARALLEL_ARGS=(
	--tensor-model-parallel-size ${TP}
	--pipeline_model_parallel_size=16
)
torchrun ${DISTRIBUTED_ARGS[@]} pretrain_gpt.py \
    ${GPT_MODEL_ARGS[@]} \
    $TRAINING_ARGS \
    --vocab-size 50257 --recompute-activations
"""


def told(**changes: Any) -> str:
    flags = {k.replace("_", "-"): v for k, v in changes.items()}
    world_size = flags.pop("world-size", None)
    merged = {key: value for key, value in (BASE | flags).items() if value is not None}
    with pytest.raises(ForeignFileError) as caught:
        read(merged, world_size=world_size)
    return str(caught.value)


def test_a_shell_script() -> None:
    plan = read(SCRIPT)
    # 50,257 words padded to a multiple of 128 x 8.
    assert plan.model.n_parameters == get_model("megatron-175b").n_parameters
    strategy = plan.strategy
    assert (strategy.tensor, strategy.pipeline, strategy.data) == (8, 16, 1)
    assert (strategy.micro_batch, strategy.micro_batches) == (1, 1536)
    assert (strategy.recompute, strategy.precision.compute) == ("selective", "half")
    assert strategy.precision.gradient_bytes == 2
    assert strategy.dropout
    assert plan.warnings == ()


def test_yaml_of_a_model_with_experts() -> None:
    plan = read(DATA / "mixtral_8x22b_tp2pp8ep8.yaml", world_size=256)
    named = get_model("mixtral-8x22b")
    # Its vocabulary of 32,000 words is a multiple of 128 x 2.
    assert plan.model.n_parameters == named.n_parameters
    strategy = plan.strategy
    assert (strategy.tensor, strategy.pipeline, strategy.expert, strategy.data) == (2, 8, 8, 16)
    assert strategy.sequence_parallel
    assert strategy.data_parallel.kind == "zero1"
    assert strategy.data_parallel.overlap_gather
    assert not strategy.dropout
    assert strategy.precision == Precision()


def test_latent_attention_and_dense_blocks_first() -> None:
    plan = read(DATA / "deepseekv3_proxy_tp1pp4ep16.yaml", world_size=128)
    named = get_model("deepseek-v3", layers=14, experts=64, vocab=plan.model.vocab, mtp_layers=0)
    assert plan.model.n_parameters == named.n_parameters
    assert (plan.strategy.expert, plan.strategy.expert_tensor, plan.strategy.data) == (16, 1, 16)
    told_of = " ".join(plan.warnings)
    assert "256000 words" in told_of
    assert "--pipeline-model-parallel-layout" in told_of
    assert "--mtp-num-layers" in told_of


def test_interleaving_and_growing_batches() -> None:
    plan = read(DATA / "gpt3_15b_8t_release_gb200.yaml", world_size=64)
    strategy = plan.strategy
    assert (strategy.virtual, strategy.schedule) == (2, "interleaved")
    assert strategy.overlap_tensor
    assert strategy.global_batch == 1152
    assert plan.model.n_parameters == get_model("nemotron-4-15b").n_parameters
    assert "its last size, 1152" in " ".join(plan.warnings)
    once = read(DATA / "gpt3_15b_8t_release.yaml", world_size=64).strategy
    assert (once.tensor, once.pipeline, once.overlap_tensor) == (8, 1, False)


def test_without_a_number_of_gpus_the_fewest_are_taken() -> None:
    # Two tensor ranks x 8 stages hold 2 of the 16 expert ranks of a stage.
    plan = read(DATA / "mixtral_8x22b_tp2pp8ep8.yaml")
    assert plan.strategy.world_size == 128
    assert "128, the fewest possible" in plan.warnings[0]
    assert read(BASE | {"nnodes": 2, "nproc-per-node": 8}).strategy.world_size == 16


def test_words_and_a_line() -> None:
    line = " ".join(f"--{key} {value}" for key, value in BASE.items())
    assert read(line.split(), world_size=4).strategy == read(line, world_size=4).strategy
    assert read(line, world_size=4).strategy.data == 4


def test_widths_that_follow() -> None:
    # Gated: two thirds of 4 h, rounded down to 64; one group of keys unless said.
    flags = BASE | {"swiglu": True, "group-query-attention": True, "normalization": "RMSNorm"}
    dims = read(flags, world_size=1).model.traits["dims"]
    assert (dims.ffn, dims.kv_heads, dims.norm) == (2688, 1, "rms_norm")  # type: ignore[attr-defined]
    plain = read(BASE | {"group-query-attention": False}, world_size=1).model.traits["dims"]
    assert (plain.ffn, plain.kv_heads) == (4096, 16)  # type: ignore[attr-defined]


def strategy_of(world_size: int = 8, **changes: Any) -> Any:
    return read(
        BASE | {k.replace("_", "-"): v for k, v in changes.items()}, world_size=world_size
    ).strategy


def test_recomputation() -> None:
    assert strategy_of(recompute_granularity="selective").recompute == "selective"
    full = strategy_of(
        recompute_granularity="full", recompute_method="block", recompute_num_layers=4
    )
    assert (full.recompute, full.recompute_layers) == ("full", 4)
    uniform = strategy_of(
        recompute_granularity="full", recompute_method="uniform", recompute_num_layers=1
    )
    assert (uniform.recompute, uniform.recompute_layers) == ("full", None)


def test_types() -> None:
    assert strategy_of().precision.compute == "float32"
    assert strategy_of(bf16=True, grad_reduce_in_bf16=True).precision.reduce_bytes == 2
    eight = strategy_of(bf16=True, fp8_format="hybrid", fp8_param_gather=True).precision
    assert (eight.compute, eight.gather_bytes) == ("f8e4m3", 1)


def test_data_parallel_kinds() -> None:
    assert strategy_of().data_parallel.kind == "ddp"
    fsdp = strategy_of(use_megatron_fsdp=True).data_parallel
    assert (fsdp.kind, fsdp.reduce_every_micro_batch) == ("fsdp", True)
    partial = strategy_of(use_distributed_optimizer=True, num_distributed_optimizer_instances=2)
    assert (partial.data_parallel.kind, partial.data_parallel.shard) == ("zero1", 4)
    bucket = strategy_of(ddp_bucket_size=40_000_000).data_parallel.bucket_bytes
    assert bucket == 160_000_000


def test_context_kinds_and_order() -> None:
    kinds = [
        strategy_of(context_parallel_size=2, cp_comm_type=kind).context_kind
        for kind in ("p2p", "all_gather", "a2a")
    ]
    assert kinds == ["ring", "all_gather", "ulysses"]
    order = strategy_of(use_tp_pp_dp_mapping=True).order
    assert order.index("pipeline") < order.index("data")


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"num_layers": None}, ["--num-layers: is missing"]),
        ({"hidden_size": "$HIDDEN"}, ["'$HIDDEN' is a variable without a value"]),
        ({"hidden_size": "1e3"}, ["no count"]),
        ({"num_attention_heads": 7}, ["1024 is not a multiple of 7 heads"]),
        ({"vocab_size": None}, ["--vocab-size", "in its file"]),
        ({"world_size": 6, "tensor-model-parallel-size": 4}, ["6 GPUs", "a multiple of 4"]),
        ({"world_size": 8, "global-batch-size": 40}, ["40 is no multiple of 4 per GPU x 8"]),
        (
            {"pipeline-model-parallel-size": 4, "num-layers-per-virtual-pipeline-stage": 4},
            ["4 x 4 stages do not divide 24 blocks", "1, 2, 3, 6"],
        ),
        ({"normalization": "BatchNorm"}, ["'BatchNorm'", "LayerNorm, RMSNorm"]),
        ({"num-experts": 4, "moe-layer-freq": "[1]*3+[0]*21"}, ["moe-layer-freq"]),
        ({"num-experts": 4, "moe-layer-freq": "__import__('os')"}, ["moe-layer-freq"]),
        ({"attention-dropout": "none"}, ["no number"]),
        (
            {
                "world_size": 8,
                "num-distributed-optimizer-instances": 3,
                "use-distributed-optimizer": True,
            },
            ["3 do not divide 8 replicas"],
        ),
    ],
)
def test_what_is_wrong_is_told_with_what_would_be_right(
    changes: dict[str, Any], parts: list[str]
) -> None:
    message = told(**changes)
    for part in parts:
        assert part in message


def test_misspelt_flags_are_warned_of_and_others_are_not() -> None:
    flags = BASE | {"tensor-model-paralel-size": 2, "lr-decay-style": "cosine", "num-workers": 2}
    warnings = [w for w in read(flags, world_size=2).warnings]
    assert warnings == [
        "--tensor-model-paralel-size is not read; did you mean --tensor-model-parallel-size?"
    ]


def test_texts_without_flags() -> None:
    for text in ("hello\nworld\n", "MODEL_ARGS: 3\n", "a: [\n--x: 1\n"):
        with pytest.raises(ForeignFileError):
            read(text)


def test_it_is_registered() -> None:
    assert IMPORTERS["megatron_args"].value is megatron_args.read
