"""Simulate one training step: model, strategy and cluster in, a `TrainingStep` out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from simulator.base.errors import Problem, ScenarioError
from simulator.compose.cluster import Cluster
from simulator.compose.step.account import (
    Account,
    accounts,
    call_spans,
    critical_path,
    latecomer,
)
from simulator.compose.step.classes import Classes, fold_ranks, keep_ranks
from simulator.compose.step.host import host_of
from simulator.compose.step.prices import Pricer
from simulator.compose.step.request import precision_word
from simulator.compose.step.timeline import Kinds, Timeline, call_of, run_exact, run_folded
from simulator.compute.gpu import DTYPES
from simulator.compute.model import ComputeModel, compute_model
from simulator.fabric.model import GpuSpec
from simulator.models.model import Model
from simulator.results.training import CallTimes, RankAccount, TrainingStep
from simulator.scenario.training import PRECISIONS
from simulator.training.layer_tasks import slice_of
from simulator.training.plan import Call, StepPlan, Transfer
from simulator.training.strategy import Strategy

__all__ = ["SimulatedStep", "compute_of", "plan_of", "simulate_plan", "simulate_step"]

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]

MOST_EXACT_RANKS = 512
MOST_UNFOLDED_TASKS = 150_000
"""Tasks of all ranks up to which a step is not folded where folding is in doubt: seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedStep:
    """A step's result, and the timeline that it was read from."""

    step: TrainingStep
    timeline: Timeline
    plan: StepPlan


def _gpu_kinds(cluster: Cluster) -> tuple[list[GpuSpec], IntArray]:
    """Return the cluster's kinds of GPU, and the place among them of each node preset's."""
    of_preset = [compiled.template.gpu for compiled in cluster.fabric.compiled]
    kinds: list[GpuSpec] = []
    for gpu in of_preset:
        if gpu not in kinds:
            kinds.append(gpu)
    return kinds, np.array([kinds.index(gpu) for gpu in of_preset], dtype=np.int64)


def compute_of(cluster: Cluster, strategy: Strategy) -> tuple[ComputeModel, ...]:
    """Return the compute model of each kind of GPU in the cluster, in the fabric's order."""
    models = [
        compute_model(
            name=gpu.name,
            generation=gpu.generation,
            peak_flops=gpu.peak_flops,
            memory_Bps=gpu.memory_Bps,
            compute_units=gpu.compute_units,
            l2_bytes=gpu.last_cache_bytes,
            framework=strategy.framework,
            ranks=strategy.world_size,
        )
        for gpu in _gpu_kinds(cluster)[0]
    ]
    key = DTYPES[strategy.precision.compute][0] if strategy.precision.compute in DTYPES else ""
    for model in models:
        if key and key not in model.gpu.peak_flops:
            has = {
                precision_word(name)
                for name, (peak, _) in DTYPES.items()
                if peak in model.gpu.peak_flops
            }
            words = [word for word in PRECISIONS if word in has]
            raise ScenarioError(
                Problem(
                    key="training.precision",
                    message=f"{model.gpu.name} has no products of "
                    f"{precision_word(strategy.precision.compute)}",
                    allowed=", ".join(words),
                )
            )
    return tuple(models)


def simulate_step(
    cluster: Cluster,
    model: Model,
    strategy: Strategy,
    *,
    compute: ComputeModel | None = None,
    slow: Mapping[int, float] | None = None,
    late_s: Mapping[int, float] | None = None,
    hang: Mapping[int, float] | None = None,
    slowdown: float | None = None,
    exact: bool = False,
    touched: frozenset[int] = frozenset(),
) -> SimulatedStep:
    """Simulate one training step.

    Parameters
    ----------
    cluster
        GPUs and network; job ranks are its GPUs 0 … world size − 1.
    model, strategy
        What is trained, and how it is spread.
    compute
        Times of kernels; None: of the cluster's GPUs.
    slow
        Factor on the compute times by rank (2: takes twice as long).
    late_s
        How late a rank begins, by rank.
    hang
        Share of its operations that a rank does before it leaves the step, by rank.
    slowdown
        Share by which computes take longer while their GPU communicates; None: the compute
        model's.
    exact
        Simulate every rank and every call on the whole network, nothing folded.
    touched
        Nodes whose links are not as their preset's; −1: links between switches.

    Raises
    ------
    ScenarioError
        The strategy does not fit the model or the cluster; all reasons at once.
    """
    computes = compute_of(cluster, strategy) if compute is None else (compute,)
    plans = tuple(plan_of(cluster, model, strategy, own) for own in computes)
    plan = plans[0]
    if slowdown is None:
        slowdown = max(own.communication_slowdown for own in computes) - 1.0
    if not exact:
        exact, told = _in_doubt(cluster, plan)
        plan = replace(plan, notes=(*plan.notes, *told))
    timeline = simulate_plan(
        cluster,
        plan,
        slow=slow,
        late_s=late_s,
        hang=hang,
        slowdown=slowdown,
        exact=exact,
        touched=touched,
        of_kind=plans,
    )
    _refuse_idle_hang(hang or {})
    step = _result(cluster, model, strategy, computes, plan, timeline, folded=not exact)
    return SimulatedStep(step=step, timeline=timeline, plan=plan)


def _in_doubt(cluster: Cluster, plan: StepPlan) -> tuple[bool, tuple[str, ...]]:
    """Return whether every rank is simulated because folding does not hold, and what to tell.

    A folded call is priced with the groups of its own axis; on uplinks of leaves that can bind it
    meets those of other axes and stages, too, whose times only the step itself tells.
    """
    mesh = plan.mesh
    pricer = Pricer(cluster, np.arange(mesh.world_size, dtype=np.int64))
    if mesh.world_size > cluster.n_gpus or not pricer.cross_uplinks(mesh.groups):
        return False, ()
    tasks = {role.stage: len(role.tasks) for role in plan.roles}
    work = sum(tasks[stage] for stage in mesh.stage_of_rank.tolist())
    if mesh.world_size <= MOST_EXACT_RANKS and work <= MOST_UNFOLDED_TASKS:
        return True, (
            "training.fold: every rank is simulated, as calls of several axes meet on uplinks of "
            "leaves that can bind",
        )
    return False, (
        "training.fold: alike ranks are simulated once although calls of several axes meet on "
        "uplinks of leaves that can bind: parts of exposed communication can be off by a half, the "
        "step by a few percent (fold: no simulates up to 512 ranks one by one)",
    )


def _refuse_idle_hang(hang: Mapping[int, float]) -> None:
    """Refuse ranks that left a step which ended all the same: it is shorter than a whole one."""
    left = [rank for rank, share in hang.items() if share < 1]
    if left:
        raise ScenarioError(
            Problem(
                key="perturb.hang",
                message=f"nobody waits for rank {', '.join(map(str, left[:8]))}"
                + (" …" if len(left) > 8 else ""),
                allowed="fewer ranks, or a smaller share `after`",
            )
        )


def plan_of(cluster: Cluster, model: Model, strategy: Strategy, compute: ComputeModel) -> StepPlan:
    """Return the plan of a strategy that fits the cluster.

    Raises
    ------
    ScenarioError
        The strategy does not fit.
    """
    from simulator.training.step import check_strategy, plan_step

    local = cluster.most_gpus_per_node
    check_strategy(model, strategy, world_size=cluster.n_gpus, gpus_per_node=local)
    return plan_step(model, strategy, compute, host=host_of(cluster), gpus_per_node=local)


def simulate_plan(
    cluster: Cluster,
    plan: StepPlan,
    *,
    slow: Mapping[int, float] | None = None,
    late_s: Mapping[int, float] | None = None,
    hang: Mapping[int, float] | None = None,
    slowdown: float = 0.0,
    exact: bool = False,
    touched: frozenset[int] = frozenset(),
    of_kind: Sequence[StepPlan] = (),
) -> Timeline:
    """Simulate a plan; parameters as of `simulate_step`.

    *of_kind* are the plans on each kind of GPU, in the order of `compute_of`, which differ from
    *plan* in how long computes take; fewer than two: all ranks follow *plan*.
    """
    world = plan.mesh.world_size
    if world > cluster.n_gpus:
        raise ScenarioError(
            Problem(
                key="training",
                message=f"needs {world} ranks, the cluster has {cluster.n_gpus} GPUs",
                allowed=f"sizes of all axes that multiply to {cluster.n_gpus}",
            )
        )
    factor = _by_rank(slow, world, 1.0, "slow")
    late = _by_rank(late_s, world, 0.0, "late")
    done = _by_rank(hang, world, 1.0, "hang")
    pricer = Pricer(cluster, np.arange(world, dtype=np.int64), touched=touched)
    kinds = Kinds(plans=(plan,), of_rank=np.zeros(world, dtype=np.int64))
    if len(of_kind) > 1:
        kinds = Kinds(plans=tuple(of_kind), of_rank=_kind_of_gpu(cluster)[:world])
    if exact:
        if world > MOST_EXACT_RANKS:
            raise ScenarioError(
                Problem(
                    key="training.fold",
                    message=f"{world} ranks are too many to simulate one by one",
                    allowed=f"at most {MOST_EXACT_RANKS} ranks, or fold: yes",
                )
            )
        return run_exact(
            plan,
            pricer,
            keep_ranks(plan.mesh),
            slow=factor,
            late_s=late,
            done=done,
            slowdown=slowdown,
            kinds=kinds,
        )
    classes = _folded_classes(plan, pricer, np.stack([factor, late, done, kinds.of_rank], axis=1))
    return run_folded(
        plan,
        pricer,
        classes,
        slow=factor,
        late_s=late,
        done=done,
        slowdown=slowdown,
        kinds=kinds,
    )


def _kind_of_gpu(cluster: Cluster) -> IntArray:
    """Return the place of each GPU's kind in `compute_of`, shape (gpus,)."""
    node = np.asarray(cluster.fabric.node_of_gpu)
    return _gpu_kinds(cluster)[1][np.asarray(cluster.fabric.template_of_node)[node]]


def _by_rank(given: Mapping[int, float] | None, world: int, usual: float, key: str) -> FloatArray:
    values = np.full(world, usual)
    for rank, value in (given or {}).items():
        if not 0 <= rank < world:
            raise ScenarioError(
                Problem(
                    key=f"perturb.{key}",
                    message=f"rank {rank} is outside the job",
                    allowed=f"ranks 0-{world - 1}",
                )
            )
        values[rank] = value
    return values


def _folded_classes(plan: StepPlan, pricer: Pricer, apart: FloatArray) -> Classes:
    """Return the ranks that are alike; *apart*: what else tells each, shape (world, things)."""
    calls: dict[str, dict[str, Call]] = {}
    for role in plan.roles:
        for task in role.tasks:
            if isinstance(task, Call) and task.axis in plan.mesh.groups:
                own = calls.setdefault(task.axis, {})
                if task.size_bytes > (
                    own[task.collective].size_bytes if task.collective in own else -1
                ):
                    own[task.collective] = task
    labels: dict[str, IntArray] = {}
    for axis, by_collective in calls.items():
        groups = plan.mesh.groups[axis]
        if groups.shape[1] > 1:
            asked = [call_of(task, groups.shape[1]) for task in by_collective.values()]
            labels[axis] = pricer.label(groups, asked)
    own_kind = np.column_stack([plan.mesh.stage_of_rank.astype(np.float64), apart])
    label = np.unique(own_kind, axis=0, return_inverse=True)[1].ravel().astype(np.int64)
    return fold_ranks(plan.mesh, label, labels)


# The result -----------------------------------------------------------------------------------


def _result(
    cluster: Cluster,
    model: Model,
    strategy: Strategy,
    computes: Sequence[ComputeModel],
    plan: StepPlan,
    timeline: Timeline,
    *,
    folded: bool,
) -> TrainingStep:
    stage = plan.mesh.stage_of_rank[timeline.classes.representative].tolist()
    spans = call_spans(timeline)
    found = accounts(timeline, stage, spans)
    seq = strategy.seq or model.seq
    samples = strategy.global_batch
    flops = model.flops(seq) * samples
    part = slice_of(strategy, seq)
    again = samples * sum(
        layer.recomputed_flops(part) for layer in model.layers if layer.kind == "block"
    )
    if strategy.recompute == "full" and strategy.recompute_layers is not None:
        per_stage = max(1, model.blocks // strategy.pipeline)
        again *= min(1.0, strategy.recompute_layers / per_stage)
    critical: dict[str, float] = {}
    for segment in critical_path(timeline, spans):
        critical[segment.what] = critical.get(segment.what, 0.0) + segment.end_s - segment.start_s
    step_s = timeline.outcome.end_s
    ranks = [np.flatnonzero(timeline.classes.class_of_rank == a.unit) for a in found]
    kept = [
        RankAccount(
            ranks=tuple(map(int, own)),
            stage=int(plan.mesh.stage_of_rank[own[0]]),
            busy_s=a.busy_s,
            exposed_s=a.exposed_s,
            waiting_s=a.waiting_s,
            idle_s=a.idle_s,
            traffic_s=a.traffic_s,
        )
        for a, own in zip(found, ranks, strict=True)
    ]
    nodes = np.asarray(cluster.fabric.node_of_gpu)[: plan.mesh.world_size]
    key = strategy.precision.compute
    return TrainingStep(
        model=model.name,
        strategy=words_of(model, strategy),
        world_size=plan.mesh.world_size,
        n_nodes=len(np.unique(nodes)),
        step_s=step_s,
        samples=samples,
        tokens=samples * seq if model.unit == "tokens" else samples,
        unit=model.unit,
        model_flops=flops,
        hardware_flops=flops + again,
        peak_flops=_mean_peak(cluster, computes, key, plan.mesh.world_size),
        peak_type=key,
        accounts=tuple(kept),
        critical_s=critical,
        calls=_call_times(cluster, plan, timeline),
        verdict=_verdict(step_s, critical),
        straggler=_straggler(timeline, found, stage, ranks, step_s),
        folded=folded,
    )


def _mean_peak(
    cluster: Cluster, computes: Sequence[ComputeModel], key: str, world_size: int
) -> float:
    """Return the peak of a type in FLOP/s, the mean over the job's GPUs."""
    peaks = np.array([compute.gpu.peak(key) for compute in computes])
    if len(peaks) == 1:
        return float(peaks[0])
    return float(peaks[_kind_of_gpu(cluster)[:world_size]].mean())


def _call_times(cluster: Cluster, plan: StepPlan, timeline: Timeline) -> tuple[CallTimes, ...]:
    counts: dict[tuple[str, str, int], int] = {}
    traffic: dict[tuple[str, str, int], str] = {}
    for role in plan.roles:
        own: Counter[tuple[str, str, int]] = Counter()
        for task in role.tasks:
            if isinstance(task, Call):
                key = (task.axis, task.collective, task.size_bytes)
                traffic[key] = task.traffic
            elif isinstance(task, Transfer) and task.direction == "send":
                key = ("pipeline", "send_recv", task.size_bytes)
                traffic[key] = "pipeline"
            else:
                continue
            own[key] += 1
        for key, count in own.items():
            counts[key] = max(count, counts.get(key, 0))
    rows = []
    for key, price in timeline.prices.items():
        if key not in counts:
            continue
        axis, collective, size = key
        members = plan.mesh.groups[axis][0]
        pair = axis == "pipeline"
        rows.append(
            CallTimes(
                axis=axis,
                traffic=traffic[key],
                collective=collective,
                size_bytes=size,
                group_size=2 if pair else len(members),
                group_nodes=cluster.group_nodes(members[:2] if pair else members),
                n_calls=counts[key],
                time_s=price.time_s,
                algorithm=price.choice.algorithm,
                protocol=price.choice.protocol,
                n_channels=price.choice.n_channels,
                library_algorithm=cluster.library_algorithm(price.choice.algorithm),
            )
        )
    return tuple(sorted(rows, key=lambda row: -row.n_calls * row.time_s))


_COMPUTES = ("forward", "backward", "recompute", "optimizer", "compress", "copy", "other")


def _verdict(step_s: float, critical: Mapping[str, float]) -> str:
    """Return one sentence on what bounds the step, from its critical path."""
    if step_s <= 0:
        return ""
    compute = sum(value for key, value in critical.items() if key in _COMPUTES)
    traffic = {key: value for key, value in critical.items() if key not in _COMPUTES}
    moved = sum(traffic.values())
    share = 100.0 * compute / step_s
    if not traffic or moved < 0.01 * step_s:
        return f"compute-bound: {share:.0f} % of the critical path computes"
    worst = max(traffic, key=lambda key: traffic[key])
    told = f"{worst}-parallel traffic" if worst != "offload" else "offload"
    part = f"{100 * traffic[worst] / step_s:.0f} % of it is {told}"
    kind = "compute-bound" if compute >= moved else "communication-bound"
    return f"{kind}: {share:.0f} % of the critical path computes, {part}"


def _straggler(
    timeline: Timeline,
    found: Sequence[Account],
    stage: Sequence[int],
    ranks: Sequence[IntArray],
    step_s: float,
) -> str:
    late = latecomer(timeline, found, stage)
    if late is None:
        return ""
    unit, caused = late
    own = ranks[unit]
    from simulator.base.fields import format_ranks

    plural = "s" if len(own) > 1 else ""
    return (
        f"rank{plural} {format_ranks(tuple(map(int, own[:64])))} arrive{'' if plural else 's'} "
        f"last: others wait up to {caused * 1e3:.3g} ms of the {step_s * 1e3:.4g} ms step"
    )


def words_of(model: Model, strategy: Strategy) -> str:
    """Return a strategy in one line, with how long sequences are."""
    sizes = [
        ("TP", strategy.tensor),
        ("CP", strategy.context),
        ("EP", strategy.expert),
        ("PP", strategy.pipeline),
        ("DP", strategy.data),
    ]
    words = [f"{name}{size}" for name, size in sizes if size > 1] or ["1 GPU"]
    dp = strategy.data_parallel
    if strategy.data * strategy.context > 1:
        names = {"ddp": "DDP", "zero1": "ZeRO-1", "zero2": "ZeRO-2", "zero3": "ZeRO-3"}
        kind = names.get(dp.kind, "FSDP")
        words.append(f"{kind}/{dp.shard}" if dp.shard else kind)
    if strategy.sequence_parallel:
        words.append("SP")
    told = " ".join(words)
    if strategy.pipeline > 1:
        told += f", {strategy.schedule}"
        if strategy.virtual > 1:
            told += f" v={strategy.virtual}"
    told += f", micro-batch {strategy.micro_batch} x {strategy.micro_batches}"
    if model.unit == "tokens":
        told += f", seq {strategy.seq or model.seq}"
    if strategy.recompute != "none":
        told += f", recompute {strategy.recompute}"
    return told
