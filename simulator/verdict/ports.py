"""The network ports of a guessed set-up: what the log tells of them, and what must be asked for."""

from __future__ import annotations

from simulator.importers import MeasuredTable
from simulator.importers.log_network import NetworkTold
from simulator.scenario.plugins import node_template

__all__ = ["ports_of"]

_NAMES = {"infiniband": "ib", "roce": "roce", "ethernet": "eth", "slingshot": "ss", "efa": "efa"}
_WORDS = {
    "infiniband": "InfiniBand",
    "roce": "RoCE",
    "ethernet": "Ethernet",
    "slingshot": "Slingshot",
    "efa": "EFA",
}
_USUAL_Gbps = {"volta": 100, "turing": 100, "ampere": 200}
"""A usual port beside PCIe cards of a generation; newer ones: 400.  Told as assumed."""
_NEWER_Gbps = 400
_CLOUDS = ("aws-", "gcp-", "azure-", "oci-")


def ports_of(
    table: MeasuredTable, node: str, nodes: int, reasons: list[str]
) -> tuple[str, dict[str, str], str]:
    """Return the node with its network ports, words that change them, and what is not known.

    Parameters
    ----------
    table
        Of the log.
    node
        Preset by the GPUs alone.
    nodes
        Ports of one node alone do not matter.
    reasons
        Takes a sentence for each part.
    """
    if nodes == 1:
        return node, {}, ""
    told = table.network or NetworkTold()
    template = node_template(node)
    _tell_use(told, reasons)
    if not node.startswith("pcie-"):
        return node, *_of_machine(told, node, reasons)
    if told.kind == "ethernet" and told.rate_Bps is None:
        reasons.append(f"network TCP: the log says {told.by!r}")
        return node, {}, _ask(node, "eth", "rate", 1)
    rate_Gbps = _rate_Gbps(told, reasons)
    usual = _USUAL_Gbps.get(template.gpu.generation, _NEWER_Gbps)
    if told.kind is None and rate_Gbps is None:
        reasons.append(f"network of {node}: assumed, the log tells neither kind nor rate")
        return node, {}, _ask(node, "ib", "kind and rate", usual)
    kind = told.kind or "infiniband"
    if told.kind is None:
        reasons.append("network ports InfiniBand: assumed, the log does not tell the kind")
    else:
        reasons.append(f"network ports {_WORDS[kind]}: the log says {told.by!r}")
    unknown = ""
    if rate_Gbps is None:
        reasons.append(f"{usual} Gbit/s a port: assumed, usual for these GPUs; the log is silent")
        unknown = _ask(node, _NAMES[kind], "rate", usual)
    ports = f"{told.used or 1}x{_NAMES[kind]}{rate_Gbps or usual}"
    return f"{node}+{ports}", {}, unknown


def _of_machine(told: NetworkTold, node: str, reasons: list[str]) -> tuple[dict[str, str], str]:
    """Return words for what the log tells otherwise than a whole machine's preset."""
    template = node_template(node)
    words: dict[str, str] = {}
    if node.startswith(_CLOUDS) or told.kind == "ethernet":
        return words, ""
    if told.kind is not None and told.kind != template.nic_kind:
        words["node.nic_kind"] = told.kind
        reasons.append(f"network ports {_WORDS[told.kind]}: the log says {told.by!r}")
    rate_Gbps = _rate_Gbps(told, reasons)
    if rate_Gbps is None:
        rate = f"{template.nic_rate_Bps * 8e-9:.0f} Gbit/s"
        reasons.append(f"{rate} a port: that of {node}, the log does not tell it")
    elif abs(rate_Gbps * 1e9 / 8 - template.nic_rate_Bps) > 0.05 * template.nic_rate_Bps:
        words["node.nic_rate"] = f"{rate_Gbps} Gbit/s"
    return words, ""


def _rate_Gbps(told: NetworkTold, reasons: list[str]) -> int | None:
    if told.rate_Bps is None:
        return None
    rate_Gbps = round(told.rate_Bps * 8e-9)
    reasons.append(f"{rate_Gbps} Gbit/s a port: the library's messages say it")
    return rate_Gbps


def _tell_use(told: NetworkTold, reasons: list[str]) -> None:
    parts = []
    if told.used is not None:
        parts.append(f"channels go through {told.used} port{'s' if told.used > 1 else ''}")
    if told.channels is not None:
        parts.append(f"{told.channels} channels")
    if parts:
        reasons.append(f"NCCL's messages: {', '.join(parts)}")


def _ask(node: str, word: str, what: str, rate_Gbps: int) -> str:
    rate = rate_Gbps if rate_Gbps > 1 else 100
    return (
        f"the log does not tell the {what} of the network's ports: give them, as --node "
        f"{node}+1x{word}{rate} for one of {rate} Gbit/s"
    )
