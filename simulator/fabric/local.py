"""Local routes of every node of a cluster, and the NIC pairs between any two of them, as tables."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from simulator.fabric.affinity import NodeClass, RowTable, Subflow, subflows
from simulator.fabric.network import NetworkTables
from simulator.fabric.options import RoutingOptions

if TYPE_CHECKING:
    from simulator.fabric.fabric import Fabric

__all__ = ["LocalTables", "Patterns"]

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]

Patterns = tuple[IntArray, IntArray, IntArray, IntArray, FloatArray]
"""Send row and receive row, shape (patterns,); source NICs, target NICs (−1: none) and shares,
shape (patterns, subflows)."""

_SWITCH = -1
"""Stands for a network switch where a class of nodes is asked for."""


class LocalTables:
    """Local routes of all nodes.

    Nodes that route alike form a class; its routes are worked out once, and tables of all classes
    lie end to end so that pairs of any classes index them at once.

    Parameters
    ----------
    fabric, network, options
        The cluster, its network and the routing options.
    dead_links
        Links that have failed.
    """

    def __init__(
        self,
        fabric: Fabric,
        network: NetworkTables,
        options: RoutingOptions,
        dead_links: frozenset[int],
    ) -> None:
        self._options = options
        self.network_inside = not options.shm
        """GPUs of one node that are cut inside it take the network."""
        self.rows = RowTable()
        self.class_of_node = np.zeros(fabric.n_nodes, dtype=np.int64)
        nics = np.bincount(fabric.node_of_nic, minlength=fabric.n_nodes).astype(np.int64)
        self.nic_base = np.cumsum(nics) - nics
        self._classes: list[NodeClass] = []
        self._classify(fabric, network, dead_links)

        self.rows.refresh()
        gpus = np.array([c.n_gpus for c in self._classes], dtype=np.int64)
        ports = np.array([c.n_nics for c in self._classes], dtype=np.int64)
        self._n_gpus, self._n_nics = gpus, ports
        self._pair_start = np.cumsum(gpus * gpus) - gpus * gpus
        self._gpu_start = np.cumsum(gpus) - gpus
        self._port_start = np.cumsum(gpus * ports) - gpus * ports
        self._gpu_gpu = np.concatenate([c.gpu_gpu.ravel() for c in self._classes])
        self._up = np.concatenate([c.up for c in self._classes])
        self._down = np.concatenate([c.down for c in self._classes])
        self._send = np.concatenate([c.send.ravel() for c in self._classes])
        self._receive = np.concatenate([c.receive.ravel() for c in self._classes])

        self._blocks: dict[int, int] = {}
        self._patterns: list[tuple[int, int, list[Subflow]]] = []
        self._arrays: Patterns | None = None

    def _classify(self, fabric: Fabric, network: NetworkTables, dead_links: frozenset[int]) -> None:
        """Group nodes by template, state of their NICs and dead links inside."""
        damage: dict[int, set[int]] = {}
        for link in dead_links:
            if link < fabric.first_cable:
                node = int(np.searchsorted(fabric.link_base, link, side="right")) - 1
                damage.setdefault(node, set()).add(link - int(fabric.link_base[node]))
        state = np.stack([network.piece, network.sends, network.receives]).astype(np.int64)
        for number, compiled in enumerate(fabric.compiled):
            nodes = np.flatnonzero(fabric.template_of_node == number)
            width = len(compiled.nics)
            own = self.nic_base[nodes][:, None] + np.arange(width)
            # Nodes with dead links inside are classes of their own: marked by their number.
            marks = np.array([node + 1 if node in damage else 0 for node in nodes.tolist()])
            looks = np.concatenate([*(part[own] for part in state), marks[:, None]], axis=1)
            kinds, member = np.unique(looks, axis=0, return_inverse=True)
            for kind, look in enumerate(kinds.tolist()):
                self.class_of_node[nodes[member.ravel() == kind]] = len(self._classes)
                self._classes.append(
                    NodeClass.of(
                        compiled,
                        self._options,
                        self.rows,
                        dead=frozenset(damage.get(look[-1] - 1, ())),
                        piece=tuple(look[:width]),
                        sends=tuple(map(bool, look[width : 2 * width])),
                        receives=tuple(map(bool, look[2 * width : 3 * width])),
                    )
                )

    # ------------------------------------------------- rows inside one node

    def gpu_pair_rows(self, kind: IntArray, gpu: IntArray, peer: IntArray) -> IntArray:
        """Return the row between two GPUs of nodes of these classes."""
        return _take(self._gpu_gpu, self._pair_start[kind] + gpu * self._n_gpus[kind] + peer)

    def up_rows(self, kind: IntArray, gpu: IntArray) -> IntArray:
        """Return the row from a GPU to its NVSwitches."""
        return _take(self._up, self._gpu_start[kind] + gpu)

    def down_rows(self, kind: IntArray, gpu: IntArray) -> IntArray:
        """Return the row from its NVSwitches to a GPU."""
        return _take(self._down, self._gpu_start[kind] + gpu)

    def n_nics(self, kind: IntArray) -> IntArray:
        """Return the number of NICs of a node of these classes."""
        return _take(self._n_nics, kind)

    def send_rows(self, kind: IntArray, gpu: IntArray, nic: IntArray) -> IntArray:
        """Return the row from a GPU to a NIC."""
        return _take(self._send, self._port_start[kind] + gpu * self._n_nics[kind] + nic)

    def receive_rows(self, kind: IntArray, gpu: IntArray, nic: IntArray) -> IntArray:
        """Return the row from a NIC to a GPU."""
        return _take(self._receive, self._port_start[kind] + gpu * self._n_nics[kind] + nic)

    # ------------------------------------------------- patterns between nodes

    def pattern(
        self, source: IntArray, gpu: IntArray, target: IntArray, peer: IntArray
    ) -> IntArray:
        """Return the pattern of pairs of GPUs on different nodes.

        Parameters
        ----------
        source, gpu
            Class of the sending node and index of the GPU, shape (pairs,); class −1 and GPU 0
            stand for a network switch.
        target, peer
            The same of the receiving end.
        """
        stride = len(self._classes) + 1
        key = (source + 1) * stride + target + 1
        if len(key) and (key == key[0]).all():
            first = np.full(len(key), self._first_pattern(int(key[0])), dtype=np.int64)
        else:
            unique, inverse = np.unique(key, return_inverse=True)
            starts = [self._first_pattern(value) for value in unique.tolist()]
            first = np.array(starts, dtype=np.int64)[inverse]
        width = np.where(target < 0, 1, self._n_gpus[np.maximum(target, 0)])
        return np.asarray(first + gpu * width + peer)

    def _first_pattern(self, key: int) -> int:
        if key not in self._blocks:
            self._blocks[key] = len(self._patterns)
            source, target = divmod(key, len(self._classes) + 1)
            self._patterns += self._block(source - 1, target - 1)
            self._arrays = None
            self.rows.refresh()
        return self._blocks[key]

    def _block(self, source: int, target: int) -> Iterator[tuple[int, int, list[Subflow]]]:
        """Generate the patterns of all GPU pairs of two classes."""
        for g in range(1 if source == _SWITCH else self._classes[source].n_gpus):
            for h in range(1 if target == _SWITCH else self._classes[target].n_gpus):
                flows = self._subflows(source, g, target, h)
                send = receive = -1
                if source != _SWITCH:
                    table = self._classes[source].send
                    send = self.rows.merged([(int(table[g, a]), s) for a, _, s in flows])
                if target != _SWITCH:
                    table = self._classes[target].receive
                    receive = self.rows.merged([(int(table[h, b]), s) for _, b, s in flows])
                yield send, receive, flows

    def _subflows(self, source: int, gpu: int, target: int, peer: int) -> list[Subflow]:
        if source == _SWITCH and target == _SWITCH:
            return [(-1, -1, 1.0)]
        if source == _SWITCH:
            near = self._classes[target].receive_set[peer]
            return [(-1, nic, 1.0 / len(near)) for nic in near]
        if target == _SWITCH:
            near = self._classes[source].send_set[gpu]
            return [(nic, -1, 1.0 / len(near)) for nic in near]
        return subflows(self._classes[source], gpu, self._classes[target], peer, self._options)

    @property
    def patterns(self) -> Patterns:
        """All patterns so far as arrays; a pattern without subflow has shares 0."""
        if self._arrays is None:
            count = len(self._patterns)
            width = max((len(flows) for _, _, flows in self._patterns), default=0) or 1
            source, target = (np.full((count, width), -1, dtype=np.int64) for _ in range(2))
            share = np.zeros((count, width))
            for index, (_, _, flows) in enumerate(self._patterns):
                for column, (a, b, part) in enumerate(flows):
                    source[index, column], target[index, column] = a, b
                    share[index, column] = part
            self._arrays = (
                np.array([p[0] for p in self._patterns], dtype=np.int64),
                np.array([p[1] for p in self._patterns], dtype=np.int64),
                source,
                target,
                share,
            )
        return self._arrays


def _take(table: IntArray, index: IntArray) -> IntArray:
    found: IntArray = table[index]
    return found
