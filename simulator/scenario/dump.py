"""Resolved scenarios as YAML, as JSON data, and as a list of every number and its origin."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import yaml

from simulator.base.units import exact_time, format_rate
from simulator.scenario.nodes import gpu_count, node_template
from simulator.scenario.plain import to_plain
from simulator.scenario.plugins import is_profile_file
from simulator.scenario.reader import join
from simulator.scenario.resolved import Resolved
from simulator.scenario.schema import NodeGroup

__all__ = ["describe", "dump", "to_json", "to_mapping"]


def to_mapping(resolved: Resolved) -> dict[str, Any]:
    """Return the scenario as plain data: numbers, texts with units, lists and dicts.

    The path of a cost profile's file is absolute: where the data will be read is not known.
    """
    found = to_plain(resolved)
    if is_profile_file(resolved.costs.profile):
        found["costs"]["profile"] = str(Path(resolved.costs.profile).resolve())
    return found


def to_json(resolved: Resolved) -> str:
    """Return the scenario as JSON, which is YAML and so loads to the same variant."""
    return json.dumps(to_mapping(resolved), indent=2, ensure_ascii=False)


def dump(resolved: Resolved) -> str:
    """Return the scenario as YAML that loads to the same variant.

    Examples
    --------
    >>> from simulator.scenario import from_words, loads
    >>> words = {"node": "dgx-h100", "collective.op": "all_reduce", "collective.size": "1G"}
    >>> first = from_words(words).variants[0]
    >>> loads(dump(first)).variants[0] == first
    True
    """
    return yaml.safe_dump(to_mapping(resolved), sort_keys=False, allow_unicode=True, width=100)


def describe(resolved: Resolved) -> list[tuple[str, str, str]]:
    """Return every value of the scenario and of the presets that it uses.

    Returns
    -------
    list of (dotted key, value with unit, origin)
        The origin is ``file:line``, ``--set``, ``command line``, ``default``, or the preset or
        profile with the source of the number.
    """
    rows: list[tuple[str, str, str]] = []
    _flatten(to_plain(resolved), "", resolved.origins, rows)
    for group in resolved.node_groups:
        rows += _preset_rows(group)
    return rows + _cost_rows(resolved)


def _flatten(value: Any, path: str, origins: Any, rows: list[tuple[str, str, str]]) -> None:
    if isinstance(value, dict) and value:
        for key, item in value.items():
            _flatten(item, join(path, key), origins, rows)
    elif isinstance(value, list) and any(isinstance(item, dict) for item in value):
        for index, item in enumerate(value):
            _flatten(item, f"{path}[{index}]", origins, rows)
    elif value not in ({}, []):
        rows.append((path, _text(value), _origin(path, origins)))


def _text(value: Any) -> str:
    if isinstance(value, list):
        return "[" + ", ".join(_text(item) for item in value) + "]"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "none" if value is None else str(value)


def _origin(path: str, origins: Any) -> str:
    while path:
        if path in origins:
            return str(origins[path])
        path = path[: max(path.rfind("."), path.rfind("["), 0)]
    return "default"


def _preset_rows(group: NodeGroup) -> list[tuple[str, str, str]]:
    """Return the numbers of a node's interior: links by kind and rate, ports, GPU."""
    template = node_template(group.node)
    name, origin = f"preset {template.name}", f"preset {template.name}: {template.source}"
    rows = [
        (f"{name}.gpu", f"{gpu_count(template)} × {template.gpu.name}", origin),
        (
            f"{name}.gpu.memory_bandwidth",
            format_rate(template.gpu.memory_Bps),
            f"preset {template.name}: {template.gpu.source}",
        ),
    ]
    kinds = Counter(
        (link.kind, link.bandwidth_Bps, link.latency_s, link.source) for link in template.links
    )
    for (kind, rate_Bps, latency_s, source), count in sorted(kinds.items()):
        changed = group.node.links.get(kind)
        told = "scenario" if changed is not None else f"preset {template.name}: {source}"
        value = f"{count} × {format_rate(rate_Bps)}, {exact_time(latency_s)}"
        rows.append((f"{name}.links.{kind}", value, told))
    if template.nic_kind is not None:
        nics = sum(vertex.kind == "nic" for vertex in template.vertices)
        own = group.node.nic_rate_Bps is not None or group.node.nic_latency_s is not None
        value = (
            f"{nics} × {format_rate(template.nic_rate_Bps)}, {exact_time(template.nic_latency_s)}"
        )
        rows.append((f"{name}.nic.{template.nic_kind}", value, "scenario" if own else origin))
    return rows


def _cost_rows(resolved: Resolved) -> list[tuple[str, str, str]]:
    """Return the constants of the cost profile, with the scenario's overrides laid over."""
    from simulator.costs.profile import load_profile

    profile = load_profile(resolved.costs.profile).with_overrides(resolved.costs.overrides)
    name = f"profile {profile.name}"

    sources = profile.sources

    def row(key: str, value: str, source: str) -> tuple[str, str, str]:
        told = resolved.origins.get(f"costs.overrides.{key}")
        return f"{name}.{key}", value, told or f"{name}: {sources.get(key, source)}"

    rows = [row("launch.time", exact_time(profile.launch_s), sources["launch.time"])]
    for kind, share in profile.efficiency.items():
        rows.append(row(f"links.{kind}.efficiency", f"{share:g}", sources[f"links.{kind}"]))
    for (kind, protocol), alpha_s in profile.alpha_s.items():
        rows.append(row(f"paths.{kind}.{protocol}", exact_time(alpha_s), sources[f"paths.{kind}"]))
    for key, protocol_ in profile.protocols.items():
        payload = f"{protocol_.payload_share:g}"
        rows.append(row(f"protocols.{key}.payload_share", payload, sources[f"protocols.{key}"]))
    if profile.calibration is not None:
        rows.append(row("calibration", profile.calibration.words, profile.calibration.file))
    return rows
