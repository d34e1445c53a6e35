"""Two levels: rings inside nodes and rings between nodes, and the same on a plain grid."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from simulator.base.errors import Problem, ScheduleError
from simulator.collectives.call import Call, Layout
from simulator.collectives.registry import algorithm
from simulator.collectives.schedule import Schedule
from simulator.collectives.split import channel_major, part_major, whole
from simulator.collectives.stages import Rings, finish, ring_stage, single_step

__all__: list[str] = []

IntArray = NDArray[np.int64]
_CHO = (
    "M. Cho, U. Finkler, M. Serrano, D. Kung and H. Hunter, BlueConnect: decomposing all-reduce "
    "for deep learning on heterogeneous network hierarchy, IBM J. Res. Dev. 63 (2019), section 3"
)
_MIKAMI = (
    "H. Mikami et al., Massively distributed SGD: ImageNet/ResNet-50 training in a flash, "
    "arXiv:1811.05233 (2018), section 3.2 (2D-torus all-reduce)"
)
_RAIL = (
    "NVIDIA, Doubling all2all performance with NCCL 2.12 (2022), PXN: exchange inside the node, "
    "then along the rails"
)


def _node_grid(layout: Layout, name: str) -> IntArray:
    """Return the rank at (channel, node, position in the node's chain)."""
    per_node = layout.ranks_per_node
    if per_node is None:
        sizes = np.unique(np.diff(layout.node_starts)).tolist()
        raise ScheduleError(
            Problem(
                message=f"{name} pairs the ranks of all nodes, but nodes have "
                f"{' or '.join(map(str, sizes))} ranks",
                allowed="the same number of ranks on every node; ring or tree take any layout",
            )
        )
    return layout.chain_orders().reshape(layout.n_channels, layout.n_nodes, per_node)


def _square_grid(layout: Layout) -> IntArray:
    """Return ring orders cut into rows as near to a square as the world size divides."""
    n = layout.world_size
    rows = max(d for d in range(1, math.isqrt(n) + 1) if n % d == 0)
    return layout.ring_orders().reshape(layout.n_channels, rows, n // rows)


class _Grid:
    """Rings along both sides of a grid, and the chunks that belong to their positions.

    chunk = (channel × inner + i) × outer + b for the rank at position i of row b.
    """

    def __init__(self, ranks: IntArray) -> None:
        channels, outer, inner = ranks.shape
        self.channels, self.n_outer = channels, outer
        self.inner = Rings.of(ranks.reshape(-1, inner), np.repeat(np.arange(channels), outer))
        self.outer = Rings.of(
            ranks.transpose(0, 2, 1).reshape(-1, outer), np.repeat(np.arange(channels), inner)
        )
        chunk = np.arange(channels * inner * outer).reshape(channels, inner, outer)
        self.outer_start = chunk.reshape(-1, outer)
        self.inner_start = np.repeat(chunk[:, None, :, 0], outer, axis=1).reshape(-1, inner)
        self.order = ranks.transpose(0, 2, 1).reshape(channels, -1)


def _all_reduce(call: Call, name: str, ranks: IntArray) -> Schedule:
    grid = _Grid(ranks)
    chunks = whole(call, ranks.size)
    stages = [
        ring_stage(
            f"{what} {where}",
            rings,
            start,
            count=count,
            shift=-1 if what == "reduce_scatter" else 0,
            reduce=what == "reduce_scatter",
            chunks=chunks,
        )
        for what, where, rings, start, count in (
            ("reduce_scatter", "inside", grid.inner, grid.inner_start, grid.n_outer),
            ("reduce_scatter", "between", grid.outer, grid.outer_start, 1),
            ("all_gather", "between", grid.outer, grid.outer_start, 1),
            ("all_gather", "inside", grid.inner, grid.inner_start, grid.n_outer),
        )
    ]
    return finish(call, name, chunks, stages, n_channels=grid.channels)


def _parts(call: Call, layout: Layout, *, reduce: bool) -> Schedule:
    grid = _Grid(_node_grid(layout, "hierarchical"))
    chunks = channel_major(call, grid.channels, grid.order)
    shift = -1 if reduce else 0
    inside = ring_stage(
        f"{call.collective} inside",
        grid.inner,
        grid.inner_start,
        count=grid.n_outer,
        shift=shift,
        reduce=reduce,
        chunks=chunks,
    )
    between = ring_stage(
        f"{call.collective} between",
        grid.outer,
        grid.outer_start,
        count=1,
        shift=shift,
        reduce=reduce,
        chunks=chunks,
    )
    stages = [inside, between] if reduce else [between, inside]
    return finish(call, "hierarchical", chunks, stages, n_channels=grid.channels)


@algorithm(
    "all_reduce",
    "hierarchical",
    summary="reduce-scatter in the node, all-reduce between nodes, all-gather in the node",
    reference=_CHO,
    formula="2(m−1)·(α + S/(m·B_in)) + 2(N−1)·(α + S/(n·B_out)); m per node, N nodes, n = m·N",
)
def hierarchical_all_reduce(call: Call, layout: Layout) -> Schedule:
    """Return 2(m − 1) + 2(N − 1) steps; each rank sends 2(N − 1)/n·S between nodes.

    Raises
    ------
    ScheduleError
        If nodes differ in their number of ranks.
    """
    return _all_reduce(call, "hierarchical", _node_grid(layout, "hierarchical"))


@algorithm(
    "all_reduce",
    "two_d",
    summary="the hierarchical all-reduce on a grid as near to a square as possible",
    reference=_MIKAMI,
    formula="2(X−1)·(α + S/(X·B)) + 2(Y−1)·(α + S/(n·B)); n = X·Y",
)
def two_d_all_reduce(call: Call, layout: Layout) -> Schedule:
    """Return 2(X − 1) + 2(Y − 1) steps on X columns and Y ≤ X rows; a prime world is one ring.

    Rows are runs of the channel's ring order; nodes are not looked at.
    """
    return _all_reduce(call, "two_d", _square_grid(layout))


@algorithm(
    "all_gather",
    "hierarchical",
    summary="all-gather between nodes among like ranks, then inside the node",
    reference=_CHO,
    formula="(N−1)·(α + S/(n·B_out)) + (m−1)·(α + S/(m·B_in))",
)
def hierarchical_all_gather(call: Call, layout: Layout) -> Schedule:
    """Return N − 1 + m − 1 steps; refuses like `hierarchical_all_reduce`."""
    return _parts(call, layout, reduce=False)


@algorithm(
    "reduce_scatter",
    "hierarchical",
    summary="reduce-scatter inside the node, then between nodes among like ranks",
    reference=_CHO,
    formula="(m−1)·(α + S/(m·B_in)) + (N−1)·(α + S/(n·B_out))",
)
def hierarchical_reduce_scatter(call: Call, layout: Layout) -> Schedule:
    """Return m − 1 + N − 1 steps; refuses like `hierarchical_all_reduce`."""
    return _parts(call, layout, reduce=True)


@algorithm(
    "all_to_all",
    "hierarchical",
    summary="collect inside the node what goes to like ranks, then exchange along the rails",
    reference=_RAIL,
    formula="(m−1)·(α + S/(m·B_in)) + (N−1)·(α + S/(N·B_out))",
)
def hierarchical_all_to_all(call: Call, layout: Layout) -> Schedule:
    """Return m − 1 + N − 1 steps; messages between nodes hold m parts.

    Raises
    ------
    ScheduleError
        If nodes differ in their number of ranks.
    """
    _, nodes, m = _node_grid(layout, "hierarchical").shape
    n = call.world_size
    chunks = part_major(call)
    rank = np.arange(n, dtype=np.int64)
    node, local = np.divmod(rank, m)

    def inside(dst: IntArray) -> Callable[[], IntArray]:
        def start() -> IntArray:
            to = np.arange(nodes) * m + dst[:, None] % m
            return np.asarray(rank[:, None] * n + to).ravel()

        return start

    def between(dst: IntArray) -> Callable[[], IntArray]:
        def start() -> IntArray:
            of = node[:, None] * m + np.arange(m)
            return np.asarray(of * n + dst[:, None]).ravel()

        return start

    stages = []
    for shift in range(1, m):
        dst = node * m + (local + shift) % m
        stages.append(
            single_step(
                f"inside, shift {shift}",
                rank,
                dst,
                start=inside(dst),
                count=1,
                reduce=False,
                chunks=chunks,
                pieces=nodes,
            )
        )
    for shift in range(1, nodes):
        dst = (rank + shift * m) % n
        stages.append(
            single_step(
                f"between, shift {shift}",
                rank,
                dst,
                start=between(dst),
                count=1,
                reduce=False,
                chunks=chunks,
                pieces=m,
            )
        )
    return finish(call, "hierarchical", chunks, stages)
