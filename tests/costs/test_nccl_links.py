"""Physical links become NCCL's constants."""

import pytest

from simulator.base.errors import ScenarioError
from simulator.costs.nccl.links import nccl_link_GBps, socket_GBps
from simulator.costs.nccl.version import NcclVersion

V12, V18, V21, V27 = (NcclVersion(2, minor) for minor in (12, 18, 21, 27))


@pytest.mark.parametrize(
    ("physical", "sm", "version", "expected"),
    [
        (150, 70, V12, 132.0),  # V100, 6 links
        (150, 70, V21, 120.0),
        (300, 80, V21, 240.0),  # A100, 12
        (300, 80, V12, 264.0),
        (450, 90, V18, 360.0),  # H100, 18
        (450, 90, V27, 370.8),
        (200, 90, V21, 164.8),  # H800, 8
        (900, 100, V27, 721.8),  # B200, 18 of 50
        (56.25, 86, V21, 48.0),  # A6000, 4 of 14.06
        (80, 60, V21, 72.0),  # P100, 4 of 20
    ],
)
def test_nvlinks_are_counted(
    physical: float, sm: int, version: NcclVersion, expected: float
) -> None:
    assert nccl_link_GBps("nvlink", physical * 1e9, sm=sm, version=version) == pytest.approx(
        expected
    )


@pytest.mark.parametrize(
    ("rate_GTps", "lanes", "expected"),
    [(8, 16, 12.0), (8, 8, 6.0), (16, 16, 24.0), (16, 8, 12.0), (32, 16, 48.0), (16, 4, 6.0)],
)
def test_pcie_is_guessed_from_its_rate(rate_GTps: float, lanes: int, expected: float) -> None:
    payload = rate_GTps * 128 / 130 * lanes / 8 * 1e9
    assert nccl_link_GBps("pcie", payload, version=V21) == expected
    assert nccl_link_GBps("pcie", payload, version=V21, lanes=lanes) == expected


def test_pcie_2_and_6_have_other_codes() -> None:
    assert nccl_link_GBps("pcie", 5 * 0.8 * 16 / 8 * 1e9, version=V21) == 6.0
    assert nccl_link_GBps("pcie", 64 * 242 / 256 * 16 / 8 * 1e9, version=V27) == 96.0


def test_networks_count_bits_over_eight() -> None:
    for kind in ("infiniband", "roce", "efa"):
        assert nccl_link_GBps(kind, 25e9, version=V21) == 25.0


def test_other_kinds_are_refused() -> None:
    with pytest.raises(ScenarioError, match="unknown link kind for NCCL 'xgmi'"):
        nccl_link_GBps("xgmi", 50e9, version=V21)


@pytest.mark.parametrize(
    ("cpu", "model", "version", "expected"),
    [
        ("x86_intel", "Intel Xeon E5-2698 v4", V21, 6.0),
        ("x86_intel", "Intel Xeon Platinum 8168", V12, 9.0),
        ("x86_intel", "Intel Xeon Platinum 8168", V21, 10.0),
        ("x86_intel", "Intel Xeon Platinum 8358", V27, 10.0),
        ("x86_intel", "Intel Xeon Platinum 8480C", V21, 10.0),
        ("x86_intel", "Intel Xeon Platinum 8480C", V27, 22.0),
        ("x86_intel", "Intel Xeon Platinum 8570", V27, 40.0),
        ("x86_intel", "", V27, 10.0),
        ("x86_amd", "AMD EPYC 7742", V18, 5000.0),
        ("x86_amd", "AMD EPYC 7742", V21, 16.0),
        ("power", "POWER9", V21, 32.0),
        ("arm", "Grace", V27, 6.0),
    ],
)
def test_sockets_have_a_constant_per_class(
    cpu: str, model: str, version: NcclVersion, expected: float
) -> None:
    assert socket_GBps(cpu, model, version) == expected


def test_an_unknown_cpu_is_refused() -> None:
    with pytest.raises(ScenarioError, match="unknown CPU 'riscv'"):
        socket_GBps("riscv", "", V21)
