"""Building blocks of layers on one rank: sharded linear layers with their exchanges, norms.

Tensor parallelism follows Megatron-LM: the first linear layer of a pair is split by columns, the
second by rows (Shoeybi et al. 2019, arXiv:1909.08053); with sequence parallelism each all-reduce
becomes an all-gather and a reduce-scatter, and the gathered input is gathered again for the
weight gradient (Korthikanti et al. 2022, arXiv:2205.05198, section 4.2.2).  The backward of a
column-parallel layer overlaps its gather with the input gradient's product, and its reduction
with the weight gradient's (Megatron-LM, ``core/tensor_parallel/layers.py``,
``LinearWithGradAccumulationAndAsyncCommunication``).
"""

from __future__ import annotations

from collections.abc import Iterator

from simulator.models.kernels import Gemm, MemoryBound, Operation, Phase, Sync
from simulator.models.model import Slice

__all__ = [
    "column",
    "column_backward",
    "elementwise",
    "linear",
    "linear_backward",
    "norm",
    "norm_backward",
    "norm_kept_bytes",
    "row",
    "row_backward",
    "rows_between",
    "share",
    "tensor_sync",
    "tokens_of",
]


def share(extent: int, ways: int) -> int:
    """Return the largest share of an extent cut in so many parts."""
    return -(-extent // ways)


def tokens_of(part: Slice) -> int:
    """Return tokens of the micro-batch on one context rank."""
    return part.micro_batch * share(part.seq, part.context)


def rows_between(part: Slice) -> int:
    """Return tokens that a rank holds between the tensor-parallel regions."""
    tokens = tokens_of(part)
    return share(tokens, part.tensor) if part.sequence_parallel else tokens


def tensor_sync(
    name: str,
    phase: Phase,
    part: Slice,
    collective: str,
    elements: int,
    *,
    overlaps: bool = False,
    element_bytes: int | None = None,
) -> Iterator[Operation]:
    """Generate an exchange over the tensor axis; none where the axis has one rank."""
    if part.tensor > 1:
        yield Sync(
            name=f"{name}.{collective}",
            phase=phase,
            axis="tensor",
            collective=collective,
            size_bytes=elements * (element_bytes or part.activation_bytes),
            overlaps=overlaps,
        )


def elementwise(name: str, phase: Phase, n_bytes: float, launches: int = 1) -> MemoryBound:
    """Return element-wise work."""
    return MemoryBound(name=name, phase=phase, n_bytes=float(n_bytes), launches=launches)


def linear(name: str, phase: Phase, m: int, k: int, n: int, *, eight_bit: bool = True) -> Gemm:
    """Return a product of m rows."""
    return Gemm(name=name, phase=phase, m=m, n=n, k=k, eight_bit=eight_bit)


def linear_backward(
    name: str, part: Slice, m: int, k: int, n: int, *, bias: bool = False, eight_bit: bool = True
) -> Iterator[Operation]:
    """Generate a linear layer's two gradients."""
    yield Gemm(name=name, phase="input_gradient", m=m, n=k, k=n, eight_bit=eight_bit)
    yield Gemm(name=name, phase="weight_gradient", m=n, n=k, k=m, eight_bit=eight_bit)
    if bias:
        yield elementwise(f"{name}.bias", "weight_gradient", m * n * part.activation_bytes)


def column(
    name: str,
    phase: Phase,
    part: Slice,
    k: int,
    n: int,
    *,
    eight_bit: bool = True,
) -> Iterator[Operation]:
    """Generate a column-parallel layer from `k` features to `n` on this rank."""
    tokens = tokens_of(part)
    if part.sequence_parallel:
        yield from tensor_sync(name, phase, part, "all_gather", tokens * k)
    yield linear(name, phase, tokens, k, n, eight_bit=eight_bit)


def column_backward(
    name: str,
    part: Slice,
    k: int,
    n: int,
    *,
    bias: bool = False,
    eight_bit: bool = True,
) -> Iterator[Operation]:
    """Generate its backward: exchanges beside products, as the module says."""
    tokens = tokens_of(part)
    if part.sequence_parallel:
        yield from tensor_sync(
            name, "weight_gradient", part, "all_gather", tokens * k, overlaps=True
        )
    products = linear_backward(name, part, tokens, k, n, bias=bias, eight_bit=eight_bit)
    yield next(products)
    collective = "reduce_scatter" if part.sequence_parallel else "all_reduce"
    yield from tensor_sync(name, "input_gradient", part, collective, tokens * k, overlaps=True)
    yield from products


def row(name: str, phase: Phase, part: Slice, k: int, n: int) -> Iterator[Operation]:
    """Generate a row-parallel layer from `k` features of this rank to `n`."""
    tokens = tokens_of(part)
    yield linear(name, phase, tokens, k, n)
    collective = "reduce_scatter" if part.sequence_parallel else "all_reduce"
    yield from tensor_sync(name, phase, part, collective, tokens * n)


def row_backward(
    name: str, part: Slice, k: int, n: int, *, bias: bool = False
) -> Iterator[Operation]:
    """Generate its backward."""
    tokens = tokens_of(part)
    if part.sequence_parallel:
        yield from tensor_sync(name, "input_gradient", part, "all_gather", tokens * n)
    yield from linear_backward(name, part, tokens, k, n)
    if bias:
        own = rows_between(part) * n * part.activation_bytes
        yield elementwise(f"{name}.bias", "weight_gradient", own)


_EAGER_RMS_BYTES = 32.0
"""Of one element in an RMS norm written in elementary operations on 16-bit activations: widened
to 32 bits (6), squared (8), averaged (4), scaled (8), narrowed (6)."""
_EAGER_RMS_LAUNCHES = 6


def norm(
    name: str, phase: Phase, part: Slice, kind: str, rows: int, width: int
) -> Iterator[Operation]:
    """Generate a norm's forward: one pass, or elementary operations for an uncompiled RMS norm."""
    elements = float(rows) * width
    if kind == "rms_norm" and not part.compiled:
        yield elementwise(name, phase, _EAGER_RMS_BYTES * elements, _EAGER_RMS_LAUNCHES)
    else:
        yield elementwise(name, phase, 2 * part.activation_bytes * elements)


def norm_backward(name: str, part: Slice, kind: str, rows: int, width: int) -> Iterator[Operation]:
    """Generate its backward: gradients of the input, then of scale and shift."""
    elements = float(rows) * width
    a = part.activation_bytes
    if kind == "rms_norm" and not part.compiled:
        yield elementwise(
            name, "input_gradient", 2 * _EAGER_RMS_BYTES * elements, 2 * _EAGER_RMS_LAUNCHES
        )
    else:
        yield elementwise(name, "input_gradient", 3 * a * elements)
        yield elementwise(name, "weight_gradient", 2 * a * elements)


def norm_kept_bytes(part: Slice, kind: str) -> float:
    """Return bytes that a norm keeps of an element: its input.

    An RMS norm of elementary operations keeps its input in 32 bits and the normed value.
    """
    a = part.activation_bytes
    return 4.0 + a if kind == "rms_norm" and not part.compiled else float(a)
