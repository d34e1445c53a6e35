"""A set-up guessed from a log's header: GPU names, ranks, hosts, transports, variables.

The guess is a preset that fits what is known; every step of it is told.  What the log shows of
the software's state (sockets instead of verbs, variables that switch paths off) is kept apart as
*observed*: a comparison predicts with it, a check asks whether it is the fault.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import PurePath

from simulator.importers import MeasuredTable
from simulator.scenario.plugins import library_of
from simulator.verdict.doubts import shared_gpu
from simulator.verdict.ports import ports_of
from simulator.verdict.processors import host_set_up
from simulator.verdict.setup import SetUp, refuse_guess
from simulator.verdict.variables import fault_variables, modelled_version

__all__ = ["chip_of", "guess", "with_observed"]

_CHIPS: tuple[tuple[str, str, int], ...] = (
    (r"gb300", "gb300", 4),
    (r"gb200", "gb200", 4),
    (r"gh200", "gh200", 4),
    (r"b300", "b300", 8),
    (r"b200", "b200", 8),
    (r"h100.*nvl", "h100-nvl", 0),
    (r"h200.*nvl", "h200-nvl", 0),
    (r"h100.*pcie", "h100-pcie", 0),
    (r"h200", "h200", 8),
    (r"h100", "h100", 8),
    (r"h800", "h800", 8),
    (r"\bh20\b", "h20", 8),
    (r"a800", "a800", 8),
    (r"a100.*pcie.*40|a100.*40.*pcie", "a100-40gb", 0),
    (r"a100.*pcie", "a100", 0),
    (r"a100.*40", "a100-sxm4-40gb", 8),
    (r"a100", "a100-sxm4-80gb", 8),
    (r"v100.*pcie", "v100", 0),
    (r"v100.*sxm3", "dgx-2", 16),
    (r"v100", "v100", 8),
    (r"mi250", "mi250x", 8),
    (r"mi300", "mi300x", 8),
    (r"mi325", "mi325x", 8),
    (r"mi355", "mi355x", 8),
    (r"a10g", "aws-g5", 8),
)
"""Pattern of a device's name, collsim's name of it, GPUs of its usual node (0: a PCIe card)."""

_EFA = {
    "a100-sxm4-40gb": "aws-p4d",
    "a100-sxm4-80gb": "aws-p4de",
    "h100": "aws-p5",
    "h200": "aws-p5en",
    "b200": "aws-p6-b200",
    "b300": "aws-p6-b300",
}
_GOOGLE = {"h200": "gcp-a3-ultra", "b200": "gcp-a4"}


def chip_of(name: str) -> tuple[str, int] | None:
    """Return collsim's name of a device and the GPUs of its usual node (0: a PCIe card).

    Examples
    --------
    >>> chip_of("NVIDIA H100 80GB HBM3"), chip_of("NVIDIA GeForce RTX 4090"), chip_of("GB10")
    (('h100', 8), ('rtx4090', 0), None)
    """
    folded = re.sub(r"[\[\](),]", " ", name.lower())
    for pattern, chip, count in _CHIPS:
        if re.search(pattern, folded):
            return chip, count
    from topologies.hardware_family import card_of

    words = re.sub(
        r"\b(nvidia|geforce|tesla|quadro|amd|instinct|generation|gpu|ada)\b", " ", folded
    )
    card = card_of("".join(words.split()))
    return (card, 0) if card else None


def guess(table: MeasuredTable) -> SetUp:
    """Return the set-up that a log's header suggests, with its reasons.

    Raises
    ------
    ScenarioError
        The log does not tell the GPU or the number of ranks.
    """
    hosts = host_set_up(table)
    if hosts is not None:
        return with_observed(hosts, table)
    reasons: list[str] = []
    found = _chip(table, reasons)
    if table.n_ranks is None:
        raise refuse_guess(table, "the log does not tell the number of ranks")
    chip, whole = found
    if shared := shared_gpu(table):
        raise refuse_guess(table, shared)
    nodes = table.n_nodes
    if nodes is None:
        nodes = -(-table.n_ranks // (whole or table.n_ranks))
        told = f"{whole} GPUs of a usual node" if whole else "the log names no hosts"
        reasons.append(f"{nodes} node{'s' if nodes > 1 else ''}: {table.n_ranks} ranks, {told}")
    else:
        reasons.append(f"{nodes} node{'s' if nodes > 1 else ''}: hosts and devices of the log")
    if table.n_ranks % nodes:
        raise refuse_guess(table, f"{table.n_ranks} ranks do not divide over {nodes} nodes")
    per_node = table.n_ranks // nodes
    node = _node(table, chip, whole, per_node, nodes, reasons)
    node, ports, unknown = ports_of(table, node, nodes, reasons)
    words = {"node": node, "nodes": str(nodes), **ports}
    if whole and per_node != whole:
        words["gpus_per_node"] = str(per_node)
    if chip.startswith("mi"):
        reasons.append("RCCL: the GPUs are AMD's")
    if chip in ("gb200", "gb300") and nodes > 1:
        words["fabric.kind"] = "nvl_domain"
        reasons.append("NVL72 racks of 18 trays, filled in order of the ranks")
    return with_observed(SetUp(words=words, reasons=tuple(reasons), unknown=unknown), table)


def _chip(table: MeasuredTable, reasons: list[str]) -> tuple[str, int]:
    for name in table.gpus:
        found = chip_of(name)
        if found is not None:
            more = f" (of {len(table.gpus)} kinds)" if len(table.gpus) > 1 else ""
            reasons.append(f"GPU {found[0]}: the device lines say {name!r}{more}")
            return found
    file = PurePath(table.source).name
    for host in (*table.hosts, file):
        found = chip_of(re.sub(r"[-_.]", " ", host))
        if found is not None and (table.gpus or host != file):
            reasons.append(f"GPU {found[0]}: the host is called {host!r}")
            return found
    said = f"no preset is known for {', '.join(table.gpus)}" if table.gpus else "no GPU is named"
    raise refuse_guess(table, said)


def _node(
    table: MeasuredTable, chip: str, whole: int, per_node: int, nodes: int, reasons: list[str]
) -> str:
    """Return the preset of a chip, by the network that the log shows."""
    from topologies import hardware

    via = " ".join(table.transports).lower()
    wires = f"{via} {' '.join(table.environment.values()).lower()}"
    if nodes > 1 and ("libfabric" in via or "efa" in wires) and chip in _EFA:
        reasons.append(f"{_EFA[chip]}: the transport is AWS Libfabric or EFA")
        return _EFA[chip]
    if nodes > 1 and "gib" in via and chip in _GOOGLE:
        reasons.append(f"{_GOOGLE[chip]}: the transport is gIB")
        return _GOOGLE[chip]
    if nodes > 1 and chip == "h100" and "fastrak" in via:
        reasons.append("gcp-a3-mega: the transport is FasTrak")
        return "gcp-a3-mega"
    if nodes > 1 and chip == "h100" and "tcpx" in wires:
        reasons.append("gcp-a3-high: the transport is TCPX")
        return "gcp-a3-high"
    if whole == 0:
        return hardware.canonical(f"pcie-{_CARDS.get(chip, chip)}-{per_node}")
    if chip == "gh200" and per_node == 1 and nodes == 1:
        return "gh200"
    name = chip if chip in hardware.names() else f"{whole}x{chip}"
    return hardware.canonical(name)


_CARDS = {
    "h100-nvl": "h100nvl",
    "h200-nvl": "h200nvl",
    "h100-pcie": "h100",
    "a100-40gb": "a100-40gb",
}


def with_observed(set_up: SetUp, table: MeasuredTable) -> SetUp:
    """Return the set-up with what the log shows of transports and variables."""
    transports, nodes = table.transports, table.n_nodes or 2
    words: dict[str, str] = {}
    evidence: list[str] = []
    nets = [name for name in transports if name.startswith("NET")]
    if nodes > 1 and nets:
        if all("/Socket" in name for name in nets):
            words |= {"node.nic_kind": "ethernet", "routing.gpudirect": "off"}
            evidence.append("NCCL reports NET/Socket: TCP, not verbs")
        elif not any("GDRDMA" in name for name in nets):
            words["routing.gpudirect"] = "off"
            evidence.append("NCCL reports no GDRDMA connection: GPUDirect is off")
    if any(name.startswith("SHM") for name in transports):
        evidence.append("NCCL reports SHM connections: through host memory")
        if not any(name.startswith("P2P") for name in transports):
            words["routing.p2p"] = "off"
    for name, value in fault_variables(table).items():
        # Quoted: a comma in a value separates no variants.
        words[f"env.{name}"] = json.dumps(value)
        evidence.append(f"{name}={value} is set")
    return replace(
        set_up,
        words={**_software(set_up, table), **set_up.words},
        observed=words,
        evidence=(*evidence, *_said(table)),
        transports=tuple(transports),
        nics_seen=table.n_nics,
    )


def _said(table: MeasuredTable) -> list[str]:
    """Return what the library's own messages say, in a sentence each."""
    found = [f"NCCL says {text!r}" for text in table.messages]
    if table.algorithm is not None:
        found.append(
            f"the schedule {table.algorithm} × {table.channels} was run by send and receive, so it "
            "is predicted, not the library's choice"
        )
    if table.n_nics is not None:
        plural = "" if table.n_nics == 1 else "s"
        found.append(f"NCCL lists {table.n_nics} network device{plural}")
    return found


def _software(set_up: SetUp, table: MeasuredTable) -> dict[str, str]:
    """Return how the calls were launched and the library's version, where the log tells them."""
    words: dict[str, str] = {}
    run = table.parameters
    together = (run.n_gpus or 1) * (run.n_threads or 1)
    if together > 1:
        words["costs.gpus_per_process"] = str(together)
    version = modelled_version(table)
    if version is not None and set_up.file is None and library_of(set_up.profile) == "nccl":
        words["costs.version"] = version
    return words
