"""What a GPU's host offers to offloading and checkpoints."""

from __future__ import annotations

import numpy as np

from simulator.compose.cluster import Cluster
from simulator.fabric.model import LINK_KINDS, VERTEX_KINDS
from simulator.training.gpu_time import Host

__all__ = ["host_link_Bps", "host_of"]

MEMORY_SHARE = 0.5
"""Of a host's DRAM bandwidth that streams of several processes reach."""


def host_link_Bps(cluster: Cluster) -> float:
    """Return the slowest GPU's link towards its host per direction; PCIe 4 x16 where none is."""
    fabric = cluster.fabric
    gpu = VERTEX_KINDS.index("gpu")
    kinds = [LINK_KINDS.index(kind) for kind in ("pcie", "nvlink_c2c")]
    from_gpu = np.asarray(fabric.vertex_kind)[np.asarray(fabric.link_src)] == gpu
    towards_host = np.isin(np.asarray(fabric.link_kind), kinds) & from_gpu
    found = np.asarray(fabric.capacity_Bps)[towards_host]
    return float(found.min()) if len(found) else 32e9


def host_of(cluster: Cluster) -> Host:
    """Return one GPU's share of its host: link, DRAM; storage as `Host` assumes."""
    shares = []
    for template in cluster.fabric.templates:
        kinds = [vertex.kind for vertex in template.vertices]
        memory = template.cpu_memory_Bps * kinds.count("cpu")
        shares.append(MEMORY_SHARE * memory / max(1, kinds.count("gpu")))
    memory_Bps = min(shares)
    link_Bps = host_link_Bps(cluster)
    if memory_Bps <= 0:
        return Host(link_Bps=link_Bps)
    return Host(link_Bps=link_Bps, memory_Bps=memory_Bps)
