"""A whole training step: model, strategy and GPU in, the tasks of every rank out."""

from __future__ import annotations

from simulator.models.model import Model
from simulator.training.check import check_strategy, notes_of
from simulator.training.ddp import DdpSync
from simulator.training.fsdp import FsdpSync
from simulator.training.gpu_time import ComputeLike, Host
from simulator.training.layer_tasks import ELEMENT_BYTES, LayerTasks, slice_of, tasks_of_layer
from simulator.training.mesh import build_mesh, group_sizes
from simulator.training.pipeline import Pass, schedule, stage_tasks
from simulator.training.plan import Call, Mesh, Role, StepPlan, Task, Wait
from simulator.training.reduce import BucketedSync
from simulator.training.sharing import DataSync, StageContext
from simulator.training.stages import split_layers
from simulator.training.strategy import Strategy
from simulator.training.tape import Tape, joined, streams_of
from simulator.training.zero import Zero3Sync

__all__ = ["check_strategy", "plan_step"]


def plan_step(
    model: Model,
    strategy: Strategy,
    compute: ComputeLike,
    *,
    host: Host | None = None,
    gpus_per_node: int | None = None,
) -> StepPlan:
    """Return what every rank does in one training step.

    Parameters
    ----------
    model
        The model.
    strategy
        How it is spread.
    compute
        How long kernels, copies and optimisers take on the GPU.
    host
        What offloading uses; typical numbers by default.
    gpus_per_node
        Ranks of a node; node-limited routing needs it.

    Raises
    ------
    ScenarioError
        Where the strategy does not fit the model; all problems at once.

    Notes
    -----
    A step in the middle of training: buckets are rebuilt, traces recorded, communicators warm.
    Micro-batches are alike, so their passes share one tuple of tasks; only a chunk's first
    forward and last backward may differ.  Not modelled: the input pipeline, evaluation, logging.
    """
    check_strategy(model, strategy, strategy.world_size, gpus_per_node)
    sizes = group_sizes(strategy, gpus_per_node)
    seq = strategy.seq or model.seq
    chunks = split_layers(
        model,
        strategy.pipeline,
        strategy.virtual,
        uneven=strategy.framework != "megatron",
    )
    whole = slice_of(strategy, seq)
    plain = slice_of(strategy, seq, recompute=False)
    roles = []
    for stage, layers_of in enumerate(chunks):
        left = strategy.recompute_layers
        built: list[tuple[LayerTasks, ...]] = []
        for layers in layers_of:
            made = []
            for layer in layers:
                part = whole
                if left is not None and layer.kind == "block":
                    part = whole if left > 0 else plain
                    left -= 1
                own_tied = strategy.pipeline > 1 and stage == strategy.pipeline - 1
                made.append(
                    tasks_of_layer(
                        layer,
                        part,
                        strategy,
                        compute,
                        sizes,
                        own_tied=own_tied,
                        visits=model.experts_per_token,
                    )
                )
            built.append(tuple(made))
        context = StageContext(
            stage=stage,
            chunks=tuple(built),
            strategy=strategy,
            sizes=sizes,
            compute=compute,
            host=host or Host(),
        )
        roles.append(Role(stage=stage, tasks=_stage(model, context, seq)))
    return StepPlan(
        mesh=_used(build_mesh(strategy, gpus_per_node), roles),
        roles=tuple(roles),
        notes=notes_of(model, strategy, gpus_per_node),
    )


def _sync_of(context: StageContext) -> DataSync:
    kinds: dict[str, type[DataSync]] = {
        "ddp": DdpSync,
        "zero1": BucketedSync,
        "zero2": BucketedSync,
        "zero3": Zero3Sync,
        "fsdp": FsdpSync,
    }
    return kinds[context.strategy.data_parallel.kind](context)


def _stage(model: Model, context: StageContext, seq: int) -> tuple[Task, ...]:
    """Return the tasks of one stage."""
    strategy = context.strategy
    sync = _sync_of(context)
    passes = schedule(
        strategy.schedule,
        stages=strategy.pipeline,
        stage=context.stage,
        micro_batches=strategy.micro_batches,
        virtual=strategy.virtual,
    )
    made: dict[tuple[str, int, bool, bool], tuple[Task, ...]] = {}

    def body(one: Pass) -> tuple[Task, ...]:
        first = one.micro_batch == 0
        last = one.micro_batch == strategy.micro_batches - 1
        key = (one.kind, one.chunk, first, last)
        if key not in made:
            made[key] = tuple(sync.run(one.kind, one.chunk, first=first, last=last))
        return made[key]

    between = strategy.micro_batch * seq // strategy.context * model.hidden
    between *= ELEMENT_BYTES.get(strategy.precision.compute, 2)
    if strategy.sequence_parallel:
        between //= strategy.tensor
    tasks = list(sync.begin())
    tasks += stage_tasks(
        passes,
        body,
        stages=strategy.pipeline,
        stage=context.stage,
        virtual=strategy.virtual,
        size_bytes=between,
        overlap=strategy.overlap_p2p and not _blocking_p2p(strategy),
    )
    tasks += sync.finish()
    tasks += _waits(tasks)
    tasks += _model_gradients(model, context)
    update = list(sync.update())
    return joined([tasks, update, _waits(update)])


def _blocking_p2p(strategy: Strategy) -> bool:
    """Return whether the framework's schedule waits for each transfer.

    Megatron-LM overlaps transfers in the interleaved schedule only (megatron/training/
    arguments.py, overlap_p2p_comm); DeepSpeed's pipeline sends and receives between its computes
    (deepspeed/runtime/pipe/p2p.py).
    """
    return strategy.framework != "torch" and strategy.schedule in ("gpipe", "1f1b")


def _waits(tasks: list[Task]) -> list[Task]:
    """Return waits of the compute stream for all others."""
    return [Wait(on=stream) for stream in streams_of(tasks) if stream != "compute"]


def _model_gradients(model: Model, context: StageContext) -> list[Task]:
    """Return what ranks of one model copy exchange before the optimiser.

    Notes
    -----
    Gradients of parameters that are whole on each tensor rank (norms) are summed under sequence
    parallelism; those of tied embeddings between the first and the last stage; and the norm of
    all gradients for clipping (Megatron-LM, core/distributed/finalize_model_grads.py and
    core/optimizer/clip_grads.py).
    """
    strategy = context.strategy
    tape = Tape(context.sizes)
    width = strategy.precision.gradient_bytes
    part = context.chunks
    if strategy.sequence_parallel:
        whole = sum(
            parameter.count
            for chunk in part
            for layer in chunk
            for parameter in layer.layer.parameters
            if parameter.sharding == "none" and layer.layer.kind == "block"
        )
        tape.call(
            "gradients of norms",
            "all_reduce",
            whole * width,
            "tensor",
            stream="compute",
            traffic="tensor",
            after=None,
        )
    tied = sum(
        -(-parameter.count // (strategy.tensor if parameter.sharding == "tensor" else 1))
        for layer in model.layers
        for parameter in layer.parameters
        if parameter.tied_to
    )
    if context.stage in (0, strategy.pipeline - 1):
        tape.call(
            "gradients of tied embeddings",
            "all_reduce",
            tied * width,
            "ends",
            stream="compute",
            traffic="pipeline",
            after=None,
        )
    if strategy.optimizer == "adam":
        sharded = strategy.data_parallel.kind != "ddp"
        tape.call(
            "norm of gradients",
            "all_reduce",
            4,
            "world" if sharded or strategy.expert > 1 else "model",
            stream="compute",
            traffic="data" if sharded else "tensor",
            after=None,
        )
    return tape.tasks


def _used(mesh: Mesh, roles: list[Role]) -> Mesh:
    """Return the mesh with only the groups in which tasks communicate."""
    axes = {task.axis for role in roles for task in role.tasks if isinstance(task, Call)}
    return Mesh(
        world_size=mesh.world_size,
        stage_of_rank=mesh.stage_of_rank,
        groups={
            name: rows
            for name, rows in mesh.groups.items()
            if name in axes or (name == "pipeline" and len(roles) > 1)
        },
    )
