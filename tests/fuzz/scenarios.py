"""Valid scenarios of one collective or one training step, as sections of `simulator.run`."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from simulator.collectives.registry import algorithms

__all__ = ["Sections", "calls", "merged", "steps"]

Sections = dict[str, Any]

_PRESETS = (
    "4xH100", "4xA100", "dgx-h100", "dgx-a100", "dgx-1-v100", "gh200", "gb200-nvl72", "mi300x",
    "aws-g6e", "summit", "hgx-a800", "perlmutter",
)  # fmt: skip
_FABRICS = (
    "single_switch", "rail_optimized", "leaf_spine", "fat_tree", "dragonfly", "torus", "two_sites",
)  # fmt: skip
_OPS = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "all_to_all", "gather",
        "scatter")  # fmt: skip


def merged(scenario: Sections, **sections: Any) -> Sections:
    """Return sections laid over a scenario, key by key."""
    new = dict(scenario)
    for name, value in sections.items():
        old = new.get(name)
        if name == "node" and isinstance(old, str):
            old = {"preset": old}
        new[name] = {**old, **value} if isinstance(old, dict) and isinstance(value, dict) else value
    return new


@st.composite
def calls(draw: st.DrawFn, *, most_nodes: int = 4) -> Sections:
    """One call of one size on up to *most_nodes* nodes."""
    nodes = draw(st.integers(1, most_nodes))
    op = draw(st.sampled_from(_OPS))
    call: Sections = {
        "op": op,
        "sizes": [f"{1024 * 2 ** draw(st.integers(0, 16)) + 1024 * draw(st.integers(0, 9))} B"],
    }
    if draw(st.booleans()):
        call["algorithm"] = draw(st.sampled_from(sorted(algorithms(op))))
    if draw(st.booleans()):
        call["channels"] = draw(st.sampled_from([1, 2, 8]))
    profile = draw(st.sampled_from(["nccl", "nccl", "ideal", "ideal", "mpi", "gloo"]))
    if profile == "nccl" and draw(st.booleans()):
        call["protocol"] = draw(st.sampled_from(["Simple", "LL", "LL128"]))
    if op in ("broadcast", "reduce", "gather", "scatter") and draw(st.booleans()):
        call["root"] = 1
    scenario: Sections = {
        "node": draw(st.sampled_from(_PRESETS)),
        "nodes": nodes,
        "gpus_per_node": draw(st.sampled_from([1, 2, 4])),
        "costs": {"profile": profile},
        "collective": call,
    }
    if nodes > 1:
        scenario["fabric"] = {"kind": draw(st.sampled_from(_FABRICS))}
    return scenario


@st.composite
def steps(draw: st.DrawFn) -> Sections:
    """A small training step on several nodes, in which ranks can be folded."""
    framework = draw(st.sampled_from(["megatron", "torch"]))
    kinds = {"megatron": ("ddp", "zero1"), "torch": ("ddp", "fsdp", "hsdp")}[framework]
    training: Sections = {
        "model": draw(st.sampled_from(["gpt2-small", "llama-3.2-1b"])),
        "framework": framework,
        "data_parallel": draw(st.sampled_from(kinds)),
        "micro_batch": draw(st.sampled_from([1, 2])),
        "micro_batches": draw(st.sampled_from([1, 4])),
        "seq": 512,
    }
    if framework == "megatron":
        training["tensor"] = draw(st.sampled_from([1, 2]))
        training["pipeline"] = draw(st.sampled_from([1, 2]))
    return {
        "node": draw(st.sampled_from(["4xH100", "4xA100"])),
        "nodes": draw(st.sampled_from([2, 4])),
        "fabric": {"kind": draw(st.sampled_from(["single_switch", "rail_optimized"]))},
        "training": training,
    }
