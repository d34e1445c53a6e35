"""Routes between NICs: distances by breadth-first search, next hops, ECMP, adaptive split."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from simulator.base.errors import Problem, TopologyError

if TYPE_CHECKING:
    from simulator.fabric.fabric import Fabric

__all__ = ["NetworkTables", "Spread", "mix"]

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]
HashArray = NDArray[np.uint64]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FAR = np.int16(-1)
_HOP_SALT = np.arange(1, 65, dtype=np.uint64) * np.uint64(0xD1342543DE82EF95)


def mix(value: HashArray) -> HashArray:
    """Return a well-mixed 64-bit hash: the finaliser of SplitMix64.

    Notes
    -----
    Steele, Lea, Flood: "Fast Splittable Pseudorandom Number Generators", OOPSLA 2014, figure 17.
    """
    value = value + _GOLDEN
    value ^= value >> np.uint64(30)
    value *= np.uint64(0xBF58476D1CE4E5B9)
    value ^= value >> np.uint64(27)
    value *= np.uint64(0x94D049BB133111EB)
    value ^= value >> np.uint64(31)
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """All equal-cost paths between pairs of network vertices, in CSR."""

    indptr: IntArray
    link: IntArray
    share: FloatArray
    latency_s: FloatArray


class NetworkTables:
    """Switches, cables, distances to every destination, and next hops as they are asked for.

    A NIC with one cable to a switch is an appendix of that switch; any other NIC (two cables, or
    a cable to another NIC) is a vertex of the network of its own, which forwards nothing.

    Parameters
    ----------
    fabric
        The cluster.
    dead
        Links that have failed, shape (links,) of bool; None: none.

    Attributes
    ----------
    attached : ndarray of int64, shape (nics,)
        Network vertex of each NIC; −1 when it has no cable.
    up_link, down_link : ndarray of int64, shape (nics,)
        Cable to and from the switch; −1 when the NIC is a network vertex itself.
    sends, receives : ndarray of bool, shape (nics,)
        The NIC has a live cable in that direction.
    piece : ndarray of int64, shape (nics,)
        NICs with the same number reach each other; −1 without cable.
    vertex : ndarray of int64
        Fabric vertex of each network vertex.
    """

    def __init__(self, fabric: Fabric, dead: NDArray[np.bool_] | None = None) -> None:
        from simulator.fabric.fabric import components

        self._fabric = fabric
        cables = np.arange(fabric.first_cable, fabric.n_links)
        src, dst = fabric.link_src[cables], fabric.link_dst[cables]
        nic_of = np.full(fabric.n_vertices, -1, dtype=np.int64)
        nic_of[fabric.nic_vertex] = np.arange(fabric.n_nics)
        out = nic_of[src] >= 0
        degree = np.bincount(nic_of[src[out]], minlength=fabric.n_nics)
        to_nic = np.zeros(fabric.n_nics, dtype=bool)
        to_nic[nic_of[src[out]][nic_of[dst[out]] >= 0]] = True
        own = (degree > 1) | to_nic

        switches = np.arange(fabric.first_switch, fabric.n_vertices)
        self.vertex = np.concatenate([switches, fabric.nic_vertex[own]])
        self.n_switches, self.n = len(switches), len(self.vertex)
        self._index = np.full(fabric.n_vertices, -1, dtype=np.int64)
        self._index[self.vertex] = np.arange(self.n)

        # Cables stand in pairs: each is followed or preceded by its reverse.
        up = cables[out & (self._index[src] < 0)]
        nic = nic_of[fabric.link_src[up]]
        self.up_link = np.full(fabric.n_nics, -1, dtype=np.int64)
        self.up_link[nic] = up
        self.down_link = np.full(fabric.n_nics, -1, dtype=np.int64)
        self.down_link[nic] = fabric.first_cable + ((up - fabric.first_cable) ^ 1)
        self.attached = self._index[fabric.nic_vertex]
        self.attached[nic] = self._index[fabric.link_dst[up]]

        alive = np.ones(fabric.n_links, dtype=bool) if dead is None else ~dead
        self.sends = (self.attached >= 0) & np.where(self.up_link >= 0, alive[self.up_link], True)
        self.receives = (self.attached >= 0) & np.where(
            self.down_link >= 0, alive[self.down_link], True
        )
        inner = cables[(self._index[src] >= 0) & (self._index[dst] >= 0) & alive[cables]]
        tail, head = self._index[fabric.link_src[inner]], self._index[fabric.link_dst[inner]]
        order = np.argsort(tail, kind="stable")
        self._tail, self._head, self._link = tail[order], head[order], inner[order]
        self._out = np.searchsorted(self._tail, np.arange(self.n + 1))
        label = components(self.n, self._tail, self._head)
        self.piece = np.where(self.attached >= 0, label[self.attached] if self.n else -1, -1)

        self._column = np.full(self.n, -1, dtype=np.int64)
        self._goal = np.zeros(0, dtype=np.int64)
        self._distance = np.zeros((0, self.n), dtype=np.int16)
        self._slot = np.zeros((0, self.n), dtype=np.int64)
        self._start = np.zeros(0, dtype=np.int64)
        self._count = np.zeros(0, dtype=np.int64)
        self._choice = np.zeros(0, dtype=np.int64)
        self._n_rows = self._n_choices = 0
        self._ordinal: IntArray | None = None
        self._spreads: dict[int, tuple[IntArray, FloatArray, float]] = {}

    # ------------------------------------------------------------- distances

    def index_of(self, vertex: IntArray) -> IntArray:
        """Return the network vertex of fabric vertices, −1 for others."""
        return self._index[vertex]

    def columns(self, goals: IntArray) -> IntArray:
        """Return the table columns of destinations, computing distances of new ones.

        The first call takes all NICs' switches at once: one search over bit sets costs little
        more than a search for one of them.
        """
        if len(self._goal) == 0:
            attached = np.unique(self.attached[self.attached >= 0])
            self._add(np.union1d(attached, np.unique(goals)))
        new = np.unique(goals[self._column[goals] < 0])
        if len(new):
            self._add(new)
        return self._column[goals]

    def _add(self, goals: IntArray) -> None:
        self._column[goals] = len(self._goal) + np.arange(len(goals))
        self._goal = np.concatenate([self._goal, goals])
        self._distance = np.concatenate([self._distance, self._search(goals)])
        unset = np.full((len(goals), self.n), -1, dtype=np.int64)
        self._slot = np.concatenate([self._slot, unset])

    def _search(self, goals: IntArray) -> NDArray[np.int16]:
        """Return hops from every vertex to each goal, shape (goals, vertices); −1: no path.

        All goals at once: a bit per goal, spread backwards over the links level by level.
        """
        words = -(-len(goals) // 64)
        bits = np.zeros((self.n, words), dtype=np.uint64)
        number = np.arange(len(goals))
        bits[goals, number // 64] |= np.uint64(1) << (number % 64).astype(np.uint64)
        distance = np.full((self.n, len(goals)), _FAR, dtype=np.int16)
        distance[goals, number] = 0
        tails = np.flatnonzero(np.diff(self._out))
        front, level = bits.copy(), 0
        while len(tails) and front.any():
            level += 1
            reached = np.zeros_like(bits)
            reached[tails] = np.bitwise_or.reduceat(front[self._head], self._out[tails], axis=0)
            front = reached & ~bits
            bits |= front
            fresh = np.unpackbits(front.view(np.uint8), axis=1, bitorder="little")
            distance[fresh[:, : len(goals)].astype(bool)] = level
            front[self.n_switches :] = 0  # NICs forward nothing
        return np.ascontiguousarray(distance.T)

    def reachable(self, src: IntArray, column: IntArray) -> NDArray[np.bool_]:
        """Return whether each network vertex has a path to the column's destination."""
        return np.asarray(self._distance[column, src] >= 0)

    def common_switch(self, gpus: IntArray, index: int) -> int:
        """Return the switch with the least largest distance to the GPUs' nodes."""
        fabric = self._fabric
        nodes = np.unique(fabric.node_of_gpu[gpus])
        attached = np.unique(self.attached[np.isin(fabric.node_of_nic, nodes)])
        attached = attached[attached >= 0]
        if len(attached) and self.n_switches:
            columns = self.columns(attached)
            distance = self._distance[columns][:, : self.n_switches].astype(np.int64)
            distance[distance < 0] = 2**31
            worst = distance.max(axis=0)
            best = np.flatnonzero(worst == worst.min())
            if worst[best[0]] < 2**31:
                total = distance[:, best].sum(axis=0)
                best = best[total == total.min()]
                return int(self.vertex[best[index % len(best)]])
        raise TopologyError(
            Problem(
                message=f"{fabric.names.short_list(fabric.gpu_vertex[gpus])} "
                "have no network switch in common"
            )
        )

    # ------------------------------------------------------------- next hops

    def _rows(self, column: IntArray, here: IntArray) -> IntArray:
        """Return the next-hop row of each (destination, vertex), building missing ones."""
        key = column * self.n + here
        rows = self._slot.ravel().take(key)
        if rows.min(initial=0) < 0:
            self._build(np.unique(key[rows < 0]))
            rows = self._slot.ravel().take(key)
        return rows

    def _build(self, keys: IntArray) -> None:
        column, here = keys // self.n, keys % self.n
        degree = self._out[here + 1] - self._out[here]
        owner = np.repeat(np.arange(len(keys)), degree)
        first = np.cumsum(degree) - degree
        edge = np.arange(len(owner)) - first[owner] + self._out[here][owner]
        head = self._head[edge]
        ahead = self._distance[column[owner], head]
        closer = (ahead >= 0) & (ahead == self._distance[column, here][owner] - 1)
        closer &= (head < self.n_switches) | (head == self._goal[column[owner]])
        count = np.bincount(owner[closer], minlength=len(keys))
        rows, choices = self._n_rows, self._n_choices
        self._slot[column, here] = rows + np.arange(len(keys))
        self._start = _written(self._start, rows, choices + np.cumsum(count) - count)
        self._count = _written(self._count, rows, count)
        self._choice = _written(self._choice, choices, edge[closer])
        self._n_rows += len(keys)
        self._n_choices += int(count.sum())

    def _dealt(self, nic: IntArray) -> IntArray:
        """Return the number of a NIC among all, counted switch by switch (−1 stays 0)."""
        if self._ordinal is None:
            order = np.argsort(self.attached, kind="stable")
            self._ordinal = np.empty(len(order) + 1, dtype=np.int64)
            self._ordinal[order] = np.arange(len(order))
            self._ordinal[-1] = 0
        return self._ordinal[nic]

    def walk(
        self, src: IntArray, column: IntArray, salt: HashArray | None, nic: IntArray
    ) -> list[IntArray]:
        """Return one path per flow, as the link of each hop.

        Parameters
        ----------
        src, column
            Network vertex and column of the destination of each flow, shape (flows,).
        salt
            Hash of each flow, for ECMP; None: static, by destination.
        nic
            Destination NIC of each flow, −1: none; for static routes.

        Returns
        -------
        list of ndarray
            One array of links per hop; −1 where the flow has arrived before.

        Notes
        -----
        Static routes deal destinations over the next hops digit by digit, which is D-mod-k in a
        fat tree up to the numbering of its cores (Zahavi, "D-Mod-K Routing Providing Non-Blocking
        Traffic for Shift Permutations on Real Life Fat Trees", Technion CCIT 776, 2010).
        """
        here = src.copy()
        goal = self._goal[column]
        digits = self._dealt(nic) if salt is None else nic
        hops: list[IntArray] = []
        while True:
            going = np.flatnonzero(here != goal)
            if len(going) == 0:
                return hops
            everyone = len(going) == len(here)
            at = here if everyone else here[going]
            row = self._rows(column if everyone else column[going], at)
            count = self._count.take(row)
            if salt is None:
                rest = digits[going]
                pick = rest % count
                # The digit used goes to the other end, for networks with more choices than digits;
                # an odd step keeps the next choice, mostly among 2**n, as even as this one.
                digits[going] = rest // count + pick * (len(self.attached) // count | 1)
            elif int(count.max()) == 1:
                pick = np.zeros(len(row), dtype=np.int64)
            else:
                bits = mix((salt if everyone else salt[going]) ^ _HOP_SALT[len(hops) % 64])
                # The high word times the count, shifted back: a fair number below the count.
                bits >>= np.uint64(32)
                bits *= count.view(np.uint64)
                bits >>= np.uint64(32)
                pick = bits.view(np.int64)
            edge = self._choice.take(self._start.take(row) + pick)
            if everyone:
                here = self._head.take(edge)
                hops.append(self._link.take(edge))
                continue
            taken = np.full(len(here), -1, dtype=np.int64)
            taken[going] = self._link.take(edge)
            here[going] = self._head.take(edge)
            hops.append(taken)

    # -------------------------------------------------------------- adaptive

    def spread(self, src: IntArray, column: IntArray, *, keep: bool = True) -> Spread:
        """Return all shortest paths of pairs with the share that each link carries.

        Parameters
        ----------
        src, column
            Network vertex and column of the destination of each pair, shape (pairs,).
        keep
            Remember the paths for later calls.

        Notes
        -----
        Every switch divides what it receives over its next hops by their capacity, evenly when
        they are equal: a fluid picture of per-packet adaptive routing.
        """
        keys = column * self.n + src
        unique, inverse = np.unique(keys, return_inverse=True)
        self._fill_spreads(np.array([k for k in unique.tolist() if k not in self._spreads]))
        parts = [self._spreads[key] for key in unique.tolist()]
        size = np.array([len(part[0]) for part in parts], dtype=np.int64)
        start = np.cumsum(size) - size
        links = np.concatenate([part[0] for part in parts]) if parts else np.zeros(0, np.int64)
        shares = np.concatenate([part[1] for part in parts]) if parts else np.zeros(0)
        length = size[inverse]
        indptr = np.concatenate([[0], np.cumsum(length)])
        position = np.arange(indptr[-1]) + np.repeat(start[inverse] - indptr[:-1], length)
        late = np.array([part[2] for part in parts])
        if not keep:
            self._spreads.clear()
        return Spread(
            indptr=indptr,
            link=links[position],
            share=shares[position],
            latency_s=late[inverse] if parts else np.zeros(0),
        )

    def poured(
        self, column: IntArray, amount: FloatArray, *, even: bool
    ) -> tuple[IntArray, FloatArray]:
        """Return links and what they carry when flows take all their shortest paths.

        Parameters
        ----------
        column
            Columns of destinations, shape (destinations,).
        amount
            What starts at each network vertex for each of them, shape (destinations, vertices);
            changed.
        even
            Switches divide what they receive evenly, as hashes do in the mean; else by capacity.
        """
        capacity = self._fabric.capacity_Bps
        total = np.zeros(self._fabric.n_links)
        distance = self._distance[column]
        for hops in range(int(distance.max(initial=0)), 0, -1):
            goal, here = np.nonzero((distance == hops) & (amount > 0))
            if not len(goal):
                continue
            row = self._rows(column[goal], here)
            count = self._count[row]
            origin = np.repeat(np.arange(len(goal)), count)
            offset = np.arange(len(origin)) - np.repeat(np.cumsum(count) - count, count)
            edge = self._choice[self._start[row][origin] + offset]
            width = np.ones(len(edge)) if even else capacity[self._link[edge]]
            whole = np.bincount(origin, weights=width, minlength=len(goal))
            part = amount[goal, here][origin] * width / whole[origin]
            total += np.bincount(self._link[edge], weights=part, minlength=len(total))
            onward = goal[origin] * self.n + self._head[edge]
            amount += np.bincount(onward, part, amount.size).reshape(amount.shape)
        links = np.flatnonzero(total)
        return links, total[links]

    def _fill_spreads(self, keys: IntArray) -> None:
        if len(keys) == 0:
            return
        keys = keys.astype(np.int64)
        latency, capacity = self._fabric.latency_s, self._fabric.capacity_Bps
        owner = np.arange(len(keys))
        column, here = keys // self.n, keys % self.n
        share: FloatArray = np.ones(len(keys))
        late: FloatArray = np.zeros(len(keys))
        taken: list[tuple[IntArray, IntArray, FloatArray]] = []
        longest = np.zeros(len(keys))
        while True:
            done = here == self._goal[column[owner]]
            np.maximum.at(longest, owner[done], late[done])
            owner, here, share, late = owner[~done], here[~done], share[~done], late[~done]
            if len(owner) == 0:
                break
            row = self._rows(column[owner], here)
            count = self._count[row]
            origin = np.repeat(np.arange(len(owner)), count)
            offset = np.arange(len(origin)) - np.repeat(np.cumsum(count) - count, count)
            edge = self._choice[self._start[row][origin] + offset]
            link = self._link[edge]
            width = np.bincount(origin, weights=capacity[link], minlength=len(owner))
            part = share[origin] * capacity[link] / width[origin]
            taken.append((owner[origin], link, part))
            # Flows of one pair that meet in a vertex go on as one.
            meeting = owner[origin] * self.n + self._head[edge]
            joined, inverse = np.unique(meeting, return_inverse=True)
            share = np.bincount(inverse, weights=part).astype(np.float64)
            arrival = late[origin] + latency[link]
            late = np.zeros(len(joined), dtype=np.float64)
            np.maximum.at(late, inverse, arrival)
            owner, here = joined // self.n, joined % self.n
        owners = np.concatenate([t[0] for t in taken]) if taken else np.zeros(0, np.int64)
        links = np.concatenate([t[1] for t in taken]) if taken else np.zeros(0, np.int64)
        shares = np.concatenate([t[2] for t in taken]) if taken else np.zeros(0)
        order = np.argsort(owners, kind="stable")
        border = np.searchsorted(owners[order], np.arange(len(keys) + 1))
        for index, key in enumerate(keys.tolist()):
            part = order[border[index] : border[index + 1]]
            self._spreads[key] = (links[part], shares[part], float(longest[index]))


def _written(table: IntArray, at: int, values: IntArray) -> IntArray:
    """Write values into a table from a place on; return it, made longer where they do not fit."""
    end = at + len(values)
    if end > len(table):
        longer = np.zeros(max(end, 2 * len(table)), dtype=table.dtype)
        longer[:at] = table[:at]
        table = longer
    table[at:end] = values
    return table
