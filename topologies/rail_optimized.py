"""Rail-optimised: NICs of the same index share leaves, spines join the rails."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from simulator.base.fields import option
from simulator.fabric.wiring import Ports, Wiring
from topologies.clos import ClosOptions, join_leaves, split_ports, used_tier
from topologies.registry import start, topology, trunk_rate

__all__ = ["RailOptions", "wire"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RailOptions(ClosOptions):
    """Options of rail networks."""

    rails: int | None = option(
        "count",
        None,
        minimum=1,
        doc="Number of rails; NIC i is on rail i mod rails. Default: the NICs of a node.",
    )


@topology(
    "rail_optimized",
    summary="a leaf per rail and group of nodes, all leaves joined by spines (and cores)",
    reference="NVIDIA DGX SuperPOD reference architecture, DGX H100, compute fabric",
    options=RailOptions,
)
def wire(ports: Ports, options: RailOptions) -> Wiring:
    """Return the network: NIC r of the nodes of a group on leaf r of that group."""
    builder = start(ports, options)
    tier = split_ports(options.radix, options.oversubscription)
    rails = ports.n_rails if options.rails is None else options.rails
    per_node = -(-ports.n_rails // rails)
    group = ports.node // max(1, tier.down // per_node)
    # Where some nodes have fewer NICs, leaves that would stay empty are left out.
    used, leaf = np.unique(group * rails + ports.local % rails, return_inverse=True)
    names = [f"rail{value % rails}.leaf{value // rails}" for value in used.tolist()]
    leaves = builder.switches("leaf", len(used), names)
    builder.attach(leaves[leaf], options.link)
    rate_Bps = trunk_rate(ports, options)
    tier = used_tier(tier, options, leaf)
    join_leaves(builder, leaves, tier, rate_Bps, radix=options.radix, levels=None)
    return builder.finish()
