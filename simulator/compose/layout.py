"""Where the ranks of a group sit, and in which orders rings and chains visit them.

Rings follow NVLink or xGMI inside a node, enter it at a GPU next to a NIC and leave it by the
neighbour of that GPU.  Every second node is walked backwards, so that a ring leaves by the same
rail on which it enters the next node (NCCL does this for NCCL_CROSS_NIC=2).  Channel c starts at
the GPU of NIC c, so that the channels together use all NICs.

Not modelled here: NCCL's own graph search with its table of channel speeds.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import product

import numpy as np
from numpy.typing import NDArray

from simulator.collectives.call import Layout
from simulator.fabric.model import NodeTemplate, TemplateLink, TemplateVertex

__all__ = ["domain_layout", "heads", "interconnect", "layout_for", "node_cycles"]

IntArray = NDArray[np.int64]

_DIRECT_KINDS = ("nvlink", "xgmi")

Interior = tuple[tuple[TemplateVertex, ...], tuple[TemplateLink, ...]]
"""What layouts depend on; hashable, other than a template."""


def _interior(template: NodeTemplate) -> Interior:
    return template.vertices, template.links


def interconnect(template: NodeTemplate) -> str:
    """Return how the GPUs of a node reach each other: ``nvswitch``, ``mesh`` or ``pcie``."""
    if any(vertex.kind == "nvswitch" for vertex in template.vertices):
        return "nvswitch"
    return "mesh" if _direct_links(_interior(template)) else "pcie"


def _gpu_names(vertices: tuple[TemplateVertex, ...]) -> list[str]:
    return [vertex.name for vertex in vertices if vertex.kind == "gpu"]


@lru_cache(maxsize=256)
def _direct_links(interior: Interior) -> dict[tuple[int, int], float]:
    """Return the bandwidth of direct GPU–GPU links by (local, local), both directions."""
    vertices, links = interior
    local = {name: index for index, name in enumerate(_gpu_names(vertices))}
    found: dict[tuple[int, int], float] = {}
    for link in links:
        if link.kind in _DIRECT_KINDS and link.a in local and link.b in local:
            a, b = local[link.a], local[link.b]
            for pair in ((a, b), (b, a)):
                found[pair] = found.get(pair, 0.0) + link.bandwidth_Bps
    return found


def heads(template: NodeTemplate, locals_: tuple[int, ...]) -> tuple[int, ...]:
    """Return, for each NIC in order, the closest of the given GPUs; empty without NICs.

    Of equally close GPUs the one that serves the fewest NICs so far is taken.
    """
    return _heads(_interior(template), locals_)


@lru_cache(maxsize=256)
def _heads(interior: Interior, locals_: tuple[int, ...]) -> tuple[int, ...]:
    vertices, links = interior
    adjacency: dict[str, list[str]] = {vertex.name: [] for vertex in vertices}
    for link in links:
        if link.kind not in _DIRECT_KINDS:
            adjacency[link.a].append(link.b)
            adjacency[link.b].append(link.a)
    served = dict.fromkeys(locals_, 0)
    names = _gpu_names(vertices)
    result: list[int] = []
    for vertex in vertices:
        if vertex.kind != "nic":
            continue
        distance = {vertex.name: 0}
        queue = [vertex.name]
        for name in queue:
            for neighbour in adjacency[name]:
                if neighbour not in distance:
                    distance[neighbour] = distance[name] + 1
                    queue.append(neighbour)
        ranked = [(distance.get(names[i], 10**6), served[i], i) for i in locals_]
        chosen = min(ranked)[2]
        served[chosen] += 1
        result.append(chosen)
    return tuple(result)


def node_cycles(template: NodeTemplate, locals_: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """Return cyclic orders of the given GPUs along the node's links.

    With switches or PCIe any order will do and the local order is returned.  On a mesh the cycles
    are chosen edge-disjoint in units of the narrowest link, so that together they use as many
    links as a greedy search finds; without a Hamiltonian cycle the local order is returned.
    """
    if interconnect(template) != "mesh" or len(locals_) <= 2:
        return (locals_,)
    return _disjoint_cycles(_interior(template), locals_)


@lru_cache(maxsize=256)
def _disjoint_cycles(interior: Interior, locals_: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    direct = {
        pair: rate for pair, rate in _direct_links(interior).items() if set(pair) <= set(locals_)
    }
    if not direct:
        return (locals_,)
    best: list[tuple[int, ...]] = []
    best_rate = 0.0
    # Half and quarter links let cycles cross that could not be packed in whole links.
    for seed, parts in product(range(8), (1, 2, 4)):
        unit = min(direct.values()) / parts
        free = {pair: round(rate / unit) for pair, rate in direct.items()}
        order = np.random.default_rng(seed).permutation(len(locals_))
        cycles: list[tuple[int, ...]] = []
        while (cycle := _hamiltonian(locals_, free, order)) is not None:
            for a, b in zip(cycle, (*cycle[1:], cycle[0]), strict=True):
                free[a, b] -= 1
                free[b, a] -= 1
            cycles += [cycle, (cycle[0], *reversed(cycle[1:]))]
        if len(cycles) * unit > best_rate * (1 + 1e-9):
            best, best_rate = cycles, len(cycles) * unit
    return tuple(best) or (locals_,)


def _hamiltonian(
    locals_: tuple[int, ...], free: dict[tuple[int, int], int], order: IntArray
) -> tuple[int, ...] | None:
    """Return a cycle over free links from the first GPU, preferring links with most left."""
    start, count = locals_[0], len(locals_)
    rank = {gpu: int(order[i]) for i, gpu in enumerate(locals_)}
    path = [start]
    budget = 20_000

    def extend() -> bool:
        nonlocal budget
        budget -= 1
        if budget < 0:
            return False
        here = path[-1]
        if len(path) == count:
            return free.get((here, start), 0) > 0
        nexts = [g for g in locals_ if g not in path and free.get((here, g), 0) > 0]
        for gpu in sorted(nexts, key=lambda g: (-free[here, g], rank[g])):
            path.append(gpu)
            if extend():
                return True
            path.pop()
        return False

    return tuple(path) if extend() else None


def layout_for(
    templates: Sequence[NodeTemplate],
    node_of_rank: IntArray,
    local_of_rank: IntArray,
    n_channels: int,
    pipeline_bytes: int = 512 * 1024,
) -> Layout:
    """Return the layout of a group of ranks.

    Parameters
    ----------
    templates
        Template of each node of the cluster.
    node_of_rank, local_of_rank
        Cluster node and GPU index in the node of each rank, shape (n,).  A run of ranks on one
        node counts as a node; where a group returns to a node, that run is another one.
    n_channels
        Number of channels ≥ 1.
    pipeline_bytes
        Piece of pipelined algorithms.
    """
    world = len(node_of_rank)
    border = np.flatnonzero(np.diff(node_of_rank)) + 1
    first = np.concatenate([[0], border]).astype(np.int64)
    last = np.concatenate([border, [world]]).astype(np.int64)
    n_nodes = len(first)
    nodes = np.repeat(np.arange(n_nodes), last - first)
    rings = np.empty((n_channels, world), dtype=np.int64)
    chains = np.empty((n_channels, world), dtype=np.int64)
    alike: dict[tuple[int, bytes, bool], list[int]] = {}
    for position, (a, b) in enumerate(zip(first.tolist(), last.tolist(), strict=True)):
        backwards = n_nodes > 1 and position % 2 == 1
        template = templates[int(node_of_rank[a])]
        key = (id(template), local_of_rank[a:b].tobytes(), backwards)
        alike.setdefault(key, []).append(position)
    for (_, _, backwards), positions in alike.items():
        a, b = int(first[positions[0]]), int(last[positions[0]])
        template = templates[int(node_of_rank[a])]
        locals_ = tuple(int(i) for i in local_of_rank[a:b])
        order = np.array(
            [_channel_order(template, locals_, c, n_nodes > 1) for c in range(n_channels)]
        )
        starts = first[np.asarray(positions)]
        columns = (starts[:, None] + np.arange(b - a)).ravel()
        ring = order[:, ::-1] if backwards else order
        rings[:, columns] = (starts[:, None] + ring[:, None, :]).reshape(n_channels, -1)
        chains[:, columns] = (starts[:, None] + order[:, None, :]).reshape(n_channels, -1)
    return Layout(
        world_size=world,
        nodes=nodes,
        n_channels=n_channels,
        rings=rings,
        chains=chains,
        pipeline_bytes=pipeline_bytes,
    )


def domain_layout(
    unit_of_rank: IntArray, n_channels: int, pipeline_bytes: int, n_heads: int
) -> Layout:
    """Return the layout of a group whose units are NVLink domains of several nodes.

    Parameters
    ----------
    unit_of_rank
        Domain of each rank, shape (n,).
    n_channels, pipeline_bytes
        As in `layout_for`.
    n_heads
        GPUs of a domain that face the network, one after the other by channel.

    Notes
    -----
    Inside a domain any order will do: the NVSwitches join all alike.
    """
    world = len(unit_of_rank)
    border = np.flatnonzero(np.diff(unit_of_rank)) + 1
    first = np.concatenate([[0], border]).astype(np.int64)
    last = np.concatenate([border, [world]]).astype(np.int64)
    nodes = np.repeat(np.arange(len(first)), last - first)
    orders = np.empty((n_channels, world), dtype=np.int64)
    for a, b in zip(first.tolist(), last.tolist(), strict=True):
        inside = np.arange(b - a)
        for channel in range(n_channels):
            orders[channel, a:b] = a + np.roll(inside, -(channel % max(1, min(n_heads, b - a))))
    rings = orders.copy()
    for position, (a, b) in enumerate(zip(first.tolist(), last.tolist(), strict=True)):
        if len(first) > 1 and position % 2 == 1:
            rings[:, a:b] = rings[:, a:b][:, ::-1]
    return Layout(
        world_size=world,
        nodes=nodes,
        n_channels=n_channels,
        rings=rings,
        chains=orders,
        pipeline_bytes=pipeline_bytes,
    )


def _channel_order(
    template: NodeTemplate, locals_: tuple[int, ...], channel: int, networked: bool
) -> IntArray:
    """Return positions in `locals_` in the order in which the channel's ring visits them."""
    cycles = node_cycles(template, locals_)
    entry = heads(template, locals_) if networked else ()
    head = entry[channel % len(entry)] if entry else locals_[channel % len(locals_)]
    cycle = cycles[channel % len(cycles)]
    at = cycle.index(head)
    place = {gpu: index for index, gpu in enumerate(locals_)}
    return np.array([place[gpu] for gpu in cycle[at:] + cycle[:at]], dtype=np.int64)
