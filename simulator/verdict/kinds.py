"""Kinds of machine, each with limits of its own: how data travel, and who sends to whom."""

from __future__ import annotations

import functools
from collections.abc import Iterator

from simulator.fabric.model import NETWORK_KINDS, NodeTemplate
from simulator.scenario.nodes import node_template
from simulator.scenario.resolved import Resolved

__all__ = ["EXCHANGES", "INSIDE", "OF_EXCHANGES", "kind_of", "kinds", "way_of", "words_of"]

EXCHANGES = ("all_to_all", "all_to_allv", "hypercube", "send_recv", "gather", "scatter")
OF_EXCHANGES = " of exchanges"
INSIDE = ("nvswitch", "nvlink", "xgmi", "pcie")
_WORDS = {
    "nvswitch": "NVSwitch",
    "nvlink": "NVLink",
    "xgmi": "xGMI",
    "pcie": "PCIe",
    "infiniband": "InfiniBand",
    "roce": "RoCE",
    "ethernet": "TCP over Ethernet",
    "slingshot": "Slingshot",
    "efa": "EFA",
}


def way_of(resolved: Resolved, n_nodes: int) -> str:
    """Return how a machine's data travel: ``node nvswitch``, ``network efa``; or only where.

    On one node it is the way from GPU to GPU, else the kind of the network's ports.
    """
    templates = [node_template(group.node) for group in resolved.node_groups]
    alone = n_nodes == 1
    found = {_inside(entry) if alone else entry.nic_kind for entry in templates}
    way = found.pop() if len(found) == 1 else None
    return " ".join(filter(None, ("node" if alone else "network", way)))


def _inside(template: NodeTemplate) -> str:
    if any(vertex.kind == "nvswitch" for vertex in template.vertices):
        return "nvswitch"
    linked = {link.kind for link in template.links}
    return next((kind for kind in ("nvlink", "xgmi") if kind in linked), "pcie")


@functools.cache
def kinds() -> tuple[str, ...]:
    """Return all kinds of machine, those of a place before what is more general."""
    ways = [f"node {way}" for way in INSIDE] + [f"network {way}" for way in NETWORK_KINDS]
    return tuple(
        way + suffix for way in (*ways, "node", "network") for suffix in ("", OF_EXCHANGES)
    )


def kind_of(way: str, collective: str) -> Iterator[str]:
    """Generate a machine's kind and what is more general, the nearest first.

    Examples
    --------
    >>> list(kind_of("network efa", "all_to_all"))
    ['network efa of exchanges', 'network of exchanges']
    """
    suffix = OF_EXCHANGES if collective in EXCHANGES else ""
    place = way.partition(" ")[0] or "network"
    yield from dict.fromkeys((f"{way or place}{suffix}", place + suffix))


def words_of(kind: str) -> str:
    """Return a kind in words.

    Examples
    --------
    >>> words_of("network efa of exchanges"), words_of("node pcie")
    ('exchanges over EFA', 'one node with PCIe')
    """
    way = kind.removesuffix(OF_EXCHANGES)
    place, _, name = way.partition(" ")
    over = _WORDS.get(name, name)
    if place == "node":
        where = f"one node with {over}" if over else "one node"
    else:
        where = f"over {over}" if over else "over a network"
    if OF_EXCHANGES not in kind:
        return where
    return f"exchanges {'in ' if place == 'node' else ''}{where}"
