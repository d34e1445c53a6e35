"""Time of matrix products: roofline with tile and wave quantisation.

A library cuts the output into tiles, one thread block each, and runs them in waves over the
compute units.  A tile takes its products at the unit's rate, beside the start of its pipeline and
the part of its results' way to memory that nothing hides; a last wave that is not full takes as
long as a full one.  The library is taken to choose the best of a few tile shapes, and to split the
inner dimension where tiles are too few.  Two limits hold: each unit's rate at the clock that a
partly idle chip keeps, and the whole chip's sustained rate under its power limit.

References
----------
.. [1] NVIDIA, "Matrix Multiplication Background User's Guide", sections on tile and wave
   quantisation.
.. [2] S. Williams, A. Waterman, D. Patterson, "Roofline", CACM 52(4), 2009.

Notes
-----
Not modelled: the values of the operands (which move power
and clock by some per cent), kernels' autotuning.
"""

from __future__ import annotations

import math

from simulator.compute.constants import Constants
from simulator.compute.gpu import DTYPES, Gpu
from simulator.models.kernels import Gemm

__all__ = ["ceiling_flops", "gemm_s", "reached_Bps"]

_SPLITS = (1, 2, 3, 4, 8)
_SHORTEST_SPLIT = 256
"""Inner dimension of a split that is worth its start."""


def reached_Bps(gpu: Gpu, constants: Constants) -> float:
    """Return the HBM bandwidth that streaming kernels reach, bytes/s."""
    share = constants.memory_efficiency
    return gpu.memory_Bps * share.get(gpu.generation, share["default"])


def ceiling_flops(gpu: Gpu, dtype: str, constants: Constants) -> float:
    """Return the sustained rate of a large product, FLOP/s."""
    table = constants.gemm_ceiling
    by_type = table.get(gpu.name) or table.get(gpu.generation) or table["default"]
    return gpu.peak(dtype) * by_type.get(DTYPES[dtype][0], by_type["default"])


def _result_bytes(kernel: Gemm) -> float:
    """Return bytes moved per element of the result.

    Weight gradients are accumulated in four bytes: read and written; those of groups written only.
    """
    if kernel.phase != "weight_gradient":
        return 2.0
    return 8.0 if kernel.count == 1 else 4.0


def _traffic_bytes(kernel: Gemm, tile: tuple[int, int], gpu: Gpu, size: float) -> float:
    """Return bytes over HBM: operands once, more when a wave's panels do not stay in the cache."""
    m, n, k, count = kernel.m, kernel.n, kernel.k, kernel.count
    out = _result_bytes(kernel) * m * n * count
    once = size * (m * k + k * n) * count
    if not gpu.l2_bytes or not gpu.compute_units or once <= gpu.l2_bytes:
        return once + out
    rows = math.sqrt(gpu.compute_units)
    waves = count * math.ceil(m / tile[0]) * math.ceil(n / tile[1]) / gpu.compute_units
    panels = min(rows * tile[0], m) + min(rows * tile[1], n)
    return max(once, size * waves * panels * k) + out


def _aligned(kernel: Gemm, size: float, constants: Constants) -> float:
    """Return the share of the rate that the operands' alignment leaves."""
    # Rows of operands and result; groups of experts are ragged in m, which is no row's extent.
    rows = (kernel.k, kernel.n) if kernel.phase != "weight_gradient" else (kernel.m, kernel.n)
    bytes_of = [extent * size for extent in rows]
    if any(n % 16 for n in bytes_of):
        return constants.gemm_alignment["vector"]
    if any(n % 128 for n in bytes_of):
        return constants.gemm_alignment["line"]
    return 1.0


def _narrowing_s(kernel: Gemm, size: float, constants: Constants, memory_Bps: float) -> float:
    """Return the time to narrow an operand to 8 bits or fewer before the product."""
    if size >= 2.0 or kernel.phase == "weight_gradient":
        return 0.0
    return constants.quantize_bytes * kernel.m * kernel.k * kernel.count / memory_Bps


def gemm_s(kernel: Gemm, dtype: str, gpu: Gpu, constants: Constants) -> float:
    """Return the seconds of a kernel of products, its launch excluded.

    Parameters
    ----------
    kernel
        Products; all extents positive.
    dtype
        Element type of the operands.
    """
    m, n, k, count = kernel.m, kernel.n, kernel.k, kernel.count
    sustained = ceiling_flops(gpu, dtype, constants)
    size = DTYPES[dtype][1]
    sustained *= _aligned(kernel, size, constants)
    rate = min(sustained * constants.gemm_boost, gpu.peak(dtype))
    units = gpu.compute_units
    memory_Bps = reached_Bps(gpu, constants)
    best_s = math.inf
    for tile in constants.gemm_tiles:
        tiles = count * math.ceil(m / tile.m) * math.ceil(n / tile.n)
        memory_s = _traffic_bytes(kernel, (tile.m, tile.n), gpu, size) / memory_Bps
        if not units:
            compute_s = 2.0 * tiles * tile.m * tile.n * k / (sustained * tile.efficiency)
            best_s = min(best_s, max(compute_s, memory_s))
            continue
        area = tile.m * tile.n * units
        written_s = constants.gemm_epilogue * area * _result_bytes(kernel) / memory_Bps
        for split in _SPLITS:
            if split > 1 and (tiles >= units or k // split < _SHORTEST_SPLIT):
                break
            waves = math.ceil(tiles * split / units)
            tile_s = 2.0 * area * (k / split) / (rate * tile.efficiency)
            # Partial sums are written and read once more in four bytes.
            merge_s = 8.0 * m * n * count * (split - 1) / memory_Bps
            compute_s = max(
                waves * (tile_s + constants.gemm_tile_start_s + written_s),
                kernel.flops / sustained,
            )
            best_s = min(best_s, max(compute_s, memory_s) + merge_s)
    return best_s + constants.ramp_s + _narrowing_s(kernel, size, constants, memory_Bps)
