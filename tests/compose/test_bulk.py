"""Exchanges summed per link take as long, and load every link as much, as pair by pair."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

import simulator.compose.bulk
from simulator.base.errors import ScenarioError
from simulator.collectives.call import Call
from simulator.compose.build import build_cluster
from simulator.compose.choose import lone_time_s
from simulator.compose.cluster import Choice
from simulator.compose.report import link_busy_s
from simulator.compose.run import run_resolved
from simulator.engine.simulate import simulate
from simulator.engine.traffic import Program, Start
from simulator.scenario.resolve import from_words


@pytest.mark.parametrize("fabric", ["fat_tree", "rail_optimized", "leaf_spine"])
@pytest.mark.parametrize("size", [2**20, 2**28])
def test_summed_equals_pair_by_pair(
    fabric: str, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = {
        "node": "dgx-h100",
        "nodes": "4",
        "fabric.kind": fabric,
        "collective.op": "all_to_all",
        "collective.sizes": "1M",
    }
    cluster = build_cluster(from_words(words).variants[0])
    group = np.arange(cluster.n_gpus)
    call = Call(collective="all_to_all", world_size=len(group), size_bytes=size, element_bytes=4)
    choice = Choice(algorithm="direct", protocol="Simple", n_channels=1)
    pair_s = lone_time_s(cluster, call, group, choice)
    loads_s = link_busy_s(cluster, cluster.collective(call, group, choice))
    monkeypatch.setattr(simulator.compose.bulk, "BULK_RANKS", 2)
    made = cluster.collective(call, group, choice)
    assert made.stages[0].wire_bytes is not None
    program = Program(ranks=group, operations=(Start(collective=made),))
    outcome = simulate(cluster.network, [program], level="folded")
    assert outcome.end_s == pytest.approx(pair_s, rel=2e-3)
    np.testing.assert_allclose(outcome.link_busy_s, loads_s, rtol=1e-9, atol=1e-15)
    np.testing.assert_allclose(link_busy_s(cluster, made), loads_s, rtol=1e-9, atol=1e-15)


@pytest.mark.parametrize(
    ("node", "nodes", "fabric", "costs"),
    [
        ("dgx-h100", 20, "fat_tree", "ideal"),
        ("dgx-h100", 20, "leaf_spine", "nccl"),
        ("gh200", 160, "rail_optimized", "mpi"),
        ("dgx-h100", 20, "two_sites", "ideal"),
        ("gh200", 160, "single_switch", "gloo"),
    ],
)
@pytest.mark.parametrize("size", [2**16, 2**28])
def test_summed_pairwise_steps_still_follow_each_other(
    node: str, nodes: int, fabric: str, costs: str, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = build_cluster(
        from_words(
            {
                "node": node,
                "nodes": str(nodes),
                "fabric.kind": fabric,
                "costs.profile": costs,
                "collective.op": "all_to_all",
                "collective.sizes": "1M",
            }
        ).variants[0]
    )
    group = np.arange(cluster.n_gpus)
    call = Call(collective="all_to_all", world_size=len(group), size_bytes=size, element_bytes=4)
    protocol = next(iter(cluster.profile.protocols))
    choice = Choice(algorithm="pairwise", protocol=protocol, n_channels=1)
    pair_s = lone_time_s(cluster, call, group, choice)
    monkeypatch.setattr(simulator.compose.bulk, "BULK_RANKS", 2)
    assert lone_time_s(cluster, call, group, choice) == pytest.approx(pair_s, rel=0.05)


def test_pairwise_of_a_thousand_ranks_pays_every_step() -> None:
    import simulator as collsim

    n, size, nic_Bps = 1024, 2**16, 50e9
    call = {"op": "all_to_all", "size": "64 KiB", "algorithm": "pairwise"}
    where = {"node": "gh200", "costs": "ideal", "fabric": "single_switch"}
    row = collsim.run(nodes=n, collective=call, **where).rows[0]
    alpha = collsim.run(nodes=2, collective={**call, "size": "8 B"}, **where).rows[0]
    hop_s = alpha.time_s - 4 / nic_Bps
    assert row.time_s == pytest.approx((n - 1) * (hop_s + size / n / nic_Bps), rel=1e-3)


@pytest.mark.parametrize("border", [256, 1023])
@pytest.mark.parametrize("op", ["all_to_all", "all_gather"])
def test_direct_exchanges_do_not_jump(border: int, op: str) -> None:
    import simulator as collsim

    if op == "all_gather" and border > 256:
        pytest.skip("only all_to_all is summed")
    call = {"op": op, "size": "1 MiB", "algorithm": "direct"}
    small, large = (
        collsim.run(node="gh200", nodes=n, costs="ideal", collective=call, engine="folded")
        for n in (border, border + 1)
    )
    assert large.rows[0].time_s == pytest.approx(small.rows[0].time_s, rel=0.02)


def test_message_by_message_is_never_summed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulator.compose.bulk, "BULK_RANKS", 2)
    import simulator as collsim

    call = {"op": "all_to_all", "size": "1 MiB", "algorithm": "direct", "protocol": "Simple"}
    row = collsim.run(node="dgx-h100", nodes=2, collective=call, engine="steps").rows[0]
    assert row.level == "steps"
    assert collsim.run(node="dgx-h100", nodes=2, collective=call).rows[0].level == "folded"


@pytest.mark.parametrize("fabric", ["rail_optimized", "leaf_spine"])
def test_thousands_of_ranks_are_never_held_pair_by_pair(fabric: str) -> None:
    """2,048 ranks have 4.2 million pairs: one number for each would take 32 MiB."""
    words = {"node": "dgx-h100", "nodes": "256", "fabric.kind": fabric}
    words |= {"collective.op": "all_to_all", "collective.sizes": "1M"}
    cluster = build_cluster(from_words(words).variants[0])
    group = np.arange(cluster.n_gpus)
    call = Call(collective="all_to_all", world_size=len(group), size_bytes=2**20, element_bytes=4)
    choice = Choice(algorithm="direct", protocol="Simple", n_channels=1)
    tracemalloc.start()
    made = cluster.collective(call, group, choice)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert made.stages[0].wire_bytes is not None
    assert peak_bytes < 8 * len(group) ** 2


def test_too_many_pairs_are_refused_with_their_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulator.compose.bulk, "BULK_RANKS", 2)
    monkeypatch.setattr(simulator.compose.bulk, "MOST_PAIRS", 100)
    words = {"node": "dgx-h100", "nodes": "17", "collective.op": "all_to_all"}
    words["collective.sizes"] = "1M"
    cluster = build_cluster(from_words(words).variants[0])
    # Another set of GPUs of each node: nothing repeats.
    ranks = [8 * node + place for node in range(17) for place in range(8) if node + 3 >> place & 1]
    call = Call(collective="all_to_all", world_size=len(ranks), size_bytes=2**20, element_bytes=4)
    choice = Choice(algorithm="direct", protocol="Simple", n_channels=1)
    with pytest.raises(
        ScenarioError, match=f"{len(ranks)} ranks has {len(ranks) ** 2 - len(ranks)}"
    ):
        cluster.collective(call, np.array(ranks), choice)


def test_pairs_that_would_not_fit_into_memory_are_refused_before_they_are_made() -> None:
    words = {"node": "dgx-h100", "nodes": "512", "engine.level": "steps"}
    words |= {"collective.op": "all_to_all", "collective.sizes": "1M", "costs.profile": "ideal"}
    with pytest.raises(ScenarioError, match="16773120 pairs take about 34 GiB"):
        run_resolved(from_words(words).variants[0])
