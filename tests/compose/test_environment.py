"""Every acting variable changes routes and times in its direction; the others say why not."""

from __future__ import annotations

import json

import pytest

from simulator.base.errors import ScenarioError
from simulator.compose.build import build_cluster
from simulator.compose.run import run_resolved
from simulator.costs.nccl.nics import chosen_nics
from simulator.costs.sockets import Sockets
from simulator.costs.variables import library_variables
from simulator.scenario.resolve import from_words

TWO_H100 = {"node": "dgx-h100", "nodes": "2"}
TWO_A100 = {"node": "dgx-a100", "nodes": "2"}
HASHED = {
    "node": "dgx-h100+8xroce400",
    "nodes": "8",
    "fabric.kind": "leaf_spine",
    "fabric.radix": "16",
}


def resolved(words, env, op="all_reduce", size="64M"):
    variables = {f"env.{name}": json.dumps(str(value)) for name, value in env.items()}
    call = {"collective.op": op, "collective.sizes": size}
    return from_words({**call, **words, **variables}).variants[0]


def run(words, env, op="all_reduce", size="64M"):
    return run_resolved(resolved(words, env, op, size))


def time_s(words, env, op="all_reduce", size="64M"):
    return run(words, env, op, size).rows[0].time_s


def links(words, env, a, b):
    cluster = build_cluster(resolved(words, env))
    fabric = cluster.fabric
    ends = fabric.gpu_vertex[[a]], fabric.gpu_vertex[[b]]
    routes = cluster.lowering.router.routes(*ends)
    return {fabric.link_name(link) for link in routes.pair(0)[0]}


@pytest.mark.parametrize(
    ("words", "env", "op", "size", "slower"),
    [
        (TWO_H100, {"NCCL_P2P_DISABLE": 1}, "all_reduce", "64M", True),
        ({"node": "dgx-a100"}, {"NCCL_P2P_LEVEL": "LOC"}, "all_reduce", "64M", True),
        ({"node": "pcie-l40s-4"}, {"NCCL_P2P_LEVEL": "SYS"}, "all_reduce", "64M", False),
        ({"node": "pcie-a100-4-sw"}, {"NCCL_P2P_LEVEL": "NVL"}, "all_reduce", "64M", True),
        (
            {"node": "pcie-a100-4", "env.NCCL_P2P_DISABLE": "1"},
            {"NCCL_SHM_DISABLE": 1},
            "all_reduce",
            "64M",
            True,
        ),
        ({"node": "dgx-1-v100"}, {"NCCL_NVB_DISABLE": 1}, "all_to_all", "64M", True),
        (TWO_A100, {"NCCL_IB_DISABLE": 1}, "all_reduce", "64M", True),
        (TWO_A100, {"NCCL_IB_DISABLE": 1}, "all_reduce", "8", True),
        (TWO_A100, {"NCCL_NET": "Socket"}, "all_reduce", "64M", True),
        (
            {"node": "hgx-h100+1gpus+1xib400", "nodes": "2", "env.NCCL_IB_DISABLE": "1"},
            {"NCCL_SOCKET_NTHREADS": 4},
            "all_reduce",
            "64M",
            False,
        ),
        (
            {"node": "aws-p3+1xeth100", "nodes": "2", "env.NCCL_ALGO": "Ring"},
            {"NCCL_SOCKET_NTHREADS": 1, "NCCL_NSOCKS_PERTHREAD": 1},
            "all_reduce",
            "64M",
            True,
        ),
        (TWO_A100, {"NCCL_NET_GDR_LEVEL": "LOC"}, "all_reduce", "64M", True),
        (TWO_H100, {"NCCL_NET_GDR_READ": 0}, "all_reduce", "64M", True),
        (TWO_A100, {"NCCL_IB_HCA": "mlx5_0,mlx5_1"}, "all_reduce", "64M", True),
        (
            {**TWO_A100, "env.NCCL_IB_DISABLE": "1"},
            {"NCCL_SOCKET_IFNAME": "=eth0"},
            "all_reduce",
            "64M",
            True,
        ),
        (HASHED, {"NCCL_IB_QPS_PER_CONNECTION": 4}, "all_reduce", "64M", False),
        (HASHED, {"NCCL_IB_ADAPTIVE_ROUTING": 1}, "all_reduce", "64M", False),
        (TWO_H100, {"NCCL_NVLS_ENABLE": 0}, "all_reduce", "64M", True),
        ({"node": "dgx-a100", "nodes": "8"}, {"NCCL_COLLNET_ENABLE": 1}, "all_reduce", "1M", False),
        ({"node": "dgx-a100"}, {"NCCL_PROTO": "LL"}, "all_reduce", "64M", True),
        ({"node": "dgx-a100"}, {"NCCL_ALGO": "Tree"}, "all_reduce", "1G", True),
        ({"node": "dgx-a100"}, {"NCCL_MAX_NCHANNELS": 4}, "all_reduce", "64M", True),
        ({"node": "dgx-a100"}, {"NCCL_MAX_CTAS": 4}, "all_reduce", "64M", True),
        ({"node": "dgx-a100"}, {"NCCL_MIN_NCHANNELS": 32}, "all_reduce", "1M", False),
        ({"node": "dgx-a100"}, {"NCCL_NTHREADS": 64}, "all_reduce", "64M", True),
        (
            {"node": "dgx-a100", "env.NCCL_PROTO": "LL128"},
            {"NCCL_LL128_NTHREADS": 160},
            "all_reduce",
            "64M",
            True,
        ),
        ({"node": "dgx-a100"}, {"NCCL_BUFFSIZE": 65536}, "all_reduce", "64M", True),
        ({"node": "dgx-a100"}, {"NCCL_MAX_P2P_NCHANNELS": 1}, "send_recv", "64M", True),
        (TWO_A100, {"NCCL_NCHANNELS_PER_NET_PEER": 1}, "send_recv", "64M", True),
        ({"node": "mi300x", "costs": "rccl"}, {"NCCL_P2P_DISABLE": 1}, "all_reduce", "64M", True),
        ({"node": "mi300x", "costs": "rccl"}, {"NCCL_PROTO": "LL"}, "all_reduce", "64M", True),
        ({"node": "mi300x", "costs": "rccl"}, {"NCCL_MAX_NCHANNELS": 4}, "all_reduce", "64M", True),
    ],
    ids=lambda value: (
        " ".join(f"{k}={v}" for k, v in value.items()) if isinstance(value, dict) else str(value)
    ),
)
def test_a_variable_changes_the_time_in_its_direction(words, env, op, size, slower):
    usual, changed = time_s(words, {}, op, size), time_s(words, env, op, size)
    assert changed > 1.02 * usual if slower else changed < 0.99 * usual


@pytest.mark.parametrize(
    ("words", "env", "ends", "present", "absent"),
    [
        (TWO_A100, {"NCCL_P2P_DISABLE": 1}, (0, 1), "memory", "nvswitch"),
        (
            {"node": "dgx-a100"},
            {"NCCL_P2P_DISABLE": 1, "NCCL_SHM_DISABLE": 1},
            (0, 7),
            "leaf",
            "nvswitch",
        ),
        ({"node": "pcie-a100-2-sw"}, {"NCCL_P2P_LEVEL": "NVL"}, (0, 1), "memory", "nvlink"),
        (TWO_A100, {"NCCL_NET_GDR_LEVEL": "LOC"}, (0, 8), "memory", "nvlink"),
        (TWO_A100, {"NCCL_IB_DISABLE": 1}, (0, 8), "memory", "nvlink"),
        (TWO_A100, {"NCCL_NET_GDR_READ": 0}, (0, 8), "node0.cpu", "node1.cpu"),
        # Before Ampere, and without NVLink, NICs do not read GPU memory unless told to.
        (
            {"node": "pcie-v100-2-cx8", "nodes": "2"},
            {"NCCL_NET_GDR_READ": 1},
            (0, 2),
            "leaf",
            "memory",
        ),
        (TWO_H100, {"NCCL_PXN_DISABLE": 1}, (0, 9), "leaf", "node0.nvswitch"),
        (TWO_A100, {"NCCL_IB_HCA": "=mlx5_3"}, (0, 8), "node0.nic3", "node0.nic0"),
        (TWO_A100, {"NCCL_IB_HCA": "^=mlx5_0"}, (0, 8), "leaf", "node0.nic0"),
        ({"node": "dgx-1-v100"}, {"NCCL_NVB_DISABLE": 1}, (0, 5), "memory", "gpu1->"),
    ],
    ids=str,
)
def test_a_variable_changes_the_links_of_a_route(words, env, ends, present, absent):
    before, after = (" ".join(sorted(links(words, e, *ends))) for e in ({}, env))
    assert before != after
    assert present in after
    assert absent not in after


def test_without_pxn_and_cross_nic_the_receiver_uses_the_senders_rail():
    env = {"NCCL_PXN_DISABLE": 1, "NCCL_CROSS_NIC": 0}
    assert "leaf0->node1.nic0" in links(TWO_H100, env, 0, 9)
    assert "leaf0->node1.nic1" in links(TWO_H100, {"NCCL_PXN_DISABLE": 1}, 0, 9)


@pytest.mark.parametrize(
    ("words", "env", "said"),
    [
        ({"node": "dgx-a100"}, {"NCCL_IB_HCA": "mlx5_0"}, "NCCL_IB_HCA has no effect here: no po"),
        (TWO_A100, {"NCCL_SOCKET_NTHREADS": 4}, "do not talk over TCP sockets"),
        (TWO_A100, {"NCCL_IB_QPS_PER_CONNECTION": 4}, "does not hash flows"),
        (TWO_A100, {"NCCL_NVLS_ENABLE": 0}, "no NVSwitch reduces here"),
        (TWO_A100, {"NCCL_CROSS_NIC": 1}, "routes may change rails anyway"),
        (
            {**TWO_A100, "routing.p2p": "on"},
            {"NCCL_P2P_DISABLE": 1},
            "routing.p2p of the scenario wins",
        ),
        ({**TWO_A100, "routing.gpudirect": "off"}, {"NCCL_NET_GDR_LEVEL": "SYS"}, "no GPUDirect"),
        (TWO_A100, {"NCCL_P2P_DISABEL": 1}, "Did you mean 'NCCL_P2P_DISABLE'?"),
        (TWO_A100, {"GLOO_SOCKET_IFNAME": "eth0"}, "belongs to gloo: no effect with nccl"),
        (TWO_A100, {"NCCL_IB_SPLIT_DATA_ON_QPS": 1}, "no effect in the model"),
        (
            {"node": "dgx-h100+1gpus", "nodes": "2"},
            {"NCCL_P2P_DISABLE": 1},
            "every node has one GPU",
        ),
    ],
    ids=str,
)
def test_what_does_nothing_says_why(words, env, said):
    warnings = run(words, env).warnings
    assert any(said in text for text in warnings), warnings


def test_what_acts_is_told_with_the_key_that_does_the_same():
    result = run({"node": "dgx-a100"}, {"NCCL_P2P_DISABLE": 1})
    assert any("NCCL_P2P_DISABLE=1" in text and "routing.p2p: off" in text for text in result.notes)
    key = run({"node": "dgx-a100", "routing.p2p": "off"}, {})
    assert key.rows[0].time_s == result.rows[0].time_s
    assert key.rows[0].n_channels == result.rows[0].n_channels


def test_nvls_is_not_chosen_where_nvlink_is_forbidden_by_a_key_of_routing():
    row = run({**TWO_H100, "routing.p2p": "off"}, {}).rows[0]
    assert not row.algorithm.startswith("nvls")


def test_lists_per_function_restrict_that_function_only():
    words = {"node": "dgx-a100", "costs.version": "2.24"}
    env = {"NCCL_ALGO": "allreduce:tree;allgather:ring"}
    assert run(words, env, size="64M").rows[0].algorithm == "double_binary_tree"
    usual = run(words, {}, "reduce_scatter").rows[0]
    assert run(words, env, "reduce_scatter").rows[0] == usual


def test_one_of_two_faults_of_values_is_not_lost():
    with pytest.raises(ScenarioError) as caught:
        run({"node": "dgx-a100"}, {"NCCL_P2P_DISABLE": "yes", "NCCL_CROSS_NIC": 5})
    assert len(caught.value.problems) == 2
    with pytest.raises(ScenarioError, match="leaves no NIC"):
        run(TWO_A100, {"NCCL_IB_HCA": "^mlx5"})


def test_sockets_multiply_up_to_what_a_thread_copies():
    # One flow of 42 Gbit/s; four threads of four flows are limited by the four threads' copies.
    one = Sockets.of("default", threads=None, per_thread=None)
    assert one.rate_Bps == 42e9 / 8
    many = Sockets.of("default", threads=4, per_thread=4)
    assert (many.flows, many.rate_Bps) == (16, 4 * 42e9 / 8)
    # AWS: 2 × 8 flows of 10 Gbit/s, but two threads copy 84 Gbit/s.
    assert Sockets.of("aws", threads=None, per_thread=None).rate_Bps == 2 * 42e9 / 8
    # NCCL cuts 16 × 16 flows to 64.
    assert Sockets.of("default", threads=16, per_thread=16).flows == 64


def test_names_without_a_known_number_mean_all_nics():
    assert chosen_nics("bond0", 1) == ((0,), [])
    assert chosen_nics("ens17", 2) == ((0,), ["ens17"])
    # A DGX H100's eight compute ports: all of them, though their numbers go up to 11.
    named = ",".join(f"mlx5_{i}" for i in (0, 3, 4, 5, 6, 9, 10, 11))
    assert chosen_nics(named, 8)[0] == tuple(range(8))


def test_every_library_knows_its_variables():
    for library in ("nccl", "rccl", "gloo", "mpi", "mpich"):
        assert len(library_variables(library)) > 10
    assert "NCCL_P2P_LEVEL" in library_variables("rccl")
    rows = library_variables("mpi").values()
    assert all(row.acts for row in rows if row.effect == "modelled")


def test_channels_that_nvswitches_serve_each_move_their_share():
    # 16 fill the NVLinks of a Hopper GPU (the library's own number); fewer move in proportion.
    usual_s = time_s({"node": "dgx-h100"}, {}, size="1G")
    for name in ("NCCL_MAX_CTAS", "NCCL_MAX_NCHANNELS", "NCCL_NVLS_NCHANNELS"):
        for count in (1, 4, 8):
            asked_s = time_s({"node": "dgx-h100"}, {name: count}, size="1G")
            assert asked_s == pytest.approx(16 / count * usual_s, rel=0.05)
    assert time_s({"node": "dgx-h100"}, {"NCCL_MAX_CTAS": 16}, size="1G") == usual_s
    assert time_s({"node": "dgx-h100"}, {"NCCL_MIN_CTAS": 24}, size="1G") >= usual_s
    trees_s = time_s(TWO_H100, {}, size="1G")
    assert time_s(TWO_H100, {"NCCL_MAX_CTAS": 4}, size="1G") > 3 * trees_s


@pytest.mark.parametrize(
    ("words", "env", "op", "said"),
    [
        (TWO_H100, {"NCCL_NVB_DISABLE": 1}, "all_reduce", "same routes"),
        (TWO_H100, {"NCCL_SHM_DISABLE": 1}, "all_reduce", "same routes"),
        (TWO_H100, {"NCCL_P2P_LEVEL": "SYS"}, "all_reduce", "same routes"),
        (TWO_H100, {"NCCL_PAT_ENABLE": 1}, "all_reduce", "on all_reduce here: the same is chosen"),
        (TWO_H100, {"NCCL_NVLS_CHUNKSIZE": 65536}, "all_reduce", "the same is chosen"),
        (TWO_H100, {"NCCL_P2P_NET_CHUNKSIZE": 65536}, "all_to_all", "the same is chosen"),
        (TWO_H100, {"NCCL_MAX_NRINGS": 64}, "all_reduce", "NCCL_MAX_NRINGS=64 has no effect"),
        (TWO_H100, {"NCCL_NET": "foo"}, "all_reduce", "only IB and Socket are modelled"),
        (TWO_H100, {"NCCL_NET": "IB"}, "all_reduce", "verbs drive the ports anyway"),
        (
            {"node": "mi300x", "costs": "rccl"},
            {"NCCL_MAX_P2P_NCHANNELS": 2},
            "all_to_all",
            "RCCL's own choice is not modelled",
        ),
    ],
    ids=str,
)
def test_a_variable_without_effect_is_not_shown_as_acting(words, env, op, said):
    result = run(words, env, op)
    (name,) = env
    assert result.rows == run(words, {}, op).rows
    assert any(said in text and name in text for text in result.warnings), result.warnings
    assert not any(name in text for text in result.notes)


@pytest.mark.parametrize(
    ("words", "env", "op"),
    [
        ({"node": "dgx-1-v100"}, {"NCCL_NVB_DISABLE": 1}, "all_reduce"),
        ({"node": "pcie-l40s-4"}, {"NCCL_P2P_LEVEL": "SYS"}, "all_reduce"),
        ({**TWO_A100, "env.NCCL_P2P_DISABLE": "1"}, {"NCCL_SHM_DISABLE": 1}, "all_reduce"),
        (TWO_H100, {"NCCL_MAX_NCHANNELS": 4}, "all_reduce"),
        ({"node": "dgx-h100+1gpus", "nodes": "4"}, {"NCCL_PAT_ENABLE": 0}, "all_gather"),
        (TWO_H100, {"NCCL_ALGO": "NVLSTree"}, "all_reduce"),
    ],
    ids=str,
)
def test_a_variable_with_effect_is_not_called_idle(words, env, op):
    (name,) = env
    warnings = run(words, env, op, "1M").warnings
    assert not any(name in text for text in warnings), warnings


def test_a_version_that_another_stands_for_is_told_once():
    def told(version):
        words = {"node": "dgx-a100", "costs.version": json.dumps(version)}
        return run(words, {}, size="[1M, 2M]")

    newer, older = told("2.31"), told("2.8.4")
    assert newer.warnings == ("costs.version: NCCL 2.31.0 is modelled with the constants of 2.30",)
    assert older.notes == ("costs.version: NCCL 2.8.4 is modelled with the constants of 2.12",)
    for version in ("2.12", "2.23", "2.30.3"):
        assert (told(version).warnings, told(version).notes) == ((), ())
