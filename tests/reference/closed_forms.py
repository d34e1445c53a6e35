"""Times known from pencil and paper, derived from the model's rules alone.

Letters: n ranks, S size in bytes, m bytes of one message, B bytes/s of a connection, L its latency
(last byte out to first use), d = m / B, k pieces of a pipeline, C channels on one connection, K
steps.  Every form assumes that connections do not share links unless it says so.  Pure Python.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

__all__ = [
    "binary_tree_pipelined",
    "bruck_all_gather",
    "bruck_all_to_all",
    "chain_pipelined",
    "channels_on_a_ring",
    "dissemination_barrier",
    "dumbbell_of_three",
    "halving_doubling_all_reduce",
    "hierarchical_all_reduce",
    "max_plus_apply",
    "max_plus_power",
    "max_plus_product",
    "max_plus_ring",
    "pairwise_all_to_all",
    "recursive_doubling",
    "recursive_doubling_all_gather",
    "recursive_halving_reduce_scatter",
    "ring_all_gather",
    "ring_all_reduce",
    "ring_late_ranks",
    "two_flows_on_one_link",
]

# --- rings ------------------------------------------------------------------------------------


def ring_all_gather(n: int, size_bytes: float, rate_Bps: float, latency_s: float) -> float:
    """Ring all_gather or reduce_scatter of S bytes in total: (n−1)(L + S/(nB)).

    Each of n−1 steps moves one n-th of the buffer over every edge.  A rank's step ends when its
    part has left (d later) and its neighbour's has arrived (d + L later); all ranks are equal, so
    every step takes d + L.
    """
    return (n - 1) * (latency_s + size_bytes / (n * rate_Bps))


def ring_all_reduce(n: int, size_bytes: float, rate_Bps: float, latency_s: float) -> float:
    """Ring all_reduce: reduce_scatter, then all_gather: 2(n−1)(L + S/(nB))."""
    return 2 * ring_all_gather(n, size_bytes, rate_Bps, latency_s)


def channels_on_a_ring(n_steps: int, n_channels: int, d_s: float, latency_s: float) -> float:
    """K ring steps with C channels on one connection per hop.

    (K−1)·P + C·d + L with the period P = max(C·d, d + L).

    Channel c of step 0 leaves at (c+1)·d: the channels queue.  Suppose that it leaves at
    s·P + (c+1)·d in step s.  All ranks are equal, so it arrives at s·P + (c+1)·d + L, and then the
    next step of channel c may start.  The connection is free for channel c after channel c−1 of
    step s+1, or, for c = 0, after channel C−1 of step s.  So channel 0 leaves at
    s·P + max(d + L, C·d) + d = (s+1)·P + d, and channel c at
    max(s·P + (c+1)·d + L, (s+1)·P + c·d) + d = (s+1)·P + (c+1)·d, because d + L ≤ P.  The last
    one, c = C−1 in step K−1, arrives L later.

    The slope in K is the well-known max(C·d, d + L).  K times the slope alone, without the last
    message's C·d + L − P, is off by L (bandwidth bound) or (C−1)·d (latency bound).
    """
    period_s = max(n_channels * d_s, d_s + latency_s)
    return (n_steps - 1) * period_s + n_channels * d_s + latency_s


def ring_late_ranks(
    starts_s: Sequence[float], n_steps: int, d_s: float, latency_s: float
) -> list[float]:
    """End of each rank of a uniform one-channel ring whose ranks start at different times.

    t_r(k) = max over j = 0 … k of (s_{r−j} + k·d + j·L), with r − j modulo n.

    In each step a rank waits for its own send (d) and for its left neighbour's (d + L):
    t_r(k+1) = max(t_r(k) + d, t_{r−1}(k) + d + L).  A path that crosses j of the k steps from left
    to right costs k·d + j·L and starts at rank r−j.  With L = 0 and k ≥ n−1 all ranks end at
    max(s) + k·d.
    """
    n = len(starts_s)
    return [
        max(starts_s[(r - j) % n] + n_steps * d_s + j * latency_s for j in range(n_steps + 1))
        for r in range(n)
    ]


Matrix = list[list[float]]


def max_plus_product(a: Matrix, b: Matrix) -> Matrix:
    """Return a ⊗ b: (a ⊗ b)[i][j] = max over k of a[i][k] + b[k][j]."""
    return [[max(x + b[k][j] for k, x in enumerate(row)) for j in range(len(b[0]))] for row in a]


def max_plus_power(a: Matrix, exponent: int) -> Matrix:
    """Return a ⊗ a ⊗ … ⊗ a by squaring; the unit has 0 on its diagonal and −∞ elsewhere."""
    n = len(a)
    power = [[0.0 if i == j else -math.inf for j in range(n)] for i in range(n)]
    while exponent:
        if exponent % 2:
            power = max_plus_product(power, a)
        a = max_plus_product(a, a)
        exponent //= 2
    return power


def max_plus_apply(a: Matrix, x: Sequence[float]) -> list[float]:
    """Return a ⊗ x."""
    return [max(row[k] + x[k] for k in range(len(x))) for row in a]


def max_plus_ring(
    starts_s: Sequence[float], n_steps: int, d_s: Sequence[float], latency_s: Sequence[float]
) -> list[float]:
    """End of each rank of a heterogeneous one-channel ring; edge i goes from i to i+1 mod n.

    One step is the max-plus matrix M with M[i][i] = d_i (the own send must leave) and
    M[i][i−1] = d_{i−1} + L_{i−1} (the neighbour's must arrive); K steps are M to the power K.
    """
    n = len(starts_s)
    step = [[-math.inf] * n for _ in range(n)]
    for i in range(n):
        left = (i - 1) % n
        step[i][i] = d_s[i]
        step[i][left] = max(step[i][left], d_s[left] + latency_s[left])
    return max_plus_apply(max_plus_power(step, n_steps), starts_s)


# --- chains and trees -------------------------------------------------------------------------


def chain_pipelined(n: int, k: int, d_s: float, latency_s: float) -> float:
    """Broadcast of k pieces along a chain of n ranks: (n−1)(d + L) + (k−1)·d.

    The first piece crosses n−1 hops, each d + L; the others follow d apart.  In lockstep terms:
    T_i(s) = max(T_i(s−1) + d, T_{i−1}(s−1) + d + L) = s·d + i·L once rank i is busy, and the last
    piece is sent by rank n−2 in step k−1 + n−2.
    """
    return (n - 1) * (d_s + latency_s) + (k - 1) * d_s


def binary_tree_pipelined(
    depth: int, k: int, d_s: float, latency_s: float, *, shared_egress: bool
) -> float:
    """Broadcast of k pieces down a complete binary tree whose leaves are `depth` hops away.

    Two children on two links: as a chain of depth + 1 ranks, depth·(d + L) + (k−1)·d.  Both
    copies out of one link (a NIC): they share it, so each takes 2d: depth·(2d + L) + (k−1)·2d.
    Down to the leaves all ranks of one level act alike.  A reduction up the tree takes the same
    time, with the shared link at the parent's ingress.
    """
    return chain_pipelined(depth + 1, k, 2 * d_s if shared_egress else d_s, latency_s)


# --- logarithmic ------------------------------------------------------------------------------


def halving_doubling_all_reduce(
    n: int, size_bytes: float, rate_Bps: float, latency_s: float
) -> float:
    """p = 2^q ≤ n < 2p: 2·q·L + 2·(1 − 1/p)·S/B, and 2·(L + S/B) more unless n = p.

    Step i of the reduce_scatter exchanges S/2^(i+1) bytes; S/2 + S/4 + … + S/p = S(1 − 1/p).  The
    all_gather is its mirror image.  n − p ranks give their S bytes to a neighbour before and get
    the result after it.  (Thakur, Rabenseifner, Gropp 2005, sections 4.4 and 4.5.)
    """
    q = n.bit_length() - 1
    p = 2**q
    exchange_s = 2 * q * latency_s + 2 * (1 - 1 / p) * size_bytes / rate_Bps
    return exchange_s + (2 * (latency_s + size_bytes / rate_Bps) if n > p else 0.0)


def recursive_doubling(n: int, size_bytes: float, rate_Bps: float, latency_s: float) -> float:
    """all_reduce by exchange of the whole buffer, p = 2^q ≤ n: q·(L + S/B), n ≠ p: q + 2 such."""
    q = n.bit_length() - 1
    return (q + (2 if n > 2**q else 0)) * (latency_s + size_bytes / rate_Bps)


def recursive_doubling_all_gather(
    n: int, size_bytes: float, rate_Bps: float, latency_s: float
) -> float:
    """all_gather of S bytes in total, of n parts of S/n.

    With r = n − 2^q the first r of the p = 2^q vertices have two parts, one of them from their
    extra rank (a step of one part).  At distance d the largest message comes from a vertex of the
    first d: d + min(d, r) parts.  At last an extra rank gets the n − 1 parts of the others.
    (Thakur, Rabenseifner, Gropp 2005, section 4.1, with the fold of section 4.5.)
    """
    q = n.bit_length() - 1
    r = n - 2**q
    parts = sum(2**k + min(2**k, r) for k in range(q)) + (1 + n - 1 if r else 0)
    return (q + (2 if r else 0)) * latency_s + parts / n * size_bytes / rate_Bps


def recursive_halving_reduce_scatter(
    n: int, size_bytes: float, rate_Bps: float, latency_s: float
) -> float:
    """The all_gather backwards, but that an extra rank gives all n parts, its own too."""
    more_s = size_bytes / n / rate_Bps if n & (n - 1) else 0.0
    return recursive_doubling_all_gather(n, size_bytes, rate_Bps, latency_s) + more_s


def bruck_all_gather(n: int, size_bytes: float, rate_Bps: float, latency_s: float) -> float:
    """all_gather of S bytes in total: ⌈log2 n⌉·L + (n−1)/n·S/B.

    Round j hands on min(2^j, n − 2^j) parts of S/n bytes; together n−1 parts.  (Bruck et al. 1997.)
    """
    return math.ceil(math.log2(n)) * latency_s + (n - 1) / n * size_bytes / rate_Bps


def bruck_all_to_all(n: int, part_bytes: float, rate_Bps: float, latency_s: float) -> float:
    """all_to_all with parts of b bytes: Σ over rounds j of (L + b/B·#{i < n: bit j of i is set}).

    (Bruck et al. 1997, index algorithm with radix 2.)
    """
    total_s = 0.0
    for j in range(max(n - 1, 0).bit_length()):
        parts = sum(1 for i in range(n) if i >> j & 1)
        total_s += latency_s + parts * part_bytes / rate_Bps
    return total_s


def pairwise_all_to_all(n: int, part_bytes: float, rate_Bps: float, latency_s: float) -> float:
    """n−1 steps, in step i rank r sends b bytes to r+i: (n−1)(L + b/B).

    Each step is a permutation, so that on a star every up- and downlink carries one message.
    """
    return (n - 1) * (latency_s + part_bytes / rate_Bps)


def dissemination_barrier(n: int, latency_s: float) -> float:
    """Empty messages over distances 1, 2, 4, …: ⌈log2 n⌉·L.  (Hensgen, Finkel, Manber 1988.)"""
    return math.ceil(math.log2(n)) * latency_s


# --- sharing ----------------------------------------------------------------------------------


def two_flows_on_one_link(
    first_bytes: float, second_bytes: float, rate_Bps: float, later_s: float = 0.0
) -> tuple[float, float]:
    """Leave times of two messages on one link, the second of which starts `later_s` later.

    Alone, the first has moved later_s·B when the second starts (or has left).  From then on both
    move at B/2 until the smaller rest is gone, after 2·min/B; all bytes are gone after sum/B.
    """
    rest_bytes = first_bytes - later_s * rate_Bps
    if rest_bytes <= 0:
        return first_bytes / rate_Bps, later_s + second_bytes / rate_Bps
    both_s = later_s + 2 * min(rest_bytes, second_bytes) / rate_Bps
    all_s = later_s + (rest_bytes + second_bytes) / rate_Bps
    return (both_s, all_s) if rest_bytes <= second_bytes else (all_s, both_s)


def dumbbell_of_three(
    size_bytes: Sequence[float], a_Bps: float, b_Bps: float
) -> tuple[float, float, float]:
    """Leave times of a long flow over links A and B, one over A alone and one over B alone.

    Max-min, exactly, with fractions: while all three run, the narrower link gives half of itself
    to the long flow, and the short flow on the wider link takes what is left there.  After each
    end the same holds with the flows that remain.
    """
    over = ((0, 1), (0,), (1,))
    capacity = (Fraction(a_Bps), Fraction(b_Bps))
    rest = [Fraction(size) for size in size_bytes]
    leave = [Fraction(0)] * 3
    now, running = Fraction(0), {flow for flow in range(3) if rest[flow] > 0}
    while running:
        users = [[flow for flow in running if link in over[flow]] for link in (0, 1)]
        rate = dict.fromkeys(running, Fraction(0))
        if 0 in running:
            rate[0] = min(capacity[link] / len(users[link]) for link in (0, 1))
        for flow in running - {0}:
            rate[flow] = capacity[over[flow][0]] - rate.get(0, Fraction(0))
        span = min(rest[flow] / rate[flow] for flow in running)
        now += span
        for flow in list(running):
            rest[flow] -= rate[flow] * span
            if rest[flow] == 0:
                leave[flow] = now
                running.remove(flow)
    return float(leave[0]), float(leave[1]), float(leave[2])


# --- hierarchies ------------------------------------------------------------------------------


def hierarchical_all_reduce(
    local: int,
    n_nodes: int,
    size_bytes: float,
    local_Bps: float,
    local_latency_s: float,
    rail_Bps: float,
    rail_latency_s: float,
) -> float:
    """2-D all_reduce with a rail per local rank, rings in both dimensions.

    reduce_scatter in the node, all_reduce of S/local along each rail, all_gather in the node:
    2(g−1)(L1 + S/(g·B1)) + 2(N−1)(L2 + S/(g·N·B2)).  Uniform, so that all ranks pass from one
    phase to the next at one instant.
    """
    inside_s = ring_all_reduce(local, size_bytes, local_Bps, local_latency_s)
    return inside_s + ring_all_reduce(n_nodes, size_bytes / local, rail_Bps, rail_latency_s)
