"""What several sources share."""

from __future__ import annotations

from functools import cache

from simulator.compose.step.request import precision_of
from simulator.models import from_dims
from simulator.models.model import Model

__all__ = ["gpt", "llama", "megatron_seconds", "padded", "precision_of"]


@cache
def gpt(hidden: int, layers: int, heads: int, vocab: int, seq: int) -> Model:
    """Return a GPT as Megatron-LM builds it: learned positions, biases, tied head."""
    return from_dims(
        name=f"gpt h{hidden} l{layers}",
        source="Megatron-LM",
        hidden=hidden,
        layers=layers,
        heads=heads,
        vocab=vocab,
        seq=seq,
    )


@cache
def llama(
    hidden: int,
    layers: int,
    heads: int,
    kv_heads: int,
    ffn: int,
    vocab: int,
    seq: int,
) -> Model:
    """Return a Llama."""
    return from_dims(
        name=f"llama h{hidden} l{layers}",
        source="Llama",
        hidden=hidden,
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        ffn=ffn,
        vocab=vocab,
        seq=seq,
        activation="swiglu",
        norm="rms_norm",
        bias=False,
        position="rope",
        tied=False,
        names="llama",
    )


def megatron_seconds(
    tflops_per_gpu: float,
    gpus: int,
    *,
    batch: int,
    seq: int,
    layers: int,
    hidden: int,
    vocab: int,
    recomputed: bool,
) -> float:
    """Return the step time behind a rate by Narayanan et al. 2021 (arXiv:2104.04473), eq. 3.

    96 B s l h² (1 + s/6h + V/16lh) FLOPs with recomputation, three quarters of it without.
    """
    flops = 96.0 if recomputed else 72.0
    flops *= batch * seq * layers * hidden**2
    flops *= 1 + seq / (6 * hidden) + vocab / (16 * layers * hidden)
    return flops / (tflops_per_gpu * 1e12 * gpus)


def padded(vocab: int, tensor: int, multiple: int = 128) -> int:
    """Return a vocabulary padded as Megatron-LM pads it (--make-vocab-size-divisible-by)."""
    step = multiple * tensor
    return -(-vocab // step) * step
