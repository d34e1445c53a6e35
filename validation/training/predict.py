"""Predicting a record: the cluster of its node preset, and the simulated step."""

from __future__ import annotations

from functools import lru_cache

from simulator.compose.build import build_cluster
from simulator.compose.cluster import Cluster
from simulator.compose.step.simulate import simulate_step
from simulator.compute import ComputeModel, Constants, Gpu
from simulator.results.training import TrainingStep
from simulator.scenario.resolve import from_words
from validation.training.record import Record

__all__ = ["cluster_of", "compute_for", "predict"]


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
    )


def predict(record: Record, constants: Constants | None = None) -> TrainingStep:
    """Return the simulated step of a record.

    Parameters
    ----------
    record
        What was run.
    constants
        Of the compute model; the shipped ones by default.
    """
    cluster = cluster_of(record.node, record.nodes, record.gpus_per_node)
    compute = compute_for(record, cluster, constants)
    return simulate_step(cluster, record.model, record.strategy, compute=compute).step
