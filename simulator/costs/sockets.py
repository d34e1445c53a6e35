"""TCP connections of NCCL: helper threads, flows per thread, and the rate they reach together.

A connection of a channel has helper threads of its own, if any; without them the rank's proxy
thread, one for all its connections, calls the kernel itself (NCCL src/transport/net_socket.cc).

Not modelled: CPU cores that run out when many GPUs have many threads, and the share of a NIC's
interrupts; the latency of a kernel's TCP is in the profile (`networks`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

import yaml

from simulator.base.units import parse_rate

__all__ = ["Sockets", "band_factor", "drives_itself", "memory_crossings", "provider_of"]


@cache
def _table() -> dict[str, Any]:
    text = (resources.files("simulator.costs") / "sockets.yaml").read_text("utf-8")
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    loaded: dict[str, Any] = yaml.load(text, Loader=loader)
    return loaded


def provider_of(preset: str) -> str:
    """Return the key of a node preset's own socket constants.

    Examples
    --------
    >>> provider_of("aws-p3dn"), provider_of("hgx-h100+1xeth100")
    ('aws', 'default')
    """
    head = preset.partition("-")[0]
    return head if head in ("aws", "gcp") else "default"


def drives_itself(preset: str) -> bool:
    """Return whether a node's Ethernet ports have a protocol of their own instead of sockets."""
    return preset.partition("+")[0] in _table()["own_protocol"]["presets"]


def memory_crossings() -> int:
    """Return how often a byte crosses the host memory of each side."""
    return int(_table()["crossings"]["count"])


def band_factor() -> float:
    """Return by what a measured time over TCP may differ from a predicted one."""
    return float(_table()["band"]["factor"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Sockets:
    """How one NCCL channel talks to a peer over TCP."""

    threads: int
    """Helper threads; 0: the rank's proxy thread does it."""
    flows: int
    """Of all threads together."""
    flow_Bps: float
    """Most that one flow carries."""
    thread_Bps: float
    """Most that one helper thread copies."""
    proxy_Bps: float
    """Most that a rank's proxy thread moves, sent and received together."""

    @classmethod
    def of(cls, provider: str, *, threads: int | None, per_thread: int | None) -> Sockets:
        """Return the sockets of a provider's network.

        Parameters
        ----------
        provider
            As `provider_of`.
        threads, per_thread
            NCCL_SOCKET_NTHREADS and NCCL_NSOCKS_PERTHREAD; None: NCCL's own choice.  More than 64
            flows together are cut as NCCL does.

        Examples
        --------
        >>> Sockets.of("default", threads=4, per_thread=2).rate_Bps / 1e9
        21.0
        >>> Sockets.of("default", threads=None, per_thread=None).rank_Bps / 1e9
        3.125
        """
        table = _table()
        auto = table["threads"].get(provider, table["threads"]["default"])
        most = table["most"]
        count = min(threads or auto["threads"], most["threads"])
        each = min(per_thread or auto["flows"], most["flows"] // max(count, 1))
        return cls(
            threads=count,
            # Without helper threads the number of flows per thread says nothing.
            flows=max(1, count * each),
            flow_Bps=parse_rate(table["flow"].get(provider, table["flow"]["default"])),
            thread_Bps=parse_rate(table["thread"]["rate"]),
            proxy_Bps=parse_rate(table["proxy"]["rate"]),
        )

    @property
    def rate_Bps(self) -> float:
        """Most that the connection of a channel carries."""
        return min(self.flows * self.flow_Bps, max(1, self.threads) * self.thread_Bps)

    @property
    def rank_Bps(self) -> float:
        """Most that all connections of a rank carry together, sent and received."""
        return math.inf if self.threads else self.proxy_Bps
