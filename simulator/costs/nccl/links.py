"""From physical links to NCCL's own constants for them.

NCCL does not measure a node: it takes a table value per NVLink, PCIe lane and inter-socket link.

References
----------
NCCL src/graph/topo.h and topo.cc, 2.12 … 2.30.
"""

from __future__ import annotations

import re

from simulator.base.errors import Problem, ScenarioError, unknown_name
from simulator.costs.nccl.communicator import CPUS
from simulator.costs.nccl.tables import read_table, since
from simulator.costs.nccl.version import NcclVersion

__all__ = ["SM_BY_GENERATION", "nccl_link_GBps", "nvlink_count", "socket_GBps"]

SM_BY_GENERATION = {
    "pascal": 60,
    "volta": 70,
    "turing": 75,
    "ampere": 80,
    "ada": 89,
    "hopper": 90,
    "blackwell": 100,
}
"""Compute capability ×10 by generation name; GA102 boards (A10, A40, A6000, RTX 30) are 86 and
consumer Blackwell 120, which the caller must know."""

_PCIE_LANE_GBps = 8 * 128 / 130 / 8
"""Payload of one lane per 8 GT/s, after the 128b/130b code."""


def _by_bound(bounds: dict[int, float], sm: int) -> float:
    held = [bound for bound in bounds if bound <= sm]
    return float(bounds[max(held) if held else min(bounds)])


def _pcie_GBps(physical_GBps: float) -> float:
    """Return NCCL's value for the lanes and rate that come closest to a physical rate."""
    table = read_table("topology")
    options = []
    for rate, value in table["pcie_lane"].items():
        coding = 0.8 if rate < 8 else (128 / 130 if rate < 64 else 242 / 256)
        options += [
            (rate * coding * lanes / 8, lanes * value / 80) for lanes in table["pcie_lanes"]
        ]
    return float(min(options, key=lambda option: abs(option[0] - physical_GBps))[1])


def nvlink_count(physical_GBps: float, *, sm: int) -> int:
    """Return how many NVLinks of a GPU have this rate together, at least one.

    Examples
    --------
    >>> nvlink_count(450.0, sm=90), nvlink_count(50.0, sm=70)
    (18, 2)
    """
    unit = _by_bound(read_table("topology")["nvlink_physical_GBps"], sm)
    return max(1, round(physical_GBps / unit))


def _nvlink_GBps(physical_GBps: float, sm: int, version: NcclVersion) -> float:
    return nvlink_count(physical_GBps, sm=sm) * _by_bound(
        since("topology", "nvlink_GBps", version)["bounds"], sm
    )


def nccl_link_GBps(
    kind: str, physical_Bps: float, *, sm: int = 80, version: NcclVersion, lanes: int = 0
) -> float:
    """Return the bandwidth NCCL gives a link of a node.

    Parameters
    ----------
    kind
        ``nvlink``, ``pcie``, ``nvlink_c2c``, or of the network ``infiniband``, ``roce``,
        ``ethernet``, ``slingshot``, ``efa``.  Sockets: `socket_GBps`.
    physical_Bps
        Payload per direction, all parallel links together.
    sm
        Compute capability ×10 of the GPU at the end of an NVLink.
    version
        NCCL's.
    lanes
        PCIe lanes where they are known, else 0: guessed from the rate.

    Raises
    ------
    ScenarioError
        A kind NCCL has no constant for.

    Examples
    --------
    >>> v = NcclVersion(2, 21)
    >>> nccl_link_GBps("nvlink", 300e9, sm=80, version=v)  # 12 NVLinks of an A100
    240.0
    >>> round(nccl_link_GBps("nvlink", 450e9, sm=90, version=v), 1)
    370.8
    >>> [nccl_link_GBps("pcie", bw * 1e9, version=v) for bw in (15.75, 31.5, 63.0)]
    [12.0, 24.0, 48.0]
    >>> nccl_link_GBps("infiniband", 50e9, version=v)
    50.0
    """
    physical_GBps = physical_Bps / 1e9
    if kind == "nvlink":
        return _nvlink_GBps(physical_GBps, sm, version)
    if kind == "pcie":
        if lanes:
            rate = physical_GBps / lanes / _PCIE_LANE_GBps * 8
            table = read_table("topology")["pcie_lane"]
            return lanes * float(table[min(table, key=lambda gts: abs(gts - rate))]) / 80
        return _pcie_GBps(physical_GBps)
    if kind in ("nvlink_c2c", "infiniband", "roce", "ethernet", "slingshot", "efa"):
        return physical_GBps
    raise ScenarioError(
        unknown_name(
            "link kind for NCCL",
            kind,
            (
                "nvlink",
                "pcie",
                "nvlink_c2c",
                "infiniband",
                "roce",
                "ethernet",
                "slingshot",
                "efa",
            ),
        )
    )


def _intel_class(model: str) -> str:
    """Return NCCL's class of an Intel CPU from its name; a Skylake when the name does not tell."""
    folded = model.lower().replace("®", "")
    if re.search(r"e[57]-\d", folded) or "broadwell" in folded or "haswell" in folded:
        return "broadwell"
    number = re.search(r"\b([4-9])([1-9])(\d\d)[a-z+]*\b", folded)
    series = int(number.group(2)) if number else 0
    if "emerald" in folded or "granite" in folded or series == 5 or re.search(r"\b67\d\d", folded):
        return "emerald_rapids"
    if "sapphire" in folded or series == 4 or "max 94" in folded:
        return "sapphire_rapids"
    return "skylake"


def socket_GBps(cpu: str, cpu_model: str, version: NcclVersion) -> float:
    """Return the bandwidth NCCL gives the link between two NUMA nodes.

    Parameters
    ----------
    cpu
        ``x86_intel``, ``x86_amd``, ``arm`` or ``power``.
    cpu_model
        Name of the CPU; of Intel's it decides the class.
    version
        NCCL's.

    Raises
    ------
    ScenarioError
        Unknown kind of CPU.

    Examples
    --------
    >>> v = NcclVersion(2, 27)
    >>> names = ["Intel Xeon E5-2698 v4", "Xeon Platinum 8275CL", "Xeon Platinum 8480C"]
    >>> [socket_GBps("x86_intel", name, v) for name in names]
    [6.0, 10.0, 22.0]
    """
    if cpu not in CPUS:
        raise ScenarioError(Problem(message=f"unknown CPU {cpu!r}", allowed=", ".join(CPUS)))
    row = since("topology", "socket_GBps", version)
    return float(row[_intel_class(cpu_model) if cpu == "x86_intel" else cpu])
