"""Constants of the compute model, read from ``constants.yaml`` with their sources."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

import yaml

__all__ = ["AttentionKernel", "Constants", "Tile", "load_constants"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """Output tile of a GEMM kernel, and the share of the ceiling that it reaches."""

    m: int
    n: int
    efficiency: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionKernel:
    """A generation of fused attention."""

    matmul: float
    """Share of the GEMM ceiling that the forward's products reach."""
    forward_cycles: float
    """Cycles of a compute unit per score that softmax adds."""
    backward_matmul: float
    backward_cycles: float
    wide: float = 1.0
    """Factor on the products' share for heads wider than 128, whose tiles are smaller."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Constants:
    """All constants."""

    launch_s: float
    ramp_s: float
    host_launch_s: Mapping[str, float]
    host_step_s: Mapping[str, float]
    gpu_spread: float
    run_slowdown: float
    memory_efficiency: Mapping[str, float]
    gemm_ceiling: Mapping[str, Mapping[str, float]]
    gemm_tiles: tuple[Tile, ...]
    gemm_tile_start_s: float
    gemm_alignment: Mapping[str, float]
    quantize_bytes: float
    gemm_boost: float
    gemm_epilogue: float
    attention: Mapping[str, Mapping[str, AttentionKernel]]
    """By generation of the kernel, then of the GPU."""
    attention_kernel: Mapping[str, str]
    attention_tile: int
    attention_tail: Mapping[str, float]
    communication_slowdown: float
    cpu_memory_efficiency: float
    host_copy_efficiency: float


def _table(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in entry.items() if key != "source"}


@cache
def load_constants() -> Constants:
    """Return the constants that ship with the package."""
    text = resources.files(__package__).joinpath("constants.yaml").read_text(encoding="utf-8")
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    data = yaml.load(text, Loader=loader)
    return Constants(
        launch_s=float(data["launch_s"]["value"]),
        ramp_s=float(data["ramp_s"]["value"]),
        host_launch_s={k: float(v) for k, v in _table(data["host_launch_s"]).items()},
        host_step_s={k: float(v) for k, v in _table(data["host_step_s"]).items()},
        run_slowdown=float(data["run_slowdown"]["value"]),
        gpu_spread=float(data["gpu_spread"]["value"]),
        memory_efficiency=_table(data["memory_efficiency"]),
        gemm_ceiling=_table(data["gemm_ceiling"]),
        gemm_tiles=tuple(Tile(**entry) for entry in data["gemm_tiles"] if "m" in entry),
        gemm_tile_start_s=float(data["gemm_tile_start_s"]["value"]),
        gemm_alignment=_table(data["gemm_alignment"]),
        quantize_bytes=float(data["quantize_bytes"]["value"]),
        gemm_boost=float(data["gemm_boost"]["value"]),
        gemm_epilogue=float(data["gemm_epilogue"]["value"]),
        attention={
            name: {gpu: AttentionKernel(**entry) for gpu, entry in by_gpu.items()}
            for name, by_gpu in _table(data["attention"]).items()
        },
        attention_kernel=_table(data["attention_kernel"]),
        attention_tile=int(data["attention_tile"]["value"]),
        attention_tail=_table(data["attention_tail"]),
        communication_slowdown=float(data["communication_slowdown"]["value"]),
        cpu_memory_efficiency=float(data["cpu_memory_efficiency"]["value"]),
        host_copy_efficiency=float(data["host_copy_efficiency"]["value"]),
    )
