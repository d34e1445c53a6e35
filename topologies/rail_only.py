"""Rail-only: a separate network for each rail."""

from __future__ import annotations

import numpy as np

from simulator.fabric.wiring import Ports, Wiring
from topologies.clos import join_leaves, split_ports, used_tier
from topologies.rail_optimized import RailOptions
from topologies.registry import start, topology, trunk_rate

__all__: list[str] = []


@topology(
    "rail_only",
    summary="one separate network per rail; other rails are reached over NVLink (PXN)",
    reference="Wang et al., Rail-only: A Low-Cost High-Performance Network for Training LLMs "
    "with Trillions of Parameters, HOTI 2024",
    options=RailOptions,
)
def wire(ports: Ports, options: RailOptions) -> Wiring:
    """Return one switch per rail, or a leaf–spine or fat tree where one switch is too small."""
    builder = start(ports, options)
    rails = ports.n_rails if options.rails is None else options.rails
    tier = split_ports(options.radix, options.oversubscription)
    rate_Bps = trunk_rate(ports, options)
    for number in range(rails):
        own = np.flatnonzero(ports.local % rails == number)
        alone = len(own) <= options.radix
        leaf = np.zeros(len(own), dtype=np.int64) if alone else np.arange(len(own)) // tier.down
        count = int(leaf.max(initial=0)) + 1
        names = [f"rail{number}"] if alone else [f"rail{number}.leaf{i}" for i in range(count)]
        leaves = builder.switches("leaf", count, names)
        limit = np.inf if options.link is None else options.link
        builder.connect(own, leaves[leaf], np.minimum(ports.rate_Bps[own], limit))
        used = used_tier(tier, options, leaf) if count > 1 else tier
        join_leaves(builder, leaves, used, rate_Bps, radix=options.radix, levels=None)
    return builder.finish()
