"""Bytes per rank and step equal those of the papers."""

from __future__ import annotations

import pytest

from simulator.models import get_model
from simulator.training.mesh import group_sizes
from simulator.training.plan import Call, StepPlan
from simulator.training.step import plan_step
from simulator.training.strategy import DataParallel, Precision, Strategy
from tests.training.stubs import SecondsGpu, plain_model
from tests.training.volumes import sent_bytes

COUNT = 4_000_000
BLOCKS = 6
PSI = COUNT * BLOCKS
EVEN = Precision(parameter_bytes=2, gradient_bytes=2, reduce_bytes=2, gather_bytes=2)


def plan(framework: str = "deepspeed", n: int = 8, m: int = 1, **data: object) -> StepPlan:
    strategy = Strategy(
        data=n,
        micro_batches=m,
        optimizer="none",
        precision=EVEN,
        framework=framework,  # type: ignore[arg-type]
        data_parallel=DataParallel(**data),  # type: ignore[arg-type]
    )
    return plan_step(plain_model(BLOCKS, count=COUNT), strategy, SecondsGpu())


def volume(n: int = 8, **options: object) -> dict[str, float]:
    made = plan(n=n, **options)  # type: ignore[arg-type]
    sizes = {axis: rows.shape[1] for axis, rows in made.mesh.groups.items()}
    return sent_bytes(made.roles[0].tasks, sizes)


@pytest.mark.parametrize("framework", ["megatron", "deepspeed", "torch"])
@pytest.mark.parametrize(
    ("kind", "passes"), [("ddp", 2), ("zero1", 2), ("zero2", 2), ("zero3", 3), ("fsdp", 3)]
)
@pytest.mark.parametrize("n", [2, 8, 64])
@pytest.mark.parametrize("overlap", [True, False])
def test_volumes_of_the_zero_paper(
    kind: str, passes: int, framework: str, n: int, overlap: bool
) -> None:
    # Rajbhandari et al. 2020, section 7: 2Ψ for data parallel and stages 1 and 2, 3Ψ for stage 3,
    # of two bytes each and, on n ranks, (n − 1)/n of them.
    found = volume(
        n, framework=framework, kind=kind, overlap_reduce=overlap, overlap_gather=overlap
    )
    assert sum(found.values()) == pytest.approx(passes * (n - 1) / n * PSI * 2, rel=1e-6)


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("m", [1, 3])
def test_micro_batches_repeat_what_they_must(m: int, overlap: bool) -> None:
    share = 7 / 8 * PSI * 2

    def volume_of(**options: object) -> float:
        return sum(volume(m=m, overlap_reduce=overlap, **options).values())  # type: ignore[arg-type]

    # Stage 1 reduces once; stage 2 has nowhere to keep whole gradients; stage 3 gathers twice.
    assert volume_of() == pytest.approx(2 * share)
    assert volume_of(kind="zero1") == pytest.approx(2 * share)
    assert volume_of(kind="zero2") == pytest.approx((m + 1) * share)
    assert volume_of(kind="zero3") == pytest.approx(3 * m * share)
    # FSDP under no_sync keeps whole gradients until the last micro-batch.
    assert volume_of(kind="fsdp", framework="torch") == pytest.approx((2 * m + 1) * share)
    each = volume_of(kind="fsdp", framework="torch", reduce_every_micro_batch=True)
    assert each == pytest.approx(3 * m * share)


def test_fsdp_in_a_pipeline_gathers_once_where_it_does_not_reshard() -> None:
    options = DataParallel(kind="fsdp", reshard_after_forward=False, reduce_every_micro_batch=True)
    strategy = Strategy(
        pipeline=2,
        data=4,
        micro_batches=6,
        optimizer="none",
        precision=EVEN,
        framework="torch",
        data_parallel=options,
    )
    made = plan_step(plain_model(BLOCKS, count=COUNT), strategy, SecondsGpu())
    for role in made.roles:
        found = sent_bytes(role.tasks, {"shard": 4})
        assert found["shard"] == pytest.approx(2 * 3 / 4 * PSI / 2 * 2)


def test_parameters_kept_from_forward_to_backward_are_gathered_once() -> None:
    found = volume(kind="fsdp", framework="torch", reshard_after_forward=False)
    assert found["shard"] == pytest.approx(2 * 7 / 8 * PSI * 2)


def test_hybrid_shards_in_the_node_and_sums_shards_across() -> None:
    # HSDP: 3Ψ within g ranks, an all_reduce of Ψ/g gradients over n/g replicas.
    g, n = 4, 32
    found = volume(n, kind="fsdp", framework="torch", shard=g)
    assert found["shard"] == pytest.approx(3 * (g - 1) / g * PSI * 2)
    assert found["replicate"] == pytest.approx(2 * (n / g - 1) / (n / g) * PSI / g * 2)


def test_zero_plus_plus_sends_a_quarter_across_nodes() -> None:
    # Wang et al. 2023, arXiv:2306.10209, table 1, M bytes of fp16 model: qwZ halves the forward's
    # gather, hpZ keeps the backward's in the node, qgZ sends int4 across once: 0.5 + 0 + 0.25 M
    # instead of 3 M.  Per node of g ranks, the gather brings in M/2 (less the node's own part)
    # and each rank sends its g-th of the gradients across.
    g, n = 8, 512
    nodes = n / g
    m_bytes = PSI * 2.0
    made = plan(
        n=n, kind="zero3", secondary_shard=g, quantized_weights=True, quantized_gradients=True
    )
    gathers = sum(
        t.size_bytes for t in made.roles[0].tasks if isinstance(t, Call) and t.axis == "shard"
    )
    across = sum(
        t.size_bytes
        for t in made.roles[0].tasks
        if isinstance(t, Call) and t.axis == "secondary_across"
    )
    per_node = gathers + g * across
    assert per_node / m_bytes == pytest.approx(0.75, rel=0.01)
    near = [t for t in made.roles[0].tasks if isinstance(t, Call) and t.axis == "secondary"]
    assert {t.collective for t in near} == {"all_gather", "all_to_all"}
    plain = plan(n=n, kind="zero3")
    whole = sum(t.size_bytes for t in plain.roles[0].tasks if isinstance(t, Call))
    assert whole / m_bytes == pytest.approx(3.0)
    assert nodes == 64


def test_mics_sums_shards_once_per_step() -> None:
    found = volume(32, kind="zero3", shard=8, m=4)
    assert found["replicate"] == pytest.approx(2 * 3 / 4 * PSI / 8 * 2)
    assert found["shard"] == pytest.approx(4 * 3 * 7 / 8 * PSI * 2)


def block_calls(strategy: Strategy, name: str, axis: str) -> list[Call]:
    """Return the calls of one inner block and one micro-batch."""
    made = plan_step(get_model(name), strategy, _Zero())
    return [
        task
        for task in made.roles[0].tasks
        if isinstance(task, Call) and task.axis == axis and task.name.endswith(" block.3")
    ]


class _Zero(SecondsGpu):
    def work_s(self, work, dtype):  # type: ignore[no-untyped-def]
        return tuple(1e-6 for _ in work)


@pytest.mark.parametrize("name", ["gpt2-xl", "llama-2-70b"])
@pytest.mark.parametrize("split", [False, True])
def test_tensor_parallel_volume(name: str, split: bool) -> None:
    # Shoeybi et al. 2019, section 3: two all_reduces of s b h forward, two backward; with sequence
    # parallelism each is a reduce_scatter and an all_gather of the same bytes, and the backward
    # gathers two inputs again for weight gradients (Korthikanti et al. 2022, section 4.2.2).
    model = get_model(name)
    t, b = (5 if name == "gpt2-xl" else 8), 3
    s = 640
    strategy = Strategy(tensor=t, sequence_parallel=split, micro_batch=b, seq=s, optimizer="none")
    calls = block_calls(strategy, name, "tensor")
    sbh = s * b * model.hidden * 2
    again = 2 * (t - 1) / t * sbh if split else 0.0
    found = sent_bytes(calls, {"tensor": t})["tensor"]
    assert found == pytest.approx(4 * 2 * (t - 1) / t * sbh + again)


def test_full_recomputation_repeats_the_forward_collectives() -> None:
    plain = block_calls(Strategy(tensor=8, optimizer="none"), "llama-2-70b", "tensor")
    full = Strategy(tensor=8, recompute="full", optimizer="none")
    more = block_calls(full, "llama-2-70b", "tensor")
    assert len(more) == len(plain) + 2


def test_ulysses_volume() -> None:
    # Jacobs et al. 2023, section 3.2: all_to_alls of q, k, v and out, forward and back: each moves
    # a rank's part of the sequence, (P − 1)/P of it, so 4 s h / P for equal heads.
    p, s = 8, 4096
    model = get_model("gpt3-13b")
    strategy = Strategy(
        context=p, context_kind="ulysses", seq=s, optimizer="none", data_parallel=DataParallel()
    )
    calls = block_calls(strategy, "gpt3-13b", "context")
    assert {c.collective for c in calls} == {"all_to_all"}
    found = sent_bytes(calls, {"context": p})["context"]
    assert found == pytest.approx(2 * 4 * (p - 1) / p * s * model.hidden / p * 2)


def test_ring_attention_volume() -> None:
    # Liu et al. 2023: keys and values of s/c tokens pass c − 1 times; the backward passes them
    # and their gradients.
    c, s = 4, 4096
    model = get_model("llama-3-8b")
    strategy = Strategy(context=c, seq=s, optimizer="none")
    calls = block_calls(strategy, "llama-3-8b", "context")
    assert {call.collective for call in calls} == {"send_recv"}
    found = sent_bytes(calls, {"context": c})["context"]
    width = 2 * model.kv_heads * (model.hidden // model.heads)
    assert found == pytest.approx(3 * (c - 1) * s / c * width * 2)


def test_expert_parallel_volume() -> None:
    # Each rank sends its tokens' copies to their experts and back, forward and backward: four
    # all_to_alls of s b k h.
    ep, s, b = 8, 512, 2
    model = get_model("mixtral-8x7b")
    strategy = Strategy(expert=ep, data=ep, seq=s, micro_batch=b, optimizer="none")
    calls = block_calls(strategy, "mixtral-8x7b", "expert")
    found = sent_bytes(calls, {"expert": ep})["expert"]
    assert found == pytest.approx(4 * (ep - 1) / ep * s * b * 2 * model.hidden * 2)


def test_between_stages_passes_the_activation() -> None:
    model = get_model("gpt3-13b")
    strategy = Strategy(
        tensor=4, sequence_parallel=True, pipeline=4, micro_batch=2, micro_batches=4
    )
    made = plan_step(model, strategy, _Zero())
    sizes = {t.size_bytes for t in made.roles[1].tasks if hasattr(t, "peer")}
    assert sizes == {2 * model.seq * model.hidden * 2 // 4}


@pytest.mark.parametrize("shard", [None, 4])
def test_experts_are_reduced_over_their_own_replicas(shard: int | None) -> None:
    strategy = Strategy(
        expert=4,
        data=16,
        optimizer="none",
        data_parallel=DataParallel(kind="zero1", shard=shard),
    )
    model = get_model("mixtral-8x7b")
    made = plan_step(model, strategy, _Zero())
    sizes = group_sizes(strategy)
    found = sent_bytes(made.roles[0].tasks, sizes)
    experts = sum(
        p.count for layer in model.layers for p in layer.parameters if p.sharding == "expert"
    )
    own = experts / 4
    e = sizes["expert_shard"]
    assert e == (4 if shard is None else 1)
    if shard is None:
        # reduce_scatter in 4 bytes, all_gather in 2.
        assert found["expert_shard"] == pytest.approx((e - 1) / e * own * 6, rel=1e-6)
    else:
        assert found["expert_replicate"] == pytest.approx(2 * 3 / 4 * own * 4, rel=1e-6)


def test_node_limited_routing_crosses_to_each_node_once() -> None:
    # DeepSeek-V3, section 3.2.2: 8 experts on at most 4 nodes: half of the copies cross, once to
    # each node, and all are spread within the nodes.
    model = get_model("deepseek-v3")
    ep, s = 64, 512
    strategy = Strategy(
        expert=ep, data=ep, seq=s, routed_nodes=4, optimizer="none", framework="torch"
    )
    made = plan_step(model, strategy, _Zero(), gpus_per_node=8)
    assert made.mesh.groups["expert_near"].shape == (8, 8)
    assert made.mesh.groups["expert_across"].shape == (8, 8)
    copies = s * 8 * model.hidden * 2
    own = [
        task
        for task in made.roles[0].tasks
        if isinstance(task, Call) and task.traffic == "expert" and task.name.endswith(" block.5")
    ]
    across = [task.size_bytes for task in own if task.axis == "expert_across"]
    near = [task.size_bytes for task in own if task.axis == "expert_near"]
    assert across == [copies // 2] * 4
    assert near == [copies] * 4
