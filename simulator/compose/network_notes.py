"""Words about options of nodes and networks that act otherwise than one may think, or not."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from simulator.base.units import format_rate
from simulator.compose.cluster import Cluster
from simulator.fabric.model import NodeTemplate
from simulator.fabric.uplinks import Uplinks, leaf_uplinks
from simulator.scenario.resolved import Resolved

__all__ = ["tell_network"]

_MANY_PATHS = ("dragonfly", "torus", "custom")
"""Networks with several ways between switches that have no uplinks."""


def tell_network(cluster: Cluster, resolved: Resolved) -> None:
    """Tell notes and warnings about a scenario's fabric, routing and node options.

    Parameters
    ----------
    cluster
        As built; takes the texts.
    resolved
        What was asked for.
    """
    uplinks = leaf_uplinks(cluster.fabric)
    _tell_oversubscription(cluster, resolved, uplinks)
    _tell_policy(cluster, resolved, uplinks)
    _tell_domain(cluster, resolved)
    _tell_trays(cluster)
    for group in resolved.node_groups:
        if group.node.nic_rate_Bps is not None:
            _tell_nic_rate(cluster, cluster.fabric.templates)
            return


def _ratio(value: float) -> str:
    return f"{value:.3g}:1"


def _tell_oversubscription(cluster: Cluster, resolved: Resolved, uplinks: Uplinks | None) -> None:
    """Say what ratio the ports in use meet, and where the option changes nothing."""
    options = None if resolved.fabric is None else resolved.fabric.options
    asked = getattr(options, "oversubscription", 1.0)
    if asked == 1.0:
        return
    key = f"fabric.oversubscription: {_ratio(asked)}"
    if uplinks is None:
        cluster.warn(f"{key} has no effect: no leaf has uplinks, as there is nothing above them")
        return
    where = (
        f"{uplinks.leaf}, the fullest, has {uplinks.n_nics} NICs and {uplinks.n_uplinks} uplinks, "
        f"{_ratio(uplinks.ratio)}"
    )
    if getattr(options, "oversubscription_of", "") == "ports_in_use":
        cluster.note(f"{key} of the ports in use: {where}")
    elif uplinks.ratio <= 1 + 1e-9 and asked > 1:
        cluster.warn(
            f"{key} is that of a full leaf and hardly acts here: {where}; "
            "fabric.oversubscription_of: ports_in_use counts these NICs only"
        )
    else:
        cluster.note(f"{key} is that of a full leaf; {where}")


def _tell_policy(cluster: Cluster, resolved: Resolved, uplinks: Uplinks | None) -> None:
    """Warn of a choice among paths where there is one path only."""
    policy = resolved.routing.policy
    if policy is None or cluster.fabric.kind in _MANY_PATHS:
        return
    if uplinks is None or uplinks.n_uplinks == 1:
        cluster.warn(
            f"routing.policy: {policy} has no effect: "
            f"there is one path between any two NICs of this {cluster.fabric.kind} network"
        )


def _tell_domain(cluster: Cluster, resolved: Resolved) -> None:
    """Warn of a size of NVLink domains that changes nothing: the cluster is one domain anyway."""
    options = None if resolved.fabric is None else resolved.fabric.options
    asked = getattr(options, "nvl_domain", None)
    if options is None or asked is None:
        return
    unset = type(options)().nvl_domain
    if asked == unset:
        return
    own = min(template.nvl_domain_nodes for template in cluster.fabric.templates)
    nodes, usual = cluster.fabric.n_nodes, unset or own
    if nodes <= min(asked, usual):
        cluster.warn(
            f"fabric.nvl_domain: {asked} has no effect: "
            f"all {nodes} nodes are in one NVLink domain, as with the usual {usual}"
        )


def _tell_trays(cluster: Cluster) -> None:
    """Say how many GPUs a node is that is only a part of a rack."""
    nodes = cluster.fabric.n_nodes
    for template in cluster.fabric.templates:
        rack = template.nvl_domain_nodes
        if nodes < rack:
            gpus = sum(vertex.kind == "gpu" for vertex in template.vertices)
            cluster.note(
                f"a node of {template.name} is a tray of {gpus} GPUs; "
                f"its NVLink domain of {rack * gpus} GPUs is {rack} nodes"
            )


def _tell_nic_rate(cluster: Cluster, templates: Iterable[NodeTemplate]) -> None:
    """Warn of NICs that are faster than the slot they stand in."""
    for template in templates:
        for nic, slot_Bps in _slots(template):
            if template.nic_rate_Bps > slot_Bps * (1 + 1e-9):
                cluster.warn(
                    f"node.nic_rate: {format_rate(template.nic_rate_Bps)} does not pass the PCIe "
                    f"link of {nic} in {template.name}, {format_rate(slot_Bps)}: that binds "
                    "(node.links.pcie.bandwidth widens it)"
                )
                break


def _slots(template: NodeTemplate) -> Iterator[tuple[str, float]]:
    """Generate each NIC with the rate of its PCIe link."""
    nics = {vertex.name for vertex in template.vertices if vertex.kind == "nic"}
    for link in template.links:
        if link.kind == "pcie" and (link.a in nics or link.b in nics):
            yield (link.a if link.a in nics else link.b), link.bandwidth_Bps
