"""What a layer does on one rank: kernels of known work, and the points where ranks must agree.

A model describes its layers as sequences of these; `simulator.compute` says how long a kernel
takes, and `simulator.training` makes collectives of the points.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

__all__ = ["Attention", "Gemm", "Kernel", "MemoryBound", "Operation", "Phase", "Sync", "Work"]

Phase = Literal["forward", "recompute", "input_gradient", "weight_gradient"]
"""A backward pass is its input gradients and its weight gradients; zero-bubble pipelines part
them.  Recomputed forward kernels belong to the backward pass."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gemm:
    """Matrix products ``[m, k] x [k, n]``, `count` of them in one kernel."""

    name: str
    phase: Phase
    m: int
    n: int
    k: int
    count: int = 1
    """Independent products in one launch: batched (heads) or grouped (experts)."""
    dtype: str | None = None
    """Element type of the operands; None: the step's compute type."""
    eight_bit: bool = True
    """May be done in 8 bits or fewer where the step's compute type is such a one; False: logits,
    routers, products of unfused attention, which then stay at 16 bits."""

    @property
    def flops(self) -> float:
        """Multiplications and additions."""
        return 2.0 * self.m * self.n * self.k * self.count


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """Softmax of queries on keys, times values, fused (FlashAttention) or not.

    An unfused one is described by its two batched `Gemm` and its softmax as `MemoryBound`.
    """

    name: str
    phase: Phase
    batch: int
    heads: int
    kv_heads: int
    q_len: int
    kv_len: int
    head_dim: int
    value_dim: int
    causal: bool
    window: int | None = None
    """Sliding window: keys that each query sees at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryBound:
    """Element-wise work, norms, look-ups, copies: bounded by memory traffic."""

    name: str
    phase: Phase
    n_bytes: float
    """Read and written in all."""
    launches: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Sync:
    """A point where the ranks of an axis exchange data before the layer can go on."""

    name: str
    phase: Phase
    axis: Literal["tensor", "context", "expert"]
    collective: str
    """As nccl-tests spells it; `send_recv` is one shift of a ring."""
    size_bytes: int
    """nccl-tests' S of the call on that axis (for `send_recv`: bytes that each rank passes on)."""
    times: int = 1
    """Repeated so often (steps of a ring)."""
    overlaps: bool = False
    """May run beside the kernel that follows it in the sequence (ring attention)."""


Kernel: TypeAlias = Gemm | Attention | MemoryBound
Operation: TypeAlias = Gemm | Attention | MemoryBound | Sync
Work: TypeAlias = tuple[Operation, ...]
