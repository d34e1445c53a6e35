"""Routes, weights, alphas and messages of lowered calls, against numbers added up by hand."""

from __future__ import annotations

import numpy as np
import pytest

from simulator.base.errors import ScheduleError
from simulator.collectives.call import Call
from simulator.collectives.registry import algorithms, collectives
from simulator.compose.cluster import Choice
from simulator.costs.profile import PATH_KINDS, load_profile
from simulator.engine.traffic import Collective
from tests.compose.clusters import cluster


def lowered(
    name: str,
    profile: str,
    algorithm: str,
    *,
    size_bytes: int = 4096,
    op: str = "all_reduce",
    channels: int = 1,
    protocol: str = "Simple",
    ranks: list[int] | None = None,
) -> Collective:
    made = cluster(name, profile)
    group = np.arange(made.n_gpus) if ranks is None else np.array(ranks)
    call = Call(collective=op, world_size=len(group), size_bytes=size_bytes)
    choice = Choice(algorithm=algorithm, protocol=protocol, n_channels=channels)
    return made.collective(call, group, choice)


def pair(name: str, profile: str, a: int, b: int, protocol: str = "Simple"):
    """Return link names, weights, latency, kind of path and lone rate of one pair of ranks."""
    made = cluster(name, profile)
    vertex = made.fabric.gpu_vertex
    costs = made.lowering.pair_costs(vertex[[a]], vertex[[b]], protocol, made.lowering.router)
    links, _ = costs.routes.pair(0)
    return (
        [made.fabric.link_name(link) for link in links],
        costs.weight.tolist(),
        float(costs.latency_s[0]),
        PATH_KINDS[int(costs.path_kind[0])],
        float(costs.rate_Bps[0]),
    )


def test_a_pair_over_nvlink_by_hand():
    # Two links of 100 GB/s and 100 ns; LL carries half data, the profile gets 80 % of NVLink:
    # weight 1 / (0.5 · 0.8) = 2.5, rate 100 / 2.5 = 40 GB/s, alpha 0.6 us.
    links, weight, latency_s, kind, rate_Bps = pair("round", "round", 0, 1, "LL")
    assert links == ["box0.gpu0->box0.nvs", "box0.nvs->box0.gpu1"]
    assert weight == pytest.approx([2.5, 2.5])
    assert latency_s == pytest.approx(2 * 100e-9 + 0.6e-6)
    assert kind == "nvlink"
    assert rate_Bps == pytest.approx(40e9)


def test_a_pair_over_the_network_by_hand():
    # gpu, plx, nic, switch, nic, plx, gpu: four PCIe links of 200 ns, two cables of 1 us, and
    # 150 ns of an InfiniBand switch.  Weights at full protocol: PCIe 1/0.75, InfiniBand 1/0.95;
    # the narrowest is the cable: 10 GB/s · 0.95.
    links, weight, latency_s, kind, rate_Bps = pair("round", "round", 0, 2)
    assert links == [
        "box0.gpu0->box0.plx",
        "box0.plx->box0.nic",
        "box0.nic->switch",
        "switch->box1.nic",
        "box1.nic->box1.plx",
        "box1.plx->box1.gpu0",
    ]
    assert weight == pytest.approx([1 / 0.75] * 2 + [1 / 0.95] * 2 + [1 / 0.75] * 2)
    assert latency_s == pytest.approx(4 * 200e-9 + 2 * 1e-6 + 150e-9 + 14e-6)
    assert kind == "network"
    assert rate_Bps == pytest.approx(9.5e9)


def test_ideal_has_neither_weights_nor_software():
    _, weight, latency_s, _, rate_Bps = pair("round", "ideal", 0, 2)
    assert weight == [1.0] * 6
    assert latency_s == pytest.approx(2.95e-6)
    assert rate_Bps == pytest.approx(10e9)


@pytest.mark.parametrize(
    ("name", "pairs"),
    [
        ("dgx-h100", {(0, 7): "nvlink"}),
        ("2 x dgx-h100", {(0, 1): "nvlink", (0, 8): "network"}),
        # On the cube mesh GPU 0 and GPU 5 are not joined: NVLink through a third GPU (NVB).
        ("dgx-1-v100", {(0, 1): "nvlink", (0, 5): "nvlink"}),
        ("pcie-l40s-4", {(0, 1): "host"}),
        # Trays of one rack share NVSwitches.
        ("2 x gb200-nvl72", {(0, 7): "nvlink"}),
    ],
)
def test_kind_of_path(name: str, pairs: dict[tuple[int, int], str]):
    for (a, b), kind in pairs.items():
        assert pair(name, "ideal", a, b)[3] == kind


def test_shared_connection_of_all_channels():
    made = lowered("dgx-h100", "ideal", "ring", channels=4)
    # One connection per neighbour, whatever the number of channels, and no rate cap of its own.
    assert len(made.connections.src) == 8
    assert np.isinf(made.connections.max_rate_Bps).all()
    for stage in made.stages:
        assert len(stage.connection) == 32
        assert sorted(set(stage.channel.tolist())) == [0, 1, 2, 3]


def test_connection_per_channel_has_its_share_of_the_pair():
    # Two trees whose paths meet on some pairs.
    made = lowered("round", "round", "double_binary_tree", channels=2)
    pairs = list(zip(made.connections.src.tolist(), made.connections.dst.tolist(), strict=True))
    fewer = lowered("round", "ideal", "double_binary_tree", channels=2)
    assert set(pairs) == set(
        zip(fewer.connections.src.tolist(), fewer.connections.dst.tolist(), strict=True)
    )
    assert len(pairs) > len(set(pairs))
    for index, ends in enumerate(pairs):
        lone = pair("round", "round", *(int(made.group[end]) for end in ends))[4]
        assert made.connections.max_rate_Bps[index] == pytest.approx(lone / pairs.count(ends))


def test_equal_channels_move_what_one_would():
    # 24 channels on one ring of one switch: together the pair's rate, whatever stands for them.
    made = lowered("dgx-h100", "round", "ring", channels=24)
    ends = made.connections.src * made.n_slots + made.connections.dst
    total = np.bincount(ends, weights=made.connections.max_rate_Bps)
    assert total[total > 0] == pytest.approx(360e9)
    carried = np.bincount(made.stages[0].connection, weights=made.stages[0].edge_bytes)
    assert np.bincount(ends, weights=carried)[total > 0] == pytest.approx(7 * 4096 / 8)


def test_launch_is_the_profile_s_plus_the_protocol_s():
    assert lowered("dgx-h100", "ideal", "ring").launch_s == 0.0
    assert lowered("dgx-h100", "round", "ring", protocol="LL").launch_s == pytest.approx(5e-6)
    assert lowered("dgx-h100", "round", "ring").launch_s == pytest.approx(7e-6)


def test_switches_are_slots_beyond_the_ranks():
    made = lowered("dgx-h100", "round", "nvls")
    assert made.n_slots == 9
    ends = set(zip(made.connections.src.tolist(), made.connections.dst.tolist(), strict=True))
    assert ends == {(r, 8) for r in range(8)} | {(8, r) for r in range(8)}
    # One NVLink hop each way, not two.
    assert (np.diff(made.connections.indptr) == 1).all()


def test_switches_of_two_nodes_are_two():
    made = lowered("2 x dgx-h100", "round", "nvls_tree")
    fabric = cluster("2 x dgx-h100", "round").fabric
    assert made.n_slots == 18
    for slot, node in ((16, 0), (17, 1)):
        into = np.flatnonzero(made.connections.dst == slot)
        names = {fabric.link_name(made.connections.link[made.connections.indptr[i]]) for i in into}
        assert names
        assert all(name.startswith(f"node{node}.gpu") for name in names)


def test_slots_are_positions_in_the_group():
    made = lowered("2 x dgx-h100", "ideal", "ring", ranks=[3, 9, 12])
    fabric = cluster("2 x dgx-h100", "ideal").fabric
    assert made.group.tolist() == [3, 9, 12]
    first = made.connections.link[made.connections.indptr[:-1]]
    names = [fabric.link_name(link).split("->")[0] for link in first]
    assert set(names) == {"node0.gpu3", "node1.gpu1", "node1.gpu4"}


def test_a_protocol_that_the_profile_does_not_have():
    with pytest.raises(ScheduleError, match="unknown protocol 'LL'"):
        lowered("dgx-h100", "ideal", "ring", protocol="LL")


def every_algorithm() -> list[tuple[str, str]]:
    found = [(op, name) for op in collectives() for name in algorithms(op) if op != "all_to_allv"]
    assert len(found) > 30
    return found


@pytest.mark.parametrize(("op", "name"), every_algorithm())
@pytest.mark.parametrize("where", ["dgx-h100", "3 x 3 of dgx-h100"])
def test_messages_carry_the_schedule_s_bytes(op: str, name: str, where: str):
    """Three ways to count: stage's closed form, messages of all steps, pieces of the schedule."""
    made = cluster(where)  # its channels are the schedule's; a profile may fold equal ones
    group = np.arange(made.n_gpus)
    size_bytes = 0 if op == "barrier" else 10_007
    call = Call(collective=op, world_size=len(group), size_bytes=size_bytes)
    choice = Choice(algorithm=name, protocol="Simple", n_channels=2)
    try:
        schedule = made.schedule(call, group, choice)
    except ScheduleError:
        pytest.skip("not for this group")
    collective = made.collective(call, group, choice)
    for stage, traffic in zip(schedule.stages, collective.stages, strict=True):
        sent = np.zeros(len(stage.src))
        pieces = np.zeros(len(stage.src))
        count = np.zeros(len(stage.src), dtype=np.int64)
        for index in range(stage.n_steps):
            messages = traffic.messages(index)
            edges = np.arange(len(sent)) if messages.edge is None else messages.edge
            assert len(set(edges.tolist())) == len(edges)  # one message per edge and step
            sent[edges] += messages.size_bytes
            count[edges] += 1
            step = stage.step(index)
            of_piece = np.arange(len(sent))[step.edge]
            sizes = schedule.chunks.size_bytes(
                np.broadcast_to(step.start, of_piece.shape),
                np.broadcast_to(np.asarray(step.count), of_piece.shape),
            )
            np.add.at(pieces, of_piece, sizes)
        assert sent == pytest.approx(pieces)
        assert sent == pytest.approx(traffic.edge_bytes)
        assert count.tolist() == traffic.edge_messages.tolist()
        # The connection of an edge joins the edge's ends.
        ends = collective.connections
        assert (ends.src[traffic.connection] == stage.src).all()
        assert (ends.dst[traffic.connection] == stage.dst).all()


def test_lines_of_LL_stream_through_a_ring_inside_a_node():
    # 8 ranks: messages of 1 MiB / 8 / 1 channel.  Alone one takes d; the next step may start with
    # its first line, so that of the latency L only what is longer than d is seen.
    for size, hidden in ((1 << 20, True), (64, False)):
        made = lowered("dgx-a100", "nccl", "ring", size_bytes=size, protocol="LL")
        links = pair("dgx-a100", "nccl", 0, 1, "LL")
        latency_s = links[2]
        d = size / 8 / made.connections.max_rate_Bps
        assert bool((d > latency_s).all()) is hidden
        shown = np.maximum(latency_s - d, 0.0)
        assert made.connections.latency_s == pytest.approx(shown, abs=1e-12)


def test_slices_of_Simple_do_not_stream():
    made = lowered("dgx-a100", "nccl", "ring", size_bytes=1 << 20, protocol="Simple")
    assert (made.connections.latency_s >= pair("dgx-a100", "nccl", 0, 1)[2] * 0.999).all()


def test_a_trees_channel_moves_less_than_a_rings():
    profile = load_profile("nccl")
    made = lowered("dgx-a100", "nccl", "double_binary_tree", size_bytes=1 << 28)
    most = profile.tree_channel_share * profile.channel_Bps["ampere", "Simple"]
    assert made.connections.max_rate_Bps.max() == pytest.approx(most)


def test_one_flow_into_a_port_has_all_of_it():
    # Rank 0 → 8 alone on its NICs; ranks 0 … 3 → 8, all through the NIC beside rank 8.
    made = cluster("2 x dgx-h100", "nccl")
    vertex = made.fabric.gpu_vertex
    lowering = made.lowering
    for sources in ([0], [0, 1, 2, 3]):
        costs = lowering.pair_costs(
            vertex[sources], vertex[[8] * len(sources)], "Simple", lowering.router
        )
        kept = costs.rate_Bps.min() / lowering.crowded(costs).rate_Bps.min()
        share = lowering.profile.exchange_share if len(sources) > 1 else 1.0
        assert kept == pytest.approx(1 / share)
