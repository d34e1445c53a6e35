"""FlashAttention's published rates, and its known effects against standard attention."""

from __future__ import annotations

import pytest

from simulator.compute import ComputeModel
from simulator.compute.attention import scored_pairs
from simulator.models import Slice, get_model
from simulator.models.kernels import Attention, Gemm, MemoryBound
from tests.compute.gpus import A100, ALONE, H100


def attention(seq: int, width: int, *, phase: str = "forward", causal: bool = False, **more):
    # 16 k tokens and a hidden width of 2,048, as in the papers' benchmarks.
    heads = 2048 // width
    shape = {
        "batch": 16384 // seq,
        "heads": heads,
        "kv_heads": heads,
        "q_len": seq,
        "kv_len": seq,
        "head_dim": width,
        "value_dim": width,
    }
    return Attention(name="attention", phase=phase, causal=causal, **{**shape, **more})


def tflops(gpu, kernel, name):
    pairs = kernel.batch * kernel.heads * kernel.q_len * kernel.kv_len
    work = 4.0 * pairs * kernel.head_dim * (0.5 if kernel.causal else 1.0)
    work *= 1.0 if kernel.phase == "forward" else 2.5
    return (
        work
        / ComputeModel(gpu, constants=ALONE, attention=name).kernel_s(kernel, "bfloat16")
        / 1e12
    )


@pytest.mark.parametrize(
    ("gpu", "name", "width", "phase", "paper"),
    [
        # FlashAttention-2, arXiv 2307.08691, figures 5-7, 16 k tokens, no mask.
        (A100, "flash2", 64, "forward", 192),
        (A100, "flash2", 128, "forward", 227),
        (A100, "flash2", 64, "input_gradient", 170),
        (A100, "flash2", 128, "input_gradient", 196),
        # FlashAttention-3, arXiv 2407.08608, figures 5 and 6.
        (H100, "flash2", 64, "forward", 324),
        (H100, "flash2", 128, "forward", 370),
        (H100, "flash3", 64, "forward", 497),
        (H100, "flash3", 128, "forward", 648),
        (H100, "flash3", 64, "input_gradient", 474),
        (H100, "flash3", 128, "input_gradient", 561),
    ],
)
def test_published_rates(gpu, name, width, phase, paper):
    assert tflops(gpu, attention(16384, width, phase=phase), name) == pytest.approx(paper, rel=0.1)


def test_a_causal_mask_saves_almost_half_and_less_on_short_sequences():
    model = ComputeModel(A100)
    saved = [
        model.kernel_s(attention(seq, 64, causal=True), "half")
        / model.kernel_s(attention(seq, 64), "half")
        for seq in (512, 2048, 16384)
    ]
    assert saved[0] > saved[1] > saved[2] > 0.5
    assert saved[2] < 0.53


def test_narrow_heads_are_slower():
    assert tflops(A100, attention(4096, 64), "flash2") < tflops(
        A100, attention(4096, 128), "flash2"
    )


def test_few_heads_leave_units_idle():
    # 8 blocks of queries for 132 units.
    few = attention(1024, 128, batch=1, heads=1, kv_heads=1)
    assert tflops(H100, few, "flash3") < 0.2 * tflops(H100, attention(1024, 128), "flash3")


def test_a_window_bounds_the_pairs():
    kernel = attention(8192, 64, causal=True, window=1024)
    assert scored_pairs(kernel, 128) == 8192 * (1024 + 128)


def standard(seq: int, heads: int, width: int, phase: str):
    """Attention that writes its scores: two products and their softmax, dropout included.

    Scores are written by the product, read and written by scale-mask-softmax and by dropout, read
    by the second product; the backward moves them about twice as often.
    """
    scores = 2.0 * heads * seq * seq
    shapes = [(seq, seq, width), (seq, width, seq)]
    times = 1 if phase == "forward" else 2
    products = [
        Gemm(name="scores", phase=phase, m=m, n=n, k=k, count=heads)
        for m, n, k in shapes
        for _ in range(times)
    ]
    passes = 4.5 if phase == "forward" else 6.5
    return [*products, MemoryBound(name="softmax", phase=phase, n_bytes=passes * scores)]


def test_at_8k_flash_attention_is_about_three_times_as_fast_as_standard():
    # FlashAttention, arXiv 2205.14135, section 4.3 and figure 3: up to 3x at these lengths over
    # PyTorch's, forward and backward, on A100; FlashAttention-2 doubles that, figure 4.
    heads, width, seq = 16, 64, 8192
    plain = ComputeModel(A100)
    unfused = sum(
        sum(plain.work_s(standard(seq, heads, width, phase), "half"))
        for phase in ("forward", "input_gradient")
    )
    fused = {
        name: sum(
            ComputeModel(A100, attention=name).kernel_s(
                attention(
                    seq, width, phase=phase, causal=True, batch=1, heads=heads, kv_heads=heads
                ),
                "half",
            )
            for phase in ("forward", "input_gradient")
        )
        for name in ("flash1", "flash2")
    }
    assert 2.0 < unfused / fused["flash1"] < 4.5
    assert unfused / fused["flash2"] > 1.5 * unfused / fused["flash1"]


def test_at_8k_flash_attention_takes_about_three_quarters_of_the_memory_away():
    # GPT-3 1.3B, one sequence of 8,192: 16 bytes a parameter for weights, gradients and Adam, and
    # the activations of all layers; standard attention keeps its probabilities, 2 a·s² bytes each.
    model = get_model("gpt3-1.3b")
    total = {}
    for kind in ("standard", "flash"):
        part = Slice(micro_batch=1, seq=8192, attention=kind, compiled=True)
        kept = sum(layer.activations(part).kept_bytes for layer in model.layers)
        total[kind] = kept + 16.0 * model.n_parameters
    assert 1 - total["flash"] / total["standard"] == pytest.approx(0.75, abs=0.08)
