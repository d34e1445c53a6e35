"""Threads, channels and chunks of a call: the thresholds and sizes of NCCL's source, by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from simulator.base.errors import ScenarioError
from simulator.costs.nccl.channels import call_threads, chunk_plan, plan_call
from simulator.costs.nccl.chunks import NvlsLimits
from simulator.costs.nccl.communicator import TuningInput
from simulator.costs.nccl.environment import parse_environment
from simulator.costs.nccl.graph import ChannelGraph, Pattern
from simulator.costs.nccl.version import NcclVersion

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
OLD, NEW = NcclVersion(2, 21, 5), NcclVersion(2, 27, 3)


def communicator(version: NcclVersion = OLD, channels: int = 12, bw: float = 20.0) -> TuningInput:
    def graph(pattern: Pattern, n: int = channels) -> ChannelGraph:
        return ChannelGraph(pattern=pattern, n_channels=n, bw_intra_GBps=bw, bw_inter_GBps=bw)

    return TuningInput(
        version=version,
        n_ranks=8,
        n_nodes=1,
        min_sm=90,
        max_sm=90,
        cpu="x86_intel",
        graphs={
            "ring": graph(Pattern.RING),
            "tree": graph(Pattern.BALANCED_TREE),
            "nvls": graph(Pattern.NVLS, 8),
        },
        nvswitch=True,
    )


def test_all_24_channels_are_used_from_768_kib_on_and_one_below_64_kib() -> None:
    # A thread of Simple takes 64 B: 24 channels · 512 threads · 64 B = 786 432 B.
    inp = communicator()
    full = 24 * 512 * 64
    assert call_threads(inp, "all_reduce", "ring", "Simple", full).n_channels == 24
    assert call_threads(inp, "all_reduce", "ring", "Simple", full - 1).n_channels == 23
    assert call_threads(inp, "all_reduce", "ring", "Simple", 2 * 512 * 64).n_channels == 2
    assert call_threads(inp, "all_reduce", "ring", "Simple", 2 * 512 * 64 - 1).n_channels == 1


def test_threads_are_halved_when_one_channel_is_too_many() -> None:
    inp = communicator()
    # 512 · 64 B = 32 KiB fill one channel; below, threads halve while divisible by 128.
    sizes = {32 * KIB: 512, 32 * KIB - 1: 256, 16 * KIB: 256, 16 * KIB - 1: 128, 8 * KIB - 1: 64}
    for size, threads in sizes.items():
        call = call_threads(inp, "all_reduce", "ring", "Simple", size)
        assert call.threads == max(threads + 32, 96), size
    assert call_threads(inp, "all_reduce", "tree", "Simple", GIB).threads == 512 + 128
    assert call_threads(communicator(NEW), "all_reduce", "tree", "LL", 8).threads == 640


def test_ll_counts_bytes_of_all_ranks_in_a_ring() -> None:
    # Ring LL: 8 B · 8 ranks per thread: 24 · 512 · 64 B as Simple; tree LL: 8 B.
    inp = communicator()
    assert call_threads(inp, "all_reduce", "ring", "LL", 24 * 512 * 64).n_channels == 24
    assert call_threads(inp, "all_reduce", "ring", "LL", 24 * 512 * 64 - 1).n_channels == 23
    assert call_threads(inp, "all_reduce", "tree", "LL", 24 * 512 * 8).n_channels == 24


def test_a_channel_needs_16_kib_of_traffic_since_2_22() -> None:
    # All-reduce moves each byte twice: 8 KiB per channel.  LL128 tree: 640 threads · 8 B.
    size = 24 * 640 * 8  # 122 880 B: enough for 24 channels before
    assert call_threads(communicator(OLD), "all_reduce", "tree", "LL128", size).n_channels == 24
    new = call_threads(communicator(NEW), "all_reduce", "tree", "LL128", size)
    assert new.n_channels == 2 * size // (16 * KIB) == 15
    # LL counts four times: cells of 2 KiB, traffic per channel still 16 KiB.
    few = call_threads(communicator(NEW), "all_reduce", "ring", "LL", 8 * KIB)
    assert few.n_channels == 1


def test_a_pcie_node_has_fewer_threads() -> None:
    inp = communicator(channels=1, bw=12.0)
    assert call_threads(inp, "all_reduce", "ring", "Simple", GIB).threads == 256 + 32
    assert call_threads(inp, "all_reduce", "tree", "Simple", GIB).threads == 512 + 128


def test_nvls_uses_its_channels_for_every_size() -> None:
    for size in (8, GIB):
        call = call_threads(communicator(), "all_reduce", "nvls", "Simple", size)
        assert (call.n_channels, call.threads) == (16, 640)


def test_the_environment_changes_threads_thresholds_and_buffers() -> None:
    def given(**values: object) -> TuningInput:
        return replace(communicator(), environment=parse_environment(values, OLD))

    call = call_threads(given(NCCL_NTHREADS=256), "all_reduce", "ring", "Simple", GIB)
    assert call.threads == 256 + 32
    # Half the threads: all channels from half the size on.
    half = given(NCCL_NTHREADS=256)
    assert call_threads(half, "all_reduce", "ring", "Simple", 24 * 256 * 64).n_channels == 24
    call = call_threads(given(NCCL_LL128_NTHREADS=320), "all_reduce", "ring", "LL128", GIB)
    assert call.threads == 320
    eager = given(NCCL_THREAD_THRESHOLDS="8 8 64 8 8 32")
    assert call_threads(eager, "all_reduce", "ring", "Simple", 24 * 512 * 32).n_channels == 24
    plan = plan_call(given(NCCL_BUFFSIZE=MIB), "all_reduce", "ring", "Simple", GIB)
    assert plan.chunk_bytes == MIB // 2


@pytest.mark.parametrize(
    ("protocol", "chunk", "slices", "slots"),
    [
        # 4 MiB / 8 steps · 4 steps; half of the 64 KiB slot is flags; 600 KiB · 15/16.
        ("Simple", 2 * MIB, 2, 2),
        ("LL", 32 * KIB, 1, 8),
        ("LL128", 614400 // 16 * 15 // 1920 * 1920, 1, 8),
    ],
)
def test_the_chunk_of_a_ring(protocol: str, chunk: int, slices: int, slots: int) -> None:
    plan = chunk_plan("all_reduce", "ring", protocol, 4 * GIB, 8, 1, 24, OLD)
    assert (plan.chunk_bytes, plan.slices, plan.slots) == (chunk, slices, slots)


def test_loops_and_steps_of_a_ring() -> None:
    # 4 GiB over 24 channels and 8 chunks of 2 MiB per loop: 10.7 loops of 2·7 steps.
    plan = chunk_plan("all_reduce", "ring", "Simple", 4 * GIB, 8, 1, 24, OLD)
    assert (plan.n_loops, plan.chunks_per_loop, plan.steps) == (11, 8, 11 * 14)
    left = -(-4 * GIB // 24) - 10 * 16 * MIB
    assert plan.last_chunk_bytes == math.ceil(math.ceil(left / 8) / 16) * 16
    gather = chunk_plan("all_gather", "ring", "Simple", 4 * GIB, 8, 1, 24, OLD)
    assert gather.steps == 11 * 7
    # Less than a loop: the channel's data in equal parts.
    small = chunk_plan("all_reduce", "ring", "Simple", 24 * 8 * KIB, 8, 1, 24, OLD)
    assert (small.n_loops, small.last_chunk_bytes) == (1, KIB)


def test_a_broadcast_is_a_chain_of_single_steps() -> None:
    plan = chunk_plan("broadcast", "ring", "Simple", 64 * MIB, 8, 1, 1, OLD)
    assert (plan.chunk_bytes, plan.slices, plan.chunks_per_loop) == (512 * KIB, 1, 1)
    assert plan.n_loops == 128


def test_tree_simple_chunks_shrink_for_small_calls_before_2_20_only() -> None:
    # depth = 7 + log2 2 = 8.  4 MiB on one channel: 8 chunks of 512 KiB < 64: 256, 128 KiB; then
    # 32 ≥ 32 stays at 128 KiB.
    old = chunk_plan("all_reduce", "tree", "Simple", 4 * MIB, 16, 2, 1, NcclVersion(2, 19, 3))
    assert old.chunk_bytes == 128 * KIB
    tiny = chunk_plan("all_reduce", "tree", "Simple", 64 * KIB, 16, 2, 1, NcclVersion(2, 19, 3))
    assert tiny.chunk_bytes == 32 * KIB
    new = chunk_plan("all_reduce", "tree", "Simple", 64 * KIB, 16, 2, 1, NcclVersion(2, 20, 5))
    assert new.chunk_bytes == 512 * KIB


def test_tree_ll128_chunks_shrink_by_hops() -> None:
    # 16 ranks on 2 nodes: s = 1 + 1 + 0.8 = 2.8; want 2.8·64/8 = 22.4 chunks down to 128 KiB,
    # then 5.6 down to 32 KiB.  1 MiB on one channel: 576 000 → 288 000 → 144 000 → 72 000 (< 128
    # KiB stops) gives 14 chunks ≥ 5.6.
    plan = chunk_plan("all_reduce", "tree", "LL128", MIB, 16, 2, 1, OLD)
    assert plan.chunk_bytes == 72000 // 1920 * 1920


def test_nvls_chunks_shrink_by_what_is_in_flight() -> None:
    # 16 channels · 8 heads · 128 KiB = 16 MiB in flight; 64, 8 and 2 times that are the borders.
    sizes = {2 * GIB: 128, GIB - 1: 64, 64 * MIB - 1: 32, 8 * MIB - 1: 16, 8: 16}
    for size, kib in sizes.items():
        plan = chunk_plan("all_reduce", "nvls", "Simple", size, 8, 1, 16, OLD, n_heads=8)
        assert plan.chunk_bytes == kib * KIB, size
    tree = chunk_plan("all_reduce", "nvls_tree", "Simple", 16 * GIB, 32, 4, 16, OLD, n_heads=8)
    assert tree.chunk_bytes == 64 * KIB
    capped = chunk_plan(
        "all_reduce", "nvls", "Simple", 16 * GIB, 8, 1, 16, OLD, nvls=NvlsLimits(chunk_bytes=32768)
    )
    assert capped.chunk_bytes == 32 * KIB


def test_pat_and_collnet_chunks() -> None:
    gather = chunk_plan("all_gather", "pat", "Simple", 4 * MIB, 16, 16, 1, NEW)
    assert gather.chunk_bytes == 128 * KIB  # 32 · 128 KiB = 4 MiB
    scatter = chunk_plan("reduce_scatter", "pat", "Simple", 4 * MIB, 16, 16, 1, NEW)
    assert scatter.chunk_bytes == 256 * KIB
    direct = chunk_plan("all_reduce", "collnet_direct", "Simple", MIB, 16, 2, 8, NEW, n_heads=8)
    assert direct.chunk_bytes == 32 * KIB
    chain = chunk_plan("all_reduce", "collnet_chain", "Simple", GIB, 16, 2, 8, NEW)
    assert chain.chunk_bytes == 256 * KIB


def test_a_plan_carries_threads_and_never_more_chunks_than_data() -> None:
    inp = communicator()
    for power in range(0, 34):
        size = 1 << power
        for algorithm, protocol in (("ring", "LL"), ("ring", "Simple"), ("tree", "LL128")):
            plan = plan_call(inp, "all_reduce", algorithm, protocol, size)
            moved = plan.n_channels * (
                (plan.n_loops - 1) * plan.chunks_per_loop * plan.chunk_bytes
                + plan.chunks_per_loop * plan.last_chunk_bytes
            )
            assert moved >= size
            assert plan.last_chunk_bytes <= plan.chunk_bytes
            assert plan.threads >= 96


def test_bad_plans_are_refused() -> None:
    with pytest.raises(ScenarioError, match="0 channels"):
        chunk_plan("all_reduce", "ring", "LL", 8, 8, 1, 0, OLD)
    with pytest.raises(ScenarioError, match="unknown protocol 'simple'"):
        chunk_plan("all_reduce", "ring", "simple", 8, 8, 1, 1, OLD)
