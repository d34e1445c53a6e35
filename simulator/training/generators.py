"""Steps of DDP and ZeRO from plain numbers: sizes and times, without a model.

Elements moved per rank and step, of Ψ parameters: 2Ψ for stages 1 and 2, 3Ψ for stage 3
(Rajbhandari et al. 2020, arXiv:1910.02054, section 7).
"""

from __future__ import annotations

from collections.abc import Sequence

from simulator.training.buckets import buckets
from simulator.training.tasks import Call, Compute, Task, Wait

__all__ = ["ddp_step", "zero_step"]


def ddp_step(
    gradients_bytes: Sequence[int],
    *,
    first_bucket_bytes: int,
    bucket_cap_bytes: int,
    forward_s: float,
    backward_s: float,
    optimizer_s: float,
    overlap: bool,
) -> tuple[Task, ...]:
    """Return one training step of a rank.

    Parameters
    ----------
    gradients_bytes
        Size of each gradient, in the order of the forward.
    first_bucket_bytes, bucket_cap_bytes
        As in `buckets`.
    forward_s, backward_s, optimizer_s
        Compute times; the backward is split over gradients by their bytes.
    overlap
        True: a bucket is reduced as soon as it is full.  False: all after the backward.
    """
    plan = buckets(
        gradients_bytes, first_bucket_bytes=first_bucket_bytes, bucket_cap_bytes=bucket_cap_bytes
    )
    total = max(1, sum(gradients_bytes))
    tasks: list[Task] = [Compute(name="forward", duration_s=forward_s)]
    calls = [
        Call(name=f"bucket {index}", collective="all_reduce", size_bytes=bucket.size_bytes)
        for index, bucket in enumerate(plan)
    ]
    for index, bucket in enumerate(plan):
        share = bucket.size_bytes / total
        tasks.append(Compute(name=f"backward {index}", duration_s=backward_s * share))
        if overlap:
            tasks.append(calls[index])
    if not overlap:
        tasks += calls
    tasks.append(Wait())
    if optimizer_s > 0:
        tasks.append(Compute(name="optimizer", duration_s=optimizer_s))
    return tuple(tasks)


def _cut(name: str, collective: str, size_bytes: int, bucket_bytes: int | None) -> list[Call]:
    """Return a transfer as one call, or as several of at most `bucket_bytes`."""
    if bucket_bytes is None or size_bytes <= bucket_bytes:
        return [Call(name=name, collective=collective, size_bytes=size_bytes)]
    parts = -(-size_bytes // bucket_bytes)
    borders = [size_bytes * i // parts for i in range(parts + 1)]
    return [
        Call(name=f"{name}.{i}", collective=collective, size_bytes=borders[i + 1] - borders[i])
        for i in range(parts)
    ]


def zero_step(
    *,
    stage: int,
    parameter_bytes: int,
    layers: int,
    forward_s: float,
    backward_s: float,
    optimizer_s: float,
    prefetch: int,
    overlap: bool,
    bucket_bytes: int | None,
) -> tuple[Task, ...]:
    """Return one training step of a rank.

    Parameters
    ----------
    stage
        1: optimiser states are sharded, 2: gradients too, 3: parameters too.
    parameter_bytes
        Bytes of all parameters, which are also the bytes of all gradients.
    layers
        Number of equal layers.
    forward_s, backward_s
        Compute time of one layer.
    optimizer_s
        Optimiser step.
    prefetch
        Stage 3: how many layers are gathered ahead of the one that computes.
    overlap
        Gradients are reduced while the backward goes on; False: after it.
    bucket_bytes
        Largest collective; None: a whole layer.
    """
    borders = [parameter_bytes * i // layers for i in range(layers + 1)]
    size = [borders[i + 1] - borders[i] for i in range(layers)]
    tasks: list[Task] = []
    if stage == 3:
        tasks += _sharded_pass("forward", list(range(layers)), size, forward_s, prefetch, None)
        tasks += _sharded_pass(
            "backward",
            list(reversed(range(layers))),
            size,
            backward_s,
            prefetch,
            bucket_bytes if bucket_bytes is not None else parameter_bytes,
        )
        tasks.append(Wait())
        if optimizer_s > 0:
            tasks.append(Compute(name="optimizer", duration_s=optimizer_s))
        return tuple(tasks)
    tasks += [Compute(name=f"forward {i}", duration_s=forward_s) for i in range(layers)]
    late: list[Task] = []
    for i in reversed(range(layers)):
        tasks.append(Compute(name=f"backward {i}", duration_s=backward_s))
        calls = _cut(f"gradients {i}", "reduce_scatter", size[i], bucket_bytes)
        if overlap:
            tasks += calls
        else:
            late += calls
    tasks += [*late, Wait()]
    if optimizer_s > 0:
        tasks.append(Compute(name="optimizer", duration_s=optimizer_s))
    for i in range(layers):
        tasks += _cut(f"parameters {i}", "all_gather", size[i], bucket_bytes)
    tasks.append(Wait())
    return tuple(tasks)


def _sharded_pass(
    name: str,
    order: list[int],
    size: list[int],
    compute_s: float,
    prefetch: int,
    reduce_bucket_bytes: int | None,
) -> list[Task]:
    """Return a pass over the layers in which each is gathered before it computes.

    Layer k's gather is issued when layer k − prefetch − 1 has been enqueued; the backward also
    reduces each layer's gradients.  Both share the communication stream, so a gather may wait for
    the reduction before it, as with one process group.
    """
    tasks: list[Task] = []
    issued: dict[str, int] = {}

    def gather(position: int) -> None:
        layer = order[position]
        tasks.append(
            Call(
                name=f"{name} parameters {layer}",
                collective="all_gather",
                size_bytes=size[layer],
            )
        )
        issued[f"gather {position}"] = len(issued)

    for position in range(min(prefetch + 1, len(order))):
        gather(position)
    for position, layer in enumerate(order):
        after = len(issued) - 1 - issued[f"gather {position}"]
        tasks.append(Wait(leave=after))
        tasks.append(Compute(name=f"{name} {layer}", duration_s=compute_s))
        if position + prefetch + 1 < len(order):
            gather(position + prefetch + 1)
        if reduce_bucket_bytes is not None:
            calls = _cut(f"gradients {layer}", "reduce_scatter", size[layer], reduce_bucket_bytes)
            tasks += calls
            for call in calls:
                issued[call.name] = len(issued)
    return tasks
