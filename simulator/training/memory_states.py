"""Parameters, gradients and optimiser states of a stage under each kind of data parallelism.

References
----------
.. [1] Rajbhandari et al. 2020, arXiv:1910.02054, table 1.
.. [2] Megatron-LM, docs/source/api-guide/dist_optimizer.md.
.. [3] DeepSpeed, deepspeed/runtime/zero/config.py: default sizes, in elements.
.. [4] PyTorch, torch/distributed/fsdp (fully_shard), torch/nn/parallel/distributed.py
   (gradient_as_bucket_view).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from simulator.models.model import Layer, Model
from simulator.training.hooks import error_feedback_bytes
from simulator.training.layer_tasks import slice_of
from simulator.training.strategy import Strategy

__all__ = ["States", "stage_states"]

LIVE_ELEMENTS = 1_000_000_000
"""stage3_max_live_parameters of DeepSpeed [3]_."""
BUCKET_ELEMENTS = 500_000_000
"""reduce_bucket_size and allgather_bucket_size of DeepSpeed [3]_."""


@dataclass(frozen=True, slots=True, kw_only=True)
class States:
    """Bytes on one GPU, but `host_bytes`."""

    n_parameters: int
    parameters_bytes: float
    gradients_bytes: float
    optimizer_bytes: float
    buffers_bytes: float
    host_bytes: float

    @property
    def on_gpu_bytes(self) -> float:
        """Parameters, gradients and optimiser states."""
        return self.parameters_bytes + self.gradients_bytes + self.optimizer_bytes


@dataclass(frozen=True, slots=True)
class _Counts:
    """Parameters of a stage on a rank of the tensor and expert axes, and those of each unit."""

    dense: int
    expert: int
    units: tuple[int, ...]
    """All parameters of each layer."""
    head: int

    @property
    def all(self) -> int:
        return self.dense + self.expert


def _counts(
    strategy: Strategy, chunks: Sequence[Sequence[Layer]], seq: int, *, own_tied: bool
) -> _Counts:
    part = slice_of(strategy, seq)
    ways = {"none": 1, "tensor": part.tensor, "expert": part.expert * part.expert_tensor}
    dense = expert = head = 0
    units: list[int] = []
    for layers in chunks:
        for layer in layers:
            total = 0
            for parameter in layer.parameters:
                if parameter.tied_to and not own_tied:
                    continue
                count = -(-parameter.count // ways[parameter.sharding])
                total += count
                if parameter.sharding == "expert":
                    expert += count
                else:
                    dense += count
            units.append(total)
            if layer.kind == "head":
                head = total
    return _Counts(dense, expert, tuple(units), head)


def stage_states(
    model: Model,
    strategy: Strategy,
    chunks: Sequence[Sequence[Layer]],
    stage: int,
    sizes: dict[str, int],
) -> States:
    """Return the states of one GPU of a stage.

    Parameters
    ----------
    chunks
        The stage's layers.
    sizes
        Ranks in a group of each axis (`simulator.training.mesh.group_sizes`).
    """
    data, precision = strategy.data_parallel, strategy.precision
    last = strategy.pipeline > 1 and stage == strategy.pipeline - 1
    counts = _counts(strategy, chunks, strategy.seq or model.seq, own_tied=last)
    shards = (sizes["shard"], sizes["expert_shard"])
    own = counts.dense / shards[0] + counts.expert / shards[1]
    whole = float(counts.all)
    sharded = data.kind in ("zero3", "fsdp")
    parameters = precision.parameter_bytes * (own if sharded else whole)
    gradients = precision.gradient_bytes * (own if sharded or data.kind == "zero2" else whole)
    updated = whole if data.kind == "ddp" else own
    width = float(precision.master_bytes + precision.moment_bytes)
    if strategy.optimizer == "none":
        width = 0.0
    elif strategy.optimizer == "sgd":
        # Momentum: half of Adam's two.
        width = precision.master_bytes + precision.moment_bytes / 2
    if data.kind == "fsdp" and precision.master_bytes:
        # The shard is the master copy; the narrow one exists only while gathered.
        parameters = precision.master_bytes * own
        width -= precision.master_bytes
    if strategy.framework == "megatron" and precision.gradient_bytes < 4 and precision.master_bytes:
        # Narrow gradients are copied to 32 bits for the optimiser.
        width += 4
    optimizer = width * updated
    host = 0.0
    if data.offload_optimizer != "none":
        host += optimizer
        optimizer = 0.0
        if sharded or data.kind == "zero2":
            # Gradients leave for the host as they are reduced.
            host += gradients
            gradients = 0.0
    if data.offload_parameters != "none" and sharded:
        host += parameters
        parameters = 0.0
    return States(
        n_parameters=counts.all,
        parameters_bytes=parameters,
        gradients_bytes=gradients,
        optimizer_bytes=optimizer,
        buffers_bytes=_buffers(strategy, counts, shards, sizes),
        host_bytes=host,
    )


def _buffers(
    strategy: Strategy, counts: _Counts, shards: tuple[int, int], sizes: dict[str, int]
) -> float:
    """Return buckets, gathered parameters and their gradients, and copies for 8-bit products."""
    data, precision = strategy.data_parallel, strategy.precision
    total = 0.0
    if precision.compute.startswith(("f8", "f4")) and data.kind not in ("fsdp", "zero3"):
        # Quantised weights and their transposes are kept over micro-batches.
        total += 2.0 * counts.all * (1.0 if precision.compute.startswith("f8") else 0.5)
    alone = shards[0] == 1 and shards[1] == 1
    match data.kind:
        case "ddp":
            if strategy.framework == "torch" and sizes["data"] > 1:
                total += float(precision.gradient_bytes) * counts.all
            total += error_feedback_bytes(data.hook, counts.all, precision.gradient_bytes)
        case "fsdp":
            total += 0.0 if alone else _gathered_units(strategy, counts)
        case _ if strategy.framework == "deepspeed" and not alone:
            total += _deepspeed_buffers(strategy, counts)
        case "zero3":
            total += 0.0 if alone else _gathered_units(strategy, counts)
    if data.secondary_shard:
        total += float(precision.gather_bytes) * counts.dense / data.secondary_shard
    return total


def _gathered_units(strategy: Strategy, counts: _Counts) -> float:
    """Return FSDP's units: gathered ones, and one's gradients before and while reduced.

    The head stays gathered from forward to backward; one unit computes and `prefetch` are ahead.
    Gradients of a unit stand in the gathered type and, beside them, in the reduced one.
    """
    data, precision = strategy.data_parallel, strategy.precision
    largest = max(counts.units)
    if data.reshard_after_forward:
        blocks = sorted((count for count in counts.units), reverse=True)
        gathered = float(sum(blocks[: 1 + data.prefetch]))
        if counts.head and counts.head not in blocks[: 1 + data.prefetch]:
            gathered += counts.head
    else:
        gathered = float(sum(counts.units))
    reduced = float(largest * (precision.gather_bytes + precision.reduce_bytes))
    if strategy.micro_batches > 1 and not data.reduce_every_micro_batch:
        # Accumulated without being reduced: whole, in the reduced type.
        reduced += float(precision.reduce_bytes) * counts.all
    return gathered * precision.gather_bytes + reduced


def _deepspeed_buffers(strategy: Strategy, counts: _Counts) -> float:
    """Return DeepSpeed's buckets, twice where communication overlaps, and live parameters."""
    data, precision = strategy.data_parallel, strategy.precision
    elements = BUCKET_ELEMENTS
    if data.bucket_bytes is not None:
        elements = data.bucket_bytes // precision.reduce_bytes
    elements = min(elements, counts.all)
    # Stages 1 and 2 reduce in the gradients' place unless they overlap.
    copies = 2 if data.overlap_reduce else 1
    reduced = float(copies * elements * precision.reduce_bytes)
    if data.kind != "zero3":
        return reduced
    live = min(counts.all, max(LIVE_ELEMENTS, (1 + data.prefetch) * max(counts.units)))
    return reduced + float(live * precision.gather_bytes)
