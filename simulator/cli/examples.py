"""Examples and units below each command's ``--help``; every line that starts with $ is tested."""

from __future__ import annotations

__all__ = ["EXAMPLES", "epilog"]

_SIZES = "Sizes: bytes, or with a unit; 8K, 64M, 1G and KiB, MiB, GiB are powers of 1024."
_UNITS = "Rates as 400 Gbit/s or 50 GB/s per direction, times as 5 us or 2 ms, in quotes."
_SWEEPS = "Commas or lists of values compare variants."

EXAMPLES: dict[str, tuple[str, ...]] = {
    "run": (
        "$ collsim run scenarios/ring_vs_tree.yaml",
        "$ collsim run scenarios/slow_link.yaml --set 'fabric.link=200 Gbit/s' --links",
        _UNITS,
        _SWEEPS,
    ),
    "bench": (
        "$ collsim bench all_reduce --node dgx-h100 -N 4 -b 1M -e 1G -f 4",
        "$ collsim bench alltoall --node pcie-a100-4+2xib200 -N 2 -b 64M -e 64M",
        "$ collsim bench all_gather --node dgx-a100,dgx-h100 -N 2 -b 1M -e 1M --table summary",
        "Letters are those of nccl-tests. " + _SIZES,
        _UNITS,
        _SWEEPS,
    ),
    "explain": (
        "$ collsim explain all_reduce -N 2 -s 64M",
        "$ collsim explain all_gather --node dgx-a100 -a ring --steps",
        _SIZES,
    ),
    "check": (
        "$ collsim check nccl.log",
        "$ collsim check nccl.log --node p5.48xlarge -N 2 --inverse nic",
    ),
    "compare": (
        "$ collsim compare nccl.log",
        "$ collsim compare nccl.log --node dgx-h100 --plot comparison.png",
    ),
    "fit": (
        "$ collsim fit nccl.log --out mine.yaml",
        "Then: collsim bench all_reduce --costs mine.yaml",
    ),
    "step": (
        "$ collsim step --model llama-3-8b --nodes 2 --micro-batch 2 --recompute selective",
        "$ collsim step --model gpt3-6.7b --tp 2 --pp 4 --micro-batches 8 --data-parallel zero1",
        "Without a word of the strategy, the first simple one that fits into memory is taken.",
        _UNITS,
        _SWEEPS,
    ),
    "tune": (
        "$ collsim tune --model gpt2-xl --node dgx-a100 --global-batch 64 --simulate 2",
        "Sizes of the parallel axes, sharding and recomputation are searched; others are kept.",
    ),
    "show": (
        "$ collsim show scenarios/two_jobs.yaml",
        "$ collsim show scenarios/two_jobs.yaml --yaml",
    ),
    "list": ("$ collsim list", "$ collsim list all_reduce", "$ collsim list models"),
    "topologies list": ("$ collsim topologies list h100",),
    "topologies show": (
        "$ collsim topologies show dgx-h100",
        "$ collsim topologies show leaf_spine",
    ),
    "topologies plot": (
        "$ collsim topologies plot dgx-h100 -o node.png",
        "$ collsim topologies plot leaf_spine -N 8 -o network.svg",
    ),
}
"""Lines below the options of each command."""


def epilog(command: str) -> str:
    """Return the examples of a command as the text below its options, one a line."""
    return "\b\nExamples and units:\n" + "\n".join(f"  {line}" for line in EXAMPLES[command])
