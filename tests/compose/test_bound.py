"""The bandwidth lower bound: derived by hand, and never beaten by anything registered."""

from __future__ import annotations

import numpy as np
import pytest

from simulator.base.errors import ScheduleError
from simulator.collectives.call import Call
from simulator.collectives.registry import algorithms, collectives
from simulator.compose.bound import bound_s, bytes_across
from simulator.compose.cluster import Choice
from simulator.engine.simulate import simulate
from simulator.engine.traffic import Program, Start
from tests.compose.clusters import WORDS, cluster

S = 1_000_000
NDR = 50e9
PORT = 450e9 + 32e9 / 8 * 16 * 128 / 130
"""All links out of an H100: NVLink and PCIe 5.0 x16; a schedule could use both at once."""
RACK_PORT = 900e9 + 225e9
"""All links out of a GB200: NVLink and half of the C2C link of its CPU."""


def bound(name: str, op: str, algorithm: str = "ring", *, root: int = 0, counts=None) -> float:
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
    return bound_s(made, call, np.arange(made.n_gpus), algorithm=algorithm)


@pytest.mark.parametrize(
    ("op", "expected"),
    [
        # Patarasuk and Yuan 2009: the 8 ranks together send 2·7·S, over 8 ports.
        ("all_reduce", 2 * 7 / 8 * S / PORT),
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
        # Two nodes with 8 NICs each: together they send 2·1·S over 2 nodes' NICs; inside a node
        # the 16 ranks need 2·15/16·S over NVLink, which is more here.
        ("all_reduce", max(2 * 1 / 2 * S / (8 * NDR), 2 * 15 / 16 * S / PORT)),
        # Half of the data must cross to the other node.
        ("all_gather", max(S / 2 / (8 * NDR), 15 / 16 * S / PORT)),
        # Each of 8 ranks sends S/16 to each of 8 others through 8 NICs.
        ("all_to_all", 8 * 8 * S / 16 / (8 * NDR)),
        ("broadcast", max(S / (8 * NDR), S / PORT)),
    ],
)
def test_two_nodes(op: str, expected: float):
    assert bound("2 x dgx-h100", op) == pytest.approx(expected)


def test_the_node_s_cut_binds_where_nics_are_few():
    # Perlmutter: 4 NICs of 25 GB/s a node.  all_reduce of two nodes: 2·(2−1)·S over 8 NICs.
    assert bound("2 x perlmutter", "all_reduce") == pytest.approx(2 * S / (8 * 25e9))
    # all_to_all: 4 ranks of each node send S/8 to each of 4 others.
    assert bound("2 x perlmutter", "all_to_all") == pytest.approx(4 * 4 * S / 8 / (4 * 25e9))


def test_a_rack_is_one_party():
    # Two trays of one NVL72 rack reach each other over NVLink; their NICs bind nothing.
    assert bound("2 x gb200-nvl72", "all_reduce") == pytest.approx(2 * 7 / 8 * S / RACK_PORT)


def test_reduction_in_switches_has_a_bound_of_its_own():
    # A switch that adds up halves what a rank sends: S out, S in, or less where the rank's own
    # part never leaves it.
    exchange = bound("dgx-h100", "all_reduce")
    inside = bound("dgx-h100", "all_reduce", "nvls")
    assert exchange / 2 * (1 - 1e-9) <= inside <= S / PORT * (1 + 1e-9)
    # Between nodes NVLS tree still exchanges, through all 8 NICs; SHARP does not.
    nics = 2 * 2 / 3 * S / (8 * NDR)
    assert bound("3 x 3 of dgx-h100", "all_reduce", "nvls_tree") >= nics * (1 - 1e-9)
    assert bound("3 x 3 of dgx-h100", "all_reduce", "collnet_direct") < nics


def test_uneven_counts_bind_at_the_rank_that_draws_most():
    # Rank 3 receives 7 · 10 MB, everybody else nothing.
    counts = np.zeros((8, 8), dtype=np.int64)
    counts[:, 3] = 10_000_000
    assert bound("dgx-h100", "all_to_allv", "pairwise", counts=counts) == pytest.approx(
        7 * 10e6 / PORT
    )
    # all_gather of parts 0 … 7 MB: rank 0 receives all 28 MB and holds none.
    parts = np.arange(8) * 1_000_000
    assert bound("dgx-h100", "all_gather", counts=parts) == pytest.approx(28e6 / PORT)


def test_nothing_to_move_has_no_bound():
    made = cluster("dgx-h100")
    for op, size_bytes in (("all_reduce", 0), ("barrier", 0)):
        call = Call(collective=op, world_size=8, size_bytes=size_bytes)
        assert bound_s(made, call, np.arange(8), algorithm="ring") == 0.0
    alone = Call(collective="all_reduce", world_size=1, size_bytes=S)
    assert bound_s(made, alone, np.arange(1), algorithm="ring") == 0.0


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

        out, into = bytes_across(call, np.array(inside))
        assert out == pytest.approx(crossing(mask, ~mask))
        assert into == pytest.approx(crossing(~mask, mask))


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
                limit_s = bound_s(made, call, group, algorithm=algorithm)
                program = Program(ranks=group, operations=(Start(collective=collective),))
                level = "steps" if size_bytes < 10_000 else "folded"
                time_s = simulate(made.network, [program], level=level).end_s
                assert time_s >= limit_s * (1 - 1e-9), (op, algorithm, size_bytes)
    assert len(tried) > 25
