"""From a resolved scenario to a cluster: templates, network, routes, cost profile."""

from __future__ import annotations

from dataclasses import replace

from simulator.base.errors import Problem, ScenarioError, TopologyError
from simulator.compose.believe import environment_of
from simulator.compose.cluster import Cluster
from simulator.costs.profile import CostProfile, load_profile
from simulator.fabric.fabric import Fabric
from simulator.fabric.model import NodeTemplate
from simulator.fabric.routing import Router
from simulator.scenario.nodes import node_template
from simulator.scenario.resolved import Resolved

__all__ = ["MOST_GPUS", "build_cluster", "build_fabric", "environment_warnings"]

MOST_GPUS = 262_144
"""Larger clusters would not fit into a few GiB of memory."""


_ROUTE_WORDS = ("P2P", "SHM", "GDR", "PXN", "CROSS_NIC", "IB_", "SOCKET", "NSOCKS", "NCCL_NET")
"""Variables with these words choose transports in the library."""


def environment_warnings(profile: CostProfile) -> list[str]:
    """Return what a profile's environment variables do not do."""
    if not profile.environment:
        return []
    _, found = environment_of(profile.environment, profile.version)
    only_choice = [
        name for name in profile.environment if any(word in name for word in _ROUTE_WORDS)
    ]
    texts = list(found.warnings)
    if only_choice:
        texts.append(
            f"env: {', '.join(only_choice)}: acts on what the library chooses, not on the routes; "
            "see the keys of routing (p2p, gpudirect, pxn, cross_nic)"
        )
    return texts


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
    gpus = sum(count * sum(v.kind == "gpu" for v in t.vertices) for t, count in nodes)
    if gpus > MOST_GPUS:
        raise TopologyError(
            Problem(
                key="nodes",
                message=f"a cluster of {gpus:,} GPUs",
                allowed=f"at most {MOST_GPUS:,} GPUs",
            )
        )
    if resolved.fabric is None:
        kind = "none" if sum(count for _, count in nodes) == 1 else "single_switch"
        return topologies.build(nodes, kind, topologies.option_type(kind)())
    return topologies.build(nodes, resolved.fabric.kind, resolved.fabric.options)


def build_cluster(resolved: Resolved) -> Cluster:
    """Return the cluster of a scenario, ready for calls."""
    fabric = build_fabric(resolved)
    profile = load_profile(resolved.costs.profile).with_overrides(resolved.costs.overrides)
    if resolved.env:
        if profile.tuning != "nccl":
            raise ScenarioError(
                Problem(
                    key="env",
                    message=f"profile {profile.name!r} has no environment variables",
                    allowed="env only with a profile whose library chooses, such as nccl",
                )
            )
        profile = replace(profile, environment={**profile.environment, **resolved.env})
        environment_of(profile.environment, profile.version)  # refuses bad values at once
    return Cluster(fabric, Router(fabric, resolved.routing), profile)
