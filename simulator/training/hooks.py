"""PyTorch's communication hooks: what a bucket costs when its gradients are compressed.

Sources: torch/distributed/algorithms/ddp_comm_hooks (default_hooks.py, quantization_hooks.py,
powerSGD_hook.py); PowerSGD: Vogels et al. 2019, arXiv:1905.13727; top-k with error feedback:
Stich et al. 2018, arXiv:1809.07599.
"""

from __future__ import annotations

import math

from simulator.models.kernels import Gemm, MemoryBound
from simulator.training.gpu_time import ComputeLike
from simulator.training.plan import Wait
from simulator.training.reduce import GradientBucket
from simulator.training.sharing import StageContext
from simulator.training.tape import Tape

__all__ = ["HOOKS", "error_feedback_bytes", "hooked", "low_rank_shapes"]

HOOKS = ("none", "fp16", "bf16", "int8", "fp8", "top_k", "power_sgd")

MIN_COMPRESSION_RATE = 2
"""PowerSGDState: a matrix is compressed where its factors are smaller by more than this."""
INDEX_BYTES = 4
_TILE = 32
"""Columns of fp32 in a memory line of 128 bytes: narrower products are vectors' work."""
SELECT_PASSES = 4
"""Readings of all values by a radix selection of the k largest: 8 bits each."""


def low_rank_shapes(bucket: GradientBucket, rank: int) -> list[tuple[int, int]]:
    """Return (n, m) of the bucket's matrices that PowerSGD compresses.

    A tensor is seen as its first dimension times the others; it is compressed where
    ``(n + m) * rank * 2 < n * m``.
    """
    found = []
    for parameter in bucket.parameters:
        if len(parameter.shape) < 2:
            continue
        n = parameter.shape[0]
        m = math.prod(parameter.shape[1:])
        if (n + m) * rank * MIN_COMPRESSION_RATE < n * m:
            found.append((n, m))
    return found


def error_feedback_bytes(hook: str, count: int, gradient_bytes: int) -> int:
    """Return the memory of what compression left out of `count` gradients."""
    return count * gradient_bytes if hook in ("top_k", "power_sgd") else 0


def hooked(tape: Tape, bucket: GradientBucket, axis: str, context: StageContext) -> None:
    """Append the compression of a bucket, its collectives, and the expansion.

    Notes
    -----
    Compression runs on the compute stream, where the hook is called; collectives on the group's
    stream, in the order of the buckets; what follows a collective on a stream of its own.
    """
    hook = context.strategy.data_parallel.hook
    if hook in ("fp16", "bf16"):
        _cast(tape, bucket, axis, context)
    elif hook in ("int8", "fp8"):
        _quantize(tape, bucket, axis, context)
    elif hook == "top_k":
        _top_k(tape, bucket, axis, context)
    else:
        _power_sgd(tape, bucket, axis, context)


def _cast(tape: Tape, bucket: GradientBucket, axis: str, context: StageContext) -> None:
    width = context.strategy.precision.reduce_bytes
    seconds = context.compute.cast_s(bucket.count, width, 2)
    tape.compute(f"compress {bucket.name}", seconds, "compress")
    tape.call(f"gradients {bucket.name}", "all_reduce", 2 * bucket.count, axis, stream=axis)
    tape.tasks.append(Wait(on=axis, stream="hook"))
    seconds = context.compute.cast_s(bucket.count, 2, width)
    tape.compute(f"expand {bucket.name}", seconds, "compress", "hook")


def _quantize(tape: Tape, bucket: GradientBucket, axis: str, context: StageContext) -> None:
    """Bytes cannot be summed: all ranks gather them, and each sums for itself."""
    width = context.strategy.precision.reduce_bytes
    ranks = context.sizes[axis]
    cast_s = context.compute.cast_s
    # One reading finds the range, a second one quantises.
    seconds = cast_s(bucket.count, width, 0) + cast_s(bucket.count, width, 1)
    tape.compute(f"compress {bucket.name}", seconds, "compress")
    tape.call(f"scales {bucket.name}", "all_gather", 8 * ranks, axis, stream=axis)
    tape.call(f"gradients {bucket.name}", "all_gather", ranks * bucket.count, axis, stream=axis)
    tape.tasks.append(Wait(on=axis, stream="hook"))
    # Each rank's part is expanded (1 byte in, `width` out) and added (two in, one out).
    seconds = ranks * cast_s(bucket.count, 1 + 3 * width, width)
    tape.compute(f"expand {bucket.name}", seconds, "compress", "hook")


def _top_k(tape: Tape, bucket: GradientBucket, axis: str, context: StageContext) -> None:
    width = context.strategy.precision.reduce_bytes
    ranks = context.sizes[axis]
    cast_s = context.compute.cast_s
    kept = max(1, round(bucket.count * context.strategy.data_parallel.hook_ratio))
    # The error is added (two in, one out), the largest found, and the new error written.
    seconds = cast_s(bucket.count, 2 * width, width)
    seconds += cast_s(bucket.count, SELECT_PASSES * width, 0) + cast_s(bucket.count, 0, width)
    tape.compute(f"compress {bucket.name}", seconds, "compress")
    tape.call(f"values {bucket.name}", "all_gather", ranks * kept * width, axis, stream=axis)
    tape.call(f"indices {bucket.name}", "all_gather", ranks * kept * INDEX_BYTES, axis, stream=axis)
    tape.tasks.append(Wait(on=axis, stream="hook"))
    # Zeros written, then every rank's values added where they belong.
    seconds = cast_s(bucket.count, 0, width) + cast_s(ranks * kept, 2 * width + INDEX_BYTES, width)
    tape.compute(f"expand {bucket.name}", seconds, "compress", "hook")


def _skinny_s(
    name: str, sizes: tuple[int, int, int], rank: int, width: int, compute: ComputeLike
) -> float:
    """Return the time of a product ``[m, k] x [k, n]`` one of whose extents is the rank.

    A matrix times a few columns streams the matrix: the memory bounds it.  From `_TILE` columns
    on it is a product like others, cut into tiles; below, so many of a tile's columns count.
    Both grow with the rank.
    """
    m, n, k = sizes
    streamed = MemoryBound(
        name=name, phase="forward", n_bytes=float(width) * (m * k + k * n + m * n), launches=1
    )
    columns = -(-rank // _TILE) * _TILE
    m, n, k = (columns if extent == rank else extent for extent in sizes)
    tiled = Gemm(name=name, phase="forward", m=m, n=n, k=k, dtype="float32")
    (stream_s,) = compute.work_s([streamed], "float32")
    (tiled_s,) = compute.work_s([tiled], "float32")
    return max(stream_s, tiled_s * min(1.0, rank / _TILE))


def _power_sgd(tape: Tape, bucket: GradientBucket, axis: str, context: StageContext) -> None:
    rank = context.strategy.data_parallel.hook_rank
    width = context.strategy.precision.reduce_bytes
    shapes = low_rank_shapes(bucket, rank)
    cast_s = context.compute.cast_s

    def products(name: str, sizes: list[tuple[int, int, int]]) -> float:
        return sum(
            _skinny_s(name, sizes_of_one, rank, width, context.compute) for sizes_of_one in sizes
        )

    dense = bucket.count - sum(n * m for n, m in shapes)
    # Error added, and a copy kept from which the next error is made.
    seconds = cast_s(bucket.count, 2 * width, 2 * width)
    seconds += products("P", [(n, rank, m) for n, m in shapes])
    tape.compute(f"compress {bucket.name}", seconds, "compress")
    tape.call(f"uncompressed {bucket.name}", "all_reduce", dense * width, axis, stream=axis)
    if not shapes:
        tape.tasks.append(Wait(on=axis, stream="hook"))
        return
    rows = sum(n for n, _ in shapes) * rank
    columns = sum(m for _, m in shapes) * rank
    tape.call(f"P {bucket.name}", "all_reduce", rows * width, axis, stream=axis)
    tape.tasks.append(Wait(on=axis, stream="hook"))
    # Gram-Schmidt reads the columns before for each column.
    seconds = cast_s(rows, width * (rank + 1) / 2, width)
    seconds += products("Q", [(m, rank, n) for n, m in shapes])
    tape.compute(f"orthogonalise {bucket.name}", seconds, "compress", "hook")
    tape.call(f"Q {bucket.name}", "all_reduce", columns * width, axis, stream=axis, after="hook")
    tape.tasks.append(Wait(on=axis, stream="hook"))
    seconds = products("PQ", [(n, m, rank) for n, m in shapes])
    seconds += cast_s(bucket.count, 2 * width, width)
    tape.compute(f"expand {bucket.name}", seconds, "compress", "hook")
