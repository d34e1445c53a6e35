"""Set-ups guessed from the headers of real logs."""

from __future__ import annotations

from pathlib import Path

import pytest

from simulator.base.errors import CollsimError
from simulator.importers.nccl_tests import read
from simulator.verdict.check import check_table
from simulator.verdict.guess import chip_of, guess
from simulator.verdict.health import Health
from simulator.verdict.setup import SetUp, fitted

DATA = Path(__file__).parents[1] / "importers" / "data"
CASES = Path(__file__).parent / "data"


@pytest.mark.parametrize(
    ("log", "words"),
    [
        ("superbench_nccl_allreduce.log", {"node": "dgx-a100-40gb", "nodes": "1"}),
        ("aws_efa_eks_p4d_excerpt.log", {"node": "aws-p4d", "nodes": "2"}),
        (
            "coreweave_gb200_1rack.log",
            {"node": "gb200-nvl72", "nodes": "18", "fabric.kind": "nvl_domain"},
        ),
    ],
)
def test_real_headers(log: str, words: dict[str, str]) -> None:
    found = guess(read(DATA / log).tables[0])
    machine = {k: v for k, v in found.words.items() if not k.startswith("costs.")}
    assert machine == words
    assert found.reasons
    # The guess must be a cluster that can be built.
    assert found.resolve({"collective.op": "barrier"}).nodes == int(words["nodes"])


@pytest.mark.parametrize(
    ("log", "why"),
    [
        ("coreweave_h100_mpi_readme.log", "no GPU is named"),
        ("new_2.20_gb10_version_banner.log", "NVIDIA GB10"),
    ],
)
def test_a_header_that_tells_too_little_is_refused_with_a_hint(log: str, why: str) -> None:
    with pytest.raises(CollsimError, match=why) as caught:
        guess(read(DATA / log).tables[0])
    assert "--node" in str(caught.value)
    assert log in str(caught.value)


@pytest.mark.parametrize(
    ("name", "chip"),
    [
        ("NVIDIA H100 80GB HBM3", ("h100", 8)),
        ("NVIDIA H100 PCIe", ("h100-pcie", 0)),
        ("A100-SXM4-40GB", ("a100-sxm4-40gb", 8)),
        ("NVIDIA A100 80GB PCIe", ("a100", 0)),
        ("Tesla V100-SXM3-32GB", ("dgx-2", 16)),
        ("NVIDIA GeForce RTX 4090", ("rtx4090", 0)),
        ("AMD Instinct MI300X", ("mi300x", 8)),
        ("GH200 120GB", ("gh200", 4)),
        ("Vega 20", None),
    ],
)
def test_device_names(name: str, chip: tuple[str, int] | None) -> None:
    assert chip_of(name) == chip


HEADER = """# nThread 1 nGpus 1 minBytes 8 maxBytes 8 step: 2(factor) warmup iters: 5 iters: 20
#  Rank  0 Group  0 Pid 1 on node0 device  0 [0x01] NVIDIA H100 80GB HBM3
#  Rank  1 Group  0 Pid 2 on node1 device  0 [0x01] NVIDIA H100 80GB HBM3
"""
ROW = "1048576 262144 float sum -1 74.78 14.02 14.02 0 76.17 13.77 13.77 0\n"


def test_sockets_and_variables_are_evidence_and_not_set_up() -> None:
    lines = (
        "node0:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/Socket/0\n"
        "node0:1:1 [0] NCCL INFO NCCL_IB_DISABLE set by environment to 1.\n"
    )
    found = guess(read(HEADER + lines + ROW).tables[0])
    assert found.words["node"] == "hgx-h100"
    assert "routing.gpudirect" not in found.words
    assert any("NET/Socket" in text for text in found.evidence)
    assert any("NCCL_IB_DISABLE=1" in text for text in found.evidence)
    # A comparison predicts what ran; a check asks why.
    assert found.as_observed().words["routing.gpudirect"] == "off"


def test_kind_rate_and_use_of_ports_come_from_the_messages() -> None:
    # The tree of the system says NET[25.0], in GB/s; the channels take device 1, which is IB.
    found = guess(read(CASES / "gather_onesided_gdr.log").tables[0])
    assert found.words["node"] == "pcie-a100-40gb-1+1xib200"
    assert found.unknown == ""
    assert any("[1]mlx5_2:1/IB" in reason for reason in found.reasons)
    assert any("channels go through 1 port, 2 channels" in reason for reason in found.reasons)


def test_a_rate_that_no_message_tells_is_asked_for_and_nothing_is_judged() -> None:
    table = read(CASES / "a100pcie_nps4_nogdr.log").tables[0]
    found = guess(table)
    assert found.words["node"] == "pcie-a100-40gb-1+1xib200"
    assert "--node pcie-a100-40gb-1+1xib200" in found.unknown
    machine = check_table(found, table)
    assert machine.health is Health.NOT_JUDGED
    assert machine.diagnosis is None
    # Said by the user, the same node is judged.
    said = SetUp(words={**found.words})
    assert check_table(said, table).health is Health.SICK


@pytest.mark.parametrize(
    ("lines", "node", "words"),
    [
        ("NET/IB : Using [0]mlx5_0:1/RoCE [RO]; OOB eth0", "pcie-a100-80gb-1+1xroce200", {}),
        ("NET/IB : Dev 0 mlx5_0 speed=100000 linkLayer=IB", "pcie-a100-80gb-1+1xib100", {}),
        ("+ NET[12.5] - NET/0 (0/1/12.500000)", "pcie-a100-80gb-1+1xib100", {}),
        ("NET/OFI Selected Provider is efa", "pcie-a100-80gb-1+1xefa200", {}),
    ],
)
def test_ports_of_cards(lines: str, node: str, words: dict[str, str]) -> None:
    header = HEADER.replace("H100 80GB HBM3", "A100 80GB PCIe")
    found = guess(read(header + f"node0:1:1 [0] NCCL INFO {lines}\n" + ROW).tables[0])
    assert found.words["node"].replace("a100-1", "a100-80gb-1") == node
    assert found.words.items() >= words.items()
    # The guess is a cluster that can be built.
    assert found.resolve({"collective.op": "barrier"}).nodes == 2


def test_ports_of_a_whole_machine_follow_the_log() -> None:
    lines = (
        "node0:1:1 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/RoCE [1]mlx5_1:1/RoCE [RO]\n"
        "node0:1:1 [0] NCCL INFO + NET[25.0] - NET/0 (0/1/25.000000)\n"
    )
    found = guess(read(HEADER + lines + ROW).tables[0])
    assert found.words["node.nic_kind"] == "roce"
    assert found.words["node.nic_rate"] == "200 Gbit/s"
    silent = guess(read(HEADER + ROW).tables[0])
    assert "node.nic_rate" not in silent.words
    assert any("the log does not tell it" in reason for reason in silent.reasons)


def test_ranks_of_one_host_and_bus_id_share_a_gpu_of_one_node() -> None:
    shared = HEADER.replace("node1", "node0")
    table = read(shared + ROW).tables[0]
    assert table.n_nodes == 1
    with pytest.raises(CollsimError, match="share one GPU"):
        guess(table)
    doubts = fitted(SetUp(words={"node": "hgx-h100", "nodes": "1"}), table).doubts
    assert any("NCCL refuses" in text for text in doubts)


@pytest.mark.parametrize(
    ("head", "costs", "said"),
    [
        ("RCCL version 2.22.3+hip6.3\n", "nccl", "THE LOG IS OF RCCL"),
        ("NCCL version 2.21.5+cuda12.4\n", "rccl", "THE LOG IS OF NCCL"),
        ("NCCL version 2.21.5+cuda12.4\n", "nccl", ""),
    ],
)
def test_the_library_is_recognised_from_the_header(head: str, costs: str, said: str) -> None:
    table = read(HEADER + head + ROW).tables[0]
    words = {"node": "hgx-h100", "nodes": "2", "gpus_per_node": "1", "costs.profile": costs}
    doubts = " ".join(fitted(SetUp(words=words), table).doubts)
    assert (said in doubts) if said else "THE LOG" not in doubts


def test_amd_logs_are_predicted_with_rccl() -> None:
    header = HEADER.replace("NVIDIA H100 80GB HBM3", "AMD Instinct MI300X")
    found = guess(read(header + ROW).tables[0])
    assert found.profile == "rccl"
    assert found.resolve({"collective.op": "barrier"}).costs.profile == "rccl"
