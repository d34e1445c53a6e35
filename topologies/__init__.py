"""Network topologies, one builder per file, and node presets with their sources."""

from topologies import (
    dragonfly,
    fat_tree,
    leaf_spine,
    none,
    nvl_domain,
    rail_only,
    rail_optimized,
    single_switch,
    torus,
    two_sites,
)
from topologies.custom import build_custom
from topologies.registry import (
    NetworkOptions,
    build,
    entries,
    entry,
    get_topology,
    kinds,
    option_type,
    start,
    topologies,
    topology,
    trunk_rate,
)

__all__ = [
    "NetworkOptions",
    "build",
    "build_custom",
    "dragonfly",
    "entries",
    "entry",
    "fat_tree",
    "get_topology",
    "kinds",
    "leaf_spine",
    "none",
    "nvl_domain",
    "option_type",
    "rail_only",
    "rail_optimized",
    "single_switch",
    "start",
    "topologies",
    "topology",
    "torus",
    "trunk_rate",
    "two_sites",
]
