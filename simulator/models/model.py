"""A model as its layers: parameters, work, and what is kept between forward and backward."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Literal

from simulator.models.kernels import Work

__all__ = ["ActivationBytes", "Layer", "Model", "Parameter", "Slice"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One tensor of parameters, as the framework registers it."""

    name: str
    shape: tuple[int, ...]
    sharding: Literal["none", "tensor", "expert"] = "none"
    """Split over the ranks of that axis (`expert`: over expert and expert-tensor ranks)."""
    tied_to: str | None = None
    """Shares the storage of that parameter: counted once."""

    @property
    def count(self) -> int:
        """Elements of the whole tensor."""
        total = 1
        for extent in self.shape:
            total *= extent
        return total


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """What of the model one rank computes in one pass of one micro-batch."""

    micro_batch: int
    """Sequences (or images)."""
    seq: int
    """Tokens of a whole sequence, before context parallelism."""
    tensor: int = 1
    sequence_parallel: bool = False
    context: int = 1
    context_kind: Literal["ring", "all_gather", "ulysses"] = "ring"
    expert: int = 1
    expert_tensor: int = 1
    expert_imbalance: float = 1.0
    """Tokens of the busiest expert rank over the mean."""
    capacity_factor: float | None = None
    """Padded dispatch of so many times the mean; None: as many tokens as there are."""
    attention: Literal["flash", "standard"] = "flash"
    recompute: Literal["none", "selective", "operators", "full"] = "none"
    """selective: the core of attention (Megatron-LM); operators: all but every other matrix
    product, fused attention, and reduce_scatters (torchtitan's selective checkpointing)."""
    activation_bytes: int = 2
    """Bytes of an activation element that is communicated or kept (2: fp16, bf16)."""
    compiled: bool = False
    """Element-wise chains are fused by a compiler or by hand-written fused kernels."""
    dropout: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivationBytes:
    """Memory of one micro-batch in one layer, bytes per rank."""

    kept_bytes: float
    """Held from its forward to its backward."""
    working_bytes: float
    """More, while the layer's backward (and recomputation) runs."""


class Layer(ABC):
    """One layer: the unit of recomputation, of pipeline stages and of sharded parameters."""

    name: str
    kind: Literal["embedding", "block", "head"]
    parameters: tuple[Parameter, ...]

    @abstractmethod
    def forward(self, part: Slice) -> Work:
        """Return the forward's operations on one rank, in order."""

    @abstractmethod
    def backward(self, part: Slice) -> Work:
        """Return the backward's operations in order, recomputation included."""

    @abstractmethod
    def activations(self, part: Slice) -> ActivationBytes:
        """Return what one micro-batch keeps in memory."""

    @abstractmethod
    def model_flops(self, seq: int) -> float:
        """Return forward FLOPs of one sequence (or image) by the usual convention.

        Matrix products and attention with all keys (no causal halving); backward is twice that.
        """

    def recomputed_flops(self, part: Slice) -> float:
        """Return FLOPs that the backward of one whole sequence computes again.

        By the convention of `model_flops`; `part` tells the kind of recomputation, no split.
        """
        return self.model_flops(part.seq) if part.recompute == "full" else 0.0

    def parameters_on(self, part: Slice) -> int:
        """Return parameters held by one rank of tensor and expert axes."""
        ways = {
            "none": 1,
            "tensor": part.tensor,
            "expert": part.expert * part.expert_tensor,
        }
        return sum(-(-p.count // ways[p.sharding]) for p in self.parameters if not p.tied_to)


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A named model."""

    name: str
    layers: tuple[Layer, ...]
    """In the order of the forward: embedding, blocks, head."""
    seq: int
    """Tokens of a sequence it was trained with; the default."""
    hidden: int
    """Width of what passes from block to block; 0 where it varies (convolutions)."""
    heads: int
    kv_heads: int
    vocab: int
    experts: int = 0
    """Routed experts of a block; 0: dense."""
    experts_per_token: int = 0
    source: str
    unit: Literal["tokens", "images"] = "tokens"
    traits: dict[str, object] = field(default_factory=dict)

    @property
    def blocks(self) -> int:
        """Number of blocks (what pipelines divide)."""
        return sum(layer.kind == "block" for layer in self.layers)

    @property
    def n_parameters(self) -> int:
        """All parameters, tied ones once."""
        return sum(p.count for layer in self.layers for p in layer.parameters if not p.tied_to)

    def flops(self, seq: int | None = None) -> float:
        """Return model FLOPs of forward and backward of one sequence (no recomputation)."""
        return 3.0 * sum(layer.model_flops(seq or self.seq) for layer in self.layers)
