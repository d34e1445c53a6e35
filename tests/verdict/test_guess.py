"""Set-ups guessed from the headers of real logs."""

from __future__ import annotations

from pathlib import Path

import pytest

from simulator.base.errors import CollsimError
from simulator.importers.nccl_tests import read
from simulator.verdict.guess import chip_of, guess

DATA = Path(__file__).parents[1] / "importers" / "data"


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
