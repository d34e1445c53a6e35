"""From a resolved scenario to a cluster: templates, network, routes, cost profile."""

from __future__ import annotations

from simulator.compose.cluster import Cluster
from simulator.costs.profile import load_profile
from simulator.fabric.fabric import Fabric
from simulator.fabric.model import NodeTemplate
from simulator.fabric.routing import Router
from simulator.scenario.nodes import node_template
from simulator.scenario.resolved import Resolved

__all__ = ["build_cluster", "build_fabric"]


def build_fabric(resolved: Resolved) -> Fabric:
    """Return the fabric of a scenario.

    Raises
    ------
    TopologyError
        Unknown presets, a network that does not fit its nodes, a graph in pieces.
    """
    import topologies
    from topologies import hardware

    if resolved.topology is not None:
        return topologies.build_custom(resolved.topology)
    nodes: list[tuple[NodeTemplate, int]] = []
    for group in resolved.node_groups:
        template = node_template(group.node)
        if group.gpus_per_node is not None:
            template = hardware.subset(template, group.gpus_per_node)
        nodes.append((template, group.nodes))
    if resolved.fabric is None:
        kind = "none" if sum(count for _, count in nodes) == 1 else "single_switch"
        return topologies.build(nodes, kind, topologies.option_type(kind)())
    return topologies.build(nodes, resolved.fabric.kind, resolved.fabric.options)


def build_cluster(resolved: Resolved) -> Cluster:
    """Return the cluster of a scenario, ready for calls."""
    fabric = build_fabric(resolved)
    profile = load_profile(resolved.costs.profile).with_overrides(resolved.costs.overrides)
    return Cluster(fabric, Router(fabric, resolved.routing), profile)
