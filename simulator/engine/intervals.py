"""Lengths of unions of intervals."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["union_lengths"]


def union_lengths(
    owner: NDArray[np.int64],
    start_s: NDArray[np.float64],
    end_s: NDArray[np.float64],
    n_owners: int,
) -> NDArray[np.float64]:
    """Return how long each owner is covered by at least one of its intervals, in s.

    Notes
    -----
    With one owner's starts and ends sorted apart, the gap before the (i+1)-th start is
    ``start[i + 1] − end[i]`` where that is positive: only then have all i begun intervals ended.

    Examples
    --------
    >>> union_lengths(
    ...     np.array([0, 0, 1]), np.array([0.0, 1.0, 5.0]), np.array([2.0, 3.0, 6.0]), 2
    ... ).tolist()
    [3.0, 1.0]
    """
    covered = np.zeros(n_owners)
    if len(owner) == 0:
        return covered
    by_start = np.lexsort((start_s, owner))
    who = owner[by_start]
    starts = start_s[by_start]
    ends = end_s[np.lexsort((end_s, owner))]
    first = np.flatnonzero(np.concatenate(([True], who[1:] != who[:-1])))
    last = np.append(first[1:], len(who)) - 1
    covered[who[first]] = ends[last] - starts[first]
    same = who[1:] == who[:-1]
    gaps = np.where(same, np.maximum(starts[1:] - ends[:-1], 0.0), 0.0)
    np.subtract.at(covered, who[1:], gaps)
    return covered
