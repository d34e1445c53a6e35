"""Kept activations equal Korthikanti et al. 2022 (arXiv:2205.05198) for GPT; others by widths."""

from __future__ import annotations

from typing import Any

import pytest

from simulator.models import Slice, get_model

# 22B of table 3, table 2's formulas for one layer.
S, B, H, A, T = 2048, 4, 6144, 64, 8


def kept(name: str = "megatron-22b", **choices: Any) -> float:
    part = Slice(micro_batch=B, seq=S, attention="standard", dropout=True)
    return get_model(name).layers[1].activations(replaced(part, **choices)).kept_bytes


def replaced(part: Slice, **choices: Any) -> Slice:
    import dataclasses

    return dataclasses.replace(part, **choices)


def test_no_parallelism() -> None:
    assert kept() == S * B * (34 * H + 5 * A * S)


def test_tensor_parallelism() -> None:
    assert kept(tensor=T) == S * B * H * (10 + 24 / T + 5 * A * S / (H * T))


def test_tensor_and_sequence_parallelism() -> None:
    formula = S * B * (34 * H + 5 * A * S) / T
    assert kept(tensor=T, sequence_parallel=True) == formula


def test_selective_recomputation() -> None:
    assert kept(tensor=T, recompute="selective") == S * B * H * (10 + 24 / T)
    assert kept(tensor=T, sequence_parallel=True, recompute="selective") == 34 * S * B * H / T


def test_full_recomputation() -> None:
    assert kept(tensor=T, recompute="full") == 2 * S * B * H
    assert kept(tensor=T, sequence_parallel=True, recompute="full") == 2 * S * B * H / T


def test_embedding_and_head() -> None:
    # Section 4.3: 4 s b h / t (1 + V/h) at the end, a dropout mask s b h / t at the start.
    model = get_model("megatron-22b")
    part = Slice(
        micro_batch=B, seq=S, tensor=T, sequence_parallel=True, dropout=True, compiled=True
    )
    head = model.layers[-1].activations(part).kept_bytes
    assert head == 4 * S * B * H / T * (1 + 51200 / H)
    assert model.layers[0].activations(part).kept_bytes == S * B * H / T


def test_flash_attention_keeps_sums_in_place_of_scores() -> None:
    flash = kept(attention="flash")
    assert flash == S * B * H * 34 + 4 * A * S * B


def test_without_dropout_neither_masks_nor_dropped_scores_are_kept() -> None:
    # Of 5 a s^2 b: the mask (1) and the dropped scores (2) go; of 34: two masks of s b h.
    assert kept(dropout=False) == S * B * H * 32 + 2 * A * S * S * B


def test_grouped_and_gated_by_widths() -> None:
    # Llama-3-8B, fused kernels: two norm inputs, two linear inputs (2 s b h each); q and the
    # attention's output 4096, k and v 1024 wide; gate, up, product 14336 wide; 2 bytes each.
    part = Slice(micro_batch=1, seq=8192, compiled=True)
    own = get_model("llama-3-8b").layers[1].activations(part).kept_bytes
    widths = 4 * 4096 + 2 * 4096 + 2 * 1024 + 3 * 14336
    assert own == 8192 * (2 * widths + 4 * 32)


def test_elementary_operations_keep_more_than_fused_ones() -> None:
    part = Slice(micro_batch=1, seq=8192)
    layer = get_model("llama-3-8b").layers[1]
    fused = layer.activations(replaced(part, compiled=True)).kept_bytes
    # Per token: two norms keep 4 bytes more, the activated gate is 14336 wide.
    assert layer.activations(part).kept_bytes - fused == 8192 * (2 * 4 * 4096 + 2 * 14336)


def test_context_ranks_keep_their_tokens() -> None:
    part = Slice(micro_batch=1, seq=8192, compiled=True)
    layer = get_model("llama-3-8b").layers[1]
    whole = layer.activations(part).kept_bytes
    for kind in ("ring", "all_gather", "ulysses"):
        quarter = replaced(part, context=4, context_kind=kind)
        assert layer.activations(quarter).kept_bytes == whole / 4


def test_experts_keep_their_copies() -> None:
    # Mixtral: each token visits two experts, so that copies, gate, up and product count twice;
    # router logits are 8 floats.
    part = Slice(micro_batch=1, seq=4096, compiled=True, expert=8)
    own = get_model("mixtral-8x7b").layers[1].activations(part).kept_bytes
    attention = 2 * (2 * 4096 + 4096 + 2 * 4096 + 2 * 1024) + 4 * 32
    experts = 2 * (4096 + 2 * (4096 + 3 * 14336)) + 4 * 8
    assert own == 4096 * (attention + experts)
    # The busiest rank of an uneven load keeps more.
    uneven = get_model("mixtral-8x7b").layers[1].activations(replaced(part, expert_imbalance=1.5))
    assert uneven.kept_bytes - own == 4096 * 0.5 * 2 * 2 * (4096 + 3 * 14336)


def test_latent_attention_keeps_compressed_and_expanded_values() -> None:
    part = Slice(micro_batch=1, seq=4096, compiled=True)
    model = get_model("deepseek-v3")
    own = model.layers[1].activations(part).kept_bytes
    compressed = 2 * (1536 + 512) + 64
    expanded = 128 * (192 + 192 + 128 + 128)
    dense = 7168 + 3 * 18432
    assert own == 4096 * (2 * (3 * 7168 + compressed + expanded + dense) + 4 * 128)


def test_recomputation_needs_its_layer_while_it_runs() -> None:
    part = Slice(micro_batch=1, seq=8192, compiled=True)
    layer = get_model("llama-3-8b").layers[1]
    plain, full = layer.activations(part), layer.activations(replaced(part, recompute="full"))
    assert full.working_bytes == plain.working_bytes + plain.kept_bytes
    assert full.kept_bytes == 2 * 8192 * 4096


def test_recomputation_by_operators_keeps_every_other_product() -> None:
    # torchtitan, torchtitan/distributed/activation_checkpoint.py: of seven products of a Llama
    # block in order (q, k, v, o, gate, up, down) the odd ones are kept, and the fused attention;
    # the block's input is kept as with full recomputation.
    part = Slice(micro_batch=1, seq=8192, recompute="operators")
    own = get_model("llama-3-8b").layers[1].activations(part).kept_bytes
    products = 4096 + 1024 + 14336 + 4096
    assert own == 8192 * (2 * (4096 + products + 4096) + 4 * 32)


def test_a_residual_networks_kept_values() -> None:
    # ResNet-50's activations of an image of 224 pixels: 11.1 million outputs of convolutions
    # (Dollár et al. 2021, arXiv:2103.06877, table 2), each kept, and read again by the next.
    model = get_model("resnet-50")
    outputs = sum(c.elements for layer in model.layers[:-1] for c in layer.convs)  # type: ignore[attr-defined]
    assert outputs / 1e6 == pytest.approx(11.1, abs=0.05)
    part = Slice(micro_batch=8, seq=1, activation_bytes=4)
    own = sum(layer.activations(part).kept_bytes for layer in model.layers[:-1])
    assert 8 * 4 * outputs < own < 8 * 4 * 2.1 * outputs
