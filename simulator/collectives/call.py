"""The arguments of an algorithm: the call (what) and the layout (where the ranks sit)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulator.base.errors import ScheduleError

__all__ = ["Call", "Layout"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One collective call.

    Raises
    ------
    ScheduleError
        World size below 1, negative size, or a root outside the world.
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

    @property
    def node_of_rank(self) -> NDArray[np.int64]:
        """Node of each rank, shape (world_size,)."""
        return np.zeros(self.world_size, dtype=np.int64) if self.nodes is None else self.nodes

    @property
    def n_nodes(self) -> int:
        """Number of nodes."""
        return 1 if self.nodes is None else int(self.nodes[-1]) + 1
