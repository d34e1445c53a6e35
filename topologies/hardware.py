"""Hardware presets by the names people say: ``dgx-h100``, ``p5.48xlarge``, ``pcie-rtx4090-8-p2p``.

A name is a node file under ``hardware/nodes``, an alias of one, a box of the PCIe family
(`topologies.hardware_family`), or words such as ``8xH100``; changes follow after ``+``.  Case,
hyphens, underscores, blanks and dots do not matter.

``docs/presets.md`` is made by::

    python -c "from topologies.hardware import write_docs; write_docs('docs/presets.md')"
"""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path

from simulator.base.errors import Problem, TopologyError, nearest
from simulator.base.units import format_rate
from simulator.fabric.model import NodeTemplate
from topologies.hardware_build import DATA, build, merged, read
from topologies.hardware_family import (
    apply_change,
    box_mapping,
    box_name,
    card_of,
    pcie_names,
    split_box,
    subset,
)
from topologies.hardware_host import host_name, host_template, split_host

__all__ = ["aliases", "families", "load", "markdown", "names", "subset", "summary", "write_docs"]

_WORDS = re.compile(r"^(\d+)\s*x\s*(.+)$")


def _fold(text: str) -> str:
    return re.sub(r"[-_ .]", "", text.lower())


@lru_cache(maxsize=1)
def _node_names() -> tuple[str, ...]:
    return tuple(sorted(path.stem for path in (DATA / "nodes").glob("*.yaml")))


def names() -> list[str]:
    """Return the names of all presets: node files, then PCIe boxes of 2, 4 and 8 cards.

    Examples
    --------
    >>> "dgx-h100" in names() and "pcie-l40s-8" in names()
    True
    """
    return [*_node_names(), *pcie_names()]


def families() -> dict[str, str]:
    """Return the parametric families: the pattern of the name to what it means."""
    return {
        "pcie-<card>-<count>[-1s|-2s][-sw|-cx8][-nvl][-p2p|-nop2p]": read("families/pcie.yaml")[
            "summary"
        ],
        "cpu-<processes>[-<n>cores]": read("families/cpu.yaml")["summary"],
        "<preset>+<n>gpus": "the first n GPUs of a preset",
        "<preset>+<n>x<ib|roce|eth|ss|efa>[<ports>x]<Gbit/s>": "a preset with other network ports, "
        "spread over the places of its own; `4xroce2x100` are four bonds of two ports, each a NIC "
        "of their sum, over which queue pairs are taken to be spread evenly",
        "<preset>+<n>x<kind><Gbit/s>@<place>[@<place>]": "where the ports stand, in turn: `@cpu1`, "
        "`@switch0` (a PCIe switch), `@gpu3` (where that GPU's PCIe link leads)",
        "<preset>+p2p|+nop2p|+gdr|+nogdr": "a preset with P2P or GPUDirect switched",
        "<n>x<GPU>": "n GPUs of the usual node: 8xH100, 4xA100-80GB, 2xRTX4090",
    }


def aliases() -> dict[str, str]:
    """Return other names of presets, alias to preset (with changes, where there are some).

    Examples
    --------
    >>> aliases()["p5.48xlarge"]
    'aws-p5'
    """
    return {
        alias: preset
        for preset, others in read("aliases.yaml")["aliases"].items()
        for alias in others
    }


@lru_cache(maxsize=1)
def _by_folded() -> dict[str, str]:
    return {
        **{_fold(alias): preset for alias, preset in aliases().items()},
        **{_fold(name): name for name in _node_names()},
    }


def _of_words(text: str) -> str | None:
    """Return the preset of ``8xH100`` or ``H100``."""
    match = _WORDS.match(text.lower().replace("×", "x").strip())
    chips = {_fold(chip): node for chip, node in read("aliases.yaml")["chips"].items()}
    chip = _fold(match.group(2) if match else text)
    count = int(match.group(1)) if match else None
    if chip in chips:
        node = chips[chip]
        whole = merged(node)["gpus"]["count"]
        return node if count in (None, whole) else f"{node}+{count}gpus"
    if count is None:
        return None
    card = card_of(chip)
    return f"pcie-{card}-{count}" if card else None


def _unknown(found: str) -> TopologyError:
    known = [*names(), *aliases(), *read("aliases.yaml")["chips"]]
    return TopologyError(
        Problem(
            message=f"unknown node preset {found!r}",
            allowed=f"{', '.join(_node_names())}, an alias such as p5.48xlarge, "
            "pcie-<card>-<count>, cpu-<processes> or words such as 8xH100",
            suggestion=nearest(found, known),
        )
    )


@lru_cache(maxsize=1024)
def canonical(name: str) -> str:
    """Return the preset's own name, with its changes.

    Raises
    ------
    TopologyError
        No preset, alias or family has this name; the nearest one is suggested.

    Examples
    --------
    >>> canonical("DGX_H100"), canonical("P5.48xlarge"), canonical("4xH100")
    ('dgx-h100', 'aws-p5', 'hgx-h100+4gpus')
    """
    head, *changes = name.split("+")
    found = _by_folded().get(_fold(head)) or _of_words(head)
    if found is None:
        box, host = split_box(head), split_host(head)
        if box is not None:
            found = box_name(*box)
        elif host is not None:
            found = host_name(*host)
        else:
            raise _unknown(name)
    return "+".join((found, *changes))


@lru_cache(maxsize=512)
def _load(own: str) -> NodeTemplate:
    head, *changes = own.split("+")
    box, host = split_box(head), split_host(head)
    if host is not None:
        template = host_template(*host)
    else:
        template = build(head, box_mapping(*box) if box else merged(head))
    for change in changes:
        template = apply_change(template, change)
    return template


def load(name: str) -> NodeTemplate:
    """Return the node template of a preset.

    Parameters
    ----------
    name
        A preset's name, an alias, a box of the PCIe family, or words (``8xH100``), with changes
        after ``+``.

    Raises
    ------
    TopologyError
        The name is unknown, or a change does not fit.

    Examples
    --------
    >>> load("dgx-h100").gpu.name, load("dgx-h100+2gpus+1xeth100").nic_kind
    ('h100-sxm', 'ethernet')
    """
    return _load(canonical(name))


def summary(name: str) -> str:
    """Return one line on what the preset is, without building it."""
    own = canonical(name)
    head, *changes = own.split("+")
    box, host = split_box(head), split_host(head)
    if host is not None:
        text = host_template(*host).summary
    else:
        text = str(box_mapping(*box)["summary"] if box else merged(head)["summary"])
    return f"{text} ({', '.join(changes)})" if changes else text


def _row(name: str, known_as: dict[str, list[str]]) -> str:
    node = load(name)
    count = {
        kind: sum(vertex.kind == kind for vertex in node.vertices) for kind in ("gpu", "nic", "cpu")
    }
    scale_up = sum(
        link.bandwidth_Bps
        for link in node.links
        if "gpu0" in (link.a, link.b)
        and link.kind in ("nvlink", "xgmi")
        and not {link.a, link.b} & {vertex.name for vertex in node.vertices if vertex.kind == "cpu"}
    )
    nics = (
        f"{count['nic']}× {node.nic_kind} {node.nic_rate_Bps * 8 / 1e9:g} Gbit/s"
        if node.nic_kind
        else "none"
    )
    cells = (
        f"`{name}`",
        f"{count['gpu']}× {node.gpu.name}",
        format_rate(scale_up).split(" (")[0] if scale_up else "none",
        nics,
        f"{count['cpu']}× {node.cpu_model}",
        node.source_quality,
        ", ".join(f"`{alias}`" for alias in known_as.get(name, [])),
    )
    return "| " + " | ".join(cells) + " |"


def markdown() -> str:
    """Return the page of all presets, families, aliases and sources."""
    known_as: dict[str, list[str]] = {}
    for alias, preset in aliases().items():
        known_as.setdefault(preset, []).append(alias)
    head = "| preset | GPUs | NVLink or xGMI per GPU and direction | NICs | CPU vertices | source |"
    lines = [
        "# Hardware presets",
        "",
        "Made by `topologies.hardware.write_docs`; edit the files under `topologies/hardware`.",
        "Rates are per direction, physical, before protocol efficiency. *Source* says how far the",
        "layout is known: `vendor` (data sheet or topology file), `measured`, or `weak`.",
        "Latencies are estimates on every preset (see `topologies/hardware/links.yaml`).",
        "",
        f"{head} also called |",
        "|---|---|---|---|---|---|---|",
        *(_row(name, known_as) for name in _node_names()),
        "",
        "## Families and changes",
        "",
        *(f"- `{pattern}`: {meaning}" for pattern, meaning in families().items()),
        "",
        "| plain box | GPUs | bridge | NICs | CPU vertices | source | also called |",
        "|---|---|---|---|---|---|---|",
        *(_row(name, known_as) for name in pcie_names((4,))),
        "",
        "## Aliases with changes",
        "",
        *(
            f"- {', '.join(f'`{alias}`' for alias in others)}: `{preset}`"
            for preset, others in known_as.items()
            if preset not in _node_names()
        ),
        "",
        "## Adding a preset",
        "",
        "A file `topologies/hardware/nodes/<name>.yaml`; `extends` takes over another preset and",
        "`links` replaces its sections by name. `join` deals the longer group in blocks to the",
        "shorter, `mesh` joins all pairs, `pairs` lists them; a link is a type of `links.yaml` and",
        "its number of links or lanes. Each number needs a source. The tests find the file.",
        "",
        "```yaml",
        "extends: hgx-h100",
        'summary: "8 H100 on NVSwitch, 4 RoCE 200 Gbit/s"',
        "links:",
        "  nic:",
        '    - {join: "nic[0-3] - pcie_switch[0,2,4,6]", link: pcie5 x16, source: "block diagram"}',
        'nic: {kind: roce, rate: 200 Gbit/s, source: "data sheet"}',
        "```",
        "",
        "## Sources",
        "",
        *(f"- `{name}`: {load(name).source}" for name in _node_names()),
    ]
    return "\n".join(lines) + "\n"


def write_docs(path: str | Path) -> None:
    """Write the page of `markdown` to a file."""
    Path(path).write_text(markdown(), encoding="utf-8")
