"""The closed form of rings: how long a stage takes as a whole, at given rates.

It follows from the longest path through the recurrence of `wave`.  A path either *hops* (a
message crosses to the next slot, which sends it on in the next step) and pays d + L, or *stays*
at a connection for its next message and pays that message's d.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["Ring", "ring_time"]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

_EXACT_CELLS = 600_000
"""Windows examined one by one up to this many (about 5 ms); beyond, the two that can win."""


def ring_time(
    hop_s: FloatArray,
    turn_s: FloatArray,
    message_s: FloatArray,
    n_steps: int,
    *,
    exact: bool = True,
) -> float:
    """Return the time of *n_steps* steps in which every slot of a cycle forwards what it got.

    Parameters
    ----------
    hop_s
        d + L of each connection around the cycle, shape (slots,).
    turn_s
        Time in which each connection sends one message of each of its channels, C d.
    message_s
        d of each connection.
    n_steps
        K, the steps.
    exact
        Look at every window of a ring that is not too long; False: at the two that can win.

    Notes
    -----
    All slots start at once.  A path makes h ≤ K hops over a window W of contiguous connections;
    of the K C messages that a connection sends, a hop passes C, a stay one, and the last hop
    only one.  So::

        T = max over W, 1 ≤ h ≤ K, of  sum_W (d + L)  +  max_W ((K − h + 1) C d − d)

    With all connections alike it is linear in h: ``max(K C d + L, K (d + L) + (C − 1) d)``.
    With connections of different numbers of channels, the paths that change channels between
    them are left out (they cost at most a few d).
    """
    n = len(hop_s)
    if (hop_s == hop_s[0]).all() and (turn_s == turn_s[0]).all():
        d, all_d, hop = float(message_s[0]), float(turn_s[0]), float(hop_s[0])
        return max(n_steps * all_d + hop - d, n_steps * hop + all_d - d)
    if not exact or n * n_steps > _EXACT_CELLS:
        return _long_ring_time(hop_s, turn_s, message_s, n_steps)
    best = 0.0
    around = np.concatenate((hop_s, hop_s))
    turns = np.concatenate((turn_s, turn_s))
    singles = np.concatenate((message_s, message_s))
    total = np.zeros(n)
    turn, single = np.zeros(n), np.zeros(n)
    for hops in range(1, n_steps + 1):
        low = (hops - 1) % n
        total += around[low : low + n]
        if hops <= n:
            slower = turns[low : low + n] > turn
            turn = np.where(slower, turns[low : low + n], turn)
            single = np.where(slower, singles[low : low + n], single)
        best = max(best, float((total + (n_steps - hops + 1) * turn - single).max()))
    return best


def _long_ring_time(
    hop_s: FloatArray, turn_s: FloatArray, message_s: FloatArray, n_steps: int
) -> float:
    """Return the larger of the two windows that win in long rings.

    Either the window holds a slowest connection, and reaches as far as hops cost more than its
    turn; or latency rules everywhere, and the window is K hops long.
    """
    n = len(hop_s)
    turn = float(turn_s.max())
    slow = np.flatnonzero(turn_s == turn)
    single = float(message_s[slow].min())
    gain = hop_s - turn
    if gain.sum() > 0:
        reach = float(gain[slow].max())
    else:
        laps = np.concatenate(([0.0], np.cumsum(np.tile(gain, 3))))
        middle = slow + n
        before = laps[middle] - np.minimum.accumulate(laps)[middle]
        after = np.maximum.accumulate(laps[::-1])[::-1][middle + 1] - laps[middle]
        reach = float((before + after).max())
    around = reach + (n_steps + 1) * turn - single
    sums = np.concatenate(([0.0], np.cumsum(np.tile(hop_s, 2))))
    part = n_steps % n
    full = (n_steps // n) * float(hop_s.sum())
    through = full + float((sums[part : part + n] - sums[:n]).max()) + turn - single
    return max(around, through)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ring:
    """A stage in which each edge sends in every step and the edges permute the slots."""

    cycles: tuple[IntArray, ...]
    """Edges of each cycle, in its order."""
    connection: IntArray
    edge_bytes: FloatArray
    latency_s: FloatArray
    n_steps: int

    def duration_s(self, rate_Bps: FloatArray) -> float:
        """Return the stage's time when each connection's messages travel at *rate_Bps*."""
        message_s = self.edge_bytes / self.n_steps / rate_Bps[self.connection]
        turn_s = np.bincount(self.connection, message_s).astype(np.float64)[self.connection]
        hop_s = message_s + self.latency_s
        longest, seen = 0.0, set()
        for cycle in self.cycles:
            hop, turn = hop_s[cycle], turn_s[cycle]
            name = hop.tobytes() + turn.tobytes()
            if name not in seen:
                seen.add(name)
                longest = max(longest, ring_time(hop, turn, message_s[cycle], self.n_steps))
        return longest
