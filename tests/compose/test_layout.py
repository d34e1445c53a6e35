"""Orders of ranks: rings along links, entering nodes by the GPU next to a NIC, rails kept."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from simulator import run
from simulator.compose.layout import heads, interconnect, layout_for, node_cycles
from topologies import hardware


def layout(name: str, nodes: int, channels: int):
    template = hardware.load(name)
    gpus = sum(vertex.kind == "gpu" for vertex in template.vertices)
    return (
        template,
        gpus,
        layout_for(
            [template] * nodes,
            np.repeat(np.arange(nodes), gpus),
            np.tile(np.arange(gpus), nodes),
            channels,
        ),
    )


@pytest.mark.parametrize(
    ("name", "kind"), [("dgx-h100", "nvswitch"), ("mi300x", "mesh"), ("pcie-rtx4090-4", "pcie")]
)
def test_interconnect(name: str, kind: str) -> None:
    assert interconnect(hardware.load(name)) == kind


@pytest.mark.parametrize("name", ["dgx-h100", "dgx-1-v100", "perlmutter", "pcie-l40s-8"])
@pytest.mark.parametrize("nodes", [1, 2, 3])
@pytest.mark.parametrize("channels", [1, 3, 8])
def test_rings_and_chains_are_permutations_node_by_node(
    name: str, nodes: int, channels: int
) -> None:
    _, gpus, found = layout(name, nodes, channels)
    for orders in (found.rings, found.chains):
        assert orders is not None
        assert orders.shape == (channels, nodes * gpus)
        for order in orders:
            assert sorted(order) == list(range(nodes * gpus))
            assert (np.asarray(order) // gpus == np.repeat(np.arange(nodes), gpus)).all()


def test_eight_channels_enter_by_eight_rails() -> None:
    _, _, found = layout("dgx-h100", 2, 8)
    assert found.rings is not None
    assert sorted(found.rings[:, 0]) == list(range(8))


def test_a_ring_stays_on_its_rail_between_nodes() -> None:
    # Every second node is walked backwards: a ring leaves by GPU x and enters by GPU x.
    _, _, found = layout("dgx-h100", 4, 8)
    assert found.rings is not None
    for ring in found.rings:
        closed = [*ring.tolist(), int(ring[0])]
        for a, b in pairwise(closed):
            if a // 8 != b // 8:
                assert a % 8 == b % 8


def test_cube_mesh_rings_use_every_nvlink_once_each_way() -> None:
    # Hybrid cube mesh: 6 links a GPU, 16 pairs, 24 links: three rings both ways use all of them.
    template = hardware.load("dgx-1-v100")
    cycles = node_cycles(template, tuple(range(8)))
    used: dict[tuple[int, int], int] = {}
    for cycle in cycles:
        for a, b in zip(cycle, (*cycle[1:], cycle[0]), strict=True):
            used[a, b] = used.get((a, b), 0) + 1
    links: dict[tuple[int, int], float] = {}
    for link in template.links:
        if link.kind == "nvlink" and link.a.startswith("gpu") and link.b.startswith("gpu"):
            a, b = int(link.a[3:]), int(link.b[3:])
            links[a, b] = links[b, a] = links.get((a, b), 0) + link.bandwidth_Bps
    unit = min(links.values())
    scale = len(cycles) / 6
    assert sum(used.values()) == pytest.approx(scale * sum(links.values()) / unit)
    assert all(count * unit <= scale * links[pair] + 1 for pair, count in used.items())


def test_full_mesh_of_eight_uses_all_seven_links() -> None:
    cycles = node_cycles(hardware.load("mi300x"), tuple(range(8)))
    per_pair: dict[tuple[int, int], int] = {}
    for cycle in cycles:
        for pair in zip(cycle, (*cycle[1:], cycle[0]), strict=True):
            per_pair[pair] = per_pair.get(pair, 0) + 1
    assert len(per_pair) == 8 * 7
    assert len(set(per_pair.values())) == 1


def test_heads_are_the_nearest_gpus_and_share_the_work() -> None:
    assert heads(hardware.load("dgx-h100"), tuple(range(8))) == tuple(range(8))
    one_nic = heads(hardware.load("aws-p3dn"), tuple(range(8)))
    assert len(set(one_nic)) == len(one_nic)


@pytest.mark.parametrize("gpus_per_node", [1, 2, 3])
def test_a_domain_of_nodes_with_few_gpus(gpus_per_node: int):
    """Which GPUs of a node take part does not matter for how many NICs it has."""
    row = run(
        node="gb200-nvl72",
        nodes=3,
        gpus_per_node=gpus_per_node,
        collective={"op": "all_gather", "size": "8 KiB"},
    ).rows[0]
    assert row.world_size == 3 * gpus_per_node
    assert row.time_s > 0
