"""The strategy of a step for which none is said: the first of the simple ones that fits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from simulator.base.errors import CollsimError
from simulator.compose.build import node_list
from simulator.compose.step.request import model_of, strategy_of
from simulator.scenario.resolved import Resolved
from simulator.scenario.training import TrainingSpec
from simulator.training.check import problems_of
from simulator.training.memory import memory_report

__all__ = ["usual_strategy"]

Changes = dict[str, Any]


def usual_strategy(resolved: Resolved) -> tuple[dict[str, str], str] | None:
    """Return the keys of the first simple strategy that fits into memory, and why, in words.

    None where the plain one fits, where none does, and without GPUs to judge by.

    Parameters
    ----------
    resolved
        Of kind ``training``, on node presets.
    """
    spec, nodes = resolved.training, node_list(resolved)
    if spec is None or not nodes:
        return None
    sizes = [sum(v.kind == "gpu" for v in template.vertices) for template, _ in nodes]
    n_gpus = sum(size * count for size, (_, count) in zip(sizes, nodes, strict=True))
    capacity = float(min(template.gpu.memory_bytes for template, _ in nodes))
    needed = _needed(spec, n_gpus, max(sizes))
    if needed is None or needed <= capacity:
        return None
    for changes in _simple(max(sizes), len(resolved.node_groups) and n_gpus // max(sizes)):
        own = _needed(replace(spec, **changes), n_gpus, max(sizes))
        if own is not None and own <= capacity:
            words = {f"training.{key}": str(value) for key, value in changes.items()}
            shown = ", ".join(f"{key} {value}" for key, value in changes.items())
            gib = 2.0**30
            return words, (
                f"strategy: {spec.data_parallel} needs {needed / gib:.0f} of {capacity / gib:.0f} "
                f"GiB; the first simple one that fits is taken: {shown} "
                f"({own / gib:.0f} GiB); any option of the strategy is taken as it is"
            )
    return None


def _simple(local: int, n_nodes: int) -> Iterator[Changes]:
    """Generate strategies in the order in which people try them."""
    yield {"data_parallel": "zero1"}
    yield {"data_parallel": "fsdp", "framework": "torch"}
    yield {"data_parallel": "fsdp", "framework": "torch", "recompute": "full"}
    split = {"tensor": local, "data_parallel": "zero1", "recompute": "full"}
    yield split
    stages = 2
    while stages <= n_nodes:
        yield {**split, "pipeline": stages}
        stages *= 2


def _needed(spec: TrainingSpec, n_gpus: int, local: int) -> float | None:
    """Return the bytes that a strategy needs on the fullest GPU; None where it is refused."""
    try:
        strategy = strategy_of(spec, n_gpus, local)
        model = model_of(spec)
        if problems_of(model, strategy, n_gpus):
            return None
        return memory_report(model, strategy).peak_bytes
    except CollsimError:
        return None
