"""Groups of ranks: every rank in one group of an axis, in the places that the order says."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.training.mesh import build_mesh, group_sizes
from simulator.training.strategy import AXES, DataParallel, Strategy


def test_the_order_of_megatron() -> None:
    # tp 2, pp 4, dp 2 of 16 ranks: Megatron-LM's own example (core/parallel_state.py) has tensor
    # groups [g0, g1] …, data groups [g0, g2] …, pipeline groups [g0, g4, g8, g12] ….
    mesh = build_mesh(Strategy(tensor=2, pipeline=4, data=2))
    assert mesh.groups["tensor"].tolist()[:2] == [[0, 1], [2, 3]]
    assert [0, 2] in mesh.groups["data"].tolist()
    assert [5, 7] in mesh.groups["data"].tolist()
    assert [0, 4, 8, 12] in mesh.groups["pipeline"].tolist()
    assert [0, 12] in mesh.groups["ends"].tolist()
    assert [0, 1, 4, 5, 8, 9, 12, 13] in [sorted(row) for row in mesh.groups["model"].tolist()]
    assert mesh.stage_of_rank.tolist() == [0] * 4 + [1] * 4 + [2] * 4 + [3] * 4


def test_experts_are_folded_into_data_and_tensor_ranks() -> None:
    # Order tp-ep-dp of the experts' own grid: with expert_tensor 1, ranks of a tensor group hold
    # different experts.
    mesh = build_mesh(Strategy(tensor=2, data=4, expert=4, expert_tensor=1))
    assert mesh.groups["expert"].tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert mesh.groups["expert_data"].tolist() == [[0, 4], [1, 5], [2, 6], [3, 7]]
    whole = build_mesh(Strategy(tensor=2, data=4, expert=4))
    assert whole.groups["expert"].tolist() == [[0, 2, 4, 6], [1, 3, 5, 7]]
    assert "expert_data" not in whole.groups


def test_shards_are_neighbours_and_replicas_apart() -> None:
    options = DataParallel(kind="zero3", shard=4, secondary_shard=2)
    mesh = build_mesh(Strategy(data=8, data_parallel=options))
    assert mesh.groups["shard"].tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert mesh.groups["replicate"].tolist() == [[0, 4], [1, 5], [2, 6], [3, 7]]
    assert mesh.groups["secondary"].tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert mesh.groups["secondary_across"].tolist() == [[0, 2], [1, 3], [4, 6], [5, 7]]


def test_context_ranks_are_replicas_of_parameters() -> None:
    mesh = build_mesh(Strategy(tensor=2, context=2, data=2))
    assert mesh.groups["data"].tolist() == [[0, 2, 4, 6], [1, 3, 5, 7]]
    assert mesh.groups["context"].tolist() == [[0, 2], [4, 6], [1, 3], [5, 7]] or sorted(
        mesh.groups["context"].tolist()
    ) == [[0, 2], [1, 3], [4, 6], [5, 7]]


def test_node_limited_groups() -> None:
    mesh = build_mesh(Strategy(data=16, expert=16, routed_nodes=2), gpus_per_node=8)
    assert mesh.groups["expert_near"].tolist() == [list(range(8)), list(range(8, 16))]
    assert mesh.groups["expert_across"].tolist() == [[i, i + 8] for i in range(8)]


SIZES = st.sampled_from([1, 2, 3, 4])


@settings(max_examples=80, deadline=None)
@given(SIZES, SIZES, SIZES, st.sampled_from([1, 2, 4, 6]), st.permutations(AXES), st.data())
def test_each_rank_is_in_one_group_of_each_axis(
    tensor: int, context: int, pipeline: int, data: int, order: list[str], draw: st.DataObject
) -> None:
    replicas = context * data
    divisors = [k for k in range(1, replicas + 1) if replicas % k == 0]
    shard = draw.draw(st.sampled_from(divisors))
    expert = draw.draw(st.sampled_from(divisors))
    strategy = Strategy(
        tensor=tensor,
        context=context,
        pipeline=pipeline,
        data=data,
        expert=expert,
        order=tuple(order),
        data_parallel=DataParallel(kind="zero3", shard=shard),
    )
    mesh = build_mesh(strategy)
    sizes = group_sizes(strategy)
    for axis, groups in mesh.groups.items():
        assert groups.shape[1] == sizes[axis]
        if axis == "ends":
            continue
        assert sorted(groups.ravel().tolist()) == list(range(strategy.world_size))
        stages = mesh.stage_of_rank[groups]
        if axis in ("pipeline", "model", "world"):
            assert set(stages[0].tolist()) == set(range(pipeline))
        else:
            assert (stages == stages[:, :1]).all()
    assert set(sizes) - set(mesh.groups) == {axis for axis, size in sizes.items() if size == 1}
    # Innermost axis: neighbours.
    extent = {"tensor": tensor, "context": context, "data": data, "pipeline": pipeline}
    first = order[0]
    if extent[first] > 1 and first != "data":
        assert (np.diff(mesh.groups[first], axis=1) == 1).all()
