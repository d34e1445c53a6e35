"""Data parallel: gradients are all-reduced in buckets while the backward goes on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from simulator.training.tasks import Call, Compute, Task, Wait

__all__ = ["Bucket", "buckets", "ddp_step"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """Gradients that are reduced together."""

    size_bytes: int
    members: tuple[int, ...]
    """Indices of the gradients, in the order in which they become ready."""


def buckets(
    gradients_bytes: Sequence[int], *, first_bucket_bytes: int, bucket_cap_bytes: int
) -> tuple[Bucket, ...]:
    """Return the buckets of gradients in the order in which they become ready.

    Parameters
    ----------
    gradients_bytes
        Size of each gradient, in the order of the forward.
    first_bucket_bytes, bucket_cap_bytes
        A bucket is closed as soon as it holds at least this many bytes: the first one, the
        others.

    Notes
    -----
    Gradients become ready last layer first.  PyTorch rebuilds its buckets in this order after the
    first iteration (torch/csrc/distributed/c10d/reducer.cpp, rebuild_buckets; sizes in
    reducer.hpp: first 1 MiB, cap 25 MiB).

    Examples
    --------
    >>> plan = buckets([4, 4, 4, 4, 4], first_bucket_bytes=4, bucket_cap_bytes=8)
    >>> [bucket.size_bytes for bucket in plan]
    [4, 8, 8]
    """
    plan: list[Bucket] = []
    members: list[int] = []
    size = 0
    for index in reversed(range(len(gradients_bytes))):
        members.append(index)
        size += gradients_bytes[index]
        if size >= (bucket_cap_bytes if plan else first_bucket_bytes):
            plan.append(Bucket(size_bytes=size, members=tuple(members)))
            members, size = [], 0
    if members:
        plan.append(Bucket(size_bytes=size, members=tuple(members)))
    return tuple(plan)


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
