"""Memory of a step on a cluster's GPUs, and what would make it fit, ranked by what it costs."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from simulator.base.errors import CollsimError
from simulator.base.units import format_time
from simulator.compose.cluster import Cluster
from simulator.compose.step.simulate import simulate_step
from simulator.models.model import Model
from simulator.results.training import MemoryRow, TrainingStep
from simulator.training.memory import memory_report
from simulator.training.remedies import remedies
from simulator.training.strategy import Strategy

__all__ = ["memory_of", "remedies_of"]

MOST_SIMULATED = 6
"""So many remedies are simulated to rank them by the step that they give."""
MOST_PASSES = 2_000
"""Passes through blocks in a step beyond which remedies are not simulated."""
MOST_RANKS = 1024
"""Of larger jobs none is simulated: each would take as long as the step that was asked for."""


def capacity_bytes(cluster: Cluster) -> float:
    """Return the memory of the cluster's smallest GPU."""
    return float(min(t.gpu.memory_bytes for t in cluster.fabric.templates))


def memory_of(
    cluster: Cluster, model: Model, strategy: Strategy, stage_of_rank: NDArray[np.int64]
) -> tuple[MemoryRow, ...]:
    """Return what a rank of each pipeline stage holds, and the smallest GPU that has the stage.

    Parameters
    ----------
    cluster, model, strategy
        Where, what, and how it is spread.
    stage_of_rank
        Pipeline stage of each rank, shape (world,).
    """
    fabric = cluster.fabric
    of_preset = np.array([float(c.template.gpu.memory_bytes) for c in fabric.compiled])
    preset = np.asarray(fabric.template_of_node)[np.asarray(fabric.node_of_gpu)]
    of_rank = of_preset[preset[: len(stage_of_rank)]]
    return tuple(
        MemoryRow(
            stage=stage.stage,
            parts={name: value for name, value in stage.parts().items() if value > 0},
            capacity_bytes=float(of_rank[stage_of_rank == stage.stage].min()),
        )
        for stage in memory_report(model, strategy).stages
    )


def remedies_of(
    cluster: Cluster, model: Model, strategy: Strategy, step: TrainingStep, *, timed: bool = True
) -> tuple[str, ...]:
    """Return what would make the step fit, the fastest first.

    Of long steps and large jobs in the usual order, and where `timed` is not wanted: a step that
    something slows down is no measure for steps without it.
    """
    local = cluster.most_gpus_per_node
    found = remedies(model, strategy, capacity_bytes(cluster), gpus_per_node=local)
    fitting = [remedy for remedy in found if remedy.fits][:MOST_SIMULATED]
    if not fitting:
        best = min(found, key=lambda remedy: remedy.peak_bytes, default=None)
        if best is None:
            return ("nothing that is known here: more or larger GPUs",)
        return (f"nothing on these GPUs; {best.what} comes closest: {_gib(best.peak_bytes)} GiB",)
    passes = model.blocks * strategy.micro_batches
    if step.world_size > MOST_RANKS or passes > MOST_PASSES or not timed:
        return tuple(f"{remedy.what}: {_gib(remedy.peak_bytes)} GiB" for remedy in fitting)
    found_s = []
    for remedy in fitting:
        try:
            after = simulate_step(cluster, model, remedy.strategy).step
        except CollsimError:
            continue
        found_s.append((after.step_s, remedy))
    found_s.sort(key=lambda pair: pair[0])
    return tuple(
        f"{remedy.what}: step {format_time(step_s)} "
        f"({100 * (step_s / step.step_s - 1):+.0f} %), {_gib(remedy.peak_bytes)} GiB"
        for step_s, remedy in found_s
    )


def _gib(n_bytes: float) -> str:
    return f"{n_bytes / 2**30:.1f}"
