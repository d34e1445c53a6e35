"""Command lines: options with good values, odd values, and counts that are no counts."""

from __future__ import annotations

from hypothesis import strategies as st

from tests.fuzz.runner import Case
from tests.fuzz.values import NO_COUNTS, garbage, odd_text

__all__ = ["counts", "lines"]

GOOD = {
    "--node": ("4xH100", "dgx-a100", "mi300x", "gh200", "cpu-4", "8xA100"),
    "--nodes": ("1", "2", "3", "1,2"),
    "--gpus-per-node": ("1", "2", "4"),
    "--fabric": ("single_switch", "rail_optimized", "leaf_spine", "fat_tree", "two_sites", "torus"),
    "--algorithm": ("auto", "ring", "double_binary_tree", "nvls", "ring,halving_doubling"),
    "--protocol": ("auto", "Simple", "LL", "LL128"),
    "--channels": ("1", "2", "8"),
    "--begin": ("8", "1K", "1M"),
    "--end": ("1K", "1M", "16M"),
    "--factor": ("2", "4"),
    "--step": ("1M", "1000"),
    "--dtype": ("float", "half", "bfloat16"),
    "--redop": ("sum", "avg", "max"),
    "--root": ("0", "1"),
    "--profile": ("nccl", "ideal", "rccl", "gloo", "mpi", "mpich"),
    "--env": ("NCCL_ALGO=Ring", "NCCL_PROTO=LL", "NCCL_P2P_DISABLE=1", "NCCL_MAX_NCHANNELS=2"),
    "--table": ("summary", "nccl-tests"),
    "--size": ("1M", "64K", "0"),
    "--tensor": ("1", "2", "4"),
    "--pipeline": ("1", "2"),
    "--virtual": ("1", "2"),
    "--schedule": ("1f1b", "gpipe", "interleaved"),
    "--context": ("1", "2"),
    "--expert": ("1", "2"),
    "--data-parallel": ("ddp", "zero1", "fsdp"),
    "--micro-batch": ("1", "2"),
    "--micro-batches": ("1", "4"),
    "--global-batch": ("8", "16"),
    "--seq": ("512", "1024"),
    "--recompute": ("none", "selective", "full"),
    "--precision": ("bf16", "fp8", "fp32"),
    "--framework": ("megatron", "torch", "deepspeed"),
}
COUNTS = {
    "bench": ("--nodes", "--gpus-per-node", "--channels", "--factor"),
    "step": ("--nodes", "--tensor", "--pipeline", "--micro-batch", "--global-batch", "--seq"),
}
_CALL = ("--node", "--nodes", "--gpus-per-node", "--fabric", "--algorithm", "--protocol",
         "--channels", "--profile", "--env")  # fmt: skip
OPTIONS = {
    "bench": (*_CALL, "--begin", "--end", "--factor", "--step", "--dtype", "--redop", "--root",
              "--table"),
    "explain": (*_CALL, "--size"),
    "step": ("--node", "--nodes", "--gpus-per-node", "--fabric", "--tensor", "--pipeline",
             "--virtual", "--schedule", "--context", "--expert", "--data-parallel", "--micro-batch",
             "--micro-batches", "--global-batch", "--seq", "--recompute", "--precision",
             "--framework", "--profile"),
}  # fmt: skip
KEYS = (
    "nodes", "seed", "node.nic_rate", "node.nic_latency", "node.links.nvlink.bandwidth",
    "node.links.pcie.latency", "fabric.oversubscription", "fabric.radix", "fabric.hop_latency",
    "fabric.rails", "fabric.rate", "routing.policy", "routing.p2p", "costs.version",
    "costs.gpus_per_process", "costs.overrides.links.nvlink.efficiency", "collective.repeat",
    "collective.ranks", "collective.split", "collective.counts", "engine.level",
    "engine.max_transfers", "perturb.late", "perturb.skew", "perturb.jitter.sigma",
    "perturb.links[0].factor", "perturb.links", "perturb.compute_slowdown", "training.bucket",
    "training.first_bucket", "training.model", "training.model.layers", "output.csv", "env",
    "env.NCCL_P2P_LEVEL", "env.NCCL_BUFFSIZE", "groups", "topology", "jobs", "programs", "kind", "",
)  # fmt: skip
_START = {
    "bench": ("all_reduce", "alltoall", "broadcast", "all_gather_perf", "barrier", "send_recv"),
    "explain": ("all_reduce", "reduce_scatter", "gather"),
}


@st.composite
def lines(draw: st.DrawFn) -> Case:
    """Command lines with some options that are wrong or odd."""
    command = draw(
        st.sampled_from(["bench", "bench", "explain", "step", "list", "topologies", "show"])
    )
    if command in ("list", "topologies", "show"):
        more = draw(st.lists(odd_text | st.sampled_from(["list", "show", "models"]), max_size=3))
        return Case((command, *more), {})
    words = [command]
    if command == "step":
        words += [
            "--model",
            draw(st.sampled_from(["gpt2-small", "resnet-18", "llama-3.2-1b"]) | odd_text),
        ]
    else:
        words.append(draw(st.sampled_from(_START[command]) | odd_text))
    if command == "bench":
        words += ["-b", "1K", "-e", "1M", "-f", "32"]
    for name in draw(st.lists(st.sampled_from(OPTIONS[command]), max_size=4, unique=True)):
        good = st.sampled_from(GOOD[name])
        words.append(f"{name}={draw(good | good | odd_text)}")
    for key in draw(st.lists(st.sampled_from(KEYS) | odd_text, max_size=2)):
        words += ["--set", f"{key}={draw(garbage)}"]
    if command != "explain":
        words += ["-q", "--workers", "1", "--json", "result.json"]
    return Case(tuple(words), {})


@st.composite
def counts(draw: st.DrawFn) -> Case:
    """A good command line in which one count is none: it has to be refused."""
    command = draw(st.sampled_from(sorted(COUNTS)))
    name = draw(st.sampled_from(COUNTS[command]))
    value = draw(st.sampled_from(NO_COUNTS))
    words = [command]
    words += (
        ["--model", "gpt2-small"] if command == "step" else ["-b", "1K", "-e", "1M", "-f", "32"]
    )
    why = f"{name} is {value[:20]!r}"
    if name == "--factor" and value in ("1.5", "1e99", "9" * 30):
        why = ""  # sizes may grow by any factor above one
    return Case((*words, "--node", "4xH100", f"{name}={value}", "-q"), {}, must_refuse=why)
