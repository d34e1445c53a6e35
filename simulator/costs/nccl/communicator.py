"""What the tuning model and the launch know about a communicator, and its channel counts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from simulator.base.errors import Problem, ScenarioError
from simulator.costs.nccl.environment import NcclEnvironment
from simulator.costs.nccl.graph import ChannelGraph, generation_of
from simulator.costs.nccl.tables import since
from simulator.costs.nccl.version import NcclVersion

__all__ = ["CPUS", "TuningInput", "collective_channels", "nvls_channels"]

CPUS = ("x86_intel", "x86_amd", "arm", "power")
"""CPU kinds NCCL tells apart here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TuningInput:
    """A communicator as NCCL's tuning model sees it.

    Raises
    ------
    ScenarioError
        No ranks or nodes, fewer ranks than nodes, no ring graph, unknown CPU.
    """

    version: NcclVersion
    n_ranks: int
    n_nodes: int
    """Nodes as NCCL counts them: a multi-node NVLink domain is one."""
    min_sm: int
    """Smallest compute capability ×10 of all ranks."""
    max_sm: int
    cpu: str
    """One of `CPUS`."""
    graphs: Mapping[str, ChannelGraph]
    """By algorithm: ``ring``, ``tree``, and where they exist ``nvls``, ``collnet_chain``,
    ``collnet_direct``.  ``nvls_tree`` uses ``nvls``, ``pat`` uses ``ring``."""
    n_channels: int = 0
    """Collective channels of the communicator; 0: from the graphs (`collective_channels`)."""
    nvswitch: bool = False
    """GPUs are joined by NVSwitch."""
    multicast: bool = True
    """Driver and NVSwitch can multicast (NVLS), where generation and count allow it."""
    collnet: bool = False
    """A collective network plugin is there (SHARP)."""
    nvls_node: bool = True
    """All ranks of a node are in one NVLink domain."""
    environment: NcclEnvironment = field(default_factory=NcclEnvironment)

    def __post_init__(self) -> None:
        if self.n_nodes < 1 or self.n_ranks < self.n_nodes:
            raise ScenarioError(f"{self.n_ranks} ranks on {self.n_nodes} nodes")
        if self.cpu not in CPUS:
            raise ScenarioError(
                Problem(message=f"unknown CPU {self.cpu!r}", allowed=", ".join(CPUS))
            )
        if self.n_ranks > 1 and not {"ring", "tree"} <= set(self.graphs):
            raise ScenarioError("the tuning model needs a ring and a tree graph")

    @property
    def ranks_per_node(self) -> float:
        """Ranks divided by nodes, not rounded."""
        return self.n_ranks / self.n_nodes

    @property
    def generation(self) -> str:
        """NCCL's generation of the oldest GPU."""
        return generation_of(self.min_sm)

    @property
    def channels(self) -> int:
        """Collective channels of the communicator."""
        return self.n_channels or collective_channels(self)

    def graph(self, algorithm: str) -> ChannelGraph | None:
        """Return the graph an algorithm runs on, or None."""
        shared = {"nvls_tree": "nvls", "pat": "ring"}
        if algorithm == "collnet_direct" and algorithm not in self.graphs:
            # Before 2.20 both CollNet algorithms used one graph.
            return self.graphs.get("collnet_chain")
        return self.graphs.get(shared.get(algorithm, algorithm))


def collective_channels(inp: TuningInput) -> int:
    """Return the channels a communicator has for collectives.

    The smaller of ring and tree graph, doubled so that both trees exist, grown for CollNet and on
    SM90 between nodes, then limited and filled by the environment.

    References
    ----------
    NCCL 2.21 src/graph/connect.cc, ncclTopoPostset.
    """
    if inp.n_ranks <= 1:
        return 1
    most = int(since("tuning", "max_channels", inp.version)["count"])
    ring, tree = inp.graphs["ring"], inp.graphs["tree"]
    count = min(most, 2 * min(ring.n_channels, tree.n_channels))
    chain = inp.graph("collnet_direct")
    if (
        inp.collnet
        and chain is not None
        and chain.bw_intra_GBps > chain.bw_inter_GBps
        and inp.n_ranks > inp.n_nodes
    ):
        count = min(most, count + count // 2)
    room = count < 16 if inp.version.since(2, 19) else 2 * count <= most
    sm90 = inp.min_sm >= 90 if inp.version.since(2, 25) else inp.min_sm == 90
    if inp.version.since(2, 18) and sm90 and inp.n_nodes > 1 and ring.bw_intra_GBps > 45.0 and room:
        count = min(most, 2 * count)
    count = min(count, inp.environment.integer("NCCL_MAX_NCHANNELS", most))
    return max(count, min(most, inp.environment.integer("NCCL_MIN_NCHANNELS", 0)))


def nvls_channels(inp: TuningInput) -> int:
    """Return the channels NVLS uses for every call; the sizes do not matter.

    References
    ----------
    NCCL 2.27 src/transport/nvls.cc.
    """
    row = since("tuning", "nvls_channels", inp.version)
    if inp.min_sm < 100:
        count = int(row["hopper"])
    else:
        count = int(row["blackwell_nodes" if inp.n_nodes > 1 else "blackwell_domain"])
    most = int(since("tuning", "max_channels", inp.version)["count"])
    environment = inp.environment
    count = environment.integer("NCCL_NVLS_NCHANNELS", count)
    count = min(count, environment.integer("NCCL_MAX_NCHANNELS", most))
    return max(count, min(most, environment.integer("NCCL_MIN_NCHANNELS", 0)))
