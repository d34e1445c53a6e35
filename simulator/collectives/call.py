"""The arguments of an algorithm: the call (what) and the layout (where the ranks sit)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulator.base.errors import Problem, ScheduleError

__all__ = ["Call", "Layout"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One collective call.

    Raises
    ------
    ScheduleError
        World size below 1, negative size, a root outside the world, or uneven counts that do not
        fit the collective, the world or the size.
    """

    collective: str
    """``all_reduce``, ``all_gather``, ``reduce_scatter``, ``broadcast``, ``reduce``,
    ``all_to_all``, ``all_to_allv``, ``gather``, ``scatter``, ``send_recv``, ``barrier``."""
    world_size: int
    size_bytes: int
    """nccl-tests' S: the buffer of all_reduce, broadcast, reduce and send_recv; the *total*
    buffer (world_size × per-rank part) of all_gather, reduce_scatter, all_to_all, gather and
    scatter; the sum over all pairs divided by world_size for all_to_allv; 0 for barrier."""
    root: int = 0
    element_bytes: int = 1
    """Chunk borders fall on multiples of this."""
    counts_bytes: NDArray[np.int64] | None = None
    """Uneven parts: shape (world_size,) for all_gather, reduce_scatter, gather and scatter
    (bytes of each rank's part); shape (world_size, world_size) for all_to_allv
    (``counts[src, dst]``)."""

    def __post_init__(self) -> None:
        if self.world_size < 1:
            raise ScheduleError(f"world size {self.world_size}: at least one rank is needed")
        if self.size_bytes < 0:
            raise ScheduleError(f"size {self.size_bytes} B is negative")
        if not 0 <= self.root < self.world_size:
            raise ScheduleError(
                f"root {self.root} is outside the world: ranks are 0 … {self.world_size - 1}"
            )
        if self.element_bytes < 1:
            raise ScheduleError(f"elements of {self.element_bytes} B: at least 1 B is needed")
        if self.counts_bytes is not None:
            self._check_counts(self.counts_bytes)

    def _check_counts(self, counts: NDArray[np.int64]) -> None:
        n = self.world_size
        if self.collective == "all_to_allv":
            shape: tuple[int, ...] = (n, n)
            total = int(counts.sum()) // n
        elif self.collective in ("all_gather", "reduce_scatter", "gather", "scatter"):
            shape = (n,)
            total = int(counts.sum())
        else:
            raise ScheduleError(
                Problem(
                    message=f"{self.collective} takes no uneven counts",
                    allowed="all_gather, all_to_allv, gather, reduce_scatter, scatter",
                )
            )
        if counts.shape != shape:
            raise ScheduleError(
                Problem(
                    message=f"counts of shape {counts.shape} for {self.collective} of {n} ranks",
                    allowed=f"shape {shape}",
                )
            )
        if counts.min() < 0:
            raise ScheduleError(f"count {int(counts.min())} B is negative")
        if total != self.size_bytes:
            raise ScheduleError(
                Problem(
                    message=f"the counts make {total} B, the size is {self.size_bytes} B",
                    allowed="a size equal to the sum of the counts (divided by the world size for "
                    "all_to_allv)",
                )
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Where ranks sit and how algorithms may use them.

    Everything has a default that means: one flat node, rank order, one channel.
    """

    world_size: int
    nodes: NDArray[np.int64] | None = None
    """Node of each rank, shape (world_size,), non-decreasing from 0; None: one node."""
    n_channels: int = 1
    rings: NDArray[np.int64] | None = None
    """Rank order of the ring of each channel, shape (n_channels, world_size); default: ranks
    in order on every channel."""
    chains: NDArray[np.int64] | None = None
    """Order of the ranks inside their nodes for trees, shape (n_channels, world_size): the ranks
    of node 0 first, then node 1 …; the first of each node faces the network."""
    pipeline_bytes: int = 512 * 1024
    """Target chunk of pipelined algorithms (trees, chains)."""

    def __post_init__(self) -> None:
        n = self.world_size
        if self.n_channels < 1:
            raise ScheduleError(f"{self.n_channels} channels: at least one is needed")
        if self.pipeline_bytes < 1:
            raise ScheduleError(f"pipeline chunk of {self.pipeline_bytes} B: at least 1 B")
        if self.nodes is not None:
            steps = np.diff(self.nodes)
            if (
                self.nodes.shape != (n,)
                or self.nodes[0] != 0
                or (len(steps) and (steps.min() < 0 or steps.max() > 1))
            ):
                raise ScheduleError(
                    Problem(
                        message="the node of each rank is not given as 0, 0, …, 1, 1, …",
                        allowed=f"{n} numbers from 0 that grow by 0 or 1",
                    )
                )
        for what, orders in (("ring", self.rings), ("chain", self.chains)):
            if orders is not None:
                _check_orders(what, orders, n)
        if self.chains is not None and self.nodes is not None:
            moved = (self.nodes[self.chains] != self.nodes).any(axis=1)
            if moved.any():
                raise ScheduleError(
                    f"chain {int(np.argmax(moved))} does not list the ranks node by node"
                )

    @property
    def node_of_rank(self) -> NDArray[np.int64]:
        """Node of each rank, shape (world_size,)."""
        return np.zeros(self.world_size, dtype=np.int64) if self.nodes is None else self.nodes

    @property
    def n_nodes(self) -> int:
        """Number of nodes."""
        return 1 if self.nodes is None else int(self.nodes[-1]) + 1

    @property
    def node_starts(self) -> NDArray[np.int64]:
        """First rank of each node and the world size, shape (n_nodes + 1,)."""
        return np.searchsorted(self.node_of_rank, np.arange(self.n_nodes + 1)).astype(np.int64)

    @property
    def ranks_per_node(self) -> int | None:
        """Ranks on every node, or None when nodes differ."""
        sizes = np.diff(self.node_starts)
        return int(sizes[0]) if (sizes == sizes[0]).all() else None

    def ring_orders(self, n_channels: int | None = None) -> NDArray[np.int64]:
        """Return the rank order of each channel's ring, shape (n_channels, world_size).

        More channels than orders reuse the orders from the first on.
        """
        return self._orders(self.rings, n_channels)

    def chain_orders(self, n_channels: int | None = None) -> NDArray[np.int64]:
        """Return the in-node order of each channel, shape (n_channels, world_size)."""
        return self._orders(self.chains, n_channels)

    def _orders(
        self, orders: NDArray[np.int64] | None, n_channels: int | None
    ) -> NDArray[np.int64]:
        count = self.n_channels if n_channels is None else n_channels
        if orders is None:
            orders = np.arange(self.world_size, dtype=np.int64)[None, :]
        if len(orders) == count:
            return orders
        return np.asarray(orders[np.arange(count) % len(orders)])


def _check_orders(what: str, orders: NDArray[np.int64], n: int) -> None:
    if orders.ndim != 2 or len(orders) == 0 or orders.shape[1] != n:
        raise ScheduleError(
            Problem(
                message=f"{what} orders of shape {orders.shape}",
                allowed=f"one row of {n} ranks per channel",
            )
        )
    for channel, row in enumerate(orders):
        seen = np.bincount(row, minlength=n) if row.min() >= 0 else row[:0]
        if len(seen) != n or (seen != 1).any():
            raise ScheduleError(
                f"{what} {channel} does not visit each of the ranks 0 … {n - 1} exactly once"
            )
