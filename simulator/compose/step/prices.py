"""How long a call of a training step takes, and how much of which links it fills meanwhile.

Groups of an axis call at about the same time, and those that sit on the same nodes share their
links, as do those below one leaf whose uplinks can bind.  So a call is priced with all the groups
of its axis that share nodes or uplinks with its own making it at once, on the engine and the whole
network.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulator.collectives.call import Call
from simulator.compose.choose import choose
from simulator.compose.cluster import Choice, Cluster
from simulator.engine.simulate import simulate
from simulator.engine.traffic import Collective, Program, Start
from simulator.fabric.model import LINK_KINDS, VERTEX_KINDS
from simulator.fabric.uplinks import leaf_uplinks

__all__ = ["Price", "Pricer", "Resource"]

IntArray = NDArray[np.int64]

_NIC, _LEAF = VERTEX_KINDS.index("nic"), VERTEX_KINDS.index("leaf")

MOST_PRICED_RANKS = 2048
"""Groups are priced together up to so many ranks: beyond, those on other nodes are left out."""

Resource = tuple[str, str, int]
"""A link near a rank: kind, ``out`` of its node, ``in`` to it or ``inside``, number among those."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """One call of one group, with those of the groups beside it."""

    time_s: float
    use: Mapping[Resource, float]
    """Share of each link at the group's nodes that all those calls fill."""
    choice: Choice
    name: str


class Pricer:
    """Prices calls on a cluster, each distinct one once.

    Parameters
    ----------
    cluster
        With capacities as they are during the step.
    ranks
        Global rank of each rank of the job, shape (world,).
    touched
        Nodes whose links are not as their preset's: their calls are priced apart.  −1 stands for
        links between switches: every cohort is priced apart.
    """

    def __init__(
        self, cluster: Cluster, ranks: IntArray, *, touched: frozenset[int] = frozenset()
    ) -> None:
        self.cluster = cluster
        self.touched = touched
        self.ranks = ranks
        self._choices: dict[object, Choice] = {}
        self._prices: dict[object, list[Price]] = {}
        self._rows: dict[object, dict[int, Price]] = {}
        self._cohorts: dict[int, IntArray] = {}
        self._keep: list[IntArray] = []
        self._near: dict[int, dict[tuple[str, str], IntArray]] = {}
        self._leaves: IntArray | None = None

    def choice(self, call: Call, group: IntArray) -> Choice:
        """Return how a group of global ranks carries out a call."""
        key = (
            call.collective,
            call.size_bytes,
            call.element_bytes,
            self.cluster.placement(group),
        )
        if key not in self._choices:
            self._choices[key] = choose(self.cluster, call, group)
        return self._choices[key]

    def collective(self, call: Call, group: IntArray, name: str) -> Collective:
        """Return the engine's form of a call on global ranks."""
        return self.cluster.collective(call, group, self.choice(call, group), name=name)

    def prices(self, groups: IntArray, call: Call, row: int) -> dict[int, Price]:
        """Return the prices of one call for a group of an axis and those beside it.

        Parameters
        ----------
        groups
            Job ranks of all groups of the axis, shape (groups, members).
        call
            What each of them calls.
        row
            The group that is asked for.

        Returns
        -------
        dict
            Price by row, of all groups that share nodes with the one asked for.
        """
        cohort = self._cohort(groups)
        what = (call.collective, call.size_bytes, call.element_bytes)
        place = (id(groups), int(cohort[row]), what)
        if place in self._rows:
            return self._rows[place]
        mine = np.flatnonzero(cohort == cohort[row])
        placed = self.ranks[groups[mine]]
        shape = b"".join(self.cluster.placement(group) for group in placed)
        shape += self._leaf_shape(placed)
        key = (*what, shape, self._apart(placed))
        if key not in self._prices:
            self._prices[key] = self._priced(placed, call)
        found = dict(zip(mine.tolist(), self._prices[key], strict=True))
        self._rows[place] = found
        return found

    def cross_uplinks(self, axes: Mapping[str, IntArray]) -> bool:
        """Return whether groups of some axis cross leaves whose uplinks can bind.

        Parameters
        ----------
        axes
            Job ranks of the groups of each axis, shape (groups, members).
        """
        node = np.asarray(self.cluster.fabric.node_of_gpu)
        return any(
            bool(self._uplinks(node[self.ranks[groups]])[0].any()) for groups in axes.values()
        )

    def label(self, groups: IntArray, calls: list[Call]) -> IntArray:
        """Return a number for each group of an axis: equal where its calls take equally long.

        Times within 2 % count as equal; the slower stands for both.
        """
        cohort = self._cohort(groups)
        label = np.zeros(len(groups), dtype=np.int64)
        known: dict[object, int] = {}
        for start in np.unique(cohort, return_index=True)[1]:
            told = [self.prices(groups, call, int(start)) for call in calls]
            for row in np.flatnonzero(cohort == cohort[start]).tolist():
                logs = tuple(round(float(np.log(max(t[row].time_s, 1e-12))) / 0.02) for t in told)
                label[row] = known.setdefault(logs, len(known))
        return label

    def _apart(self, placed: IntArray) -> tuple[int, ...]:
        """Return what tells a cohort from one of the same shape on other nodes."""
        if not self.touched:
            return ()
        nodes = np.unique(np.asarray(self.cluster.fabric.node_of_gpu)[placed]).tolist()
        return tuple(nodes) if -1 in self.touched else tuple(self.touched.intersection(nodes))

    def _cohort(self, groups: IntArray) -> IntArray:
        """Return the first group of each group's cohort: groups linked by common nodes."""
        key = id(groups)
        if key not in self._cohorts:
            from scipy.sparse import coo_array
            from scipy.sparse.csgraph import connected_components

            node = np.asarray(self.cluster.fabric.node_of_gpu)[self.ranks[groups]]
            n = len(groups)
            rows = np.repeat(np.arange(n), groups.shape[1])
            meets = n + node.ravel()
            crossing, leaf = self._uplinks(node)
            rows = np.concatenate([rows, np.repeat(np.flatnonzero(crossing), leaf.shape[1])])
            first_leaf = n + self.cluster.fabric.n_nodes
            meets = np.concatenate([meets, first_leaf + leaf[crossing].ravel()])
            size = first_leaf + self.cluster.fabric.n_vertices
            graph = coo_array((np.ones(len(rows)), (rows, meets)), shape=(size, size))
            self._cohorts[key] = connected_components(graph, directed=False)[1][:n].astype(np.int64)
            self._keep.append(groups)
        return self._cohorts[key]

    def _leaf_of_node(self) -> IntArray:
        """Return the leaf that each node's first NIC hangs on, −1: none or no uplinks that bind.

        Nodes of rails hang on the leaves of all rails of their group, so that the first tells the
        group.
        """
        if self._leaves is None:
            fabric = self.cluster.fabric
            self._leaves = np.full(fabric.n_nodes, -1, dtype=np.int64)
            uplinks = leaf_uplinks(fabric)
            hashed = self.cluster.lowering.router.policy == "ecmp"
            if uplinks is not None and (uplinks.ratio > 1 + 1e-9 or hashed):
                kind = np.asarray(fabric.vertex_kind)
                src, dst = np.asarray(fabric.link_src), np.asarray(fabric.link_dst)
                joins = (kind[src] == _NIC) & (kind[dst] == _LEAF)
                owner = np.asarray(fabric.vertex_node)[src[joins]]
                self._leaves[owner[::-1]] = dst[joins][::-1]
        return self._leaves

    def _uplinks(self, node: IntArray) -> tuple[NDArray[np.bool_], IntArray]:
        """Return which groups cross leaves whose uplinks can bind, and the leaves of all members.

        Parameters
        ----------
        node
            Of each member of each group, shape (groups, members).
        """
        leaf = self._leaf_of_node()[node]
        crossing = (leaf != leaf[:, :1]).any(axis=1)
        return np.asarray(crossing), leaf

    def _leaf_shape(self, placed: IntArray) -> bytes:
        """Return which members share a leaf, where leaves' uplinks can bind."""
        leaf = self._leaf_of_node()[np.asarray(self.cluster.fabric.node_of_gpu)[placed]]
        if leaf.max(initial=-1) < 0:
            return b""
        _, together = np.unique(leaf, return_inverse=True)
        return np.asarray(together, dtype=np.int64).tobytes()

    def _priced(self, placed: IntArray, call: Call) -> list[Price]:
        most = max(1, MOST_PRICED_RANKS // placed.shape[1])
        together = placed[:most]
        made = [
            self.collective(call, group, f"{call.collective} {i}")
            for i, group in enumerate(together)
        ]
        programs = [
            Program(ranks=group, operations=(Start(collective=c, communicator=c.name),))
            for group, c in zip(together, made, strict=True)
        ]
        outcome = simulate(self.cluster.network, programs, level="folded")
        end_s = [float(outcome.rank_end_s[group].max()) for group in together]
        busy = outcome.link_busy_s / max(outcome.end_s, 1e-30)
        prices = []
        for group, time_s in zip(together, end_s, strict=True):
            choice = self.choice(call, group)
            title = f"{call.collective} {choice.algorithm} {choice.protocol}"
            prices.append(
                Price(time_s=time_s, use=self._use(group, busy), choice=choice, name=title)
            )
        # Groups that were left out are like the first.
        return prices + [prices[0]] * (len(placed) - most)

    def _use(self, group: IntArray, busy: NDArray[np.float64]) -> dict[Resource, float]:
        use: dict[Resource, float] = {}
        for node in np.unique(np.asarray(self.cluster.fabric.node_of_gpu)[group])[:4].tolist():
            for (kind, way), links in self._links_near(node).items():
                shares = np.minimum(1.0, busy[links])
                for number in np.flatnonzero(shares > 0.0).tolist():
                    resource = (kind, way, number)
                    use[resource] = max(float(shares[number]), use.get(resource, 0.0))
        return use

    def _links_near(self, node: int) -> dict[tuple[str, str], IntArray]:
        if node not in self._near:
            fabric = self.cluster.fabric
            owner = np.asarray(fabric.vertex_node)
            begins = owner[np.asarray(fabric.link_src)] == node
            ends = owner[np.asarray(fabric.link_dst)] == node
            kind = np.asarray(fabric.link_kind)
            near: dict[tuple[str, str], IntArray] = {}
            for word, there in (
                ("inside", begins & ends),
                ("out", begins & ~ends),
                ("in", ends & ~begins),
            ):
                links = np.flatnonzero(there)
                for number in np.unique(kind[links]):
                    near[LINK_KINDS[int(number)], word] = links[kind[links] == number]
            self._near[node] = near
        return self._near[node]
