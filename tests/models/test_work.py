"""Operations of layers: FLOPs, exchanges, recomputation, phases."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from simulator.models import Attention, Gemm, MemoryBound, Slice, Sync, get_model
from simulator.models.kernels import Work

PLAIN = Slice(micro_batch=2, seq=2048)


def part(**choices: Any) -> Slice:
    return dataclasses.replace(PLAIN, **choices)


def products(work: Work, *phases: str) -> float:
    """FLOPs of products; a fused attention's forward has two, its backward five, of which one
    repeats the first (Dao 2023, arXiv:2307.08691, section 3.1)."""
    total = 0.0
    for op in work:
        if phases and op.phase not in phases:
            continue
        if isinstance(op, Gemm):
            total += op.flops
        elif isinstance(op, Attention):
            scores = op.batch * op.heads * op.q_len * op.kv_len
            once = 2.0 * scores * (op.head_dim + op.value_dim)
            if op.causal and op.q_len == op.kv_len:
                once /= 2
            total += once * (2 if op.phase == "input_gradient" else 1)
    return total


def syncs(work: Work, axis: str) -> list[Sync]:
    return [op for op in work if isinstance(op, Sync) and op.axis == axis]


@pytest.mark.parametrize("name", ["megatron-22b", "llama-3-8b", "mixtral-8x7b", "deepseek-v3"])
def test_products_of_all_layers_are_the_models_flops(name: str) -> None:
    model = get_model(name)
    one = part(micro_batch=1, attention="standard")
    forward = sum(products(layer.forward(one)) for layer in model.layers)
    backward = sum(products(layer.backward(one)) for layer in model.layers)
    assert forward == pytest.approx(model.flops(2048) / 3, rel=1e-9)
    assert backward == pytest.approx(2 * forward, rel=1e-9)


@pytest.mark.parametrize("name", ["resnet-18", "resnet-50", "vit-b-16", "bert-base"])
def test_products_of_encoders_and_images_are_the_models_flops(name: str) -> None:
    model = get_model(name)
    one = Slice(micro_batch=1, seq=model.seq, attention="standard")
    forward = sum(products(layer.forward(one)) for layer in model.layers)
    assert forward == pytest.approx(model.flops() / 3, rel=2e-3)
    backward = sum(products(layer.backward(one)) for layer in model.layers)
    # The first convolution has no input gradient.
    assert 1.85 * forward < backward <= 2.001 * forward


def test_tensor_ranks_share_the_products() -> None:
    block = get_model("llama-3-70b").layers[1]
    whole = products(block.forward(PLAIN))
    for ways in (2, 4, 8):
        cut = part(tensor=ways, sequence_parallel=ways > 2)
        assert products(block.forward(cut)) == pytest.approx(whole / ways)
        both = products(block.backward(PLAIN))
        assert products(block.backward(cut)) == pytest.approx(both / ways)


def test_sixteen_tensor_ranks_hold_eight_key_heads_twice() -> None:
    block = get_model("llama-3-70b").layers[1]
    qkv = next(op for op in block.forward(part(tensor=16)) if op.name == "qkv")
    assert isinstance(qkv, Gemm)
    assert qkv.n == 4 * 128 + 2 * 128


def test_two_all_reduces_forward_and_two_backward() -> None:
    # Shoeybi et al. 2019, figure 4: of s b h elements each.
    block = get_model("megatron-22b").layers[1]
    cut = part(tensor=8)
    size = 2048 * 2 * 6144 * 2
    for work in (block.forward(cut), block.backward(cut)):
        found = syncs(work, "tensor")
        assert [op.collective for op in found] == ["all_reduce"] * 2
        assert {op.size_bytes for op in found} == {size}
    # The backward's run beside the weight gradients, which follow them.
    backward = block.backward(cut)
    for op in syncs(backward, "tensor"):
        follower = backward[backward.index(op) + 1]
        assert op.overlaps
        assert follower.phase == "weight_gradient"


def test_sequence_parallel_exchanges_move_as_much_and_gather_again() -> None:
    # Korthikanti et al. 2022, section 4.2.2: two all-gathers and two reduce-scatters in each
    # pass, and two all-gathers more in the backward, for the weight gradients.
    block = get_model("megatron-22b").layers[1]
    cut = part(tensor=8, sequence_parallel=True)
    forward = [op.collective for op in syncs(block.forward(cut), "tensor")]
    assert sorted(forward) == ["all_gather"] * 2 + ["reduce_scatter"] * 2
    backward = syncs(block.backward(cut), "tensor")
    assert sorted(op.collective for op in backward) == ["all_gather"] * 4 + ["reduce_scatter"] * 2
    extra = [op for op in backward if op.phase == "weight_gradient"]
    assert [(op.collective, op.overlaps) for op in extra] == [("all_gather", True)] * 2


def test_full_recomputation_repeats_the_forward_with_its_exchanges() -> None:
    block = get_model("megatron-22b").layers[1]
    cut = part(tensor=8, recompute="full")
    forward, backward = block.forward(cut), block.backward(cut)
    again = tuple(op for op in backward if op.phase == "recompute")
    assert again == tuple(dataclasses.replace(op, phase="recompute") for op in forward)
    assert len(syncs(backward, "tensor")) == 4
    assert backward[: len(again)] == again


def test_selective_recomputation_repeats_the_core_only() -> None:
    # Korthikanti et al. 2022, section 5: 4 b s^2 h more FLOPs of a layer.
    block = get_model("megatron-22b").layers[1]
    cut = part(recompute="selective", attention="standard")
    again = products(block.backward(cut), "recompute")
    assert again == 4 * 2 * 2048**2 * 6144
    names = {op.name for op in block.backward(cut) if op.phase == "recompute"}
    assert names == {"scores", "softmax", "values", "attention_layout"}


def test_recomputation_by_operators_repeats_every_other_product() -> None:
    # The even ones of q, k, v, o, gate, up, down, but for the last, whose output no one keeps.
    block = get_model("llama-3-8b").layers[1]
    again = [
        op
        for op in block.backward(part(recompute="operators"))
        if op.phase == "recompute" and not isinstance(op, MemoryBound)
    ]
    assert [op.n for op in again if isinstance(op, Gemm)] == [1024, 4096, 14336]
    assert len(again) == 3
    # An unfused attention and gathers are repeated, reductions are not.
    cut = part(recompute="operators", attention="standard", tensor=4, sequence_parallel=True)
    names = [op.name for op in block.backward(cut) if op.phase == "recompute"]
    assert {"scores", "values", "qkv.all_gather", "mlp_up.all_gather"} <= set(names)
    assert not any("reduce_scatter" in name for name in names)
    experts = get_model("mixtral-8x7b").layers[1].backward(part(recompute="operators"))
    repeated = {op.name for op in experts if op.phase == "recompute"}
    assert "experts_up" in repeated
    assert "experts_down" not in repeated


def test_flash_attention_is_one_kernel_each_way() -> None:
    block = get_model("llama-3-8b").layers[1]
    for work in (block.forward(PLAIN), block.backward(PLAIN)):
        kernels = [op for op in work if isinstance(op, Attention)]
        assert len(kernels) == 1
        assert (kernels[0].heads, kernels[0].kv_heads) == (32, 8)
    standard = block.forward(part(attention="standard"))
    assert not any(isinstance(op, Attention) for op in standard)


def test_a_ring_passes_keys_and_values_and_shares_causal_work() -> None:
    block = get_model("llama-3-8b").layers[1]
    whole = products(block.forward(PLAIN))
    cut = part(context=4)
    forward = block.forward(cut)
    passed = syncs(forward, "context")
    assert [(op.collective, op.overlaps) for op in passed] == [("send_recv", True)] * 3
    # Two tensors of 8 heads of 128 for 512 tokens of 2 sequences.
    assert {op.size_bytes for op in passed} == {2 * 8 * 128 * 512 * 2 * 2}
    assert products(forward) == pytest.approx(whole / 4)
    # Gradients go round too.
    back = syncs(block.backward(cut), "context")
    assert {op.size_bytes for op in back} == {2 * passed[0].size_bytes}


def test_gathered_keys_and_exchanged_heads() -> None:
    block = get_model("llama-3-8b").layers[1]
    gathered = part(context=4, context_kind="all_gather")
    kv_bytes = 2 * 8 * 128 * 2048 * 2 * 2
    found = syncs(block.forward(gathered), "context")
    assert [(op.collective, op.size_bytes) for op in found] == [("all_gather", kv_bytes)]
    back = [op.collective for op in syncs(block.backward(gathered), "context")]
    assert back == ["all_gather", "reduce_scatter"]
    # Jacobs et al. 2023, section 3: q, k, v before and the output after, N h / P elements each.
    exchanged = part(context=4, context_kind="ulysses")
    found = syncs(block.forward(exchanged), "context")
    widths = [op.size_bytes // (2 * 512 * 2) for op in found]
    assert [op.collective for op in found] == ["all_to_all"] * 4
    assert widths == [4096, 1024, 1024, 4096]
    for kind in (gathered, exchanged):
        assert products(block.forward(kind)) == pytest.approx(products(block.forward(PLAIN)) / 4)


def test_experts_exchange_each_tokens_copies_twice_each_way() -> None:
    block = get_model("mixtral-8x7b").layers[1]
    cut = part(expert=8)
    for work in (block.forward(cut), block.backward(cut)):
        found = syncs(work, "expert")
        assert [op.collective for op in found] == ["all_to_all"] * 2
        # 2 sequences of 2048 tokens, two experts each, 4096 wide, 2 bytes.
        assert {op.size_bytes for op in found} == {2 * 2048 * 2 * 4096 * 2}
    # As many copies arrive as leave, so an expert rank's products are as large as before.
    assert products(block.forward(cut)) == pytest.approx(products(block.forward(PLAIN)))
    grouped = next(op for op in block.forward(cut) if op.name == "experts_up")
    assert isinstance(grouped, Gemm)
    assert (grouped.count, grouped.m) == (1, 2 * 2048 * 2)


def test_uneven_and_padded_loads() -> None:
    block = get_model("mixtral-8x7b").layers[1]

    def rows(**choices: Any) -> int:
        work = block.forward(part(expert=8, **choices))
        return next(op.m for op in work if isinstance(op, Gemm) and op.name == "experts_up")

    assert rows(expert_imbalance=1.25) == 1.25 * rows()
    # A padded dispatch has the same size whatever the load.
    assert rows(capacity_factor=1.5) == 1.5 * rows()
    assert rows(capacity_factor=1.5, expert_imbalance=2.0) == 1.5 * rows()


def test_expert_ranks_of_sequence_parallel_ranks_dispatch_their_own_tokens() -> None:
    block = get_model("mixtral-8x7b").layers[1]
    cut = part(expert=8, tensor=2, sequence_parallel=True)
    found = syncs(block.forward(cut), "expert")
    assert {op.size_bytes for op in found} == {2048 * 2 * 4096 * 2}
    # An expert that two tensor ranks share sees the tokens of both, at half its width.
    shared = part(expert=4, tensor=2, sequence_parallel=True, expert_tensor=2)
    own = next(op for op in block.forward(cut) if op.name == "experts_up")
    half = next(op for op in block.forward(shared) if op.name == "experts_up")
    assert isinstance(own, Gemm)
    assert isinstance(half, Gemm)
    assert half.flops == own.flops


def test_latent_attention_gathers_compressed_tokens() -> None:
    # DeepSeek-V3 on 8 tensor ranks: down projections run on each rank's own tokens; queries of
    # 1536, keys and values of 512, and 64 with positions are gathered, not 7168.
    block = get_model("deepseek-v3").layers[1]
    cut = part(tensor=8, sequence_parallel=True)
    work = block.forward(cut)
    gathered = [op.size_bytes for op in syncs(work, "tensor") if op.collective == "all_gather"]
    tokens = 2 * 2048 * 2
    assert gathered == [1536 * tokens, 64 * tokens, 512 * tokens, 7168 * tokens]
    shapes = {op.name: (op.m, op.k, op.n) for op in work if isinstance(op, Gemm)}
    assert shapes["q_down"] == (512, 7168, 1536)
    assert shapes["kv_down"] == (512, 7168, 576)
    assert shapes["q_up"] == (4096, 1536, 16 * 192)
    assert shapes["kv_up"] == (4096, 512, 16 * 256)
    # V2-Lite does not compress queries.
    lite = get_model("deepseek-v2-lite").layers[1]
    names = {op.name for op in (*lite.forward(PLAIN), *lite.backward(PLAIN))}
    assert "q_down" not in names
    assert "q_up" in names


def test_latent_attention_recomputed_by_operators() -> None:
    model = get_model("deepseek-v3")
    cut = part(recompute="operators", compiled=True)
    names = {op.name for op in model.layers[1].backward(cut) if op.phase == "recompute"}
    assert {"q_down", "kv_up", "attention_output", "mlp_up"} <= names
    kept = [model.layers[1].activations(part(recompute=r)).kept_bytes for r in ("none", "full")]
    assert kept[0] > model.layers[1].activations(cut).kept_bytes > kept[1]
    dense, routed = (model.layers[i].activations(cut).kept_bytes for i in (1, 10))
    assert dense > routed


def test_normed_queries_and_keys() -> None:
    block = get_model("qwen3-8b").layers[1]
    for work in (block.forward(PLAIN), block.backward(part(recompute="operators"))):
        assert "qk_norm" in {op.name for op in work}


def test_experts_of_whole_tensor_ranks_sum_their_parts() -> None:
    # Without sequence parallelism tensor ranks hold the same tokens, and parts of each expert.
    block = get_model("mixtral-8x7b").layers[1]
    cut = part(expert=4, tensor=2, expert_tensor=2)
    found = [op for op in syncs(block.forward(cut), "tensor") if "combine" in op.name]
    assert [op.collective for op in found] == ["all_reduce"]
    assert found[0].size_bytes == 2 * 2048 * 2 * 4096 * 2


def test_dropout_of_the_embedding() -> None:
    embedding = get_model("megatron-22b").layers[0]
    plain, dropped = part(), part(dropout=True)
    mask_and_copies = 5 * 2 * 2048 * 6144
    for name in ("forward", "backward"):
        work = [getattr(embedding, name)(one) for one in (plain, dropped)]
        assert traffic_of(work[1]) - traffic_of(work[0]) == mask_and_copies


def test_parameters_of_a_rank() -> None:
    # Of Mixtral's block: attention and nothing else over tensor ranks, experts over expert ranks
    # and their tensor ranks, norms and router whole.
    block = get_model("mixtral-8x7b").layers[1]
    attention, experts = 4096 * 128 * (32 + 8 + 8 + 32), 8 * 3 * 4096 * 14336
    whole = 8 * 4096 + 2 * 4096
    cut = part(tensor=4, expert=2, expert_tensor=2)
    assert block.parameters_on(cut) == attention // 4 + experts // 4 + whole
    assert block.parameters_on(part()) == attention + experts + whole


def test_the_loss_exchanges_three_numbers_per_token() -> None:
    head = get_model("megatron-22b").layers[-1]
    found = syncs(head.forward(part(tensor=8)), "tensor")
    assert [(op.collective, op.size_bytes) for op in found] == [("all_reduce", 4 * 4096)] * 3


def test_compiling_saves_traffic_and_launches() -> None:
    block = get_model("llama-3-8b").layers[1]

    def traffic(compiled: bool) -> tuple[float, int]:
        work = [*block.forward(part(compiled=compiled)), *block.backward(part(compiled=compiled))]
        found = [op for op in work if isinstance(op, MemoryBound)]
        return sum(op.n_bytes for op in found), sum(op.launches for op in found)

    eager, fused = traffic(False), traffic(True)
    assert fused[0] < 0.5 * eager[0]
    assert fused[1] < eager[1]


def traffic_of(work: Work) -> float:
    return sum(op.n_bytes for op in work if isinstance(op, MemoryBound))


def test_traffic_of_a_gpt_block() -> None:
    # Per token and element of the width h, 2 bytes each.  Forward: two norms read and write (4),
    # two sums read two and write one (6), the activation of 4 h reads and writes (8).
    block = get_model("megatron-22b").layers[1]
    elements = 2 * 2048 * 6144 * 2
    fused = part(compiled=True)
    assert traffic_of(block.forward(fused)) == 18 * elements
    # Backward: two norms read gradient and input, write (6), and read both again for their
    # weights (4); two sums of gradients (6); the activation (12); gradients of biases read those
    # of 3 h, h, 4 h and h (9).
    assert traffic_of(block.backward(fused)) == 37 * elements
    # Dropout in the sum's kernel writes a mask of one byte, twice; back it is read, with the
    # gradient, and a gradient is written.
    dropped = part(compiled=True, dropout=True)
    assert traffic_of(block.forward(dropped)) == 19 * elements
    assert traffic_of(block.backward(dropped)) == 37 * elements + 2 * (2 * 2 + 1) * elements / 2


def test_traffic_of_unfused_attention() -> None:
    # Scores of 64 heads are read and written by the softmax (2), back read twice and written (3);
    # the output is copied between layouts (2 h), back too, with the gradients of q, k, v (6 h).
    block = get_model("megatron-22b").layers[1]
    flash, plain = part(compiled=True), part(compiled=True, attention="standard")
    elements, scores = 2 * 2048 * 6144 * 2, 2 * 64 * 2048**2 * 2
    more = traffic_of(block.forward(plain)) - traffic_of(block.forward(flash))
    assert more == 2 * scores + 2 * elements
    more = traffic_of(block.backward(plain)) - traffic_of(block.backward(flash))
    assert more == 3 * scores + 8 * elements


def test_gradients_of_separate_projections_are_added_up() -> None:
    # q, k, v: two sums; gate and up: one; each reads two tensors and writes one.
    block = get_model("llama-3-8b").layers[1]
    sums = [op for op in block.backward(PLAIN) if op.name.endswith(".sum")]
    assert sum(op.n_bytes for op in sums if isinstance(op, MemoryBound)) == 9 * 2 * 4096 * 4096
    assert not [op for op in block.backward(part(compiled=True)) if op.name.endswith(".sum")]


def test_traffic_of_a_convolution() -> None:
    # The stem's 64 x 112 x 112 outputs of one image, 4 bytes: the norm reads twice and writes, the
    # activation reads and writes; the pooling reads all and writes a quarter.
    stem = get_model("resnet-50").layers[0]
    image = Slice(micro_batch=1, seq=1, activation_bytes=4)
    outputs = 64 * 112 * 112 * 4
    assert traffic_of(stem.forward(image)) == (5 + 1.25) * outputs
    fused = dataclasses.replace(image, compiled=True)
    assert traffic_of(stem.forward(fused)) == (3 + 1.25) * outputs
    again = stem.backward(dataclasses.replace(image, recompute="full"))
    assert traffic_of(again) == traffic_of(stem.forward(image)) + traffic_of(stem.backward(image))


def test_equal_blocks_share_their_work() -> None:
    model = get_model("llama-3-8b")
    assert model.layers[1].forward(PLAIN) is model.layers[20].forward(PLAIN)
    assert model.layers[1].backward(PLAIN) is model.layers[20].backward(PLAIN)
    # DeepSeek-V3 has three dense blocks before those with experts.
    deep = get_model("deepseek-v3")
    assert deep.layers[3].forward(PLAIN) is not deep.layers[4].forward(PLAIN)


def test_windows_and_every_other_block() -> None:
    model = get_model("gpt-oss-20b")
    windows = [
        op.window
        for layer in model.layers
        for op in layer.forward(PLAIN)
        if isinstance(op, Attention)
    ]
    assert windows == [128, None] * 12


def test_phases_part_input_from_weight_gradients() -> None:
    block = get_model("megatron-22b").layers[1]
    work = block.backward(PLAIN)
    of_weights = {op.name for op in work if isinstance(op, Gemm) and op.phase == "weight_gradient"}
    assert of_weights == {"qkv", "attention_output", "mlp_up", "mlp_down"}
    weights = products(work, "weight_gradient")
    # Attention has no weights: input gradients hold all of it.
    assert products(work, "input_gradient") > weights
