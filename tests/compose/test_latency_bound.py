"""Data never arrive before they can have travelled: every algorithm, level and profile."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import simulator.compose.run
from simulator.base.errors import CollsimError
from simulator.collectives.call import Call
from simulator.collectives.registry import algorithms, collectives
from simulator.compose.build import build_cluster
from simulator.compose.calibrated import scaled
from simulator.compose.choose import lone_time_s
from simulator.compose.cluster import Choice, Cluster
from simulator.compose.latency_bound import latency_bound_s
from simulator.engine.simulate import simulate
from simulator.engine.traffic import Program, Start
from simulator.engine.wave import WavePlan
from simulator.scenario.resolve import from_words

SITES_S = 500e-6
"""Between the sites of the preset `two_sites` (100 km of fibre)."""
CLUSTERS = {
    "sites-2": {"node": "dgx-h100", "nodes": "2", "fabric.kind": "two_sites"},
    "sites-3": {"node": "gh200", "nodes": "3", "fabric.kind": "two_sites"},
    "sites-8": {"node": "gh200", "nodes": "8", "fabric.kind": "two_sites"},
    "tree": {"node": "dgx-a100", "nodes": "4", "fabric.kind": "fat_tree"},
    "pcie": {"node": "aws-g6e", "nodes": "2", "fabric.kind": "leaf_spine"},
    "mesh": {"node": "mi300x", "nodes": "2", "fabric.kind": "torus"},
    "one": {"node": "hgx-h100", "nodes": "1"},
}
ALL = [(op, name) for op in collectives() for name in algorithms(op)]


def built(name: str, costs: str) -> Cluster:
    words = {"costs.profile": costs, "collective.op": "all_reduce", "collective.sizes": "1M"}
    return build_cluster(from_words(CLUSTERS[name] | words).variants[0])


def travel_s(ideal: Cluster, call: Call, group: np.ndarray, choice: Choice) -> float:
    """Return the longest chain of propagation of a schedule: its wave with endless rates."""
    lowered = ideal.collective(call, group, replace(choice, protocol="Simple"))
    rates = np.full(len(lowered.connections.src), np.inf)
    return float(WavePlan(lowered).run(np.zeros(len(group)), rates).rank_end_s.max())


@pytest.mark.parametrize(
    ("name", "costs"),
    [
        *((name, costs) for name in CLUSTERS for costs in ("ideal", "nccl")),
        ("sites-2", "gloo"),
        ("sites-3", "gloo"),
        ("sites-8", "mpi"),
        ("mesh", "rccl"),
    ],
)
def test_no_algorithm_is_faster_than_its_data_travel(name: str, costs: str) -> None:
    try:
        made, ideal = built(name, costs), built(name, "ideal")
    except CollsimError as error:
        pytest.skip(str(error))
    group, n, seen = np.arange(made.n_gpus), made.n_gpus, 0
    for op, algorithm in ALL:
        counts = np.full((n, n), 64) if op == "all_to_allv" else None
        call = Call(collective=op, world_size=n, size_bytes=64 * n, counts_bytes=counts)
        for protocol in made.profile.protocols:
            choice = Choice(algorithm=algorithm, protocol=protocol, n_channels=1)
            try:
                time_s = lone_time_s(made, call, group, choice)
            except CollsimError:
                continue
            seen += 1
            least_s = latency_bound_s(made, call, group)
            assert time_s >= least_s * (1 - 1e-9), (op, algorithm, protocol)
            # Rings as a whole leave out ways that change channels.
            chain_s = travel_s(ideal, call, group, choice)
            assert time_s >= chain_s * (1 - 1e-3), (op, algorithm, protocol, chain_s)
            if name.startswith("sites") and counts is None and op != "send_recv":
                assert least_s >= SITES_S
    assert seen > 10


def test_a_thousand_bytes_take_the_way_between_sites() -> None:
    import simulator as collsim

    for op, ways in (("broadcast", 1), ("reduce", 2)):
        call = {"op": op, "size": "1 KiB"}
        row = collsim.run(node="dgx-h100", nodes=2, fabric="two_sites", collective=call).rows[0]
        # A reduce waits for the next rank to be in the call, and then for the data.
        assert ways * SITES_S < row.time_s < ways * SITES_S + 50e-6, op


def test_a_factor_of_a_machine_does_not_shorten_links() -> None:
    made = built("sites-2", "nccl")
    group = np.arange(made.n_gpus)
    for op, algorithm in (("broadcast", "ring"), ("all_reduce", "double_binary_tree")):
        call = Call(collective=op, world_size=made.n_gpus, size_bytes=1024)
        choice = Choice(algorithm=algorithm, protocol="Simple", n_channels=1)
        lowered = made.collective(call, group, choice)
        faster = scaled(lowered, 0.1, made.lowering.link_efficiency)
        program = Program(ranks=group, operations=(Start(collective=faster),))
        end_s = simulate(made.network, [program], level="folded").end_s
        assert end_s >= latency_bound_s(made, call, group)


def test_a_result_below_the_bound_is_no_result(monkeypatch: pytest.MonkeyPatch) -> None:
    import simulator as collsim

    monkeypatch.setattr(simulator.compose.run, "latency_bound_s", lambda *_: 1.0)
    with pytest.raises(AssertionError, match="its data travel"):
        collsim.run(node="dgx-h100", nodes=2, collective={"op": "broadcast", "size": "1 KiB"})
