"""No network: one node, or the nodes of one NVLink domain."""

from __future__ import annotations

from simulator.base.errors import Problem, TopologyError
from simulator.fabric.wiring import Ports, Wiring, WiringBuilder
from topologies.registry import NetworkOptions, topology

__all__: list[str] = []


@topology(
    "none",
    summary="no network: one node, or one NVLink domain",
    reference="the node's own data sheet",
)
def wire(ports: Ports, options: NetworkOptions) -> Wiring:
    """Return a wiring without cables; nodes that nothing joins are refused by the fabric."""
    if ports.n_nodes > 1 and options.nvl_domain is not None and options.nvl_domain < ports.n_nodes:
        raise TopologyError(
            Problem(
                key="fabric.nvl_domain",
                message=f"{ports.n_nodes} nodes in domains of {options.nvl_domain} without network",
                allowed=f"fabric.nvl_domain: {ports.n_nodes}, or another fabric.kind",
            )
        )
    return WiringBuilder(ports).finish()
