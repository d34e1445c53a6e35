"""The wave's inner loop where every slot forwards what it received: rings and permutations.

When each (slot, channel) of a stage has exactly one send and one receive in every step, a step
is: leave = T + d, arrive = leave + L, T = max(leave, arrive of the predecessor).  Edges are laid
out so that these are operations on whole contiguous arrays.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

__all__ = ["RingPlan", "cycles_of", "followers", "ring_plan"]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


class RingState(Protocol):
    """The recurrence of one stage in its own layout."""

    def step(self, duration_s: FloatArray, latency_s: FloatArray, *, keep_start: bool) -> None:
        """Advance all edges by one step."""

    def times(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return start, leave and arrive of the last step, in edge order."""

    def store(self, begin_s: FloatArray, free_s: FloatArray) -> None:
        """Write T and the connections' free times back."""


class RingPlan(Protocol):
    """A layout of the edges of a stage."""

    def arrange(self, by_edge: FloatArray) -> FloatArray:
        """Return values given in edge order in the layout."""

    def load(self, begin_s: FloatArray, free_s: FloatArray) -> RingState:
        """Begin a stage with T and the connections' free times."""


def ring_plan(
    connection: IntArray, src: IntArray, dst: IntArray, place: IntArray
) -> RingPlan | None:
    """Return the layout of a stage whose edges permute the (slot, channel) pairs, or None.

    Parameters
    ----------
    connection, src, dst, place
        Connection, flat (channel, slot) of source and destination, and place in the
        connection's order of channels, of each edge.
    """
    after = followers(src, dst)
    if after is None:
        return None
    cycles = cycles_of(after)
    depth = int(place.max()) + 1
    order = np.concatenate(cycles)
    lengths = {len(cycle) for cycle in cycles}
    if len(lengths) == 1:
        # One row per cycle; cycles of the same connections and of places 0, 1, … in layers.
        length = lengths.pop()
        rows = order.reshape(-1, length)
        layer = place[rows[:, 0]]
        even = bool((place[rows] == layer[:, None]).all())
        counts = np.bincount(layer, minlength=depth)
        if even and (counts == counts[0]).all():
            start = np.argmin(connection[rows], axis=1)
            turned = np.take_along_axis(rows, (start[:, None] + np.arange(length)) % length, axis=1)
            key = np.lexsort((connection[turned[:, 0]], layer))
            cube = turned[key].reshape(depth, -1, length)
            if (connection[cube] == connection[cube[:1]]).all():
                return _RegularPlan(cube, connection, src)
    return _MixedPlan(connection, src, after, place)


def followers(src: IntArray, dst: IntArray) -> IntArray | None:
    """Return, for each edge, the edge that sends on what it delivers.

    None if the edges do not permute the lanes: each exactly once a source and a destination.
    """
    by_src = np.argsort(src)
    ordered = src[by_src]
    if len(src) == 0 or (ordered[1:] == ordered[:-1]).any():
        return None
    if not np.array_equal(ordered, np.sort(dst)):
        return None
    return np.asarray(by_src[np.searchsorted(ordered, dst)])


def cycles_of(after: IntArray) -> list[IntArray]:
    """Return the cycles of a permutation, each in its order."""
    following = after.tolist()
    seen = bytearray(len(following))
    cycles = []
    for first in range(len(following)):
        if seen[first]:
            continue
        cycle = []
        edge = first
        while not seen[edge]:
            seen[edge] = 1
            cycle.append(edge)
            edge = following[edge]
        cycles.append(np.array(cycle, dtype=np.int64))
    return cycles


class _RegularPlan:
    """Shape (channels of a connection, cycles, edges of a cycle): the predecessor is a shift."""

    def __init__(self, cube: IntArray, connection: IntArray, src: IntArray) -> None:
        self.cube = cube
        self.connection = connection[cube[0]]
        self.src = src[cube]

    def arrange(self, by_edge: FloatArray) -> FloatArray:
        return np.asarray(by_edge[self.cube])

    def load(self, begin_s: FloatArray, free_s: FloatArray) -> RingState:
        return _RegularState(self, begin_s[self.src], free_s[self.connection])


class _RegularState:
    def __init__(self, plan: _RegularPlan, begin_s: FloatArray, free_s: FloatArray) -> None:
        self._plan = plan
        self._depth = len(begin_s)
        # The first message of the stage also waits for the connection; later ones wait for
        # their own predecessor, which is in T, unless other channels share the connection.
        self._begin_s = begin_s.copy()
        self._free_s = free_s.copy()
        if self._depth == 1:
            np.maximum(self._begin_s[0], free_s, out=self._begin_s[0])
        self._start_s = np.empty_like(self._begin_s)
        self._leave_s = np.empty_like(self._begin_s)
        self._arrive_s = np.empty_like(self._begin_s)
        self._inner = (
            self._leave_s[:, :, 1:],
            self._arrive_s[:, :, :-1],
            self._begin_s[:, :, 1:],
        )
        self._border = (
            self._leave_s[:, :, 0],
            self._arrive_s[:, :, -1],
            self._begin_s[:, :, 0],
        )
        self._layers = list(zip(self._begin_s, self._leave_s, strict=True))

    def step(self, duration_s: FloatArray, latency_s: FloatArray, *, keep_start: bool) -> None:
        leave_s = self._leave_s
        if self._depth == 1:
            if keep_start:
                np.copyto(self._start_s, self._begin_s)
            np.add(self._begin_s, duration_s, out=leave_s)
        else:
            before_s = self._free_s
            for place, (begin, leave) in enumerate(self._layers):
                np.maximum(begin, before_s, out=leave)
                if keep_start:
                    self._start_s[place] = leave
                np.add(leave, duration_s[place], out=leave)
                before_s = leave
            # A view: the first layer reads it before the last layer writes it again.
            self._free_s = before_s
        np.add(leave_s, latency_s, out=self._arrive_s)
        leave, arrive, begin = self._inner
        np.maximum(leave, arrive, out=begin)
        leave, arrive, begin = self._border
        np.maximum(leave, arrive, out=begin)

    def times(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        edges = self._plan.cube.reshape(-1)
        result = []
        for values in (self._start_s, self._leave_s, self._arrive_s):
            by_edge = np.empty(len(edges))
            by_edge[edges] = values.reshape(-1)
            result.append(by_edge)
        return result[0], result[1], result[2]

    def store(self, begin_s: FloatArray, free_s: FloatArray) -> None:
        begin_s[self._plan.src] = self._begin_s
        free_s[self._plan.connection] = self._leave_s[-1]


class _MixedPlan:
    """Layers by place, connections with most channels first: layer p is a prefix of layer 0.

    For channels with rings of their own, which share some connections and not others.
    """

    def __init__(
        self, connection: IntArray, src: IntArray, after: IntArray, place: IntArray
    ) -> None:
        names, dense = np.unique(connection, return_inverse=True)
        counts = np.bincount(dense)
        rank_of = np.empty(len(names), dtype=np.int64)
        by_count = np.argsort(-counts, kind="stable")
        rank_of[by_count] = np.arange(len(names))
        self.edges = np.lexsort((rank_of[dense], place))
        self.connection = names[by_count]
        self.src = src[self.edges]
        at = np.empty_like(self.edges)
        at[self.edges] = np.arange(len(self.edges))
        before = np.empty_like(after)
        before[after] = np.arange(len(after))
        self.before = at[before[self.edges]]
        sizes = np.bincount(place)
        ends = np.cumsum(sizes)
        self.layers = [(int(end - size), int(end)) for size, end in zip(sizes, ends, strict=True)]
        starts = np.array([layer[0] for layer in self.layers])
        self.last = starts[counts[by_count] - 1] + np.arange(len(names))

    def arrange(self, by_edge: FloatArray) -> FloatArray:
        return np.asarray(by_edge[self.edges])

    def load(self, begin_s: FloatArray, free_s: FloatArray) -> RingState:
        return _MixedState(self, begin_s[self.src], free_s[self.connection])


class _MixedState:
    def __init__(self, plan: _MixedPlan, begin_s: FloatArray, free_s: FloatArray) -> None:
        self._plan = plan
        self._begin_s = begin_s.copy()
        self._free_s = free_s.copy()
        self._start_s = np.empty_like(begin_s)
        self._leave_s = np.empty_like(begin_s)
        self._arrive_s = np.empty_like(begin_s)
        self._received_s = np.empty_like(begin_s)

    def step(self, duration_s: FloatArray, latency_s: FloatArray, *, keep_start: bool) -> None:
        plan, leave_s = self._plan, self._leave_s
        before_s = self._free_s
        for low, high in plan.layers:
            leave = leave_s[low:high]
            np.maximum(self._begin_s[low:high], before_s[: high - low], out=leave)
            if keep_start:
                self._start_s[low:high] = leave
            np.add(leave, duration_s[low:high], out=leave)
            before_s = leave
        np.take(leave_s, plan.last, out=self._free_s, mode="clip")
        np.add(leave_s, latency_s, out=self._arrive_s)
        np.take(self._arrive_s, plan.before, out=self._received_s, mode="clip")
        np.maximum(leave_s, self._received_s, out=self._begin_s)

    def times(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        result = []
        for values in (self._start_s, self._leave_s, self._arrive_s):
            by_edge = np.empty_like(values)
            by_edge[self._plan.edges] = values
            result.append(by_edge)
        return result[0], result[1], result[2]

    def store(self, begin_s: FloatArray, free_s: FloatArray) -> None:
        begin_s[self._plan.src] = self._begin_s
        free_s[self._plan.connection] = self._free_s
