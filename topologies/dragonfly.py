"""Dragonfly: groups of fully joined routers, every group joined to every other."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from simulator.base.errors import Problem, TopologyError
from simulator.base.fields import option
from simulator.fabric.wiring import Ports, Wiring
from topologies.registry import NetworkOptions, start, topology, trunk_rate

__all__ = ["DragonflyOptions"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DragonflyOptions(NetworkOptions):
    """Options of a dragonfly."""

    nics_per_router: int | None = option(
        "count",
        None,
        minimum=1,
        doc="NICs on each router (p). Default: the smallest balanced dragonfly that fits.",
    )
    routers_per_group: int | None = option(
        "count", None, minimum=1, doc="Routers of a group (a). Default: 2 p."
    )
    global_links: int | None = option(
        "count", None, minimum=1, doc="Links of each router to other groups (h). Default: p."
    )
    global_rate: float | None = option(
        "rate", None, doc="Rate of each link between groups per direction. Default: `trunk`."
    )
    global_latency: float = option(
        "time", 0.0, minimum=0.0, doc="Propagation time of a link between groups (5 ns a metre)."
    )


@topology(
    "dragonfly",
    summary="groups of fully joined routers, global links between all groups, minimal routes",
    reference="Kim, Dally, Scott, Abts, Technology-Driven, Highly-Scalable Dragonfly Topology, "
    "ISCA 2008",
    options=DragonflyOptions,
)
def wire(ports: Ports, options: DragonflyOptions) -> Wiring:
    """Return the network.

    Notes
    -----
    Balanced: a = 2p = 2h.  G groups are joined pairwise by ``floor(a h / (G − 1))`` global links;
    at most ``a h + 1`` groups.  Global port q of group i leads to group ``i + 1 + q mod (G − 1)``.
    """
    builder = start(ports, options)
    p = options.nics_per_router or _balanced(ports.n_nics)
    a = options.routers_per_group or 2 * p
    h = options.global_links or p
    groups = -(-ports.n_nics // (p * a))
    if groups > a * h + 1:
        raise TopologyError(
            Problem(
                key="fabric",
                message=f"{ports.n_nics} NICs need {groups} groups of {p * a}, but {a} routers "
                f"with {h} global links reach only {a * h} other groups",
                allowed=f"at most {(a * h + 1) * p * a} NICs, or nics_per_router: "
                f"{_balanced(ports.n_nics)}",
            )
        )
    used = -(-ports.n_nics // p) if groups == 1 else groups * a
    routers = builder.switches("leaf", used, [f"group{i // a}.router{i % a}" for i in range(used)])
    builder.attach(routers[np.arange(ports.n_nics) // p], options.link)
    rate_Bps = trunk_rate(ports, options)
    inside = min(a, used)
    builder.reserve(groups * inside * (inside - 1) // 2 + (groups > 1) * a * h * groups)
    low, high = np.triu_indices(inside, 1)
    for group in range(groups):
        builder.connect(routers[group * a + low], routers[group * a + high], rate_Bps)
    if groups > 1:
        rounds = a * h // (groups - 1)
        port = np.arange(rounds * (groups - 1))
        offset, turn = port % (groups - 1) + 1, port // (groups - 1)
        back = groups - offset - 1 + turn * (groups - 1)
        for group in range(groups):
            other = (group + offset) % groups
            mine = other > group
            builder.connect(
                routers[group * a + port[mine] // h],
                routers[other[mine] * a + back[mine] // h],
                options.global_rate or rate_Bps,
                latency_s=options.global_latency,
            )
    return builder.finish()


def _balanced(nics: int) -> int:
    """Return the smallest p for which a balanced dragonfly has room: p 2p (2p² + 1)."""
    p = 1
    while 2 * p * p * (2 * p * p + 1) < nics:
        p += 1
    return p
