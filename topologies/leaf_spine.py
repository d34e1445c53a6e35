"""Two tiers: leaves with the nodes, spines above."""

from __future__ import annotations

from dataclasses import dataclass

from simulator.base.errors import Problem, TopologyError
from simulator.base.fields import option
from simulator.fabric.wiring import Ports, Wiring
from topologies.clos import ClosOptions, Tier, join_leaves, pack_nodes, split_ports, used_tier
from topologies.registry import start, topology, trunk_rate

__all__ = ["LeafSpineOptions"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LeafSpineOptions(ClosOptions):
    """Options of a leaf–spine network."""

    spines: int | None = option(
        "count",
        None,
        minimum=1,
        doc="Number of spines; a leaf's uplinks are bundled towards them. Default: one per uplink.",
    )
    nics_per_leaf: int | None = option(
        "count",
        None,
        minimum=1,
        doc="NIC ports of a leaf. Default: radix and oversubscription decide (32 of 64 at 1:1).",
    )


@topology(
    "leaf_spine",
    summary="two-level Clos: whole nodes on leaves, every leaf on every spine",
    reference="Clos, A Study of Non-Blocking Switching Networks, BSTJ 32 (1953)",
    options=LeafSpineOptions,
)
def wire(ports: Ports, options: LeafSpineOptions) -> Wiring:
    """Return the network; bisection is NICs × rate / (2 × oversubscription) on full leaves."""
    builder = start(ports, options)
    tier = split_ports(options.radix, options.oversubscription)
    if options.nics_per_leaf is not None:
        down = options.nics_per_leaf
        if down >= options.radix:
            raise TopologyError(
                Problem(
                    key="fabric.nics_per_leaf",
                    message=f"{down} NICs leave no uplink on a leaf of {options.radix} ports",
                    allowed=f"at most {options.radix - 1}",
                )
            )
        up = min(max(1, round(down / options.oversubscription)), options.radix - down)
        tier = Tier(down=down, up=up, scale=down / (options.oversubscription * up))
    most = tier.down * options.radix
    leaf = pack_nodes(ports, tier.down)
    tier = used_tier(tier, options, leaf)
    if options.spines is not None:
        # Bundled uplinks are one cable of their summed rate.
        total = tier.up * tier.scale
        tier = Tier(down=tier.down, up=options.spines, scale=total / options.spines)
    leaves = builder.switches("leaf", int(leaf[-1]) + 1)
    builder.attach(leaves[leaf], options.link)
    join_leaves(
        builder,
        leaves,
        tier,
        trunk_rate(ports, options),
        radix=options.radix,
        levels=2,
        largest=f"at most about {most} NICs with this radix, or fabric.kind: fat_tree",
    )
    return builder.finish()
