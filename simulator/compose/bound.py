"""The bandwidth lower bound of a call on a cluster: no schedule can be faster.

It belongs to (collective, size, group, fabric) and to no algorithm, so that the shares of a sweep
can be compared.  A set of GPUs and what they must exchange with the others give a bound for every
cut between the two: the bytes divided by the physical rate of the links that cross.  The sets are
each GPU, each node (or NVLink domain), the nodes below each part of the network, and both halves
of the group.  Where no switch can add up, an all_reduce among k such sets moves 2(k − 1)·S.
"""

from __future__ import annotations

from dataclasses import dataclass
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from simulator.collectives.bounds import crossing_bytes, exchange_bytes
from simulator.collectives.call import Call
from simulator.compose.cluster import Cluster, switches_add_up
from simulator.compose.cuts import gpu_ports, network_cuts, unit_ports

__all__ = ["bound_s"]

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Division:
    """A group divided into sets, with a cut around each."""

    label: IntArray
    """Set of each rank, shape (n,)."""
    out_Bps: FloatArray
    """Physical rate out of each set, shape (k,)."""
    in_Bps: FloatArray
    in_network: bool
    """Switches between the sets can add up and multicast."""

    def bound_s(self, call: Call) -> float:
        """Return the largest bound of the cuts, s."""
        k = len(self.out_Bps)
        out, into = crossing_bytes(call, self.label)
        total_Bps = min(float(self.out_Bps.sum()), float(self.in_Bps.sum()))
        with np.errstate(divide="ignore", invalid="ignore"):
            each = np.maximum(out / self.out_Bps, into / self.in_Bps)
            together = exchange_bytes(call, k, in_network=self.in_network) / np.float64(total_Bps)
        # A set that nothing leaves has no finite bound; the run itself says why.
        each = each[np.isfinite(each)]
        return max(float(each.max(initial=0.0)), float(together) if total_Bps > 0 else 0.0)


_known: WeakKeyDictionary[Cluster, dict[bytes, list[_Division]]] = WeakKeyDictionary()


def bound_s(cluster: Cluster, call: Call, group: IntArray) -> float:
    """Return the bandwidth lower bound of a call on a group of global ranks, seconds.

    Parameters
    ----------
    cluster
        Where; its links at their rates in health.
    call
        What.
    group
        Global ranks in group order, shape (n,).
    """
    if call.world_size == 1 or call.size_bytes == 0:
        return 0.0
    divisions = _known.setdefault(cluster, {})
    key = group.tobytes()
    if key not in divisions:
        divisions[key] = _divisions(cluster, group)
    return max(division.bound_s(call) for division in divisions[key])


def _divisions(cluster: Cluster, group: IntArray) -> list[_Division]:
    """Return the divisions of a group that are looked at."""
    fabric, options = cluster.fabric, cluster.lowering.router.options
    in_node, in_network = switches_add_up(cluster, group)
    _, unit = np.unique(cluster.units(group), return_inverse=True)
    n_units = int(unit.max()) + 1
    ports = unit_ports(fabric, group, unit, relays=bool(options.pxn)) if n_units > 1 else None
    out_Bps, in_Bps = gpu_ports(fabric, group, unit, ports, p2p=options.p2p is not False)
    found = [
        _Division(
            label=np.arange(len(group)),
            out_Bps=out_Bps,
            in_Bps=in_Bps,
            in_network=in_node or in_network,
        )
    ]
    if ports is None:
        return found
    found.append(_Division(label=unit, out_Bps=ports[0], in_Bps=ports[1], in_network=in_network))
    for label, leaving_Bps, entering_Bps in network_cuts(fabric, group, unit):
        found.append(
            _Division(label=label, out_Bps=leaving_Bps, in_Bps=entering_Bps, in_network=in_network)
        )
    return found
