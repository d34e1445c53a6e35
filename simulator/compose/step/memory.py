"""Memory of a step on a cluster's GPUs, and what would make it fit."""

from __future__ import annotations

from simulator.compose.cluster import Cluster
from simulator.models.model import Model
from simulator.results.training import MemoryRow, TrainingStep
from simulator.training.strategy import Strategy

__all__ = ["memory_of", "remedies_of"]


def memory_of(cluster: Cluster, model: Model, strategy: Strategy) -> tuple[MemoryRow, ...]:
    """Return what a rank of each pipeline stage holds; of heterogeneous nodes the smallest GPU."""
    return ()


def remedies_of(
    cluster: Cluster, model: Model, strategy: Strategy, step: TrainingStep
) -> tuple[str, ...]:
    """Return what would make the step fit, cheapest first."""
    return ()
