"""How much a scenario asks for, counted before any of it is built."""

from __future__ import annotations

from collections.abc import Sequence

from simulator.base.limits import MOST_GPUS, MOST_OPERATIONS, too_many
from simulator.scenario import plugins
from simulator.scenario.reader import Reader
from simulator.scenario.steps import (
    DdpGenerator,
    GeneratorSpec,
    Operation,
    RepeatOp,
    ZeroGenerator,
)

__all__ = ["check_gpus", "check_operations", "n_generated", "n_operations"]


def n_operations(operations: Sequence[Operation]) -> int:
    """Return how many operations these are with all repeats written out."""
    return sum(
        operation.times * n_operations(operation.do) if isinstance(operation, RepeatOp) else 1
        for operation in operations
    )


def n_generated(spec: GeneratorSpec) -> int:
    """Return how many operations a ready-made training step has at most, all iterations."""
    if spec.ddp is not None:
        return _n_ddp(spec.ddp)
    return 0 if spec.zero is None else _n_zero(spec.zero)


def _n_ddp(ddp: DdpGenerator) -> int:
    """Return forward, wait, optimiser, and a compute and a call of each bucket."""
    gradients = len(ddp.gradients_bytes) or ddp.layers
    total_bytes = sum(ddp.gradients_bytes) or ddp.size_bytes or 0
    buckets = min(gradients, 2 + total_bytes // ddp.bucket_cap_bytes)
    return ddp.iterations * (3 + 2 * buckets)


def _n_zero(zero: ZeroGenerator) -> int:
    """Return computes, waits and calls of each layer, calls cut into buckets."""
    layer_bytes = -(-zero.parameters * plugins.element_bytes(zero.dtype) // zero.layers)
    parts = 1 if zero.bucket_bytes is None else -(-layer_bytes // zero.bucket_bytes)
    # Stage 3 gathers whole layers, twice, and waits for each; the others cut both calls.
    per_layer = 6 + parts if zero.stage == 3 else 2 + 2 * parts
    return zero.iterations * (3 + zero.layers * per_layer)


def check_operations(reader: Reader, path: str, found: int) -> None:
    """Refuse more operations of a rank than are simulated; *path* is where they come from."""
    if found > MOST_OPERATIONS:
        problem = too_many(path, found, "operations of each rank", MOST_OPERATIONS)
        reader.refuse(path, problem.message, allowed=problem.allowed)


def check_gpus(reader: Reader, path: str, n_gpus: int) -> None:
    """Refuse more GPUs than are simulated."""
    if n_gpus > MOST_GPUS:
        reader.refuse(path, f"a cluster of {n_gpus:,} GPUs", allowed=f"at most {MOST_GPUS:,} GPUs")
