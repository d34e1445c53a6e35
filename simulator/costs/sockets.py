"""TCP connections of NCCL: helper threads, flows per thread, and the rate they reach together.

Not modelled: CPU cores that run out when many GPUs have many threads, and the share of a NIC's
interrupts; the latency of a kernel's TCP is in the profile (`networks`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

import yaml

from simulator.base.units import parse_rate

__all__ = ["Sockets", "drives_itself", "provider_of"]


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Sockets:
    """How one NCCL channel talks to a peer over TCP."""

    threads: int
    flows: int
    """Of all threads together."""
    flow_Bps: float
    """Most that one flow carries."""
    thread_Bps: float
    """Most that one thread copies."""

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
        """
        table = _table()
        auto = table["threads"].get(provider, table["threads"]["default"])
        most = table["most"]
        count = min(threads or auto["threads"], most["threads"])
        each = min(per_thread or auto["flows"], most["flows"] // count)
        return cls(
            threads=count,
            flows=count * each,
            flow_Bps=parse_rate(table["flow"].get(provider, table["flow"]["default"])),
            thread_Bps=parse_rate(table["thread"]["rate"]),
        )

    @property
    def rate_Bps(self) -> float:
        """Most that the connection of a channel carries."""
        return min(self.flows * self.flow_Bps, self.threads * self.thread_Bps)
