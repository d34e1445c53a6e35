"""What the user can say about routing."""

from __future__ import annotations

from dataclasses import dataclass

from simulator.base.fields import option
from simulator.base.limits import MOST_SEED

__all__ = ["RoutingOptions"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutingOptions:
    """How traffic finds its way; defaults are those of NCCL on the given node.

    Notes
    -----
    InfiniBand, Slingshot and EFA balance flows over paths (adaptive routing, which NCCL enables on
    InfiniBand and not on RoCE: NCCL_IB_ADAPTIVE_ROUTING; De Sensi et al., SC20; packet spraying,
    Shalev et al., IEEE Micro 40(6), 2020).  Their default here is `static`, which is as free of
    collisions for rings and shifts on a full fat tree, and has one path per flow where `adaptive`
    has up to thousands.  `adaptive` is the better picture where static routes do collide.
    """

    policy: str | None = option(
        "name",
        None,
        choices=("ecmp", "adaptive", "static"),
        doc="Choice among equally short network paths: `ecmp` hashes each flow, `adaptive` "
        "splits each flow over all of them, `static` deals destinations over them. Default: "
        "`ecmp` on RoCE and Ethernet, `static` elsewhere.",
    )
    seed: int = option("count", 0, doc="Seed of the ECMP hash.", maximum=MOST_SEED)
    pxn: bool = option(
        "flag",
        True,
        doc="A GPU hands data over NVLink to the local GPU next to the NIC on the destination's "
        "rail (NCCL_PXN_DISABLE=0).",
    )
    cross_nic: bool = option(
        "flag",
        True,
        doc="Without PXN, source and destination may use NICs of different rails; if not, the "
        "destination receives on the source's rail (NCCL_CROSS_NIC).",
    )
    gpudirect: bool | None = option(
        "flag",
        None,
        doc="NICs read and write GPU memory; off: through host memory. Default: as the node says.",
    )
    gdr_level: str = option(
        "name",
        "pxb",
        choices=("pix", "pxb", "phb", "sys"),
        doc="Farthest GPU–NIC path with GPUDirect: `pix` through one PCIe switch, `pxb` through "
        "several or C2C, `phb` through one CPU, `sys` through several (NCCL_NET_GDR_LEVEL).",
    )
    gdr_read: bool = option(
        "flag",
        True,
        doc="NICs also read GPU memory when they send; off: they only write it when they receive, "
        "and what is sent goes through host memory (NCCL_NET_GDR_READ).",
    )
    p2p: bool | None = option(
        "flag",
        None,
        doc="GPUs read and write each other. Off: through host memory, NVLink unused too "
        "(NCCL_P2P_DISABLE=1); on: also over PCIe. Default: NVLink, and PCIe as the node says.",
    )
    p2p_level: str | None = option(
        "name",
        None,
        choices=("nvl", "pix", "pxb", "phb", "sys"),
        doc="Farthest path between GPUs without host memory: `nvl` NVLink only, `pix` one PCIe "
        "switch, `pxb` several, `phb` one CPU, `sys` any (NCCL_P2P_LEVEL). Default: `pxb`, and "
        "`sys` on AMD nodes of at most two GPUs.",
    )
    shm: bool = option(
        "flag",
        True,
        doc="GPUs of a node that do not reach each other use host memory; off: their NICs and the "
        "network (NCCL_SHM_DISABLE=1).",
    )
    nics: tuple[int, ...] = option(
        "count",
        (),
        many=True,
        sweep=False,
        doc="NICs of each node that are used, by number (NCCL_IB_HCA); empty: all.",
    )
    flows: int = option(
        "count",
        1,
        minimum=1,
        maximum=32,
        doc="Flows that each connection is spread over, which ECMP hashes one by one "
        "(NCCL_IB_QPS_PER_CONNECTION).",
    )
    nvb: bool = option(
        "flag",
        True,
        doc="NVLink in two hops through one GPU where no direct one exists (NCCL_NVB_DISABLE=0).",
    )
