"""Any combination that the check lets through can be planned, and none of them deadlocks."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.models import from_dims, get_model, model_names
from simulator.training.check import problems_of
from simulator.training.plan import Call, Compute, Transfer
from simulator.training.step import plan_step
from simulator.training.strategy import DataParallel, Strategy
from tests.training.list_schedule import list_schedule
from tests.training.stubs import SecondsGpu

DENSE = from_dims(
    name="dense", hidden=64, layers=8, heads=8, kv_heads=4, vocab=96, seq=64, source="invented"
)
EXPERTS = from_dims(
    name="experts",
    hidden=64,
    layers=8,
    heads=8,
    vocab=96,
    seq=64,
    experts=8,
    experts_per_token=2,
    expert_ffn=32,
    source="invented",
)


@st.composite
def strategies(draw: st.DrawFn) -> tuple[bool, Strategy]:
    experts = draw(st.booleans())
    pipeline = draw(st.sampled_from([1, 2, 4]))
    schedule = "1f1b"
    if pipeline > 1:
        schedule = draw(st.sampled_from(["gpipe", "1f1b", "interleaved", "zb_h1", "zb_h2"]))
    tensor = draw(st.sampled_from([1, 2, 4]))
    kind = draw(st.sampled_from(["ddp", "zero1", "zero2", "zero3", "fsdp"]))
    data, context = draw(st.sampled_from([1, 2, 4])), draw(st.sampled_from([1, 2]))
    shards = [k for k in (1, 2, 4, 8) if data * context % k == 0]
    shard = draw(st.sampled_from([None, *shards])) if kind != "ddp" else None
    options = DataParallel(
        kind=kind,
        shard=shard,
        secondary_shard=draw(st.sampled_from([1, shard])) if kind == "zero3" and shard else None,
        overlap_reduce=draw(st.booleans()),
        overlap_gather=draw(st.booleans()),
        bucket_bytes=draw(st.sampled_from([None, 20_000, 100_000])),
        prefetch=draw(st.integers(0, 3)),
        reshard_after_forward=draw(st.booleans()),
        reduce_every_micro_batch=draw(st.booleans()),
        hook=draw(st.sampled_from(["none", "fp16", "int8", "top_k", "power_sgd"]))
        if kind == "ddp"
        else "none",
        quantized_weights=kind == "zero3" and draw(st.booleans()),
        quantized_gradients=kind == "zero3" and draw(st.booleans()),
        offload_optimizer=draw(st.sampled_from(["none", "cpu", "nvme"])),
        offload_parameters=draw(st.sampled_from(["none", "cpu", "nvme"]))
        if kind in ("zero3", "fsdp")
        else "none",
    )
    strategy = Strategy(
        tensor=tensor,
        sequence_parallel=tensor > 1 and (experts or draw(st.booleans())),
        context=context,
        context_kind=draw(st.sampled_from(["ring", "all_gather", "ulysses"])),
        expert=draw(st.sampled_from([1, 2, 4])) if experts else 1,
        routed_nodes=draw(st.sampled_from([None, 1])) if experts else None,
        overlap_expert=experts and draw(st.booleans()),
        pipeline=pipeline,
        virtual=2 if schedule == "interleaved" else 1,
        schedule=schedule,
        overlap_p2p=draw(st.booleans()),
        overlap_tensor=draw(st.booleans()),
        data=data,
        order=tuple(draw(st.permutations(("tensor", "context", "data", "pipeline")))),
        micro_batch=draw(st.integers(1, 2)),
        micro_batches=pipeline * draw(st.integers(1, 2)),
        recompute=draw(st.sampled_from(["none", "selective", "full"])),
        framework=draw(st.sampled_from(["megatron", "deepspeed", "torch"])),
        data_parallel=options,
    )
    return experts, strategy


@settings(max_examples=60, deadline=None)
@given(strategies())
def test_what_the_check_lets_through_runs(case: tuple[bool, Strategy]) -> None:
    experts, strategy = case
    model = EXPERTS if experts else DENSE
    if problems_of(model, strategy, strategy.world_size, 2):
        return
    made = plan_step(model, strategy, SecondsGpu(), gpus_per_node=2)
    done = list_schedule(made.roles, call_s=lambda call: 1e-3, transfer_s=1e-3)
    assert {d.stage for d in done} == set(range(strategy.pipeline))
    for role in made.roles:
        assert role.tasks
        for task in role.tasks:
            if isinstance(task, Call):
                assert task.size_bytes > 0
                assert made.mesh.groups[task.axis].shape[1] > 1
            elif isinstance(task, Compute):
                assert task.duration_s > 0
            elif isinstance(task, Transfer):
                assert task.size_bytes > 0


@pytest.mark.parametrize("name", model_names())
def test_every_model_can_be_trained_with_data_parallelism(name: str) -> None:
    model = get_model(name)
    strategy = Strategy(data=8, data_parallel=DataParallel(kind="zero1"))
    made = plan_step(model, strategy, SecondsGpu())
    reduced = sum(
        task.size_bytes
        for task in made.roles[0].tasks
        if isinstance(task, Call) and task.collective == "reduce_scatter"
    )
    assert reduced == 4 * model.n_parameters
