"""Ranks of a job and the groups in which they communicate."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from simulator.training.plan import Mesh
from simulator.training.strategy import Strategy

__all__ = ["build_mesh", "group_sizes"]

IntArray = NDArray[np.int64]


def group_sizes(strategy: Strategy, gpus_per_node: int | None = None) -> dict[str, int]:
    """Return the number of members in a group of each axis of `Mesh.groups`.

    With node-limited routing and a known size of nodes, `expert_near` are the ranks of an expert
    group that are taken for one node, `expert_across` those in the same place of its nodes.

    Notes
    -----
    Experts are spread over `expert` x `expert_tensor` ranks of a pipeline stage; what is left of
    the stage holds replicas of them (Megatron-LM, core/parallel_state.py).  They are sharded over
    as many instances as the other parameters.
    """
    replicas = strategy.data * strategy.context
    shard = strategy.data_parallel.shard or replicas
    instances = max(1, replicas // shard)
    secondary = strategy.data_parallel.secondary_shard or 1
    expert_tensor = strategy.expert_tensor or strategy.tensor
    experts_over = strategy.expert * expert_tensor
    expert_data = max(1, replicas * strategy.tensor // experts_over)
    expert_instances = math.gcd(instances, expert_data)
    near = 1
    if strategy.routed_nodes is not None and gpus_per_node is not None:
        near = math.gcd(strategy.expert, max(1, gpus_per_node // expert_tensor))
    return {
        "tensor": strategy.tensor,
        "context": strategy.context,
        "data": replicas,
        "shard": shard,
        "replicate": instances,
        "secondary": secondary,
        "secondary_across": max(1, shard // secondary),
        "expert": strategy.expert,
        "expert_near": near,
        "expert_across": strategy.expert // near,
        "expert_data": expert_data,
        "expert_shard": expert_data // expert_instances,
        "expert_replicate": expert_instances,
        "pipeline": strategy.pipeline,
        "ends": 2 if strategy.pipeline > 1 else 1,
        "model": strategy.tensor * strategy.pipeline,
        "world": strategy.world_size,
    }


def build_mesh(strategy: Strategy, gpus_per_node: int | None = None) -> Mesh:
    """Return all ranks and all groups with more than one member.

    Ranks count through the axes in the strategy's order, innermost first.  Sharding groups are
    neighbours in their data-parallel group.
    """
    extent = {
        "tensor": strategy.tensor,
        "context": strategy.context,
        "data": strategy.data,
        "pipeline": strategy.pipeline,
    }
    outer_first = tuple(reversed(strategy.order))
    ranks = np.arange(strategy.world_size).reshape([extent[axis] for axis in outer_first])

    def over(*axes: str) -> IntArray:
        members = [axis for axis in outer_first if axis in axes]
        others = [axis for axis in outer_first if axis not in axes]
        moved = ranks.transpose([outer_first.index(axis) for axis in others + members])
        return moved.reshape(-1, math.prod(extent[axis] for axis in members))

    size = group_sizes(strategy, gpus_per_node)
    data = over("data", "context")
    shard = data.reshape(-1, size["shard"])
    pipeline = over("pipeline")
    groups = {
        "tensor": over("tensor"),
        "context": over("context"),
        "data": data,
        "shard": shard,
        "replicate": _across(data, size["shard"]),
        "secondary": shard.reshape(-1, size["secondary"]),
        "secondary_across": _across(shard, size["secondary"]),
        "pipeline": pipeline,
        "ends": pipeline[:, [0, -1]] if strategy.pipeline > 1 else pipeline,
        "model": over("tensor", "pipeline"),
        "world": np.arange(strategy.world_size).reshape(1, -1),
    }
    if strategy.expert > 1 or strategy.expert_tensor is not None:
        groups |= _expert_groups(over("pipeline", "tensor"), strategy, size)
    else:
        groups |= {"expert_data": data, "expert_shard": shard}
        groups["expert_replicate"] = groups["replicate"]
    stage_of_rank = np.empty(strategy.world_size, dtype=np.int64)
    for stage in range(strategy.pipeline):
        stage_of_rank[pipeline[:, stage]] = stage
    return Mesh(
        world_size=strategy.world_size,
        stage_of_rank=stage_of_rank,
        groups={name: rows for name, rows in groups.items() if rows.shape[1] > 1},
    )


def _across(groups: IntArray, part: int) -> IntArray:
    """Return the groups of those with the same place in parts of `part` neighbours."""
    count, members = groups.shape
    return (
        groups.reshape(count, members // part, part).transpose(0, 2, 1).reshape(-1, members // part)
    )


def _expert_groups(
    model: IntArray, strategy: Strategy, size: dict[str, int]
) -> dict[str, IntArray]:
    """Return the groups of experts, folded into the replicas and tensor ranks of each stage.

    `model` holds one row per replica with its tensor and pipeline ranks; in each stage the ranks
    count tensor first, then as the other axes are ordered.
    """
    stages = strategy.pipeline
    if strategy.order.index("tensor") > strategy.order.index("pipeline"):
        by_stage = model.reshape(-1, strategy.tensor, stages).transpose(2, 0, 1)
    else:
        by_stage = model.reshape(-1, stages, strategy.tensor).transpose(1, 0, 2)
    expert_tensor = strategy.expert_tensor or strategy.tensor
    grid = by_stage.reshape(stages, -1, strategy.expert, expert_tensor)
    expert_data = grid.transpose(0, 2, 3, 1).reshape(-1, grid.shape[1])
    expert = grid.transpose(0, 1, 3, 2).reshape(-1, strategy.expert)
    return {
        "expert": expert,
        "expert_near": expert.reshape(-1, size["expert_near"]),
        "expert_across": _across(expert, size["expert_near"]),
        "expert_data": expert_data,
        "expert_shard": expert_data.reshape(-1, size["expert_shard"]),
        "expert_replicate": _across(expert_data, size["expert_shard"]),
    }
