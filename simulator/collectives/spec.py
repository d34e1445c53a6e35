"""What each collective must achieve, apart from any algorithm.

A collective moves *parts*.  Before the call some ranks hold a contribution to a part; afterwards
some ranks must hold the sum of all contributions to it (for collectives that do not reduce, a
part has one contributor, and its sum is the data themselves).

=============== ======== ===================== =====================================
collective      parts    before: contributes   after: must hold
=============== ======== ===================== =====================================
all_reduce      1        every rank            every rank
reduce          1        every rank            the root
broadcast       1        the root              every rank
all_gather      n        rank p to part p      every rank, all parts
reduce_scatter  n        every rank, all parts rank p, part p
gather          n        rank p to part p      the root, all parts
scatter         n        the root, all parts   rank p, part p
all_to_all(v)   n²       rank s, parts (s, ·)  rank d, parts (·, d); part = s·n + d
send_recv       n        rank p to part p      rank p + 1 (mod n), part p
barrier         1        nobody                nobody; every end follows every start
=============== ======== ===================== =====================================

Buffers that are not named may hold anything: they are working space.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulator.base.errors import ScheduleError, unknown_name
from simulator.collectives.call import Call

__all__ = ["COLLECTIVES", "Specification", "part_bytes", "specification"]

COLLECTIVES = (
    "all_gather",
    "all_reduce",
    "all_to_all",
    "all_to_allv",
    "barrier",
    "broadcast",
    "gather",
    "reduce",
    "reduce_scatter",
    "scatter",
    "send_recv",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Specification:
    """Pre- and postcondition of one call."""

    n_parts: int
    contributes: NDArray[np.bool_]
    """Before: shape (world_size, n_parts)."""
    holds: NDArray[np.bool_]
    """After: which rank must hold the sum of a part's contributions, same shape."""
    synchronises: bool
    """No rank may finish before every rank has started."""


def specification(call: Call) -> Specification:
    """Return what a call must achieve.

    For tests and small worlds: two matrices of world_size × parts are built.

    Raises
    ------
    ScheduleError
        Unknown collective.

    Examples
    --------
    >>> found = specification(Call(collective="scatter", world_size=3, size_bytes=3, root=1))
    >>> found.contributes.astype(int).tolist(), found.holds.astype(int).tolist()
    ([[0, 0, 0], [1, 1, 1], [0, 0, 0]], [[1, 0, 0], [0, 1, 0], [0, 0, 1]])
    """
    n = call.world_size
    at_root = np.arange(n)[:, None] == call.root
    own = np.eye(n, dtype=bool)
    one, every = np.ones((n, 1), dtype=bool), np.ones((n, n), dtype=bool)
    source, target = np.divmod(np.arange(n * n), n)
    rank = np.arange(n)[:, None]
    conditions: dict[str, tuple[NDArray[np.bool_], NDArray[np.bool_]]] = {
        "all_reduce": (one, one),
        "reduce": (one, at_root),
        "broadcast": (at_root, one),
        "all_gather": (own, every),
        "reduce_scatter": (every, own),
        "gather": (own, every & at_root),
        "scatter": (every & at_root, own),
        "all_to_all": (source == rank, target == rank),
        "all_to_allv": (source == rank, target == rank),
        "send_recv": (own, np.roll(own, 1, axis=0)),
        "barrier": (~one, ~one),
    }
    if call.collective not in conditions:
        raise ScheduleError(unknown_name("collective", call.collective, COLLECTIVES))
    before, after = conditions[call.collective]
    return Specification(
        n_parts=before.shape[1],
        contributes=before,
        holds=after,
        synchronises=call.collective == "barrier",
    )


def part_bytes(call: Call) -> NDArray[np.int64]:
    """Return the size of each part in bytes.

    Equal parts of a size that does not divide differ by at most one element, larger ones first;
    bytes beyond the last whole element belong to the last part.

    Returns
    -------
    numpy.ndarray
        Shape (n_parts,); for all_to_all and all_to_allv without counts one row of shape
        (world_size,), which is the same for every source.
    """
    n = call.world_size
    if call.counts_bytes is not None:
        return np.asarray(call.counts_bytes, dtype=np.int64).ravel()
    if call.collective in ("all_reduce", "reduce", "broadcast", "barrier"):
        return np.array([call.size_bytes], dtype=np.int64)
    if call.collective == "send_recv":
        return np.full(n, call.size_bytes, dtype=np.int64)
    elements, tail = divmod(call.size_bytes, call.element_bytes)
    each, larger = divmod(elements, n)
    parts = (each + (np.arange(n) < larger)) * call.element_bytes
    parts[-1] += tail
    return np.asarray(parts, dtype=np.int64)
