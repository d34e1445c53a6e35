"""Shared parts of the folded Clos networks: port budgets, packing of nodes, upper tiers."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulator.base.errors import Problem, TopologyError
from simulator.base.fields import option
from simulator.fabric.wiring import Ports, WiringBuilder
from topologies.registry import NetworkOptions

__all__ = ["ClosOptions", "Tier", "join_leaves", "pack_nodes", "split_ports", "used_tier"]

IntArray = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosOptions(NetworkOptions):
    """Options of networks with leaves and spines."""

    radix: int = option(
        "count",
        64,
        minimum=2,
        doc="Ports of every switch (64: NVIDIA QM9700, Arista 7060X5 and alike).",
    )
    oversubscription: float = option(
        "fraction",
        1.0,
        doc="Capacity of a full leaf towards NICs over that towards spines; 1: non-blocking.  See "
        "`oversubscription_of`.",
    )
    oversubscription_of: str = option(
        "name",
        "full_leaf",
        choices=("full_leaf", "ports_in_use"),
        doc="What `oversubscription` counts: all NIC ports of a `full_leaf`, which leaves more "
        "capacity per NIC where leaves are not full, or only the `ports_in_use` of the fullest "
        "leaf, which then has as many uplinks less.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Tier:
    """How a switch's ports are used."""

    down: int
    up: int
    scale: float
    """Factor on the rate of uplinks that makes the oversubscription exact."""


def split_ports(radix: int, ratio: float, key: str = "fabric.oversubscription") -> Tier:
    """Return how many of a switch's ports face down and up.

    Notes
    -----
    ``up = floor(radix / (1 + ratio))`` and ``down = floor(up × ratio)``.  Where the ratio of whole
    ports is not the wanted one (radix 64, ratio 1.5: 37 down, 25 up), the uplinks' rate is scaled
    by ``down / (ratio × up)``, which is close to one.

    Raises
    ------
    TopologyError
        No port would be left on one side.
    """
    if not (math.isfinite(ratio) and ratio > 0):
        raise TopologyError(
            Problem(key=key, message=f"the ratio is {ratio}", allowed="a number greater than zero")
        )
    up = int(radix / (1 + ratio) + 1e-9)
    down = int(up * ratio + 1e-9)
    if up < 1 or down < 1:
        raise TopologyError(
            Problem(
                key=key,
                message=f"a switch of {radix} ports cannot be oversubscribed {ratio:g}:1",
                allowed=f"between 1:{radix - 1} and {radix - 1}:1",
            )
        )
    return Tier(down=down, up=up, scale=down / (ratio * up))


def used_tier(tier: Tier, options: ClosOptions, leaf: IntArray) -> Tier:
    """Return a leaf's ports with the uplinks that `oversubscription_of` leaves it.

    Parameters
    ----------
    tier
        Ports of a full leaf.
    options
        What the ratio counts.
    leaf
        Leaf of each NIC.

    Notes
    -----
    With d NICs on the fullest leaf and a ratio of r there are ``round(d / r)`` uplinks, at least
    one, whose rate is scaled by ``d / (r × uplinks)``: all leaves have the same.
    """
    if options.oversubscription_of == "full_leaf":
        return tier
    down = int(np.bincount(leaf).max())
    up = max(1, round(down / options.oversubscription))
    up = min(up, max(options.radix - down, 1))
    return Tier(down=down, up=up, scale=down / (options.oversubscription * up))


def pack_nodes(ports: Ports, per_leaf: int) -> IntArray:
    """Return the leaf of each NIC: nodes in order, whole nodes where a leaf has room for one.

    Parameters
    ----------
    ports
        The NICs.
    per_leaf
        NIC ports of a leaf.
    """
    width = ports.nics_of_node
    if int(width.max()) > per_leaf:
        return np.arange(ports.n_nics) // per_leaf
    if (width == width[0]).all():
        return ports.node // (per_leaf // int(width[0]))
    leaf_of_node = np.empty(ports.n_nodes, dtype=np.int64)
    leaf = used = 0
    for node, nics in enumerate(width.tolist()):
        if used + nics > per_leaf:
            leaf, used = leaf + 1, 0
        leaf_of_node[node] = leaf
        used += nics
    return leaf_of_node[ports.node]


def join_leaves(
    builder: WiringBuilder,
    leaves: IntArray,
    tier: Tier,
    rate_Bps: float,
    *,
    radix: int,
    levels: int | None,
    upper: Tier | None = None,
    largest: str = "",
) -> IntArray:
    """Join leaves by one tier of spines, or by pods of spines and a tier of cores.

    Parameters
    ----------
    builder
        Takes the switches and cables.
    leaves
        Ends of the leaves.
    tier
        Ports of a leaf: ``tier.up`` spines, one cable to each.
    rate_Bps
        Rate of one cable between switches.
    radix
        Ports of a spine or core.
    levels
        2: spines only; 3: pods and cores; None: 2 if the spines' ports suffice.
    upper
        Ports of a spine in a pod towards leaves and cores; default half and half.
    largest
        What would fit, for the message.

    Notes
    -----
    Two levels: every spine joins all leaves.  Three levels: a pod has ``upper.down`` leaves and
    ``tier.up`` spines; spine j of every pod is joined to the same ``upper.up`` cores, one cable
    each (Al-Fares, Loukissas, Vahdat: "A Scalable, Commodity Data Center Network Architecture",
    SIGCOMM 2008, section 3; there k/2 of everything).  With fewer pods than ports the cores have
    spare ports.  One leaf or one pod needs nothing above it.

    Returns
    -------
    ndarray of int64
        Ends of the topmost switches.

    Raises
    ------
    TopologyError
        More leaves or pods than a switch has ports.
    """
    count = len(leaves)
    if count == 1:
        return leaves
    uplink = rate_Bps * tier.scale
    builder.reserve(count * tier.up)
    if levels == 2 or (levels is None and count <= radix):
        if count > radix:
            raise TopologyError(
                Problem(
                    key="fabric.radix",
                    message=f"{count} leaves do not fit on spines of {radix} ports",
                    allowed=largest or f"a radix of at least {count}, or a three-level fat_tree",
                )
            )
        spines = builder.switches("spine", tier.up)
        builder.connect(leaves[:, None], spines[None, :], uplink)
        return spines
    upper = upper or split_ports(radix, 1.0)
    pod_of_leaf = np.arange(count) // upper.down
    pods = int(pod_of_leaf[-1]) + 1
    if pods > radix:
        raise TopologyError(
            Problem(
                key="fabric.radix",
                message=f"{pods} pods of {upper.down} leaves do not fit on cores of {radix} ports",
                allowed=largest or "a larger radix",
            )
        )
    spines = builder.switches("spine", pods * tier.up).reshape(pods, tier.up)
    builder.connect(leaves[:, None], spines[pod_of_leaf], uplink)
    if pods == 1:
        return spines.ravel()
    cores = builder.switches("core", tier.up * upper.up).reshape(tier.up, upper.up)
    builder.connect(spines[:, :, None], cores[None, :, :], uplink * upper.scale)
    return cores.ravel()
