"""Limits, order and host bound of kernel times."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.base.errors import ScenarioError
from simulator.compute import ComputeModel, compute_model
from simulator.models.kernels import Gemm, MemoryBound, Sync
from tests.compute.gpus import A100, ALONE, H100

KNOWN = ALONE
MODEL = ComputeModel(A100, constants=ALONE)


def product(m: int, n: int, k: int, **more: object) -> Gemm:
    return Gemm(name="product", phase="forward", m=m, n=n, k=k, **more)


@pytest.mark.parametrize(
    ("gpu", "dtype"), [(A100, "bfloat16"), (H100, "bfloat16"), (H100, "f8e4m3")]
)
def test_a_large_product_runs_at_the_sustained_ceiling(gpu, dtype):
    kernel = product(16384, 16384, 16384)
    share = (
        kernel.flops / ComputeModel(gpu, constants=ALONE).kernel_s(kernel, dtype) / gpu.peak(dtype)
    )
    by_type = KNOWN.gemm_ceiling[gpu.generation]
    ceiling = by_type.get("fp8" if dtype == "f8e4m3" else "bf16", by_type["default"])
    assert 0.95 * ceiling < share <= ceiling


def test_a_tiny_product_costs_its_launch():
    # 2·8³ FLOPs take picoseconds; what is left is launch, ramp and one tile's start.
    least = KNOWN.launch_s + KNOWN.ramp_s
    assert least < MODEL.kernel_s(product(8, 8, 8), "half") < least + 3e-6


def test_a_thin_product_is_bound_by_memory():
    # A vector times a matrix of 16,384² reads the matrix once: 512 MiB over HBM.
    read_s = 2 * 16384**2 / MODEL.memory_Bps
    assert MODEL.kernel_s(product(1, 16384, 16384), "half") == pytest.approx(read_s, rel=0.05)


def test_one_tile_too_many_costs_a_wave():
    # 108 units take 12 x 9 tiles of 256 x 128 in one wave; one row of tiles more needs a second.
    full = MODEL.kernel_s(product(12 * 256, 9 * 128, 8192), "half")
    over = MODEL.kernel_s(product(13 * 256, 9 * 128, 8192), "half")
    assert over / full > 1.25 > 13 / 12


def test_a_group_of_products_fills_the_units_together():
    one = MODEL.kernel_s(product(256, 1024, 4096), "bfloat16")
    eight = MODEL.kernel_s(product(256, 1024, 4096, count=8), "bfloat16")
    assert eight < 6 * one


@given(
    m=st.integers(1, 20000),
    n=st.integers(1, 300).map(lambda lines: 64 * lines),
    k=st.integers(1, 300).map(lambda lines: 64 * lines),
    factor=st.integers(2, 4),
)
def test_no_product_beats_peak_or_bandwidth_and_longer_sums_take_longer(m, n, k, factor):
    kernel = product(m, n, k)
    time_s = MODEL.kernel_s(kernel, "half")
    assert time_s >= kernel.flops / A100.peak("half")
    assert time_s >= 2 * (m * k + k * n + m * n) / A100.memory_Bps
    # Splitting the sum starts at 512 terms, and may save a few microseconds there.
    assert MODEL.kernel_s(product(m, n, k * factor), "half") >= time_s * 0.75


def test_memory_bound_work_runs_at_its_share_of_bandwidth():
    kernel = MemoryBound(name="norm", phase="forward", n_bytes=2e9)
    share = 2e9 / MODEL.kernel_s(kernel, "half") / A100.memory_Bps
    assert share == pytest.approx(KNOWN.memory_efficiency["ampere"], rel=0.01)


def test_small_kernels_wait_for_the_host():
    # 100 empty kernels: the host enqueues one per `host_launch_s`.
    small = [MemoryBound(name="add", phase="forward", n_bytes=1.0)] * 100
    eager = sum(ComputeModel(A100, framework="torch").work_s(small, "half"))
    graph = sum(ComputeModel(A100, constants=ALONE, framework="graph").work_s(small, "half"))
    assert eager == pytest.approx(100 * KNOWN.host_launch_s["torch"])
    assert graph == pytest.approx(100 * (KNOWN.launch_s + KNOWN.ramp_s))


def test_blocking_launches_add_the_host_to_every_kernel():
    large = [product(8192, 8192, 8192)] * 10
    usual, blocked = (sum(ComputeModel(A100, blocking=b).work_s(large, "half")) for b in (0, 1))
    assert blocked - usual == pytest.approx(10 * KNOWN.host_launch_s["megatron"])


def test_large_kernels_hide_the_host_and_syncs_take_no_compute():
    large = product(8192, 8192, 8192)
    sync = Sync(name="sum", phase="forward", axis="tensor", collective="all_reduce", size_bytes=1)
    assert MODEL.work_s([large, sync], "half") == (MODEL.kernel_s(large, "half"), 0.0)


def test_adam_moves_its_states_once():
    # fp16 parameters: gradients read twice (norm, update) at 4 B, master and moments read and
    # written: 2·12 B, parameters written: 2 B; 34 B in all.  SGD has no moments: 18 B.
    host_s = KNOWN.host_step_s["megatron"]
    adam_s, sgd_s = MODEL.optimizer_s(1e10), MODEL.optimizer_s(1e10, kind="sgd")
    assert adam_s - host_s == pytest.approx(34e10 / MODEL.memory_Bps)
    assert sgd_s - host_s == pytest.approx(18e10 / MODEL.memory_Bps)
    assert MODEL.optimizer_s(1e9, kind="none") == 0.0


def test_rows_that_are_no_whole_lines_are_slow():
    # GPT-2's 50,257 words against 50,304: arXiv 2401.14489, section 6.
    ragged = MODEL.kernel_s(product(8192, 50257, 1024), "half")
    padded = MODEL.kernel_s(product(8192, 50304, 1024), "half")
    assert ragged > 1.5 * padded


def test_many_gpus_wait_for_the_slowest():
    kernel = product(8192, 8192, 8192)
    alone = ComputeModel(A100).kernel_s(kernel, "half")
    eight = ComputeModel(A100, ranks=8).kernel_s(kernel, "half")
    many = ComputeModel(A100, ranks=16384).kernel_s(kernel, "half")
    # The largest of 8 normal values is expected 1.42 deviations above their mean.
    assert eight / alone == pytest.approx(1 + 1.42 * KNOWN.gpu_spread, rel=1e-3)
    assert many / alone < 1 + 4.2 * KNOWN.gpu_spread


def test_offload_is_bound_by_the_link_and_by_dram():
    link_Bps = 31.5e9
    assert MODEL.host_copy_s(1e9, link_Bps) > 1e9 / link_Bps
    # ZeRO-Offload, arXiv 2101.06840, table 4: CPU Adam takes a quarter of a second for 1 G
    # parameters on a DGX-2's two Xeons with six DDR4-2666 channels each, 256 GB/s.
    assert 0.1 < MODEL.cpu_optimizer_s(1e9, 256e9) < 0.4


def test_unknown_names_are_errors():
    with pytest.raises(ScenarioError, match="bfloat61"):
        MODEL.kernel_s(product(8, 8, 8), "bfloat61")
    with pytest.raises(ScenarioError, match="element type of a100"):
        MODEL.kernel_s(product(8, 8, 8), "f8e4m3")
    with pytest.raises(ScenarioError, match="framework"):
        ComputeModel(A100, framework="jaxx")
    with pytest.raises(ScenarioError, match="flash9"):
        ComputeModel(A100, attention="flash9")


def test_a_run_is_slower_than_a_benchmark():
    kernel = product(8192, 8192, 8192)
    alone, in_run = MODEL.kernel_s(kernel, "half"), ComputeModel(A100).kernel_s(kernel, "half")
    assert 1.0 < in_run / alone < 1.2


def test_plain_numbers_make_a_model():
    made = compute_model(
        name="x",
        generation="new",
        peak_flops={"fp16": 1e14},
        memory_Bps=1e12,
        attention="flash1",
        constants=ALONE,
    )
    assert made.attention == "flash1"
    kernel = product(8192, 8192, 8192)
    share = kernel.flops / made.kernel_s(kernel, "half") / 1e14
    assert share == pytest.approx(KNOWN.gemm_ceiling["default"]["default"], rel=0.02)
