"""The whole chain against closed forms, laws that hold for any run, and reruns."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
import yaml

import simulator
from simulator.base.errors import CollsimError
from simulator.collectives.registry import collectives
from simulator.compose.run import run_resolved
from simulator.results.model import RunResult
from simulator.scenario.resolve import from_words, loads

# Zero-byte messages among others: their rate is 0 · inf before it is put aside.

# -- closed forms ------------------------------------------------------------------------------
#
# A star: n GPUs, each with a link of B to one NVSwitch; a hop takes L, so α = 2L.  With profile
# `ideal` nothing else costs anything.

B = 10e9
ALPHA = 2e-6


def star(n: int, collective: str, **more: Any) -> RunResult:
    """Simulate a collective on n GPUs around a switch."""
    link = {"a": "gpu*", "b": "switch", "kind": "nvlink", "bandwidth": "10 GB/s", "latency": "1 us"}
    template = {
        "name": "box",
        "vertices": [
            {"name": "gpu", "kind": "gpu", "count": n},
            {"name": "switch", "kind": "nvswitch"},
        ],
        "links": [link],
    }
    scenario = {
        "schema_version": 1,
        "topology": {"templates": [template], "repeat": [{"template": "box"}]},
        "collective": yaml.safe_load(collective),
        "costs": "ideal",
        **more,
    }
    return run_resolved(loads(yaml.safe_dump(scenario, sort_keys=False)).variants[0])


def time_s(n: int, collective: str, **more: Any) -> float:
    (row,) = star(n, collective, **more).rows
    return row.time_s


@pytest.mark.parametrize("level", ["steps", "folded"])
@pytest.mark.parametrize("n", [2, 3, 4, 7, 16])
def test_ring_all_reduce(n: int, level: str):
    # 2(n−1) steps of α + S/(n·B).
    size = n * 840_000
    found = time_s(
        n, f"{{op: all_reduce, algorithm: ring, size: {size} B}}", engine={"level": level}
    )
    assert found == pytest.approx(2 * (n - 1) * (ALPHA + size / n / B))


@pytest.mark.parametrize("op", ["all_gather", "reduce_scatter"])
def test_half_a_ring(op: str):
    # n−1 steps; S is the whole buffer.
    found = time_s(6, f"{{op: {op}, algorithm: ring, size: 6 MB}}")
    assert found == pytest.approx(5 * (ALPHA + 1e6 / B))


def test_recursive_doubling_all_gather():
    # log2(8) steps with 1, 2 and 4 eighths of the data.
    found = time_s(8, "{op: all_gather, algorithm: recursive_doubling, size: 8 MB}")
    assert found == pytest.approx(3 * ALPHA + 7e6 / B)


def test_halving_doubling_all_reduce():
    # Rabenseifner: 2·log2(n) steps, 2(n−1)/n·S bytes.
    found = time_s(8, "{op: all_reduce, algorithm: halving_doubling, size: 8 MB}")
    assert found == pytest.approx(6 * ALPHA + 2 * 7e6 / B)


@pytest.mark.parametrize("level", ["steps", "folded"])
@pytest.mark.parametrize("n", range(2, 18))
def test_halving_and_doubling_in_any_world(n: int, level: str):
    # Thakur, Rabenseifner, Gropp 2005: p = 2^q <= n take part; the others' fold-in and fold-out
    # are two steps of the whole buffer more.
    q = n.bit_length() - 1
    p, size = 2**q, 16 * 10**6
    fold = 2 * (ALPHA + size / B) if n > p else 0.0
    engine = {"level": level}
    found = time_s(
        n, f"{{op: all_reduce, algorithm: halving_doubling, size: {size} B}}", engine=engine
    )
    assert found == pytest.approx(2 * q * ALPHA + 2 * (1 - 1 / p) * size / B + fold)
    found = time_s(
        n, f"{{op: all_reduce, algorithm: recursive_doubling, size: {size} B}}", engine=engine
    )
    assert found == pytest.approx(q * (ALPHA + size / B) + fold)


def test_binomial_broadcast():
    # log2(8) rounds of the whole buffer.
    found = time_s(8, "{op: broadcast, algorithm: binomial, size: 1 MB, root: 3}")
    assert found == pytest.approx(3 * (ALPHA + 1e6 / B))


def test_naive_all_reduce_shares_the_root_s_link():
    # All send to the root at once: its link carries (n−1)·S; then it sends as much.
    found = time_s(5, "{op: all_reduce, algorithm: naive, size: 1 MB}")
    assert found == pytest.approx(2 * (ALPHA + 4e6 / B))


def test_gather_shares_the_root_s_link():
    found = time_s(5, "{op: gather, algorithm: direct, size: 5 MB, root: 2}")
    assert found == pytest.approx(ALPHA + 4e6 / B)


def test_send_recv_is_one_message():
    # Every rank sends S to the next one, all at once, on links of their own.
    assert time_s(4, "{op: send_recv, size: 1 MB}") == pytest.approx(ALPHA + 1e6 / B)


def test_barrier_is_latency_only():
    # Dissemination: ceil(log2 n) rounds.
    assert time_s(5, "{op: barrier, algorithm: dissemination}") == pytest.approx(3 * ALPHA)


def test_all_to_all_fills_every_link():
    # n−1 of n parts leave each rank.
    found = time_s(4, "{op: all_to_all, algorithm: pairwise, size: 4 MB}")
    # Pairwise in n−1 steps, or all at once: between one latency and n−1.
    assert found * (1 + 1e-12) >= 3e6 / B + ALPHA
    assert found <= (3e6 / B + 3 * ALPHA) * (1 + 1e-12)


def test_two_flows_share_a_link():
    # Two jobs send to the same GPU: each gets half of its link, and ends when both do.
    jobs = """
- {name: a, ranks: "0,2", collective: {op: gather, size: 2 MB, root: 1, algorithm: direct}}
- {name: b, ranks: "1,2", collective: {op: gather, size: 2 MB, root: 1, algorithm: direct}}
"""
    scenario = yaml.safe_load(jobs)
    link = {"a": "gpu*", "b": "switch", "kind": "nvlink", "bandwidth": "10 GB/s", "latency": "1 us"}
    template = {
        "name": "box",
        "vertices": [
            {"name": "gpu", "kind": "gpu", "count": 3},
            {"name": "switch", "kind": "nvswitch"},
        ],
        "links": [link],
    }
    whole = {
        "schema_version": 1,
        "topology": {"templates": [template], "repeat": [{"template": "box"}]},
        "jobs": scenario,
        "costs": "ideal",
    }
    result = run_resolved(loads(yaml.safe_dump(whole, sort_keys=False)).variants[0])
    assert [row.time_s for row in result.rows] == pytest.approx([ALPHA + 2e6 / B] * 2)
    # Alone each takes half as long on the wire.
    whole["jobs"] = scenario[:1]
    (row,) = run_resolved(loads(yaml.safe_dump(whole, sort_keys=False)).variants[0]).rows
    assert row.time_s == pytest.approx(ALPHA + 1e6 / B)


@pytest.mark.parametrize("level", ["steps", "folded"])
def test_a_slow_link_slows_the_whole_ring(level: str):
    # Every step waits for the link at a quarter of its rate.
    found = time_s(
        4,
        "{op: all_reduce, algorithm: ring, size: 4 MB}",
        perturb={"links": [{"link": "node0.gpu2->*", "factor": 0.25}]},
        engine={"level": level},
    )
    slow, fast = 1e6 / (B / 4) + ALPHA, 1e6 / B + ALPHA
    assert found <= 6 * slow * (1 + 1e-9)
    assert found >= 6 * 1e6 / (B / 4)
    assert found > 6 * fast


def test_a_late_rank_delays_everybody_by_as_much():
    base = star(4, "{op: all_reduce, algorithm: ring, size: 4 MB}")
    late = star(
        4,
        "{op: all_reduce, algorithm: ring, size: 4 MB}",
        perturb={"late": [{"ranks": 1, "by": "5 ms"}]},
    )
    assert base.ranks is not None
    assert late.ranks is not None
    assert max(late.ranks.end_s) == pytest.approx(max(base.ranks.end_s) + 5e-3)
    assert late.ranks.call_s == pytest.approx((0, 5e-3, 0, 0))
    # The others wait for it, and it waits for nobody.
    assert late.ranks.wait_s[0] == pytest.approx(base.ranks.wait_s[0] + 5e-3, abs=6 * ALPHA)
    assert late.ranks.wait_s[1] < 1e-3


def test_constants_of_the_profile_show_in_a_call():
    constants = {
        "launch.time": "8 us",
        "paths.nvlink.Simple": "3 us",
        "links.nvlink.efficiency": "80 %",
    }
    found = time_s(
        4,
        "{op: all_reduce, algorithm: ring, size: 4 MB}",
        costs={"profile": "ideal", "overrides": constants},
    )
    assert found == pytest.approx(8e-6 + 6 * (3e-6 + ALPHA + 1e6 / (0.8 * B)))


def test_an_own_topology_needs_no_cpu():
    assert time_s(4, "{op: all_reduce, size: 4 MB}", costs="nccl") > 6 * 1e6 / B


# -- rows --------------------------------------------------------------------------------------


def test_bandwidths_are_nccl_tests_s():
    (row,) = star(4, "{op: all_reduce, algorithm: ring, size: 4 MB}").rows
    assert row.algbw_Bps == pytest.approx(4e6 / row.time_s)
    assert row.busbw_Bps == pytest.approx(row.algbw_Bps * 2 * 3 / 4)
    assert (row.count, row.dtype, row.redop, row.root) == (1_000_000, "float", "sum", -1)
    (row,) = star(4, "{op: all_gather, size: 4 MB, dtype: half}").rows
    # all_gather's count is that of one rank's part (nccl-tests).
    assert (row.count, row.dtype, row.redop) == (500_000, "half", "none")
    (row,) = star(4, "{op: broadcast, size: 4 MB, root: 2}").rows
    assert row.root == 2


def test_links_and_ranks_add_up():
    result = star(4, "{op: all_reduce, algorithm: ring, size: 4 MB}")
    assert result.ranks is not None
    # Each of the 8 directed links carries 6 chunks of 1 MB.
    assert [link.wire_bytes for link in result.links] == pytest.approx([6e6] * 8)
    assert len(result.ranks) == 4
    (row,) = result.rows
    for link in result.links:
        assert link.utilisation == pytest.approx(6e6 / B / row.time_s)
    for call, end, transfer, wait in zip(
        result.ranks.call_s,
        result.ranks.end_s,
        result.ranks.transfer_s,
        result.ranks.wait_s,
        strict=True,
    ):
        assert end - call == pytest.approx(transfer + wait)
        assert transfer == pytest.approx(6e6 / B)


def test_record_keeps_every_message():
    text = {
        "node": "4xH100",
        "collective.op": "all_reduce",
        "collective.sizes": "1M",
        "collective.algorithm": "ring",
        "collective.channels": "2",
        "costs.profile": "ideal",
    }
    resolved = from_words(text).variants[0]
    assert run_resolved(resolved).trace == ()
    result = run_resolved(resolved, record=True)
    sends = [event for event in result.trace if event.kind == "transfer"]
    assert len(sends) == 4 * 6 * 2
    assert sum(event.args["bytes"] for event in sends) == pytest.approx(4 * 2 * 3 / 4 * 2**20)
    calls = [event for event in result.trace if event.kind == "collective"]
    assert len(calls) == 4
    assert {event.name.split("_")[0] for event in calls} == {"ncclDevKernel"}
    # Two hops a message.
    assert len(result.link_trace) == 2 * len(sends)


# -- laws --------------------------------------------------------------------------------------

CLUSTERS = {
    "8 H100": {"node": "dgx-h100"},
    "2 x 3 H100": {"node": "dgx-h100", "nodes": "2", "gpus_per_node": "3"},
    "PCIe": {"node": "pcie-l40s-4"},
    "mesh": {"node": "dgx-1-v100"},
}


@cache
def swept(where: str, op: str, profile: str) -> RunResult:
    words = {**CLUSTERS[where], "collective.op": op, "costs.profile": profile}
    if op == "all_to_allv":
        n = {"8 H100": 8, "2 x 3 H100": 6, "PCIe": 4, "mesh": 8}[where]
        counts = [[f"{(i * 3 + j) % 5} MiB" for j in range(n)] for i in range(n)]
        scenario = {
            "schema_version": 1,
            "node": words["node"],
            "costs": profile,
            "collective": {"op": op, "counts": counts},
        }
        if where == "2 x 3 H100":
            scenario |= {"nodes": 2, "gpus_per_node": 3}
        return run_resolved(loads(yaml.safe_dump(scenario)).variants[0])
    if op != "barrier":
        words["collective.sizes"] = "[4, 4096, 1M, 64M]"
    return run_resolved(from_words(words).variants[0])


@pytest.mark.parametrize("where", CLUSTERS)
@pytest.mark.parametrize("op", collectives())
@pytest.mark.parametrize("profile", ["ideal", "nccl"])
def test_every_collective_everywhere(where: str, op: str, profile: str):
    result = swept(where, op, profile)
    assert result.rows
    for row in result.rows:
        assert row.time_s > 0
        assert row.collective == op
        if row.percent_of_bound is not None:
            assert 0 < row.percent_of_bound <= 100 + 1e-6
        assert row.binding_kind == "" or row.binding_link
    times = [row.time_s for row in result.rows]
    assert times == sorted(times), "a larger call is never faster alone, whatever is chosen for it"
    assert all(0 <= link.utilisation <= 1 + 1e-9 for link in result.links)


@pytest.mark.parametrize("op", [op for op in collectives() if op != "all_to_allv"])
def test_a_world_of_one(op: str):
    words = {"node": "dgx-h100", "gpus_per_node": "1", "collective.op": op}
    if op != "barrier":
        words["collective.sizes"] = "[4, 1G]"
    result = run_resolved(from_words(words).variants[0])
    for row in result.rows:
        assert row.world_size == 1
        assert row.bound_s is None
        # A launch, and a copy of the buffer: read and written once at 3.35 TB/s.
        copied = 2 * row.size_bytes / 3.35e12
        assert 1e-6 < row.time_s - copied < 50e-6
    if op in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all"):
        assert {row.busbw_Bps for row in result.rows} == {0.0}


@pytest.mark.parametrize("op", [op for op in collectives() if op not in ("all_to_allv", "barrier")])
def test_sizes_below_the_number_of_ranks(op: str):
    # 1 and 3 bytes of 8 ranks: some have nothing to send.
    words = {
        "node": "dgx-h100",
        "collective.op": op,
        "collective.dtype": "uint8",
        "collective.sizes": "[1, 3]",
    }
    for row in run_resolved(from_words(words).variants[0]).rows:
        assert 0 < row.time_s < 1e-3


# -- the same again ----------------------------------------------------------------------------

NOISY = """
schema_version: 1
node: dgx-h100
nodes: 2
gpus_per_node: 4
seed: 7
collective: {op: all_reduce, sizes: [1 MiB, 16 MiB], algorithm: ring}
perturb:
  skew: 20 us
  jitter: {sigma: 10 %, latency: 1 us}
  late: [{ranks: 3, by: 50 us}]
  links: [{link: "node1.nic0<->*", factor: 0.5}]
"""


def test_the_same_seed_gives_the_same_result():
    first, second = (run_resolved(loads(NOISY).variants[0]) for _ in range(2))
    assert first == second


def test_another_seed_gives_another():
    times = {
        run_resolved(loads(NOISY, overrides=[f"seed={seed}"]).variants[0]).rows[0].time_s
        for seed in (1, 2, 3)
    }
    assert len(times) == 3


@pytest.mark.parametrize(
    "text",
    [
        NOISY,
        "node: dgx-a100\ncollective: {op: all_to_all, size: 1 MiB}",
        "node: 4xH100\n"
        "generator: {zero: {stage: 3, parameters: 1e6, layers: 2, forward: 1 ms, backward: 2 ms}}",
        "node: 4xH100\n"
        "jobs: [{name: a, ranks: 0-1, collective: {op: barrier}}, "
        "{name: b, ranks: 2-3, collective: {op: all_gather, size: 1 MiB}}]",
        "node: dgx-h100\nnodes: 4\n"
        "fabric: {kind: leaf_spine, nics_per_leaf: 16, oversubscription: 2}\n"
        "collective: {op: all_reduce, size: 1 MiB, ranks: '0-3,8-11,31'}",
    ],
    ids=["noisy", "plain", "zero", "jobs", "ranks"],
)
def test_a_result_can_be_made_again_from_its_own_record(text: str):
    version = "" if text.lstrip().startswith("schema") else "schema_version: 1\n"
    result = run_resolved(loads(version + text).variants[0])
    record = dict(result.provenance.scenario)
    assert result.provenance.version == simulator.__version__
    again = run_resolved(loads(yaml.safe_dump(record, sort_keys=False)).variants[0])
    assert again.rows == result.rows
    assert again.links == result.links
    assert again.ranks == result.ranks


# -- refusals ----------------------------------------------------------------------------------


def refused(text: str) -> CollsimError:
    with pytest.raises(CollsimError) as found:
        run_resolved(loads(text, name="a.yaml").variants[0])
    return found.value


def test_what_cannot_be_built_names_its_line():
    error = refused(
        "schema_version: 1\nnode: dgx-h100\nnodes: 2\n"
        "fabric: {kind: leaf_spine, radix: 4}\ncollective: {op: all_reduce, size: 1 MiB}\n"
    )
    assert error.exit_code == 2
    assert str(error).startswith("a.yaml:4: fabric")


NAMED = "schema_version: 1\nnode: {}\ncollective: {{op: all_reduce, size: 1 MiB, algorithm: {}}}"


def test_an_algorithm_that_the_hardware_cannot_do_says_what_it_needs():
    assert "NVSwitch" in str(refused(NAMED.format("pcie-l40s-4", "nvls")))


def test_an_algorithm_that_the_group_cannot_do_says_what_can():
    assert "two nodes or more" in str(refused(NAMED.format("dgx-h100", "nvls_tree")))


def test_a_link_that_is_cut_is_an_error_that_names_it():
    error = refused(
        "schema_version: 1\nnode: dgx-h100\nnodes: 2\ngpus_per_node: 1\n"
        "collective: {op: all_reduce, size: 1 GiB, algorithm: ring}\n"
        "perturb: {links: [{link: 'node0.nic*<->*', down: true, at: 1 ms}]}\n"
    )
    assert error.exit_code == 1
    assert "node0" in str(error)


def test_an_unknown_link_is_refused_with_the_nearest():
    error = refused(
        "schema_version: 1\nnode: dgx-h100\ncollective: {op: all_reduce, size: 1 MiB}\n"
        "perturb: {links: [{link: 'node0.gpu9->node0.nvswitch0', factor: 0.5}]}\n"
    )
    assert error.exit_code == 2
    assert "node0.gpu9" in str(error)


def test_numbers_in_results_are_python_s():
    result = star(4, "{op: all_reduce, size: 4 MB}")
    (row,) = result.rows
    for name in ("time_s", "algbw_Bps", "busbw_Bps", "bound_s"):
        assert type(getattr(row, name)) is float
    for link in result.links:
        assert type(link.wire_bytes) is float
        assert type(link.utilisation) is float
    assert not any(isinstance(value, np.generic) for value in (row.size_bytes, row.count))
