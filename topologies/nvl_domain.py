"""NVLink domains of several nodes, with a scale-out network between them."""

from __future__ import annotations

from dataclasses import dataclass

from simulator.base.fields import option
from simulator.fabric.wiring import Ports, Wiring, WiringBuilder
from topologies import fat_tree, leaf_spine, rail_only, rail_optimized
from topologies.registry import topology

__all__ = ["NvlDomainOptions"]


@dataclass(frozen=True, slots=True, kw_only=True)
class NvlDomainOptions(rail_optimized.RailOptions):
    """Options of NVLink domains with scale-out."""

    nvl_domain: int | None = option(
        "count",
        18,
        minimum=1,
        doc="Neighbouring nodes that share their NVSwitches (18 trays of 4 GPUs: GB200 NVL72).",
    )
    scale_out: str = option(
        "name",
        "rail_optimized",
        choices=("rail_optimized", "rail_only", "leaf_spine", "fat_tree", "none"),
        doc="Network between the NICs; `none` for a single domain.",
    )


@topology(
    "nvl_domain",
    summary="NVLink domains of several nodes (NVL72) and a scale-out network between them",
    reference="NVIDIA GB200 NVL72 data sheet; DGX SuperPOD reference architecture, DGX GB200",
    options=NvlDomainOptions,
)
def wire(ports: Ports, options: NvlDomainOptions) -> Wiring:
    """Return the scale-out network; the fabric itself joins the NVSwitches."""
    common = {
        name: getattr(options, name)
        for name in (
            "link",
            "trunk",
            "link_kind",
            "hop_latency",
            "radix",
            "oversubscription",
            "oversubscription_of",
            "nvl_domain",
        )
    }
    match options.scale_out:
        case "rail_optimized":
            chosen = rail_optimized.RailOptions(rails=options.rails, **common)
            return rail_optimized.wire(ports, chosen)
        case "rail_only":
            return rail_only.wire(ports, rail_optimized.RailOptions(rails=options.rails, **common))
        case "leaf_spine":
            return leaf_spine.wire(ports, leaf_spine.LeafSpineOptions(**common))
        case "fat_tree":
            return fat_tree.wire(ports, fat_tree.FatTreeOptions(**common))
        case _:
            return WiringBuilder(ports).finish()
