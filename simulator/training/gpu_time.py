"""What a plan asks of the machine: how long kernels, copies and optimisers take."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from simulator.models.kernels import Operation

__all__ = ["ComputeLike", "Host"]


class ComputeLike(Protocol):
    """The part of `simulator.compute.ComputeModel` that plans use."""

    def work_s(self, work: Iterable[Operation], dtype: str) -> tuple[float, ...]:
        """Return the time of each operation of a layer; 0 for a `Sync`."""

    def copy_s(self, n_bytes: float, *, launches: int = 1) -> float:
        """Return the time of a copy within the GPU's memory."""

    def cast_s(self, n_elements: float, from_bytes: float, to_bytes: float) -> float:
        """Return the time to convert elements from one width to another."""

    def optimizer_s(
        self,
        n_parameters: float,
        *,
        kind: str = "adam",
        parameter_bytes: float = 2.0,
        gradient_bytes: float = 4.0,
        master_bytes: float = 4.0,
        moment_bytes: float = 8.0,
        clip: bool = True,
    ) -> float:
        """Return the time of an optimiser step over the parameters that a rank owns."""

    def host_copy_s(self, n_bytes: float, link_Bps: float) -> float:
        """Return the time of a copy between host and GPU, one way."""

    def cpu_optimizer_s(
        self,
        n_parameters: float,
        cpu_memory_Bps: float,
        *,
        parameter_bytes: float = 2.0,
        gradient_bytes: float = 4.0,
        master_bytes: float = 4.0,
        moment_bytes: float = 8.0,
    ) -> float:
        """Return the time of an optimiser step on the CPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """What offloading uses: the share of one GPU in its host, bytes/s per direction."""

    link_Bps: float = 25e9
    """PCIe link between host and GPU (Gen4 x16 moves about 25 GB/s)."""
    memory_Bps: float = 25e9
    """DRAM bandwidth per GPU (8 channels of DDR4-3200 on each of two sockets for 8 GPUs: 51 GB/s
    peak, half of it reached)."""
    storage_Bps: float = 3e9
    """NVMe bandwidth per GPU."""
