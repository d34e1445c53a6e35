"""Small clusters for the tests of composing: presets, and one whose every number is round."""

from __future__ import annotations

from functools import cache

from simulator.compose.build import build_cluster
from simulator.compose.cluster import Cluster
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

WORDS = {
    "dgx-h100": {"node": "dgx-h100"},
    "2 x dgx-h100": {"node": "dgx-h100", "nodes": "2"},
    "3 x 3 of dgx-h100": {"node": "dgx-h100", "nodes": "3", "gpus_per_node": "3"},
    "4 x 1 of dgx-h100": {"node": "dgx-h100", "nodes": "4", "gpus_per_node": "1"},
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


@cache
def cluster(name: str, profile: str = "ideal") -> Cluster:
    """Return one of `WORDS`, or ``round``."""
    if name == "round":
        scenarios = loads(ROUND, overrides=[f"costs.profile={profile}"])
    else:
        words = {**WORDS[name], "collective.op": "barrier", "costs.profile": profile}
        scenarios = from_words(words)
    return build_cluster(scenarios.variants[0])
