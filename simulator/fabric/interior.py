"""Paths inside one node: NVLink, PCIe peer to peer, host bounce, GPU to NIC.

A path is chosen as NCCL does (NCCL 2.27 src/graph/paths.cc and topo.h): NVLink directly or
through NVSwitches; two NVLinks through one GPU; PCIe without crossing a CPU; else through the
memory of the CPU next to the receiver.

Host bounce.  The sender writes into host memory over PCIe, the receiver reads it from there (or
the NIC does).  Its route is the way to the CPU and the way on, each link once, in cut-through:
the copy is pipelined, so that both ways are busy at the same time and the narrowest link sets the
rate.  The host memory is crossed twice, once written and once read: its link
``node0.cpu0.memory`` (present when the template gives `cpu_memory_Bps`) carries share 2, and so
binds when many GPUs of a socket bounce at once.  Latency is the sum over both ways.
Not modelled: the lower rate of GPU reads across PCIe, and cache effects such as DDIO.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum

from simulator.fabric.model import LINK_KINDS, VERTEX_KINDS
from simulator.fabric.options import RoutingOptions
from simulator.fabric.template import CompiledTemplate

__all__ = ["Interior", "LocalRoute", "Reach"]

_GPU, _NVSWITCH, _PCIE_SWITCH, _CPU = (
    VERTEX_KINDS.index(kind) for kind in ("gpu", "nvswitch", "pcie_switch", "cpu")
)
_NVLINK, _XGMI, _C2C = (LINK_KINDS.index(kind) for kind in ("nvlink", "xgmi", "nvlink_c2c"))
_SCALE_UP = (_NVLINK, _XGMI)
_ANY = 99
_MOST_CPUS = {"nvl": 0, "pix": 0, "pxb": 0, "phb": 1, "sys": _ANY}
"""CPUs that a path may cross at each level."""
_MOST_SWITCHES = {"pix": 1}
"""PCIe switches that a path may cross, where the level says so."""


class Reach(IntEnum):
    """How far a GPU and a NIC are apart; smaller is closer (NCCL's path types)."""

    PXB = 0
    """PCIe switches only (PIX and PXB)."""
    GPU = 1
    """Through a GPU that has the NIC, over xGMI (MI250X)."""
    C2C = 2
    """Through the CPU that shares a chip-to-chip link with the GPU (P2C)."""
    PHB = 3
    """Through one CPU."""
    SYS = 4
    """Through several CPUs."""


@dataclass(frozen=True, slots=True)
class LocalRoute:
    """Links of a node that a transfer takes, with the share on each."""

    link: tuple[int, ...]
    share: tuple[float, ...]
    latency_s: float

    def then(self, other: LocalRoute) -> LocalRoute:
        """Return this route followed by another."""
        shares = dict(zip(self.link, self.share, strict=True))
        for link, share in zip(other.link, other.share, strict=True):
            shares[link] = shares.get(link, 0.0) + share
        return LocalRoute(tuple(shares), tuple(shares.values()), self.latency_s + other.latency_s)


class Interior:
    """All paths of one node with some links dead.

    Parameters
    ----------
    compiled
        The node.
    options
        Routing options.
    dead
        Local directed links that have failed.
    """

    def __init__(
        self,
        compiled: CompiledTemplate,
        options: RoutingOptions,
        dead: frozenset[int] = frozenset(),
    ) -> None:
        self.compiled = compiled
        self._kind: list[int] = compiled.kind.tolist()
        self._link_kind: list[int] = compiled.link_kind.tolist()
        self._rate: list[float] = compiled.capacity_Bps.tolist()
        self._latency: list[float] = compiled.latency_s.tolist()
        self._dst: list[int] = compiled.link_dst.tolist()
        self._out: list[list[int]] = [[] for _ in compiled.names]
        for link, (src, dst) in enumerate(
            zip(compiled.link_src.tolist(), compiled.link_dst.tolist(), strict=True)
        ):
            if src != dst and link not in dead:
                self._out[src].append(link)
        gpus = set(compiled.gpus.tolist())
        self._peer_links = {
            link for gpu in gpus for link in self._out[gpu] if self._dst[link] in gpus
        }
        nics = set(compiled.nics.tolist())
        self._own_nics = {gpu: {self._dst[out] for out in self._out[gpu]} & nics for gpu in gpus}
        self._buses: dict[tuple[int, int, bool], list[int] | None] = {}
        template = compiled.template
        self._scale_up = options.p2p is not False
        self._nvb = options.nvb
        self._pcie_p2p = template.p2p if options.p2p is None else options.p2p
        level = options.p2p_level
        if level is None:
            amd_pair = template.cpu_arch == "x86_amd" and len(compiled.gpus) <= 2
            level = "sys" if amd_pair else "pxb"
        self._pcie_p2p = self._pcie_p2p and level != "nvl"
        self._p2p_cpus = _MOST_CPUS[level]
        self._p2p_switches = _MOST_SWITCHES.get(level, _ANY)
        self._shm = options.shm
        self._gpudirect = template.gpudirect if options.gpudirect is None else options.gpudirect
        self._gdr_cpus = _MOST_CPUS[options.gdr_level]
        self._gdr_switches = _MOST_SWITCHES.get(options.gdr_level, _ANY)
        self._gdr_read = options.gdr_read

    # ---------------------------------------------------------------- search

    def _paths(
        self, src: int, dst: int, link_ok: Callable[[int], bool], through: Callable[[int], bool]
    ) -> list[list[int]]:
        """Return all shortest paths whose links and inner vertices are allowed."""
        depth = {src: 0}
        into: dict[int, list[int]] = {}
        front = [src]
        while front and dst not in depth:
            following: list[int] = []
            for vertex in front:
                for link in self._out[vertex]:
                    head = self._dst[link]
                    if not link_ok(link) or not (head == dst or through(head)):
                        continue
                    if head not in depth:
                        depth[head] = depth[vertex] + 1
                        following.append(head)
                    if depth[head] == depth[vertex] + 1:
                        into.setdefault(head, []).append(link)
            front = following
        if dst not in depth or src == dst:
            return []
        source = self.compiled.link_src
        found: list[list[int]] = []

        def back(vertex: int, tail: list[int]) -> None:
            if vertex == src:
                found.append(tail)
                return
            for link in into[vertex]:
                back(int(source[link]), [link, *tail])

        back(dst, [])
        return found

    def _width(self, path: list[int]) -> float:
        return min(self._rate[link] for link in path)

    def _single(self, path: list[int]) -> LocalRoute:
        late = sum(self._latency[link] for link in path)
        return LocalRoute(tuple(path), (1.0,) * len(path), late)

    def _split(self, paths: list[list[int]]) -> LocalRoute:
        """Return a route over several paths, in proportion to their widths."""
        if len(paths) == 1:
            return self._single(paths[0])
        total = sum(self._width(path) for path in paths)
        shares: dict[int, float] = {}
        for path in paths:
            for link in path:
                shares[link] = shares.get(link, 0.0) + self._width(path) / total
        late = max(sum(self._latency[link] for link in path) for path in paths)
        return LocalRoute(tuple(shares), tuple(shares.values()), late)

    def _bus(self, src: int, dst: int, cpus: bool) -> list[int] | None:
        """Return the shortest, then widest path over PCIe, sockets and C2C.

        A GPU with a NIC of its own (MI250X) is the host's bridge to that NIC.
        """

        def through(vertex: int) -> bool:
            kind = self._kind[vertex]
            if kind == _GPU:
                return cpus and bool(self._own_nics[vertex] & {src, dst})
            return kind == _PCIE_SWITCH or (cpus and kind == _CPU)

        key = (src, dst, cpus)
        if key not in self._buses:
            paths = self._paths(src, dst, lambda link: link not in self._peer_links, through)
            self._buses[key] = max(paths, key=self._width) if paths else None
        return self._buses[key]

    def _n_cpus(self, path: Sequence[int]) -> int:
        return self._n_inner(path, _CPU)

    def _n_inner(self, path: Sequence[int], kind: int) -> int:
        """Return how many vertices of a kind a path passes between its ends."""
        return sum(self._kind[self._dst[link]] == kind for link in path[:-1])

    def _home(self, vertex: int) -> int | None:
        """Return the CPU next to a vertex: fewest links, then widest."""
        best: tuple[int, float, int] | None = None
        for cpu in (v for v, kind in enumerate(self._kind) if kind == _CPU):
            path = self._bus(vertex, cpu, cpus=False)
            if path is not None:
                rank = (len(path), -self._width(path), cpu)
                best = rank if best is None else min(best, rank)
        return None if best is None else best[2]

    def _bounce(self, src: int, dst: int, cpu: int | None) -> LocalRoute | None:
        """Return the way through a CPU's memory, which is written and read."""
        if cpu is None:
            return None
        up, down = self._bus(src, cpu, cpus=True), self._bus(cpu, dst, cpus=True)
        if up is None or down is None:
            return None
        route = self._single(up)
        memory = self.compiled.memory_link.get(cpu)
        if memory is not None:
            route = route.then(LocalRoute((memory,), (2.0,), self._latency[memory]))
        return route.then(self._single(down))

    # ------------------------------------------------------------ GPU to GPU

    def scale_up(self, src: int, dst: int, *, relayed: bool = True) -> LocalRoute | None:
        """Return the NVLink or xGMI route between two GPUs, or None.

        Parameters
        ----------
        src, dst
            Local vertices of the GPUs.
        relayed
            Other GPUs may forward.
        """
        if not self._scale_up:
            return None

        def is_fast(link: int) -> bool:
            return self._link_kind[link] in _SCALE_UP

        paths = self._paths(src, dst, is_fast, lambda vertex: self._kind[vertex] == _NVSWITCH)
        if paths:
            return self._split(paths)
        if not relayed:
            return None
        for kind, longest in ((_NVLINK, 2 if self._nvb else 1), (_XGMI, 99)):
            # xGMI forwards in hardware over any number of dies; NVLink needs a GPU's help (NVB).
            paths = self._paths(
                src,
                dst,
                lambda link, kind=kind: self._link_kind[link] == kind,  # type: ignore[misc]
                lambda vertex: self._kind[vertex] == _GPU,
            )
            if paths and len(paths[0]) <= longest:
                widest = max(self._width(path) for path in paths)
                paths = [path for path in paths if self._width(path) == widest]
                # One way per pair, as NCCL; the sum of the ends spreads pairs over the ways.
                return self._single(paths[(src + dst) % len(paths)])
        return None

    def gpu_to_gpu(self, src: int, dst: int) -> LocalRoute | None:
        """Return the route between two GPUs of the node, or None when they are cut.

        Without shared memory GPUs that cannot reach each other are cut inside the node.
        """
        fast = self.scale_up(src, dst)
        if fast is not None:
            return fast
        if self._pcie_p2p:
            path = self._bus(src, dst, cpus=False) or self._bus(src, dst, cpus=True)
            if (
                path is not None
                and self._n_cpus(path) <= self._p2p_cpus
                and self._n_inner(path, _PCIE_SWITCH) <= self._p2p_switches
            ):
                return self._single(path)
        return self._bounce(src, dst, self._home(dst)) if self._shm else None

    # ------------------------------------------------------------ GPU to NIC

    def _reach(self, gpu: int, nic: int, outward: bool) -> tuple[Reach, LocalRoute] | None:
        """Return how far a NIC is and the route with GPUDirect."""
        src, dst = (gpu, nic) if outward else (nic, gpu)
        path = self._bus(src, dst, cpus=False)
        if path is not None:
            return Reach.PXB, self._single(path)
        through_gpu = self._through_xgmi(gpu, nic, outward)
        if through_gpu is not None:
            return Reach.GPU, through_gpu
        path = self._bus(src, dst, cpus=True)
        if path is None:
            return None
        first = path[0] if outward else path[-1]
        cpus = self._n_cpus(path)
        if self._link_kind[first] == _C2C and cpus == 1:
            return Reach.C2C, self._single(path)
        return (Reach.PHB if cpus == 1 else Reach.SYS), self._single(path)

    def _through_xgmi(self, gpu: int, nic: int, outward: bool) -> LocalRoute | None:
        """Return the shortest way over xGMI to a GPU with the NIC at its side."""
        best: LocalRoute | None = None
        for peer in self.compiled.gpus.tolist():
            bus = self._bus(peer, nic, cpus=False) if outward else self._bus(nic, peer, cpus=False)
            if bus is None or peer == gpu:
                continue
            ends = (gpu, peer) if outward else (peer, gpu)
            fast = self._paths(
                ends[0],
                ends[1],
                lambda link: self._link_kind[link] == _XGMI,
                lambda vertex: self._kind[vertex] == _GPU,
            )
            if fast:
                ways = self._single(max(fast, key=self._width)), self._single(bus)
                route = ways[0].then(ways[1]) if outward else ways[1].then(ways[0])
                if best is None or len(route.link) < len(best.link):
                    best = route
        return best

    def nic_rank(self, gpu: int, nic: int, outward: bool) -> tuple[int, int, float] | None:
        """Return the affinity of a NIC, smaller is closer; None: no path.

        Path type first; then hops, where no CPU is crossed (one PCIe switch is closer than two);
        then the bandwidth, wider first.
        """
        found = self._reach(gpu, nic, outward)
        if found is None:
            return None
        reach, route = found
        hops = len(route.link) if reach <= Reach.C2C else 0
        return int(reach), hops, -min(self._rate[link] for link in route.link)

    def gpu_nic(self, gpu: int, nic: int, outward: bool) -> tuple[Reach, LocalRoute] | None:
        """Return reach and route between a GPU and a NIC, through host memory where it must.

        Host memory is used when GPUDirect is off, when the path is longer than `gdr_level` allows,
        and for sending without `gdr_read`; it is that of the GPU's own CPU.
        """
        found = self._reach(gpu, nic, outward)
        if found is None:
            return None
        reach, route = found
        cpus = {Reach.PHB: 1, Reach.SYS: 2}.get(reach, 0)
        near = (
            cpus <= self._gdr_cpus and self._n_inner(route.link, _PCIE_SWITCH) <= self._gdr_switches
        )
        if self._gpudirect and near and (self._gdr_read or not outward):
            return reach, route
        ends = (gpu, nic) if outward else (nic, gpu)
        bounced = self._bounce(*ends, self._home(gpu))
        return None if bounced is None else (reach, bounced)

    # --------------------------------------------------------------- switches

    def to_nvswitch(self, gpu: int, outward: bool) -> LocalRoute | None:
        """Return the route between a GPU and its NVSwitches taken as one, by link width."""
        switches = set(self.compiled.nvswitches.tolist())
        if outward:
            links = [[link] for link in self._out[gpu] if self._dst[link] in switches]
        else:
            links = [
                [link]
                for switch in sorted(switches)
                for link in self._out[switch]
                if self._dst[link] == gpu
            ]
        return self._split(links) if links and self._scale_up else None
