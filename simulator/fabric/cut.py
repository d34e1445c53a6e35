"""The error of a pair without route: what is cut from what."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from simulator.base.errors import Problem, RoutingError
from simulator.fabric.model import VERTEX_KINDS
from simulator.fabric.options import RoutingOptions

if TYPE_CHECKING:
    from simulator.fabric.fabric import Fabric

__all__ = ["no_route"]


def _reached(fabric: Fabric, src: int, alive: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return the vertices that a vertex reaches over live links."""
    seen = np.zeros(fabric.n_vertices, dtype=bool)
    seen[src] = True
    tail, head = fabric.link_src[alive], fabric.link_dst[alive]
    while True:
        new = np.zeros_like(seen)
        new[head[seen[tail]]] = True
        if not (new & ~seen).any():
            return seen
        seen |= new


def no_route(
    fabric: Fabric, dead: NDArray[np.bool_] | None, options: RoutingOptions, src: int, dst: int
) -> RoutingError:
    """Return the error for a pair of vertices without route, naming both sides of the cut."""
    names = fabric.names
    alive = np.ones(fabric.n_links, dtype=bool) if dead is None else ~dead
    head = f"no path is left from {names.vertex(src)} to {names.vertex(dst)}"
    failed = np.flatnonzero(~alive).tolist()
    lost = ", ".join(names.link(link) for link in failed[:4])
    if len(failed) > 4:
        lost += f" and {len(failed) - 4} more"
    seen = _reached(fabric, src, alive)
    if not seen[dst]:
        return RoutingError(
            Problem(
                message=f"{head}: failed links ({lost}) cut "
                f"{names.short_list(np.flatnonzero(seen))} from "
                f"{names.short_list(np.flatnonzero(~seen))}",
                allowed="failures that leave a path between all pairs that talk",
            )
        )
    if VERTEX_KINDS.index("nvswitch") in fabric.vertex_kind[[src, dst]]:
        off = " over NVLink, which routing.p2p: false turns off" if options.p2p is False else ""
        return RoutingError(
            Problem(
                message=f"{head}{off}",
                allowed="an NVSwitch and the GPUs of its own node or NVLink domain",
            )
        )
    why = "the network joins no NIC that one uses with a NIC that the other uses"
    if failed:
        why += f" after the failure of {lost}"
    hint = "a network that joins all rails"
    if not options.pxn:
        hint += ", or routing.pxn: true, which moves the data to the right rail over NVLink"
    elif options.cross_nic:
        hint += (
            ", NVLink inside the nodes (PXN), or routing.cross_nic: false, which receives on the "
            "sender's rail"
        )
    return RoutingError(Problem(message=f"{head}: {why}", allowed=hint))
