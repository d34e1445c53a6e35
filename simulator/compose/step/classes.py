"""Ranks that cannot be told apart, found by refining a partition.

Two ranks are alike when they do the same, and when in each axis their groups hold the same numbers
of each kind of rank (an equitable partition: McKay and Piperno, Practical graph isomorphism II,
2014, section 2).  Alike ranks live through a step alike, so one of them stands for all.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulator.training.plan import Mesh

__all__ = ["Classes", "fold_ranks", "keep_ranks"]

IntArray = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Classes:
    """A partition of the ranks, and where each rank sits in the groups of the axes."""

    class_of_rank: IntArray
    """Shape (world,)."""
    representative: IntArray
    """One rank of each class, shape (classes,)."""
    row_of_rank: dict[str, IntArray]
    """By axis: row of `Mesh.groups` that holds a rank, −1: none; shape (world,)."""

    @property
    def n_classes(self) -> int:
        """Number of classes."""
        return len(self.representative)

    def members(self, mesh: Mesh, axis: str, unit: int) -> IntArray:
        """Return the classes in a class's group of an axis, in the order of first appearance."""
        rank = int(self.representative[unit])
        row = int(self.row_of_rank[axis][rank])
        found = self.class_of_rank[mesh.groups[axis][row]]
        _, first = np.unique(found, return_index=True)
        return np.asarray(found[np.sort(first)])


def _rows(mesh: Mesh) -> dict[str, IntArray]:
    rows: dict[str, IntArray] = {}
    for axis, groups in mesh.groups.items():
        row = np.full(mesh.world_size, -1, dtype=np.int64)
        row[groups] = np.arange(len(groups))[:, None]
        rows[axis] = row
    return rows


def _numbered(table: IntArray) -> IntArray:
    """Return the number of each distinct row, in order of first appearance."""
    _, first, inverse = np.unique(table, axis=0, return_index=True, return_inverse=True)
    rank = np.empty(len(first), dtype=np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    return np.asarray(rank[inverse.ravel()])


def fold_ranks(mesh: Mesh, label: IntArray, group_label: dict[str, IntArray]) -> Classes:
    """Return the coarsest partition of ranks that are alike.

    Parameters
    ----------
    mesh
        Groups of every axis.
    label
        What tells ranks apart by themselves (stage, slowness), shape (world,).
    group_label
        By axis, what tells its groups apart (how long their calls take), shape (groups,); an
        axis that is left out has groups alike.
    """
    rows = _rows(mesh)
    color = _numbered(label[:, None])
    while True:
        columns = [color]
        for axis, groups in mesh.groups.items():
            inside = np.sort(color[groups], axis=1)
            own = group_label.get(axis, np.zeros(len(groups), dtype=np.int64))
            group = _numbered(np.column_stack([own, inside]))
            columns.append(np.where(rows[axis] >= 0, group[rows[axis]], -1))
        finer = _numbered(np.column_stack(columns))
        if finer.max() == color.max():
            break
        color = finer
    _, first = np.unique(color, return_index=True)
    return Classes(class_of_rank=color, representative=first, row_of_rank=rows)


def keep_ranks(mesh: Mesh) -> Classes:
    """Return the partition in which every rank stands for itself."""
    everyone = np.arange(mesh.world_size, dtype=np.int64)
    return Classes(class_of_rank=everyone, representative=everyone, row_of_rank=_rows(mesh))
