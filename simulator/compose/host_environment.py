"""Environment variables of gloo, Open MPI and MPICH: NICs, TCP, algorithms, limits, GPU memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from simulator.base.errors import ScenarioError
from simulator.compose.environment import VERBS
from simulator.costs.nccl.nics import chosen_nics
from simulator.costs.profile import CostProfile
from simulator.costs.variables import Parsed
from simulator.fabric.model import NodeTemplate
from simulator.fabric.options import RoutingOptions

__all__ = ["HostApplied", "apply_host_environment"]

_COLLECTIVES = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "bcast": "broadcast",
    "reduce": "reduce",
    "reduce_scatter": "reduce_scatter",
    "alltoall": "all_to_all",
    "alltoallv": "all_to_allv",
    "gather": "gather",
    "scatter": "scatter",
    "barrier": "barrier",
}
_MPICH = {
    "recursive_doubling": "recursive_doubling",
    "reduce_scatter_allgather": "halving_doubling",
    "ring": "ring",
    "tree": "tree",
    "brucks": "bruck",
    "binomial": "binomial",
    "scatter_recursive_doubling_allgather": "scatter_allgather",
    "scatter_ring_allgather": "scatter_allgather_ring",
    "pairwise": "pairwise",
    "scattered": "direct",
    "reduce_scatter_gather": "halving_gather",
    "recursive_halving": "recursive_halving",
}
_NIC_LISTS = ("GLOO_SOCKET_IFNAME", "UCX_NET_DEVICES", "OMPI_MCA_btl_tcp_if_include")


@dataclass(slots=True, kw_only=True)
class HostApplied:
    """What the variables made of a scenario."""

    routing: RoutingOptions
    profile: CostProfile
    tcp: bool
    """Ports carry TCP."""
    aware: bool
    """The library moves GPU memory itself."""
    forced: dict[str, str] = field(default_factory=dict)
    """Algorithm by collective."""
    notes: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


def apply_host_environment(
    profile: CostProfile,
    routing: RoutingOptions,
    parsed: Parsed,
    nodes: Sequence[tuple[NodeTemplate, int]],
) -> HostApplied:
    """Return routing, constants and transports under a run's variables.

    Parameters
    ----------
    profile
        Of gloo, mpi or mpich.
    routing, parsed, nodes
        As in `simulator.compose.environment.apply_environment`.
    """
    kinds = {template.nic_kind for template, _ in nodes}
    tcp = profile.name == "gloo" or not kinds & {*VERBS, "slingshot", "efa"}
    found = HostApplied(
        routing=routing,
        profile=profile,
        tcp=tcp,
        aware=False,
        warnings=[f"env: {text}" for text in parsed.warnings],
    )
    several = sum(count for _, count in nodes) != 1
    _transport(found, parsed, several)
    _nics(found, parsed, nodes, several)
    _algorithms(found, parsed)
    _limits(found, parsed)
    for name in ("OMPI_MCA_opal_cuda_support", "MPICH_GPU_SUPPORT_ENABLED", "MPIR_CVAR_ENABLE_GPU"):
        if parsed.integer(name, 0) == 1:
            found.aware = True
            found.notes.append(f"env: {name}=1: the library moves GPU memory itself")
    return found


def _transport(found: HostApplied, parsed: Parsed, several: bool) -> None:
    for name, others in (("UCX_TLS", ("rc", "dc", "ud", "ib", "all")), ("OMPI_MCA_btl", ("uct",))):
        asked = parsed.names(name)
        if not asked:
            continue
        wants = "tcp" in asked and not any(x.startswith(others) for x in asked)
        if not several or found.tcp or not wants:
            why = (
                "there is one node"
                if not several
                else "it leaves the network as it is"
                if not wants
                else "the nodes talk over TCP anyway"
            )
            found.warnings.append(f"env: {name} has no effect here: {why}")
        else:
            found.tcp = True
            value = ",".join(asked)
            found.notes.append(f"env: {name}={value}: TCP between nodes (node.nic_kind: ethernet)")


def _nics(
    found: HostApplied,
    parsed: Parsed,
    nodes: Sequence[tuple[NodeTemplate, int]],
    several: bool,
) -> None:
    count = max((sum(v.kind == "nic" for v in t.vertices) for t, _ in nodes), default=0)
    for name in _NIC_LISTS:
        asked = parsed.names(name)
        if not asked:
            continue
        if not several or count == 0:
            found.warnings.append(f"env: {name} has no effect here: there is one node")
            continue
        chosen, strange = chosen_nics("=" + ",".join(asked), count)
        if strange:
            found.warnings.append(
                f"env: {name}: {', '.join(strange)} has no number below {count} (NIC n of the "
                f"preset counts as eth_n, ib_n or mlx5_n): taken as {len(chosen)} of {count} NICs"
            )
        if not chosen:
            raise ScenarioError(f"{name} leaves no NIC of 0 … {count - 1}")
        if found.routing.nics:
            found.warnings.append(f"env: {name}: routing.nics of the scenario wins")
            continue
        found.routing = replace(found.routing, nics=chosen)
        found.notes.append(f"env: {name}: only these NICs (routing.nics: {list(chosen)})")


def _algorithms(found: HostApplied, parsed: Parsed) -> None:
    rules = found.profile.rules
    dynamic = parsed.integer("OMPI_MCA_coll_tuned_use_dynamic_rules", 0) == 1
    used = False
    for theirs, ours in _COLLECTIVES.items():
        name = f"OMPI_MCA_coll_tuned_{theirs}_algorithm"
        number = parsed.integer(name, 0)
        if number and not dynamic:
            found.warnings.append(
                f"env: {name} has no effect here: OMPI_MCA_coll_tuned_use_dynamic_rules is not 1"
            )
        elif number and rules is not None:
            used = True
            known = rules.numbers[ours]
            if number > len(known):
                found.warnings.append(f"env: {name}={number} is not modelled")
                continue
            _force(found, f"{name}={number}", ours, known[number - 1])
        cvar = f"MPIR_CVAR_{theirs.upper()}_INTRA_ALGORITHM"
        value: Any = parsed.values.get(cvar)
        if value not in (None, "auto"):
            mine = _MPICH.get(value)
            if ours == "reduce_scatter" and value == "pairwise":
                mine = "direct"
            if mine is None:
                found.warnings.append(f"env: {cvar}={value} is not modelled")
            else:
                _force(found, f"{cvar}={value}", ours, mine)
    if dynamic and not used:
        found.warnings.append(
            "env: OMPI_MCA_coll_tuned_use_dynamic_rules has no effect here: no algorithm is set"
        )


def _force(found: HostApplied, cause: str, collective: str, algorithm: str) -> None:
    found.forced[collective] = algorithm
    found.notes.append(f"env: {cause}: {collective} by {algorithm}")


def _limits(found: HostApplied, parsed: Parsed) -> None:
    host = found.profile.host
    if host is None:
        return
    for name, place in (("OMPI_MCA_btl_sm_eager_limit", "local"), ("UCX_RNDV_THRESH", "network")):
        if name in parsed.values:
            limit = parsed.integer(name, 0)
            host = host.with_eager(place, limit)
            found.notes.append(f"env: {name}={limit}: no handshake up to so many bytes ({place})")
    rails = parsed.integer("UCX_MAX_RNDV_RAILS", host.rails)
    if rails != host.rails:
        host = replace(host, rails=rails)
        found.notes.append(f"env: UCX_MAX_RNDV_RAILS={rails}: a message over so many NICs")
    elif "UCX_MAX_RNDV_RAILS" in parsed.values:
        found.warnings.append(f"env: UCX_MAX_RNDV_RAILS={rails} has no effect: it is the default")
    found.profile = replace(found.profile, host=host)
