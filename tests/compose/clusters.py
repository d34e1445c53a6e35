"""Small clusters for the tests of composing: presets, and one whose every number is round."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from simulator.compose.build import build_fabric
from simulator.compose.cluster import Cluster
from simulator.costs.profile import CostProfile, Protocol, load_profile
from simulator.fabric.routing import Router
from simulator.scenario.resolve import from_words, loads

ROUND = """
schema_version: 1
topology:
  templates:
  - name: box
    vertices:
    - {name: gpu, kind: gpu, count: 2}
    - {name: nvs, kind: nvswitch}
    - {name: plx, kind: pcie_switch}
    - {name: cpu, kind: cpu}
    - {name: nic, kind: nic}
    links:
    - {a: gpu*, b: nvs, kind: nvlink, bandwidth: 100 GB/s, latency: 100 ns}
    - {a: gpu*, b: plx, kind: pcie, bandwidth: 20 GB/s, latency: 200 ns}
    - {a: nic, b: plx, kind: pcie, bandwidth: 20 GB/s, latency: 200 ns}
    - {a: plx, b: cpu, kind: pcie, bandwidth: 20 GB/s, latency: 300 ns}
  repeat: [{template: box, count: 2, name: box}]
  vertices: [{name: switch, kind: leaf}]
  links: [{a: "box*.nic", b: switch, kind: infiniband, bandwidth: 10 GB/s, latency: 1 us}]
collective: {op: barrier}
"""
"""Two boxes of two GPUs; bandwidths and latencies that a test can add up by hand."""

MIXED = """
schema_version: 1
groups: [{node: dgx-h100, nodes: 2}, {node: dgx-a100, nodes: 2}]
collective: {op: barrier}
"""
"""Half of the nodes are a generation older."""

WORDS = {
    "dgx-h100": {"node": "dgx-h100"},
    "2 x dgx-h100": {"node": "dgx-h100", "nodes": "2"},
    "3 x 3 of dgx-h100": {"node": "dgx-h100", "nodes": "3", "gpus_per_node": "3"},
    "4 x 1 of dgx-h100": {"node": "dgx-h100", "nodes": "4", "gpus_per_node": "1"},
    "dgx-a100": {"node": "dgx-a100"},
    "dgx-1-v100": {"node": "dgx-1-v100"},
    "2 x perlmutter": {"node": "perlmutter", "nodes": "2"},
    "pcie-l40s-4": {"node": "pcie-l40s-4"},
    "2 x gb200-nvl72": {"node": "gb200-nvl72", "nodes": "2"},
    "oversubscribed": {
        "node": "dgx-a100",
        "nodes": "4",
        "gpus_per_node": "2",
        "fabric.kind": "leaf_spine",
        "fabric.nics_per_leaf": "8",
        "fabric.oversubscription": "4",
    },
}
"""Words of clusters small enough to try everything on."""


def _round_profile() -> CostProfile:
    """Return round constants, a connection per channel, no model of a library."""
    ideal = load_profile("ideal").with_overrides(
        {
            "launch.time": "5 us",
            "links.nvlink.efficiency": "80 %",
            "links.pcie.efficiency": "75 %",
            "links.infiniband.efficiency": "95 %",
            "paths.nvlink.Simple": "3 us",
            "paths.network.Simple": "14 us",
        }
    )
    protocols = {
        "Simple": Protocol(
            name="Simple", payload_share=1.0, extra_launch_s=2e-6, bytes_per_channel=32_768
        ),
        "LL": Protocol(name="LL", payload_share=0.5, extra_launch_s=0.0, bytes_per_channel=4096),
    }
    alpha_s = dict(ideal.alpha_s)
    for kind in ("nvlink", "xgmi", "pcie", "host", "network"):
        alpha_s[kind, "LL"] = alpha_s[kind, "Simple"] / 5
    channels = {**ideal.channel_table, "nvswitch": 24, "mesh": 12, "pcie": 2, "network_min": 2}
    return replace(
        ideal,
        name="round",
        protocols=protocols,
        alpha_s=alpha_s,
        per_channel=True,
        channel_table=channels,
        candidates={**ideal.candidates, "all_reduce": ("ring", "double_binary_tree", "nvls")},
    )


@cache
def cluster(name: str, profile: str = "ideal") -> Cluster:
    """Return one of `WORDS`, ``round`` or ``mixed``, with a shipped or the ``round`` profile."""
    if name in ("round", "mixed"):
        scenarios = loads(ROUND if name == "round" else MIXED)
    else:
        scenarios = from_words({**WORDS[name], "collective.op": "barrier"})
    resolved = scenarios.variants[0]
    fabric = build_fabric(resolved)
    constants = _round_profile() if profile == "round" else load_profile(profile)
    return Cluster(fabric, Router(fabric, resolved.routing), constants)
