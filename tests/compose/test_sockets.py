"""NCCL over TCP: one proxy thread per rank, however many channels it serves."""

from __future__ import annotations

import json
import re

import pytest

from simulator.compose.run import run_resolved
from simulator.results.model import RunResult
from simulator.scenario.resolve import from_words

GIB = 2**30
PROXY_BPS = 42e9 / 8


def run(op: str = "all_gather", size: int = GIB, nodes: int = 2, **more: str) -> RunResult:
    where = {"node": "polaris", "nodes": str(nodes), "env.NCCL_NET": json.dumps("Socket")}
    where = {key: value for key, value in {**where, **more}.items() if value}
    call = {"collective.op": op, "collective.size": str(size)}
    return run_resolved(from_words({**call, **where}).variants[0])


@pytest.mark.parametrize(
    ("op", "measured_Bps"),
    [("all_gather", 9.0e9), ("all_reduce", 9.45e9)],
)
def test_polaris_over_sockets_is_as_fast_as_measured(op: str, measured_Bps: float) -> None:
    # validation/measurements/collectives/alcf-polaris-a100-2n.yaml, default over sockets, 1 GiB;
    # two of four ranks send to the other node: 2 × 5.25 GB/s.
    row = run(op).rows[0]
    assert row.busbw_Bps == pytest.approx(measured_Bps, rel=0.2)
    assert row.busbw_Bps < 2 * PROXY_BPS


def test_more_channels_of_a_rank_share_its_thread() -> None:
    few = run(**{"env.NCCL_MAX_NCHANNELS": '"2"'}).rows[0]
    many = run(**{"env.NCCL_MIN_NCHANNELS": '"8"'}).rows[0]
    assert (few.n_channels, many.n_channels) == (2, 8)
    assert many.time_s > 0.95 * few.time_s


def test_helper_threads_are_each_connection_s_own() -> None:
    node = {"node": "hgx-h100+1gpus+1xib400", "env.NCCL_MIN_NCHANNELS": '"4"'}
    alone = run(**node).rows[0]
    helped = run(**node, **{"env.NCCL_SOCKET_NTHREADS": '"1"'}).rows[0]
    assert alone.busbw_Bps < PROXY_BPS
    # Four channels with a thread each: until the port or the host's memory is full.
    assert helped.busbw_Bps > 2 * PROXY_BPS


@pytest.mark.parametrize("op", ["all_reduce", "all_to_all", "send_recv", "gather"])
def test_no_rank_sends_more_than_its_thread_copies(op: str) -> None:
    # One GPU per node: what a rank sends or receives, all crosses the network.
    node = {"node": "hgx-h100+1gpus+1xib400", "env.NCCL_IB_DISABLE": '"1"', "env.NCCL_NET": ""}
    row = run(op, nodes=4, **node).rows[0]
    moved = {"all_reduce": 1.5, "all_to_all": 0.75, "send_recv": 1.0, "gather": 0.75}[op]
    assert moved * GIB / row.time_s < PROXY_BPS
    assert moved * GIB / row.time_s > 0.3 * PROXY_BPS


def test_very_many_ranks_are_held_to_their_threads_too() -> None:
    # 1,024 ranks are summed to link loads (`simulator.compose.bulk`).
    row = run("all_to_all", nodes=256).rows[0]
    assert GIB * 1020 / 1024 / row.time_s < PROXY_BPS * 1.001


def test_the_band_over_sockets_says_that_they_are_not_fitted() -> None:
    result = run()
    row = result.rows[0]
    assert row.uncertainty_s == pytest.approx(2.0 * row.time_s)
    assert any("not fitted" in text for text in result.notes)
    verbs = run(**{"env.NCCL_NET": ""}).rows[0]
    assert verbs.uncertainty_s is not None
    assert verbs.uncertainty_s < 0.5 * verbs.time_s


def test_flows_without_threads_are_told_to_do_nothing() -> None:
    warnings = run(**{"env.NCCL_NSOCKS_PERTHREAD": '"4"'}).warnings
    assert any(re.search(r"NSOCKS_PERTHREAD=4 has no effect.*THREADS", text) for text in warnings)
