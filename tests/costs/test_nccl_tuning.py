"""The tuning model reproduces NCCL's formulas: derived numbers, enabling rules, the choice."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest

from simulator.base.errors import ScenarioError
from simulator.costs.nccl.communicator import TuningInput, collective_channels, nvls_channels
from simulator.costs.nccl.environment import parse_environment
from simulator.costs.nccl.graph import ChannelGraph, PathType, Pattern
from simulator.costs.nccl.model import latency_us
from simulator.costs.nccl.tuning import TuningEntry, choose, predict_table
from simulator.costs.nccl.version import NcclVersion

GIB, MIB = 1 << 30, 1 << 20


def graph(
    pattern: Pattern, n: int, intra: float, inter: float | None = None, **more: object
) -> ChannelGraph:
    return ChannelGraph(
        pattern=pattern,
        n_channels=n,
        bw_intra_GBps=intra,
        bw_inter_GBps=intra if inter is None else inter,
        **more,  # type: ignore[arg-type]
    )


def a100(version: str = "2.21.5", nodes: int = 1, **more: object) -> TuningInput:
    bw = (12, 20.0) if nodes == 1 else (8, 24.0)
    return TuningInput(
        version=NcclVersion.parse(version),
        n_ranks=8 * nodes,
        n_nodes=nodes,
        min_sm=80,
        max_sm=80,
        cpu="x86_amd",
        graphs={"ring": graph(Pattern.RING, *bw), "tree": graph(Pattern.BALANCED_TREE, *bw)},
        nvswitch=True,
        **more,  # type: ignore[arg-type]
    )


def h100(version: str = "2.23.4", nodes: int = 1, **more: object) -> TuningInput:
    bw = (12, 30.0) if nodes == 1 else (8, 48.0)
    nvls = graph(Pattern.NVLS, 8, 40.0, 60.0 if nodes == 1 else 48.0)
    return TuningInput(
        version=NcclVersion.parse(version),
        n_ranks=8 * nodes,
        n_nodes=nodes,
        min_sm=90,
        max_sm=90,
        cpu="x86_intel",
        graphs={
            "ring": graph(Pattern.RING, *bw),
            "tree": graph(Pattern.BALANCED_TREE, *bw),
            "nvls": nvls,
        },
        nvswitch=True,
        **more,  # type: ignore[arg-type]
    )


def numbers(entry: TuningEntry) -> tuple[float, float]:
    return round(entry.bandwidth_Bps / 1e9, 1), round(entry.latency_s * 1e6, 1)


def environment(inp: TuningInput, **values: object) -> TuningInput:
    return replace(inp, environment=parse_environment(values, inp.version))


def test_one_a100_node_gives_the_numbers_worked_out_by_hand() -> None:
    # 12 channels × 20 GB/s: bus 240.
    table = predict_table(a100(), "all_reduce", GIB)
    # 240·8/14; 8.4 + 14·3.4
    assert numbers(table["ring", "Simple"]) == (137.1, 56.0)
    # min(87.7, 240/2)·8/14; 6.6 + 14·0.6
    assert numbers(table["ring", "LL"]) == (50.1, 15.0)
    # min(240·0.92, 12·20)·8/14; 14 + 14·1.9
    assert numbers(table["ring", "LL128"]) == (126.2, 40.6)
    # min(220.8, 12·24)/2 and at 1 GiB no correction (2^24 · 64 B is beyond the table)
    assert numbers(table["tree", "Simple"])[0] == 110.4
    # 8.4 + 2·7·4 since 2.23
    newer = predict_table(a100("2.23.4"), "all_reduce", GIB)
    assert numbers(newer["tree", "Simple"]) == (110.4, 64.4)


def test_one_h100_node_gives_the_numbers_worked_out_by_hand() -> None:
    # 12 channels × 30 GB/s: bus 360; 360·8/14; 8.4 + 14·3.4
    table = predict_table(h100(), "all_reduce", GIB)
    assert numbers(table["ring", "Simple"]) == (205.7, 56.0)
    # NVLS 8 channels × min(40, 60) · 5/6; 25 us
    assert numbers(table["nvls", "Simple"]) == (266.7, 25.0)


def test_nvls_of_2_28_counts_efficiency_and_both_directions() -> None:
    # 40·0.85·7/8·2 = 59.5 ≤ 60 per channel; 8 channels; ratio 8/14.
    table = predict_table(h100("2.28.9"), "all_reduce", GIB)
    assert table["nvls", "Simple"].bandwidth_Bps == pytest.approx(59.5e9 * 8 * 8 / 14)
    # all-gather: 40·0.85·7/8·7/8 = 26.03; no ratio.
    gather = predict_table(h100("2.28.9"), "all_gather", GIB)
    assert gather["nvls", "Simple"].bandwidth_Bps == pytest.approx(40e9 * 0.85 * 49 / 64 * 8)


@pytest.mark.parametrize(
    ("version", "factor"), [("2.20.5", 1 / 4), ("2.21.5", 1 / 2), ("2.30.7", 1 / 2)]
)
def test_the_ll_ring_has_half_of_the_bandwidth_since_2_21(version: str, factor: float) -> None:
    # 4 ranks on 2 nodes of 2 channels: 48·factor < 22.5.
    small = replace(
        a100(version, 2),
        n_ranks=4,
        graphs={name: graph(g.pattern, 2, 12.0) for name, g in a100().graphs.items()},
    )
    table = predict_table(small, "all_reduce", GIB)
    assert table["ring", "LL"].bandwidth_Bps == pytest.approx(24e9 * factor * 4 / 6)


def test_ring_latency_over_nodes_counts_network_steps_and_posting() -> None:
    # 2 nodes of 8: 30 steps.  2.21: 2·2 network steps of 2.7, 26 of max(0.6, 2.0 for AMD).
    assert latency_us(a100("2.21.5", 2), "all_reduce", "ring", "LL") == pytest.approx(
        6.6 + 26 * 2.0 + 4 * 2.7
    )
    # 2.23: 2·(2−1) network steps; Intel posts in 1 us; Simple thrice: max(3.4, 3) = 3.4.
    assert latency_us(h100("2.23.4", 2), "all_reduce", "ring", "Simple") == pytest.approx(
        8.4 + 28 * 3.4 + 2 * 14.0
    )
    slow = environment(h100("2.23.4", 2), NCCL_NET_OVERHEAD=2000)
    assert latency_us(slow, "all_reduce", "ring", "Simple") == pytest.approx(
        8.4 + 28 * 6.0 + 2 * 14.0
    )


def test_tree_latency_grows_with_the_logarithm_of_the_nodes() -> None:
    # 2·(7 hops inside + floor(log2 N) outside).
    for nodes, levels in ((1, 0), (2, 1), (4, 2), (7, 2), (8, 3), (64, 6)):
        inp = replace(h100("2.23.4", 2), n_ranks=8 * nodes, n_nodes=nodes)
        expected = 6.8 + 2 * (7 * 0.6 + levels * 5.0)
        assert latency_us(inp, "all_reduce", "tree", "LL") == pytest.approx(expected)


def test_one_gpu_per_node_uses_the_tree_s_network_latency_since_2_23() -> None:
    one = graph(Pattern.RING, 2, 24.0, type_intra=PathType.LOC)
    inp = replace(h100("2.23.4", 2), n_ranks=4, n_nodes=4, graphs={"ring": one, "tree": one})
    # 6 steps, all over the network: 6·5.0 instead of 6·2.7.
    assert latency_us(inp, "all_reduce", "ring", "LL") == pytest.approx(6.6 + 6 * 5.0)


def test_a_plugin_s_latency_counts_twice_for_simple() -> None:
    slow = graph(Pattern.RING, 8, 48.0, latency_inter_us=10.0)
    inp = h100("2.23.4", 2)
    inp = replace(inp, graphs={**inp.graphs, "ring": slow})
    plain = h100("2.23.4", 2)
    for protocol, per_step in (("LL", 10.0), ("Simple", 20.0)):
        more = latency_us(inp, "all_reduce", "ring", protocol) - latency_us(
            plain, "all_reduce", "ring", protocol
        )
        assert more == pytest.approx(2 * per_step)


def test_the_simple_ring_pays_more_latency_on_its_plateau_between_nodes() -> None:
    inp = a100("2.21.5", 2)  # 16 channels × 16 ranks × 64 B = 16 KiB
    below = predict_table(inp, "all_reduce", 16 * 1024 - 1)["ring", "Simple"].latency_s
    above = predict_table(inp, "all_reduce", 16 * 1024)["ring", "Simple"].latency_s
    assert above / below == pytest.approx(1.4)
    gather = [
        predict_table(inp, "all_gather", size)["ring", "Simple"].latency_s for size in (64, GIB)
    ]
    assert gather[0] == gather[1]


def test_trees_are_corrected_by_size() -> None:
    base = predict_table(a100(), "all_reduce", 64 << 24)["tree", "LL"].bandwidth_Bps
    for index, factor in ((0, 1.0), (4, 0.9), (12, 0.4), (22, 1.0)):
        entry = predict_table(a100(), "all_reduce", 64 << index)["tree", "LL"]
        assert entry.bandwidth_Bps == pytest.approx(base * factor), index


def test_pat_is_used_with_one_gpu_per_node_only() -> None:
    one = graph(Pattern.RING, 4, 24.0, type_intra=PathType.LOC)
    inp = replace(h100("2.24.3", 2), n_ranks=16, n_nodes=16, graphs={"ring": one, "tree": one})
    entry = predict_table(inp, "all_gather", MIB)["pat", "Simple"]
    # 4 channels × 24 × 0.75; 8 + log2(16)·14/3.5 + 16·2.8.
    assert entry.available
    assert numbers(entry) == (72.0, 68.8)
    several = predict_table(h100("2.24.3", 2), "all_gather", MIB)["pat", "Simple"]
    assert several.why_not == "PAT is used with one GPU per node"
    older = predict_table(replace(inp, version=NcclVersion(2, 22)), "all_gather", MIB)
    assert older["pat", "Simple"].why_not == "PAT came with NCCL 2.23"


def test_broadcast_and_reduce_have_a_ring_only() -> None:
    for collective in ("broadcast", "reduce"):
        table = predict_table(h100(), collective, MIB)
        assert {a for (a, _), e in table.items() if e.available} == {"ring"}


def test_broadcast_waits_at_every_rank_when_channels_differ() -> None:
    ring = graph(Pattern.RING, 12, 20.0, same_channels=False)
    inp = replace(a100("2.23.4"), graphs={**a100().graphs, "ring": ring})
    assert latency_us(a100("2.23.4"), "broadcast", "ring", "LL") == pytest.approx(6.6 + 0.6)
    assert latency_us(inp, "broadcast", "ring", "LL") == pytest.approx(6.6 + 8 * 0.6)
    assert latency_us(inp, "broadcast", "ring", "Simple") == pytest.approx(8.4 + 8 * 4.0)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"type_intra": PathType.PHB}, "LL128 needs NVLink between GPUs, not PHB"),
        ({"type_intra": PathType.NVB}, None),
    ],
)
def test_ll128_needs_nvlink_inside(change: dict[str, object], reason: str | None) -> None:
    ring = graph(Pattern.RING, 12, 20.0, **change)
    inp = replace(a100(), graphs={**a100().graphs, "ring": ring})
    assert predict_table(inp, "all_reduce", MIB)["ring", "LL128"].why_not == reason


@pytest.mark.parametrize(
    ("version", "sm", "kind", "available"),
    [
        ("2.17.1", 90, PathType.PXN, False),
        ("2.18.5", 90, PathType.PXN, True),
        ("2.18.5", 80, PathType.PXN, False),
        ("2.18.5", 80, PathType.PXB, True),
        ("2.27.3", 90, PathType.P2C, True),
        ("2.27.3", 90, PathType.PXN, False),
        ("2.27.5", 90, PathType.PXN, True),
        ("2.27.5", 90, PathType.PHB, False),
    ],
)
def test_ll128_reaches_nics_as_far_as_the_version_allows(
    version: str, sm: int, kind: PathType, available: bool
) -> None:
    ring = graph(Pattern.RING, 8, 24.0, type_inter=kind)
    inp = replace(a100(version, 2), min_sm=sm, max_sm=sm, graphs={**a100().graphs, "ring": ring})
    assert predict_table(inp, "all_reduce", MIB)["ring", "LL128"].available is available


@pytest.mark.parametrize(
    ("version", "sm", "available"),
    [("2.12.12", 70, True), ("2.12.12", 90, False), ("2.16.5", 90, True), ("2.21.5", 89, False),
     ("2.21.5", 75, False), ("2.23.4", 89, True), ("2.23.4", 60, False)],
)  # fmt: skip
def test_ll128_is_on_for_the_generations_of_the_version(
    version: str, sm: int, available: bool
) -> None:
    inp = replace(a100(version), min_sm=sm, max_sm=sm)
    assert predict_table(inp, "all_reduce", MIB)["ring", "LL128"].available is available


def test_ll128_is_off_for_mixed_generations_until_2_27() -> None:
    mixed = replace(h100("2.26.2"), max_sm=100)
    assert not predict_table(mixed, "all_reduce", MIB)["ring", "LL128"].available
    newer = replace(mixed, version=NcclVersion(2, 27, 3))
    assert predict_table(newer, "all_reduce", MIB)["ring", "LL128"].available


def test_an_explicit_protocol_takes_ll128_where_it_is_off() -> None:
    pcie = graph(Pattern.RING, 1, 12.0, type_intra=PathType.PHB)
    inp = replace(a100(), graphs={"ring": pcie, "tree": pcie})
    assert choose(inp, "all_reduce", GIB).protocol == "Simple"
    assert choose(environment(inp, NCCL_PROTO="LL128"), "all_reduce", GIB).protocol == "LL128"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({}, None),
        ({"nvswitch": False}, "NVLS needs Hopper or newer with NVSwitch multicast"),
        ({"multicast": False}, "NVLS needs Hopper or newer with NVSwitch multicast"),
        ({"min_sm": 80}, "NVLS needs Hopper or newer with NVSwitch multicast"),
        ({"n_ranks": 2}, "NVLS needs more than two GPUs per NVLink domain"),
        ({"version": NcclVersion(2, 16, 5)}, "nvls came with NCCL 2.17"),
        ({"n_nodes": 2}, "NVLS over nodes needs CollNet"),
    ],
)
def test_nvls_needs_its_hardware(change: dict[str, object], reason: str | None) -> None:
    inp = replace(h100(), **change)  # type: ignore[arg-type]
    assert predict_table(inp, "all_reduce", MIB)["nvls", "Simple"].why_not == reason


def test_nvls_does_not_reduce_every_type() -> None:
    assert choose(h100(), "all_reduce", GIB, datatype="bfloat16").algorithm == "nvls"
    assert choose(h100(), "all_reduce", GIB, datatype="float8_e4m3fn").algorithm != "nvls"
    assert choose(h100(), "all_reduce", GIB, datatype="float32", reduction="max").algorithm != (
        "nvls"
    )
    gather = predict_table(h100(), "all_gather", GIB, datatype="int8")
    assert gather["nvls", "Simple"].available


def test_long_rings_of_eight_bit_floats_are_avoided_since_2_24() -> None:
    for version, factor in (("2.23.4", 1), ("2.24.3", 1024)):
        inp = h100(version, 2)
        plain = predict_table(inp, "all_reduce", GIB)["ring", "Simple"].time_s
        eight = predict_table(inp, "all_reduce", GIB, datatype="float8_e5m2")["ring", "Simple"]
        assert eight.time_s == pytest.approx(plain * factor)


def test_collnet_needs_its_plugin_and_nodes() -> None:
    chain = graph(Pattern.TREE, 8, 24.0)
    inp = a100("2.21.5", 2)
    inp = replace(inp, graphs={**inp.graphs, "collnet_chain": chain}, collnet=True)
    off = predict_table(inp, "all_reduce", GIB)
    assert "NCCL_COLLNET_ENABLE" in str(off["collnet_chain", "Simple"].why_not)
    on = predict_table(environment(inp, NCCL_COLLNET_ENABLE=1), "all_reduce", GIB)
    assert on["collnet_chain", "Simple"].available
    assert on["collnet_direct", "Simple"].available
    # 8 channels × 24 GB/s / 2; GPU/NIC ratio 1.
    assert numbers(on["collnet_direct", "Simple"])[0] == 96.0
    many = environment(inp, NCCL_COLLNET_ENABLE=1, NCCL_COLLNET_NODE_THRESHOLD=3)
    assert "NODE_THRESHOLD" in str(
        predict_table(many, "all_reduce", GIB)["collnet_chain", "Simple"].why_not
    )


def test_the_environment_restricts_the_choice() -> None:
    inp = h100()
    assert choose(inp, "all_reduce", GIB).algorithm == "nvls"
    assert choose(environment(inp, NCCL_ALGO="Ring"), "all_reduce", GIB).algorithm == "ring"
    assert choose(environment(inp, NCCL_ALGO="^NVLS"), "all_reduce", GIB).algorithm != "nvls"
    assert choose(environment(inp, NCCL_NVLS_ENABLE=0), "all_reduce", GIB).algorithm != "nvls"
    both = environment(inp, NCCL_ALGO="tree", NCCL_PROTO="ll")
    assert (
        choose(both, "all_reduce", GIB).entry == predict_table(inp, "all_reduce", GIB)["tree", "LL"]
    )


def test_lists_per_function_came_with_2_24() -> None:
    inp = environment(h100("2.24.3"), NCCL_ALGO="allreduce:tree;allgather:ring")
    assert choose(inp, "all_reduce", GIB).algorithm == "tree"
    assert choose(inp, "all_gather", GIB).algorithm == "ring"
    # A function that is not listed keeps its choice.
    free = choose(h100("2.24.3"), "reduce_scatter", GIB)
    assert choose(inp, "reduce_scatter", GIB) == free


def test_an_impossible_choice_falls_back_to_a_ring_before_2_24_and_stops_since() -> None:
    old = environment(a100("2.21.5"), NCCL_ALGO="NVLSTree")
    assert choose(old, "all_reduce", GIB).algorithm == "ring"
    new = environment(a100("2.24.3"), NCCL_ALGO="NVLSTree")
    with pytest.raises(ScenarioError, match="no algorithm and protocol is left"):
        choose(new, "all_reduce", GIB)


def test_bad_calls_are_refused() -> None:
    with pytest.raises(ScenarioError, match="all_to_all"):
        choose(a100(), "all_to_all", 8)
    with pytest.raises(ScenarioError, match="negative"):
        predict_table(a100(), "all_reduce", -1)
    with pytest.raises(ScenarioError, match="unknown CPU"):
        replace(a100(), cpu="sparc")
    with pytest.raises(ScenarioError, match="ring and a tree"):
        replace(a100(), graphs={})
    with pytest.raises(ScenarioError, match="3 ranks on 4 nodes"):
        replace(a100(), n_ranks=3, n_nodes=4)


def test_one_rank_needs_no_table() -> None:
    alone = replace(a100(), n_ranks=1, graphs={})
    assert choose(alone, "all_reduce", GIB).entry.time_s == 0.0
    assert alone.channels == 1


VERSIONS = ["2.12.12", "2.14.3", "2.16.5", "2.17.1", "2.18.5", "2.19.3", "2.20.5", "2.21.5",
            "2.23.4", "2.25.1", "2.27.3", "2.28.9", "2.29.7", "2.30.7"]  # fmt: skip


@pytest.mark.parametrize("version", VERSIONS)
def test_expected_times_grow_with_size_and_shrink_with_bandwidth(version: str) -> None:
    for inp, collective in itertools.product(
        (a100(version), h100(version), h100(version, 2), a100(version, 4)),
        ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce"),
    ):
        times = [choose(inp, collective, 1 << power).entry.time_s for power in range(3, 35)]
        assert all(math.isfinite(t) and t > 0 for t in times)
        # A tree's correction jumps by up to 14 % at a power of two; nothing else falls.
        assert all(b >= 0.99 * a for a, b in itertools.pairwise(times)), (version, collective)
        fast = {
            name: replace(g, bw_intra_GBps=2 * g.bw_intra_GBps, bw_inter_GBps=2 * g.bw_inter_GBps)
            for name, g in inp.graphs.items()
        }
        faster = choose(replace(inp, graphs=fast), collective, GIB).entry.time_s
        assert faster <= times[27]


@pytest.mark.parametrize("version", VERSIONS)
def test_small_calls_take_low_latency_protocols_and_large_ones_simple(version: str) -> None:
    for inp in (a100(version), a100(version, 4)):
        assert choose(inp, "all_reduce", 1024).protocol in ("LL", "LL128")
        assert choose(inp, "all_reduce", 16 * GIB).protocol == "Simple"


def test_channels_are_doubled_and_limited() -> None:
    assert collective_channels(a100()) == 24
    assert collective_channels(h100()) == 24
    # The published logs of 2 nodes with 8 NICs: "16 coll channels".
    assert collective_channels(h100(nodes=2)) == 16
    # Fewer than 8 ranks per node on SM90: four compute channels per search channel.
    few = {n: graph(g.pattern, 4, 48.0) for n, g in h100().graphs.items()}
    assert collective_channels(replace(h100(nodes=2), graphs=few)) == 16
    limited = environment(a100(), NCCL_MAX_NCHANNELS=4)
    assert collective_channels(limited) == 4
    raised = environment(a100(), NCCL_MIN_NCHANNELS=30)
    assert collective_channels(raised) == 30
    # Both: the first four are kept, then repeated.
    both = environment(a100(), NCCL_MIN_NCHANNELS=8, NCCL_MAX_NCHANNELS=4)
    assert collective_channels(both) == 8


def test_nvls_has_its_own_channels() -> None:
    assert nvls_channels(h100()) == 16
    b200 = replace(h100("2.27.3"), min_sm=100, max_sm=100)
    assert nvls_channels(b200) == 24
    assert nvls_channels(replace(b200, n_ranks=16, n_nodes=2)) == 32
    assert nvls_channels(environment(h100(), NCCL_MAX_NCHANNELS=8)) == 8
