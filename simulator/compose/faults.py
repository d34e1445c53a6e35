"""Slow and failing links of a scenario: which they are, and what is assumed of dead NICs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from simulator.base.errors import Problem, ScenarioError, TopologyError
from simulator.compose.cluster import Cluster
from simulator.engine.traffic import LinkChange
from simulator.fabric.model import VERTEX_KINDS
from simulator.scenario.schema import LinkFault

__all__ = ["faulty_links", "link_changes", "tell_dead_nics"]

_NIC = VERTEX_KINDS.index("nic")


def faulty_links(cluster: Cluster, faults: Sequence[LinkFault]) -> list[list[int]]:
    """Return the directed links of each fault of ``perturb.links``.

    Raises
    ------
    TopologyError
        A name that no link has, with its key.
    """
    found = []
    for index, fault in enumerate(faults):
        try:
            found.append(cluster.fabric.find_links(fault.link))
        except TopologyError as error:
            key = f"perturb.links[{index}].link"
            raise TopologyError([replace(p, key=p.key or key) for p in error.problems]) from None
    return found


def link_changes(cluster: Cluster, faults: Sequence[LinkFault]) -> list[LinkChange]:
    """Return when which link changes its rate, in the order of time.

    Raises
    ------
    ScenarioError, TopologyError
        A fault without strength, or of no link.
    """
    changes: list[LinkChange] = []
    for fault, links in zip(faults, faulty_links(cluster, faults), strict=True):
        factor = 0.0 if fault.down else fault.factor
        if factor is None:
            raise ScenarioError(
                Problem(
                    key="perturb.links",
                    message=f"{fault.link}: neither factor nor down is given",
                    allowed="factor (share of bandwidth left) or down: yes",
                )
            )
        for link in links:
            changes.append(LinkChange(time_s=fault.at_s, link=link, factor=factor))
            if fault.until_s is not None:
                changes.append(LinkChange(time_s=fault.until_s, link=link, factor=1.0))
    return sorted(changes, key=lambda change: change.time_s)


def tell_dead_nics(cluster: Cluster, faults: Sequence[LinkFault]) -> None:
    """Warn that what a library does without a NIC is assumed, where one fails for good.

    Notes
    -----
    NCCL has no failover up to 2.28: a communicator whose port fails ends with an error (NVIDIA/nccl
    issue 998).  2.29 moves traffic to another device of the same connection, which there is only
    where NICs were merged into one (issues 2044 and 2192); 2.30 takes a port back that recovers
    (issue 2044).  A communicator that is made later leaves out ports that are not active.
    """
    if cluster.profile.tuning != "nccl":
        return
    fabric = cluster.fabric
    for fault, links in zip(faults, faulty_links(cluster, faults), strict=True):
        if not fault.down or fault.until_s is not None:
            continue
        ends = np.concatenate([fabric.link_src[links], fabric.link_dst[links]])
        nics = np.unique(ends[np.asarray(fabric.vertex_kind)[ends] == _NIC])
        if not len(nics):
            continue
        names = [fabric.vertex_name(int(nic)) for nic in nics[:2]]
        which = ", ".join(names) + (f" and {len(nics) - 2} more" if len(nics) > 2 else "")
        library = cluster.profile.name.upper()
        cluster.warn(
            f"perturb.links: {which} down: that traffic goes on over other NICs is assumed. "
            + (
                f"{library} leaves dead ports out when it starts, and its rings and trees may "
                "then be fewer; routing.nics (NCCL_IB_HCA) shows them without a NIC on all nodes"
                if fault.at_s == 0
                else f"{library} before 2.29 ends with an error when a port fails in a run, later "
                "versions go on only over NICs that are merged with it"
            )
        )
