"""Memory of a step: published tables exactly, measured peaks within stated errors."""

from __future__ import annotations

import statistics
from dataclasses import replace
from typing import Any

import pytest

from simulator.base.errors import ScenarioError
from simulator.models import from_dims, get_model
from simulator.models.model import Model
from simulator.training.memory import CONTEXT_BYTES, MemoryReport, memory_report
from simulator.training.strategy import DataParallel, Kind, Precision, Strategy

GIB = 2.0**30


def megatron(name: str, *, pipeline: int, virtual: int, micro_batch: int, **more: Any) -> Strategy:
    """Korthikanti et al. 2022, table 3: tensor 8, interleaved where virtual > 1."""
    batches = {"megatron-22b": 1, "megatron-175b": 64, "megatron-530b": 280, "megatron-1t": 512}
    return Strategy(
        tensor=8,
        pipeline=pipeline,
        virtual=virtual,
        schedule="interleaved" if virtual > 1 else "1f1b",
        micro_batch=micro_batch,
        micro_batches=batches[name],
        attention="standard",
        dropout=True,
        compiled=True,
        **more,
    )


SHAPES = {
    "megatron-22b": {"pipeline": 1, "virtual": 1, "micro_batch": 4},
    "megatron-175b": {"pipeline": 8, "virtual": 3, "micro_batch": 1},
    "megatron-530b": {"pipeline": 35, "virtual": 3, "micro_batch": 1},
    "megatron-1t": {"pipeline": 64, "virtual": 1, "micro_batch": 1},
}

# Figure 1 in GiB, as in calculon's validation.py (calculon-ai/calculon, calculon/llm): parameters
# and optimiser; activations without recomputation; with sequence parallelism and selective
# recomputation.
FIGURE_1 = {
    "megatron-22b": (45.56, 59.25, 9.56),
    "megatron-175b": (45.56, 66.84, 12.35),
    "megatron-530b": (31.64, 114.02, 23.08),
    "megatron-1t": (32.96, 131.25, 26.56),
}

# Figure 7, percent of the activations under tensor parallelism alone: sequence parallelism,
# selective recomputation, both, full recomputation.
FIGURE_7 = {
    "megatron-22b": (66.84, 49.42, 16.18, 7.64),
    "megatron-175b": (62.04, 56.53, 18.49, 8.71),
    "megatron-530b": (58.31, 62.04, 20.27, 9.42),
    "megatron-1t": (58.31, 62.04, 20.27, 9.42),
}


@pytest.mark.parametrize("name", FIGURE_1)
def test_megatrons_figure_1(name: str) -> None:
    states, plain, best = FIGURE_1[name]
    model = get_model(name)
    report = memory_report(model, megatron(name, **SHAPES[name]))
    # The figure counts 12 l h^2 parameters at 18 bytes; inner stages hold little else (biases,
    # norms), the only stage of the 22B also the embedding: 0.3 of 22 billion parameters.
    inner = report.stages[len(report.stages) // 2]
    assert inner.states_bytes / GIB == pytest.approx(states, rel=0.02)
    # The figure counts blocks only; the first stage also keeps masks of the embedding's dropout,
    # the 22B's also logits.
    first = report.stages[0].activations_bytes / GIB
    assert plain <= first <= 1.025 * plain
    both = megatron(name, **SHAPES[name], sequence_parallel=True, recompute="selective")
    first = memory_report(model, both).stages[0].activations_bytes / GIB
    assert best <= first <= 1.025 * best


@pytest.mark.parametrize("name", FIGURE_7)
def test_megatrons_figure_7(name: str) -> None:
    model = get_model(name)

    def kept(**choices: Any) -> float:
        strategy = megatron(name, **SHAPES[name], **choices)
        return memory_report(model, strategy).stages[0].activations_bytes

    base = kept()
    found = (
        kept(sequence_parallel=True),
        kept(recompute="selective"),
        kept(sequence_parallel=True, recompute="selective"),
        kept(recompute="full"),
    )
    shares = [100 * one / base for one in found]
    assert shares == pytest.approx(list(FIGURE_7[name]), abs=2.3)


def test_interleaving_keeps_more_micro_batches() -> None:
    # Korthikanti et al., section 4.2.3: L (1 + (p - 1)/(p v)) layers on the first stage; without
    # interleaving L.  The model has no dropout, so that only blocks keep anything there.
    model = from_dims(hidden=1024, layers=48, heads=16, vocab=1000)
    one = 34 * 2048 * 1024 - 2 * 2048 * 1024 + 4 * 16 * 2048

    def layers(**choices: Any) -> float:
        strategy = Strategy(micro_batches=64, compiled=True, **choices)
        return memory_report(model, strategy).stages[0].activations_bytes / one

    assert layers(pipeline=4) == pytest.approx(48)
    two = layers(pipeline=4, virtual=2, schedule="interleaved")
    assert two == pytest.approx(48 * (1 + 3 / 8))
    assert layers(pipeline=4, virtual=4, schedule="interleaved") == pytest.approx(48 * (1 + 3 / 16))
    # GPipe keeps all micro-batches; zero-bubble H2 up to 2p - 1 (Qi et al. 2024, table 2).
    assert layers(pipeline=4, schedule="gpipe") == pytest.approx(64 * 12)
    assert layers(pipeline=4, schedule="zb_h2") == pytest.approx(7 * 12)


def test_later_stages_keep_fewer() -> None:
    model = from_dims(hidden=1024, layers=16, heads=16, vocab=1000)
    report = memory_report(model, Strategy(pipeline=4, micro_batches=16, compiled=True))
    assert [stage.in_flight for stage in report.stages] == [4, 3, 2, 1]
    kept = [stage.activations_bytes for stage in report.stages]
    assert kept == sorted(kept, reverse=True)


def test_zero_bubble_schedules_hold_until_weight_gradients() -> None:
    # Qi et al. 2024, table 2: H1 needs p micro-batches on every stage, as 1F1B on its first.
    model = from_dims(hidden=1024, layers=16, heads=16, vocab=1000)
    report = memory_report(
        model, Strategy(pipeline=4, micro_batches=16, schedule="zb_h1", compiled=True)
    )
    assert [stage.in_flight for stage in report.stages] == [4, 4, 4, 4]
    kept = [stage.activations_bytes for stage in report.stages[:3]]
    assert kept == [kept[0]] * 3


# Rajbhandari et al. 2020, table 1: GB (1e9) of 7.5, 128 and 1000 billion parameters by
# data-parallel size and stage; K = 12, gradients of 2 bytes.
ZERO = {
    (7.5, 1): (120, 120, 120),
    (7.5, 4): (52.5, 41.3, 30),
    (7.5, 16): (35.6, 21.6, 7.5),
    (7.5, 64): (31.4, 16.6, 1.88),
    (7.5, 256): (30.4, 15.4, 0.47),
    (7.5, 1024): (30.1, 15.1, 0.12),
}


@pytest.mark.parametrize(("billions", "data"), ZERO)
def test_table_1_of_zero(billions: float, data: int) -> None:
    # A model of about so many parameters; bytes are scaled to exactly so many.
    model = get_model("megatron-7.5b")
    scale = billions * 1e9 / model.n_parameters
    for kind, published in zip(("zero1", "zero2", "zero3"), ZERO[billions, data], strict=True):
        strategy = Strategy(
            data=data,
            framework="deepspeed",
            precision=Precision(gradient_bytes=2),
            data_parallel=DataParallel(kind=kind),
        )
        states = memory_report(model, strategy).stages[0].states_bytes * scale / 1e9
        assert states == pytest.approx(published, rel=0.01, abs=0.005)


@pytest.mark.parametrize(
    ("precision", "plain", "shared"),
    [
        # Megatron-LM, docs/source/api-guide/dist_optimizer.md: bytes per parameter, and with the
        # distributed optimiser, of d replicas.
        (Precision(gradient_bytes=2), 20, lambda d: 4 + 16 / d),
        (Precision(gradient_bytes=4), 18, lambda d: 6 + 12 / d),
        (
            Precision(parameter_bytes=4, gradient_bytes=4, master_bytes=0, compute="float32"),
            16,
            lambda d: 8 + 8 / d,
        ),
    ],
)
def test_megatrons_bytes_per_parameter(precision: Precision, plain: float, shared: Any) -> None:
    model = get_model("megatron-1.7b")
    for kind, expected in (("ddp", plain), ("zero1", shared(8))):
        strategy = Strategy(data=8, precision=precision, data_parallel=DataParallel(kind=kind))
        states = memory_report(model, strategy).stages[0].states_bytes
        assert states / model.n_parameters == pytest.approx(expected)


def test_fsdp_keeps_sixteen_bytes_per_parameter() -> None:
    # The shard in 32 bits is parameter and master copy in one (torch/distributed/fsdp).
    model = get_model("llama-3-8b")
    strategy = Strategy(data=64, framework="torch", data_parallel=DataParallel(kind="fsdp"))
    states = memory_report(model, strategy).stages[0].states_bytes
    assert states / model.n_parameters == pytest.approx(16 / 64)


def test_partial_sharding_and_offload() -> None:
    model = get_model("llama-3-8b")

    def states(**choices: Any) -> tuple[float, float]:
        strategy = Strategy(data=64, framework="deepspeed", data_parallel=DataParallel(**choices))
        stage = memory_report(model, strategy).stages[0]
        return stage.states_bytes / model.n_parameters, stage.host_bytes / model.n_parameters

    assert states(kind="zero3") == pytest.approx((18 / 64, 0))
    # MiCS: shards over 8 neighbours.
    assert states(kind="zero3", shard=8) == pytest.approx((18 / 8, 0))
    # ZeRO-Offload: optimiser states and gradients leave, parameters stay.
    assert states(kind="zero2", offload_optimizer="cpu") == pytest.approx((2, 16 / 64))
    infinity = states(kind="zero3", offload_optimizer="nvme", offload_parameters="nvme")
    assert infinity == pytest.approx((0, 18 / 64))


def test_experts_are_sharded_over_their_own_replicas() -> None:
    # 8 expert ranks of 64 replicas: dense parameters are optimised by 64 shards, experts by 8.
    model = get_model("mixtral-8x7b")
    strategy = Strategy(data=64, expert=8, data_parallel=DataParallel(kind="zero1"))
    stage = memory_report(model, strategy).stages[0]
    experts = 32 * 8 * 3 * 4096 * 14336
    dense = model.n_parameters - experts
    assert stage.n_parameters == dense + experts // 8
    assert stage.optimizer_bytes == pytest.approx(12 * (dense / 64 + experts / 8 / 8))


def test_a_tied_head_of_another_stage_has_its_own_copy() -> None:
    model = get_model("megatron-1.7b")
    report = memory_report(model, Strategy(pipeline=2, micro_batches=2))
    total = sum(stage.n_parameters for stage in report.stages)
    assert total == model.n_parameters + model.vocab * model.hidden


def test_flash_attention_saves_three_quarters_at_8k() -> None:
    # Dao et al. 2022, arXiv:2205.14135, figure 3: memory of attention falls with the sequence; a
    # GPT-3 1.3B at 8K tokens keeps mostly scores without it.
    model = get_model("gpt3-1.3b", seq=8192)

    def kept(attention: Any) -> float:
        strategy = Strategy(attention=attention, dropout=True, compiled=True)
        return memory_report(model, strategy).stages[0].activations_bytes

    assert kept("flash") < 0.25 * kept("standard")


def big(hidden: int, layers: int) -> Model:
    """Candidates of BLOOM: 250,880 words, 2048 tokens."""
    return from_dims(
        hidden=hidden,
        layers=layers,
        heads=64,
        vocab=250880,
        seq=2048,
        position="alibi",
        embedding_norm=True,
    )


# bigscience-workshop/bigscience, train/tr11-176B-ml/chronicles-prequel.md: A100 80 GB, fp16 with
# ZeRO-1, hidden 14336, 72 layers, all layers recomputed; `nvidia-smi`, GB there are GiB.
# (tensor, pipeline, data, micro-batch): memory.
CHRONICLES = {
    (8, 12, 4, 1): 29,
    (8, 12, 4, 2): 37,
    (8, 12, 4, 4): 49,
    (8, 12, 4, 8): 69,
    (8, 6, 8, 4): 55,
    (8, 6, 8, 6): 66,
    (8, 8, 6, 4): 52,
    (8, 4, 12, 2): 53,
    (8, 4, 12, 4): 59,
    (8, 2, 24, 1): 65,
    (8, 2, 24, 2): 76,
    (4, 12, 8, 4): 60,
    (4, 12, 8, 2): 44,
    (4, 6, 16, 2): 57,
    (4, 6, 16, 4): 75,
    (2, 24, 8, 1): 44,
    (2, 24, 8, 2): 53,
}


def chronicle(
    tensor: int, pipeline: int, data: int, micro_batch: int, *, gradient_bytes: int = 2
) -> Strategy:
    return Strategy(
        tensor=tensor,
        pipeline=pipeline,
        data=data,
        micro_batch=micro_batch,
        micro_batches=2048 // data // micro_batch,
        recompute="full",
        attention="standard",
        compiled=True,
        framework="deepspeed",
        precision=Precision(gradient_bytes=gradient_bytes, reduce_bytes=2),
        data_parallel=DataParallel(kind="zero1", overlap_reduce=False),
    )


def test_measured_memory_of_3d_parallel_jobs() -> None:
    # The margin for fragmentation and the form of the loss's workspace were chosen with these rows
    # in view: this holds the fit, it proves no forecast.  Errors are -3 to -15 %: what DeepSpeed
    # holds beside its states and buckets is not known to the model.
    model = big(14336, 72)
    errors = [
        memory_report(model, chronicle(*shape)).peak_bytes / GIB / measured - 1
        for shape, measured in CHRONICLES.items()
    ]
    assert len(errors) == 17
    assert abs(statistics.median(errors)) < 0.11
    assert max(abs(error) for error in errors) < 0.16


def test_what_ran_out_of_memory_there() -> None:
    eighty = 80 * GIB
    model = big(14336, 72)
    for shape in ((8, 1, 48, 1), (2, 6, 32, 1), (2, 6, 32, 2)):
        assert not memory_report(model, chronicle(*shape)).fits(eighty)
    for shape in CHRONICLES:
        assert memory_report(model, chronicle(*shape)).fits(eighty)
    # With gradients in 32 bits beside those of bf16 (6 bytes): "Rebalancing layers".
    wide = big(12288, 100)
    assert not memory_report(wide, chronicle(4, 6, 16, 2, gradient_bytes=6)).fits(eighty)


def fsdp(**choices: Any) -> Strategy:
    data = {"kind": "fsdp", "reshard_after_forward": choices.pop("reshard", True)}
    return Strategy(
        framework="torch",
        data_parallel=DataParallel(**data),
        **({"recompute": "full"} | choices),
    )


# pytorch/torchtitan, benchmarks/llama3_h100_202412_torchtitan.md: reserved memory, GiB, with full
# recomputation or with a selective one by operator.  The loss is not compiled there.
TITAN = {
    "8B": ("llama-3.1-8b", fsdp(data=128, micro_batch=2, recompute="selective"), 67.0),
    "8B, compiled": (
        "llama-3.1-8b",
        fsdp(data=128, micro_batch=2, recompute="selective", compiled=True),
        62.0,
    ),
    "8B, context 2": (
        "llama-3.1-8b",
        fsdp(data=4, context=2, seq=65536),
        84.2,
    ),
    "8B, context 8": ("llama-3.1-8b", fsdp(context=8, seq=262144), 84.5),
    "70B, tensor 8": (
        "llama-3.1-70b",
        fsdp(data=32, tensor=8, sequence_parallel=True, micro_batch=16),
        71.9,
    ),
    "405B, tensor 8, pipeline 8": (
        "llama-3.1-405b",
        fsdp(
            data=8,
            tensor=8,
            sequence_parallel=True,
            pipeline=8,
            virtual=2,
            schedule="interleaved",
            micro_batch=2,
            micro_batches=16,
            reshard=False,
        ),
        72.7,
    ),
    "405B, tensor 8, pipeline 8, context 8": (
        "llama-3.1-405b",
        fsdp(
            tensor=8,
            context=8,
            sequence_parallel=True,
            pipeline=8,
            micro_batches=8,
            seq=262144,
            reshard=False,
        ),
        84.9,
    ),
}


def test_measured_memory_of_fsdp_jobs() -> None:
    # The 70B (-17 %) keeps gathered inputs that are not all modelled.
    relative = []
    for name, strategy, measured in TITAN.values():
        fullest = memory_report(get_model(name), strategy).fullest
        relative.append(fullest.allocated_bytes / GIB / measured - 1)
    assert abs(statistics.median(relative)) < 0.06
    assert max(abs(error) for error in relative) < 0.18


def test_measured_memory_of_zero_2() -> None:
    # hpcaitech/ColossalAI, README.md: Llama-2 7B on 8 H200, ZeRO-2, 36 sequences of 4096 tokens
    # per GPU: 119,040 MiB.
    strategy = Strategy(
        data=8,
        micro_batch=36,
        seq=4096,
        recompute="full",
        framework="torch",
        data_parallel=DataParallel(kind="zero2"),
    )
    report = memory_report(get_model("llama-2-7b"), strategy)
    # The loss' kernels are not known: fused or not decides about 20 %.
    assert report.peak_bytes / 2**20 == pytest.approx(119040, rel=0.25)


# Published runs on A100 80 GB: tables 1 of Narayanan et al. 2021 and 5 of Korthikanti et al. 2022.
RAN = [
    ("megatron-1.7b", {"micro_batch": 16, "data": 32}),
    ("megatron-7.5b", {"tensor": 4, "micro_batch": 16, "data": 32}),
    ("megatron-18.4b", {"tensor": 8, "micro_batch": 16, "data": 32}),
    ("megatron-145.6b", {"tensor": 8, "pipeline": 8, "micro_batch": 4, "micro_batches": 24}),
    ("megatron-1008b", {"tensor": 8, "pipeline": 64, "micro_batch": 1, "micro_batches": 512}),
]


@pytest.mark.parametrize(("name", "choices"), RAN)
def test_what_ran_fits(name: str, choices: dict[str, Any]) -> None:
    strategy = Strategy(
        recompute="full", attention="standard", dropout=True, compiled=True, **choices
    )
    report = memory_report(get_model(name), strategy)
    assert report.fits(80 * GIB)
    assert "fits" in report.verdict(80 * GIB)


def report_of(kind: Kind = "ddp", **choices: Any) -> MemoryReport:
    strategy = Strategy(data=8, data_parallel=DataParallel(kind=kind), **choices)
    return memory_report(get_model("llama-2-7b"), strategy)


def test_parts_add_up_and_the_verdict_names_them() -> None:
    report = report_of()
    stage = report.fullest
    assert stage.total_bytes == pytest.approx(sum(stage.parts().values()))
    assert stage.context_bytes == CONTEXT_BYTES
    verdict = report.verdict(80 * GIB)
    assert verdict.startswith("out of memory")
    assert "too many" in verdict
    assert report.notes


def test_recomputation_of_some_layers() -> None:
    none, some, full = (
        report_of(recompute=kind, recompute_layers=layers).fullest.activations_bytes
        for kind, layers in (("none", None), ("full", 16), ("full", None))
    )
    assert none > some > full
    assert some == pytest.approx((none + full) / 2)


def test_blocks_that_do_not_divide() -> None:
    with pytest.raises(ScenarioError):
        report_of(pipeline=7, micro_batches=8)


def test_residual_networks_have_memory_too() -> None:
    strategy = Strategy(
        data=8,
        micro_batch=256,
        framework="torch",
        optimizer="sgd",
        precision=Precision(compute="float32", parameter_bytes=4, gradient_bytes=4, master_bytes=0),
    )
    report = memory_report(get_model("resnet-50"), strategy)
    stage = report.fullest
    assert stage.states_bytes == pytest.approx(12 * 25_557_032)
    # Outputs of convolutions (11.1 million per image) and of norms, of 4 bytes.
    assert stage.activations_bytes == pytest.approx(256 * 4 * 2 * 11.1e6, rel=0.05)


@pytest.mark.parametrize(("hook", "copies"), [("fp16", 0), ("top_k", 1), ("power_sgd", 1)])
def test_error_feedback_keeps_what_compression_left_out(hook: str, copies: int) -> None:
    # One more gradient of four bytes for each parameter, and its share of fragmentation.
    model = get_model("gpt2-small")
    plain = Strategy(data=8, framework="torch", data_parallel=DataParallel(kind="ddp"))
    hooked = replace(plain, data_parallel=DataParallel(kind="ddp", hook=hook))
    more = memory_report(model, hooked).peak_bytes - memory_report(model, plain).peak_bytes
    assert more == pytest.approx(copies * 4 * model.n_parameters * 1.1)
