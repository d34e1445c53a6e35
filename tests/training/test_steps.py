"""What runs beside what in a step: times by hand against the plan on a plain scheduler."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simulator.models import get_model
from simulator.models.kernels import MemoryBound, Sync
from simulator.models.model import Model, Parameter
from simulator.training.gpu_time import Host
from simulator.training.halves import in_halves
from simulator.training.hooks import error_feedback_bytes
from simulator.training.layer_tasks import expand
from simulator.training.plan import Call, Compute, Role, StepPlan, Task, Wait
from simulator.training.step import plan_step
from simulator.training.strategy import DataParallel, Precision, Strategy
from tests.training.list_schedule import list_schedule
from tests.training.stubs import Plain, SecondsGpu, plain_model

LAYERS = 6
COUNT = 1_000_000
F, B = 1.0, 2.0


def plan(strategy: Strategy, model: Model | None = None, **options: object) -> StepPlan:
    return plan_step(model or plain_model(LAYERS, count=COUNT), strategy, SecondsGpu(), **options)  # type: ignore[arg-type]


def length(made: StepPlan, **seconds: float) -> float:
    """Return the step's time with collectives of given times by kind."""
    done = list_schedule(made.roles, call_s=lambda call: seconds.get(call.collective, 0.0))
    return max(d.end_s for d in done)


def data(framework: str = "torch", m: int = 1, **options: object) -> Strategy:
    return Strategy(
        data=8,
        micro_batches=m,
        optimizer="none",
        framework=framework,  # type: ignore[arg-type]
        data_parallel=DataParallel(**options),  # type: ignore[arg-type]
    )


@pytest.mark.parametrize("reduce_s", [0.5, 2.0, 3.0])
@pytest.mark.parametrize("m", [1, 3])
def test_ddp_hides_all_but_the_last_bucket(reduce_s: float, m: int) -> None:
    # One bucket per layer.  Reductions shorter than a layer's backward leave only the last one;
    # longer ones follow one another from the first layer's end.  Accumulation adds passes only.
    made = plan(data(m=m, bucket_bytes=COUNT * 4))
    passes = m * LAYERS * (F + B)
    exposed = reduce_s if reduce_s <= B else LAYERS * reduce_s - (LAYERS - 1) * B
    assert length(made, all_reduce=reduce_s) == pytest.approx(passes + exposed)


def test_ddp_without_overlap_reduces_after_the_backward() -> None:
    made = plan(data(bucket_bytes=COUNT * 4, overlap_reduce=False))
    assert length(made, all_reduce=0.5) == pytest.approx(LAYERS * (F + B) + LAYERS * 0.5)


@pytest.mark.parametrize(("gather", "scatter"), [(0.5, 0.5), (1.0, 1.0), (0.25, 1.5)])
def test_fsdp_hides_gathers_behind_the_unit_before(gather: float, scatter: float) -> None:
    # Exposed: the first gather of each pass and the last reduce_scatter, as long as a gather fits
    # beside a forward, and a reduce_scatter and a gather beside a backward.
    made = plan(data(kind="fsdp"))
    found = length(made, all_gather=gather, reduce_scatter=scatter)
    assert found == pytest.approx(2 * gather + LAYERS * (F + B) + scatter)


def test_fsdp_bound_by_its_gathers() -> None:
    # Gathers of 3 s: all of them in a row and the last forward; in the backward each layer's
    # reduce_scatter stands between the gathers.
    made = plan(data(kind="fsdp"))
    forward = LAYERS * 3.0 + F
    found = length(made, all_gather=3.0, reduce_scatter=3.0)
    # Backward: gathers 0 and 1, then (reduce k, gather k + 2) as soon as layer k is done, which
    # waits for gather k: two gathers ahead of the first reduction, whose stream is never idle
    # from then on but for the backward of the layer that it waits for at the end.
    assert found >= forward + LAYERS * 6.0
    assert found <= forward + LAYERS * 6.0 + 2 * B


def test_no_prefetch_exposes_everything() -> None:
    made = plan(data("deepspeed", kind="zero3", prefetch=0, bucket_bytes=COUNT * 4))
    found = length(made, all_gather=0.5, reduce_scatter=0.25)
    # A layer's reduction stands before the next gather on their common stream.
    assert found == pytest.approx(LAYERS * (0.5 + F) + LAYERS * (0.5 + B + 0.25))


def test_two_units_are_gathered_at_once_and_no_more() -> None:
    made = plan(data(kind="fsdp"))
    done = list_schedule(made.roles, call_s=lambda call: 0.01)
    gathers = [d for d in done if isinstance(d.task, Call) and d.task.collective == "all_gather"]
    forward = [d for d in done if isinstance(d.task, Compute) and d.task.purpose == "forward"]
    at = {d.task.name.split()[-1]: d.start_s for d in sorted(forward, key=lambda d: -d.start_s)}  # type: ignore[union-attr]
    first = {}
    for d in sorted(gathers, key=lambda d: -d.start_s):
        first[d.task.name.split()[-1]] = d.start_s  # type: ignore[union-attr]
    for layer in range(2, LAYERS):
        # Layer k is gathered when layer k − 2 is done: when k − 1 begins.
        assert first[f"block.{layer}"] >= at[f"block.{layer - 1}"] - 0.02


def test_distributed_optimizer_gathers_beside_the_first_forward() -> None:
    # Megatron-LM with a bucket per layer: gathers of 0.5 s from the step's begin, the first is
    # exposed; reductions as with DDP.
    strategy = data("megatron", m=2, kind="zero1", bucket_bytes=COUNT * 4)
    found = length(plan(strategy), all_gather=0.5, reduce_scatter=0.25)
    assert found == pytest.approx(0.5 + 2 * LAYERS * (F + B) + 0.25)
    late = data("megatron", m=2, kind="zero1", bucket_bytes=COUNT * 4, overlap_gather=False)
    after = length(plan(late), all_gather=0.5, reduce_scatter=0.25)
    assert after == pytest.approx(2 * LAYERS * (F + B) + 0.25 + LAYERS * 0.5)


def test_slow_gathers_hold_up_each_layer_in_turn() -> None:
    strategy = data("megatron", kind="zero1", bucket_bytes=COUNT * 4)
    found = length(plan(strategy), all_gather=3.0)
    assert found == pytest.approx(LAYERS * 3.0 + F + LAYERS * B)


def test_megatron_cuts_buckets_on_the_first_stage_only() -> None:
    big = plain_model(8, count=30_000_000)
    strategy = Strategy(pipeline=2, data=4, micro_batches=2, optimizer="none")
    made = plan(strategy, big)
    calls = [
        [t for t in role.tasks if isinstance(t, Call) and t.axis == "data"] for role in made.roles
    ]
    # 40 M elements: two layers of 30 M fill a bucket.
    assert [c.size_bytes for c in calls[0]] == [240_000_000] * 2
    assert [c.size_bytes for c in calls[1]] == [480_000_000]


def test_tied_embeddings_are_summed_between_the_ends() -> None:
    strategy = Strategy(tensor=2, pipeline=3, data=2, micro_batches=3)
    model = get_model("gpt2-small")
    made = plan(strategy, model)
    found = [
        [t for t in role.tasks if isinstance(t, Call) and t.axis == "ends"] for role in made.roles
    ]
    assert [len(calls) for calls in found] == [1, 0, 1]
    words = -(-model.vocab * model.hidden // 2)
    assert found[0][0].size_bytes == found[2][0].size_bytes == words * 4
    # Both ends hold the words: their gradients are reduced on both.
    sizes = [
        sum(t.size_bytes for t in role.tasks if isinstance(t, Call) and t.axis == "data")
        for role in made.roles
    ]
    assert min(sizes[0], sizes[2]) > words * 4
    untied = plan(Strategy(pipeline=4, micro_batches=4), get_model("llama-2-7b"))
    assert "ends" not in untied.mesh.groups


def test_the_norm_of_gradients_joins_all_stages() -> None:
    made = plan(Strategy(pipeline=3, data=2, micro_batches=3))
    for role in made.roles:
        names = [t.name for t in role.tasks if isinstance(t, Call) and t.axis == "model"]
        assert names == ["norm of gradients"]


def ring(times: int) -> tuple[MemoryBound | Sync, ...]:
    shift = Sync(
        name="kv",
        phase="forward",
        axis="context",
        collective="send_recv",
        size_bytes=8,
        times=times,
        overlaps=True,
    )
    return shift, MemoryBound(name="attention", phase="forward", n_bytes=1)


@pytest.mark.parametrize("shift_s", [0.5, 2.0, 5.0])
def test_ring_attention_hides_all_but_one_piece(shift_s: float) -> None:
    # Attention of 8 s in 4 pieces beside 3 shifts: 3 max(2, shift) + 2.
    # So it is whether the shifts are told as one operation or one by one.
    for work, times in (
        (ring(3), [0.0, 8.0]),
        ((*ring(1), *ring(1), *ring(1), ring(1)[1]), [0.0, 2.0] * 3 + [2.0]),
    ):
        tasks = expand(work, times, "block", Strategy(context=4), {"context": 4})
        done = list_schedule((Role(stage=0, tasks=tasks),), call_s=lambda _: shift_s)
        assert max(d.end_s for d in done) == pytest.approx(3 * max(2.0, shift_s) + 2.0)


@pytest.mark.parametrize("collective", ["all_gather", "reduce_scatter"])
@pytest.mark.parametrize("call_s", [1.0, 9.0])
def test_tensor_collectives_in_pieces(collective: str, call_s: float) -> None:
    # A product of 8 s over 4 ranks: three of four pieces run beside the collective.
    sync = Sync(name="x", phase="forward", axis="tensor", collective=collective, size_bytes=8)
    product = MemoryBound(name="product", phase="forward", n_bytes=1)
    work = (sync, product) if collective == "all_gather" else (product, sync)
    times = [0.0, 8.0] if collective == "all_gather" else [8.0, 0.0]
    found = []
    for pieces in (True, False):
        strategy = Strategy(tensor=4, overlap_tensor=pieces)
        tasks = expand(work, times, "block", strategy, {"tensor": 4})
        done = list_schedule((Role(stage=0, tasks=tasks),), call_s=lambda _: call_s)
        found.append(max(d.end_s for d in done))
    assert found == pytest.approx([max(6.0, call_s) + 2.0, 8.0 + call_s])


def moe_pass(computes: int) -> list[Task]:
    tasks: list[Task] = []
    for index in range(computes):
        tasks.append(Compute(name=f"c{index}", duration_s=2.0, purpose="forward"))
        if index < computes - 1:
            call = Call(
                name=f"a{index}",
                collective="all_to_all",
                size_bytes=64,
                axis="expert",
                traffic="expert",
                stream="compute",
                after=None,
            )
            tasks.append(call)
    return tasks


@pytest.mark.parametrize("exchange_s", [0.5, 1.0, 1.5])
def test_halves_hide_exchanges(exchange_s: float) -> None:
    # Halves of 1 s each: exchanges of half a batch up to 1 s are hidden altogether; longer ones
    # by what the other half computes.
    n = 5
    done = list_schedule(
        (Role(stage=0, tasks=in_halves(moe_pass(n))),), call_s=lambda call: exchange_s
    )
    total = max(d.end_s for d in done)
    assert sum(d.end_s - d.start_s for d in done if isinstance(d.task, Compute)) == 2.0 * n
    if exchange_s <= 1.0:
        assert total == pytest.approx(2.0 * n)
    else:
        # Both halves' exchanges follow one another on the stream, without a gap but for the
        # first half's first and the second's last compute.
        assert total == pytest.approx(1.0 + (n - 1) * 2 * exchange_s + 1.0)
    sizes = [t.size_bytes for t in in_halves(moe_pass(n)) if isinstance(t, Call)]
    assert sum(sizes) == 64 * (n - 1)


def offloaded(place: str) -> Strategy:
    strategy = data("deepspeed", kind="zero2", offload_optimizer=place)
    return replace(strategy, optimizer="adam")


def test_offloaded_optimizer_runs_on_the_cpu() -> None:
    host = Host(link_Bps=1e6, memory_Bps=1e5, storage_Bps=1e3)
    made = plan(offloaded("cpu"), host=host)
    own = LAYERS * COUNT / 8
    names = {t.name: t.duration_s for t in made.roles[0].tasks if isinstance(t, Compute)}
    # Gradients of 4 bytes down, parameters of 2 bytes up, a stub's parameter per byte/s.
    assert names["gradients to the CPU"] == pytest.approx(own * 4 / 1e6)
    assert names["optimizer on the CPU"] == pytest.approx(own / 1e5)
    assert names["parameters to the GPU"] == pytest.approx(own * 2 / 1e6)
    stored = plan(offloaded("nvme"), host=host)
    names = {t.name: t.duration_s for t in stored.roles[0].tasks if isinstance(t, Compute)}
    assert names["optimizer on the CPU"] == pytest.approx(own * 12 * 2 / 1e3)


def test_offloaded_parameters_are_fetched_before_each_gather() -> None:
    made = plan(data("deepspeed", kind="zero3", offload_parameters="cpu"))
    tasks = made.roles[0].tasks
    fetches = [t for t in tasks if isinstance(t, Compute) and t.name.startswith("fetch")]
    gathers = [t for t in tasks if isinstance(t, Call) and t.collective == "all_gather"]
    assert len(fetches) == len(gathers) == 2 * LAYERS
    assert {t.after for t in gathers} == {"copy"}


def hook(name: str, **options: object) -> list[Call]:
    matrix = (1000, 500)
    layers = tuple(
        Plain(
            f"block.{i}",
            parameters=(
                Parameter(name=f"{i}.weight", shape=matrix),
                Parameter(name=f"{i}.bias", shape=(1000,)),
            ),
        )
        for i in range(2)
    )
    model = Model(
        name="two",
        layers=layers,
        seq=8,
        hidden=8,
        heads=8,
        kv_heads=8,
        vocab=8,
        source="invented",
    )
    strategy = data(hook=name, bucket_bytes=10**9, **options)
    return [t for t in plan(strategy, model).roles[0].tasks if isinstance(t, Call)]


def test_hooks_send_what_they_say() -> None:
    count = 2 * (500_000 + 1000)
    assert [c.size_bytes for c in hook("none")] == [4 * count]
    assert [c.size_bytes for c in hook("fp16")] == [2 * count]
    # 8 ranks gather one byte per value, and a scale and a zero point.
    assert [(c.collective, c.size_bytes) for c in hook("int8")] == [
        ("all_gather", 8 * 8),
        ("all_gather", 8 * count),
    ]
    kept = round(count * 0.01)
    assert [c.size_bytes for c in hook("top_k", hook_ratio=0.01)] == [8 * kept * 4] * 2
    # Biases whole; then r n and r m of each matrix instead of n m (Vogels et al. 2019).
    assert [c.size_bytes for c in hook("power_sgd", hook_rank=4)] == [
        4 * 2000,
        4 * 2 * 4 * 1000,
        4 * 2 * 4 * 500,
    ]
    # A rank that would not halve the volume leaves the matrices whole: (n + m) r 2 ≥ n m.
    assert [c.size_bytes for c in hook("power_sgd", hook_rank=200)] == [4 * count]
    assert error_feedback_bytes("top_k", 10, 4) == 40
    assert error_feedback_bytes("fp16", 10, 4) == 0


def test_recomputed_layers_are_those_asked_for() -> None:
    strategy = Strategy(pipeline=4, micro_batches=4, recompute="full", recompute_layers=3)
    made = plan(strategy, get_model("llama-2-7b"))
    for role in made.roles:
        again = {t.name for t in role.tasks if isinstance(t, Compute) and t.purpose == "recompute"}
        assert len(again) == 3


def test_passes_of_micro_batches_share_their_tasks() -> None:
    made = plan(Strategy(data=2, micro_batches=50, optimizer="none"))
    assert len({id(t) for t in made.roles[0].tasks}) < len(made.roles[0].tasks) / 10


def test_size_of_the_largest_plan() -> None:
    # Regression: Llama 3.1 405B on 16,384 GPUs.
    strategy = Strategy(
        tensor=8,
        sequence_parallel=True,
        pipeline=16,
        data=128,
        micro_batches=32,
        data_parallel=DataParallel(kind="zero1"),
    )
    made = plan(strategy, get_model("llama-3.1-405b"))
    assert sum(len(role.tasks) for role in made.roles) < 120_000
    assert all(t.duration_s > 0 for r in made.roles for t in r.tasks if isinstance(t, Compute))


def test_a_single_gpu_communicates_nothing() -> None:
    made = plan(Strategy(precision=Precision(gradient_bytes=2)))
    assert not made.mesh.groups
    assert not [t for t in made.roles[0].tasks if isinstance(t, Call | Wait)]
