"""Gradients in buckets: which parameters are reduced together, and when they are complete."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Bucket", "bucket_plan", "buckets", "filled", "print_plan"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """Gradients that are reduced together."""

    size_bytes: int
    members: tuple[int, ...]
    """Indices of the gradients, in the order in which they become ready."""


def filled(sizes: Sequence[int], order: Sequence[int], limits: Sequence[int]) -> list[Bucket]:
    """Return buckets filled in an order; each is closed as soon as it holds its limit.

    Parameters
    ----------
    sizes
        Of each gradient, in bytes or elements.
    order
        Indices into `sizes`.
    limits
        Of the first bucket, the second, …; the last holds for all further ones.
    """
    plan: list[Bucket] = []
    members: list[int] = []
    size = 0
    for index in order:
        members.append(index)
        size += sizes[index]
        if size >= limits[min(len(plan), len(limits) - 1)]:
            plan.append(Bucket(size_bytes=size, members=tuple(members)))
            members, size = [], 0
    if members:
        plan.append(Bucket(size_bytes=size, members=tuple(members)))
    return plan


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
    ready = list(reversed(range(len(gradients_bytes))))
    return tuple(filled(gradients_bytes, ready, (first_bucket_bytes, bucket_cap_bytes)))


def bucket_plan(
    gradients_bytes: Sequence[int],
    *,
    first_bucket_bytes: int = 2**20,
    bucket_cap_bytes: int = 25 * 2**20,
    ready: Sequence[int] | None = None,
    rebuilt: bool = True,
    find_unused: bool = False,
) -> tuple[Bucket, ...]:
    """Return the buckets of PyTorch's DistributedDataParallel, in the order of their reduction.

    Parameters
    ----------
    gradients_bytes
        Size of each gradient in the order of ``model.parameters()``, of one type and device.
    first_bucket_bytes, bucket_cap_bytes
        Limits; a `bucket_cap_mb` given by the user holds for the first bucket too.
    ready
        Indices in the order in which gradients become ready; None: last parameter first.
    rebuilt
        After the first iteration: filled in the order of readiness.  Before it: filled in the
        order of ``model.parameters()``, then turned round (the small bucket is then the last).
    find_unused
        Buckets are not rebuilt; and only then is the first iteration's plan bounded by the
        limits: without it all gradients are one bucket until the rebuild (PyTorch 2.x,
        torch/nn/parallel/distributed.py, compute_bucket_size_limits).
    """
    limits = (first_bucket_bytes, bucket_cap_bytes)
    every = range(len(gradients_bytes))
    if rebuilt and not find_unused:
        order = list(reversed(every)) if ready is None else list(ready)
        return tuple(filled(gradients_bytes, order, limits))
    first = limits if find_unused else (sum(gradients_bytes) + 1,)
    return tuple(reversed(filled(gradients_bytes, list(every), first)))


def print_plan(plan: Sequence[Bucket], names: Sequence[str]) -> str:
    """Return a plan as text: one line per bucket with its size, first and last gradient.

    Examples
    --------
    >>> plan = bucket_plan([400, 2**20, 2**22])
    >>> print(print_plan(plan, ["norm", "up", "down"]))
    bucket 0: 4.00 MiB, 1 gradient: down
    bucket 1: 1.00 MiB, 2 gradients: up … norm
    """
    lines = []
    for index, bucket in enumerate(plan):
        count = len(bucket.members)
        shown = [names[bucket.members[0]], names[bucket.members[-1]]]
        what = " … ".join(shown if count > 1 else shown[:1])
        plural = "s" if count > 1 else ""
        lines.append(
            f"bucket {index}: {bucket.size_bytes / 2**20:.2f} MiB, {count} gradient{plural}: {what}"
        )
    return "\n".join(lines)
