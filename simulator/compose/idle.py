"""Variables that were set and change nothing: found by taking each away.

Whether a variable acts depends on the machine, the call and the library's version; instead of
rules for each, the routes or the choice with and without it are compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from simulator.collectives.call import Call
from simulator.compose.applied import Applied
from simulator.compose.choose import choose
from simulator.compose.cluster import Choice, Cluster
from simulator.compose.exchange import EXCHANGE_CALLS
from simulator.costs.nccl.graph import COLLECTIVES
from simulator.costs.variables import library_variables
from simulator.fabric.fabric import Fabric
from simulator.fabric.options import RoutingOptions
from simulator.fabric.routing import Router

__all__ = ["idle_choices", "without_idle_routes"]

IntArray = NDArray[np.int64]

_INSIDE = {"NCCL_P2P_LEVEL": "p2p_level", "NCCL_SHM_DISABLE": "shm", "NCCL_NVB_DISABLE": "nvb"}
"""Variables of the ways inside a node, with the option of routing that each sets."""
_NAMED = ("NCCL_ALGO", "NCCL_PROTO")
"""What is asked for by name is asked for even where it would have been taken anyway."""


def without_idle_routes(fabric: Fabric, given: RoutingOptions, applied: Applied) -> Applied:
    """Return what the variables made of a scenario, told again where no route changes.

    Parameters
    ----------
    fabric
        The cluster.
    given
        Options of the scenario, before the variables.
    applied
        Options, notes and warnings after them.
    """
    notes, warnings = list(applied.notes), list(applied.warnings)
    for name, key in _INSIDE.items():
        told = [
            text
            for text in notes
            if text.startswith(f"env: {name}=") and f"(routing.{key}:" in text
        ]
        if not told:
            continue
        before = replace(applied.routing, **{key: getattr(given, key)})
        if not _same_routes(fabric, before, applied.routing):
            continue
        notes = [text for text in notes if text not in told]
        cause = told[0].removeprefix("env: ").partition(":")[0]
        warnings.append(
            f"env: {cause} has no effect here: GPUs and NICs have the same routes without it"
        )
    return replace(applied, notes=tuple(notes), warnings=tuple(warnings))


def _same_routes(fabric: Fabric, one: RoutingOptions, other: RoutingOptions) -> bool:
    """Return whether GPUs of one node of each kind reach each other, and another node, alike."""
    node = np.asarray(fabric.node_of_gpu)
    kind = np.asarray(fabric.template_of_node)[node]
    src: list[IntArray] = []
    dst: list[IntArray] = []
    for template in np.unique(kind):
        first = node[np.flatnonzero(kind == template)[0]]
        own = np.flatnonzero(node == first)
        far = np.flatnonzero(node != first)
        near = np.concatenate([own, far[node[far] == node[far[0]]] if len(far) else far])
        a, b = (ends.ravel() for ends in np.meshgrid(own, near, indexing="ij"))
        src.append(a[a != b])
        dst.append(b[a != b])
    ends = (fabric.gpu_vertex[np.concatenate(src)], fabric.gpu_vertex[np.concatenate(dst)])
    routes = [Router(fabric, options).routes(*ends) for options in (one, other)]
    parts = [(found.indptr, found.link, found.share, found.latency_s) for found in routes]
    return all(np.array_equal(a, b) for a, b in zip(*parts, strict=True))


def idle_choices(
    cluster: Cluster,
    chosen: Sequence[tuple[Call, Choice]],
    group: IntArray,
    *,
    algorithm: str,
    protocol: str,
    channels: int | None,
) -> list[str]:
    """Return warnings about variables of the choice without which the same would be chosen.

    Parameters
    ----------
    cluster
        With a profile whose library chooses.
    chosen
        The calls of a run, and what was chosen for each.
    group
        Their ranks.
    algorithm, protocol, channels
        As in a scenario.
    """
    profile = cluster.profile
    calls = {call.collective for call, _ in chosen}
    if not calls <= {*COLLECTIVES, *EXCHANGE_CALLS} or cluster.tuning_input(group) is None:
        return []
    texts = []
    for name, variable in library_variables("nccl").items():
        names = [alias for alias in (name, *variable.aliases) if alias in profile.environment]
        acts = variable.effect == "modelled" and variable.acts == "choice"
        told = any(alias in text for text in (*cluster.warnings, *cluster.notes) for alias in names)
        if not names or not acts or told or name in _NAMED:
            continue
        left = {key: text for key, text in profile.environment.items() if key not in names}
        bare = Cluster(cluster.fabric, cluster.lowering.router, replace(profile, environment=left))
        same = all(
            _alike(
                choice,
                choose(
                    bare, call, group, algorithm=algorithm, protocol=protocol, channels=channels
                ),
            )
            for call, choice in chosen
        )
        if same:
            texts.append(
                f"env: {names[0]}={profile.environment[names[0]]} has no effect on "
                f"{' and '.join(sorted(calls))} here: the same is chosen without it"
            )
    return texts


def _alike(one: Choice, other: Choice) -> bool:
    """Return whether two choices are carried out alike, whatever the library expects of them."""
    return replace(one, expected_s=None) == replace(other, expected_s=None)
