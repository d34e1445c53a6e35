"""PCIe boxes as one parametric family, and changes written behind any preset's name.

``pcie-<gpu>-<count>`` is a plain server or workstation with so many cards; suffixes change its
layout::

    -1s -2s   one or two sockets (without: two from five cards on)
    -sw       a PCIe switch for every four cards of a socket instead of root ports
    -cx8      each card behind the PCIe switch of its own ConnectX-8 NIC
    -nvl      NVLink bridges (xGMI bridges on AMD cards) over neighbouring cards
    -p2p      cards read each other's memory over PCIe; -nop2p they do not

Changes behind ``+`` fit every preset::

    +4gpus                keeps the first four GPUs
    +1xib200              one 200 Gbit/s InfiniBand port instead of the node's own ones
                          (``ib roce eth ss efa``)
    +4xroce2x100          four bonds of two 100 Gbit/s ports; each is one NIC of their sum
    +2xib200@cpu0@gpu3    where NICs stand: at a CPU, at a PCIe switch (``@switch2``), or beside a
                          GPU, where its own PCIe link leads; places are taken in turn
    +p2p +nop2p           GPUs read each other's memory over PCIe or do not
    +gdr +nogdr           NICs read and write GPU memory or do not

GPUs share NICs where there are fewer NICs than GPUs.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from simulator.base.errors import Problem, TopologyError, unknown_name
from simulator.base.units import is_whole, parse_rate, parse_time
from simulator.fabric.model import NodeTemplate, TemplateLink, TemplateVertex
from topologies.hardware_build import link_of, number_vertices, read
from topologies.hardware_joins import vertex_kind

__all__ = [
    "apply_change",
    "box_mapping",
    "box_name",
    "card_of",
    "pcie_names",
    "split_box",
    "subset",
]

_BOXES = "families/pcie.yaml"
_FLAGS = ("1s", "2s", "sw", "cx8", "nvl", "p2p", "nop2p")
_SYNONYMS = {"xgmi": "nvl", "bridge": "nvl", "switch": "sw"}
_NIC_WORDS = {
    "ib": "infiniband",
    "roce": "roce",
    "eth": "ethernet",
    "ss": "slingshot",
    "efa": "efa",
}
_NICS = re.compile(r"^(\d+)x?(ib|roce|eth|ss|efa)(?:(\d)x)?(\d+)((?:@[a-z]+\d+)*)$")
_GPUS = re.compile(r"^(\d+)gpus?$")
_CHANGES = (
    "4gpus, 1xib200 (ib, roce, eth, ss or efa, Gbit/s; a bond of two ports: 1xroce2x100; "
    "its place: 1xib200@cpu1, @switch0, @gpu3), p2p, nop2p, gdr, nogdr"
)


def _fold(text: str) -> str:
    return re.sub(r"[-_ .]", "", text.lower())


def card_of(text: str) -> str | None:
    """Return the card of the PCIe family that *text* names, or None.

    Examples
    --------
    >>> card_of("RTX 4090"), card_of("3090"), card_of("H100 PCIe")
    ('rtx4090', 'rtx3090', 'h100')
    """
    family = read(_BOXES)
    known = {_fold(card): card for card in family["boxes"]}
    known.update({_fold(also): card for also, card in family["also"].items()})
    return known.get(_fold(text))


def split_box(name: str) -> tuple[str, int, frozenset[str]] | None:
    """Return (card, count, flags) of a family name, or None when it is not one.

    Raises
    ------
    TopologyError
        The name starts with ``pcie`` but its card, count or suffix is unknown.

    Examples
    --------
    >>> split_box("PCIe_RTX-4090_8_p2p")
    ('rtx4090', 8, frozenset({'p2p'}))
    """
    words = re.split(r"[-_ ]+", name.lower())
    if words[0] != "pcie" or len(words) < 3:
        return None
    boxes = read(_BOXES)["boxes"]
    flags = set()
    while len(words) > 1 and not is_whole(words[-1]):
        flag = _SYNONYMS.get(words[-1], words[-1])
        if flag not in _FLAGS:
            raise TopologyError(unknown_name("suffix of a PCIe box", words[-1], _FLAGS))
        flags.add(flag)
        words.pop()
    card = card_of("".join(words[1:-1]))
    if card is None:
        raise TopologyError(unknown_name("card of a PCIe box", "-".join(words[1:-1]), boxes))
    count = int(words[-1])
    if not 1 <= count <= 16:
        raise TopologyError(f"{name}: a PCIe box has 1 to 16 cards, not {count}")
    for one, other in (("1s", "2s"), ("sw", "cx8"), ("p2p", "nop2p")):
        if {one, other} <= flags:
            raise TopologyError(f"{name}: -{one} and -{other} exclude each other")
    return card, count, frozenset(flags)


def box_name(card: str, count: int, flags: frozenset[str]) -> str:
    """Return the canonical name of a box."""
    return "-".join(("pcie", card, str(count), *(flag for flag in _FLAGS if flag in flags)))


def _bridges(card: str, count: int, bridge: dict[str, Any] | None) -> list[dict[str, str]]:
    if bridge is None:
        bridged = [name for name, box in read(_BOXES)["boxes"].items() if "bridge" in box]
        raise TopologyError(
            Problem(
                message=f"{card} takes no bridge between cards",
                allowed=f"-nvl with {', '.join(sorted(bridged))}",
            )
        )
    group = bridge["group"]
    out = []
    for first in range(0, count - 1, group):
        last = min(first + group, count) - 1
        mesh = f"gpu[{first}-{last}]"
        out.append({"mesh": mesh, "link": bridge["link"], "source": bridge["source"]})
    return out


def box_mapping(card: str, count: int, flags: frozenset[str]) -> dict[str, Any]:
    """Return the mapping of a PCIe box, as a node file would hold it."""
    family = read(_BOXES)
    box = family["boxes"][card]
    slot = box["slot"]
    sockets = 2 if "2s" in flags or (count > 4 and "1s" not in flags) else 1
    sockets = min(sockets, count)
    cards = [f"gpu{place}" for place in range(count)]
    host: list[dict[str, str]] = []
    if "sw" in flags or "cx8" in flags or "board" in box:
        per_switch = 1 if "cx8" in flags else box.get("board", 4)
        switches = sockets * -(-count // (sockets * per_switch))
        host += [
            {"join": f"{gpu} - pcie_switch{place * switches // count}", "link": slot}
            for place, gpu in enumerate(cards)
        ]
        host += [
            {"join": f"pcie_switch{place} - cpu{place * sockets // switches}", "link": slot}
            for place in range(switches)
        ]
    else:
        host += [
            {"join": f"{gpu} - cpu{place * sockets // count}", "link": slot}
            for place, gpu in enumerate(cards)
        ]
    links: dict[str, list[dict[str, str]]] = {"host": host}
    if sockets == 2:
        links["socket"] = [{"join": "cpu0 - cpu1", "link": "socket"}]
    if "nvl" in flags:
        links["bridge"] = _bridges(card, count, box.get("bridge"))
    nic = dict(family["nic"])
    if "cx8" in flags:
        nic = dict(family["cx8"])
        links["nic"] = [
            {"join": f"nic[0-{count - 1}] - pcie_switch[0-{count - 1}]", "link": nic["link"]}
        ]
    else:
        links["nic"] = [{"join": "nic0 - cpu0", "link": nic["link"]}]
    p2p = "p2p" in flags or (box["p2p"] and "nop2p" not in flags)
    what = [f"{count}× {card}", f"{sockets} socket{'s' * (sockets > 1)}"]
    what += ["PCIe switches"] * ("sw" in flags) + ["ConnectX-8 per card"] * ("cx8" in flags)
    what += ["bridges"] * ("nvl" in flags) + ["P2P" if p2p else "no P2P"]
    return {
        "summary": "PCIe box: " + ", ".join(what),
        "gpus": {"count": count, "model": box.get("model", card)},
        "platform": box["platform"],
        "links": links,
        "nic": nic,
        "p2p": p2p,
        "gpudirect": box["gpudirect"],
        "source": f"{family['source']}; {box['source']}",
        "source_quality": "weak",
    }


def subset(template: NodeTemplate, n_gpus: int) -> NodeTemplate:
    """Return the node with only its first GPUs in use.

    CPUs, switches and NICs stay, for the hardware is still there.  A NIC on a dropped GPU (as on
    MI250X) is joined to what that GPU's fastest link leads to, through that link.

    Parameters
    ----------
    template
        Node preset.
    n_gpus
        GPUs to keep, from ``gpu0`` on.

    Raises
    ------
    TopologyError
        *n_gpus* is not between 1 and the number of GPUs of the node.
    """
    gpus = [vertex.name for vertex in template.vertices if vertex.kind == "gpu"]
    if not 1 <= n_gpus <= len(gpus):
        raise TopologyError(
            Problem(
                message=f"{template.name} has {len(gpus)} GPUs, {n_gpus} were asked for",
                allowed=f"1 to {len(gpus)}",
            )
        )
    dropped = set(gpus[n_gpus:])
    links = [link for link in template.links if not {link.a, link.b} & dropped]
    for link in template.links:
        gpu, nic = (link.a, link.b) if vertex_kind(link.b) == "nic" else (link.b, link.a)
        if gpu in dropped and vertex_kind(nic) == "nic":
            links.append(_past(template, gpu, nic, link, dropped))
    kept = tuple(vertex for vertex in template.vertices if vertex.name not in dropped)
    return replace(template, vertices=kept, links=tuple(links))


def _past(
    template: NodeTemplate, gpu: str, nic: str, own: TemplateLink, dropped: set[str]
) -> TemplateLink:
    """Return the link that stands for NIC, idle GPU and the GPU's fastest link to a kept vertex."""
    onward = [
        (other, link)
        for link in template.links
        if gpu in (link.a, link.b)
        for other in (link.b if link.a == gpu else link.a,)
        if other not in dropped and vertex_kind(other) != "nic"
    ]
    other, through = max(onward, key=lambda pair: pair[1].bandwidth_Bps)
    return replace(
        own,
        a=nic,
        b=other,
        bandwidth_Bps=min(own.bandwidth_Bps, through.bandwidth_Bps),
        latency_s=own.latency_s + through.latency_s,
        source=f"through the idle {gpu}: {own.source}; {through.source}",
    )


def _place(template: NodeTemplate, text: str) -> str:
    """Return the vertex that a NIC is to be joined to: ``cpu1``, ``switch0`` or ``gpu3``."""
    names = [vertex.name for vertex in template.vertices]
    name = text.replace("switch", "pcie_switch") if text.startswith("switch") else text
    allowed = [n for n in names if vertex_kind(n) in ("cpu", "pcie_switch", "gpu")]
    if name not in allowed:
        shown = [n.replace("pcie_switch", "switch") for n in allowed]
        raise TopologyError(unknown_name(f"place in {template.name}", text, shown))
    if vertex_kind(name) != "gpu":
        return name
    hosts = [
        other
        for link in template.links
        if name in (link.a, link.b)
        for other in (link.b if link.a == name else link.a,)
        if vertex_kind(other) in ("cpu", "pcie_switch")
    ]
    return hosts[0] if hosts else name


def _with_nics(
    template: NodeTemplate, count: int, word: str, gbit: int, at: Sequence[str] = ()
) -> NodeTemplate:
    """Replace the network ports; the new ones are spread over *at*, or where the old ones were."""
    if count < 1 or gbit < 1:
        raise TopologyError(f"{template.name}: at least one NIC of at least 1 Gbit/s")
    nics = {vertex.name for vertex in template.vertices if vertex.kind == "nic"}
    old = [link for link in template.links if {link.a, link.b} & nics]
    places = list(dict.fromkeys(link.b if link.a in nics else link.a for link in old))
    if old:
        slot = max(old, key=lambda link: link.bandwidth_Bps)
        rate_Bps, latency_s, why = slot.bandwidth_Bps, slot.latency_s, slot.source
    else:
        cpus = [vertex.name for vertex in template.vertices if vertex.kind == "cpu"]
        switches = [vertex.name for vertex in template.vertices if vertex.kind == "pcie_switch"]
        places = switches or cpus
        _, rate_Bps, latency_s, why = link_of("pcie4 x16", {})
    if at:
        said = [_place(template, text) for text in at]
        places = [said[nic % len(said)] for nic in range(count)]
    # A faster card than the node came with sits in a slot that feeds it.
    asked_Bps = parse_rate(f"{gbit} Gbit/s")
    for slot_name in ("pcie3 x16", "pcie4 x16", "pcie5 x16", "pcie6 x16"):
        if rate_Bps >= asked_Bps:
            break
        _, wider_Bps, latency_s, why = link_of(slot_name, {})
        rate_Bps = max(rate_Bps, wider_Bps)
    links = [link for link in template.links if link not in old]
    for nic in range(count):
        place = places[nic * len(places) // count]
        links.append(
            TemplateLink(
                a=f"nic{nic}",
                b=place,
                kind="pcie",
                bandwidth_Bps=rate_Bps,
                latency_s=latency_s,
                source=f"NICs as asked for in the name; {why}",
            )
        )
    numa = {
        vertex.name: vertex.numa
        for vertex in template.vertices
        if vertex.kind == "cpu" and vertex.numa is not None
    }
    found = number_vertices([(link.a, link.b) for link in links], numa)
    kept = [vertex for vertex in template.vertices if vertex.kind != "nic"]
    kept += [
        TemplateVertex(name=f"nic{nic}", kind="nic", numa=found.get(f"nic{nic}"))
        for nic in range(count)
    ]
    kind = _NIC_WORDS[word]
    return replace(
        template,
        vertices=tuple(kept),
        links=tuple(links),
        nic_kind=kind,
        nic_rate_Bps=parse_rate(f"{gbit} Gbit/s"),
        nic_latency_s=parse_time(read("links.yaml")["nics"][kind]["latency"]),
    )


def apply_change(template: NodeTemplate, change: str) -> NodeTemplate:
    """Return the node with one change of its name applied, such as ``4gpus`` or ``1xib200``.

    Raises
    ------
    TopologyError
        The change is not understood or does not fit the node.
    """
    word = _fold(change)
    if match := _GPUS.match(word):
        changed = subset(template, int(match.group(1)))
    elif match := _NICS.match(word):
        count, kind, ports, gbit, at = match.groups()
        rate = int(gbit) * int(ports or 1)
        changed = _with_nics(template, int(count), kind, rate, at.split("@")[1:])
    elif word in ("p2p", "nop2p"):
        changed = replace(template, p2p=word == "p2p")
    elif word in ("gdr", "nogdr"):
        changed = replace(template, gpudirect=word == "gdr")
    else:
        raise TopologyError(
            Problem(message=f"unknown change {change!r} of {template.name}", allowed=_CHANGES)
        )
    return replace(changed, name=f"{template.name}+{word}")


def pcie_names(counts: Sequence[int] = (2, 4, 8)) -> list[str]:
    """Return the names of the plain boxes with so many cards."""
    return [f"pcie-{card}-{count}" for card in read(_BOXES)["boxes"] for count in counts]
