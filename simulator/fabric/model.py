"""The fabric's contract: node templates, links and vertices as arrays."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "LINK_KINDS",
    "NETWORK_KINDS",
    "VERTEX_KINDS",
    "GpuSpec",
    "NodeTemplate",
    "Routes",
    "TemplateLink",
    "TemplateVertex",
]

VERTEX_KINDS = (
    "gpu",
    "nvswitch",
    "pcie_switch",
    "cpu",
    "nic",
    "leaf",
    "spine",
    "core",
)
LINK_KINDS = (
    "nvlink",
    "nvlink_c2c",
    "xgmi",
    "pcie",
    "upi",
    "infiniband",
    "roce",
    "ethernet",
    "slingshot",
    "efa",
    "memory",
)
"""``memory`` is the DRAM behind a ``cpu`` vertex: a link from the vertex to itself."""
NETWORK_KINDS = ("infiniband", "roce", "ethernet", "slingshot", "efa")
"""Kinds of links that leave a node, and so of its network ports."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSpec:
    """What a GPU model is, as far as communication and the roofline need it."""

    name: str
    generation: str
    """``kepler`` … ``volta turing ampere ada hopper blackwell cdna1 cdna2 cdna3 cdna4``."""
    memory_bytes: int
    memory_Bps: float
    """HBM or GDDR bandwidth, data sheet."""
    peak_flops: dict[str, float]
    """Dense peak by dtype (``fp32 tf32 fp16 bf16 fp8 fp4 int8``), FLOP/s, data sheet."""
    source: str
    compute_units: int = 0
    """Streaming multiprocessors, or AMD's compute units; 0: not known."""
    last_cache_bytes: int = 0
    """Last cache before HBM; 0: not known."""

    @property
    def vendor(self) -> str:
        """``amd``, ``nvidia``, or ``cpu`` for a process without a GPU.

        Examples
        --------
        >>> from topologies.hardware_build import gpu_spec
        >>> gpu_spec("mi300x").vendor, gpu_spec("h100-sxm").vendor
        ('amd', 'nvidia')
        """
        if self.generation.startswith("cdna"):
            return "amd"
        return "cpu" if self.generation == "cpu" else "nvidia"


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateVertex:
    """A vertex inside a node; the name is unique in the node (``gpu0``, ``nic3``, ``cpu1``)."""

    name: str
    kind: str
    numa: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateLink:
    """A full-duplex link inside a node: two directed links of the same bandwidth."""

    a: str
    b: str
    kind: str
    bandwidth_Bps: float
    """Per direction, payload rate of the link before protocol efficiency."""
    latency_s: float
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeTemplate:
    """A node preset: its complete interior."""

    name: str
    summary: str
    gpu: GpuSpec
    vertices: tuple[TemplateVertex, ...]
    links: tuple[TemplateLink, ...]
    nic_kind: str | None
    """Link kind of the network ports (``infiniband``, ``roce``, ``efa``, …); None: no NIC."""
    nic_rate_Bps: float
    """Rate of each network port per direction; 0 without NIC."""
    nic_latency_s: float
    """Time of a NIC between its bus and the wire; counted once at each end of a path."""
    cpu_model: str
    cpu_arch: str
    """``x86_intel``, ``x86_amd``, ``arm`` or ``power``."""
    p2p: bool
    """GPUs may read and write each other over PCIe."""
    gpudirect: bool
    """NICs may read and write GPU memory."""
    source: str
    source_quality: str
    """``vendor`` (data sheet or topology file), ``measured`` or ``weak``."""
    cpu_memory_Bps: float = 0.0
    """DRAM bandwidth of one ``cpu`` vertex, reads and writes together; 0: not a limit.  Traffic
    that is bounced through host memory crosses it twice, once written and once read."""
    cores: int = 0
    """Cores that the ranks' processes share; 0: enough for all."""
    nvl_domain_nodes: int = 1
    """Nodes that share the template's NVSwitches (18 in a GB200 NVL72 rack of 4-GPU trays)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Routes:
    """Paths of many (source, destination) pairs, in CSR over link indices."""

    indptr: NDArray[np.int64]
    link: NDArray[np.int64]
    share: NDArray[np.float64]
    """Share of the pair's bytes on that link: 1, less when split over several paths, 2 on the
    memory link of a host bounce (written and read).  No link stands twice in one pair."""
    latency_s: NDArray[np.float64]
    """Sum of link latencies along the (longest) path, shape (pairs,)."""

    @property
    def n_pairs(self) -> int:
        """Number of (source, destination) pairs."""
        return len(self.indptr) - 1

    def pair(self, index: int) -> tuple[list[int], list[float]]:
        """Return the links of one pair in path order, and their shares."""
        part = slice(int(self.indptr[index]), int(self.indptr[index + 1]))
        return self.link[part].tolist(), self.share[part].tolist()
