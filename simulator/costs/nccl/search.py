"""NCCL's graph search: rings, trees and NVLS heads of a node, their number and their speed.

The search tries speeds from the fastest down; for each it relaxes, one after the other, that all
channels have the same order, the shape of the tree, the path types allowed between GPUs and to
NICs, and that a ring leaves by the NIC it came in by; and keeps the graph with the largest sum of
bandwidth.

Not modelled: graphs loaded from a file, NICs merged into one, and the search over a multi-node
NVLink domain.  Attempts that cannot beat the best graph, by a bound on the links of the GPUs, are
left out; NCCL runs them into its time limit.

References
----------
NCCL src/graph/search.cc (ncclTopoCompute) and src/init.cc, read at 2.21.5.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import lru_cache

from simulator.base.errors import TopologyError
from simulator.costs.nccl.bounds import hopeless
from simulator.costs.nccl.graph import ChannelGraph, GraphChannel, PathType, Pattern
from simulator.costs.nccl.paths import Paths, milli
from simulator.costs.nccl.system import SearchSystem
from simulator.costs.nccl.tables import since
from simulator.costs.nccl.version import NcclVersion
from simulator.costs.nccl.walker import PERFECT, Attempt, Found, Walker

__all__ = ["GraphSet", "search_graphs"]

_BUDGET_NCCL = 1 << 14
_BUDGET = 1 << 12
"""Steps of an attempt, a quarter of NCCL's: on all nodes tried the last improvement comes before
the thousandth step."""
_BUDGET_SAME = 1 << 8
_BUDGET_ALL = 1 << 19


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphSet:
    """All graphs of a node."""

    graphs: dict[str, ChannelGraph] = field(hash=False)
    """``ring``, ``tree``, and where they exist ``nvls``, ``collnet_chain``, ``collnet_direct``."""
    max_bw_GBps: float
    """Largest path bandwidth of any GPU to a NIC, or to a GPU on a single node."""
    total_bw_GBps: float
    """Largest bandwidth of any GPU, NVLinks together or the link to the CPU."""
    gpu_paths: dict[tuple[int, int], PathType] = field(hash=False)
    """Path type between local GPUs."""
    net_paths: dict[tuple[int, int], PathType] = field(hash=False)
    """Path type from local GPU to NIC."""
    nvlinks_between: int | None
    """The fewest NVLinks' worth of bandwidth between two GPUs; None: some pair has none."""
    domains: tuple[tuple[int, ...], ...]
    """GPUs that reach each other inside the node; several when P2P and host memory are both off:
    the graphs are then those of the first."""


def _speeds(version: NcclVersion, sm: int, *, network: bool) -> list[float]:
    table = since("topology", "speeds_GBps", version)["inter" if network else "intra"]
    return [float(speed) for speed in table[max(bound for bound in table if bound <= sm)]]


def _limits(paths: Paths, *, network: bool) -> tuple[int, int]:
    """Return the largest path and the largest total bandwidth of any GPU, MB/s."""
    gpus = paths.members["gpu"]
    targets = paths.members["net" if network else "gpu"]
    if not network and len(gpus) == 1:
        return milli(5000.0), milli(5000.0)
    ways = [paths.table.get((gpu, target)) for gpu in gpus for target in targets]
    most = max((way.bw for way in ways if way is not None and way.links), default=0)
    totals = []
    for gpu in gpus:
        links = [paths.links[i] for i in paths.out[gpu]]
        nvlink = sum(link.bw for link in links if link.kind == "nvlink")
        pcie = max((link.bw for link in links if link.kind in ("pcie", "c2c")), default=0)
        totals.append(max(nvlink, pcie))
    return most, max(totals)


class _Search:
    """The search for one pattern."""

    def __init__(
        self, paths: Paths, *, network: bool, pattern: Pattern, least: int, most: int, collnet: bool
    ) -> None:
        self.paths, self.network = paths, network
        self.system = paths.system
        self.walker = Walker(paths, network=network)
        self.n = len(paths.members["gpu"])
        self.sm = self.system.min_sm
        if self.n == 1 and pattern is not Pattern.RING:
            pattern = Pattern.TREE
        self.pattern = pattern
        self.max_bw, self.total_bw = _limits(paths, network=network)
        self.speeds = _speeds(self.system.version, self.sm, network=network)
        crossing = len(paths.members["net"]) > 1 and pattern in (
            Pattern.RING,
            Pattern.BALANCED_TREE,
            Pattern.SPLIT_TREE,
        )
        self.cross = self.system.options.cross_nic if crossing else 0
        self.nearest = PathType.LOC if self.n == 1 else PathType.NVL
        self.try_same = pattern is not Pattern.NVLS
        self.global_budget = _BUDGET_ALL
        self.base = Attempt(
            pattern=pattern,
            min_channels=least,
            max_channels=most,
            bw_intra=0.0,
            bw_inter=0.0,
            type_intra=self.nearest,
            type_inter=PathType.PIX,
            cross_nic=1 if self.cross == 1 else 0,
            same_channels=self.try_same,
            collnet=collnet,
        )
        gpus, nets = paths.members["gpu"], paths.members["net"]
        self.types_intra = sorted(
            {paths.table[a, b].type for a in gpus for b in gpus if a != b} | {self.nearest}
        )
        ways = [(a, b) for a in gpus for b in nets] + [(b, a) for a in gpus for b in nets]
        self.types_inter = sorted(
            {paths.table[way].type for way in ways if way in paths.table} | {PathType.PIX}
        )

    # -- the search ---------------------------------------------------------------------------

    def _try(self, attempt: Attempt) -> int:
        budget = _BUDGET_SAME if attempt.same_channels else _BUDGET
        if hopeless(self.paths, attempt, self.walker.best, network=self.network):
            return budget
        left = self.walker.run(attempt, budget)
        # What the attempt takes from the time for all, counted as NCCL would.
        ran_out = left == 0 and not attempt.same_channels
        self.global_budget -= _BUDGET_NCCL if ran_out else budget - max(left, 0)
        return left

    def _done(self, left: int) -> bool:
        best = self.walker.best
        reached = 0.0 if best is None else best.n_channels * best.bw_inter
        return left == PERFECT or milli(reached) >= self.total_bw

    def _first_speed(self) -> int:
        total = float(self.total_bw)
        if self.n > 1 and self.pattern is not Pattern.RING:
            total *= self.n / (self.n - 1)
        for index, speed in enumerate(self.speeds):
            amount = milli(speed)
            if amount <= self.max_bw and amount * self.base.min_channels <= total:
                return index
        return len(self.speeds) - 1

    def _may_differ(self, attempt: Attempt) -> bool:
        amd = self.system.cpu == "x86_amd"
        return not (amd and attempt.type_intra is PathType.SYS)

    def _shapes(self, attempt: Attempt) -> bool:
        """Try an attempt with equal and different channels, and with a simpler tree."""
        simpler = self.sm >= 90 and self.pattern is Pattern.BALANCED_TREE
        for pattern in (self.pattern, Pattern.TREE) if simpler else (self.pattern,):
            now = replace(attempt, pattern=pattern, same_channels=self.try_same)
            if self._done(self._try(now)):
                return True
            differ = replace(now, same_channels=False)
            if now.same_channels and self._may_differ(now) and self._done(self._try(differ)):
                return True
            if self.global_budget < 0 and self.walker.best is not None:
                return True
        return False

    def _types(self, attempt: Attempt) -> bool:
        """Relax the path types."""
        for inter in self.types_inter if self.network else [PathType.PIX]:
            best = self.walker.best
            if best is not None and inter > best.attempt.type_inter and inter > PathType.PXN:
                break
            for intra in self.types_intra:
                best = self.walker.best
                if self.network and intra > max(inter, self.nearest):
                    break
                if best is not None and intra > self.nearest and intra > best.attempt.type_intra:
                    break
                if self._shapes(replace(attempt, type_intra=intra, type_inter=inter)):
                    return True
        return False

    def _pass_1(self) -> None:
        start = self._first_speed()
        for speed in self.speeds[start:]:
            best = self.walker.best
            if best is not None and speed / best.bw_inter <= 0.49:
                return
            attempt = replace(self.base, bw_intra=speed, bw_inter=speed)
            if self._types(attempt):
                return
            if self.cross == 2 and self._types(replace(attempt, cross_nic=1)):
                return

    def _duplicate(self, best: Found) -> Found:
        """Two channels for each when a channel has more than an SM can move."""
        if self.pattern is Pattern.NVLS or best.bw_intra < 25.0:
            return best
        if self.sm > 80 and best.bw_intra < 50.0 and best.n_channels > 4:
            return best
        count = min(2 * best.n_channels, self.base.max_channels)
        parts = -(-count // best.n_channels)
        more = count - best.n_channels
        return replace(
            best,
            n_channels=count,
            gpus=best.gpus + best.gpus[:more],
            nets=best.nets + best.nets[:more],
            bw_intra=best.bw_intra / parts,
            bw_inter=best.bw_inter / parts,
        )

    def _pass_2(self) -> None:
        """Raise the speed for the same channels."""
        first = self.walker.best
        if first is None:
            return
        index = next(
            (i for i, speed in enumerate(self.speeds) if speed <= first.bw_inter),
            len(self.speeds) - 1,
        )
        attempt = replace(
            first.attempt,
            bw_intra=self.speeds[index],
            bw_inter=self.speeds[index],
            min_channels=first.n_channels,
        )
        left = PERFECT
        while left != 0 and index > 0:
            best = self.walker.best
            if best is None:
                return
            faster = self.speeds[index - 1]
            if self.pattern is Pattern.RING:
                attempt = replace(attempt, bw_intra=faster, bw_inter=faster)
            elif self.pattern is Pattern.NVLS:
                if attempt.bw_inter != best.bw_inter or attempt.bw_inter >= 2 * attempt.bw_intra:
                    return
                attempt = replace(
                    attempt,
                    bw_inter=faster,
                    min_channels=best.n_channels,
                    max_channels=best.n_channels,
                )
            else:
                if attempt.bw_intra != best.bw_intra or attempt.bw_intra >= 2 * attempt.bw_inter:
                    return
                attempt = replace(attempt, bw_intra=faster)
            index -= 1
            left = self._try(attempt)

    def run(self) -> ChannelGraph | None:
        """Return the graph; None when the pattern cannot be had."""
        self._pass_1()
        if self.walker.best is not None:
            self.walker.best = self._duplicate(self.walker.best)
            self._pass_2()
        return self._graph()

    def _graph(self) -> ChannelGraph | None:
        best = self.walker.best
        if best is None:
            if self.pattern is Pattern.NVLS or self.base.collnet:
                return None
            # NCCL goes on with the order of the ranks and next to no bandwidth.
            net = 0 if self.network else None
            order = GraphChannel(gpus=tuple(range(self.n)), net_in=net, net_out=net)
            return ChannelGraph(
                pattern=self.pattern,
                n_channels=1,
                bw_intra_GBps=0.1,
                bw_inter_GBps=0.1,
                type_intra=PathType.SYS,
                type_inter=PathType.SYS,
                channels=(order,),
            )
        nets = [pair if self.network else (None, None) for pair in best.nets]
        latency = self.paths.nics[best.nets[-1][0]].latency_us if self.network else 0.0
        return ChannelGraph(
            pattern=best.attempt.pattern,
            n_channels=best.n_channels,
            bw_intra_GBps=best.bw_intra,
            bw_inter_GBps=best.bw_inter,
            type_intra=best.attempt.type_intra,
            type_inter=best.attempt.type_inter,
            latency_inter_us=latency,
            same_channels=best.attempt.same_channels,
            cross_nic=best.attempt.cross_nic,
            channels=tuple(
                GraphChannel(gpus=gpus, net_in=net_in, net_out=net_out)
                for gpus, (net_in, net_out) in zip(best.gpus, nets, strict=True)
            ),
        )


def _trimmed(system: SearchSystem, keep: list[int]) -> SearchSystem:
    """Return the node with some of its GPUs only."""
    gone = {gpu.name for i, gpu in enumerate(system.of_kind("gpu")) if i not in keep}
    return replace(
        system,
        vertices=tuple(v for v in system.vertices if v.name not in gone),
        links=tuple(k for k in system.links if k.a not in gone and k.b not in gone),
    )


def _nvlinks(paths: Paths) -> int | None:
    gpus = paths.members["gpu"]
    bounds = since("topology", "nvlink_GBps", paths.system.version)["bounds"]
    fewest: int | None = None
    for a in gpus:
        one = milli(float(bounds[max([b for b in bounds if b <= paths.sm[a]], default=60)]))
        for b in gpus:
            if a == b:
                continue
            path = paths.table[a, b]
            if path.type > PathType.NVL:
                return None
            count = max(1, path.bw // one)
            fewest = count if fewest is None else min(fewest, count)
    return fewest


@lru_cache(maxsize=256)
def search_graphs(system: SearchSystem, *, network: bool) -> GraphSet:
    """Return the graphs NCCL builds on a node.

    Parameters
    ----------
    system
        The node with the communicator's GPUs.
    network
        The communicator spans nodes.

    Returns
    -------
    GraphSet
        Cached by both arguments.

    Raises
    ------
    TopologyError
        The communicator spans nodes and the node has no NIC; or GPUs of a single node that reach
        each other neither directly nor through host memory.
    """
    if network and not system.of_kind("nic"):
        raise TopologyError("a communicator over nodes needs a NIC in the node")
    paths = Paths(system, network=network)
    domains = paths.domains()
    if len(domains) > 1:
        if not system.of_kind("nic"):
            raise TopologyError("GPUs reach each other neither directly nor through host memory")
        system, network = _trimmed(system, domains[0]), True
        paths = Paths(system, network=network)
    most = int(since("tuning", "max_channels", system.version)["count"]) // 2
    graphs: dict[str, ChannelGraph] = {}

    def search(
        name: str, pattern: Pattern, least: int, top: int, *, collnet: bool = False
    ) -> ChannelGraph | None:
        graph = _Search(
            paths, network=network, pattern=pattern, least=least, most=top, collnet=collnet
        ).run()
        if graph is not None:
            graphs[name] = graph
        return graph

    ring = search("ring", Pattern.RING, 1, most)
    count = 1 if ring is None else ring.n_channels
    search("tree", Pattern.BALANCED_TREE, count, count)
    n_gpus = len(paths.members["gpu"])
    options, version = system.options, system.version
    if options.collnet and network and any(nic.collnet for nic in paths.nics):
        search("collnet_chain", Pattern.TREE, count, count, collnet=True)
    if version.since(2, 17) and options.nvls and system.min_sm >= 90 and paths.members["nvs"]:
        least = 1 if network else n_gpus
        search("nvls", Pattern.NVLS, least, n_gpus)
    gpus, nets = paths.members["gpu"], paths.members["net"]
    max_bw, total_bw = _limits(paths, network=network)
    return GraphSet(
        graphs=graphs,
        max_bw_GBps=max_bw / 1000,
        total_bw_GBps=total_bw / 1000,
        gpu_paths={
            (i, j): paths.table[a, b].type
            for i, a in enumerate(gpus)
            for j, b in enumerate(gpus)
            if i != j
        },
        net_paths={
            (i, j): paths.table[a, b].type
            for i, a in enumerate(gpus)
            for j, b in enumerate(nets)
            if (a, b) in paths.table
        },
        nvlinks_between=_nvlinks(paths),
        domains=tuple(map(tuple, domains)),
    )
