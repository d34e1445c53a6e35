"""Node presets with a scenario's own numbers laid over them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from simulator.fabric.model import NodeTemplate
from simulator.scenario import plugins
from simulator.scenario.schema import NodeSpec

__all__ = ["gpu_count", "node_template"]


def node_template(spec: NodeSpec) -> NodeTemplate:
    """Return the preset's interior with the numbers that the scenario changes.

    Raises
    ------
    TopologyError
        Unknown preset.
    """
    template = plugins.node_template(spec.preset)
    links = tuple(
        replace(link, **_given(spec.links[link.kind], "bandwidth_Bps", "latency_s"))
        if link.kind in spec.links
        else link
        for link in template.links
    )
    changes = _given(spec, "nic_rate_Bps", "nic_latency_s", "nic_kind")
    return replace(template, links=links, **changes)


def _given(section: Any, *names: str) -> dict[str, Any]:
    return {name: getattr(section, name) for name in names if getattr(section, name) is not None}


def gpu_count(template: NodeTemplate) -> int:
    """Return the number of GPUs of a node."""
    return sum(vertex.kind == "gpu" for vertex in template.vertices)
