"""The bandwidth lower bound: derived by hand, and never beaten by anything registered."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from simulator.base.errors import ScheduleError
from simulator.collectives.bounds import crossing_bytes
from simulator.collectives.call import Call
from simulator.collectives.registry import algorithms, collectives
from simulator.compose.bound import bound_s
from simulator.compose.build import build_fabric
from simulator.compose.cluster import Choice, Cluster
from simulator.compose.run import run_resolved
from simulator.costs.profile import load_profile
from simulator.engine.simulate import simulate
from simulator.engine.traffic import Program, Start
from simulator.fabric.routing import Router
from simulator.scenario.resolve import from_words, loads
from tests.compose.clusters import WORDS, cluster

S = 1_000_000
NDR = 50e9
PORT = 450e9
"""NVLink of an H100: GPUs of a node use nothing else among them."""
PCIE = 32e9 / 8 * 16 * 128 / 130
"""PCIe 5.0 x16 of an H100, which carries to the NICs."""
RACK_PORT = 900e9
"""NVLink of a GB200."""
A100 = 300e9


def bound(name: str, op: str, *, root: int = 0, counts=None) -> float:
    made = cluster(name)
    size_bytes = S
    if counts is not None:
        total = int(np.sum(counts))
        size_bytes = total // made.n_gpus if np.ndim(counts) == 2 else total
    call = Call(
        collective=op,
        world_size=made.n_gpus,
        size_bytes=size_bytes,
        root=root,
        counts_bytes=None if counts is None else np.asarray(counts, dtype=np.int64),
    )
    return bound_s(made, call, np.arange(made.n_gpus))


@pytest.mark.parametrize(
    ("op", "expected"),
    [
        # NVSwitches of Hopper can add up: S leaves each rank and the sum enters it.
        ("all_reduce", S / PORT),
        # A rank must get the 7/8 of the result that it does not hold.
        ("all_gather", 7 / 8 * S / PORT),
        ("reduce_scatter", 7 / 8 * S / PORT),
        # Each rank sends S/8 to each other.
        ("all_to_all", 7 / 8 * S / PORT),
        # All of it leaves the root, or enters it.
        ("broadcast", S / PORT),
        ("reduce", S / PORT),
        ("gather", 7 / 8 * S / PORT),
        ("scatter", 7 / 8 * S / PORT),
        ("send_recv", S / PORT),
    ],
)
def test_one_node(op: str, expected: float):
    assert bound("dgx-h100", op) == pytest.approx(expected)


def test_a_root_elsewhere_changes_nothing_on_equal_ranks():
    for op in ("broadcast", "reduce", "gather", "scatter"):
        assert bound("dgx-h100", op, root=5) == pytest.approx(bound("dgx-h100", op))
        assert bound("2 x dgx-h100", op, root=13) == pytest.approx(bound("2 x dgx-h100", op))


@pytest.mark.parametrize(
    ("op", "expected"),
    [
        # InfiniBand switches can add up: S leaves each node over its 8 NICs.
        ("all_reduce", S / (8 * NDR)),
        # Half of the data must cross to the other node; a GPU also has NVLink.
        ("all_gather", max(S / 2 / (8 * NDR), 15 / 16 * S / (PORT + PCIE))),
        # Each of 8 ranks sends S/16 to each of 8 others through 8 NICs.
        ("all_to_all", 8 * 8 * S / 16 / (8 * NDR)),
        ("broadcast", S / (8 * NDR)),
    ],
)
def test_two_nodes(op: str, expected: float):
    assert bound("2 x dgx-h100", op) == pytest.approx(expected)


def test_the_node_s_cut_binds_where_nics_are_few():
    # Perlmutter: 4 NICs of 25 GB/s a node, whose switches do not add up (Patarasuk and Yuan
    # 2009): all_reduce of two nodes: 2·(2−1)·S over 8 NICs.
    assert bound("2 x perlmutter", "all_reduce") == pytest.approx(2 * S / (8 * 25e9))
    # all_to_all: 4 ranks of each node send S/8 to each of 4 others.
    assert bound("2 x perlmutter", "all_to_all") == pytest.approx(4 * 4 * S / 8 / (4 * 25e9))


def test_a_rack_is_one_party():
    # Two trays of one NVL72 rack reach each other over NVLink; their NICs bind nothing.
    assert bound("2 x gb200-nvl72", "all_reduce") == pytest.approx(S / RACK_PORT)


def test_switches_that_do_not_add_up_leave_the_exchange():
    # NVSwitches of Ampere only pass on: 8 ranks together send 2·7·S over 8 ports (Patarasuk and
    # Yuan 2009, theorem 1).
    assert bound("dgx-a100", "all_reduce") == pytest.approx(2 * 7 / 8 * S / A100)
    # Without NVLink all that leaves a GPU is PCIe 4.0 x16.
    pcie = PCIE / 2
    assert bound("pcie-l40s-4", "all_reduce") == pytest.approx(2 * 3 / 4 * S / pcie)


def test_a_mesh_with_gaps_counts_its_pcie_too():
    # DGX-1: some pairs have no NVLink between them and use PCIe 3.0 x16, beside 6 NVLinks.
    port = 6 * 25e9 + 8e9 / 8 * 16 * 128 / 130
    assert bound("dgx-1-v100", "all_to_all") == pytest.approx(7 / 8 * S / port)


def test_nics_that_the_group_cannot_reach_do_not_count():
    # One GPU of each of four nodes: its PCIe leads to all NICs, the other GPUs' PCIe does not.
    assert bound("4 x 1 of dgx-h100", "all_to_all") == pytest.approx(3 / 4 * S / PCIE)


def test_an_oversubscribed_leaf_binds():
    # Four nodes of two GPUs; a leaf takes the 8 NICs of one node and has uplinks for two: six of
    # the eight ranks' parts must come in through them.
    nic = 25e9
    uplinks = 8 * nic / 4
    assert bound("oversubscribed", "all_gather") == pytest.approx(6 / 8 * S / uplinks)
    # An all_reduce needs S in and S out of each leaf at least, and on InfiniBand no more.
    assert bound("oversubscribed", "all_reduce") == pytest.approx(S / uplinks)


def test_the_halves_of_a_ring_of_switches_bind():
    # Four switches in a ring, a box with one GPU and one NIC at each: two of the ring's links
    # join the halves, and each half misses half of S.
    made = loads(RING_OF_SWITCHES).variants[0]
    fabric = build_fabric(made)
    ring = Cluster(fabric, Router(fabric, made.routing), load_profile("ideal"))
    call = Call(collective="all_gather", world_size=4, size_bytes=S)
    assert bound_s(ring, call, np.arange(4)) == pytest.approx(S / 2 / (2 * 1e9))


RING_OF_SWITCHES = """
schema_version: 1
topology:
  templates:
  - name: box
    vertices: [{name: gpu, kind: gpu}, {name: nic, kind: nic}]
    links: [{a: gpu, b: nic, kind: pcie, bandwidth: 20 GB/s, latency: 200 ns}]
  repeat: [{template: box, count: 4, name: box}]
  vertices: [{name: leaf, kind: leaf, count: 4}]
  links:
  - {a: box0.nic, b: leaf0, kind: roce, bandwidth: 10 GB/s, latency: 1 us}
  - {a: box1.nic, b: leaf1, kind: roce, bandwidth: 10 GB/s, latency: 1 us}
  - {a: box2.nic, b: leaf2, kind: roce, bandwidth: 10 GB/s, latency: 1 us}
  - {a: box3.nic, b: leaf3, kind: roce, bandwidth: 10 GB/s, latency: 1 us}
  - {a: leaf0, b: leaf1, kind: roce, bandwidth: 1 GB/s, latency: 1 us}
  - {a: leaf1, b: leaf2, kind: roce, bandwidth: 1 GB/s, latency: 1 us}
  - {a: leaf2, b: leaf3, kind: roce, bandwidth: 1 GB/s, latency: 1 us}
  - {a: leaf3, b: leaf0, kind: roce, bandwidth: 1 GB/s, latency: 1 us}
collective: {op: barrier}
"""


@pytest.mark.parametrize("op", ["all_reduce", "all_gather", "all_to_all"])
def test_a_sweep_over_algorithms_has_one_bound(op: str):
    names = [name for name in algorithms(op) if not name.startswith("collnet")]
    made = from_words(
        {
            "node": "dgx-h100",
            "nodes": "2",
            "collective.op": op,
            "collective.size": "1 MiB",
            "costs": "ideal",
        }
    )
    bounds = set()
    for name in names:
        variant = made.variants[0]
        call = replace(variant.collective, algorithm=name)
        try:
            (row,) = run_resolved(replace(variant, collective=call)).rows
        except ScheduleError:
            continue
        assert row.percent_of_bound <= 100
        bounds.add(row.bound_s)
    assert len(bounds) == 1


def test_uneven_counts_bind_at_the_rank_that_draws_most():
    # Rank 3 receives 7 · 10 MB, everybody else nothing.
    counts = np.zeros((8, 8), dtype=np.int64)
    counts[:, 3] = 10_000_000
    assert bound("dgx-h100", "all_to_allv", counts=counts) == pytest.approx(7 * 10e6 / PORT)
    # all_gather of parts 0 … 7 MB: rank 0 receives all 28 MB and holds none.
    parts = np.arange(8) * 1_000_000
    assert bound("dgx-h100", "all_gather", counts=parts) == pytest.approx(28e6 / PORT)


def test_nothing_to_move_has_no_bound():
    made = cluster("dgx-h100")
    for op, size_bytes in (("all_reduce", 0), ("barrier", 0)):
        call = Call(collective=op, world_size=8, size_bytes=size_bytes)
        assert bound_s(made, call, np.arange(8)) == 0.0
    alone = Call(collective="all_reduce", world_size=1, size_bytes=S)
    assert bound_s(made, alone, np.arange(1)) == 0.0


@pytest.mark.parametrize("op", [op for op in collectives() if op not in ("barrier", "all_to_allv")])
@pytest.mark.parametrize("inside", [[0], [2, 3], [0, 1, 2, 4]])
def test_bytes_across_a_cut_are_what_the_other_side_misses(op: str, inside: list[int]):
    """Derive from the specification who holds what: a second way to the same numbers."""
    from simulator.collectives.spec import part_bytes, specification

    n, size = 6, 6 * 6 * 100
    for root in (0, 3):
        call = Call(collective=op, world_size=n, size_bytes=size, root=root)
        spec = specification(call)
        parts = part_bytes(call)
        if len(parts) != spec.n_parts:
            parts = np.tile(parts, spec.n_parts // len(parts))
        mask = np.isin(np.arange(n), inside)

        def crossing(source, target, spec=spec, parts=parts):
            wanted = spec.holds[target].any(axis=0) & spec.contributes[source].any(axis=0)
            return float(parts[wanted].sum())

        out, into = crossing_bytes(call, mask.astype(np.int64))
        assert out.tolist() == pytest.approx([crossing(~mask, mask), crossing(mask, ~mask)])
        assert into.tolist() == pytest.approx([crossing(mask, ~mask), crossing(~mask, mask)])


@pytest.mark.parametrize("name", WORDS)
@pytest.mark.parametrize("profile", ["ideal", "round", "nccl"])
def test_no_registered_algorithm_beats_the_bound(name: str, profile: str):
    made = cluster(name, profile)
    group = np.arange(made.n_gpus)
    tried = set()
    for op in collectives():
        if op == "all_to_allv":
            continue
        for algorithm in algorithms(op):
            for size_bytes in (0,) if op == "barrier" else (1, 5_000, 20_000_000):
                call = Call(collective=op, world_size=len(group), size_bytes=size_bytes)
                choice = Choice(algorithm=algorithm, protocol="Simple", n_channels=2)
                try:
                    collective = made.collective(call, group, choice)
                except ScheduleError:
                    continue  # not for this group
                tried.add((op, algorithm))
                limit_s = bound_s(made, call, group)
                program = Program(ranks=group, operations=(Start(collective=collective),))
                level = "steps" if size_bytes < 10_000 else "folded"
                time_s = simulate(made.network, [program], level=level).end_s
                assert time_s >= limit_s * (1 - 1e-9), (op, algorithm, size_bytes)
    assert len(tried) > 25
