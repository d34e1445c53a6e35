"""The feed-forward part of a block: dense, or routed experts with shared ones; on one rank.

Routed experts are held by the ranks of the expert axis (and cut over `expert_tensor` ranks); each
token's hidden state goes to each of its experts in one all-to-all and comes back in another
(Shazeer et al. 2017, arXiv:1701.06538; Lepikhin et al. 2020, arXiv:2006.16668).  Experts of a rank
run as one grouped product (Megatron Core, ``moe_grouped_gemm``).  With sequence parallelism each
tensor rank dispatches its own tokens.

Not modelled: a token that goes to two experts of one rank is sent twice.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from simulator.models.dims import Dims
from simulator.models.kernels import Gemm, Operation, Phase, Sync
from simulator.models.local import (
    column,
    column_backward,
    elementwise,
    linear,
    linear_backward,
    row,
    row_backward,
    rows_between,
    share,
    tensor_sync,
    tokens_of,
)
from simulator.models.model import Slice

__all__ = ["DensePart", "ExpertsPart"]


def _activate(
    name: str, phase: Phase, part: Slice, dims: Dims, elements: float
) -> Iterator[Operation]:
    """Generate the activation on `elements` of the inner width."""
    a = part.activation_bytes
    back = phase == "input_gradient"
    if dims.gated:
        # Two operations on three arrays where nothing fuses them, one otherwise.
        fused, eager = (5, 9) if back else (3, 5)
        passes, launches = (fused, 1) if part.compiled else (eager, 2)
    else:
        passes, launches = (3 if back else 2), 1
    yield elementwise(name, phase, passes * a * elements, launches)


def _inner_kept(dims: Dims, part: Slice) -> int:
    """Return values kept per element of the inner width: the activation's inputs and output.

    A gated one of elementary operations also keeps the activated gate.
    """
    if not dims.gated:
        return 2
    return 3 if part.compiled else 4


@dataclass(frozen=True, slots=True)
class DensePart:
    """Two linear layers (three, if gated) with an activation between."""

    dims: Dims
    ffn: int
    """Inner width."""
    name: str = "mlp"

    def _ffn(self, part: Slice) -> int:
        return share(self.ffn, part.tensor)

    def _up(self, part: Slice) -> int:
        return self._ffn(part) * (2 if self.dims.gated else 1)

    def forward(self, phase: Phase, part: Slice) -> Iterator[Operation]:
        """Generate the forward, or its recomputation."""
        hidden, inner = self.dims.hidden, self._ffn(part)
        yield from column(f"{self.name}_up", phase, part, hidden, self._up(part))
        elements = tokens_of(part) * inner
        yield from _activate(f"{self.name}_activation", phase, part, self.dims, elements)
        yield from row(f"{self.name}_down", phase, part, inner, hidden)

    def backward(self, part: Slice) -> Iterator[Operation]:
        """Generate the backward."""
        hidden, inner, bias = self.dims.hidden, self._ffn(part), self.dims.bias
        yield from row_backward(f"{self.name}_down", part, inner, hidden, bias=bias)
        elements = tokens_of(part) * inner
        yield from _activate(f"{self.name}_activation", "input_gradient", part, self.dims, elements)
        yield from column_backward(f"{self.name}_up", part, hidden, self._up(part), bias=bias)
        if self.dims.gated and not self.dims.fused_qkv and not part.compiled:
            # Two layers' gradients of one input are added up.
            n_bytes = 3 * part.activation_bytes * tokens_of(part) * hidden
            yield elementwise(f"{self.name}_up.sum", "input_gradient", n_bytes)

    def again(self, part: Slice) -> Iterator[Operation]:
        """Generate what recomputation by operators repeats: of two up projections the second."""
        phase: Phase = "recompute"
        inner = self._ffn(part)
        if self.dims.gated:
            yield from column(f"{self.name}_up", phase, part, self.dims.hidden, inner)
        elements = tokens_of(part) * inner
        yield from _activate(f"{self.name}_activation", phase, part, self.dims, elements)

    def operators_bytes(self, part: Slice) -> float:
        """Return what recomputation by operators keeps: an up projection, and the output."""
        inner = tokens_of(part) * self._ffn(part)
        return float(part.activation_bytes * (inner + rows_between(part) * self.dims.hidden))

    def kept_bytes(self, part: Slice) -> float:
        """Return bytes kept of one micro-batch."""
        inner = tokens_of(part) * self._ffn(part) * _inner_kept(self.dims, part)
        return float(part.activation_bytes * (rows_between(part) * self.dims.hidden + inner))

    def working_bytes(self, part: Slice) -> float:
        """Return bytes of gradients while this part's backward runs."""
        inner = self._ffn(part) + self._up(part)
        return float(part.activation_bytes * tokens_of(part) * inner)

    def flops(self, seq: int) -> float:
        """Return forward FLOPs of one sequence."""
        return 2.0 * seq * self.dims.hidden * self.ffn * (3 if self.dims.gated else 2)


@dataclass(frozen=True, slots=True)
class ExpertsPart:
    """Router, dispatch, experts, combine, and shared experts."""

    dims: Dims

    def _shared(self) -> DensePart | None:
        d = self.dims
        return DensePart(d, d.shared_ffn, "shared") if d.shared_ffn else None

    def _copies(self, part: Slice) -> int:
        """Return token copies that a rank dispatches."""
        copies = rows_between(part) * self.dims.experts_per_token
        return math.ceil(copies * (part.capacity_factor or 1.0))

    def _arrived(self, part: Slice) -> int:
        """Return token copies that the busiest rank's experts process."""
        gathered = part.expert_tensor if part.sequence_parallel else 1
        imbalance = 1.0 if part.capacity_factor else part.expert_imbalance
        return math.ceil(self._copies(part) * gathered * imbalance)

    def _experts(self, part: Slice) -> tuple[int, int, int]:
        """Return experts of a rank, their inner width here, and rows of each."""
        local = share(self.dims.experts, part.expert)
        inner = share(self.dims.expert_ffn, part.expert_tensor)
        return local, inner, share(self._arrived(part), local)

    def _exchange(self, name: str, phase: Phase, part: Slice) -> Iterator[Operation]:
        """Generate one all-to-all of the busiest rank's load."""
        if part.expert > 1:
            imbalance = 1.0 if part.capacity_factor else part.expert_imbalance
            copies = math.ceil(self._copies(part) * imbalance)
            yield Sync(
                name=f"{name}.all_to_all",
                phase=phase,
                axis="expert",
                collective="all_to_all",
                size_bytes=copies * self.dims.hidden * part.activation_bytes,
            )

    def _spread(self, name: str, phase: Phase, part: Slice, collective: str) -> Iterator[Operation]:
        """Generate the exchange among the tensor ranks that share an expert."""
        if part.expert_tensor == 1:
            return
        if part.sequence_parallel:
            elements = self._copies(part) * part.expert_tensor * self.dims.hidden
            yield from tensor_sync(name, phase, part, collective, elements)
        elif collective == "reduce_scatter":
            elements = self._copies(part) * self.dims.hidden
            yield from tensor_sync(name, phase, part, "all_reduce", elements)

    def _permute(self, name: str, phase: Phase, part: Slice) -> Operation:
        """Return the copy between tokens and their copies in the order of experts."""
        rows = rows_between(part) + self._copies(part)
        return elementwise(name, phase, rows * self.dims.hidden * part.activation_bytes)

    def _grouped(self, name: str, phase: Phase, part: Slice, k: int, n: int) -> Gemm:
        local, _, rows = self._experts(part)
        return Gemm(name=name, phase=phase, m=rows, k=k, n=n, count=local)

    def _grouped_backward(self, name: str, part: Slice, k: int, n: int) -> Iterator[Operation]:
        local, _, rows = self._experts(part)
        yield Gemm(name=name, phase="input_gradient", m=rows, n=k, k=n, count=local)
        yield Gemm(name=name, phase="weight_gradient", m=n, n=k, k=rows, count=local)

    def forward(self, phase: Phase, part: Slice) -> Iterator[Operation]:
        """Generate the forward, or its recomputation."""
        d = self.dims
        _, inner, _ = self._experts(part)
        rows = rows_between(part)
        yield linear("router", phase, rows, d.hidden, d.experts, eight_bit=False)
        # Softmax, choice of experts, and their counts, on 32 bits.
        yield elementwise("routing", phase, 16.0 * rows * d.experts, 1 if part.compiled else 6)
        shared = self._shared()
        if shared:
            yield from shared.forward(phase, part)
        yield self._permute("permute", phase, part)
        yield from self._exchange("dispatch", phase, part)
        yield from self._spread("dispatch", phase, part, "all_gather")
        up = inner * (2 if d.gated else 1)
        yield self._grouped("experts_up", phase, part, d.hidden, up)
        elements = float(self._arrived(part)) * inner
        yield from _activate("experts_activation", phase, part, d, elements)
        yield self._grouped("experts_down", phase, part, inner, d.hidden)
        yield from self._spread("combine", phase, part, "reduce_scatter")
        yield from self._exchange("combine", phase, part)
        yield self._permute("unpermute", phase, part)

    def again(self, part: Slice) -> Iterator[Operation]:
        """Generate what recomputation by operators repeats: all but the last product."""
        last = max(
            index
            for index, op in enumerate(self.forward("recompute", part))
            if op.name == "experts_down"
        )
        for index, op in enumerate(self.forward("recompute", part)):
            if index < last:
                yield op

    def operators_bytes(self, part: Slice) -> float:
        """Return what recomputation by operators keeps: the output."""
        return float(part.activation_bytes * rows_between(part) * self.dims.hidden)

    def backward(self, part: Slice) -> Iterator[Operation]:
        """Generate the backward."""
        d = self.dims
        phase: Phase = "input_gradient"
        _, inner, _ = self._experts(part)
        up = inner * (2 if d.gated else 1)
        rows = rows_between(part)
        yield self._permute("unpermute", phase, part)
        yield from self._exchange("combine", phase, part)
        yield from self._spread("combine", phase, part, "all_gather")
        yield from self._grouped_backward("experts_down", part, inner, d.hidden)
        elements = float(self._arrived(part)) * inner
        yield from _activate("experts_activation", phase, part, d, elements)
        yield from self._grouped_backward("experts_up", part, d.hidden, up)
        yield from self._spread("dispatch", phase, part, "reduce_scatter")
        yield from self._exchange("dispatch", phase, part)
        yield self._permute("permute", phase, part)
        shared = self._shared()
        if shared:
            yield from shared.backward(part)
        yield elementwise("routing", phase, 16.0 * rows * d.experts, 1 if part.compiled else 6)
        yield from linear_backward("router", part, rows, d.hidden, d.experts, eight_bit=False)

    def kept_bytes(self, part: Slice) -> float:
        """Return bytes kept of one micro-batch.

        Input, router logits (32 bits), permuted copies at the experts, their inner values, and
        the experts' outputs for the gradient of the weights that combine them.
        """
        d = self.dims
        a = part.activation_bytes
        _, inner, _ = self._experts(part)
        rows, arrived = rows_between(part), self._arrived(part)
        kept = a * rows * d.hidden + 4.0 * rows * d.experts
        kept += a * arrived * (d.hidden + inner * _inner_kept(d, part))
        if not part.compiled:
            kept += a * self._copies(part) * d.hidden
        shared = self._shared()
        if shared:
            kept += shared.kept_bytes(part) - a * rows * d.hidden
        return kept

    def working_bytes(self, part: Slice) -> float:
        """Return bytes of gradients while this part's backward runs."""
        d = self.dims
        _, inner, _ = self._experts(part)
        width = d.hidden + inner * (3 if d.gated else 2)
        return float(part.activation_bytes * self._arrived(part) * width)

    def flops(self, seq: int) -> float:
        """Return forward FLOPs of one sequence: only the experts that a token visits."""
        d = self.dims
        width = d.experts_per_token * d.expert_ffn + d.shared_ffn
        return 2.0 * seq * d.hidden * (width * (3 if d.gated else 2) + d.experts)
