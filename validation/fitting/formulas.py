"""A call's time as a formula of the constants: what the extraction makes, evaluated often.

A formula keeps of a call what no constant changes: bytes, hops, levels and the links on the way.
The constants come by dotted key, in seconds, bytes/s and shares.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from simulator.compose.cluster import Choice
from simulator.engine.ring_time import ring_time

__all__ = ["Edge", "Path", "Pipeline", "RingForm", "RowFormula", "Single", "Values"]

IntArray = NDArray[np.int64]
Values = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Edge:
    """A kind of message: what it costs depends on nothing else."""

    base_s: float
    alpha: str
    message_bytes: float
    limits: tuple[tuple[str, float], ...]
    """(constant, payload rate at a constant of 1)."""
    caps: tuple[str, ...]
    """Constants that cap the rate, bytes/s."""
    share: str
    """Constant that the rate is multiplied with, or empty."""
    stored: bool = False
    """On its way through host memory, inside a node."""
    copies: float = 1.0
    """Channels of the library that the edge stands for."""
    alpha_share: str = ""
    """Constant that alpha is multiplied with, or empty."""
    network: str = ""
    """Constant of the kind of network that is crossed, or empty."""
    cap_share: str = ""
    """Constant that the first cap is multiplied with, or empty."""
    streamed: bool = False
    """The next rank passes the first line on before the last one is there."""

    def rate_Bps(self, values: Values) -> float:
        """Return the payload rate of one channel's message."""
        rate = min((values.get(key, 1.0) * limit for key, limit in self.limits), default=np.inf)
        if self.stored:
            rate *= values.get("host.share", 1.0)
        for place, key in enumerate(self.caps):
            share = values.get(self.cap_share, 1.0) if place == 0 and self.cap_share else 1.0
            rate = min(rate, values.get(key, np.inf) * self.copies * share)
        return rate * values.get(self.share, 1.0) if self.share else rate

    def message_s(self, values: Values) -> float:
        """Return how long a message leaves."""
        return self.message_bytes / self.rate_Bps(values) if self.message_bytes else 0.0

    def latency_s(self, values: Values) -> float:
        """Return the links' latency and alpha."""
        return self.base_s + self.alpha_s(values)

    def alpha_s(self, values: Values) -> float:
        """Return alpha and what the network adds."""
        if not self.alpha:
            return 0.0
        share = values.get(self.alpha_share, 1.0) if self.alpha_share else 1.0
        return values.get(self.alpha, 0.0) * share + values.get(self.network, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class RingForm:
    """Steps around rings of a few kinds of edges."""

    cycles: tuple[tuple[tuple[Edge, ...], IntArray], ...]
    n_steps: int
    waits: bool

    def time_s(self, values: Values) -> float:
        """Return the stage's time."""
        worst = 0.0
        waiting = values.get("waiting.time", 0.0)
        for edges, order in self.cycles:
            d = np.array([edge.message_s(values) for edge in edges])
            latency = np.array([edge.latency_s(values) for edge in edges])
            if self.waits:
                latency = latency + np.sqrt(waiting * d)
            streamed = np.array([edge.streamed for edge in edges])
            hop = np.where(streamed, np.maximum(d, latency), d + latency)
            worst = max(worst, ring_time(hop[order], d[order], d[order], self.n_steps, exact=False))
        edges = self.cycles[0][0]
        rate = values.get(edges[0].caps[0], np.inf) if edges[0].caps else np.inf
        heaviest = max(edge.message_bytes for edge in edges)
        rate *= edges[0].copies
        return worst + values.get("ring.closing_share", 0.0) * heaviest / rate


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """Fill by levels, then the busiest edge's messages."""

    edges: tuple[Edge, ...]
    messages: tuple[int, ...]
    fill: tuple[float, ...]
    """Levels on the longest way, by edge."""
    waits: bool
    chain: bool
    """Every hop pays its alpha (broadcast and reduce along a ring)."""

    def time_s(self, values: Values) -> float:
        """Return the stage's time."""
        d = [edge.message_s(values) for edge in self.edges]
        waiting = values.get("waiting.time", 0.0) if self.chain and self.waits else 0.0
        busy = max(time * count for time, count in zip(d, self.messages, strict=True))
        way = sum(
            levels * (time + edge.latency_s(values) + np.sqrt(waiting * time))
            for levels, time, edge in zip(self.fill, d, self.edges, strict=True)
        )
        if self.chain:
            # The last hop's first message is among the busy time; alphas show a share only, and
            # the links' latency all of it.
            way -= d[int(np.argmax(self.fill))]
            hidden = 1.0 - values.get("chain.latency_share", 1.0)
            alphas = [edge.latency_s(values) for edge in self.edges]
            for levels, alpha, edge in zip(self.fill, alphas, self.edges, strict=True):
                way -= hidden * levels * (alpha - edge.base_s)
            way += max(alphas) if self.waits else 0.0
        return float(busy + way)


@dataclass(frozen=True, slots=True, kw_only=True)
class Path:
    """A kind of path of an exchange."""

    alpha: str
    network: str
    base_s: float
    lone_s: float
    """Time of a message alone, links at full rate."""
    channel_bytes: float
    """A channel's share of a message."""
    caps: tuple[str, ...]
    """Constants that cap the rate of a channel."""

    def latency_s(self, values: Values) -> float:
        """Return the latency beside the bytes."""
        return self.base_s + values.get(self.alpha, 0.0) + values.get(self.network, 0.0)

    def message_s(self, values: Values) -> float:
        """Return how long the channels need for a message."""
        share = values.get("exchange.channel_share", 0.0)
        rate = min((values.get(key, np.inf) for key in self.caps), default=np.inf)
        return self.channel_bytes / (share * rate) if share > 0 else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Single:
    """One step of messages between many pairs at once."""

    waits: bool
    stored: bool
    loads: tuple[tuple[str, str, float], ...]
    """(constant, constant of a crowd or empty, seconds at constants of 1) of the busiest link of
    each kind, with one flow and with several."""
    paths: tuple[Path, ...]

    def time_s(self, values: Values) -> float:
        """Return the stage's time."""
        wire = max(
            (
                time / values.get(key, 1.0) / (values.get(crowd, 1.0) if crowd else 1.0)
                for key, crowd, time in self.loads
            ),
            default=0.0,
        )
        if self.stored:
            wire /= values.get("host.share", 1.0)
        waiting = values.get("waiting.time", 0.0) if self.waits else 0.0
        tail = slowest = 0.0
        for path in self.paths:
            message_s = path.message_s(values)
            slowest = max(slowest, message_s)
            wait_s = np.sqrt(waiting * max(path.lone_s, message_s))
            tail = max(tail, path.latency_s(values) + wait_s)
        return float(max(wire, slowest) + tail)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowFormula:
    """One call."""

    choice: Choice
    levels: tuple[tuple[str, str, float], ...]
    """(alpha of a level, constant it is multiplied with, times)."""
    base_s: float
    """Latency of links that a pipeline passes once."""
    launch: str
    """Constant that the launch time is multiplied with."""
    linear: tuple[tuple[str, float], ...]
    """(constant, times)."""
    stages: tuple[RingForm | Pipeline | Single, ...]
    together: int = 1
    """GPUs for which one process launches."""
    scale: float = 1.0
    """The engine's time of the stages over this formula's, at the constants of the extraction."""

    def fixed_s(self, values: Values) -> float:
        """Return the part that is paid before and beside the stages."""
        rest = sum(values.get(key, 0.0) * times for key, times in self.linear)
        rest += sum(
            values.get(key, 0.0) * values.get(share, 1.0) * n for key, share, n in self.levels
        )
        return self.base_s + values["launch.time"] * values.get(self.launch, 1.0) + rest

    def stages_s(self, values: Values) -> float:
        """Return the part of the stages."""
        return self.scale * sum(stage.time_s(values) for stage in self.stages)

    def time_s(self, values: Values) -> float:
        """Return the time for constants by dotted key: seconds, bytes/s and shares."""
        return max(self.fixed_s(values) + self.stages_s(values), self.host_s(values))

    def host_s(self, values: Values) -> float:
        """Return the time that the processes need to launch one call after the other."""
        return values.get("launch.host", 0.0) * self.together

    def tied_to(self, time_s: float, values: Values) -> RowFormula:
        """Return the formula that gives the engine's *time_s* at *values*."""
        staged = self.stages_s(values) / self.scale
        rest = time_s - self.fixed_s(values)
        if staged <= 0 or rest <= 0:
            return self
        return replace(self, scale=min(max(rest / staged, 0.2), 5.0))

    @property
    def keys(self) -> frozenset[str]:
        """Constants that the time depends on."""
        found = {key for key, _ in self.linear} | {
            "waiting.time",
            "launch.time",
            "launch.host",
            self.launch,
        }
        found |= {key for level in self.levels for key in level[:2]}
        for stage in self.stages:
            if isinstance(stage, Single):
                found |= {key for load in stage.loads for key in load[:2]}
                found |= {"host.share", "exchange.channel_share"}
                found |= {
                    key for path in stage.paths for key in (path.alpha, path.network, *path.caps)
                }
                continue
            edges = (
                [edge for cycle, _ in stage.cycles for edge in cycle]
                if isinstance(stage, RingForm)
                else list(stage.edges)
            )
            for edge in edges:
                found |= {key for key, _ in edge.limits} | set(edge.caps)
                found |= {edge.alpha, edge.share, edge.network, edge.alpha_share, edge.cap_share}
                if edge.stored:
                    found.add("host.share")
            if isinstance(stage, RingForm):
                found.add("ring.closing_share")
            elif stage.chain:
                found.add("chain.latency_share")
        return frozenset(found - {""})
