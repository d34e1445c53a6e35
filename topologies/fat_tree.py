"""Three tiers: pods of leaves and spines, joined by cores."""

from __future__ import annotations

from dataclasses import dataclass

from simulator.base.errors import Problem, TopologyError
from simulator.base.fields import option
from simulator.fabric.wiring import Ports, Wiring
from topologies.clos import ClosOptions, join_leaves, pack_nodes, split_ports, used_tier
from topologies.registry import start, topology, trunk_rate

__all__ = ["FatTreeOptions"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FatTreeOptions(ClosOptions):
    """Options of a three-level fat tree."""

    spine_oversubscription: float = option(
        "fraction",
        1.0,
        doc="Capacity of a spine towards leaves over its capacity towards cores; multiplies with "
        "`oversubscription`.",
    )
    k: int | None = option(
        "count",
        None,
        minimum=2,
        doc="Same as `radix`, by the name that papers give it.",
    )


@topology(
    "fat_tree",
    summary="three-level fat tree: pods of leaves and spines, cores above",
    reference="Al-Fares, Loukissas, Vahdat, SIGCOMM 2008; Leiserson, IEEE TC 34 (1985)",
    options=FatTreeOptions,
)
def wire(ports: Ports, options: FatTreeOptions) -> Wiring:
    """Return the network: k³/4 NICs at most when it is non-blocking."""
    builder = start(ports, options)
    radix = options.radix if options.k is None else options.k
    lower = split_ports(radix, options.oversubscription)
    upper = split_ports(radix, options.spine_oversubscription, "fabric.spine_oversubscription")
    most = lower.down * upper.down * radix
    if ports.n_nics > most:
        needed = radix
        while ports.n_nics > _capacity(needed, options):
            needed += 2
        raise TopologyError(
            Problem(
                key="fabric.radix",
                message=f"{ports.n_nics} NICs do not fit in a fat tree of {radix}-port switches",
                allowed=f"at most {most} NICs, or a radix of at least {needed}",
            )
        )
    leaf = pack_nodes(ports, lower.down)
    leaves = builder.switches("leaf", int(leaf[-1]) + 1)
    builder.attach(leaves[leaf], options.link)
    join_leaves(
        builder,
        leaves,
        used_tier(lower, options, leaf),
        trunk_rate(ports, options),
        radix=radix,
        levels=3,
        upper=upper,
        largest=f"at most {most} NICs, less where whole nodes leave leaf ports free",
    )
    return builder.finish()


def _capacity(radix: int, options: FatTreeOptions) -> int:
    lower = split_ports(radix, options.oversubscription)
    return lower.down * split_ports(radix, options.spine_oversubscription).down * radix
