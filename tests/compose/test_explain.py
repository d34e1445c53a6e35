"""The explanation of a call: what its parts add up to."""

from __future__ import annotations

import numpy as np
import pytest

from simulator.collectives.call import Call
from simulator.compose.believe import library_name
from simulator.compose.choose import candidates, lone_time_s
from simulator.compose.cluster import Choice
from simulator.compose.explain import explain_call, stage_terms
from simulator.costs.nccl import predict_table
from simulator.results.model import Row
from tests.compose.clusters import cluster

ROW = Row(
    collective="all_reduce",
    algorithm="ring",
    protocol="Simple",
    n_channels=1,
    world_size=16,
    n_nodes=2,
    size_bytes=2**26,
    count=2**24,
    time_s=1e-3,
    algbw_Bps=1e9,
    busbw_Bps=1e9,
    dtype="float",
    redop="sum",
    root=-1,
    level="folded",
)


def summed_and_simulated(op: str, algorithm: str) -> tuple[float, float]:
    made = cluster("4 x 1 of dgx-h100")
    group = np.arange(4)
    call = Call(collective=op, world_size=4, size_bytes=2**26, element_bytes=4)
    choice = Choice(algorithm=algorithm, protocol="Simple", n_channels=1)
    collective = made.collective(call, group, choice)
    stages = stage_terms(made, collective)
    alone = [stage.n_steps * (stage.alpha_s + stage.beta_s) for stage in stages]
    shared = [stage.shared_s for stage in stages]
    parts = [one if many is None else many for one, many in zip(alone, shared, strict=True)]
    return collective.launch_s + sum(parts), lone_time_s(made, call, group, choice)


@pytest.mark.parametrize(
    ("op", "algorithm"),
    [
        ("all_reduce", "ring"),
        ("all_reduce", "halving_doubling"),
        ("all_reduce", "naive"),
        ("all_to_all", "direct"),
        ("all_to_all", "pairwise"),
        ("all_gather", "bruck"),
        ("broadcast", "binomial"),
    ],
)
def test_the_parts_of_an_explanation_add_up_to_the_simulated_time(op: str, algorithm: str):
    # One GPU and one NIC a node: the messages of a step share nothing but their rank's NIC.
    summed_s, simulated_s = summed_and_simulated(op, algorithm)
    assert summed_s == pytest.approx(simulated_s, rel=0.01)


@pytest.mark.parametrize("algorithm", ["tree", "double_binary_tree"])
def test_trees_share_the_links_of_their_inner_ranks(algorithm: str):
    # Rank 1 of the tree 0 → (1, 2), 1 → 3 receives S from above and from below; in two trees
    # every rank does: the NIC needs 2 S / B, two and more times what a lone message suggests.
    summed_s, simulated_s = summed_and_simulated("all_reduce", algorithm)
    assert summed_s > 2 * 2**26 / 50e9
    assert summed_s == pytest.approx(simulated_s, rel=0.25)


def test_every_candidate_shows_what_the_library_expects_of_it():
    made = cluster("2 x dgx-h100", "nccl")
    call = Call(collective="all_reduce", world_size=16, size_bytes=2**26, element_bytes=4)
    options = candidates(made, call, np.arange(16))
    inp = made.tuning_input(np.arange(16))
    table = predict_table(inp, "all_reduce", 2**26)
    # NVLS of one node has no schedule here.
    options = [option for option in options if option.algorithm != "nvls"]
    assert len(options) > 5
    for option in options:
        expected_s = table[library_name(option.algorithm), option.protocol].time_s
        assert option.expected_s == (expected_s if expected_s < 1 else None)
    lines = explain_call(made, call, np.arange(16), row=ROW)
    shown = [line for line in lines if " channels  " in line]
    assert len(shown) > 5
    assert all("NCCL " in line for line in shown)


def test_an_own_choice_is_told_from_the_library_s():
    # NCCL takes no PAT with several GPUs per node: the protocol is then the fastest.
    made = cluster("2 x dgx-h100", "nccl")
    call = Call(collective="all_gather", world_size=16, size_bytes=2**20, element_bytes=4)
    lines = explain_call(made, call, np.arange(16), row=ROW, algorithm="pat")
    assert "  chosen by simulation: the fastest of what the profile allows" in lines
