"""Bounds that tell, before an attempt of the graph search, that it cannot find a better graph.

NCCL runs such attempts into its time limit; leaving them out changes no result.
"""

from __future__ import annotations

from simulator.costs.nccl.graph import Pattern
from simulator.costs.nccl.paths import Path, Paths, milli
from simulator.costs.nccl.walker import Attempt, Found

__all__ = ["hopeless"]


def hopeless(paths: Paths, attempt: Attempt, best: Found | None, *, network: bool) -> bool:
    """Return whether the attempt cannot beat the best graph, or not reach its channels.

    Parameters
    ----------
    paths
        The node.
    attempt
        What would be looked for.
    best
        The best graph so far.
    network
        Channels start and end at NICs.
    """
    if attempt.pattern is Pattern.NVLS:
        return False
    most = attempt.max_channels
    if network:
        most = min(most, _by_nics(paths, attempt), _by_classes(paths, attempt))
    if len(paths.members["gpu"]) > 1:
        most = min(most, _by_gpus(paths, attempt, network=network))
    if most < max(1, attempt.min_channels):
        return True
    if best is None:
        return False
    return most * attempt.bw_intra <= best.n_channels * best.bw_intra


def _by_nics(paths: Paths, attempt: Attempt) -> int:
    """Bound channels by the NICs they come in by: ports and their links."""
    whole = max(1, milli(float(int(attempt.bw_inter))))
    exact = max(1, milli(attempt.bw_inter))
    rates: dict[str, int] = {}
    for port, nic in zip(paths.members["net"], paths.nics, strict=True):
        card = nic.card or nic.name
        into = min(paths.links[i].bw for i in paths.out[port])
        fits = min(milli(nic.net_GBps) // whole, into // exact)
        rates[card] = max(rates.get(card, 0), fits)
    return sum(rates.values())


def _by_classes(paths: Paths, attempt: Attempt) -> int:
    """Bound channels by the links of a class, such as all from PCIe switches to CPUs together.

    Each channel takes at least the cheapest way in and the cheapest way out.
    """
    gpus, nets = paths.members["gpu"], paths.members["net"]
    speed = milli(attempt.bw_inter)
    needed: dict[tuple[str, str], int] = {}
    for ends in ([(n, g) for n in nets for g in gpus], [(g, n) for n in nets for g in gpus]):
        costs = []
        for source, target in ends:
            way = paths.table.get((source, target))
            if way is None or way.type > attempt.type_inter or way.bw < speed // 2:
                continue
            cost: dict[tuple[str, str], int] = {}
            for index, amount in paths.charges(way, paths.kinds[source], speed).items():
                kinds = _class_of(paths, index)
                cost[kinds] = cost.get(kinds, 0) + amount
            costs.append(cost)
        if not costs:
            return 0
        for kinds in set().union(*costs):
            least = min(cost.get(kinds, 0) for cost in costs)
            needed[kinds] = needed.get(kinds, 0) + least
    bound = attempt.max_channels
    for kinds, amount in needed.items():
        if amount:
            total = sum(
                link.bw for i, link in enumerate(paths.links) if _class_of(paths, i) == kinds
            )
            bound = min(bound, total // amount)
    return bound


def _class_of(paths: Paths, index: int) -> tuple[str, str]:
    link = paths.links[index]
    return paths.kinds[link.source], paths.kinds[link.target]


def _by_gpus(paths: Paths, attempt: Attempt, *, network: bool) -> int:
    """Bound channels by what GPUs send: each but the last of a channel to another one."""
    gpus = paths.members["gpu"]
    speed = milli(attempt.bw_intra)
    ways = {
        (a, b): way
        for a in gpus
        for b in gpus
        if a != b
        and (way := paths.table[a, b]).links
        and way.type <= attempt.type_intra
        and way.bw >= speed
    }
    if not _connected(gpus, ways):
        return 0
    closed = attempt.pattern is Pattern.RING and not network
    bound = attempt.max_channels
    outgoing = {a: [ways[a, b] for b in gpus if (a, b) in ways] for a in gpus}
    fits = {
        a: sum(paths.links[i].bw // speed for i in {way.links[0] for way in outgoing[a]})
        for a in gpus
    }
    if closed:
        bound = min(bound, *fits.values())
        if len(gpus) > 2:
            bound = min([bound, *(_through(paths, a, outgoing[a], speed, bound) for a in gpus)])
    else:
        bound = min(bound, sum(fits.values()) // (len(gpus) - 1))
    return min(bound, _by_shared_links(paths, outgoing, speed, bound, closed=closed))


def _connected(gpus: list[int], ways: dict[tuple[int, int], Path]) -> bool:
    reached, new = {gpus[0]}, [gpus[0]]
    while new:
        here = new.pop()
        for other in gpus:
            if other not in reached and ((here, other) in ways or (other, here) in ways):
                reached.add(other)
                new.append(other)
    return len(reached) == len(gpus)


def _through(paths: Paths, gpu: int, ways: list[Path], speed: int, bound: int) -> int:
    """Bound rings by a GPU's neighbours: in from one, out to another.

    With direct links only, a neighbour's links in both directions carry at most one hop of each
    ring, and each ring has two hops at the GPU: the sum over neighbours of min(both ways, C) is at
    least 2 C for C rings.
    """
    if any(way.hops != 1 for way in ways):
        return bound
    both = [2 * (paths.links[way.links[0]].bw // speed) for way in ways]
    while bound and sum(min(fits, bound) for fits in both) < 2 * bound:
        bound -= 1
    return bound


def _by_shared_links(
    paths: Paths, outgoing: dict[int, list[Path]], speed: int, bound: int, *, closed: bool
) -> int:
    """Bound channels by links that all ways out of several GPUs use."""
    senders: dict[int, int] = {}
    for ways in outgoing.values():
        if not ways:
            continue
        for link in set.intersection(*(set(way.links) for way in ways)):
            senders[link] = senders.get(link, 0) + 1
    for link, count in senders.items():
        # The last GPU of an open channel sends to no other one.
        each = count if closed else count - 1
        if each > 0:
            bound = min(bound, paths.links[link].bw // (each * speed))
    return bound
