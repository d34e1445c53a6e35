"""The graph search finds what NCCL's logs show, and what measured bandwidths imply."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from simulator.base.errors import TopologyError
from simulator.costs.nccl.bounds import hopeless
from simulator.costs.nccl.graph import ChannelGraph, PathType, Pattern
from simulator.costs.nccl.orders import chain_orders, channel_nets, ring_orders
from simulator.costs.nccl.paths import Paths, milli
from simulator.costs.nccl.search import GraphSet, search_graphs
from simulator.costs.nccl.system import SearchLink, SearchOptions, SearchSystem, SearchVertex
from simulator.costs.nccl.version import NcclVersion
from simulator.costs.nccl.walker import Attempt, Walker
from tests.costs.nccl_nodes import CUBE_MESH, node


def cube_mesh(n: int) -> SearchSystem:
    """Return the first n GPUs of a DGX-1V."""
    return node("2.12.12", sm=70, n=8, mesh=CUBE_MESH, per_switch=2, pcie_GBps=12.0, keep=range(n))


def graphs(system: SearchSystem, *, network: bool = False) -> GraphSet:
    found = search_graphs(system, network=network)
    for graph in found.graphs.values():
        check(system, graph, network=network)
    return found


def check(system: SearchSystem, graph: ChannelGraph, *, network: bool) -> None:
    """No directed link and no port carries more than it has; each channel visits all GPUs."""
    n = len(system.of_kind("gpu"))
    assert len(graph.channels) == graph.n_channels
    if graph.pattern is Pattern.NVLS:
        return
    paths = Paths(system, network=network)
    left = {i: float(link.bw) for i, link in enumerate(paths.links)}
    ports = [float(milli(nic.net_GBps)) for nic in paths.nics]
    gpus, nets = paths.members["gpu"], paths.members["net"]

    def take(source: int, target: int, bw: float) -> None:
        path = paths.table[source, target]
        for i in path.links:
            left[i] -= bw * 1000

    for channel in graph.channels:
        order = channel.gpus
        assert sorted(order) == list(range(n))
        for a, b in itertools.pairwise(order):
            take(gpus[a], gpus[b], graph.bw_intra_GBps)
        if not network:
            if graph.pattern is Pattern.RING and n > 1:
                take(gpus[order[-1]], gpus[order[0]], graph.bw_intra_GBps)
            continue
        assert channel.net_in is not None
        assert channel.net_out is not None
        ports[channel.net_in] -= int(graph.bw_inter_GBps) * 1000
        take(nets[channel.net_in], gpus[order[0]], graph.bw_inter_GBps)
        if graph.pattern is Pattern.RING:
            take(gpus[order[-1]], nets[channel.net_out], graph.bw_inter_GBps)
        elif graph.pattern is Pattern.TREE or n == 1:
            take(gpus[order[0]], nets[channel.net_out], graph.bw_inter_GBps)
        else:
            for gpu in order[:2]:
                take(gpus[gpu], nets[channel.net_out], graph.bw_inter_GBps / 2)
    assert min(left.values(), default=0.0) >= -1e-6
    assert min(ports, default=0.0) >= -1e-6


def summary(graph: ChannelGraph) -> tuple[int, float, float, str, str]:
    return (
        graph.n_channels,
        graph.bw_intra_GBps,
        graph.bw_inter_GBps,
        graph.type_intra.name,
        graph.type_inter.name,
    )


def test_an_a100_nvswitch_node_has_12_channels_of_20() -> None:
    # Public logs: maxBw 240, "Channel 00/24 : 0 1 2 3 4 5 6 7".
    found = graphs(node(sm=80, n=8, nvswitch_links=12, per_switch=2))
    assert (found.max_bw_GBps, found.total_bw_GBps) == (240.0, 240.0)
    assert summary(found.graphs["ring"]) == (12, 20.0, 20.0, "NVL", "PIX")
    assert summary(found.graphs["tree"]) == (12, 20.0, 20.0, "NVL", "PIX")
    assert {c.gpus for c in found.graphs["ring"].channels} == {tuple(range(8))}
    assert found.nvlinks_between == 12
    two = graphs(node(sm=80, n=8, nvswitch_links=12, keep=range(2)))
    # A chain of two has both directions of the tree for itself.
    assert summary(two.graphs["tree"])[:2] == (12, 40.0)


def test_an_h100_nvswitch_node_has_12_channels_of_30_and_8_heads() -> None:
    # NVIDIA/nccl issue 1197, 2.19.4: ring and tree 12 × 30/30 NVL/PIX, NVLS 8 × 40/60;
    # issue 1367, 2.19.3: maxBw 360; issue 1189: 370.8 of a newer version.
    for version, total in (("2.19.4", 360.0), ("2.21.5", 370.8), ("2.27.3", 370.8)):
        found = graphs(node(version, sm=90, n=8, nvswitch_links=18))
        assert found.total_bw_GBps == pytest.approx(total)
        assert summary(found.graphs["ring"]) == (12, 30.0, 30.0, "NVL", "PIX")
        assert summary(found.graphs["tree"]) == (12, 30.0, 30.0, "NVL", "PIX")
        nvls = found.graphs["nvls"]
        assert (nvls.n_channels, nvls.bw_intra_GBps, nvls.bw_inter_GBps) == (8, 40.0, 60.0)
        assert [channel.gpus for channel in nvls.channels] == [(g,) for g in range(8)]


def test_four_v100_with_two_links_per_pair_have_six_rings() -> None:
    # NVIDIA/nccl issue 713, server A: nchannels 6, speedintra 22, samechannels 0, first rings
    # 0 1 2 3, 0 1 3 2, 0 2 3 1, 0 2 1 3, 0 3 1 2.
    mesh = {(a, b): 2 for a in range(4) for b in range(a)}
    ring = graphs(node("2.12.12", sm=70, n=4, mesh=mesh, pcie_GBps=12.0)).graphs["ring"]
    assert summary(ring) == (6, 22.0, 22.0, "NVL", "PIX")
    assert not ring.same_channels
    assert [channel.gpus for channel in ring.channels][:2] == [(0, 1, 2, 3), (0, 1, 3, 2)]
    assert len({channel.gpus for channel in ring.channels}) == 6


def test_four_a100_with_four_links_per_pair_use_all_of_them() -> None:
    # NVIDIA/nccl issue 1499: maxBw 80, totalBw 240.
    mesh = {(a, b): 4 for a in range(4) for b in range(a)}
    found = graphs(node(sm=80, n=4, mesh=mesh, root_ports=True, cpu="x86_amd", numa=4))
    assert (found.max_bw_GBps, found.total_bw_GBps) == (80.0, 240.0)
    assert found.graphs["ring"].bandwidth_GBps == 240.0


V100_BUSBW_GBps = {2: 22.56, 3: 45.13, 4: 85.23, 5: 37.15, 6: 45.73, 7: 86.93, 8: 134.36}
"""All-reduce on the first n GPUs of a V100 cube mesh, nccl-tests, median above 512 MiB:
VIA-Research/vTrain, trace/v100."""


def test_the_strange_bandwidths_of_the_v100_cube_mesh_come_out_of_the_search() -> None:
    found = {}
    for n in V100_BUSBW_GBps:
        system = node(
            "2.12.12", sm=70, n=8, mesh=CUBE_MESH, per_switch=2, pcie_GBps=12.0, keep=range(n)
        )
        found[n] = graphs(system).graphs["ring"].bandwidth_GBps
    # Counted in links: 1, 2, 4, 2 (GPU 4 hangs on GPU 0 alone: through it), 2, 4, 6.
    assert found == {2: 22.0, 3: 44.0, 4: 88.0, 5: 44.0, 6: 44.0, 7: 88.0, 8: 132.0}
    ratios = [V100_BUSBW_GBps[n] / found[n] for n in found]
    assert min(ratios) > 0.84
    assert max(ratios) < 1.05
    # Strictly ordered as measured wherever the search tells two counts apart.
    for a in found:
        for b in found:
            if found[a] < found[b]:
                assert V100_BUSBW_GBps[a] < V100_BUSBW_GBps[b]


def test_five_gpus_of_the_cube_mesh_go_through_a_gpu() -> None:
    system = node(
        "2.12.12", sm=70, n=8, mesh=CUBE_MESH, per_switch=2, pcie_GBps=12.0, keep=range(5)
    )
    assert graphs(system).graphs["ring"].type_intra is PathType.NVB
    off = replace(system, options=SearchOptions(nvb=False))
    ring = graphs(off).graphs["ring"]
    assert ring.type_intra > PathType.NVB
    assert ring.bandwidth_GBps < 22.0


def test_two_gpus_across_sockets_have_one_channel_of_the_socket_link() -> None:
    # NVIDIA/nccl issue 1358: 1 channel × 10, type SYS/PIX, sameChannels 1.
    ring = graphs(node("2.20.5", sm=89, n=2, root_ports=True, p2p=False)).graphs["ring"]
    assert summary(ring) == (1, 10.0, 10.0, "SYS", "PIX")
    assert ring.same_channels


def test_nvlink_pairs_joined_by_pcie_have_two_channels_of_12() -> None:
    # Azure ncv4-graph.xml (4 A100 PCIe, NVLink bridges in pairs, EPYC): ring 2 × 12, SYS.
    mesh = {(0, 1): 12, (2, 3): 12}
    system = node("2.12.12", sm=80, n=4, mesh=mesh, root_ports=True, cpu="x86_amd", numa=4)
    assert summary(graphs(system).graphs["ring"])[:4] == (2, 12.0, 12.0, "SYS")


def test_pcie_boxes_have_one_or_two_slow_channels() -> None:
    for per_switch in (1, 2, 4):
        found = graphs(node(sm=86, n=8, per_switch=per_switch, p2p=False))
        ring = found.graphs["ring"]
        assert 1 <= ring.n_channels <= 2
        assert 3.0 <= ring.bandwidth_GBps <= 24.0
        assert ring.type_intra is PathType.SYS


def test_two_h20_with_two_nics_swap_nics_between_pairs_of_channels() -> None:
    # NVIDIA/nccl issue 1189, NCCL_PXN_DISABLE=1: crossNic 1, 4 channels × 24/24, NVL/PIX,
    # sameChannels 0: NET/3 GPU/0 GPU/1 NET/2, NET/2 GPU/1 GPU/0 NET/3, and both again.
    system = node(
        sm=90, n=8, nvswitch_links=18, pcie_GBps=48.0, nics=[(0, 50.0), (1, 50.0)], keep=range(2),
        options=SearchOptions(pxn=False),
    )  # fmt: skip
    found = graphs(system, network=True)
    assert (found.max_bw_GBps, found.total_bw_GBps) == (48.0, pytest.approx(370.8))
    ring = found.graphs["ring"]
    assert summary(ring) == (4, 24.0, 24.0, "NVL", "PIX")
    assert (ring.cross_nic, ring.same_channels) == (1, False)
    assert [(c.net_in, c.gpus, c.net_out) for c in ring.channels] == [
        (0, (0, 1), 1), (1, (1, 0), 0), (0, (0, 1), 1), (1, (1, 0), 0),
    ]  # fmt: skip


def test_four_10_gbit_ports_give_four_channels_of_1_2() -> None:
    # NVIDIA/nccl issue 601: 4 channels × 1.2/1.2, type SYS/SYS.
    nics = [(0, 1.25), (0, 1.25), (2, 1.25), (2, 1.25)]
    system = node("2.12.12", sm=70, n=4, root_ports=True, pcie_GBps=12.0, nics=nics)
    assert summary(graphs(system, network=True).graphs["ring"]) == (4, 1.2, 1.2, "SYS", "SYS")


def test_p4d_rings_enter_and_leave_by_the_two_gpus_of_a_switch() -> None:
    # aws-ofi-nccl log of 2 p4d nodes: 8 coll channels; rings start at 0, 2, 4, 6 and end at
    # 1, 3, 5, 7, the GPUs next to NIC 0, 1, 2, 3.
    nics = [(i, 12.5) for i in range(4)]
    system = node("2.12.12", sm=80, n=8, nvswitch_links=12, per_switch=2, nics=nics, pcie_GBps=12.0)
    ring = graphs(system, network=True).graphs["ring"]
    assert summary(ring) == (4, 12.0, 12.0, "NVL", "PIX")
    ends = [(c.net_in, c.gpus[0], c.gpus[-1], c.net_out) for c in ring.channels]
    assert ends == [(i, 2 * i, 2 * i + 1, i) for i in range(4)]
    # "Channel 00/08 : 0 7 6 5 4 3 2 1 8 15 14 13 12 11 10 9"
    assert ring_orders(ring, 2, 8)[0].tolist() == [
        0, 7, 6, 5, 4, 3, 2, 1, 8, 15, 14, 13, 12, 11, 10, 9,
    ]  # fmt: skip


def test_eight_h100_with_eight_nics_use_each_nic_once() -> None:
    nics = [(i, 50.0) for i in range(8)]
    system = node(sm=90, n=8, nvswitch_links=18, pcie_GBps=48.0, nics=nics)
    found = graphs(system, network=True)
    ring = found.graphs["ring"]
    # 8 coll channels doubled are the "16 coll channels" of public logs.
    assert (ring.n_channels, ring.bw_inter_GBps) == (8, 48.0)
    assert sorted(c.net_in for c in ring.channels if c.net_in is not None) == list(range(8))
    same = replace(system, options=SearchOptions(cross_nic=0))
    ring = graphs(same, network=True).graphs["ring"]
    # On its own rail, the last GPU sends by the GPU next to the NIC: one more NVLink flow.
    assert summary(ring) == (8, 45.0, 45.0, "NVL", "PXN")
    assert all(c.net_in == c.net_out for c in ring.channels)


def test_without_gpudirect_traffic_takes_the_cpu() -> None:
    nics = [(i, 50.0) for i in range(8)]
    system = node(sm=90, n=8, nvswitch_links=18, pcie_GBps=48.0, nics=nics, gdr=False)
    ring = graphs(system, network=True).graphs["ring"]
    assert ring.type_inter is PathType.PHB
    assert ring.n_channels * ring.bw_inter_GBps < 8 * 48.0
    far = replace(
        node(sm=90, n=8, nvswitch_links=18, pcie_GBps=48.0, nics=nics),
        options=SearchOptions(gdr_level=PathType.LOC),
    )
    assert graphs(far, network=True).graphs["ring"].type_inter is PathType.PHB


def test_p2p_off_leaves_nvlink_unused() -> None:
    system = node(
        sm=80, n=8, nvswitch_links=12, per_switch=2, options=SearchOptions(p2p_level=PathType.LOC)
    )
    found = graphs(system)
    assert found.graphs["ring"].bandwidth_GBps <= 12.0
    assert found.nvlinks_between is None
    assert min(found.gpu_paths.values()) >= PathType.PHB


def test_the_default_p2p_level_depends_on_cpu_and_version() -> None:
    def level(version: str, cpu: str, n: int) -> PathType:
        system = node(version, sm=89, n=n, root_ports=True, cpu=cpu)
        return Paths(system, network=False).p2p_level

    assert level("2.21.5", "x86_amd", 8) is PathType.SYS
    assert level("2.27.3", "x86_amd", 8) is PathType.PXB
    assert level("2.27.3", "x86_amd", 2) is PathType.SYS
    for version in ("2.12.12", "2.21.5", "2.27.3"):
        assert level(version, "x86_intel", 2) is PathType.PXB


def test_p2p_and_host_memory_off_splits_the_node() -> None:
    options = SearchOptions(shared_memory=False)
    nics = [(0, 12.5), (1, 12.5)]
    system = node(sm=89, n=2, root_ports=True, p2p=False, nics=nics, options=options)
    found = search_graphs(system, network=False)
    assert found.domains == ((0,), (1,))
    assert found.graphs["ring"].channels[0].gpus == (0,)
    alone = node(sm=89, n=2, root_ports=True, p2p=False, options=options)
    with pytest.raises(TopologyError, match="neither directly nor through host memory"):
        search_graphs(alone, network=False)


def test_path_types_follow_the_bus() -> None:
    system = node(sm=80, n=8, per_switch=2, nics=[(0, 25.0), (2, 25.0)])
    found = search_graphs(system, network=True)
    assert found.net_paths[0, 0] is PathType.PIX
    assert found.net_paths[2, 0] is PathType.PHB
    assert found.net_paths[0, 1] is PathType.SYS
    assert found.gpu_paths[0, 1] is PathType.PIX
    assert found.gpu_paths[0, 7] is PathType.SYS


def test_a_gpu_sends_by_the_gpu_next_to_the_nic() -> None:
    system = node(sm=90, n=8, nvswitch_links=18, pcie_GBps=48.0, nics=[(0, 50.0)])
    assert search_graphs(system, network=True).net_paths[5, 0] is PathType.PXN
    off = replace(system, options=SearchOptions(pxn=False))
    assert search_graphs(off, network=True).net_paths[5, 0] is PathType.SYS


def test_blackwell_has_more_speed_per_channel() -> None:
    found = graphs(node("2.27.3", sm=100, n=8, nvswitch_links=18))
    assert found.total_bw_GBps == pytest.approx(721.8)
    assert found.graphs["ring"].bandwidth_GBps == 720.0


def test_the_search_is_cached_and_repeats_itself() -> None:
    system = node(sm=80, n=8, nvswitch_links=12)
    assert search_graphs(system, network=False) is search_graphs(system, network=False)
    search_graphs.cache_clear()
    before = search_graphs(system, network=False)
    search_graphs.cache_clear()
    assert search_graphs(system, network=False) == before


@pytest.mark.parametrize("n", [3, 4, 5, 6, 7, 8])
def test_attempts_left_out_by_a_bound_find_nothing(n: int) -> None:
    """The bounds never hide a solution: what they rule out, the search does not find."""
    system = node(
        "2.12.12", sm=70, n=8, mesh=CUBE_MESH, per_switch=2, pcie_GBps=12.0, keep=range(n)
    )
    paths = Paths(system, network=False)
    ruled_out = 0
    for pattern in (Pattern.RING, Pattern.BALANCED_TREE):
        for kind in (PathType.NVL, PathType.NVB):
            for speed in (44.0, 30.0, 22.0, 11.0):
                for count in (1, 2, 4, 6):
                    attempt = Attempt(
                        pattern=pattern, min_channels=count, max_channels=count, bw_intra=speed,
                        bw_inter=speed, type_intra=kind, type_inter=PathType.PIX, cross_nic=0,
                        same_channels=False,
                    )  # fmt: skip
                    if hopeless(paths, attempt, None, network=False):
                        ruled_out += 1
                        walker = Walker(paths, network=False)
                        walker.run(attempt, 2000)
                        assert walker.best is None, attempt
    assert ruled_out > 8


def test_all_that_is_taken_from_links_is_given_back() -> None:
    system = node("2.12.12", sm=70, n=8, mesh=CUBE_MESH, per_switch=2, pcie_GBps=12.0,
                  nics=[(i, 12.5) for i in range(4)])  # fmt: skip
    paths = Paths(system, network=True)
    walker = Walker(paths, network=True)
    before, ports = list(walker.bw), list(walker.net_bw)
    attempt = Attempt(
        pattern=Pattern.BALANCED_TREE, min_channels=1, max_channels=8, bw_intra=22.0, bw_inter=12.0,
        type_intra=PathType.NVB, type_inter=PathType.PHB, cross_nic=0, same_channels=False,
    )  # fmt: skip
    walker.run(attempt, 1500)
    assert walker.best is not None
    assert (walker.bw, walker.net_bw) == (before, ports)


def test_rank_orders_swap_channels_on_odd_nodes_when_nics_cross() -> None:
    nics = [(i, 50.0) for i in range(8)]
    ring = graphs(
        node(sm=90, n=8, nvswitch_links=18, pcie_GBps=48.0, nics=nics), network=True
    ).graphs["ring"]
    assert ring.cross_nic == 1
    orders = ring_orders(ring, 4, 16)
    assert orders.shape == (16, 32)
    assert (np.sort(orders, axis=1) == np.arange(32)).all()
    # Each ring leaves a node by the NIC number that the next node takes it in by: rails.
    for channel in range(16):
        for here in range(4):
            sends = channel_nets(ring, here, 16)[channel][1]
            takes = channel_nets(ring, (here + 1) % 4, 16)[channel][0]
            assert sends == takes


def test_chains_list_the_ranks_node_by_node() -> None:
    tree = graphs(node(sm=80, n=8, nvswitch_links=12)).graphs["tree"]
    orders = chain_orders(tree, 3, 24)
    assert orders.shape == (24, 24)
    assert (orders // 8 == np.repeat(np.arange(3), 8)).all()


@pytest.mark.parametrize("version", ["2.21.5", "2.27.3"])
def test_a_superchip_reaches_its_nic_by_the_cpu(version: str) -> None:
    release = NcclVersion.parse(version)
    system = SearchSystem(
        version=release,
        vertices=(
            SearchVertex(name="gpu0", kind="gpu", sm=90),
            SearchVertex(name="cpu0", kind="cpu"),
            SearchVertex(name="nic0", kind="nic", net_GBps=25.0),
        ),
        links=(
            SearchLink(a="gpu0", b="cpu0", kind="c2c", bandwidth_GBps=450.0),
            SearchLink(a="cpu0", b="nic0", kind="pcie", bandwidth_GBps=48.0),
        ),
        cpu="arm",
        socket_GBps=6.0,
    )
    found = graphs(system, network=True)
    assert summary(found.graphs["ring"])[:3] == (1, 24.0, 24.0)
    # Since 2.27 a NIC at the CPU of a superchip is close enough for GPUDirect.
    expected = PathType.PHB if version == "2.21.5" else PathType.P2C
    assert found.net_paths[0, 0] is expected


def test_impossible_nodes_are_refused_with_all_reasons() -> None:
    good = node(sm=80, n=2, nvswitch_links=12)
    with pytest.raises(TopologyError) as caught:
        replace(
            good,
            cpu="z80",
            vertices=(*good.vertices, SearchVertex(name="gpu0", kind="fpga")),
            links=(*good.links, replace(good.links[0], b="nowhere", kind="rope", bandwidth_GBps=0)),
        )
    text = str(caught.value)
    for part in ("unknown CPU 'z80'", "'fpga'", "'gpu0' twice", "no vertex 'nowhere'", "'rope'",
                 "0 GB/s"):  # fmt: skip
        assert part in text, part
    with pytest.raises(TopologyError, match="has no gpu"):
        replace(good, vertices=good.vertices[2:], links=())
    with pytest.raises(TopologyError, match="needs a NIC"):
        search_graphs(good, network=True)
