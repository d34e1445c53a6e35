"""From a resolved scenario to a cluster: templates, network, routes, cost profile."""

from __future__ import annotations

from dataclasses import replace

from simulator.base.errors import Problem, ScenarioError, TopologyError
from simulator.base.limits import MOST_GPUS
from simulator.compose.calibrated import settings_of
from simulator.compose.cluster import Cluster
from simulator.compose.environment import (
    Applied,
    apply_environment,
    library_view,
    over_sockets,
)
from simulator.compose.host import Hosts, host_view, staging_Bps
from simulator.compose.host_environment import apply_host_environment
from simulator.compose.idle import without_idle_routes
from simulator.compose.network_notes import tell_network
from simulator.costs.nccl import NcclVersion, nearest_supported
from simulator.costs.profile import CostProfile, load_profile
from simulator.costs.variables import parse_variables
from simulator.fabric.fabric import Fabric
from simulator.fabric.model import NodeTemplate
from simulator.fabric.routing import Router
from simulator.scenario.nodes import node_template
from simulator.scenario.resolved import Resolved

__all__ = ["build_cluster", "build_fabric", "node_list"]

GPU_LIBRARIES = ("nccl", "rccl")


def node_list(resolved: Resolved) -> list[tuple[NodeTemplate, int]]:
    """Return the nodes of a scenario with their numbers; empty for an own topology."""
    from topologies import hardware

    nodes: list[tuple[NodeTemplate, int]] = []
    for group in resolved.node_groups:
        template = node_template(group.node)
        if group.gpus_per_node is not None:
            template = hardware.subset(template, group.gpus_per_node)
        nodes.append((template, group.nodes))
    return nodes


def build_fabric(
    resolved: Resolved,
    nodes: list[tuple[NodeTemplate, int]] | None = None,
    *,
    alone_on_switch: bool = False,
) -> Fabric:
    """Return the fabric of a scenario.

    Parameters
    ----------
    resolved
        The scenario.
    nodes
        Its nodes as they are to be built; None: as `node_list`.
    alone_on_switch
        A single node has a network too, for GPUs that talk over it.

    Raises
    ------
    TopologyError
        Unknown presets, a network that does not fit its nodes, a graph in pieces.
    """
    import topologies

    if resolved.topology is not None:
        return topologies.build_custom(resolved.topology)
    nodes = node_list(resolved) if nodes is None else nodes
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
        alone = sum(count for _, count in nodes) == 1
        kind = "none" if alone and not alone_on_switch else "single_switch"
        return topologies.build(nodes, kind, topologies.option_type(kind)())
    return topologies.build(nodes, resolved.fabric.kind, resolved.fabric.options)


def build_cluster(resolved: Resolved) -> Cluster:
    """Return the cluster of a scenario, ready for calls."""
    profile = load_profile(resolved.costs.profile).with_overrides(resolved.costs.overrides)
    usual_version = profile.version
    if resolved.costs.version is not None:
        profile = profile.of_version(resolved.costs.version)
    profile = replace(profile, gpus_per_process=resolved.costs.gpus_per_process)
    nodes = node_list(resolved)
    cluster = (
        _gpu_cluster(resolved, profile, usual_version, nodes)
        if profile.host is None
        else _host_cluster(resolved, profile, nodes)
    )
    tell_network(cluster, resolved)
    return cluster


def _gpu_cluster(
    resolved: Resolved,
    profile: CostProfile,
    usual_version: str,
    nodes: list[tuple[NodeTemplate, int]],
) -> Cluster:
    """Return the cluster of a library that moves data with GPUs and NICs."""
    if any(template.cores for template, _ in nodes) and profile.name in GPU_LIBRARIES:
        raise ScenarioError(
            Problem(
                key="costs.profile",
                message=f"{profile.name} needs GPUs, and these nodes have none",
                allowed="gloo, mpi or mpich",
            )
        )
    applied = _applied(resolved, profile, nodes)
    if applied.sockets is not None:
        nodes = [(over_sockets(template), count) for template, count in nodes]
    lone_nics = any(v.kind == "nic" for template, _ in nodes for v in template.vertices)
    fabric = build_fabric(resolved, nodes, alone_on_switch=not applied.routing.shm and lone_nics)
    applied = without_idle_routes(fabric, resolved.routing, applied)
    profile = applied.profile
    if profile.tuning == "nccl":
        # The library sees what it is left with, whoever said so.
        view = library_view(applied.routing)
        profile = replace(profile, environment={**profile.environment, **view})
    cluster = Cluster(fabric, Router(fabric, applied.routing), profile)
    cluster.notes, cluster.warnings = applied.notes, applied.warnings
    if cluster.calibrated is not None:
        cluster.calibrated.settings = settings_of(resolved, usual_version)
    _tell_version(cluster, resolved.costs.version)
    return cluster


def _tell_version(cluster: Cluster, asked: str | None) -> None:
    """Say where another version's constants stand for the version asked for.

    A newer one than any that is known is a warning; those before the oldest table share it.
    """
    if asked is None:
        return
    version = NcclVersion.parse(asked)
    stand_in, text = nearest_supported(version)
    if text is not None:
        tell = cluster.warn if version > stand_in else cluster.note
        tell(f"costs.version: {text}")


def _applied(
    resolved: Resolved, profile: CostProfile, nodes: list[tuple[NodeTemplate, int]]
) -> Applied:
    """Return what the environment makes of routing and constants.

    Raises
    ------
    ScenarioError
        Bad values, or variables beside a profile of no library.
    """
    library = profile.name
    if library not in GPU_LIBRARIES:
        if resolved.env:
            raise ScenarioError(
                Problem(
                    key="env",
                    message=f"profile {profile.name!r} has no environment variables",
                    allowed="env only with the profile of a library, such as nccl",
                )
            )
        return Applied(routing=resolved.routing, profile=profile)
    variables = {**profile.environment, **resolved.env}
    version, _ = nearest_supported(NcclVersion.parse(profile.version or "2.23"))
    return apply_environment(
        replace(profile, environment=variables),
        resolved.routing,
        parse_variables(variables, library, version),
        nodes,
        library=library,
    )


def _host_cluster(
    resolved: Resolved, profile: CostProfile, nodes: list[tuple[NodeTemplate, int]]
) -> Cluster:
    """Return the cluster of a library that moves data with the CPU."""
    version, _ = nearest_supported(NcclVersion.parse("2.23"))
    found = apply_host_environment(
        profile,
        resolved.routing,
        parse_variables({**profile.environment, **resolved.env}, profile.name, version),
        nodes,
    )
    profile, costs = found.profile, found.profile.host
    assert costs is not None
    buffers = resolved.costs.buffers
    have_gpus = any(not template.cores for template, _ in nodes)
    if buffers == "auto":
        buffers = "gpu" if (costs.backend == "gloo" or found.aware) and have_gpus else "host"
    on_gpu = buffers == "gpu" and have_gpus
    aware = found.aware and on_gpu
    staging = min((staging_Bps(t, costs) for t, _ in nodes), default=float("inf"))
    rates = [template.nic_rate_Bps for template, _ in nodes if template.nic_kind is not None]
    if found.tcp:
        nodes = [(over_sockets(template), count) for template, count in nodes]
    routing = found.routing
    if not aware:
        nodes = [(host_view(t, costs, verbs=not found.tcp), count) for t, count in nodes]
        nics = routing.nics or ((0,) if costs.backend == "gloo" else ())
        routing = replace(routing, pxn=False, p2p=False, gdr_level="sys", nics=nics)
    fabric = build_fabric(resolved, nodes)
    cluster = Cluster(fabric, Router(fabric, routing), profile)
    cluster.hosts = Hosts(
        costs=costs,
        staging_Bps=staging if on_gpu else float("inf"),
        aware=aware,
        forced=found.forced,
        nic_Bps=min(rates, default=float("inf")),
    )
    cluster.notes, cluster.warnings = tuple(found.notes), tuple(found.warnings)
    return cluster
