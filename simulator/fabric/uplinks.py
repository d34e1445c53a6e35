"""What stands below and above the leaves of a network: the oversubscription that traffic meets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from simulator.fabric.model import VERTEX_KINDS

if TYPE_CHECKING:
    from simulator.fabric.fabric import Fabric

__all__ = ["Uplinks", "leaf_uplinks"]

_NIC, _LEAF, _SPINE, _CORE = (VERTEX_KINDS.index(k) for k in ("nic", "leaf", "spine", "core"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Uplinks:
    """The leaf with the highest ratio of NICs' capacity to that of its uplinks."""

    leaf: str
    n_nics: int
    """NICs on it."""
    n_uplinks: int
    """Links from it to spines or cores."""
    down_Bps: float
    """Capacity from its NICs, per direction."""
    up_Bps: float
    """Capacity to spines or cores, per direction."""

    @property
    def ratio(self) -> float:
        """NICs' capacity over that of the uplinks: above 1 the uplinks can bind."""
        return self.down_Bps / self.up_Bps


def leaf_uplinks(fabric: Fabric) -> Uplinks | None:
    """Return the fullest leaf of a fabric; None where no leaf has uplinks."""
    kind = np.asarray(fabric.vertex_kind)
    src, dst = np.asarray(fabric.link_src), np.asarray(fabric.link_dst)
    rises = (kind[src] == _LEAF) & ((kind[dst] == _SPINE) | (kind[dst] == _CORE))
    enters = (kind[src] == _NIC) & (kind[dst] == _LEAF)
    count = fabric.n_vertices
    up_Bps = np.bincount(src[rises], weights=fabric.capacity_Bps[rises], minlength=count)
    down_Bps = np.bincount(dst[enters], weights=fabric.capacity_Bps[enters], minlength=count)
    with_uplinks = np.flatnonzero(up_Bps > 0)
    if not len(with_uplinks):
        return None
    leaf = int(with_uplinks[np.argmax(down_Bps[with_uplinks] / up_Bps[with_uplinks])])
    return Uplinks(
        leaf=fabric.vertex_name(leaf),
        n_nics=int(np.count_nonzero(enters & (dst == leaf))),
        n_uplinks=int(np.count_nonzero(rises & (src == leaf))),
        down_Bps=float(down_Bps[leaf]),
        up_Bps=float(up_Bps[leaf]),
    )
