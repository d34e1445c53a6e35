"""Time of matrix products: roofline with tile and wave quantisation.

A library cuts the output into tiles, one thread block each, and runs them in waves over the
compute units.  A tile takes its products at the unit's sustained rate, beside the start of its
pipeline; a last wave that is not full takes as long as a full one.  The library is taken to choose
the best of a few tile shapes, and to split the inner dimension where tiles are too few.

References
----------
.. [1] NVIDIA, "Matrix Multiplication Background User's Guide", sections on tile and wave
   quantisation.
.. [2] S. Williams, A. Waterman, D. Patterson, "Roofline", CACM 52(4), 2009.

Notes
-----
Not modelled: alignment of odd sizes to vector loads, the values of the operands (which move power
and clock by some per cent), kernels' autotuning.
"""

from __future__ import annotations

import math

from simulator.compute.constants import Constants
from simulator.compute.gpu import DTYPES, Gpu

__all__ = ["ceiling_flops", "gemm_s"]

_SPLITS = (1, 2, 4, 8)


def ceiling_flops(gpu: Gpu, dtype: str, constants: Constants) -> float:
    """Return the sustained rate of a large product, FLOP/s."""
    by_type = constants.gemm_ceiling.get(gpu.generation, constants.gemm_ceiling["default"])
    return gpu.peak(dtype) * by_type.get(DTYPES[dtype][0], by_type["default"])


def _traffic_bytes(
    m: int, n: int, k: int, count: int, tile: tuple[int, int], gpu: Gpu, size: float
) -> float:
    """Return bytes over HBM: operands once, more when a wave's panels do not stay in the cache."""
    out = 2.0 * m * n * count
    once = size * (m * k + k * n) * count
    if not gpu.l2_bytes or not gpu.compute_units or once <= gpu.l2_bytes:
        return once + out
    rows = math.sqrt(gpu.compute_units)
    waves = count * math.ceil(m / tile[0]) * math.ceil(n / tile[1]) / gpu.compute_units
    panels = min(rows * tile[0], m) + min(rows * tile[1], n)
    return max(once, size * waves * panels * k) + out


def gemm_s(m: int, n: int, k: int, count: int, dtype: str, gpu: Gpu, constants: Constants) -> float:
    """Return the seconds of `count` products ``[m, k] x [k, n]`` in one launch, launch excluded."""
    rate = ceiling_flops(gpu, dtype, constants)
    size = DTYPES[dtype][1]
    units = gpu.compute_units
    memory_Bps = gpu.memory_Bps * constants.memory_efficiency.get(
        gpu.generation, constants.memory_efficiency["default"]
    )
    best = math.inf
    for tile in constants.gemm_tiles:
        tiles = count * math.ceil(m / tile.m) * math.ceil(n / tile.n)
        memory_s = _traffic_bytes(m, n, k, count, (tile.m, tile.n), gpu, size) / memory_Bps
        if not units:
            compute_s = 2.0 * tiles * tile.m * tile.n * k / (rate * tile.efficiency)
            best = min(best, max(compute_s, memory_s))
            continue
        for split in _SPLITS:
            if split > 1 and (tiles >= units or k // split < 512):
                break
            waves = math.ceil(tiles * split / units)
            tile_s = 2.0 * tile.m * tile.n * (k / split) * units / (rate * tile.efficiency)
            # Partial sums are written and read once more in four bytes.
            merge_s = 8.0 * m * n * count * (split - 1) / memory_Bps
            compute_s = waves * (tile_s + constants.gemm_tile_start_s)
            best = min(best, max(compute_s, memory_s) + merge_s)
    return best + constants.ramp_s
