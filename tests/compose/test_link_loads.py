"""Loads of links: faults lead and count as long as they last; data and wire are apart."""

from __future__ import annotations

import pytest

import simulator
from simulator.results.model import LinkLoad, RunResult
from simulator.results.tables import link_table

RING = {"op": "all_reduce", "size": "1 GiB", "algorithm": "ring", "protocol": "Simple"}


def run(*faults: dict[str, object], **collective: object) -> RunResult:
    return simulator.run(
        node="dgx-h100",
        nodes=4,
        fabric={"kind": "rail_optimized"},
        collective={**RING, **collective},
        perturb={"links": list(faults)},
    )


def nic(result: RunResult, name: str = "node2.nic3->rail3.leaf0") -> LinkLoad:
    (found,) = [link for link in result.links if link.name == name]
    return found


def test_a_slow_link_leads_with_the_capacity_that_it_had() -> None:
    result = run({"link": "node2.nic3<->rail3*", "factor": 0.5})
    slow = nic(result)
    assert result.links[0].fault == result.links[1].fault == "x 0.5"
    assert slow.capacity_Bps == pytest.approx(25e9)
    assert slow.utilisation > 0.95
    assert nic(result, "node0.nic3->rail3.leaf0").capacity_Bps == pytest.approx(50e9)
    table = link_table(result.links)
    assert table.rows[0][:3] == ("node2.nic3->rail3.leaf0", "infiniband", "x 0.5")
    assert max(map(len, table.text(80).splitlines())) <= 80


def test_capacity_is_the_mean_over_the_time_of_the_run() -> None:
    fault = {"link": "node2.nic3->rail3*", "factor": 0.5, "at": "1 ms", "until": "3 ms"}
    result = run(fault)
    end_s = max(result.ranks.end_s)  # type: ignore[union-attr]
    assert end_s > 3e-3
    assert nic(result).capacity_Bps == pytest.approx(50e9 * (end_s - 1e-3) / end_s)
    assert nic(result).fault == "x 0.5 from 1 ms, back from 3 ms"


def test_a_dead_link_is_listed_though_it_carries_nothing() -> None:
    result = run({"link": "node2.nic3<->rail3*", "down": True})
    dead = nic(result)
    assert (dead.fault, dead.capacity_Bps, dead.wire_bytes, dead.utilisation) == ("down", 0, 0, 0)


def test_payload_is_what_the_ring_moves_and_wire_is_more() -> None:
    # 8 rings a NIC each; a node's ranks send 2 (n - 1)/n of the data around each.
    result = run()
    sent = nic(result)
    assert sent.payload_bytes == pytest.approx(2 * 31 / 32 * 2**30 / 8, rel=1e-6)
    assert sent.wire_bytes > sent.payload_bytes
    ll = nic(run(protocol="LL", size="1 MiB"))
    # A line of LL is half flags (NCCL src/device/prims_ll.h).
    assert ll.payload_bytes < 0.5 * ll.wire_bytes * 1.001
    assert nic(result).fault == ""
