"""GPUs in plain numbers, from their data sheets."""

from dataclasses import replace

from simulator.compute import Gpu, load_constants

ALONE = replace(load_constants(), run_slowdown=1.0)
"""Constants of kernels in a benchmark's loop, as the published ones are."""

A100 = Gpu(
    name="a100-sxm4-80gb",
    generation="ampere",
    peak_flops={"fp32": 19.5e12, "tf32": 156e12, "fp16": 312e12, "bf16": 312e12},
    memory_Bps=2039e9,
    compute_units=108,
    l2_bytes=40 * 2**20,
)
A100_PCIE = Gpu(
    name="a100-pcie-80gb",
    generation="ampere",
    peak_flops=A100.peak_flops,
    memory_Bps=1935e9,
    compute_units=108,
    l2_bytes=40 * 2**20,
)
H100 = Gpu(
    name="h100-sxm",
    generation="hopper",
    peak_flops={"fp32": 67e12, "fp16": 989.4e12, "bf16": 989.4e12, "fp8": 1978.9e12},
    memory_Bps=3.35e12,
    compute_units=132,
    l2_bytes=50 * 2**20,
)
