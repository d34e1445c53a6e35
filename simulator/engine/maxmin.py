"""Max-min fair rates of many flows over shared links, by vectorised water-filling."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["max_min_rates", "max_min_rates_few"]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

_TIE = 1.0 + 1e-12
"""Shares closer than this ratio freeze together: they differ by rounding only."""


def max_min_rates(
    indptr: IntArray,
    link: IntArray,
    weight: FloatArray,
    capacity: FloatArray,
    max_rate: FloatArray,
) -> FloatArray:
    """Return the weighted max-min fair payload rate of every flow.

    Parameters
    ----------
    indptr
        Shape (flows + 1,); the links of flow i are ``link[indptr[i]:indptr[i + 1]]``.
    link
        Link index of each entry.
    weight
        Wire bytes on that link per payload byte of the flow, > 0.
    capacity
        Wire capacity of each link in bytes/s, ≥ 0, shape (links,).
    max_rate
        Payload rate in bytes/s that each flow cannot exceed (inf: its links only).

    Returns
    -------
    numpy.ndarray
        Payload rates in bytes/s, shape (flows,).  A flow without links gets its `max_rate`.

    Notes
    -----
    All unfrozen flows rise at one payload rate; ``sum_i weight_il x_i ≤ capacity_l`` [1]_.  The
    textbook freezes one link per round.  Here each round freezes every link whose fair share
    (capacity left over weight left) is not above that of any link its unfrozen flows cross: the
    shares of a link only grow while others freeze below it, so a locally smallest share is final
    whatever happens elsewhere.  A flow whose own limit is not above the shares of all its links
    freezes by the same argument.

    References
    ----------
    .. [1] D. Bertsekas, R. Gallager, "Data Networks", 2nd ed., 1992, section 6.5.2.

    Examples
    --------
    Two flows share link 0; the second also crosses the narrower link 1:

    >>> max_min_rates(
    ...     np.array([0, 1, 3]),
    ...     np.array([0, 0, 1]),
    ...     np.ones(3),
    ...     np.array([10.0, 2.0]),
    ...     np.full(2, np.inf),
    ... ).tolist()
    [8.0, 2.0]
    """
    rate = np.array(max_rate, dtype=np.float64)
    length = np.diff(indptr)
    flows = np.flatnonzero(length)
    length = length[flows]
    limit = rate[flows]
    weights = np.asarray(weight, dtype=np.float64)
    # Links get dense names, so that a small problem costs little on a large fabric.
    used = np.zeros(len(capacity), dtype=bool)
    used[link] = True
    full = np.asarray(capacity, dtype=np.float64)[used]
    link = (np.cumsum(used) - 1)[link]
    left = full.copy()

    while len(flows):
        head = np.cumsum(length) - length
        load = np.bincount(link, weights=weights, minlength=len(left))
        with np.errstate(divide="ignore", invalid="ignore"):
            share = left / load
        share_of_entry = share[link]
        smallest = np.minimum.reduceat(share_of_entry, head)
        bound = np.minimum(smallest, limit)
        bound_of_entry = np.repeat(bound, length)
        # The smallest bound among a link's flows equals its share when no flow is held lower.
        lowest = np.full(len(left), np.inf)
        np.minimum.at(lowest, link, bound_of_entry)
        final = (share <= lowest * _TIE)[link] & (share_of_entry <= bound_of_entry * _TIE)
        freeze = np.logical_or.reduceat(final, head) | (limit <= smallest)
        rate[flows[freeze]] = bound[freeze]

        gone = np.repeat(freeze, length)
        frozen = link[gone]
        left -= np.bincount(frozen, weights[gone] * bound_of_entry[gone], minlength=len(left))
        # Rounding must not leave a sliver, positive or negative, to the flows still there.
        left[left < 1e-15 * full] = 0.0
        kept, kept_entry = ~freeze, ~gone
        flows, length, limit = flows[kept], length[kept], limit[kept]
        link, weights = link[kept_entry], weights[kept_entry]
    return rate


def max_min_rates_few(
    links: list[list[int]],
    weights: list[list[float]],
    limits: list[float],
    capacity: FloatArray,
) -> list[float]:
    """Return the same rates for a handful of flows, without numpy's cost per operation.

    Parameters
    ----------
    links, weights
        Links of each flow, and wire bytes per payload byte on each.
    limits
        Payload rate in bytes/s that each flow cannot exceed.
    capacity
        Wire capacity of each link in bytes/s, shape (links,).

    Notes
    -----
    The textbook's rounds: all unfrozen flows rise together to the next limit or full link.
    """
    left: dict[int, float] = {}
    load: dict[int, float] = {}
    users: dict[int, int] = {}
    for of_flow, weight in zip(links, weights, strict=True):
        for link, w in zip(of_flow, weight, strict=True):
            load[link] = load.get(link, 0.0) + w
            users[link] = users.get(link, 0) + 1
            if link not in left:
                left[link] = float(capacity[link])
    rates = [0.0] * len(links)
    free = list(range(len(links)))
    while free:
        share = {link: left[link] / load[link] for link, n in users.items() if n}
        level = min(min(share.values(), default=float("inf")), min(limits[i] for i in free))
        ceiling = level * _TIE
        full = {link for link, value in share.items() if value <= ceiling}
        still = []
        for i in free:
            if limits[i] <= ceiling or not full.isdisjoint(links[i]):
                rates[i] = min(level, limits[i])
                for link, w in zip(links[i], weights[i], strict=True):
                    left[link] = max(left[link] - w * rates[i], 0.0)
                    load[link] -= w
                    users[link] -= 1
            else:
                still.append(i)
        free = still
    return rates
