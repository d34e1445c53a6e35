"""Paths between the devices of a node, as NCCL computes them before its search.

References
----------
NCCL src/graph/paths.cc (ncclTopoSetPaths, ncclTopoComputePaths) and src/graph/topo.cc
(ncclTopoGetLocalNet, ncclTopoGetLocalGpu), read at 2.21.5; rules of other versions where stated.
"""

from __future__ import annotations

from dataclasses import dataclass

from simulator.base.errors import TopologyError
from simulator.costs.nccl.graph import PathType
from simulator.costs.nccl.system import SearchSystem
from simulator.costs.nccl.tables import read_table

__all__ = ["Path", "Paths", "milli"]

_LINK_TYPES = {
    "nvlink": PathType.NVL,
    "pcie": PathType.PIX,
    "c2c": PathType.C2C,
    "sys": PathType.SYS,
    "net": PathType.LOC,  # only the way between GPU and NIC counts
}
_KIND = {"gpu": "gpu", "nvswitch": "nvs", "pcie_switch": "pci", "cpu": "cpu", "nic": "nic"}


def milli(bandwidth_GBps: float) -> int:
    """Return a bandwidth in MB/s: NCCL rounds to that after every change."""
    return round(bandwidth_GBps * 1000)


@dataclass(slots=True)
class Path:
    """The way from a device to another."""

    links: tuple[int, ...]
    bw: int
    """MB/s."""
    type: PathType

    @property
    def hops(self) -> int:
        """Links on the way."""
        return len(self.links)


@dataclass(slots=True)
class _Link:
    source: int
    target: int
    kind: str
    bw: int
    reverse: int = -1


class Paths:
    """Devices, directed links, and the paths between GPUs, NICs and NVSwitch.

    Parameters
    ----------
    system
        The node.
    network
        Whether the communicator spans nodes; NCCL drops the NICs otherwise.

    Notes
    -----
    The NVSwitches of a node are merged into one.  A NIC is two devices, the card and its port.
    """

    def __init__(self, system: SearchSystem, *, network: bool) -> None:
        self.system = system
        self.kinds: list[str] = []
        self.sm: list[int] = []
        self.links: list[_Link] = []
        self.out: list[list[int]] = []
        self.members: dict[str, list[int]] = {
            kind: [] for kind in ("gpu", "nvs", "pci", "cpu", "nic", "net")
        }
        self.nics = system.of_kind("nic") if network else ()
        self._build()
        self.table: dict[tuple[int, int], Path] = {}
        for kind in ("cpu", "gpu", "net", "nvs"):
            for base in self.members[kind]:
                self._spread(base)
        self.local_cpu = {g: self._closest_cpu(g) for g in self.members["gpu"]}
        self._divert_gpus()
        self._divert_nics()

    def _vertex(self, kind: str, sm: int = 0) -> int:
        self.kinds.append(kind)
        self.sm.append(sm)
        self.out.append([])
        self.members[kind].append(len(self.kinds) - 1)
        return len(self.kinds) - 1

    def _connect(self, a: int, b: int, kind: str, bw: int) -> None:
        for source, target in ((a, b), (b, a)):
            for index in self.out[source]:
                link = self.links[index]
                if link.target == target and link.kind == kind == "nvlink":
                    link.bw += bw
                    break
            else:
                self.links.append(_Link(source, target, kind, bw))
                self.out[source].append(len(self.links) - 1)

    def _build(self) -> None:
        system = self.system
        index: dict[str, int] = {}
        for vertex in system.vertices:
            if vertex.kind == "nvswitch" and self.members["nvs"]:
                index[vertex.name] = self.members["nvs"][0]
            elif vertex.kind != "nic" or self.nics:
                index[vertex.name] = self._vertex(_KIND[vertex.kind], vertex.sm)
        for nic in self.nics:
            port = self._vertex("net")
            self._connect(index[nic.name], port, "net", milli(nic.net_GBps))
        for link in system.links:
            if link.a in index and link.b in index:
                # Chip-to-chip links counted as NVLink before they had a type of their own.
                early = link.kind == "c2c" and not system.version.since(2, 25)
                kind = "nvlink" if early else link.kind
                self._connect(index[link.a], index[link.b], kind, milli(link.bandwidth_GBps))
        if not any(link.kind == "sys" for link in system.links):
            cpus = self.members["cpu"]
            for position, a in enumerate(cpus):
                for b in cpus[position + 1 :]:
                    self._connect(a, b, "sys", milli(system.socket_GBps))
        for out in self.out:
            out.sort(key=lambda i: -self.links[i].bw)
        ends = {(link.source, link.target, link.kind): i for i, link in enumerate(self.links)}
        for directed in self.links:
            directed.reverse = ends[directed.target, directed.source, directed.kind]

    def _may_pass(self, node: int, link: _Link, path: Path, base: int) -> bool:
        """Traffic goes through a GPU only from NVLink to NVLink, and through one GPU only."""
        if node == base or self.kinds[node] != "gpu":
            return True
        return (
            self.system.options.nvb
            and link.kind == "nvlink"
            and self.kinds[link.target] == "gpu"
            and path.hops <= 1
        )

    def _type(self, node: int, link: _Link, path: Path) -> PathType:
        kinds = (self.kinds[node], self.kinds[link.target])
        kind = _LINK_TYPES[link.kind]
        if kinds == ("pci", "pci"):
            kind = PathType.PXB
        elif link.kind == "pcie" and "cpu" in kinds:
            kind = PathType.PHB
        elif kinds[0] == "gpu" and path.hops >= 1 and path.type is kind is PathType.NVL:
            kind = PathType.NVB
        return max(path.type, kind)

    def _spread(self, base: int) -> None:
        """Find the path of every device to *base*, breadth first."""
        by_type = self.system.version.since(2, 25)
        local = milli(float(read_table("topology")["local_GBps"]))
        self.table[base, base] = Path((), local, PathType.LOC)
        layer = [base]
        while layer:
            reached: list[int] = []
            for node in layer:
                path = self.table[node, base]
                for index in self.out[node]:
                    link = self.links[index]
                    if not self._may_pass(node, link, path, base):
                        continue
                    bw = min(path.bw, link.bw)
                    kind = self._type(node, link, path)
                    old = self.table.get((link.target, base))
                    hops = path.hops + 1
                    if old is not None:
                        if by_type:
                            better = (kind, -bw, hops) < (old.type, -old.bw, old.hops)
                        else:
                            better = old.hops >= hops and old.bw < bw
                        if not better:
                            continue
                    self.table[link.target, base] = Path((link.reverse, *path.links), bw, kind)
                    if link.target not in reached:
                        reached.append(link.target)
            layer = reached

    def _closest_cpu(self, gpu: int) -> int:
        reachable = [cpu for cpu in self.members["cpu"] if (gpu, cpu) in self.table]
        if not reachable:
            raise TopologyError("a GPU has no path to a CPU")
        return min(reachable, key=lambda cpu: self.table[gpu, cpu].hops)

    def _via(self, source: int, middle: int, target: int) -> None:
        """Replace a path by one over another device."""
        first, second = self.table[source, middle], self.table[middle, target]
        kind = max(first.type, second.type)
        if self.kinds[middle] == "gpu":
            kind = PathType.PXN
        elif {first.type, second.type} == {PathType.C2C, PathType.PHB}:
            kind = PathType.P2C
        self.table[source, target] = Path(
            first.links + second.links, min(first.bw, second.bw), kind
        )

    @property
    def p2p_level(self) -> PathType:
        """The farthest path over which GPUs reach each other directly."""
        system = self.system
        if system.options.p2p_level is not None:
            return system.options.p2p_level
        if system.version.since(2, 22):
            few = len(self.members["gpu"]) <= 2
            return PathType.SYS if system.cpu == "x86_amd" and few else PathType.PXB
        return PathType.PXB if system.cpu in ("x86_intel", "arm") else PathType.SYS

    def _divert_gpus(self) -> None:
        gpus = self.members["gpu"]
        level = self.p2p_level
        for target in gpus:
            for source in gpus:
                if source == target:
                    continue
                path = self.table.get((source, target))
                by_driver = self.system.gpu_p2p or (path is not None and path.type <= PathType.NVB)
                if path is not None and path.type <= level and by_driver:
                    continue
                if self.system.options.shared_memory:
                    self._via(source, self.local_cpu[target], target)
                else:
                    self.table[source, target] = Path((), 0, PathType.NET)

    def local(self, source: int, kind: str) -> list[int]:
        """Return the devices of a kind with the fastest and then closest path from *source*."""
        best: tuple[int, int] | None = None
        found: list[int] = []
        for target in self.members[kind]:
            path = self.table.get((source, target))
            if path is None:
                continue
            rank = (-path.bw, int(path.type))
            if best is None or rank < best:
                best, found = rank, []
            if rank == best:
                found.append(target)
        return found

    def local_net(self, gpu: int, channel: int) -> int | None:
        """Return the port a GPU takes for a channel: its own of several local ones in turn."""
        nets = self.local(gpu, "net")
        if not nets:
            return None
        gpus = self.local(nets[0], "gpu")
        n = len(nets)
        # GPUs of one switch start at different ports.
        start = self.members["gpu"].index(gpu)
        if n & (n - 1) == 0:
            bits = n.bit_length() - 1
            start = int(format(start % n, f"0{bits}b")[::-1], 2) if bits else 0
        start += channel % -(-n // max(1, len(gpus)))
        return nets[start % n]

    def local_gpu(self, net: int) -> int | None:
        """Return the GPU that owns a port."""
        gpus = self.local(net, "gpu")
        for channel in range(len(self.members["net"])):
            for gpu in gpus:
                if self.local_net(gpu, channel) == net:
                    return gpu
        return None

    def _gdr(self, gpu: int, net: int) -> bool:
        """Return whether a NIC reads and writes a GPU's memory directly."""
        gpus, nets = self.members["gpu"], self.members["net"]
        vertex = self.system.of_kind("gpu")[gpus.index(gpu)]
        if not vertex.gpudirect or not self.nics[nets.index(net)].gpudirect:
            return False
        default = PathType.P2C if self.system.version.since(2, 27) else PathType.PXB
        asked = self.system.options.gdr_level
        level = default if asked is None else asked
        path = self.table[gpu, net]
        if path.type is PathType.PXN:
            relay = self.local_gpu(net)
            path = path if relay is None else self.table[relay, net]
        return path.type <= level

    def _mark_c2c(self) -> None:
        """Count a NIC at the CPU of a superchip as close to its GPU (since 2.27)."""
        for gpu in self.members["gpu"]:
            cpu = self.local_cpu[gpu]
            for net in self.local(gpu, "net"):
                near, far = self.table[gpu, cpu].type, self.table[net, cpu].type
                if {near, far} == {PathType.C2C, PathType.PHB}:
                    for way in ((gpu, net), (net, gpu)):
                        self.table[way].type = min(PathType.P2C, self.table[way].type)

    def _divert_nics(self) -> None:
        if self.system.version.since(2, 27):
            self._mark_c2c()
        farthest = PathType.P2C if self.system.version.since(2, 27) else PathType.PXB
        for net in self.members["net"]:
            for gpu in self.members["gpu"]:
                path = self.table.get((gpu, net))
                if path is None:
                    continue
                relay = self.local_gpu(net) if self.system.options.pxn else None
                if relay is not None and relay != gpu:
                    near = self.table[relay, net]
                    if (
                        near.type <= farthest
                        and self.table[relay, gpu].type <= PathType.NVL
                        and (near.bw > path.bw or path.type > PathType.PXB)
                    ):
                        # Only for sending: receives land on the GPU next to the NIC.
                        self._via(gpu, relay, net)
                if self.table[gpu, net].type < PathType.PHB and not self._gdr(gpu, net):
                    cpu = self.local_cpu[gpu]
                    self._via(net, cpu, gpu)
                    self._via(gpu, cpu, net)

    def charges(self, path: Path, start: str, amount: int) -> dict[int, int]:
        """Return what a flow takes from each directed link, MB/s.

        Parameters
        ----------
        path
            Its way.
        start
            Kind of the device it starts at.
        amount
            Its rate, MB/s.
        """
        cpu = self.system.cpu
        through_cpu = any(self.kinds[self.links[i].target] == "cpu" for i in path.links)
        # Intel root complexes cut peer-to-peer writes of GPUs into small packets.
        slow = path.type is PathType.PHB and start == "gpu" and through_cpu and cpu == "x86_intel"
        taken: dict[int, int] = {}
        for index in path.links:
            link = self.links[index]
            forward = amount * 6 // 5 if slow and link.kind == "pcie" else amount
            taken[index] = taken.get(index, 0) + forward
            backward = 0
            # Writes of a NIC into older GPUs cost some of the other direction.
            if self.kinds[link.target] == "gpu" and self.sm[link.target] < 80 and start != "gpu":
                backward += forward // 8
            if self.kinds[link.target] == "cpu" and cpu == "power" and link.kind == "nvlink":
                backward += forward
            if backward:
                taken[link.reverse] = taken.get(link.reverse, 0) + backward
        return taken

    def domains(self) -> list[list[int]]:
        """Return the local GPU indices grouped by mutual reach inside the node."""
        groups: list[list[int]] = []
        gpus = self.members["gpu"]
        for index, gpu in enumerate(gpus):
            for group in groups:
                if self.table[gpu, gpus[group[0]]].type < PathType.NET:
                    group.append(index)
                    break
            else:
                groups.append([index])
        return groups
