"""Faults that a check tries: each a small patch of the set-up, registered in one place.

A patch is words of a scenario.  A fault that the library sees when it starts (GPUDirect off, one
NIC) leaves it the choice of algorithm; one that it does not see (a bad cable, a neighbour's
traffic) is met with the healthy choice.

Not told apart by time alone: PCIe at half the lanes and at half the speed per lane; a bad cable
and two flows on one uplink; GPUDirect off and GPUDirect through the root complex (ACS).  Faults
whose curves are equal are reported together.
"""

from __future__ import annotations

from simulator.base.units import exact_rate, exact_time
from simulator.verdict.fault import (
    HYPOTHESES,
    Context,
    Hypothesis,
    Words,
    context_of,
    hypothesis,
    slowed,
)

__all__ = ["HYPOTHESES", "Context", "Hypothesis", "context_of"]

SOCKET_BPS = 5e9
"""Most that sockets move through one NIC: a few threads that copy between kernel and user memory
(NCCL 2.27 src/transport/net_socket.cc: at most 16 threads; measured 1 to 6 GB/s a NIC)."""
SOCKET_LATENCY = "20 us"
"""One way through the kernel's TCP stack, against 1 to 2 µs of verbs; the order of magnitude of
``ping`` on such networks."""
OLD_PLUGIN = "60 us"
"""One way through a network plug-in that does not keep GPU memory registered: calls of 2 × p5 took
517 us at 8 B, 71 us after an update (aws/aws-k8s-tester issue 503)."""
FEW_CHANNELS = 2
HALF, THIRD, MOST = 0.5, 1 / 3, 0.75
"""What may be left of a link's bandwidth: PCIe and ports fall back by halves, three flows share an
uplink, errors and neighbours take any part."""
SLOW_LAUNCH = 3.0
"""Factor on the launch time of a process that is held up."""
SLOW_MEMORY = 0.25
"""Share of PCIe's bandwidth that is left where host memory cannot be pinned or is remote."""


# -- the path between GPU and network -----------------------------------------------------------


@hypothesis(
    "gpudirect_off",
    cause="GPUDirect RDMA is off: the network goes through host memory",
    look="nvidia-peermem or dmabuf loaded? NCCL_DEBUG=INFO must say GDRDMA; NCCL_NET_GDR_LEVEL",
    tell="NCCL_DEBUG=INFO: no connection ends in GDRDMA; lsmod | grep nvidia_peermem: nothing",
    seen=True,
    prior=3,
    spread=0.15,
    spoken=True,
    sign=r"GDRDMA|GPUDirect|NET_GDR|RDMA [Dd]isabled",
    denied=r"GDRDMA",
)
def _gpudirect_off(context: Context) -> Words | None:
    on = context.networked and context.template.gpudirect
    return {"routing.gpudirect": "off"} if on else None


@hypothesis(
    "one_sided_gpudirect",
    cause="a variable reached one node only: one end of each connection has no GPUDirect",
    look="env | grep NCCL on every node: mpirun passes nothing without -x, ssh nothing of the "
    "shell; NCCL_DEBUG=INFO of every rank",
    tell="NCCL_DEBUG=INFO on the other nodes: `set by environment` and GDRDMA are missing there",
    seen=True,
    prior=0.5,
    spread=0.4,
    sign=r"NET_GDR_(?:LEVEL|READ)=",
)
def _one_sided_gpudirect(context: Context) -> Words | None:
    return _gpudirect_off(context)


@hypothesis(
    "gpudirect_across_sockets",
    cause="GPUDirect between a GPU and a NIC of another socket or root complex, which passes peer "
    "traffic slowly",
    look="nvidia-smi topo -m: SYS, NODE or PHB between GPU and NIC; NCCL_NET_GDR_LEVEL forced "
    "beyond PXB; the slot of the NIC, NUMA settings of the BIOS (NPS)",
    tell="ib_write_bw --use_cuda against host memory: GPU memory is slower; or NCCL_NET_GDR_LEVEL "
    "unset: faster",
    seen=False,
    prior=1.0,
    spread=0.4,
    sign=r"NET_GDR_LEVEL=\W*(?:SYS|PHB|NODE|[3-9])",
    shares=(HALF, THIRD, MOST),
)
def _gpudirect_across_sockets(context: Context, share: float = HALF) -> Words | None:
    if not context.networked or not context.template.gpudirect or context.scale_up:
        return None
    return slowed(["node*.nic*<->*"], share)


@hypothesis(
    "remote_host_memory",
    cause="without GPUDirect the network's buffers lie in host memory of another NUMA node",
    look="numactl -H and the BIOS's NUMA setting (NPS1 instead of NPS4); processes bound to the "
    "NIC's node; nvidia-smi topo -m",
    tell="the test under numactl --cpunodebind and --membind of the NIC's node: faster",
    seen=True,
    prior=1.0,
    spread=0.4,
    sign=r"no GDRDMA|RDMA [Dd]isabled|NET_GDR_LEVEL",
    denied=r"GDRDMA",
    shares=(HALF, THIRD, MOST),
)
def _remote_host_memory(context: Context, share: float = HALF) -> Words | None:
    if not context.networked:
        return None
    # The library sees the way through the sockets when it starts, and takes it for the port's rate.
    rate_Bps = context.template.nic_rate_Bps * share
    return {"node.nic_rate": exact_rate(rate_Bps), "routing.gpudirect": "off"}


@hypothesis(
    "old_plugin",
    cause="an old network plug-in or driver: every message starts late",
    look="NCCL_DEBUG=INFO: version of NET/OFI (aws-ofi-nccl), of libfabric and of the driver; "
    "update them together",
    tell="the same test with the current plug-in: small sizes take a fraction",
    seen=False,
    prior=1.0,
    spread=0.6,
    sign=r"NET/Plugin|OFI",
)
def _old_plugin(context: Context) -> Words | None:
    plugged = context.template.nic_kind in ("efa", "slingshot")
    return {"node.nic_latency": OLD_PLUGIN} if context.networked and plugged else None


@hypothesis(
    "acs",
    cause="ACS is on: PCIe peer-to-peer is sent up through the root complex",
    look="lspci -vvv | grep ACSCtl must show SrcValid- on PCIe switches; turn ACS off in the BIOS",
    tell="lspci -vvv | grep ACSCtl: SrcValid+ on a PCIe switch, though NCCL reports GDRDMA or P2P",
    seen=False,
    prior=1.5,
    spread=0.2,
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
    tell="NCCL_DEBUG=INFO: `NET/IB : Using` lists one device",
    seen=True,
    prior=2,
    spread=0.1,
    sign=r"IB_HCA|lists \d+ network device",
)
def _one_nic(context: Context) -> Words | None:
    if not context.networked or context.n_nics < 2 or not context.may_use(1):
        return None
    return {"node.preset": context.with_nics(1, context.template.nic_rate_Bps)}


@hypothesis(
    "half_nics",
    cause="half of the node's NICs are used",
    look="NCCL_IB_HCA; are all ports up? is each GPU next to a NIC (nvidia-smi topo -m)?",
    tell="NCCL_DEBUG=INFO: `NET/IB : Using` lists half of the devices",
    seen=True,
    prior=1,
    spread=0.1,
    sign=r"IB_HCA|lists \d+ network device",
)
def _half_nics(context: Context) -> Words | None:
    if not context.networked or context.n_nics < 4 or not context.may_use(context.n_nics // 2):
        return None
    return {"node.preset": context.with_nics(context.n_nics // 2, context.template.nic_rate_Bps)}


@hypothesis(
    "slow_ports",
    cause="every network port runs at half speed",
    look="ibstat Rate or ethtool Speed of every port; cables, transceivers and switch ports of "
    "half the speed",
    tell="ibstat: Rate of every port is half of the preset's",
    seen=True,
    prior=1,
    spread=0.2,
)
def _slow_ports(context: Context) -> Words | None:
    if not context.networked:
        return None
    return {"node.nic_rate": exact_rate(context.template.nic_rate_Bps * HALF)}


@hypothesis(
    "nic_shared",
    cause="every NIC has half its rate, more or less: shared with other traffic, or a busy network",
    look="other jobs or storage on these ports? link width and speed; counters of the switches",
    tell="ib_write_bw on every port at once between idle nodes: all ports are slow alike",
    seen=False,
    prior=1.5,
    spread=0.25,
    shares=(HALF, THIRD, MOST),
)
def _nic_shared(context: Context, share: float = HALF) -> Words | None:
    return slowed(["node*.nic*<->*"], share) if context.networked else None


@hypothesis(
    "cross_socket_nic",
    cause="GPUs use NICs of the other socket: through the link between sockets, without GPUDirect",
    look="nvidia-smi topo -m: SYS between GPU and NIC; CPU and NIC affinity of the virtual machine",
    tell="nvidia-smi topo -m: SYS between each GPU and its NIC",
    seen=True,
    prior=0.5,
    spread=0.3,
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
    tell="NCCL_DEBUG=INFO: `Using network Socket`",
    seen=True,
    prior=2,
    spread=0.4,
    spoken=True,
    sign=r"NET/Socket|IB_DISABLE|NCCL_NET=|network Socket|No IB devices",
    denied=r"NET/(?!Socket)",
)
def _tcp(context: Context) -> Words | None:
    return _sockets(context, context.n_nics)


@hypothesis(
    "tcp_one_nic",
    cause="TCP sockets instead of verbs, on one interface",
    look="NCCL_DEBUG=INFO says NET/Socket; NCCL_IB_DISABLE, NCCL_SOCKET_IFNAME, network plugin",
    tell="NCCL_DEBUG=INFO: `Using network Socket` and one interface",
    seen=True,
    prior=2,
    spread=0.4,
    spoken=True,
    sign=r"NET/Socket|IB_DISABLE|NCCL_NET=|network Socket|No IB devices",
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
    tell="ib_write_bw port by port: one port is slow, though nothing else runs",
    seen=False,
    prior=1.5,
    spread=0.25,
    sign=r"QPS_PER_CONNECTION=1\b",
    placed=True,
    shares=(HALF, THIRD, MOST),
)
def _slow_nic(context: Context, node: int = 0, share: float = HALF) -> Words | None:
    return slowed([f"node{node}.nic0<->*"], share) if context.networked else None


@hypothesis(
    "ecmp_collision",
    cause="several flows share one uplink: ECMP collision with one queue pair per connection",
    look="NCCL_IB_QPS_PER_CONNECTION=4 with NCCL_IB_SPLIT_DATA_ON_QPS=1; adaptive routing; the "
    "switches' hash",
    tell="ib_write_bw: each port alone is fast, all at once are slow; "
    "NCCL_IB_QPS_PER_CONNECTION=4 changes the number",
    seen=False,
    prior=1,
    spread=0.25,
    sign=r"QPS_PER_CONNECTION=1\b",
    placed=True,
    shares=(HALF, THIRD),
)
def _ecmp_collision(context: Context, node: int = 0, share: float = HALF) -> Words | None:
    if not context.networked or context.nodes < 3:
        return None
    return slowed([f"node{node}.nic0<->*"], share)


# -- inside the node ----------------------------------------------------------------------------


@hypothesis(
    "p2p_off",
    cause="GPU peer-to-peer is off: through shared host memory",
    look="NCCL_P2P_DISABLE; nvidia-smi topo -p2p r; IOMMU, ACS, container without IPC",
    tell="NCCL_DEBUG=INFO: `via SHM` between GPUs of a node; nvidia-smi topo -p2p r: not OK",
    seen=True,
    prior=3,
    spread=0.25,
    spoken=True,
    sign=r"P2P_DISABLE|P2P_LEVEL|SHM|enable P2P|P2P is disabled|peer access",
    denied=r"^P2P",
)
def _p2p_off(context: Context) -> Words | None:
    has = context.scale_up or context.template.p2p
    return {"routing.p2p": "off"} if has and context.gpus_per_node > 1 else None


@hypothesis(
    "slow_host_memory",
    cause="GPUs talk through host memory, and that is slow: a virtual machine or container, memory "
    "of the other socket, or IOMMU translation",
    look="bare metal or large pages and pinned cores for the guest; docker --shm-size, --ipc=host "
    "and --ulimit memlock=-1; iommu=pt; numactl",
    tell="nvbandwidth -t host_to_device_memcpy_ce and device_to_host_memcpy_ce: far below the "
    "slot's rate",
    seen=True,
    prior=1.0,
    spread=0.6,
    sign=r"SHM|P2P_DISABLE",
    denied=r"^P2P",
)
def _slow_host_memory(context: Context) -> Words | None:
    if context.scale_up or context.gpus_per_node < 2:
        return None
    words = dict(slowed(context.pcie("gpu"), SLOW_MEMORY) or {})
    if context.template.p2p:
        words["routing.p2p"] = "off"
    return words or None


@hypothesis(
    "pcie_half_width",
    cause="the GPUs' PCIe slots run at half width or one generation down",
    look="nvidia-smi -q -d PCIE under load: link width and generation; lspci LnkSta; riser, BIOS",
    tell="nvidia-smi --query-gpu=pcie.link.width.current,pcie.link.gen.current --format=csv "
    "under load",
    seen=False,
    prior=2,
    spread=0.5,
)
def _pcie_half_width(context: Context) -> Words | None:
    return slowed(context.pcie("gpu"), HALF) if _pcie_matters(context) else None


@hypothesis(
    "pcie_generation",
    cause="all PCIe of the node is one generation down: GPUs, NICs and switches",
    look="lspci -vv: LnkSta against LnkCap on GPUs, NICs and switches; the BIOS's PCIe speed",
    tell="lspci -vv: LnkSta says `downgraded` on switches and NICs too",
    seen=False,
    prior=0.7,
    spread=0.4,
)
def _pcie_generation(context: Context) -> Words | None:
    return slowed(context.pcie(), 0.5) if _pcie_matters(context) else None


def _pcie_matters(context: Context) -> bool:
    """Tell whether the collective's traffic crosses PCIe at all."""
    return context.networked or (not context.scale_up and context.gpus_per_node > 1)


@hypothesis(
    "slow_gpu",
    cause="one GPU is slow: half the bandwidth on all of its links",
    look="nvidia-smi nvlink -s and -e; clocks and throttling; run pairs of GPUs to find it",
    tell="nvbandwidth -t device_to_device_memcpy_read_ce: one row and column of the matrix is low",
    seen=False,
    prior=1,
    spread=0.3,
    placed=True,
    shares=(HALF, THIRD, MOST),
)
def _slow_gpu(context: Context, node: int = 0, share: float = HALF) -> Words | None:
    return slowed([f"node{node}.gpu0<->*"], share) if context.gpus_per_node > 1 else None


# -- time before the data -----------------------------------------------------------------------


@hypothesis(
    "slow_start",
    cause="every call starts late: the processes that launch them are held up",
    look="CPU clock and power saving, processes bound to cores near their GPU, too few cores for "
    "the container, profilers, NCCL_DEBUG_SUBSYS=ALL; one process for many GPUs (-g)",
    tell="the same test with -G 20 (CUDA graphs): small sizes become as expected",
    seen=False,
    prior=1.5,
    spread=0.5,
)
def _slow_start(context: Context) -> Words | None:
    if context.launch_s <= 0:
        return None
    return {"costs.overrides": f"{{launch.time: {exact_time(SLOW_LAUNCH * context.launch_s)}}}"}


@hypothesis(
    "network_latency",
    cause="messages through the network are late: adapters that gather them, power saving, a long "
    "or busy way",
    look="ib_write_lat; interrupt moderation and PCIe power saving (ASPM); PFC and ECN counters of "
    "switches",
    tell="ib_write_lat between two nodes: far above 5 us",
    seen=False,
    prior=1.0,
    spread=0.6,
)
def _network_latency(context: Context) -> Words | None:
    return {"node.nic_latency": SOCKET_LATENCY} if context.networked else None


# -- what the library was told ------------------------------------------------------------------


@hypothesis(
    "forced_ring",
    cause="ring is forced, or NVLS, tree and CollNet are switched off",
    look="NCCL_ALGO, NCCL_NVLS_ENABLE, nccl.conf; fabric manager and NVLink SHARP (NVLS)",
    tell="env | grep NCCL on every rank; NCCL_DEBUG=INFO: `NCCL_ALGO set by environment`",
    seen=True,
    prior=0.5,
    spread=0.1,
    spoken=True,
    sign=r"NCCL_ALGO=\W*[Rr]ing|NVLS_ENABLE=0|NVLS.*(?:not|disabled)",
)
def _forced_ring(context: Context) -> Words | None:
    return _forced(context, "ring")


@hypothesis(
    "forced_tree",
    cause="tree is forced",
    look="NCCL_ALGO in the environment and in nccl.conf",
    tell="env | grep NCCL on every rank; NCCL_DEBUG=INFO: `NCCL_ALGO set by environment`",
    seen=True,
    prior=0.5,
    spread=0.1,
    spoken=True,
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
    tell="env | grep NCCL on every rank; NCCL_DEBUG=INFO: `NCCL_PROTO set by environment`",
    seen=True,
    prior=0.4,
    spread=0.1,
    spoken=True,
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
    tell="NCCL_DEBUG=INFO: `coll channels` with a small number",
    seen=True,
    prior=0.5,
    spread=0.5,
    spoken=True,
    sign=r"MAX_NCHANNELS|MAX_CTAS",
)
def _few_channels(context: Context) -> Words | None:
    most = max(row.n_channels for row in context.healthy)
    return {"collective.channels": str(FEW_CHANNELS)} if most > 2 * FEW_CHANNELS else None
