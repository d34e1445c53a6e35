"""Environment variables become what they do: keys of routing, ports driven by TCP, constants.

NCCL decides its transports from them when it starts (src/graph/topo.cc, paths.cc, src/transport);
here each of them sets the option that a scenario's own key would set, so that routes and costs
follow.  Variables of the *choice* (NCCL_ALGO, NCCL_MAX_NCHANNELS, …) act in `simulator.costs.nccl`
where the library's own model chooses, and by narrowing the profile where it does not (RCCL).

A key of ``routing`` that the scenario sets itself wins over a variable.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from simulator.base.errors import ScenarioError
from simulator.compose.applied import Applied, State
from simulator.compose.narrow import narrowed, slower_threads
from simulator.costs.nccl import PathType
from simulator.costs.nccl.environment import Variable
from simulator.costs.nccl.nics import chosen_nics
from simulator.costs.profile import CostProfile
from simulator.costs.sockets import Sockets, drives_itself, provider_of
from simulator.costs.variables import Parsed, library_variables
from simulator.fabric.model import NodeTemplate
from simulator.fabric.options import RoutingOptions

__all__ = ["Applied", "apply_environment", "library_view", "over_sockets"]

VERBS = ("infiniband", "roce")
"""Kinds of ports that the library drives by verbs; others need a plugin or are TCP."""
HASHED = ("roce", "ethernet")
"""Kinds of network on which ECMP hashes flows unless the scenario says otherwise."""

_P2P = {
    PathType.NVL: "nvl",
    PathType.NVB: "nvl",
    PathType.PIX: "pix",
    PathType.PXB: "pxb",
    PathType.PXN: "pxb",
    PathType.PHB: "phb",
    PathType.SYS: "sys",
}
_GDR = {**_P2P, PathType.NVL: "", PathType.NVB: ""}


def apply_environment(
    profile: CostProfile,
    routing: RoutingOptions,
    parsed: Parsed,
    nodes: Sequence[tuple[NodeTemplate, int]],
    *,
    library: str = "nccl",
) -> Applied:
    """Return routing, constants and transports under a run's variables.

    Parameters
    ----------
    profile
        Of NCCL or RCCL.
    routing
        The scenario's options.
    parsed
        The variables, see `simulator.costs.variables.parse_variables`.
    nodes
        Node presets of the cluster with their numbers; empty for an own topology.
    library
        ``nccl`` or ``rccl``.

    Raises
    ------
    ScenarioError
        Variables that leave no NIC, no algorithm or no protocol.
    """
    state = State(routing, warnings=list(parsed.warnings))
    sockets = _sockets(state, parsed, nodes)
    _plugin(state, parsed, nodes, sockets is not None)
    _inside(state, parsed, nodes)
    _gpudirect(state, parsed, nodes, sockets is not None)
    _network(state, parsed, nodes, sockets is not None)
    _needs(state, parsed, nodes, library)
    if sockets is not None:
        profile = replace(profile, socket_Bps=sockets.rate_Bps, socket_rank_Bps=sockets.rank_Bps)
    profile = slower_threads(state, profile, parsed)
    if library == "rccl":
        _unchosen(state, parsed)
        profile = narrowed(profile, parsed)
    return Applied(
        routing=state.routing,
        profile=profile,
        sockets=sockets,
        notes=tuple(f"env: {note}" for note in state.notes),
        warnings=tuple(f"env: {warning}" for warning in state.warnings),
    )


_NARROWING = (
    "NCCL_ALGO",
    "NCCL_PROTO",
    "NCCL_MIN_NCHANNELS",
    "NCCL_MAX_NCHANNELS",
    "NCCL_NTHREADS",
    "NCCL_LL128_NTHREADS",
)
"""Variables of the choice that act where the library's own model is not known."""


def _unchosen(state: State, parsed: Parsed) -> None:
    """Warn of variables of a choice that only NCCL's own model makes."""
    for name, variable in library_variables("rccl").items():
        told = any(text.startswith(name) for text in state.warnings)
        acts = variable.effect == "modelled" and variable.acts == "choice"
        if name in parsed.values and acts and not told and name not in _NARROWING:
            state.idle(name, "RCCL's own choice is not modelled")


def library_view(routing: RoutingOptions) -> dict[str, str]:
    """Return the variables that say what a scenario's routing says, for the library's choice."""
    view: dict[str, str] = {}
    if routing.p2p is False:
        view["NCCL_P2P_DISABLE"] = "1"
    elif routing.p2p_level is not None:
        view["NCCL_P2P_LEVEL"] = routing.p2p_level.upper()
    if routing.gpudirect is False:
        view["NCCL_NET_GDR_LEVEL"] = "LOC"
    elif routing.gdr_level != "pxb":
        view["NCCL_NET_GDR_LEVEL"] = routing.gdr_level.upper()
    flags = {
        "NCCL_SHM_DISABLE": not routing.shm,
        "NCCL_NVB_DISABLE": not routing.nvb,
        "NCCL_PXN_DISABLE": not routing.pxn,
    }
    view |= {name: "1" for name, is_set in flags.items() if is_set}
    if not routing.cross_nic:
        view["NCCL_CROSS_NIC"] = "0"
    if routing.nics:
        view["NCCL_IB_HCA"] = "=" + ",".join(f"mlx5_{nic}" for nic in routing.nics)
    return view


# ------------------------------------------------------------------------- what the cluster is


def _several(nodes: Sequence[tuple[NodeTemplate, int]]) -> bool:
    return sum(count for _, count in nodes) != 1


def _kinds(nodes: Sequence[tuple[NodeTemplate, int]]) -> set[str]:
    return {template.nic_kind for template, _ in nodes if template.nic_kind is not None}


def _gpus(template: NodeTemplate) -> int:
    return sum(vertex.kind == "gpu" for vertex in template.vertices)


def _nics(nodes: Sequence[tuple[NodeTemplate, int]]) -> int:
    counts = [sum(v.kind == "nic" for v in template.vertices) for template, _ in nodes]
    return max(counts, default=0)


# -------------------------------------------------------------------------------- TCP or verbs


def _sockets(
    state: State, parsed: Parsed, nodes: Sequence[tuple[NodeTemplate, int]]
) -> Sockets | None:
    """Return the TCP connections of a run whose nodes do not talk by verbs."""
    kinds = _kinds(nodes)
    plain = [t for t, _ in nodes if t.nic_kind == "ethernet" and not drives_itself(t.name)]
    asked = str(parsed.values.get("NCCL_NET", "")).lower() == "socket"
    without_verbs = parsed.integer("NCCL_IB_DISABLE", 0) == 1
    by_variable = bool(kinds) and (asked or (without_verbs and bool(kinds & set(VERBS))))
    names = ("NCCL_SOCKET_NTHREADS", "NCCL_NSOCKS_PERTHREAD")
    if not _several(nodes) and state.given.shm and not parsed.integer("NCCL_SHM_DISABLE", 0):
        return None
    if not by_variable and not plain:
        return None
    provider = provider_of(nodes[0][0].name)
    threads, each = (parsed.values.get(name) for name in names)
    sockets = Sockets.of(provider, threads=threads, per_thread=each)
    if by_variable:
        cause = "NCCL_NET=Socket" if asked else "NCCL_IB_DISABLE=1"
        state.notes.append(f"{cause}: TCP sockets between nodes (node.nic_kind: ethernet)")
    for name in names:
        if name not in parsed.values:
            continue
        if sockets.threads:
            state.notes.append(
                f"{name}={parsed.values[name]}: {sockets.threads} threads, {sockets.flows} flows, "
                f"at most {sockets.rate_Bps / 1e9:.3g} GB/s of a channel"
            )
        else:
            state.idle(
                f"{name}={parsed.values[name]}", "without NCCL_SOCKET_NTHREADS there are no threads"
            )
    if _several(nodes):
        shared = "" if sockets.threads else ", which a rank's channels share"
        state.notes.append(
            f"TCP: at most {min(sockets.rate_Bps, sockets.rank_Bps) / 1e9:.3g} GB/s of a "
            f"{'channel' if sockets.threads else 'proxy thread'}{shared}; not fitted, hence the "
            "wide band"
        )
    return sockets


def _plugin(
    state: State, parsed: Parsed, nodes: Sequence[tuple[NodeTemplate, int]], sockets: bool
) -> None:
    """Warn of an NCCL_NET that names another network than verbs and sockets, or the usual one."""
    asked = str(parsed.values.get("NCCL_NET", ""))
    if not asked or asked.lower() == "socket" or not _several(nodes):
        return
    if asked.lower() != "ib":
        state.idle(
            f"NCCL_NET={asked}",
            "only IB and Socket are modelled; a plugin of another name counts as what drives the "
            "ports anyway",
        )
    elif _kinds(nodes) & set(VERBS) and not sockets:
        state.idle(f"NCCL_NET={asked}", "verbs drive the ports anyway")
    else:
        state.idle(f"NCCL_NET={asked}", "no ports are driven by verbs")


def over_sockets(template: NodeTemplate) -> NodeTemplate:
    """Return a node whose ports carry TCP: host memory in between, a kernel's latency."""
    from topologies.hardware_build import read

    if template.nic_kind is None:
        return template
    kernel_s = _seconds(read("links.yaml")["nics"]["ethernet"]["latency"])
    return replace(
        template,
        nic_kind="ethernet",
        nic_latency_s=max(template.nic_latency_s, kernel_s),
        gpudirect=False,
    )


def _seconds(text: str) -> float:
    from simulator.base.units import parse_time

    return parse_time(text)


# ------------------------------------------------------------------------------ inside a node


def _inside(state: State, parsed: Parsed, nodes: Sequence[tuple[NodeTemplate, int]]) -> None:
    level = parsed.values.get("NCCL_P2P_LEVEL")
    if parsed.integer("NCCL_P2P_DISABLE", 0) == 1:
        state.set("NCCL_P2P_DISABLE=1", "p2p", False, "GPUs talk through host memory")
        if level is not None:
            state.idle("NCCL_P2P_LEVEL", "NCCL_P2P_DISABLE=1 forbids all of it")
    elif level is not None and level <= PathType.LOC:
        state.set("NCCL_P2P_LEVEL=LOC", "p2p", False, "GPUs talk through host memory")
    elif level is not None:
        key = _P2P.get(level, "sys")
        state.set(f"NCCL_P2P_LEVEL={level.name}", "p2p_level", key, "farthest direct path")
        if key != "nvl" and nodes and not any(template.p2p for template, _ in nodes):
            state.idle(
                f"NCCL_P2P_LEVEL={level.name}", "the driver of these GPUs has no P2P by PCIe"
            )
    if parsed.integer("NCCL_SHM_DISABLE", 0) == 1:
        state.set("NCCL_SHM_DISABLE=1", "shm", False, "the network where GPUs have no direct path")
    if parsed.integer("NCCL_NVB_DISABLE", 0) == 1:
        state.set("NCCL_NVB_DISABLE=1", "nvb", False, "no NVLink through a GPU between")
    if nodes and all(_gpus(template) == 1 for template, _ in nodes):
        for name in ("NCCL_P2P_DISABLE", "NCCL_P2P_LEVEL", "NCCL_SHM_DISABLE", "NCCL_NVB_DISABLE"):
            if name in parsed.values:
                state.idle(name, "every node has one GPU")


# -------------------------------------------------------------------------- GPUs and their NICs


def _gpudirect(
    state: State, parsed: Parsed, nodes: Sequence[tuple[NodeTemplate, int]], sockets: bool
) -> None:
    names = ("NCCL_NET_GDR_LEVEL", "NCCL_NET_GDR_READ")
    if sockets:
        state.changes["gpudirect"] = False
        for name in names:
            if name in parsed.values:
                state.idle(name, "TCP sockets always go through host memory")
        return
    off = state.given.gpudirect is False or (
        state.given.gpudirect is None
        and bool(nodes)
        and not any(template.gpudirect for template, _ in nodes)
    )
    if off:
        for name in names:
            if name in parsed.values:
                state.idle(name, "these nodes have no GPUDirect")
        return
    level = parsed.values.get("NCCL_NET_GDR_LEVEL")
    if level is not None:
        key = _GDR.get(level, "" if level <= PathType.LOC else "sys")
        if key:
            state.set(f"NCCL_NET_GDR_LEVEL={level.name}", "gdr_level", key, "farthest GPUDirect")
        else:
            meaning = "NICs use host memory"
            state.set(f"NCCL_NET_GDR_LEVEL={level.name}", "gpudirect", False, meaning)
    read = parsed.values.get("NCCL_NET_GDR_READ")
    old = bool(nodes) and all(_reads_badly(template) for template, _ in nodes)
    if read == 0 and not old:
        state.set("NCCL_NET_GDR_READ=0", "gdr_read", False, "what is sent goes through the host")
    elif read == 1 and old:
        state.notes.append("NCCL_NET_GDR_READ=1: NICs read the memory of GPUs before Ampere")
    elif read is not None:
        state.idle(f"NCCL_NET_GDR_READ={read}", "that is NCCL's own choice for these GPUs")
    if old and read != 1 and state.given.gdr_read:
        state.changes["gdr_read"] = False


_BEFORE_AMPERE = ("kepler", "pascal", "volta", "turing")


def _reads_badly(template: NodeTemplate) -> bool:
    """Return whether NCCL lets no NIC read these GPUs: before Ampere, without NVLink.

    NCCL src/graph/paths.cc, ncclTopoCheckGdr.
    """
    fast = any(link.kind in ("nvlink", "xgmi") for link in template.links)
    return template.gpu.generation in _BEFORE_AMPERE and not fast


# --------------------------------------------------------------------------- between the nodes


def _network(
    state: State, parsed: Parsed, nodes: Sequence[tuple[NodeTemplate, int]], sockets: bool
) -> None:
    cross = parsed.values.get("NCCL_CROSS_NIC")
    if cross == 0:
        state.set("NCCL_CROSS_NIC=0", "cross_nic", False, "the same rail at both ends")
    elif cross is not None:
        state.idle(f"NCCL_CROSS_NIC={cross}", "routes may change rails anyway")
    relay = parsed.integer("NCCL_P2P_PXN_LEVEL", 2)
    if parsed.integer("NCCL_PXN_DISABLE", 0) == 1:
        state.set("NCCL_PXN_DISABLE=1", "pxn", False, "no relay through the GPU next to the NIC")
    elif relay == 0:
        state.set("NCCL_P2P_PXN_LEVEL=0", "pxn", False, "no relay through the GPU next to the NIC")
    elif "NCCL_P2P_PXN_LEVEL" in parsed.values:
        state.idle(f"NCCL_P2P_PXN_LEVEL={relay}", "exchanges are relayed where it helps anyway")
    _choose_nics(state, parsed, nodes, sockets)
    hashed = bool(_kinds(nodes) & set(HASHED)) or sockets or not nodes
    policy = state.given.policy or ("ecmp" if hashed else "static")
    adaptive = parsed.values.get("NCCL_IB_ADAPTIVE_ROUTING")
    verbs = bool(_kinds(nodes) & set(VERBS)) and not sockets
    if adaptive == 1 and verbs:
        state.set("NCCL_IB_ADAPTIVE_ROUTING=1", "policy", "adaptive", "flows over all short paths")
        policy = state.routing.policy or policy
    elif adaptive == 0 and verbs:
        state.idle("NCCL_IB_ADAPTIVE_ROUTING=0", f"flows keep one path ({policy}) anyway")
    pairs = parsed.values.get("NCCL_IB_QPS_PER_CONNECTION")
    if pairs is None or not verbs:
        return
    if policy != "ecmp":
        state.idle(
            f"NCCL_IB_QPS_PER_CONNECTION={pairs}",
            f"the network does not hash flows (routing.policy {policy})",
        )
    elif pairs > 1:
        state.set(
            f"NCCL_IB_QPS_PER_CONNECTION={pairs}",
            "flows",
            min(int(pairs), MOST_FLOWS),
            "flows that ECMP hashes one by one",
        )


MOST_FLOWS = 32
"""More flows of a connection than this spread no better."""


def _choose_nics(
    state: State, parsed: Parsed, nodes: Sequence[tuple[NodeTemplate, int]], sockets: bool
) -> None:
    name, other = "NCCL_IB_HCA", "NCCL_SOCKET_IFNAME"
    if sockets:
        name, other = other, name
    if other in parsed.values:
        why = "TCP sockets are used, not verbs" if sockets else "it only finds the other processes"
        state.idle(other, why)
    text = parsed.values.get(name)
    if not text:
        return
    if not nodes:
        state.idle(name, "an own topology has no device names; set routing.nics")
        return
    count = _nics(nodes)
    chosen, strange = chosen_nics(str(text), count)
    if strange:
        state.warnings.append(
            f"{name}: {', '.join(strange)} has no number below {count} (NIC n of the preset counts "
            f"as mlx5_n, eth_n or ib_n): taken as {len(chosen)} of the {count} NICs, evenly spread"
        )
    if not chosen:
        raise ScenarioError(f"{name}={text} leaves no NIC of 0 … {count - 1}")
    if len(chosen) == count:
        state.idle(f"{name}={text}", "it means all NICs of the preset")
    else:
        state.set(f"{name}={text}", "nics", chosen, "only these NICs")


# ------------------------------------------------------------------ what the cluster has not got

_NEEDS = {
    "network": "there is one node",
    "verbs": "no ports are driven by verbs",
    "sockets": "the nodes do not talk over TCP sockets",
    "nvswitch": "no NVSwitch reduces here",
    "infiniband": "there is no InfiniBand network of several nodes",
    "gpudirect": "there is one node",
    "ecmp": "there is no network driven by verbs",
}


def _needs(
    state: State, parsed: Parsed, nodes: Sequence[tuple[NodeTemplate, int]], library: str
) -> None:
    """Warn of variables whose hardware or transport is not there, unless told already."""
    if not nodes or not parsed.values:
        return
    several, kinds = _several(nodes), _kinds(nodes)
    sockets = state.changes.get("gpudirect") is False and "gpudirect" in state.changes
    there = {
        "network": several,
        "gpudirect": several,
        "verbs": several and bool(kinds & set(VERBS)),
        "ecmp": several and bool(kinds & set(VERBS)),
        "sockets": several and (sockets or "ethernet" in kinds),
        "infiniband": several and "infiniband" in kinds,
        "nvswitch": library == "nccl" and any(_reduces(template) for template, _ in nodes),
    }
    known: Mapping[str, Variable] = library_variables(library)
    for name in parsed.values:
        need = known[name].needs if name in known else ""
        if not need or there[need]:
            continue
        said = [text for text in (*state.warnings, *state.notes) if text.startswith(name)]
        state.notes = [text for text in state.notes if not text.startswith(name)]
        state.warnings = [text for text in state.warnings if text not in said]
        state.idle(name, _NEEDS[need])


def _reduces(template: NodeTemplate) -> bool:
    switched = any(vertex.kind == "nvswitch" for vertex in template.vertices)
    return switched and template.gpu.generation in ("hopper", "blackwell")
