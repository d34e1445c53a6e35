"""Send and receive: channels per peer, parts, chunks, and the order of rounds."""

from __future__ import annotations

import pytest

from simulator.base.errors import ScenarioError
from simulator.costs.nccl.environment import parse_environment
from simulator.costs.nccl.p2p import P2pChannels, p2p_channels, p2p_plan, p2p_rounds
from simulator.costs.nccl.version import NcclVersion

KIB, MIB = 1 << 10, 1 << 20
V21, V30 = NcclVersion(2, 21, 5), NcclVersion(2, 30, 7)


def test_nvlink_peers_get_two_channels_per_link_and_pcie_peers_two() -> None:
    # A100 with 12 links and 24 channels: 24 → 32 as a power of two.
    assert p2p_channels(V21, 8, 1, 24, nvlinks_between=12) == P2pChannels(
        n_channels=32, per_peer=32
    )
    # 4 links per pair, as in a mesh of four A100.
    assert p2p_channels(V21, 4, 1, 24, nvlinks_between=4).per_peer == 8
    assert p2p_channels(V21, 8, 1, 2, nvlinks_between=None) == P2pChannels(n_channels=2, per_peer=2)


def test_remote_peers_share_the_channels() -> None:
    # 2.21: start at 2, halve while 2·n > 4·16.
    assert p2p_channels(V21, 16, 2, 16, nvlinks_between=18).per_peer == 2
    assert p2p_channels(V21, 32, 4, 16, nvlinks_between=18).per_peer == 2
    assert p2p_channels(V21, 33, 5, 16, nvlinks_between=18).per_peer == 1
    assert p2p_channels(V21, 64, 8, 16, nvlinks_between=18, nics_per_gpu=2).per_peer == 2
    # 2.30: 50 GB/s at 14 each are 4; 2 nodes of 8 fit: 4·ceil(16/8) ≤ 16.
    assert p2p_channels(V30, 16, 2, 16, nvlinks_between=18, net_GBps=50).per_peer == 4
    # 128 ranks: 16 batches; one each.
    assert p2p_channels(V30, 128, 16, 16, nvlinks_between=18, net_GBps=50).per_peer == 1


def test_the_environment_sets_channels() -> None:
    def given(**values: object) -> P2pChannels:
        env = parse_environment(values, V21)
        return p2p_channels(V21, 16, 2, 16, nvlinks_between=18, environment=env)

    assert given(NCCL_MAX_P2P_NCHANNELS=4).n_channels == 4
    assert given(NCCL_MIN_P2P_NCHANNELS=20).n_channels == 32
    assert given(NCCL_NCHANNELS_PER_NET_PEER=8).per_peer == 8


def plan(size: int, channels: P2pChannels, *, n_ranks: int = 8, **more: object) -> object:
    where = {"n_nodes": 1, "remote": False, "all_nvlink": True, **more}
    return p2p_plan(V21, size, channels, n_ranks=n_ranks, **where)  # type: ignore[arg-type]


def test_chunks_depend_on_what_is_between() -> None:
    few = P2pChannels(n_channels=8, per_peer=2)
    assert plan(64 * MIB, few).chunk_bytes == 512 * KIB  # type: ignore[attr-defined]
    assert plan(64 * MIB, few, all_nvlink=False).chunk_bytes == 128 * KIB  # type: ignore[attr-defined]
    for size, chunk in ((64 * MIB, 128), (MIB, 64), (64 * KIB, 32)):
        over = plan(size, few, n_nodes=2, remote=True)
        assert over.chunk_bytes == chunk * KIB, size  # type: ignore[attr-defined]


def test_small_messages_inside_a_node_use_ll() -> None:
    few = P2pChannels(n_channels=8, per_peer=2)
    assert plan(32 * KIB, few).protocol == "LL"  # type: ignore[attr-defined]
    assert plan(32 * KIB + 1, few).protocol == "Simple"  # type: ignore[attr-defined]
    assert plan(8, few, n_nodes=2, remote=True).protocol == "Simple"  # type: ignore[attr-defined]


def test_large_messages_are_spread_over_more_channels() -> None:
    many = P2pChannels(n_channels=32, per_peer=32)
    # 8 ranks at once: 4 channels per pair while a part is at most 32 · 512 KiB.
    assert plan(64 * MIB, many).n_channels == 4  # type: ignore[attr-defined]
    assert plan(128 * MIB, many).n_channels == 8  # type: ignore[attr-defined]
    # The smallest part is 64 KiB.
    assert plan(100 * KIB, many).n_channels == 2  # type: ignore[attr-defined]
    assert plan(0, many).n_channels == 1  # type: ignore[attr-defined]


def test_since_2_28_a_channel_s_share_decides_about_ll() -> None:
    # 4 ranks, 32 channels: 8 a pair.  128 KiB make two parts of 64 KiB of Simple: more than 16 KiB
    # each.  Before, all that fits 16 KiB times the pair's 32 channels was LL, in parts of an
    # eighth of LL's slot of 64 KiB.
    many = P2pChannels(n_channels=32, per_peer=32)

    def made(version: str, size: int) -> tuple[str, int]:
        found = p2p_plan(
            NcclVersion.parse(version),
            size,
            many,
            n_ranks=4,
            n_nodes=1,
            remote=False,
            all_nvlink=True,
        )
        return found.protocol, found.n_channels

    assert made("2.28.9", 128 * KIB) == ("Simple", 2)
    assert made("2.28.9", 16 * KIB) == ("LL", 1)
    assert made("2.23.4", 128 * KIB) == ("LL", 8)
    assert made("2.21.5", 128 * KIB) == ("LL", 2)


def test_rounds_visit_each_peer_once_in_quadratic_order() -> None:
    assert [local for _, local in p2p_rounds(1, 16)] == [
        0, 1, 3, 6, 10, 15, 5, 12, 4, 13, 7, 2, 14, 11, 9, 8,
    ]  # fmt: skip
    for nodes in (1, 2, 3, 5):
        for ranks in (1, 4, 6, 8):
            rounds = p2p_rounds(nodes, ranks)
            assert sorted(rounds) == [(a, b) for a in range(nodes) for b in range(ranks)]
            # In a round every rank sends to one and receives from one.
            for node, local in rounds:
                targets = {((i + node) % nodes, (j + local) % ranks)
                           for i in range(nodes) for j in range(ranks)}  # fmt: skip
                assert len(targets) == nodes * ranks


def test_bad_communicators_are_refused() -> None:
    with pytest.raises(ScenarioError, match="0 channels"):
        p2p_channels(V21, 8, 1, 0, nvlinks_between=None)
