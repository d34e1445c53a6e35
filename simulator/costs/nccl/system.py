"""A node as NCCL's search sees it: devices, links in NCCL's constants, and what is allowed."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from simulator.base.errors import Problem, TopologyError
from simulator.costs.nccl.communicator import CPUS
from simulator.costs.nccl.environment import NcclEnvironment
from simulator.costs.nccl.graph import PathType
from simulator.costs.nccl.version import NcclVersion

__all__ = ["SearchLink", "SearchOptions", "SearchSystem", "SearchVertex"]

_KINDS = ("gpu", "nvswitch", "pcie_switch", "cpu", "nic")
_LINKS = ("nvlink", "pcie", "c2c", "sys")


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchVertex:
    """A device.  Of each kind the order of the vertices is NCCL's (by PCI bus id)."""

    name: str
    kind: str
    """``gpu``, ``nvswitch``, ``pcie_switch``, ``cpu`` (a NUMA node) or ``nic``."""
    sm: int = 0
    """GPU: compute capability ×10."""
    net_GBps: float = 0.0
    """NIC: port speed, bits/s over eight."""
    card: str | None = None
    """NIC: ports with the same card and port number share their speed; None: its own."""
    latency_us: float = 0.0
    """NIC: latency its plugin states."""
    gpudirect: bool = True
    """NIC or GPU: takes part in GPUDirect RDMA."""
    collnet: bool = False
    """NIC: can reduce in the network."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchLink:
    """A full-duplex link; parallel NVLinks are one link with their sum."""

    a: str
    b: str
    kind: str
    """``nvlink``, ``pcie``, ``c2c`` or ``sys`` (between NUMA nodes)."""
    bandwidth_GBps: float
    """Per direction, in NCCL's constants (`links.nccl_link_GBps`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchOptions:
    """What the environment changes in the search."""

    p2p_level: PathType | None = None
    """Farthest path for direct access between GPUs; None: by CPU and version."""
    shared_memory: bool = True
    nvb: bool = True
    """NVLink through a GPU between."""
    pxn: bool = True
    gdr_level: PathType | None = None
    cross_nic: int = 2
    nvls: bool = True
    collnet: bool = False

    @classmethod
    def from_environment(cls, environment: NcclEnvironment) -> SearchOptions:
        """Return the options that NCCL_* variables ask for."""
        level = environment.level("NCCL_P2P_LEVEL")
        if environment.integer("NCCL_P2P_DISABLE", 0) == 1:
            level = PathType.LOC
        return cls(
            p2p_level=level,
            shared_memory=environment.integer("NCCL_SHM_DISABLE", 0) == 0,
            nvb=environment.integer("NCCL_NVB_DISABLE", 0) == 0,
            pxn=environment.integer("NCCL_PXN_DISABLE", 0) == 0,
            gdr_level=environment.level("NCCL_NET_GDR_LEVEL"),
            cross_nic=environment.integer("NCCL_CROSS_NIC", 2),
            nvls=environment.integer("NCCL_NVLS_ENABLE", 2) != 0,
            collnet=environment.integer("NCCL_COLLNET_ENABLE", 0) == 1,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchSystem:
    """A node with the GPUs of one communicator.

    GPUs that the communicator does not use must not be in it: NCCL does not see them either.

    Raises
    ------
    TopologyError
        No GPU, no CPU, a name twice, an end of a link that does not exist, an unknown kind, or a
        bandwidth that is not positive.
    """

    version: NcclVersion
    vertices: tuple[SearchVertex, ...]
    links: tuple[SearchLink, ...]
    cpu: str
    """Kind of CPU: ``x86_intel``, ``x86_amd``, ``arm`` or ``power``."""
    socket_GBps: float
    """Between any two NUMA nodes (`links.socket_GBps`), where no ``sys`` link is given."""
    gpu_p2p: bool = True
    """The driver lets GPUs reach each other over PCIe; False on most consumer boards."""
    options: SearchOptions = field(default_factory=SearchOptions)

    def __post_init__(self) -> None:
        problems = list(self._problems())
        if problems:
            raise TopologyError(problems)

    def _problems(self) -> list[Problem]:
        found = []
        if self.cpu not in CPUS:
            found.append(
                Problem(message=f"unknown CPU {self.cpu!r}", key="cpu", allowed=", ".join(CPUS))
            )
        kinds = Counter(vertex.kind for vertex in self.vertices)
        found += [
            Problem(message=f"unknown kind of vertex {kind!r}", allowed=", ".join(_KINDS))
            for kind in kinds
            if kind not in _KINDS
        ]
        found += [
            Problem(message=f"the node has no {kind}") for kind in ("gpu", "cpu") if not kinds[kind]
        ]
        names = Counter(vertex.name for vertex in self.vertices)
        found += [Problem(message=f"{name!r} twice") for name, n in names.items() if n > 1]
        for link in self.links:
            found += [
                Problem(message=f"link {link.a} - {link.b}: no vertex {end!r}")
                for end in (link.a, link.b)
                if end not in names
            ]
            if link.kind not in _LINKS:
                found.append(
                    Problem(
                        message=f"link {link.a} - {link.b}: unknown kind {link.kind!r}",
                        allowed=", ".join(_LINKS),
                    )
                )
            if not link.bandwidth_GBps > 0:
                found.append(
                    Problem(message=f"link {link.a} - {link.b}: {link.bandwidth_GBps} GB/s")
                )
        return found

    def of_kind(self, kind: str) -> tuple[SearchVertex, ...]:
        """Return the vertices of a kind, in order."""
        return tuple(vertex for vertex in self.vertices if vertex.kind == kind)

    @property
    def min_sm(self) -> int:
        """Smallest compute capability ×10."""
        return min(vertex.sm for vertex in self.of_kind("gpu"))

    @property
    def max_sm(self) -> int:
        """Largest compute capability ×10."""
        return max(vertex.sm for vertex in self.of_kind("gpu"))
