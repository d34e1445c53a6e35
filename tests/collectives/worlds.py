"""Calls and layouts over which every algorithm is tested."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from simulator.collectives import Call, Layout

WORLDS = (*range(1, 10), 16, 17, 32)
ROOTED = ("broadcast", "reduce", "gather", "scatter")
COUNTED = ("all_gather", "reduce_scatter", "gather", "scatter", "all_to_allv")


def node_splits(n: int) -> Iterator[np.ndarray | None]:
    """One node; a rank per node; pairs; fours; nodes of very different size."""
    yield None
    yield np.arange(n)
    yield np.arange(n) // 2
    yield np.arange(n) // 4
    yield np.repeat([0, 1, 2], [min(n, 1), min(3, max(n - 1, 0)), max(n - 4, 0)])


def layouts(n: int) -> Iterator[Layout]:
    """All node splits, with 1, 2 and 3 channels in turn and own ring and chain orders."""
    rng = np.random.default_rng(n)
    for index, nodes in enumerate(node_splits(n)):
        if nodes is not None:
            nodes = np.unique(nodes, return_inverse=True)[1]
        channels = 1 + (index + n) % 3
        home = np.zeros(n, dtype=int) if nodes is None else nodes
        # Ranks shuffled within their nodes: sort by (node, random).
        chains = [np.lexsort((rng.random(n), home)) for _ in range(channels)]
        own = index % 2 == 1
        yield Layout(
            world_size=n,
            nodes=nodes,
            n_channels=channels,
            rings=np.array([rng.permutation(n) for _ in range(channels)]) if own else None,
            chains=np.array(chains) if own else None,
            pipeline_bytes=(64, 10_000)[index % 2],
        )


def calls(collective: str, n: int) -> Iterator[Call]:
    """Nothing, fewer bytes than ranks, sizes that do and do not divide, roots, uneven counts."""
    if collective == "barrier":
        yield Call(collective=collective, world_size=n, size_bytes=0)
        return
    roots = sorted({0, n // 2, n - 1}) if collective in ROOTED else [0]
    sizes = [(0, 1), (3, 1), (48 * n, 1), (1000, 4), (1003, 4)]
    for index, (size, element) in enumerate(sizes):
        yield Call(
            collective=collective,
            world_size=n,
            size_bytes=size,
            element_bytes=element,
            root=roots[index % len(roots)],
        )
    if collective in COUNTED:
        shape = (n, n) if collective == "all_to_allv" else n
        counts = np.random.default_rng(n).integers(0, 50, size=shape)
        counts[0] = 0
        yield Call(
            collective=collective,
            world_size=n,
            size_bytes=int(counts.sum()) // (n if collective == "all_to_allv" else 1),
            counts_bytes=counts,
            root=roots[-1],
        )


def must_refuse(algorithm: str, layout: Layout, collective: str = "all_reduce") -> bool:
    """What each algorithm documents as its refusals."""
    sizes = np.bincount(layout.node_of_rank)
    if layout.world_size == 1:
        return False
    if algorithm == "hierarchical":
        return len(set(sizes)) > 1
    if algorithm == "nvls":
        return len(sizes) > 1
    uneven = collective != "all_reduce" and len(set(sizes)) > 1
    if algorithm in ("nvls_tree", "nvls_sharp"):
        return len(sizes) == 1 or sizes.min() < 2 or uneven
    if algorithm in ("collnet_chain", "collnet_direct"):
        return len(sizes) == 1 or uneven
    return False
