"""Records of published measurements: one machine, its software, its tables as arrays."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulator.importers import bus_factor

__all__ = ["Hardware", "PublishedTable", "SetUp", "Software"]

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """The machine, as far as its source says."""

    gpu: str
    gpus_per_node: int | None
    """GPUs of a node that took part."""
    nodes: int | None
    """None when unknown or different per table."""
    n_ranks: int | None
    """None when unknown or different per table."""
    intra_node: str
    inter_node: str
    nics_per_node: int | None
    gdr: str
    """GPUDirect RDMA, in words."""
    cpu_numa: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Software:
    """Versions and settings; ``unknown`` where the source does not say."""

    nccl: str
    cuda: str
    environment: Mapping[str, str]
    nccl_log: tuple[str, ...]
    """What NCCL's debug lines said, in short."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PublishedTable:
    """One printed table; all arrays have shape (rows,), NaN where nothing was printed."""

    collective: str
    dtype: str
    redop: str | None
    root: int | None
    n_ranks: int | None
    n_nodes: int | None
    variant: str
    """What differs from the other tables of the set-up, in words."""
    run: str
    hardware_note: str
    algorithm: str | None
    """Forced by NCCL_ALGO."""
    protocol: str | None
    """Forced by NCCL_PROTO."""
    environment: Mapping[str, str]
    """In addition to the set-up's."""
    old_convention: bool
    """True: the printed algbw counts (n − 1) / n of the size, as nccl-tests did before 2020."""
    size_bytes: NDArray[np.int64]
    time_s: FloatArray
    """Out-of-place."""
    printed_algbw_Bps: FloatArray
    printed_busbw_Bps: FloatArray
    in_place_time_s: FloatArray
    in_place_printed_algbw_Bps: FloatArray
    in_place_printed_busbw_Bps: FloatArray

    def usable(self, *, in_place: bool = False) -> NDArray[np.bool_]:
        """Return the mask of rows with data and a time greater than zero."""
        time_s = self.in_place_time_s if in_place else self.time_s
        with np.errstate(invalid="ignore"):
            return (self.size_bytes > 0) & np.isfinite(time_s) & (time_s > 0)

    def algbw_Bps(self, *, in_place: bool = False) -> FloatArray:
        """Return size / time, NaN where the time is not usable."""
        time_s = self.in_place_time_s if in_place else self.time_s
        result = np.full(self.size_bytes.shape, np.nan)
        mask = self.usable(in_place=in_place)
        result[mask] = self.size_bytes[mask] / time_s[mask]
        return result

    def busbw_Bps(self, *, in_place: bool = False) -> FloatArray:
        """Return size / time × nccl-tests' factor, NaN where the rank count is unknown."""
        factor = None if self.n_ranks is None else bus_factor(self.collective, self.n_ranks)
        return self.algbw_Bps(in_place=in_place) * (math.nan if factor is None else factor)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SetUp:
    """One machine in one state, with everything measured on it."""

    slug: str
    source: str
    date: str
    hardware: Hardware
    software: Software
    health: str
    """``healthy`` or ``faulty``: a faulty one is for `check`, never for a fit."""
    health_cause: str
    notes: str
    tables: tuple[PublishedTable, ...]

    @property
    def n_rows(self) -> int:
        """Number of rows of all tables."""
        return sum(table.size_bytes.size for table in self.tables)
