"""One attempt of NCCL's graph search: fill a node with channels at given speeds and path types.

The attempt is a depth-first search over the order of GPUs in each channel that takes its bandwidth
from the links it uses, with a budget of steps as in NCCL.

References
----------
NCCL src/graph/search.cc (ncclTopoSearchRec and what it calls), read at 2.21.5.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

from simulator.costs.nccl.graph import PathType, Pattern
from simulator.costs.nccl.paths import Paths, milli

__all__ = ["PERFECT", "Attempt", "Found", "Walker"]

PERFECT = -1
"""Left-over budget of an attempt that reached the largest number of channels."""
_FORCED_BUDGET = 1 << 10
_TREES = (Pattern.BALANCED_TREE, Pattern.TREE, Pattern.SPLIT_TREE)

_Charge: TypeAlias = tuple[tuple[int, int], ...]
_Steps: TypeAlias = "Iterator[_Steps]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """What one attempt looks for."""

    pattern: Pattern
    min_channels: int
    max_channels: int
    bw_intra: float
    """GB/s per channel."""
    bw_inter: float
    type_intra: PathType
    type_inter: PathType
    cross_nic: int
    same_channels: bool
    collnet: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The best graph so far."""

    attempt: Attempt
    n_channels: int
    hops: int
    gpus: tuple[tuple[int, ...], ...]
    """Local GPU indices of each channel."""
    nets: tuple[tuple[int, int], ...]
    """Port in and port out of each channel, as indices."""
    bw_intra: float
    bw_inter: float


class Walker:
    """Runs attempts on a node and keeps the best graph.

    Parameters
    ----------
    paths
        The node with its paths.
    network
        Whether channels start and end at NICs.
    """

    def __init__(self, paths: Paths, *, network: bool) -> None:
        self.paths = paths
        self.network = network
        self.gpus = paths.members["gpu"]
        self.nets = paths.members["net"]
        self.nvs = paths.members["nvs"][0] if paths.members["nvs"] else None
        self.index_of = {gpu: i for i, gpu in enumerate(self.gpus)}
        self.bw = [link.bw for link in paths.links]
        self.net_bw = [milli(nic.net_GBps) for nic in paths.nics]
        self.cards = [nic.card or nic.name for nic in paths.nics]
        self.best: Found | None = None
        self._net_lists: dict[tuple[PathType, int], list[int]] = {}
        self._owner: dict[int, int | None] = {}
        self._scores: dict[tuple[int, int], tuple[int, int]] = {}

    # -- an attempt ---------------------------------------------------------------------------

    def run(self, attempt: Attempt, budget: int) -> int:
        """Look for a graph better than the best one; return what is left of the budget.

        Returns
        -------
        int
            `PERFECT` when the largest number of channels was reached, 0 when the budget ran out.
        """
        self.attempt = attempt
        self.budget = budget
        self.hops = 0
        self.used = [False] * len(self.gpus)
        self.order: list[list[int]] = []
        self.ports: list[list[int]] = []
        self._charges: dict[tuple[int, int, float], _Charge | None] = {}
        self._next: dict[tuple[int, int, int], list[int]] = {}
        stack: list[_Steps] = [self._channel()]
        # A stack of generators instead of recursion: channels × GPUs levels are many.
        while stack:
            child = next(stack[-1], None)
            if child is None:
                stack.pop()
            else:
                stack.append(child)
        return self.budget

    def _charge(self, source: int, target: int, share: float) -> _Charge | None:
        """Return what going from a device to another takes from links; None when too far."""
        key = (source, target, share)
        if key not in self._charges:
            self._charges[key] = self._new_charge(source, target, share)
        return self._charges[key]

    def _new_charge(self, source: int, target: int, share: float) -> _Charge | None:
        attempt, paths = self.attempt, self.paths
        kinds = (paths.kinds[source], paths.kinds[target])
        intra = "net" not in kinds
        limit = attempt.type_intra if intra else attempt.type_inter
        path, back = paths.table.get((source, target)), paths.table.get((target, source))
        if path is None or path.type > limit or path.type >= PathType.NET:
            return None
        if attempt.pattern in _TREES and (back is None or back.type > limit):
            return None
        speed = (attempt.bw_intra if intra else attempt.bw_inter) * share
        return tuple(paths.charges(path, kinds[0], milli(speed)).items())

    def _take(self, charge: _Charge) -> bool:
        bw = self.bw
        for index, amount in charge:
            if bw[index] < amount:
                return False
        for index, amount in charge:
            bw[index] -= amount
        return True

    def _give_back(self, charge: _Charge) -> None:
        for index, amount in charge:
            self.bw[index] += amount

    # -- channels -----------------------------------------------------------------------------

    def _channel(self) -> _Steps:
        """Start the next channel."""
        if self.network:
            yield self._from_net()
            return
        attempt, done = self.attempt, len(self.order)
        if attempt.pattern is Pattern.NVLS:
            if done < len(self.gpus):
                yield self._start(done, None, -1)
            return
        first = 0 if done == 0 else self.order[-1][0]
        forced = "pci" if done == 0 else "replay"
        yield self._start(first, forced, -1)
        if not attempt.same_channels or done == 0:
            for gpu in range(len(self.gpus)):
                yield self._start(gpu, None, -1)

    def _start(self, gpu: int, forced: str | None, net: int) -> _Steps:
        """Try a first GPU of a channel, from a port when there is one."""
        if self.budget <= 0:
            return
        charge: _Charge | None = ()
        if net >= 0:
            charge = self._charge(self.nets[net], self.gpus[gpu], 1.0)
        if charge is None or not self._take(charge):
            return
        self.hops += self._hops(self.nets[net], self.gpus[gpu]) if net >= 0 else 0
        self.order.append([])
        self.ports.append([net, net])
        flags, self.used = self.used, [False] * len(self.gpus)
        yield self._visit(gpu, forced, self._return_step(), self.attempt.pattern is Pattern.RING)
        self.used = flags
        self.ports.pop()
        self.order.pop()
        self.hops -= self._hops(self.nets[net], self.gpus[gpu]) if net >= 0 else 0
        self._give_back(charge)

    def _hops(self, source: int, target: int) -> int:
        return self.paths.table[source, target].hops

    def _return_step(self) -> int:
        """Return the position in a channel from which it goes back to the network; −1: none."""
        if not self.network:
            return -1
        pattern = self.attempt.pattern
        if pattern is Pattern.RING:
            return len(self.gpus) - 1
        return 1 if pattern is Pattern.SPLIT_TREE else 0

    def _net_list(self, gpu: int) -> list[int]:
        """Return the ports to try: the local ones of one or all (−1) GPUs, then by distance."""
        key = (self.attempt.type_inter, gpu)
        if key not in self._net_lists:
            wanted = range(len(self.gpus)) if gpu < 0 else (gpu,)
            found: list[int] = []
            for g in wanted:
                for channel in range(len(self.nets)):
                    net = self.paths.local_net(self.gpus[g], channel)
                    if net is not None:
                        found.append(self.nets.index(net))
            for kind in range(self.attempt.type_inter + 1):
                for g in wanted:
                    for n, net in enumerate(self.nets):
                        path = self.paths.table.get((self.gpus[g], net))
                        if path is not None and path.type == kind:
                            found.append(n)
            self._net_lists[key] = list(dict.fromkeys(found))
        return self._net_lists[key]

    def _from_net(self) -> _Steps:
        """Start a channel at each port in turn."""
        attempt, done = self.attempt, len(self.order)
        speed = milli(float(int(attempt.bw_inter)))  # NCCL keeps whole GB/s here
        nets = self._net_list(-1)
        for offset in range(len(nets)):
            if self.budget <= 0 or (attempt.pattern is Pattern.NVLS and offset):
                return
            net = nets[(done + offset) % len(nets)]
            if attempt.collnet and not self.paths.nics[net].collnet:
                continue
            if self.net_bw[net] < speed:
                continue
            if attempt.cross_nic and done % 2 and net != self.ports[-1][1]:
                continue
            shared = [n for n, card in enumerate(self.cards) if card == self.cards[net]]
            for n in shared:
                self.net_bw[n] -= speed
            if attempt.pattern is Pattern.NVLS:
                head = self._owner_of(net)
                if done < len(nets) and head is not None:
                    yield self._start(head, None, net)
            else:
                yield self._from_port(net, done)
            for n in shared:
                self.net_bw[n] += speed

    def _owner_of(self, net: int) -> int | None:
        if net not in self._owner:
            gpu = self.paths.local_gpu(self.nets[net])
            self._owner[net] = None if gpu is None else self.index_of[gpu]
        return self._owner[net]

    def _from_port(self, net: int, done: int) -> _Steps:
        if done:
            yield self._start(self.order[-1][0], "replay", net)
        if done and self.attempt.same_channels:
            return
        if not done and self.nvs is None:
            # The order of the bus as a reference, on a budget of its own.
            budget, self.budget = self.budget, _FORCED_BUDGET
            yield self._start(0, "pci", net)
            self.budget = PERFECT if self.budget == PERFECT else budget
        ways = [self.paths.table.get((self.nets[net], gpu)) for gpu in self.gpus]
        known = [way for way in ways if way is not None]
        if not known:
            return
        fastest = max(way.bw for way in known)
        fewest = min(way.hops for way in known if way.bw == fastest)
        if fastest < milli(float(int(self.attempt.bw_inter))):
            return
        for offset in range(len(self.gpus)):
            gpu = (done + offset) % len(self.gpus)
            way = ways[gpu]
            if way is not None and way.bw == fastest and way.hops == fewest:
                yield self._start(gpu, None, net)

    # -- GPUs of a channel --------------------------------------------------------------------

    def _visit(self, gpu: int, forced: str | None, to_net: int, close: bool) -> _Steps:
        """Put a GPU into the channel and go on from it."""
        if self.budget <= 0:
            return
        self.budget -= 1
        chain, vertex = self.order[-1], self.gpus[gpu]
        chain.append(gpu)
        self.used[gpu] = True
        yield self._onward(gpu, vertex, len(chain) - 1, forced, to_net, close)
        self.used[gpu] = False
        chain.pop()

    def _onward(
        self, gpu: int, vertex: int, step: int, forced: str | None, to_net: int, close: bool
    ) -> _Steps:
        last = len(self.gpus) - 1
        if step == to_net:
            yield self._to_net(gpu, vertex, step, forced, close)
        elif self.attempt.pattern is Pattern.NVLS:
            yield self._nvls(gpu)
        elif step < last:
            for following in self._following(gpu, step, forced, to_net):
                if self.budget <= 0:
                    return
                target = self.gpus[following]
                charge = self._charge(vertex, target, 1.0)
                if charge is None or not self._take(charge):
                    continue
                hops = self._hops(vertex, target)
                self.hops += hops
                yield self._visit(following, forced, to_net, close)
                self.hops -= hops
                self._give_back(charge)
        elif close and not self.network:
            first = self.gpus[self.order[-1][0]]
            charge = self._charge(vertex, first, 1.0)
            if charge is not None and self._take(charge):
                hops = self._hops(vertex, first)
                self.hops += hops
                yield self._finish()
                self.hops -= hops
                self._give_back(charge)
        else:
            yield self._finish()

    def _to_net(self, gpu: int, vertex: int, step: int, forced: str | None, close: bool) -> _Steps:
        """Go back to the network, then on."""
        attempt, ports, done = self.attempt, self.ports[-1], len(self.order) - 1
        start = ports[0]
        balanced = attempt.pattern is Pattern.BALANCED_TREE
        for net in self._net_list(gpu):
            if self.budget <= 0:
                return
            if attempt.pattern is Pattern.TREE and net != start:
                continue
            if attempt.cross_nic != 1 and self.cards[net] != self.cards[start]:
                continue
            if attempt.cross_nic and done % 2 and net != self.ports[done - 1][0]:
                continue
            if balanced and step > 0 and net != ports[1]:
                continue
            # A balanced tree takes half of its bandwidth at each of the first two GPUs.
            charge = self._charge(vertex, self.nets[net], 0.5 if balanced else 1.0)
            if charge is None or not self._take(charge):
                continue
            before, ports[1] = ports[1], net
            hops = self._hops(vertex, self.nets[net])
            self.hops += hops
            if self.budget > 0:
                self.budget -= 1
                again = 1 if balanced and step == 0 else -1
                yield self._onward(gpu, vertex, step, forced, again, close)
            self.hops -= hops
            ports[1] = before
            self._give_back(charge)

    def _following(self, gpu: int, step: int, forced: str | None, to_net: int) -> list[int]:
        """Return the GPUs to try next, best first."""
        if forced == "pci":
            return [step + 1] if not self.used[step + 1] else []
        if forced == "replay":
            return [self.order[-2][step + 1]]
        by_net = 0 if to_net == -1 else (1 if to_net == step + 1 else -1)
        key = (gpu, by_net, self.ports[-1][0])
        if key not in self._next:
            self._next[key] = self._ranked(gpu, by_net)
        free = [g for g in self._next[key] if not self.used[g]]
        if by_net == -1 and free and len({self._near(gpu, g) for g in free}) == 1:
            free.reverse()
        return self._neighbours(gpu, free) if self.nvs is not None else free

    def _near(self, gpu: int, other: int) -> tuple[int, int]:
        """Return a score of the way to another GPU: whole GB/s, then hops; smaller is better."""
        key = (gpu, other)
        if key not in self._scores:
            path = self.paths.table[self.gpus[gpu], self.gpus[other]]
            self._scores[key] = (-(path.bw // 1000), path.hops)
        return self._scores[key]

    def _ranked(self, gpu: int, by_net: int) -> list[int]:
        n = len(self.gpus)
        scored = []
        for offset in range(1, n):
            other = (gpu + offset) % n
            path = self.paths.table.get((self.gpus[gpu], self.gpus[other]))
            if path is None or not path.links:
                continue
            score: tuple[int, ...] = (*self._near(gpu, other), offset)
            if by_net:
                net = self.nets[self.ports[-1][0]]
                way = self.paths.table[net, self.gpus[other]]
                score = (-(way.bw // 1000), -self._pcie(other), way.hops, *score)
            scored.append((score, other))
        return [other for _, other in sorted(scored)]

    def _pcie(self, gpu: int) -> int:
        """Return the PCIe bandwidth of a GPU in whole GB/s; −1 without."""
        for index in self.paths.out[self.gpus[gpu]]:
            link = self.paths.links[index]
            if link.kind == "pcie":
                return min(link.bw, self.paths.links[link.reverse].bw) // 1000
        return -1

    def _neighbours(self, gpu: int, free: list[int]) -> list[int]:
        """With NVSwitch only the neighbours by number: few peers are better for the switch."""
        n, pattern = len(self.gpus), self.attempt.pattern
        before, after = (gpu - 1) % n, (gpu + 1) % n
        if pattern is Pattern.RING:
            wanted = [before, after]
        elif pattern in (Pattern.SPLIT_TREE, Pattern.BALANCED_TREE):
            wanted = [after, before]
        else:
            wanted = [after]
        return [g for g in dict.fromkeys(wanted) if g in free]

    def _nvls(self, head: int) -> _Steps:
        """Charge a channel of NVLS: all GPUs to and from the switch, the head twice."""
        if self.nvs is None:
            return
        taken: list[_Charge] = []
        for inward in (True, False):
            for g, gpu in enumerate(self.gpus):
                ends = (self.nvs, gpu) if inward else (gpu, self.nvs)
                charge = self._charge(*ends, 2.0 if g == head else 1.0)
                if charge is None or not self._take(charge):
                    for charge_back in taken:
                        self._give_back(charge_back)
                    return
                taken.append(charge)
        yield self._finish()
        for charge_back in taken:
            self._give_back(charge_back)

    def _finish(self) -> _Steps:
        """Compare the channels so far, keep them if they are better, and look for one more."""
        if self.budget <= 0:
            return
        self.budget -= 1
        attempt, done = self.attempt, len(self.order)
        if self._better(done):
            self.best = Found(
                attempt=attempt,
                n_channels=done,
                hops=self.hops,
                gpus=tuple(map(tuple, self.order)),
                nets=tuple((a, b) for a, b in self.ports),
                bw_intra=attempt.bw_intra,
                bw_inter=attempt.bw_inter,
            )
            if done == attempt.max_channels:
                self.budget = PERFECT
        if done < attempt.max_channels:
            yield self._channel()

    def _better(self, done: int) -> bool:
        attempt, best = self.attempt, self.best
        if done < attempt.min_channels:
            return False
        if best is None:
            return True
        if attempt.pattern is Pattern.NVLS:
            more = best.n_channels < done <= len(self.gpus)
            return more or done * attempt.bw_inter > best.n_channels * best.bw_inter
        mine, other = done * attempt.bw_intra, best.n_channels * best.bw_intra
        if mine != other:
            return mine > other
        return (
            attempt.pattern is best.attempt.pattern
            and attempt.cross_nic == best.attempt.cross_nic
            and self.hops < best.hops
        )
