"""Days of training of a scenario: its step, repeated, with failures."""

from __future__ import annotations

from simulator.base.errors import Problem, ScenarioError
from simulator.compose.cluster import Cluster
from simulator.compose.step.host import host_link_Bps
from simulator.models.model import Model
from simulator.results.goodput import GoodputResult
from simulator.results.training import TrainingStep
from simulator.scenario.reliability import ReliabilitySpec
from simulator.training.goodput import Reliability, daly_interval_s, simulate_days
from simulator.training.strategy import Strategy

__all__ = ["goodput_of"]

PCIE_SHARE = 0.8
"""Of a PCIe link's bandwidth that a copy of GPU memory to pinned host memory reaches."""


def goodput_of(
    cluster: Cluster,
    model: Model,
    strategy: Strategy,
    step: TrainingStep,
    spec: ReliabilitySpec,
    seed: int,
) -> GoodputResult:
    """Return what is left of the days of a job.

    A checkpoint holds parameters, master copies and moments once; all nodes write it together.

    Raises
    ------
    ScenarioError
        An elastic job whose replicas are no whole nodes.
    """
    precision = strategy.precision
    size = model.n_parameters * float(
        precision.parameter_bytes + precision.master_bytes + precision.moment_bytes
    )
    if strategy.optimizer != "adam":
        size -= model.n_parameters * precision.moment_bytes
    nodes = step.n_nodes
    load_s = size / nodes / spec.storage_Bps
    blocking_s = load_s
    if spec.asynchronous:
        blocking_s = size / step.world_size / (PCIE_SHARE * host_link_Bps(cluster))
    checkpoint_s = blocking_s if spec.checkpoint_s is None else spec.checkpoint_s
    node_mtbf_s = spec.gpu_mtbf_s * nodes / step.world_size
    job_mtbf_s = node_mtbf_s / nodes
    best_s = daly_interval_s(max(checkpoint_s, 1e-3), job_mtbf_s)
    interval_s = max(step.step_s, best_s if spec.interval_s is None else spec.interval_s)
    if spec.asynchronous:
        # The next checkpoint cannot begin before this one is written.
        interval_s = max(interval_s, load_s)
    replica = _nodes_per_replica(cluster, strategy) if spec.elastic else None
    restart_s = spec.restart_s + load_s
    found = simulate_days(
        Reliability(
            duration_s=spec.duration_s,
            n_nodes=nodes,
            node_mtbf_s=node_mtbf_s,
            checkpoint_s=checkpoint_s,
            interval_s=interval_s,
            restart_s=restart_s,
            repair_s=spec.repair_s,
            spares=spec.spares,
            nodes_per_replica=replica,
        ),
        lambda left: left / nodes,
        runs=spec.runs,
        seed=seed,
    )
    return GoodputResult(
        duration_s=spec.duration_s,
        job_mtbf_s=job_mtbf_s,
        checkpoint_bytes=size,
        checkpoint_s=checkpoint_s,
        interval_s=interval_s,
        best_interval_s=best_s,
        restart_s=restart_s,
        useful=found.useful,
        lost=found.lost,
        checkpoint=found.checkpoint,
        restart=found.restart,
        waiting=found.waiting,
        shrunk=found.shrunk,
        failures=found.failures,
        spread=found.spread,
        tokens=found.useful * spec.duration_s * step.tokens_per_s,
    )


def _nodes_per_replica(cluster: Cluster, strategy: Strategy) -> int:
    local = cluster.most_gpus_per_node
    model_ranks = strategy.tensor * strategy.context * strategy.pipeline
    shard = strategy.data_parallel.shard
    if strategy.data_parallel.kind in ("zero3", "fsdp") and shard is not None:
        model_ranks *= shard
    if model_ranks % local and local % model_ranks:
        raise ScenarioError(
            Problem(
                key="reliability.elastic",
                message=f"a replica has {model_ranks} ranks, a node {local}",
                allowed="replicas of whole nodes, or nodes of whole replicas",
            )
        )
    return max(1, model_ranks // local)
