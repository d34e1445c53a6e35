"""The section ``training`` of a scenario: a model, and how its step is spread over the GPUs."""

from __future__ import annotations

from dataclasses import dataclass

from simulator.base.fields import option
from simulator.base.limits import MOST_TOKENS
from simulator.scenario.reader import shaped
from simulator.scenario.shapes import Texts

__all__ = ["DATA_PARALLEL", "FRAMEWORKS", "PRECISIONS", "USUAL_FRAMEWORK", "TrainingSpec"]

DATA_PARALLEL = ("ddp", "zero1", "zero2", "zero3", "fsdp", "hsdp")
PRECISIONS = ("bf16", "fp16", "fp8", "fp4", "tf32", "fp32")
FRAMEWORKS = ("megatron", "deepspeed", "torch")
MOST_SEQUENCES = 65_536
"""Of a rank and pass."""
USUAL_FRAMEWORK = {"zero2": "deepspeed", "zero3": "deepspeed", "fsdp": "torch", "hsdp": "torch"}
"""Whose word a kind of data parallelism is; Megatron-LM's otherwise."""
PLACES = ("none", "cpu", "nvme")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSpec:
    """A training step.  Sizes of the parallel axes multiply to the number of GPUs."""

    model: str = option(
        "text",
        doc="Name as `collsim list models` shows it, a Hugging Face `config.json`, or `custom` "
        "with the sizes in `model_set`.",
    )
    model_set: dict[str, str] = shaped(
        Texts("dimensions by name, `layers: 4`"), doc="Other dimensions of the model."
    )
    tensor: int = option("count", 1, doc="Tensor-parallel ranks.", minimum=1)
    sequence_parallel: bool | None = option(
        "flag",
        None,
        doc="Activations between tensor-parallel products are split, too; auto: "
        "with `tensor` above 1 under Megatron and torch.",
    )
    pipeline: int = option("count", 1, doc="Pipeline stages.", minimum=1)
    virtual: int = option("count", 1, doc="Model chunks per stage (interleaved).", minimum=1)
    schedule: str | None = option(
        "name",
        None,
        doc="Order of micro-batches; auto: 1f1b, interleaved with `virtual` above 1.",
        choices=("gpipe", "1f1b", "interleaved", "zb_h1", "zb_h2"),
    )
    context: int = option("count", 1, doc="Context-parallel ranks.", minimum=1)
    context_kind: str = option(
        "name", "ring", doc="How they exchange keys.", choices=("ring", "all_gather", "ulysses")
    )
    expert: int = option(
        "count", 1, doc="Expert-parallel ranks, taken from data and context.", minimum=1
    )
    expert_tensor: int | None = option(
        "count", None, doc="Tensor ranks of an expert; auto: `tensor`.", minimum=1
    )
    expert_imbalance: float = option(
        "fraction", 1.0, doc="Tokens of the busiest expert rank over the mean.", minimum=1
    )
    capacity_factor: float | None = option(
        "fraction", None, doc="Dispatch is padded to so many times the mean; auto: not padded."
    )
    routed_nodes: int | None = option(
        "count", None, doc="A token's experts sit on at most so many nodes; auto: any.", minimum=1
    )
    overlap_expert: bool = option(
        "flag", False, doc="All-to-all of one half of a batch beside the computes of the other."
    )
    data: int | None = option(
        "count", None, doc="Data-parallel ranks; auto: what the other axes leave.", minimum=1
    )
    order: tuple[str, ...] = option(
        "name",
        ("tensor", "context", "data", "pipeline"),
        doc="Placement of ranks on GPUs, neighbours first.",
        choices=("tensor", "context", "data", "pipeline"),
        many=True,
    )
    data_parallel: str = option(
        "name",
        "ddp",
        doc="What data-parallel ranks share: `ddp` nothing; `zero1` (Megatron's distributed "
        "optimizer) optimiser states; `zero2` gradients, too; `zero3` and `fsdp` parameters, too; "
        "`hsdp`: fsdp inside each node.",
        choices=DATA_PARALLEL,
    )
    shard: int | None = option(
        "count", None, doc="Ranks that share one copy, neighbours first; auto: all.", minimum=1
    )
    secondary_shard: int | None = option(
        "count", None, doc="ZeRO++ hpZ: the backward gathers from so many neighbours.", minimum=1
    )
    overlap_reduce: bool | None = option(
        "flag", None, doc="Gradients are reduced during the backward; auto: the framework's way."
    )
    overlap_gather: bool | None = option(
        "flag", None, doc="Parameters are gathered beside computes; auto: the framework's way."
    )
    overlap_p2p: bool = option("flag", True, doc="Transfers between stages beside computes.")
    overlap_tensor: bool = option(
        "flag", False, doc="Tensor-parallel collectives cut in pieces beside their products."
    )
    bucket_bytes: int | None = option(
        "size", None, doc="Gradients of a bucket; auto: the framework's.", minimum=64 * 1024
    )
    first_bucket_bytes: int | None = option(
        "size", None, doc="PyTorch DDP's first bucket; auto: `bucket`, or 1 MiB.", minimum=1
    )
    prefetch: int = option("count", 1, doc="Units that zero3 and fsdp gather ahead.")
    reshard_after_forward: bool = option(
        "flag", True, doc="fsdp frees parameters after the forward; no: keeps them (ZeRO-2-like)."
    )
    reduce_every_micro_batch: bool | None = option(
        "flag", None, doc="Gradients are reduced in each micro-batch; auto: zero2, zero3 and fsdp."
    )
    hook: str = option(
        "name",
        "none",
        doc="Compression of gradients.",
        choices=("none", "fp16", "bf16", "int8", "fp8", "top_k", "power_sgd"),
    )
    hook_ratio: float = option(
        "fraction", 0.01, doc="top_k: share of values that is sent.", maximum=1
    )
    hook_rank: int = option("count", 1, doc="power_sgd: rank.", minimum=1)
    quantized_weights: bool = option("flag", False, doc="ZeRO++ qwZ: parameters travel as int8.")
    quantized_gradients: bool = option("flag", False, doc="ZeRO++ qgZ: gradients travel as int4.")
    offload_optimizer: str = option(
        "name", "none", doc="Where optimiser states live.", choices=PLACES
    )
    offload_parameters: str = option("name", "none", doc="Where parameters live.", choices=PLACES)
    micro_batch: int = option(
        "count", 1, doc="Sequences of a rank and pass.", minimum=1, maximum=MOST_SEQUENCES
    )
    micro_batches: int | None = option(
        "count", None, doc="Passes of a step; auto: from `global_batch`, or 1.", minimum=1
    )
    global_batch: int | None = option(
        "count", None, doc="Sequences of a step, of all ranks.", minimum=1
    )
    seq: int | None = option(
        "count", None, doc="Tokens of a sequence; auto: the model's.", maximum=MOST_TOKENS
    )
    recompute: str = option(
        "name",
        "none",
        doc="Activations computed again in the backward: none, attention only, whole layers.",
        choices=("none", "selective", "full"),
    )
    recompute_layers: int | None = option(
        "count", None, doc="`full`: only so many layers of a stage; auto: all.", minimum=1
    )
    attention: str = option(
        "name", "flash", doc="Kernel of attention.", choices=("flash", "standard")
    )
    compiled: bool | None = option(
        "flag",
        None,
        doc="Element-wise kernels are fused, by a compiler or by hand; auto: under Megatron.",
    )
    dropout: bool = option("flag", False, doc="With dropout.")
    precision: str = option("name", "bf16", doc="Type of matrix products.", choices=PRECISIONS)
    gradient_bytes: int | None = option(
        "size", None, doc="Bytes of a gradient as kept; auto: the framework's.", minimum=1
    )
    reduce_bytes: int | None = option(
        "size", None, doc="Bytes of a gradient as communicated; auto: as kept.", minimum=1
    )
    optimizer: str = option("name", "adam", doc="Optimiser.", choices=("adam", "sgd", "none"))
    framework: str = option(
        "name",
        "auto",
        doc="Whose defaults and ways hold; auto: deepspeed for zero2 and zero3, torch for fsdp and "
        "hsdp, else megatron.",
        choices=("auto", *FRAMEWORKS),
    )
    compute_slowdown: float | None = option(
        "fraction",
        None,
        doc="Computes take so many times longer beside communication; auto: the compute model's.",
        minimum=1,
    )
    fold: bool = option(
        "flag", True, doc="Ranks that are alike are simulated once; no: each, up to 512."
    )
