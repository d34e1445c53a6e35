"""Two leaf–spine sites with a long link between them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from simulator.base.errors import Problem, TopologyError
from simulator.base.fields import option
from simulator.fabric.wiring import Ports, Wiring
from topologies.clos import ClosOptions, join_leaves, pack_nodes, split_ports, used_tier
from topologies.registry import start, topology, trunk_rate

__all__ = ["TwoSitesOptions"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TwoSitesOptions(ClosOptions):
    """Options of two sites."""

    first_site_nodes: int | None = option(
        "count", None, minimum=1, doc="Nodes of the first site. Default: half of them, rounded up."
    )
    long_rate: float | None = option(
        "rate",
        None,
        doc="Rate of the link between the sites per direction. Default: eight times `trunk`.",
    )
    long_latency: float = option(
        "time",
        0.5e-3,
        minimum=0.0,
        doc="One-way propagation time of that link (5 us a kilometre of fibre: 100 km).",
    )


@topology(
    "two_sites",
    summary="two leaf–spine sites whose gateways are joined by one long link",
    reference="propagation in fibre: 1.468 / c, ITU-T G.652",
    options=TwoSitesOptions,
)
def wire(ports: Ports, options: TwoSitesOptions) -> Wiring:
    """Return the network; every spine (or the only leaf) of a site is joined to its gateway."""
    builder = start(ports, options)
    first = options.first_site_nodes
    first = -(-ports.n_nodes // 2) if first is None else first
    if not 0 < first < ports.n_nodes:
        raise TopologyError(
            Problem(
                key="fabric.first_site_nodes",
                message=f"{first} of {ports.n_nodes} nodes on the first site",
                allowed=f"1 … {ports.n_nodes - 1}, so that both sites have nodes"
                if ports.n_nodes > 1
                else "at least two nodes",
            )
        )
    tier = split_ports(options.radix, options.oversubscription)
    rate_Bps = trunk_rate(ports, options)
    limit = np.inf if options.link is None else options.link
    gateways = []
    for site in range(2):
        own = np.flatnonzero((ports.node >= first) == bool(site))
        part = replace(
            ports,
            n_nodes=first if site == 0 else ports.n_nodes - first,
            node=ports.node[own] - (first if site else 0),
            local=ports.local[own],
            rate_Bps=ports.rate_Bps[own],
            latency_s=ports.latency_s[own],
        )
        leaf = pack_nodes(part, tier.down)
        count = int(leaf[-1]) + 1
        leaves = builder.switches("leaf", count, [f"site{site}.leaf{i}" for i in range(count)])
        builder.connect(own, leaves[leaf], np.minimum(part.rate_Bps, limit))
        used = used_tier(tier, options, leaf)
        top = join_leaves(builder, leaves, used, rate_Bps, radix=options.radix, levels=2)
        gateway = builder.switches("core", 1, [f"site{site}.gateway"])
        # A gateway is as wide as what stands below it: the long link is the bottleneck.
        width = rate_Bps * (len(own) if count == 1 else used.scale * count)
        builder.connect(top, gateway, width)
        gateways.append(gateway)
    builder.connect(
        gateways[0],
        gateways[1],
        options.long_rate or 8 * rate_Bps,
        latency_s=options.long_latency,
    )
    return builder.finish()
