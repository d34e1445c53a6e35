"""Libraries that move data with the CPU: nodes as they see them, and what their processes cost.

A rank is a process beside its GPU (or instead of one).  Buffers lie in host memory; a tensor on
the GPU is copied there before a call and back after it, one after the other, as
torch's ProcessGroupGloo does.  So the nodes are rebuilt with a link from each process to its CPU
in place of the GPU's own links, and calls pay for copies, sums and handshakes in the time before
their first message.

Not modelled: copies that run beside the transfers, processes that wait for a core at certain
moments (all are slowed alike), NUMA effects beyond the links between sockets.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from simulator.collectives.call import Call
from simulator.collectives.schedule import Schedule, Stage
from simulator.costs.host import HostCosts
from simulator.costs.profile import PATH_KINDS
from simulator.engine.traffic import Collective, Connections
from simulator.fabric.fabric import Fabric
from simulator.fabric.model import LINK_KINDS, NodeTemplate, TemplateLink

__all__ = ["Hosts", "host_view", "staging_Bps"]

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]

EXCHANGES = ("direct", "pairwise")
REDUCING = ("all_reduce", "reduce", "reduce_scatter")
TCP = ("ethernet",)


def host_view(template: NodeTemplate, costs: HostCosts, *, verbs: bool) -> NodeTemplate:
    """Return a node in which processes stand for the GPUs.

    Parameters
    ----------
    template
        The preset; one without GPUs (`NodeTemplate.cores` given) is returned as it is.
    costs
        Of the library.
    verbs
        NICs read and write host memory by themselves; without, a kernel copies.
    """
    if template.cores:
        return template
    gpus = [vertex.name for vertex in template.vertices if vertex.kind == "gpu"]
    kept = {v.name for v in template.vertices if v.kind in ("cpu", "pcie_switch", "nic")}
    links = [link for link in template.links if link.a in kept and link.b in kept]
    for gpu, (cpu, _) in _homes(template).items():
        links.append(
            TemplateLink(
                a=gpu,
                b=cpu,
                kind="upi",
                bandwidth_Bps=costs.process_Bps,
                latency_s=1e-7,
                source=costs.sources["cpu.process"],
            )
        )
    homes = _homes(template)
    for link in template.links:
        # A NIC on a GPU (MI250X) is reached through that GPU's CPU.
        for nic, gpu in ((link.a, link.b), (link.b, link.a)):
            if nic in kept and gpu in homes and nic.startswith("nic"):
                links.append(replace(link, a=nic, b=homes[gpu][0]))
    joined = {end for link in links for end in (link.a, link.b)}
    return replace(
        template,
        nvl_domain_nodes=1,
        vertices=tuple(v for v in template.vertices if v.name in joined or v.name in gpus),
        links=tuple(links),
        p2p=False,
        gpudirect=verbs,
    )


def _homes(template: NodeTemplate) -> dict[str, tuple[str, list[TemplateLink]]]:
    """Return the CPU next to each GPU and the links on the way, by fewest links."""
    beside: dict[str, list[tuple[str, TemplateLink]]] = {v.name: [] for v in template.vertices}
    kinds = {v.name: v.kind for v in template.vertices}
    for link in template.links:
        if {kinds[link.a], kinds[link.b]} != {"gpu"} and "nvswitch" not in (
            kinds[link.a],
            kinds[link.b],
        ):
            beside[link.a].append((link.b, link))
            beside[link.b].append((link.a, link))
    homes: dict[str, tuple[str, list[TemplateLink]]] = {}
    for gpu in (name for name, kind in kinds.items() if kind == "gpu"):
        seen: dict[str, list[TemplateLink]] = {gpu: []}
        queue = [gpu]
        for name in queue:
            for other, link in beside[name]:
                if other not in seen:
                    seen[other] = [*seen[name], link]
                    queue.append(other)
        cpu = next((name for name in queue if kinds[name] == "cpu"), None)
        if cpu is not None:
            homes[gpu] = (cpu, seen[cpu])
    return homes


def staging_Bps(template: NodeTemplate, costs: HostCosts) -> float:
    """Return the rate of copies between a GPU and host memory while all GPUs of a node copy."""
    if template.cores:
        return float("inf")
    used: dict[int, int] = {}
    paths = [path for _, path in _homes(template).values()]
    for path in paths:
        for link in path:
            used[id(link)] = used.get(id(link), 0) + 1
    shares = [min(link.bandwidth_Bps / used[id(link)] for link in path) for path in paths if path]
    return costs.staging_share * min(shares, default=float("inf"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Hosts:
    """The processes of a cluster and what their library costs."""

    costs: HostCosts
    staging_Bps: float
    """Rate of copies between GPU and host; infinite where buffers are in host memory."""
    aware: bool = False
    """The library moves GPU memory itself; only sums are made in host memory."""
    forced: dict[str, str] = field(default_factory=dict)
    """Algorithms that variables fix, by collective."""
    nic_Bps: float = float("inf")
    """Rate of a node's port."""

    def crowding(self, fabric: Fabric, group: IntArray) -> float:
        """Return how many times longer the CPU's work takes because processes share cores."""
        worst = 1.0
        nodes, counts = np.unique(np.asarray(fabric.node_of_gpu)[group], return_counts=True)
        for node, count in zip(nodes.tolist(), counts.tolist(), strict=True):
            cores = fabric.node_template(node).cores
            worst = max(worst, count / cores if cores else 1.0)
        return worst

    def charged(
        self,
        call: Call,
        schedule: Schedule,
        lowered: Collective,
        *,
        crowding: float,
        path_kind: IntArray,
        link_kind: IntArray,
    ) -> Collective:
        """Return a call with what its processes cost.

        Parameters
        ----------
        call, schedule, lowered
            The call, its schedule, and its engine's form.
        crowding
            See `crowding`.
        path_kind
            Index into `PATH_KINDS` of each connection.
        link_kind
            Kind of every link of the fabric, index into `LINK_KINDS`.
        """
        connections = lowered.connections
        latency_s = connections.latency_s * crowding
        network = path_kind == PATH_KINDS.index("network")
        latency_s = latency_s + self._handshakes_s(lowered, latency_s, network)
        rate = np.minimum(connections.max_rate_Bps, self._most_Bps(connections, network, link_kind))
        before_s = crowding * (
            lowered.launch_s
            + self._peers_s(schedule, lowered)
            + self._sums_s(call, schedule)
            + self._copies_s(call)
        )
        return replace(
            lowered,
            connections=replace(connections, latency_s=latency_s, max_rate_Bps=rate),
            launch_s=before_s + self._staging_s(call),
        )

    def charged_exchange(self, call: Call, lowered: Collective, *, crowding: float) -> Collective:
        """Return an exchange of very many ranks, summed per rank, with what processes cost.

        With so many peers no single connection fills a flow or a NIC, so that their limits do
        not matter.
        """
        connections = lowered.connections
        size = call.size_bytes / max(call.world_size, 1)
        latency_s = _crowded(connections, crowding)
        if self.costs.eager_bytes and size > self.costs.eager_bytes["network"]:
            latency_s = 3.0 * latency_s
        peers_s = self.costs.peer_s * max(0, call.world_size - 2)
        before_s = crowding * (lowered.launch_s + peers_s + self._copies_s(call))
        return replace(
            lowered,
            connections=replace(connections, latency_s=latency_s),
            launch_s=before_s + self._staging_s(call),
        )

    def _handshakes_s(
        self, lowered: Collective, latency_s: FloatArray, network: NDArray[np.bool_]
    ) -> FloatArray:
        """Return what a request and its answer add on connections of large messages."""
        eager = self.costs.eager_bytes
        if not eager or not lowered.stages:
            return np.zeros(len(latency_s))
        size, count = np.zeros(len(latency_s)), np.zeros(len(latency_s))
        for stage in lowered.stages:
            size += np.bincount(stage.connection, stage.edge_bytes, len(latency_s))
            count += np.bincount(stage.connection, stage.edge_messages, len(latency_s))
        mean = size / np.maximum(count, 1)
        limit = np.where(network, eager["network"], eager["local"])
        return np.where(mean > limit, 2.0 * latency_s, 0.0)

    def _most_Bps(
        self, connections: Connections, network: NDArray[np.bool_], link_kind: IntArray
    ) -> FloatArray:
        """Return the most that each connection carries: a TCP flow, or a message's NICs."""
        most = np.full(len(connections.src), np.inf)
        if not network.any():
            return most
        tcp = np.isin(link_kind, [LINK_KINDS.index(kind) for kind in TCP])[connections.link]
        over_tcp = np.logical_or.reduceat(tcp, connections.indptr[:-1])
        one = self.costs.backend == "gloo"
        limit = np.where(over_tcp | one, self.costs.flow_Bps, self.costs.rails * self.nic_Bps)
        return np.where(network, limit, most)

    def _peers_s(self, schedule: Schedule, lowered: Collective) -> float:
        """Return what the further peers of an exchange cost the busiest rank."""
        if schedule.algorithm not in EXCHANGES or not lowered.stages:
            return 0.0
        connections = lowered.connections
        ends = np.bincount(connections.src, minlength=schedule.world_size)
        taken = np.bincount(connections.dst, minlength=schedule.world_size)
        return self.costs.peer_s * max(0, int(np.maximum(ends, taken).max()) - 1)

    def _sums_s(self, call: Call, schedule: Schedule) -> float:
        """Return the time in which nothing travels because data are added."""
        if call.collective not in REDUCING:
            return 0.0
        added = sum(_added_bytes(stage) for stage in schedule.stages)
        if self.costs.overlap and schedule.algorithm in ("ring", "all_reduce", "ring_gather"):
            part = call.size_bytes / call.world_size
            segments = max(2.0, np.ceil(part / self.costs.segment_bytes))
            added /= segments * max(call.world_size - 1, 1)
        return float(added) / self.costs.reduce_Bps

    def _copies_s(self, call: Call) -> float:
        costs = self.costs
        part = call.size_bytes / call.world_size
        copied = costs.copies.get(call.collective, 0.0) * call.size_bytes
        copied += costs.part_copies.get(call.collective, 0.0) * part
        made_s = costs.copy_s if call.collective in costs.copies else 0.0
        return made_s + copied / costs.copy_Bps

    def _staging_s(self, call: Call) -> float:
        """Return the time of the copies from the GPU and back to it."""
        if not np.isfinite(self.staging_Bps) or call.collective == "barrier":
            return 0.0
        if self.aware and call.collective not in REDUCING:
            return 0.0
        whole, part = call.size_bytes, call.size_bytes / call.world_size
        moved = {
            "all_gather": part + whole,
            "reduce_scatter": whole + part,
            "broadcast": whole,
            "gather": part + whole,
            "scatter": whole + part,
        }.get(call.collective, 2.0 * whole)
        return 2.0 * self.costs.staging_s + moved / self.staging_Bps


def _crowded(connections: Connections, crowding: float) -> FloatArray:
    """Return latencies of processes that share cores: their own part takes longer."""
    own_s = connections.latency_s - connections.wire_s
    return np.asarray(connections.wire_s + own_s * crowding)


def _added_bytes(stage: Stage) -> float:
    """Return the bytes that the busiest rank adds in a stage."""
    if stage.n_steps == 0 or not len(stage.src):
        return 0.0
    step = stage.step(0)
    last = stage.step(stage.n_steps - 1)
    if not (np.any(step.reduce) or np.any(last.reduce)):
        return 0.0
    return float(np.bincount(stage.dst, weights=stage.edge_bytes).max())
