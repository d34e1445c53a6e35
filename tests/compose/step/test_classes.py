"""Folding ranks: what is alike is found, and nothing else."""

from __future__ import annotations

import numpy as np
import pytest

from simulator.compose.step.classes import fold_ranks, keep_ranks
from tests.compose.step.conftest import mesh_of


def _labels(mesh, **at: int) -> np.ndarray:
    label = np.array(mesh.stage_of_rank)
    for word, value in at.items():
        label[int(word.removeprefix("rank"))] += 100 * value
    return label


@pytest.mark.parametrize("stages", [1, 2, 4])
def test_without_a_difference_there_is_one_class_per_stage(stages: int) -> None:
    mesh = mesh_of(4, 4, stages)
    classes = fold_ranks(mesh, _labels(mesh), {})
    assert classes.n_classes == stages
    assert (classes.class_of_rank == mesh.stage_of_rank).all()


def test_one_slow_rank_parts_its_tensor_group_its_data_group_and_the_rest() -> None:
    # 4 x 4 ranks: the slow one, 3 of its tensor group, 3 of its data group, 9 others.
    mesh = mesh_of(4, 4, 1)
    classes = fold_ranks(mesh, _labels(mesh, rank5=1), {})
    assert sorted(np.bincount(classes.class_of_rank).tolist()) == [1, 3, 3, 9]


def test_groups_that_take_longer_are_told_apart() -> None:
    mesh = mesh_of(4, 4, 1)
    classes = fold_ranks(mesh, _labels(mesh), {"tensor": np.array([0, 0, 0, 1])})
    assert sorted(np.bincount(classes.class_of_rank).tolist()) == [4, 12]


@pytest.mark.parametrize("slow", [0, 7, 22])
def test_the_partition_is_equitable(slow: int) -> None:
    """Ranks of a class see, in the groups of each axis, equally many ranks of every class."""
    mesh = mesh_of(2, 4, 3)
    classes = fold_ranks(mesh, _labels(mesh, **{f"rank{slow}": 1}), {})
    for groups in mesh.groups.values():
        seen: dict[int, tuple[int, ...]] = {}
        for group in groups:
            counts = tuple(
                np.bincount(classes.class_of_rank[group], minlength=classes.n_classes).tolist()
            )
            for rank in group:
                unit = int(classes.class_of_rank[rank])
                assert seen.setdefault(unit, counts) == counts
    assert classes.n_classes > 3


def test_members_are_the_classes_of_the_group() -> None:
    mesh = mesh_of(4, 4, 1)
    classes = fold_ranks(mesh, _labels(mesh, rank5=1), {})
    slow = int(classes.class_of_rank[5])
    together = classes.members(mesh, "tensor", slow)
    assert set(together) == {slow, int(classes.class_of_rank[4])}


def test_kept_ranks_stand_for_themselves() -> None:
    mesh = mesh_of(2, 2, 2)
    classes = keep_ranks(mesh)
    assert classes.n_classes == 8
    assert classes.members(mesh, "pipeline", 0).tolist() == [0, 4]
