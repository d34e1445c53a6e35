"""Small clusters and plans made by hand, so that the engine's part is tested by itself."""

from __future__ import annotations

import numpy as np
import pytest

from simulator.compose.build import build_cluster
from simulator.compose.cluster import Cluster
from simulator.scenario.resolve import from_words
from simulator.training.plan import Call, Compute, Mesh, Role, StepPlan, Task, Transfer, Wait


def cluster_of(nodes: int, node: str = "dgx-h100", **words: str) -> Cluster:
    """Return a cluster of a preset."""
    given = {"node": node, "nodes": str(nodes), "collective.op": "barrier", **words}
    return build_cluster(from_words(given).variants[0])


def mesh_of(tensor: int, data: int, stages: int) -> Mesh:
    """Return a mesh with tensor-parallel neighbours, then data, then pipeline."""
    ranks = np.arange(tensor * data * stages).reshape(stages, data, tensor)
    groups = {
        "tensor": ranks.reshape(-1, tensor),
        "data": ranks.transpose(0, 2, 1).reshape(-1, data),
        "pipeline": ranks.transpose(1, 2, 0).reshape(-1, stages),
    }
    return Mesh(
        world_size=ranks.size,
        stage_of_rank=np.repeat(np.arange(stages), data * tensor),
        groups={k: np.ascontiguousarray(v) for k, v in groups.items() if v.shape[1] > 1},
    )


def pipeline_plan(
    tensor: int, data: int, stages: int, micro_batches: int = 4, compute_s: float = 2e-3
) -> StepPlan:
    """Return GPipe by hand: forwards, then backwards with a gradient call per layer in the last."""
    layers, size = 3, 32 * 2**20
    calls = {"tensor": tensor, "data": data}
    roles = []
    for stage in range(stages):
        tasks: list[Task] = []

        def layer(name: str, seconds: float, tasks: list[Task] = tasks) -> None:
            purpose = "forward" if name == "f" else "backward"
            tasks.append(Compute(name=name, duration_s=seconds, purpose=purpose))
            if calls["tensor"] > 1:
                tasks.append(
                    Call(
                        name="tp",
                        collective="all_reduce",
                        size_bytes=size,
                        axis="tensor",
                        traffic="tensor",
                        stream="compute",
                    )
                )

        def move(word: str, peer: int, way: str, tasks: list[Task] = tasks) -> None:
            tasks.append(
                Transfer(
                    name=f"{way} {word}",
                    size_bytes=size // 4,
                    peer=peer,
                    direction="send" if way == "send" else "recv",
                    tag=word,
                    stream=f"{way} {word}",
                    after="compute" if way == "send" else None,
                )
            )
            if way == "recv":
                tasks.append(Wait(on=f"recv {word}"))

        for _ in range(micro_batches):
            if stage > 0:
                move("forward", stage - 1, "recv")
            for _ in range(layers):
                layer("f", compute_s)
            if stage < stages - 1:
                move("forward", stage + 1, "send")
        for index in range(micro_batches):
            if stage < stages - 1:
                move("backward", stage + 1, "recv")
            for number in range(layers):
                layer("b", 2 * compute_s)
                if calls["data"] > 1 and index == micro_batches - 1:
                    tasks.append(
                        Call(
                            name=f"gradients {number}",
                            collective="all_reduce",
                            size_bytes=200 * 2**20,
                            axis="data",
                            traffic="data",
                            stream="data",
                        )
                    )
            if stage > 0:
                move("backward", stage - 1, "send")
        tasks.append(Wait(on="data"))
        tasks.append(Compute(name="optimizer", duration_s=compute_s, purpose="optimizer"))
        roles.append(Role(stage=stage, tasks=tuple(tasks)))
    return StepPlan(mesh=mesh_of(tensor, data, stages), roles=tuple(roles))


@pytest.fixture
def two_nodes() -> Cluster:
    """Two DGX H100."""
    return cluster_of(2)
