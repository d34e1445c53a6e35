"""Collectives and algorithms that a calibrated profile's file may name.

Those of `simulator.collectives`, which knows no costs, as costs know no collectives.
"""

from __future__ import annotations

__all__ = ["ALGORITHMS", "COLLECTIVES"]

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
ALGORITHMS = (
    "all_reduce",
    "bidirectional_ring",
    "binomial",
    "bruck",
    "collnet_chain",
    "collnet_direct",
    "direct",
    "dissemination",
    "double_binary_tree",
    "halving_doubling",
    "halving_gather",
    "hierarchical",
    "naive",
    "neighbor_exchange",
    "nvls",
    "nvls_sharp",
    "nvls_tree",
    "pairwise",
    "pat",
    "recursive_doubling",
    "recursive_halving",
    "ring",
    "ring_gather",
    "scatter_allgather",
    "scatter_allgather_ring",
    "tree",
    "two_d",
)
