"""Faults that a check tries: each a small patch of the set-up, registered in one place.

A patch is words of a scenario.  A fault that the library sees when it starts (GPUDirect off, one
NIC) leaves it the choice of algorithm; one that it does not see (a bad cable, a neighbour's
traffic) is met with the healthy choice.

Not told apart by time alone: PCIe at half the lanes and at half the speed per lane; a bad cable
and two flows on one uplink; GPUDirect off and GPUDirect through the root complex (ACS).  Faults
whose curves are equal are reported together.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from simulator.base.units import exact_rate
from simulator.fabric.model import NodeTemplate
from simulator.results.model import Row
from simulator.scenario.nodes import gpu_count, node_template
from simulator.scenario.resolved import Resolved

__all__ = ["HYPOTHESES", "Context", "Hypothesis", "context_of"]

Words = Mapping[str, str]

_NIC_WORDS = {
    "infiniband": "ib",
    "roce": "roce",
    "ethernet": "eth",
    "slingshot": "ss",
    "efa": "efa",
}
SOCKET_BPS = 5e9
"""Most that sockets move through one NIC: a few threads that copy between kernel and user memory
(NCCL 2.27 src/transport/net_socket.cc: at most 16 threads; measured 1 to 6 GB/s a NIC)."""
SOCKET_LATENCY = "20 us"
"""One way through the kernel's TCP stack, against 1 to 2 µs of verbs; the order of magnitude of
``ping`` on such networks."""
FEW_CHANNELS = 2
COLLIDING_FLOWS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What a patch may ask about the set-up."""

    preset: str
    template: NodeTemplate
    nodes: int
    gpus_per_node: int
    collective: str
    healthy: tuple[Row, ...]

    @property
    def n_nics(self) -> int:
        """Network ports of a node."""
        return sum(vertex.kind == "nic" for vertex in self.template.vertices)

    @property
    def n_gpus(self) -> int:
        """GPUs of the cluster."""
        return self.nodes * self.gpus_per_node

    @property
    def scale_up(self) -> bool:
        """True when the GPUs of a node are joined by NVLink or xGMI."""
        return any(link.kind in ("nvlink", "xgmi") for link in self.template.links)

    @property
    def networked(self) -> bool:
        """True when traffic leaves the node through NICs."""
        return self.nodes > 1 and self.n_nics > 0

    def pcie(self, *kinds: str) -> list[str]:
        """Return globs of the node's PCIe links that touch a kind of vertex (none: all)."""
        found: dict[str, None] = {}
        for link in self.template.links:
            ends = [re.sub(r"\d+$", "", end) for end in (link.a, link.b)]
            if link.kind == "pcie" and (not kinds or set(ends) & set(kinds)):
                found[f"node*.{ends[0]}*<->node*.{ends[1]}*"] = None
        return list(found)

    def with_nics(self, count: int, rate_Bps: float, kind: str | None = None) -> str:
        """Return the preset with other network ports."""
        word = _NIC_WORDS[kind or self.template.nic_kind or "ethernet"]
        return f"{self.preset}+{count}x{word}{max(1, round(rate_Bps * 8e-9))}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Hypothesis:
    """A fault, what to look at, and its patch."""

    name: str
    cause: str
    """In plain words."""
    look: str
    """What to check or try on the machine."""
    seen: bool
    """The library knows it and chooses accordingly."""
    sign: str
    """Pattern of what a log may say about it; empty: nothing."""
    denied: str
    """Pattern of a transport in NCCL's messages that rules it out; empty: none."""
    words: Callable[[Context], Words | None]
    """The patch; None where the fault cannot be on this set-up."""


HYPOTHESES: dict[str, Hypothesis] = {}


def hypothesis(
    name: str, *, cause: str, look: str, seen: bool, sign: str = "", denied: str = ""
) -> Callable[[Callable[[Context], Words | None]], Callable[[Context], Words | None]]:
    """Register the decorated patch under a name."""

    def register(words: Callable[[Context], Words | None]) -> Callable[[Context], Words | None]:
        if name in HYPOTHESES:
            raise ValueError(f"two hypotheses are called {name!r}")
        HYPOTHESES[name] = Hypothesis(
            name=name, cause=cause, look=look, seen=seen, sign=sign, denied=denied, words=words
        )
        return words

    return register


def context_of(resolved: Resolved, healthy: tuple[Row, ...]) -> Context | None:
    """Return the context of a cluster of one kind of node; None for any other."""
    groups = resolved.node_groups
    if len(groups) != 1:
        return None
    group = groups[0]
    template = node_template(group.node)
    return Context(
        preset=group.node.preset,
        template=template,
        nodes=group.nodes,
        gpus_per_node=group.gpus_per_node or gpu_count(template),
        collective=healthy[0].collective,
        healthy=healthy,
    )


def _slow(globs: list[str], factor: float) -> Words | None:
    if not globs:
        return None
    entries = ", ".join(f'{{link: "{glob}", factor: {factor:g}}}' for glob in globs)
    return {"perturb.links": f"[{entries}]"}


# -- the path between GPU and network -----------------------------------------------------------


@hypothesis(
    "gpudirect_off",
    cause="GPUDirect RDMA is off: the network goes through host memory",
    look="nvidia-peermem or dmabuf loaded? NCCL_DEBUG=INFO must say GDRDMA; NCCL_NET_GDR_LEVEL",
    seen=True,
    sign=r"GDRDMA|GPUDirect|NET_GDR",
    denied=r"GDRDMA",
)
def _gpudirect_off(context: Context) -> Words | None:
    on = context.networked and context.template.gpudirect
    return {"routing.gpudirect": "off"} if on else None


@hypothesis(
    "acs",
    cause="ACS is on: PCIe peer-to-peer is sent up through the root complex",
    look="lspci -vvv | grep ACSCtl must show SrcValid- on PCIe switches; turn ACS off in the BIOS",
    seen=False,
)
def _acs(context: Context) -> Words | None:
    switched = any(vertex.kind == "pcie_switch" for vertex in context.template.vertices)
    if not switched:
        return None
    words: dict[str, str] = {}
    if context.networked and context.template.gpudirect:
        words["routing.gpudirect"] = "off"
    if not context.scale_up and context.template.p2p and context.gpus_per_node > 1:
        words["routing.p2p"] = "off"
    return words or None


@hypothesis(
    "one_nic",
    cause="one NIC of the node's many is used",
    look="NCCL_IB_HCA; are all ports up (ibstat, rdma link)? NCCL_DEBUG=INFO lists those in use",
    seen=True,
    sign=r"IB_HCA",
)
def _one_nic(context: Context) -> Words | None:
    if not context.networked or context.n_nics < 2:
        return None
    return {"node.preset": context.with_nics(1, context.template.nic_rate_Bps)}


@hypothesis(
    "half_nics",
    cause="half of the node's NICs are used",
    look="NCCL_IB_HCA; are all ports up? is each GPU next to a NIC (nvidia-smi topo -m)?",
    seen=True,
    sign=r"IB_HCA",
)
def _half_nics(context: Context) -> Words | None:
    if not context.networked or context.n_nics < 4:
        return None
    return {"node.preset": context.with_nics(context.n_nics // 2, context.template.nic_rate_Bps)}


@hypothesis(
    "nic_shared",
    cause="every NIC has half its rate: shared with other traffic, or ports at half speed",
    look="other jobs or storage on these ports? ibstat Rate; link width and speed",
    seen=False,
)
def _nic_shared(context: Context) -> Words | None:
    if not context.networked:
        return None
    return {"node.nic_rate": exact_rate(context.template.nic_rate_Bps / 2)}


@hypothesis(
    "cross_socket_nic",
    cause="GPUs use NICs of the other socket: through the link between sockets, without GPUDirect",
    look="nvidia-smi topo -m: SYS between GPU and NIC; CPU and NIC affinity of the virtual machine",
    seen=True,
    sign=r"CROSS_NIC|TOPO_FILE",
    denied=r"GDRDMA",
)
def _cross_socket_nic(context: Context) -> Words | None:
    template = context.template
    sockets = {link.a for link in template.links if link.kind == "upi"}
    sockets |= {link.b for link in template.links if link.kind == "upi"}
    if not context.networked or len(sockets) < 2 or context.gpus_per_node < 2:
        return None
    # Every NIC of a socket serves the other one's GPUs, so they share the link between the two.
    between = [link for link in template.links if link.kind == "upi"]
    pair = {frozenset((link.a, link.b)) for link in between}
    shared_Bps = sum(link.bandwidth_Bps for link in between) / len(pair)
    share_Bps = shared_Bps / max(1.0, context.n_nics / len(sockets))
    return {
        "node.nic_rate": exact_rate(min(template.nic_rate_Bps, share_Bps)),
        "routing.gpudirect": "off",
    }


@hypothesis(
    "tcp",
    cause="TCP sockets instead of verbs, on all NICs",
    look="NCCL_DEBUG=INFO says NET/Socket; NCCL_IB_DISABLE, network plugin, RDMA in the container",
    seen=True,
    sign=r"NET/Socket|IB_DISABLE|NCCL_NET=",
    denied=r"NET/(?!Socket)",
)
def _tcp(context: Context) -> Words | None:
    return _sockets(context, context.n_nics)


@hypothesis(
    "tcp_one_nic",
    cause="TCP sockets instead of verbs, on one interface",
    look="NCCL_DEBUG=INFO says NET/Socket; NCCL_IB_DISABLE, NCCL_SOCKET_IFNAME, network plugin",
    seen=True,
    sign=r"NET/Socket|IB_DISABLE|NCCL_NET=",
    denied=r"NET/(?!Socket)",
)
def _tcp_one_nic(context: Context) -> Words | None:
    return _sockets(context, 1) if context.n_nics > 1 else None


def _sockets(context: Context, count: int) -> Words | None:
    if not context.networked or context.template.nic_kind == "ethernet":
        return None
    rate_Bps = min(SOCKET_BPS, context.template.nic_rate_Bps)
    return {
        "node.preset": context.with_nics(count, rate_Bps, "ethernet"),
        "node.nic_latency": SOCKET_LATENCY,
        "routing.gpudirect": "off",
    }


@hypothesis(
    "slow_nic",
    cause="one NIC has half its rate: a bad cable or port, or two flows on one uplink (ECMP, one "
    "queue pair)",
    look="ib_write_bw on every port; perfquery errors; NCCL_IB_QPS_PER_CONNECTION=4, another ECMP "
    "hash",
    seen=False,
    sign=r"QPS_PER_CONNECTION=1\b",
)
def _slow_nic(context: Context) -> Words | None:
    return _slow(["node0.nic0<->*"], 0.5) if context.networked else None


@hypothesis(
    "ecmp_collision",
    cause="several flows share one uplink: ECMP collision with one queue pair per connection",
    look="NCCL_IB_QPS_PER_CONNECTION=4 with NCCL_IB_SPLIT_DATA_ON_QPS=1; adaptive routing; the "
    "switches' hash",
    seen=False,
    sign=r"QPS_PER_CONNECTION=1\b",
)
def _ecmp_collision(context: Context) -> Words | None:
    if not context.networked or context.nodes < 3:
        return None
    return _slow(["node0.nic0<->*"], 1.0 / COLLIDING_FLOWS)


# -- inside the node ----------------------------------------------------------------------------


@hypothesis(
    "p2p_off",
    cause="GPU peer-to-peer is off: through shared host memory",
    look="NCCL_P2P_DISABLE; nvidia-smi topo -p2p r; IOMMU, ACS, container without IPC",
    seen=True,
    sign=r"P2P_DISABLE|P2P_LEVEL|SHM",
    denied=r"^P2P",
)
def _p2p_off(context: Context) -> Words | None:
    has = context.scale_up or context.template.p2p
    return {"routing.p2p": "off"} if has and context.gpus_per_node > 1 else None


@hypothesis(
    "pcie_half_width",
    cause="the GPUs' PCIe slots run at half width or one generation down",
    look="nvidia-smi -q -d PCIE under load: link width and generation; lspci LnkSta; riser, BIOS",
    seen=False,
)
def _pcie_half_width(context: Context) -> Words | None:
    return _slow(context.pcie("gpu"), 0.5) if _pcie_matters(context) else None


@hypothesis(
    "pcie_generation",
    cause="all PCIe of the node is one generation down: GPUs, NICs and switches",
    look="lspci -vv: LnkSta against LnkCap on GPUs, NICs and switches; the BIOS's PCIe speed",
    seen=False,
)
def _pcie_generation(context: Context) -> Words | None:
    return _slow(context.pcie(), 0.5) if _pcie_matters(context) else None


def _pcie_matters(context: Context) -> bool:
    """Tell whether the collective's traffic crosses PCIe at all."""
    return context.networked or (not context.scale_up and context.gpus_per_node > 1)


@hypothesis(
    "slow_gpu",
    cause="one GPU is slow: half the bandwidth on all of its links",
    look="nvidia-smi nvlink -s and -e; clocks and throttling; run pairs of GPUs to find it",
    seen=False,
)
def _slow_gpu(context: Context) -> Words | None:
    return _slow(["node0.gpu0<->*"], 0.5) if context.gpus_per_node > 1 else None


# -- what the library was told ------------------------------------------------------------------


@hypothesis(
    "forced_ring",
    cause="ring is forced, or NVLS, tree and CollNet are switched off",
    look="NCCL_ALGO, NCCL_NVLS_ENABLE, nccl.conf; fabric manager and NVLink SHARP (NVLS)",
    seen=True,
    sign=r"NCCL_ALGO=\W*[Rr]ing|NVLS_ENABLE=0",
)
def _forced_ring(context: Context) -> Words | None:
    return _forced(context, "ring")


@hypothesis(
    "forced_tree",
    cause="tree is forced",
    look="NCCL_ALGO in the environment and in nccl.conf",
    seen=True,
    sign=r"NCCL_ALGO=\W*[Tt]ree",
)
def _forced_tree(context: Context) -> Words | None:
    return _forced(context, "double_binary_tree")


def _forced(context: Context, algorithm: str) -> Words | None:
    if context.collective != "all_reduce":
        return None
    if all(row.algorithm == algorithm for row in context.healthy):
        return None
    return {"collective.algorithm": algorithm}


@hypothesis(
    "ll_only",
    cause="protocol LL is forced: half of every message is flags",
    look="NCCL_PROTO in the environment and in nccl.conf",
    seen=True,
    sign=r"NCCL_PROTO=\W*LL\b",
)
def _ll_only(context: Context) -> Words | None:
    if all(row.protocol == "LL" or not row.protocol for row in context.healthy):
        return None
    return {"collective.protocol": "LL"}


@hypothesis(
    "few_channels",
    cause=f"few channels ({FEW_CHANNELS}): too few blocks of the GPU copy",
    look="NCCL_MAX_NCHANNELS, NCCL_MAX_CTAS; which GPUs and links NCCL_DEBUG=INFO lists",
    seen=True,
    sign=r"MAX_NCHANNELS|MAX_CTAS",
)
def _few_channels(context: Context) -> Words | None:
    most = max(row.n_channels for row in context.healthy)
    return {"collective.channels": str(FEW_CHANNELS)} if most > 2 * FEW_CHANNELS else None
