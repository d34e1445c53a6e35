"""The network between nodes, as its builders describe it: ports in, switches and cables out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from simulator.base.errors import Problem, TopologyError
from simulator.base.limits import MOST_CABLES, MOST_VERTICES, too_many
from simulator.fabric.model import LINK_KINDS, VERTEX_KINDS, NodeTemplate
from simulator.fabric.template import compile_template

__all__ = ["HOP_LATENCY_S", "Ports", "Wiring", "WiringBuilder"]

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]

HOP_LATENCY_S = {
    "infiniband": 0.15e-6,
    "roce": 0.8e-6,
    "ethernet": 0.8e-6,
    "slingshot": 0.35e-6,
    "efa": 0.8e-6,
}
"""Port-to-port time of one switch by link kind.  InfiniBand: NVIDIA Quantum and Quantum-2 product
briefs (below 130 to 150 ns).  Slingshot: De Sensi et al., "An In-Depth Analysis of the Slingshot
Interconnect", SC20, section II (about 350 ns).  Ethernet, RoCE and EFA: typical of shared-buffer
Ethernet switches of 12.8 Tbit/s and more; a weak source, switches from 0.4 to 1.5 us are sold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """The NICs of a cluster, in node order: what a network has to join."""

    n_nodes: int
    node: IntArray
    """Node of each NIC, shape (nics,), non-decreasing."""
    local: IntArray
    """Index of the NIC inside its node, its rail, shape (nics,)."""
    rate_Bps: FloatArray
    latency_s: FloatArray
    kind: tuple[str, ...]
    """Link kind of each NIC."""
    template_names: tuple[str, ...]
    """Template of each node, for messages."""

    @property
    def n_nics(self) -> int:
        """Number of NICs."""
        return len(self.node)

    @property
    def n_rails(self) -> int:
        """Largest number of NICs on one node."""
        return int(self.local.max()) + 1 if len(self.local) else 0

    @property
    def nics_of_node(self) -> IntArray:
        """Number of NICs of each node, shape (nodes,)."""
        return np.bincount(self.node, minlength=self.n_nodes).astype(np.int64)

    @staticmethod
    def of(nodes: Sequence[tuple[NodeTemplate, int]]) -> Ports:
        """Return the NICs of groups of equal nodes, in order."""
        node: list[IntArray] = []
        local: list[IntArray] = []
        rate: list[FloatArray] = []
        latency: list[FloatArray] = []
        kind: list[str] = []
        names: list[str] = []
        first = 0
        for template, count in nodes:
            nics = len(compile_template(template).nics)
            node.append(np.repeat(np.arange(first, first + count), nics))
            local.append(np.tile(np.arange(nics), count))
            rate.append(np.full(nics * count, float(template.nic_rate_Bps)))
            latency.append(np.full(nics * count, float(template.nic_latency_s)))
            kind += [template.nic_kind or ""] * (nics * count)
            names += [template.name] * count
            first += count
        empty = np.zeros(0)
        return Ports(
            n_nodes=first,
            node=np.concatenate([*node, empty]).astype(np.int64),
            local=np.concatenate([*local, empty]).astype(np.int64),
            rate_Bps=np.concatenate([*rate, empty]),
            latency_s=np.concatenate([*latency, empty]),
            kind=tuple(kind),
            template_names=tuple(names),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Wiring:
    """Switches and full-duplex cables; ends are NICs 0 … n_nics − 1, then switches."""

    n_nics: int
    switch_kind: tuple[str, ...]
    switch_name: tuple[str, ...]
    a: IntArray
    b: IntArray
    kind: IntArray
    """Index into LINK_KINDS, shape (cables,)."""
    bandwidth_Bps: FloatArray
    """Per direction, shape (cables,)."""
    latency_ab_s: FloatArray
    latency_ba_s: FloatArray


class WiringBuilder:
    """Collects switches and cables.

    Parameters
    ----------
    ports
        The NICs to join.
    hop_latency_s
        Port-to-port time of every switch; None: by link kind, `HOP_LATENCY_S`.
    link_kind
        Kind of every cable; None: the kind of the cluster's first NIC.

    Notes
    -----
    A directed cable costs its own latency, plus the hop latency of the switch that it leaves,
    plus `NodeTemplate.nic_latency_s` when one of its ends is a NIC.  So one switch between two
    NICs costs nic + hop + nic.
    """

    def __init__(
        self, ports: Ports, *, hop_latency_s: float | None = None, link_kind: str | None = None
    ) -> None:
        self.ports = ports
        if link_kind is None:
            link_kind = next((kind for kind in ports.kind if kind), "ethernet")
        if link_kind not in HOP_LATENCY_S:
            raise TopologyError(
                Problem(
                    key="link_kind",
                    message=f"{link_kind!r} is not a kind of network link",
                    allowed=", ".join(HOP_LATENCY_S),
                )
            )
        self.link_kind = link_kind
        self.hop_latency_s = HOP_LATENCY_S[link_kind] if hop_latency_s is None else hop_latency_s
        self._kinds: list[str] = []
        self._names: list[str] = []
        self._cables: list[tuple[IntArray, IntArray, FloatArray, FloatArray, IntArray]] = []

    @property
    def nics(self) -> IntArray:
        """Ends of all NICs, shape (nics,)."""
        return np.arange(self.ports.n_nics)

    def switches(self, kind: str, count: int, names: Sequence[str] | None = None) -> IntArray:
        """Add switches ``leaf0 leaf1 …`` and return their ends, shape (count,).

        Parameters
        ----------
        kind
            ``leaf``, ``spine`` or ``core``.
        count
            Number of switches.
        names
            Names instead of kind and number.
        """
        if kind not in VERTEX_KINDS:
            raise TopologyError(Problem(message=f"unknown switch kind {kind!r}"))
        if len(self._kinds) + count > MOST_VERTICES:
            raise TopologyError(
                too_many("fabric", len(self._kinds) + count, "switches", MOST_VERTICES)
            )
        first = len(self._kinds)
        start = self._kinds.count(kind)
        self._kinds += [kind] * count
        self._names += list(names) if names else [f"{kind}{start + i}" for i in range(count)]
        return np.arange(first, first + count) + self.ports.n_nics

    def connect(
        self,
        a: ArrayLike,
        b: ArrayLike,
        rate_Bps: ArrayLike,
        *,
        latency_s: ArrayLike = 0.0,
        kind: str | None = None,
    ) -> None:
        """Add cables between ends a[i] and b[i]; cables of one pair of ends become one.

        Parameters
        ----------
        a, b
            Ends, broadcast against each other.
        rate_Bps
            Rate per direction; a NIC's own rate limits it.
        latency_s
            Propagation of the cable, beside hop and NIC latency.
        kind
            Link kind, default the builder's.
        """
        first, second, rate, latency = np.broadcast_arrays(a, b, rate_Bps, latency_s)
        self.reserve(first.size)
        first, second = first.ravel().astype(np.int64), second.ravel().astype(np.int64)
        rate = rate.ravel().astype(np.float64)
        for end in (first, second):
            is_nic = end < self.ports.n_nics
            if is_nic.any():
                rate[is_nic] = np.minimum(rate[is_nic], self.ports.rate_Bps[end[is_nic]])
        index = LINK_KINDS.index(kind or self.link_kind)
        self._cables.append(
            (
                first,
                second,
                rate,
                latency.ravel().astype(np.float64),
                np.full(len(first), index, dtype=np.int64),
            )
        )

    def reserve(self, cables: int) -> None:
        """Refuse more cables than are built, before memory is taken for them.

        Raises
        ------
        TopologyError
            The cables so far and these are more than `simulator.base.limits.MOST_CABLES`.
        """
        total = cables + sum(len(part[0]) for part in self._cables)
        if total > MOST_CABLES:
            raise TopologyError(too_many("fabric", total, "cables", MOST_CABLES))

    def attach(self, leaf: ArrayLike, rate_Bps: float | None) -> None:
        """Connect NIC i with ``leaf[i]`` at its own rate, or at `rate_Bps` if that is less."""
        own = self.ports.rate_Bps
        self.connect(self.nics, leaf, own if rate_Bps is None else np.minimum(own, rate_Bps))

    def finish(self) -> Wiring:
        """Return the wiring, parallel cables merged.

        Raises
        ------
        TopologyError
            A cable from a switch to itself.
        """
        n = self.ports.n_nics + len(self._kinds)
        if self._cables:
            a, b, rate, latency, kind = (
                np.concatenate([cable[part] for cable in self._cables]) for part in range(5)
            )
        else:
            a = b = kind = np.zeros(0, dtype=np.int64)
            rate = latency = np.zeros(0)
        if (a == b).any():
            raise TopologyError("a cable joins a switch or a NIC to itself")
        low, high = np.minimum(a, b), np.maximum(a, b)
        _, index, inverse = np.unique(low * n + high, return_index=True, return_inverse=True)
        if len(index) < len(low):
            rate = np.bincount(inverse, weights=rate)
            order = np.argsort(index, kind="stable")
            index, rate = index[order], rate[order]
            a, b, latency, kind = a[index], b[index], latency[index], kind[index]
        nic_s = np.zeros(n)
        nic_s[: self.ports.n_nics] = self.ports.latency_s
        hop_s = np.zeros(n)
        hop_s[self.ports.n_nics :] = self.hop_latency_s
        both = latency + nic_s[a] + nic_s[b]
        return Wiring(
            n_nics=self.ports.n_nics,
            switch_kind=tuple(self._kinds),
            switch_name=tuple(self._names),
            a=a,
            b=b,
            kind=kind,
            bandwidth_Bps=rate,
            latency_ab_s=both + hop_s[a],
            latency_ba_s=both + hop_s[b],
        )
