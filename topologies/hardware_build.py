"""From the hardware files to node templates: link types, platforms, GPU models, inheritance.

The files under ``hardware/`` state what is soldered to what; `build` multiplies a link type by its
number of links or lanes and adds the latency.  The latency of a link is that of its wire plus half
of the hop at each end, so that the latencies of a path add up to its wires and the vertices it
passes.  Protocol efficiency and software latency are not in these numbers: they belong to the cost
model.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from simulator.base.errors import Problem, TopologyError, unknown_name
from simulator.base.units import parse_rate, parse_size, parse_time
from simulator.fabric.model import GpuSpec, NodeTemplate, TemplateLink, TemplateVertex
from topologies.hardware_joins import expand_join, expand_mesh, expand_pairs, vertex_kind

__all__ = ["DATA", "build", "gpu_spec", "link_of", "merged", "number_vertices", "read"]

DATA = Path(__file__).parent / "hardware"
"""Folder of the hardware files."""

_ORDER = ("gpu", "nvswitch", "pcie_switch", "cpu", "nic")
_EXPAND = {"join": expand_join, "mesh": expand_mesh, "pairs": expand_pairs}
_QUALITIES = ("vendor", "measured", "weak")
_KEYS = ("summary", "gpus", "platform", "links", "p2p", "gpudirect", "source", "source_quality")


@lru_cache(maxsize=256)
def read(relative: str) -> dict[str, Any]:
    """Return a hardware file as a mapping; *relative* is its path below `DATA`.

    Raises
    ------
    TopologyError
        The file does not exist or does not hold a mapping.
    """
    path = DATA / relative
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        with path.open(encoding="utf-8") as stream:
            data = yaml.load(stream, Loader=loader)
    except FileNotFoundError:
        raise TopologyError(
            Problem(message="no such hardware file", file=f"hardware/{relative}")
        ) from None
    if not isinstance(data, dict):
        raise TopologyError(Problem(message="not a mapping", file=f"hardware/{relative}"))
    return data


def merged(name: str) -> dict[str, Any]:
    """Return a node file with everything it inherits; sections of ``links`` merge by name.

    An own value wins over an inherited one; a section of links that is null removes it.
    """
    own = read(f"nodes/{name}.yaml")
    parent = own.get("extends")
    if parent is None:
        return own
    base = merged(str(parent))
    out = {**base, **own}
    out["links"] = {**base["links"], **own.get("links", {})}
    return out


@lru_cache(maxsize=128)
def gpu_spec(model: str) -> GpuSpec:
    """Return a GPU model by its file name."""
    if not (DATA / f"gpus/{model}.yaml").exists():
        known = (path.stem for path in (DATA / "gpus").glob("*.yaml"))
        raise TopologyError(unknown_name("GPU model", model, known))
    data = read(f"gpus/{model}.yaml")
    return GpuSpec(
        name=model,
        generation=data["generation"],
        memory_bytes=parse_size(data["memory"]),
        memory_Bps=parse_rate(data["memory_bandwidth"]),
        peak_flops={dtype: float(peak) * 1e12 for dtype, peak in data["peak_tflops"].items()},
        source=data["source"],
        compute_units=int(data.get("compute_units", 0)),
        last_cache_bytes=parse_size(data["last_cache"]) if "last_cache" in data else 0,
    )


def _ratio(text: str) -> float:
    over, _, under = text.partition("/")
    return float(over) / float(under or 1)


def link_of(text: str, platform: Mapping[str, Any]) -> tuple[str, float, float, str]:
    """Return (kind, rate in bytes/s per direction, wire latency in s, source) of a link.

    Parameters
    ----------
    text
        A type of ``links.yaml`` with the number of links or lanes, ``nvlink4 x18``, or ``socket``
        and ``on_die``, whose rates belong to the platform.
    platform
        Entry of ``platforms.yaml``.
    """
    name, _, times = text.partition(" x")
    if name in ("socket", "on_die"):
        entry = platform.get(name)
        if entry is None:
            raise TopologyError(f"the platform {platform['cpu_model']} has no {name} link")
    else:
        types = read("links.yaml")["types"]
        if name not in types:
            raise TopologyError(unknown_name("link type", name, (*types, "socket", "on_die")))
        entry = types[name]
    count = int(times or entry.get("count", 1))
    rate_Bps = parse_rate(entry["rate"]) * _ratio(str(entry.get("coding", "1"))) * count
    kind = entry.get("kind", "upi")
    return kind, rate_Bps, parse_time(entry["latency"]), entry["source"]


def _expand(name: str, sections: Mapping[str, Any]) -> Iterable[tuple[str, str, str, str]]:
    for section, entries in sections.items():
        for entry in entries or ():
            shapes = [shape for shape in _EXPAND if shape in entry]
            if len(shapes) != 1 or "link" not in entry:
                raise TopologyError(
                    Problem(
                        message=f"{entry} does not say who is joined",
                        key=f"links.{section}",
                        file=f"hardware/nodes/{name}.yaml",
                        allowed="one of join, mesh and pairs, and a link",
                    )
                )
            for a, b in _EXPAND[shapes[0]](entry[shapes[0]]):
                yield a, b, entry["link"], entry.get("source", "")


def number_vertices(links: Iterable[tuple[str, str]], numa: Mapping[str, int]) -> dict[str, int]:
    """Return the NUMA node of every vertex: that of the nearest CPU.

    NVSwitches belong to no NUMA node.  Links between two GPUs and between two CPUs are not
    followed: a GPU sits where its own host link ends.
    """
    beside: dict[str, list[str]] = {}
    for a, b in links:
        kinds = {vertex_kind(a), vertex_kind(b)}
        if kinds in ({"gpu"}, {"cpu"}) or "nvswitch" in kinds:
            continue
        beside.setdefault(a, []).append(b)
        beside.setdefault(b, []).append(a)
    found = dict(numa)
    queue = deque(numa)
    while queue:
        here = queue.popleft()
        for other in beside.get(here, ()):
            if other not in found:
                found[other] = found[here]
                queue.append(other)
    return found


def _number(name: str) -> tuple[int, int]:
    kind = vertex_kind(name)
    return _ORDER.index(kind), int(name[len(kind) :])


def build(name: str, data: Mapping[str, Any]) -> NodeTemplate:
    """Return the node template of a complete mapping (inheritance already merged).

    Parameters
    ----------
    name
        Name of the preset.
    data
        Keys ``summary gpus platform links nic p2p gpudirect source source_quality``; ``numa``, the
        NUMA nodes of the CPU vertices when they are not 0, 1, …; ``numa_per_socket``, by which a
        socket's memory bandwidth is divided; ``nvl_domain_nodes``, nodes on the same NVSwitches.

    Raises
    ------
    TopologyError
        A key is missing or unreadable, or a GPU is not joined to anything.
    """
    file = f"hardware/nodes/{name}.yaml"
    missing = [key for key in _KEYS if key not in data]
    if missing:
        raise TopologyError(
            [Problem(message=f"{name} has no {key}", key=key, file=file) for key in missing]
        )
    platforms = read("platforms.yaml")
    if data["platform"] not in platforms:
        raise TopologyError(unknown_name("platform", str(data["platform"]), platforms))
    platform = platforms[data["platform"]]
    hops = {kind: parse_time(time) for kind, time in read("links.yaml")["hops"].items()}
    links = []
    for a, b, text, why in _expand(name, data["links"]):
        kind, rate_Bps, wire_s, source = link_of(text, platform)
        latency_s = wire_s + (hops[vertex_kind(a)] + hops[vertex_kind(b)]) / 2
        links.append(
            TemplateLink(
                a=a,
                b=b,
                kind=kind,
                bandwidth_Bps=rate_Bps,
                latency_s=latency_s,
                source=f"layout: {why or data['source']}; rate and latency: {source}",
            )
        )
    ends = [(link.a, link.b) for link in links]
    names = sorted({end for pair in ends for end in pair}, key=_number)
    cpus = [vertex for vertex in names if vertex_kind(vertex) == "cpu"]
    numbers = list(data.get("numa", range(len(cpus))))
    if len(numbers) != len(cpus):
        raise TopologyError(
            Problem(message=f"{len(numbers)} NUMA numbers for {len(cpus)} CPUs", file=file)
        )
    places = number_vertices(ends, dict(zip(cpus, numbers, strict=True)))
    if sum(vertex_kind(vertex) == "gpu" for vertex in names) != data["gpus"]["count"]:
        raise TopologyError(
            Problem(
                message=f"the links of {name} do not join {data['gpus']['count']} GPUs",
                file=file,
            )
        )
    if data["source_quality"] not in _QUALITIES:
        raise TopologyError(unknown_name("source_quality", data["source_quality"], _QUALITIES))
    nic = data.get("nic")
    nic_kinds = read("links.yaml")["nics"]
    return NodeTemplate(
        name=name,
        summary=data["summary"],
        gpu=gpu_spec(data["gpus"]["model"]),
        vertices=tuple(
            TemplateVertex(name=vertex, kind=vertex_kind(vertex), numa=places.get(vertex))
            for vertex in names
        ),
        links=tuple(links),
        nic_kind=nic["kind"] if nic else None,
        nic_rate_Bps=parse_rate(nic["rate"]) if nic else 0.0,
        nic_latency_s=parse_time(nic_kinds[nic["kind"]]["latency"]) if nic else 0.0,
        cpu_model=platform["cpu_model"],
        cpu_arch=platform["cpu_arch"],
        p2p=data["p2p"],
        gpudirect=data["gpudirect"],
        source="; ".join(
            (
                data["source"],
                *([f"NIC: {nic['source']}"] if nic else []),
                f"CPU: {platform['source']}",
            )
        ),
        source_quality=data["source_quality"],
        cpu_memory_Bps=parse_rate(platform["memory"]) / data.get("numa_per_socket", 1),
        nvl_domain_nodes=data.get("nvl_domain_nodes", 1),
    )
