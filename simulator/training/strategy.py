"""How a training step is spread over ranks: every choice that a user can make about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["AXES", "DataParallel", "Kind", "Precision", "Strategy"]

AXES = ("tensor", "context", "data", "pipeline")
"""Default placement, innermost (neighbouring GPUs) first, as Megatron orders tp-cp-ep-dp-pp."""

Kind = Literal["ddp", "zero1", "zero2", "zero3", "fsdp"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Precision:
    """Bytes and types of what is computed, kept and communicated."""

    compute: str = "bfloat16"
    """Type of matrix products: float32, tf32, half, bfloat16, f8e4m3, f4e2m1."""
    parameter_bytes: int = 2
    gradient_bytes: int = 4
    """As kept and accumulated."""
    reduce_bytes: int = 4
    """As communicated between data-parallel ranks."""
    gather_bytes: int = 2
    """Of parameters, as all-gathered."""
    master_bytes: int = 4
    """Own full-precision copy of parameters; 0: none."""
    moment_bytes: int = 8
    """Optimiser moments (Adam: two floats)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataParallel:
    """What data-parallel ranks share, and when they communicate it."""

    kind: Kind = "ddp"
    shard: int | None = None
    """Ranks that share one copy of sharded states, neighbours first; None: all data-parallel
    ranks.  Less than all: HSDP, MiCS, Megatron's partial distributed optimiser."""
    secondary_shard: int | None = None
    """ZeRO++ hpZ: backward gathers parameters from this smaller group."""
    overlap_reduce: bool = True
    overlap_gather: bool = True
    """Stages 1 and 2: gathers of updated parameters run beside the next forward (Megatron's
    overlap_param_gather); stage 3: prefetch."""
    bucket_bytes: int | None = None
    """Gradients of a bucket; None: the framework's own default."""
    first_bucket_bytes: int | None = None
    """PyTorch's DDP only; None: `bucket_bytes` where that is given, else 1 MiB."""
    gather_bucket_bytes: int | None = None
    prefetch: int = 1
    """Stage 3, FSDP: units gathered ahead of the one that computes."""
    reshard_after_forward: bool = True
    """FSDP: no = parameters stay gathered until the backward (ZeRO-2-like)."""
    reduce_every_micro_batch: bool = False
    """Gradients are reduced in each micro-batch (FSDP without no_sync, ZeRO-2/3), not once."""
    hook: str = "none"
    """DDP comm hook: none, fp16, bf16, int8, fp8, top_k, power_sgd."""
    hook_ratio: float = 0.01
    """top_k: share of values kept."""
    hook_rank: int = 1
    """power_sgd: rank."""
    quantized_weights: bool = False
    """ZeRO++ qwZ."""
    quantized_gradients: bool = False
    """ZeRO++ qgZ."""
    offload_optimizer: Literal["none", "cpu", "nvme"] = "none"
    offload_parameters: Literal["none", "cpu", "nvme"] = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Strategy:
    """A whole strategy.  Sizes of all axes multiply to the world size."""

    tensor: int = 1
    sequence_parallel: bool = False
    context: int = 1
    context_kind: Literal["ring", "all_gather", "ulysses"] = "ring"
    expert: int = 1
    """Expert-parallel ranks, taken from the data (and context) axis, as in Megatron."""
    expert_tensor: int | None = None
    """Tensor ranks of an expert; None: as `tensor`."""
    expert_imbalance: float = 1.0
    capacity_factor: float | None = None
    routed_nodes: int | None = None
    """Node-limited routing: a token goes to experts of at most so many nodes."""
    overlap_expert: bool = False
    """All-to-all of one half beside compute of the other (two batches interleaved)."""
    pipeline: int = 1
    virtual: int = 1
    """Model chunks per pipeline rank (interleaved schedule)."""
    schedule: Literal["gpipe", "1f1b", "interleaved", "zb_h1", "zb_h2"] = "1f1b"
    overlap_p2p: bool = True
    overlap_tensor: bool = False
    """Tensor-parallel collectives cut in pieces beside their products (user buffers, async TP)."""
    data: int = 1
    """Data-parallel size, expert ranks included."""
    order: tuple[str, ...] = AXES
    """Placement of ranks, innermost axis first."""
    micro_batch: int = 1
    """Sequences per rank and pass."""
    micro_batches: int = 1
    """Passes per step (gradient accumulation; the pipeline's micro-batches)."""
    seq: int | None = None
    """Tokens per sequence; None: the model's."""
    recompute: Literal["none", "selective", "full"] = "none"
    recompute_layers: int | None = None
    """Full recomputation of only so many layers of each stage; None: all."""
    attention: Literal["flash", "standard"] = "flash"
    compiled: bool = False
    dropout: bool = False
    precision: Precision = Precision()
    data_parallel: DataParallel = DataParallel()
    optimizer: Literal["adam", "sgd", "none"] = "adam"
    framework: Literal["megatron", "deepspeed", "torch"] = "megatron"
    """Whose defaults hold where the strategy leaves something open."""

    @property
    def world_size(self) -> int:
        """Ranks in all."""
        return self.tensor * self.context * self.pipeline * self.data

    @property
    def global_batch(self) -> int:
        """Sequences per step."""
        return self.micro_batch * self.micro_batches * self.data
