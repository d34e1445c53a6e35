"""Constants of libraries that move data with the CPU: gloo, Open MPI, MPICH."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from simulator.base.units import parse_rate, parse_size, parse_time

__all__ = ["HostCosts"]


@dataclass(frozen=True, slots=True, kw_only=True)
class HostCosts:
    """What a process of such a library costs, beside links, alpha and launch of the profile."""

    backend: str
    process_Bps: float
    """Most that one process moves between itself and its node's memory, per direction."""
    reduce_Bps: float
    """Rate of adding received data to one's own."""
    overlap: bool
    """Rings are cut into segments, so that all but one are added while others travel."""
    segment_bytes: int
    """Largest segment; at least two per rank and step."""
    copy_Bps: float
    """Rate of copies inside a process into fresh memory."""
    copies: Mapping[str, float]
    """Bytes copied inside the busiest process over nccl-tests' size, by collective."""
    part_copies: Mapping[str, float]
    """The same over one rank's part."""
    copy_s: float
    """Time of making and dissolving the buffer of a collective in `copies`."""
    staging_share: float
    """Rate of copies between GPU and host memory over that of their PCIe path."""
    staging_s: float
    """Time of such a copy beside its bytes."""
    peer_s: float
    """Time of each further peer of an exchange."""
    flow_Bps: float
    """Most that one TCP connection carries; MPI over verbs is not limited by it."""
    rails: int
    """NICs over which one message is spread."""
    eager_bytes: Mapping[str, int]
    """Largest message without a handshake, ``local`` and ``network``; absent: no handshakes."""
    sources: Mapping[str, str]

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> HostCosts:
        """Return the constants of a profile's section ``cpu``."""
        copy, staging, reduce = data["copy"], data["staging"], data["reduce"]
        eager = {k: parse_size(v) for k, v in data.get("eager", {}).items() if k != "source"}
        return cls(
            backend=data["library"],
            process_Bps=parse_rate(data["process"]["rate"]),
            reduce_Bps=parse_rate(reduce["rate"]),
            overlap=bool(reduce["overlap"]),
            segment_bytes=parse_size(reduce.get("segment", "1 MiB")),
            copy_Bps=parse_rate(copy["rate"]),
            copies={key: float(value) for key, value in copy.get("buffers", {}).items()},
            copy_s=parse_time(copy.get("time", "0 us")),
            part_copies={key: float(value) for key, value in copy.get("parts", {}).items()},
            staging_share=float(staging["share"]),
            staging_s=parse_time(staging["time"]),
            peer_s=parse_time(data["peer"]["time"]),
            flow_Bps=parse_rate(data["flow"]["rate"]),
            rails=int(data["rails"]["count"]),
            eager_bytes=eager,
            sources={
                f"cpu.{key}": entry["source"]
                for key, entry in data.items()
                if isinstance(entry, dict) and "source" in entry
            },
        )

    def with_eager(self, place: str, limit_bytes: int) -> HostCosts:
        """Return the constants with another eager limit inside a node or over the network."""
        return replace(self, eager_bytes={**self.eager_bytes, place: limit_bytes})
