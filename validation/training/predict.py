"""Predicting a record: the cluster of its node preset, and the simulated step."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from simulator.compose.build import build_cluster
from simulator.compose.cluster import Cluster
from simulator.compose.step.simulate import simulate_step
from simulator.compute import ComputeModel, Constants, Gpu
from simulator.scenario.resolve import from_words
from validation.training.record import Record

__all__ = ["Predicted", "cluster_of", "compute_for", "predict"]


@lru_cache(maxsize=128)
def cluster_of(node: str, nodes: int, gpus_per_node: int | None) -> Cluster:
    """Return a cluster of so many nodes on one switch."""
    words = {
        "node": node,
        "nodes": str(nodes),
        "collective.op": "all_reduce",
        "collective.size": "1M",
    }
    if gpus_per_node is not None:
        words["gpus_per_node"] = str(gpus_per_node)
    return build_cluster(from_words(words).variants[0])


def compute_for(record: Record, cluster: Cluster, constants: Constants | None) -> ComputeModel:
    """Return the compute model of a record's GPU, attention and framework."""
    gpu = cluster.template_of(0).gpu
    return ComputeModel(
        Gpu(
            name=gpu.name,
            generation=gpu.generation,
            peak_flops=gpu.peak_flops,
            memory_Bps=gpu.memory_Bps,
            compute_units=gpu.compute_units,
            l2_bytes=gpu.last_cache_bytes,
        ),
        constants=constants,
        framework="graph" if record.graphs else record.strategy.framework,
        attention=record.attention,
        ranks=record.strategy.world_size,
        blocking=record.blocking,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Predicted:
    """What is kept of a simulated step."""

    step_s: float
    exposed_s: float
    """Communication on the critical path."""
    verdict: str


_COMPUTES = ("forward", "backward", "recompute", "optimizer", "compress", "copy", "other")


def _simulated(record: Record, passes: int, constants: Constants | None) -> Predicted:
    cluster = cluster_of(record.node, record.nodes, record.gpus_per_node)
    compute = compute_for(record, cluster, constants)
    strategy = replace(record.strategy, micro_batches=passes)
    step = simulate_step(cluster, record.model, strategy, compute=compute).step
    exposed = (s for what, s in step.critical_s.items() if what not in _COMPUTES)
    return Predicted(step_s=step.step_s, exposed_s=sum(exposed), verdict=step.verdict)


def predict(record: Record, constants: Constants | None = None) -> Predicted:
    """Return the simulated step of a record.

    Parameters
    ----------
    record
        What was run.
    constants
        Of the compute model; the shipped ones by default.

    Notes
    -----
    Once a pipeline is full, each further micro-batch takes as long as the one before.  So steps
    of many micro-batches are drawn out from two of fewer.
    """
    passes = record.strategy.micro_batches
    few = max(2, record.strategy.pipeline)
    more = 2 * few
    if passes < 1.2 * (few + more):
        return _simulated(record, passes, constants)
    first = _simulated(record, few, constants)
    second = _simulated(record, more, constants)
    further = (passes - more) / (more - few)
    return Predicted(
        step_s=second.step_s + further * (second.step_s - first.step_s),
        exposed_s=max(0.0, second.exposed_s + further * (second.exposed_s - first.exposed_s)),
        verdict=second.verdict,
    )
