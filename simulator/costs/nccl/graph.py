"""What NCCL's graph search returns: path types, patterns, channels with their bandwidths."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from simulator.base.errors import ScenarioError, unknown_name

__all__ = [
    "ALGORITHMS",
    "COLLECTIVES",
    "PROTOCOLS",
    "ChannelGraph",
    "GraphChannel",
    "PathType",
    "Pattern",
    "generation_of",
    "path_type",
]

ALGORITHMS = ("tree", "ring", "collnet_direct", "collnet_chain", "nvls", "nvls_tree", "pat")
"""Algorithms in NCCL's order, which decides ties."""
PROTOCOLS = ("LL", "LL128", "Simple")
"""Protocols in NCCL's order, which decides ties."""
COLLECTIVES = ("broadcast", "reduce", "all_gather", "reduce_scatter", "all_reduce")
"""Collectives with a tuning model; the others are made of send and receive."""


class PathType(IntEnum):
    """How far two devices are apart; smaller is closer (NCCL 2.27 src/graph/topo.h).

    The order is that of 2.27; versions without C2C and P2C have the others in the same order.
    """

    LOC = 0
    NVL = 1
    NVB = 2
    C2C = 3
    PIX = 4
    PXB = 5
    P2C = 6
    PXN = 7
    PHB = 8
    SYS = 9
    NET = 10
    DIS = 11


class Pattern(IntEnum):
    """Search patterns, numbered as in NCCL's log."""

    BALANCED_TREE = 1
    SPLIT_TREE = 2
    TREE = 3
    RING = 4
    NVLS = 5
    COLLNET_DIRECT = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphChannel:
    """One channel inside a node."""

    gpus: tuple[int, ...]
    """Local indices in the order of the ring or chain; of NVLS only the head."""
    net_in: int | None = None
    """Index of the NIC that feeds the first GPU; None on a single node."""
    net_out: int | None = None
    """Index of the NIC that sends on: of the last GPU of a ring, of the first one or two of a
    tree."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelGraph:
    """A graph of NCCL's search: ``nChannels`` channels of equal bandwidth."""

    pattern: Pattern
    n_channels: int
    bw_intra_GBps: float
    """Per channel between GPUs, GB/s."""
    bw_inter_GBps: float
    """Per channel to the network, GB/s; equal to `bw_intra_GBps` on a single node."""
    type_intra: PathType = PathType.NVL
    """The worst path type the search allowed between GPUs."""
    type_inter: PathType = PathType.PIX
    """The worst path type the search allowed between GPU and NIC."""
    latency_inter_us: float = 0.0
    """Latency the network plugin states; 0 for InfiniBand and sockets."""
    same_channels: bool = True
    """Whether all channels have the same order."""
    cross_nic: int = 0
    """0: each ring leaves by the NIC it came in by; otherwise pairs of channels swap NICs."""
    channels: tuple[GraphChannel, ...] = ()
    """Empty when only the numbers are known."""

    @property
    def bandwidth_GBps(self) -> float:
        """Sum over channels inside the node."""
        return self.n_channels * self.bw_intra_GBps

    @property
    def summary(self) -> str:
        """In the form of NCCL's own log line."""
        return (
            f"Pattern {int(self.pattern)}, crossNic {self.cross_nic}, nChannels {self.n_channels}, "
            f"bw {self.bw_intra_GBps:.6f}/{self.bw_inter_GBps:.6f}, "
            f"type {self.type_intra.name}/{self.type_inter.name}, "
            f"sameChannels {int(self.same_channels)}"
        )


def generation_of(sm: int) -> str:
    """Return NCCL's generation of a compute capability ×10.

    Turing (75) counts as Volta, Ada (89) as Ampere.

    Examples
    --------
    >>> [generation_of(sm) for sm in (75, 89, 90, 103)]
    ['volta', 'ampere', 'hopper', 'blackwell']
    """
    for bound, name in ((100, "blackwell"), (90, "hopper"), (80, "ampere")):
        if sm >= bound:
            return name
    return "volta"


def path_type(name: str) -> PathType:
    """Return the path type of NCCL's name for it.

    Raises
    ------
    ScenarioError
        Unknown name.
    """
    try:
        return PathType[name]
    except KeyError:
        raise ScenarioError(
            unknown_name("path type", name, [kind.name for kind in PathType])
        ) from None
