"""Sends and receives are spread over channels as NCCL does, and a channel moves only so much."""

from __future__ import annotations

import numpy as np
import pytest

from simulator.collectives.call import Call
from simulator.compose.build import build_cluster
from simulator.compose.cluster import Cluster
from simulator.compose.exchange import exchange_plan
from simulator.compose.run import run_resolved
from simulator.scenario.resolve import from_words

MIB = 2**20


def words(nodes: int = 1, gpus: int = 8, **more: str) -> dict[str, str]:
    return {
        "node": "hgx-h100",
        "nodes": str(nodes),
        "gpus_per_node": str(gpus),
        "costs.version": "2.29.2",
        "collective.op": "send_recv",
        "collective.size": "1M",
        **more,
    }


def cluster(**where: int) -> Cluster:
    return build_cluster(from_words(words(**where)).variants[0])


def channels(made: Cluster, size: int, op: str = "send_recv") -> int:
    call = Call(collective=op, world_size=made.n_gpus, size_bytes=size)
    plan = exchange_plan(made, call, np.arange(made.n_gpus))
    assert plan is not None
    return plan.n_channels


def test_eight_gpus_have_four_channels_a_pair_until_a_part_is_16_mib() -> None:
    # 32 channels, 8 peers: 4 each; a part of more than 32 slots of 512 KiB gets more channels.
    made = cluster()
    assert [channels(made, size * MIB) for size in (32, 64, 128, 256)] == [4, 4, 8, 16]


def test_pairs_over_nodes_have_fewer_channels_the_more_peers_there_are() -> None:
    # 50 GB/s at 14 a channel: 4; they are halved until all peers fit into one round.
    assert channels(cluster(nodes=2), 256 * MIB) == 4
    assert channels(cluster(nodes=10), 256 * MIB) == 1


@pytest.mark.parametrize(("size", "more"), [(64, 2.0), (128, 2.0)])
def test_a_pair_is_as_fast_as_its_channels(size: int, more: float) -> None:
    # Measured on 8 x H100: 64 MiB, 128 MiB and 256 MiB take 0.82, 0.83 and 0.90 ms.
    times = [
        run_resolved(from_words(words(**{"collective.size": f"{s}M"})).variants[0]).rows[0].time_s
        for s in (size, more * size)
    ]
    assert times[1] < 1.25 * times[0]


def test_other_profiles_fill_the_route_with_one_pair() -> None:
    made = build_cluster(
        from_words({**words(), "costs.profile": "ideal", "costs.version": "null"}).variants[0]
    )
    call = Call(collective="send_recv", world_size=8, size_bytes=MIB)
    assert exchange_plan(made, call, np.arange(8)) is None


def test_a_root_pays_for_its_receives_what_it_pays_for_its_sends() -> None:
    # 8 KiB of each rank to the root, or from it: as many peers at one rank, so as long.
    def time_s(op: str, nodes: int) -> float:
        size = str(8192 * 8 * nodes)
        where = words(nodes, **{"collective.op": op, "collective.size": size})
        return run_resolved(from_words(where).variants[0]).rows[0].time_s

    few_s, many_s = time_s("gather", 4), time_s("gather", 16)
    assert many_s > 2.5 * few_s
    assert many_s == pytest.approx(time_s("scatter", 16), rel=0.25)


def test_few_peers_leave_the_ports_of_a_root_unfilled() -> None:
    # NCCL gives each pair two channels here; with four, two nodes are as fast as four.
    def time_s(nodes: int, **more: str) -> float:
        where = {"node": "dgx-h100", "nodes": str(nodes), **more}
        call = {"collective.op": "scatter", "collective.size": "1G"}
        return run_resolved(from_words({**where, **call}).variants[0]).rows[0].time_s

    wide = {"env.NCCL_NCHANNELS_PER_NET_PEER": '"4"'}
    assert time_s(2) > 1.05 * time_s(4)
    assert time_s(2, **wide) < 1.01 * time_s(4, **wide)


def test_rings_over_nodes_spare_the_nvlinks_what_the_nics_carry() -> None:
    # One node: 7/8 S into each GPU by NVLink.  Two: 14 of a ring's 16 hops are NVLink, each of
    # 15/16 S.
    def share(nodes: int) -> float:
        where = {"node": "dgx-h100", "nodes": str(nodes), "collective.size": "128M"}
        result = run_resolved(from_words({**where, "collective.op": "all_gather"}).variants[0])
        nvlinks = [link.wire_bytes for link in result.links if link.kind == "nvlink"]
        return sum(nvlinks) / nodes

    assert share(2) / share(1) == pytest.approx((14 / 16 * 15 / 16) / (7 / 8), rel=1e-3)
