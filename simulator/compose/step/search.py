"""Choose a strategy: parallel sizes that the model and the memory allow, by what they promise.

All combinations that the model allows and that fit into memory are ordered by a formula; the most
promising are simulated by the caller, which decides.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from simulator.base.errors import CollsimError, Problem, ScenarioError
from simulator.compose.cluster import Cluster
from simulator.compose.step.memory import capacity_bytes
from simulator.compose.step.request import model_of, strategy_of
from simulator.models import Model
from simulator.scenario.resolved import Resolved
from simulator.scenario.training import TrainingSpec
from simulator.training.check import problems_of
from simulator.training.memory import memory_report
from simulator.training.strategy import Strategy

__all__ = ["Candidates", "candidates"]

_LONG = 32_768
"""Context parallelism is tried from so many tokens on."""
_MICRO_BATCHES = (1, 2, 4, 8)


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates:
    """What a search found before simulating."""

    n_tried: int
    n_allowed: int
    """By the model, the framework and the number of GPUs."""
    n_fitting: int
    """Of these, what fits into memory."""
    best: tuple[Resolved, ...]
    """The most promising, best first, with their differences as labels."""


def candidates(cluster: Cluster, resolved: Resolved, *, most: int) -> Candidates:
    """Return the most promising strategies of a training scenario with the same global batch.

    Parameters
    ----------
    cluster
        GPUs and network.
    resolved
        Of kind ``training``; parallel sizes and recomputation in it are what the search replaces,
        everything else is kept.
    most
        How many to return.

    Raises
    ------
    ScenarioError
        No strategy is allowed, or none fits.
    """
    spec = resolved.training
    assert spec is not None
    model = model_of(spec)
    local = cluster.most_gpus_per_node
    batch = spec.global_batch or strategy_of(spec, cluster.n_gpus, local).global_batch
    capacity = capacity_bytes(cluster)
    n_tried = n_allowed = 0
    held: dict[int, Model] = {}
    fitting: list[tuple[float, Resolved]] = []
    for changes in _combinations(spec, model, cluster.n_gpus, local, batch):
        n_tried += 1
        asked = replace(spec, **changes, global_batch=batch, micro_batches=None, data=None)
        try:
            strategy = strategy_of(asked, cluster.n_gpus, local)
        except ScenarioError:
            continue
        # The vocabulary is padded by the ranks that share it.
        if strategy.tensor not in held:
            held[strategy.tensor] = model_of(asked)
        if problems_of(held[strategy.tensor], strategy, cluster.n_gpus):
            continue
        n_allowed += 1
        try:
            if not memory_report(held[strategy.tensor], strategy).fits(capacity):
                continue
        except CollsimError:
            continue
        labels = tuple((f"training.{key}", str(value)) for key, value in changes.items())
        made = replace(resolved, training=asked, labels=labels)
        fitting.append((_estimate(strategy, local), made))
    if not fitting:
        raise ScenarioError(
            Problem(
                key="training",
                message=f"none of {n_tried} strategies fits {model.name} with {batch} sequences "
                f"into {cluster.n_gpus} GPUs of {capacity / 2**30:.0f} GiB "
                f"({n_allowed} are allowed)",
                allowed="more GPUs, a shorter sequence, offload, or a batch that divides better",
            )
        )
    fitting.sort(key=lambda pair: pair[0])
    return Candidates(
        n_tried=n_tried,
        n_allowed=n_allowed,
        n_fitting=len(fitting),
        best=tuple(made for _, made in fitting[:most]),
    )


def _combinations(
    spec: TrainingSpec, model: Model, n_gpus: int, local: int, batch: int
) -> Iterator[dict[str, Any]]:
    """Generate changes of the section: all axes, sharding, micro-batch, recomputation."""
    seq = spec.seq or model.seq
    kinds = {
        "megatron": ("ddp", "zero1"),
        "deepspeed": ("zero1", "zero2", "zero3"),
        "torch": ("ddp", "fsdp", "hsdp"),
    }[spec.framework]
    # FlashAttention keeps nothing that recomputing the core of attention alone would save.
    partly = spec.attention == "standard" or spec.framework == "torch"
    again = ("none", "selective", "full") if partly else ("none", "full")
    for tensor in _powers(min(local, max(1, model.heads))):
        for pipeline in _divisors(max(1, model.blocks), n_gpus // tensor):
            for context in _powers(local) if seq >= _LONG else (1,):
                ranks = tensor * pipeline * context
                if n_gpus % ranks:
                    continue
                data = n_gpus // ranks
                for expert in (
                    _powers(min(data * context, model.experts)) if model.experts else (1,)
                ):
                    for kind in kinds if data * context > 1 else ("ddp",):
                        if kind in ("zero2", "zero3", "hsdp") and pipeline > 1:
                            continue
                        for micro in _MICRO_BATCHES:
                            if batch % (micro * data):
                                continue
                            passes = batch // (micro * data)
                            for virtual in _virtual(model, pipeline, passes):
                                for recompute in again:
                                    yield {
                                        "tensor": tensor,
                                        "pipeline": pipeline,
                                        "virtual": virtual,
                                        "context": context,
                                        "expert": expert,
                                        "data_parallel": kind,
                                        "micro_batch": micro,
                                        "recompute": recompute,
                                    }


def _powers(most: int) -> Iterator[int]:
    size = 1
    while size <= most:
        yield size
        size *= 2


def _divisors(n: int, most: int) -> Iterator[int]:
    return (size for size in range(1, min(n, most) + 1) if n % size == 0)


def _virtual(model: Model, pipeline: int, passes: int) -> Iterator[int]:
    yield 1
    if pipeline > 1 and passes % pipeline == 0:
        for chunks in (2, 4):
            if model.blocks % (pipeline * chunks) == 0:
                yield chunks


def _estimate(strategy: Strategy, local: int) -> float:
    """Return a relative step time by formula, to choose what is worth simulating.

    Recomputation, the pipeline's bubble, small products, tensor-parallel traffic and sharded
    parameters each lengthen it; the weights are rough, the simulation decides.
    """
    again = {"none": 1.0, "selective": 1.02, "full": 4 / 3}[strategy.recompute]
    bubble = 1.0 + (strategy.pipeline - 1) / (strategy.virtual * strategy.micro_batches)
    traffic = 1.0 + 0.05 * np.log2(strategy.tensor) + 0.02 * np.log2(strategy.context)
    traffic += 0.03 * np.log2(strategy.expert) * (1.0 if strategy.expert <= local else 2.0)
    small = 1.0 + 0.08 / strategy.micro_batch
    sharded = {"zero3": 0.05, "fsdp": 0.05, "zero1": 0.0, "zero2": 0.01}.get(
        strategy.data_parallel.kind, 0.02
    )
    sharded /= strategy.micro_batches if strategy.data_parallel.kind == "zero1" else 1
    return float(again * bubble * traffic * small * (1.0 + sharded))
