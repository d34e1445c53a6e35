"""What a training step keeps on each GPU, by pipeline stage, and whether it fits.

The peak of a stage is taken over its schedule: states, buffers, activations of the micro-batches
in flight, and what the layer needs whose backward runs at that moment.

Not modelled: memory of the data loader, of evaluation and of checkpoints being written; steps
before the optimiser's first, when states are not there yet.

References
----------
.. [1] Korthikanti et al. 2022, arXiv:2205.05198: activations.
.. [2] Rajbhandari et al. 2020, arXiv:1910.02054, table 1: states under ZeRO.
.. [3] Megatron-LM, docs/source/api-guide/dist_optimizer.md: bytes per parameter.
.. [4] Guo et al. 2024 (GMLake), arXiv:2401.08156: fragmentation of the caching allocator.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from simulator.models.model import Layer, Model
from simulator.training.layer_tasks import ELEMENT_BYTES, slice_of
from simulator.training.memory_states import stage_states
from simulator.training.mesh import group_sizes
from simulator.training.pipeline import Pass, schedule
from simulator.training.stages import split_layers
from simulator.training.strategy import Strategy

__all__ = [
    "CONTEXT_BYTES",
    "FRAGMENTATION",
    "MemoryReport",
    "StageMemory",
    "memory_report",
]

CONTEXT_BYTES = 800 * 2**20
"""CUDA context and loaded kernels of a process.  Hugging Face's "Model memory anatomy" measures
1.3 GB with all kernels loaded at once; with lazy loading (CUDA 11.7 and later) it is about half."""
FRAGMENTATION = 0.10
"""Of all that the framework allocates, lost between tensors.  GMLake [4]_ measures 15 % on
average and up to 33 %, most with recomputation and offload; expandable segments lose less."""
COMMUNICATOR_BYTES = 24 * (4 + 4 + 1) * 2**20
"""Buffers of one NCCL communicator: 24 channels with a buffer of 4 MiB (Simple), up to 4 (LL128)
and up to 1 (LL) at the receiving end (NCCL, src/include/device.h, NCCL_BUFFSIZE)."""

_COMMUNICATORS = (
    "tensor",
    "context",
    "shard",
    "replicate",
    "expert",
    "expert_data",
    "pipeline",
    "ends",
    "model",
    "world",
)
"""Groups that have a communicator of their own: those of the axes, tied embeddings, the norm of all
gradients, and all ranks (Megatron-LM, megatron/core/parallel_state.py)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageMemory:
    """Memory of one GPU of a pipeline stage, bytes."""

    stage: int
    n_parameters: int
    """On this GPU, before sharding over data-parallel ranks."""
    parameters_bytes: float
    gradients_bytes: float
    optimizer_bytes: float
    activations_bytes: float
    """Kept from forwards to backwards, at the peak."""
    working_bytes: float
    """Of the layer that computes at the peak: gradients, recomputed values, logits."""
    buffers_bytes: float
    """Buckets, gathered units, buffers of pipelines."""
    communication_bytes: float
    """Of communicators."""
    context_bytes: float
    fragmentation_bytes: float
    in_flight: int
    """Most (micro-batch, chunk) pairs whose activations are kept at once."""
    host_bytes: float
    """Offloaded to the CPU's memory or to storage, per GPU."""

    @property
    def total_bytes(self) -> float:
        """All on the GPU."""
        return (
            self.parameters_bytes
            + self.gradients_bytes
            + self.optimizer_bytes
            + self.activations_bytes
            + self.working_bytes
            + self.buffers_bytes
            + self.communication_bytes
            + self.context_bytes
            + self.fragmentation_bytes
        )

    @property
    def states_bytes(self) -> float:
        """Parameters, gradients and optimiser states."""
        return self.parameters_bytes + self.gradients_bytes + self.optimizer_bytes

    @property
    def allocated_bytes(self) -> float:
        """What a framework's allocator counts: without context and communicators."""
        return self.total_bytes - self.context_bytes - self.communication_bytes

    def parts(self) -> dict[str, float]:
        """Return the parts of the total by the names that tables and plots show."""
        return {
            "parameters": self.parameters_bytes,
            "gradients": self.gradients_bytes,
            "optimizer": self.optimizer_bytes,
            "activations": self.activations_bytes,
            "working": self.working_bytes,
            "buffers": self.buffers_bytes,
            "communication": self.communication_bytes,
            "context": self.context_bytes,
            "fragmentation": self.fragmentation_bytes,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryReport:
    """Memory of every pipeline stage."""

    stages: tuple[StageMemory, ...]
    notes: tuple[str, ...] = ()
    """What the numbers assume."""

    @property
    def fullest(self) -> StageMemory:
        """The stage that needs most; the first of equal ones."""
        return max(self.stages, key=lambda stage: stage.total_bytes)

    @property
    def peak_bytes(self) -> float:
        """Memory of the fullest GPU."""
        return self.fullest.total_bytes

    @property
    def host_bytes(self) -> float:
        """Most that a GPU offloads."""
        return max(stage.host_bytes for stage in self.stages)

    def fits(self, gpu_memory_bytes: float) -> bool:
        """Return whether every stage fits into a GPU."""
        return self.peak_bytes <= gpu_memory_bytes

    def verdict(self, gpu_memory_bytes: float) -> str:
        """Return one sentence: whether it fits, by how much, and what takes most."""
        stage = self.fullest
        gib = 2.0**30
        parts = sorted(stage.parts().items(), key=lambda item: -item[1])[:3]
        most = ", ".join(f"{name} {size / gib:.1f}" for name, size in parts)
        where = f" on stage {stage.stage}" if len(self.stages) > 1 else ""
        used = f"{stage.total_bytes / gib:.1f} of {gpu_memory_bytes / gib:.1f} GiB{where}"
        if self.fits(gpu_memory_bytes):
            return f"fits: {used} (most: {most})"
        over = (stage.total_bytes - gpu_memory_bytes) / gib
        return f"out of memory: {used}, {over:.1f} too many (most: {most})"


def memory_report(
    model: Model,
    strategy: Strategy,
    *,
    context_bytes: float = CONTEXT_BYTES,
    fragmentation: float = FRAGMENTATION,
) -> MemoryReport:
    """Return the memory that a strategy needs on each stage.

    Parameters
    ----------
    model, strategy
        What is trained, and how it is spread.
    context_bytes
        Of the GPU's runtime, outside the framework's allocator.
    fragmentation
        Share of what is allocated that is lost between tensors.

    Raises
    ------
    ScenarioError
        Where the model's blocks do not divide over the pipeline.
    """
    uneven = strategy.framework != "megatron"
    chunks = split_layers(model, strategy.pipeline, strategy.virtual, uneven=uneven)
    sizes = group_sizes(strategy)
    communicators = sum(sizes.get(axis, 1) > 1 for axis in _COMMUNICATORS)
    stages: list[StageMemory] = []
    for stage, own in enumerate(chunks):
        states = stage_states(model, strategy, own, stage, sizes)
        kept, working, held = _peak(strategy, model, own, stage)
        edges = _pipeline_bytes(model, strategy)
        allocated = kept + working + states.buffers_bytes + edges + states.on_gpu_bytes
        stages.append(
            StageMemory(
                stage=stage,
                n_parameters=states.n_parameters,
                parameters_bytes=states.parameters_bytes,
                gradients_bytes=states.gradients_bytes,
                optimizer_bytes=states.optimizer_bytes,
                activations_bytes=kept,
                working_bytes=working,
                buffers_bytes=states.buffers_bytes + edges,
                communication_bytes=float(communicators * COMMUNICATOR_BYTES),
                context_bytes=float(context_bytes),
                fragmentation_bytes=fragmentation * allocated,
                in_flight=held,
                host_bytes=states.host_bytes,
            )
        )
    notes = (
        f"{context_bytes / 2**20:.0f} MiB of GPU runtime and {fragmentation:.0%} of all "
        "tensors lost to fragmentation are assumed",
    )
    return MemoryReport(stages=tuple(stages), notes=notes)


def _pipeline_bytes(model: Model, strategy: Strategy) -> float:
    """Return buffers of what passes between stages: one each way, sent and received."""
    if strategy.pipeline == 1:
        return 0.0
    tokens = strategy.micro_batch * (strategy.seq or model.seq) / strategy.context
    if strategy.sequence_parallel:
        tokens /= strategy.tensor
    width = ELEMENT_BYTES.get(strategy.precision.compute, 2)
    return 4.0 * tokens * model.hidden * width


def _peak(
    strategy: Strategy, model: Model, chunks: Sequence[Sequence[Layer]], stage: int
) -> tuple[float, float, int]:
    """Return kept and working bytes at the stage's peak, and the most passes in flight."""
    seq = strategy.seq or model.seq
    part, plain = slice_of(strategy, seq), slice_of(strategy, seq, recompute=False)
    left = strategy.recompute_layers
    kept: list[float] = []
    rises: list[tuple[float, float]] = []
    for layers in chunks:
        own = []
        for layer in layers:
            chosen = part
            if left is not None and layer.kind == "block":
                chosen = part if left > 0 else plain
                left -= 1
            own.append(layer.activations(chosen))
        kept.append(sum(one.kept_bytes for one in own))
        rises.append(_rise([(one.kept_bytes, one.working_bytes) for one in own]))
    held = [0.0, 0.0]
    flying = most = 0
    best = (0.0, 0.0)
    for step in _passes(strategy, stage):
        if step.kind == "forward":
            held[0] += kept[step.chunk]
            flying += 1
            most = max(most, flying)
            # The forward's own temporaries are smaller than the backward's that follows.
            best = max(best, (held[0], 0.0), key=sum)
            continue
        if step.kind != "weight_gradient":
            freed, working = rises[step.chunk]
            best = max(best, (held[0] - freed, working), key=sum)
        if step.kind != "input_gradient":
            held[0] -= kept[step.chunk]
            flying -= 1
    return best[0], best[1], most


def _rise(layers: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Return what is freed and what works when a chunk's backward needs most.

    `layers` holds kept and working bytes in the order of the forward; the backward frees each
    layer's before it comes to the one below.
    """
    freed = 0.0
    best = (0.0, 0.0)
    for kept, working in reversed(layers):
        if working - freed > best[1] - best[0]:
            best = (freed, working)
        freed += kept
    return best


def _passes(strategy: Strategy, stage: int) -> tuple[Pass, ...]:
    """Return the stage's passes; of a long step, as many as reach the steady state."""
    stages, virtual = strategy.pipeline, strategy.virtual
    count = strategy.micro_batches
    if strategy.schedule != "gpipe":
        count = min(count, 4 * stages)
    return schedule(
        strategy.schedule if stages > 1 else "1f1b",
        stages=stages,
        stage=stage,
        micro_batches=count,
        virtual=virtual if stages > 1 else 1,
    )
