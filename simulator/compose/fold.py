"""Channels that are copies of each other are simulated once.

NCCL opens many channels over few distinct rings: 24 channels on one NVSwitch node all follow the
same ring, over nodes with eight NICs there are eight distinct ones.  Copies move in lockstep on
the same connections, each with its share of the data and of the rate; simulated as one channel
with the data and the rate of all they take exactly as long.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from simulator.collectives.call import Layout

__all__ = ["distinct_channels"]

IntArray = NDArray[np.int64]

RING_ONLY = ("ring", "bidirectional_ring")
"""Algorithms that take only the cyclic order of a channel from the layout."""
TWO_TREES = ("double_binary_tree", "nvls_tree")
"""Algorithms that put the first half of the channels on one tree and the rest on its mirror.
NCCL makes the second half as copies of the first (src/graph/connect.cc), so that each order of
ranks is on both trees; so are the distinct ones here."""


def distinct_channels(layout: Layout, algorithm: str) -> tuple[Layout, float]:
    """Return the layout with each distinct channel once, and how many copies each stands for.

    Parameters
    ----------
    layout
        With all channels.
    algorithm
        Name of the algorithm that will use it.

    Returns
    -------
    tuple
        (layout, copies); (the same layout, 1.0) where channels have unequal numbers of copies.
    """
    if layout.n_channels == 1:
        return layout, 1.0
    rings = _from_first(layout.ring_orders())
    keys = rings if algorithm in RING_ONLY else np.hstack([rings, layout.chain_orders()])
    rows = [row.tobytes() for row in keys]
    counts = Counter(rows)
    if len(set(counts.values())) != 1 or len(counts) == len(rows):
        return layout, 1.0
    copies = len(rows) / len(counts)
    first = np.array([rows.index(row) for row in counts], dtype=np.int64)
    if algorithm in TWO_TREES:
        first, copies = np.concatenate([first, first]), copies / 2
    return (
        replace(
            layout,
            n_channels=len(first),
            rings=None if layout.rings is None else layout.rings[first],
            chains=None if layout.chains is None else layout.chains[first],
            pipeline_bytes=max(1, round(layout.pipeline_bytes * copies)),
        ),
        copies,
    )


def _from_first(orders: IntArray) -> IntArray:
    """Return cyclic orders turned so that each begins with its smallest rank."""
    turn = np.argmin(orders, axis=1)
    n = orders.shape[1]
    columns = (turn[:, None] + np.arange(n)) % n
    return np.take_along_axis(orders, columns, axis=1)
