"""NCCL over TCP: one proxy thread per rank, however many channels it serves."""

from __future__ import annotations

import json
import re

import pytest

from simulator.compose.run import run_resolved
from simulator.results.model import RunResult
from simulator.scenario.resolve import from_words

GIB = 2**30
PROXY_BPS = 25e9 / 8


def run(op: str = "all_gather", size: int = GIB, nodes: int = 2, **more: str) -> RunResult:
    where = {"node": "polaris", "nodes": str(nodes), "env.NCCL_NET": json.dumps("Socket")}
    where = {key: value for key, value in {**where, **more}.items() if value}
    call = {"collective.op": op, "collective.size": str(size)}
    return run_resolved(from_words({**call, **where}).variants[0])


POLARIS = {
    ("all_gather", "2.18", "usual"): 9.0,
    ("all_reduce", "2.18", "usual"): 9.45,
    ("all_gather", "2.18", "crossed"): 3.33,
    ("all_reduce", "2.18", "crossed"): 3.18,
    ("all_gather", "2.21", "usual"): 3.2,
    ("all_reduce", "2.21", "usual"): 3.1,
    ("all_to_all", "2.18", "usual"): 2.59,
    ("all_to_all", "2.21", "usual"): 2.29,
}
"""GB/s of busbw at 1 GiB over sockets, by version; crossed: NCCL_CROSS_NIC=1 and GDR_LEVEL=PHB
(validation/measurements/collectives/alcf-polaris-a100-2n.yaml)."""


@pytest.mark.parametrize("case", POLARIS, ids=" ".join)
def test_polaris_over_sockets(case: tuple[str, str, str]) -> None:
    # Where a ring enters and leaves a node by one GPU, its thread sends and receives: half as fast.
    op, version, setting = case
    more = {"costs.version": json.dumps(version)}
    if setting == "crossed":
        more |= {"env.NCCL_CROSS_NIC": '"1"', "env.NCCL_NET_GDR_LEVEL": '"PHB"'}
    assert run(op, **more).rows[0].busbw_Bps / 1e9 == pytest.approx(POLARIS[case], rel=0.4)


def test_more_channels_of_a_rank_share_its_thread() -> None:
    few = run(**{"env.NCCL_MAX_NCHANNELS": '"2"'}).rows[0]
    many = run(**{"env.NCCL_MIN_NCHANNELS": '"8"'}).rows[0]
    assert (few.n_channels, many.n_channels) == (2, 8)
    assert many.time_s > 0.95 * few.time_s


def test_helper_threads_are_each_connection_s_own() -> None:
    node = {"node": "hgx-h100+1gpus+1xib400", "env.NCCL_MIN_NCHANNELS": '"4"'}
    alone = run(**node).rows[0]
    helped = run(**node, **{"env.NCCL_SOCKET_NTHREADS": '"1"'}).rows[0]
    assert alone.busbw_Bps < PROXY_BPS / 2
    # Four channels with a thread each: until the port or the host's memory is full.
    assert helped.busbw_Bps > 2 * PROXY_BPS


@pytest.mark.parametrize("op", ["all_reduce", "all_to_all", "send_recv", "gather"])
def test_no_rank_moves_more_than_its_thread_copies(op: str) -> None:
    # One GPU per node: what a rank sends or receives, all crosses the network.
    node = {"node": "hgx-h100+1gpus+1xib400", "env.NCCL_IB_DISABLE": '"1"', "env.NCCL_NET": ""}
    row = run(op, nodes=4, **node).rows[0]
    # Sent and received: each rank both, but of a gather the root only receives.
    moved = {"all_reduce": 3.0, "all_to_all": 1.5, "send_recv": 2.0, "gather": 0.75}[op]
    assert moved * GIB / row.time_s < PROXY_BPS
    assert moved * GIB / row.time_s > 0.6 * PROXY_BPS


def test_very_many_ranks_are_held_to_their_threads_too() -> None:
    # 1,024 ranks are summed to link loads (`simulator.compose.bulk`).
    row = run("all_to_all", nodes=256).rows[0]
    assert 2 * GIB * 1020 / 1024 / row.time_s < PROXY_BPS * 1.001


def test_the_band_over_sockets_says_that_they_are_not_fitted() -> None:
    result = run()
    row = result.rows[0]
    assert row.uncertainty_s == pytest.approx(row.time_s)
    assert any("not fitted" in text for text in result.notes)
    verbs = run(**{"env.NCCL_NET": ""}).rows[0]
    assert verbs.uncertainty_s is not None
    assert verbs.uncertainty_s < 0.5 * verbs.time_s


def test_flows_without_threads_are_told_to_do_nothing() -> None:
    warnings = run(**{"env.NCCL_NSOCKS_PERTHREAD": '"4"'}).warnings
    assert any(re.search(r"NSOCKS_PERTHREAD=4 has no effect.*THREADS", text) for text in warnings)
