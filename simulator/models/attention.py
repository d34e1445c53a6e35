"""The attention part of a block: multi-head, grouped, multi-query, or latent; on one rank.

Context parallelism: ``ring`` passes keys and values round (Liu et al. 2023, arXiv:2310.01889),
each rank holding two chunks so that causal work is even; ``all_gather`` gathers keys and values
first (Llama 3, arXiv:2407.21783, section 3.3.2); ``ulysses`` exchanges sequence for heads (Jacobs
et al. 2023, arXiv:2309.14509).  Latent attention follows DeepSeek-V2 (arXiv:2405.04434), its down
projections held by every tensor rank, as in Megatron Core.

Unfused attention copies its output between layouts, and back the gradients of queries, keys and
values into one (Megatron-LM, ``core/transformer/dot_product_attention.py``); fused attention reads
any layout.  Not modelled: repetition of key heads for unfused grouped attention.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from simulator.models.dims import Dims
from simulator.models.kernels import Attention, Gemm, Operation, Phase, Sync
from simulator.models.local import (
    column,
    column_backward,
    elementwise,
    linear,
    linear_backward,
    norm,
    norm_backward,
    norm_kept_bytes,
    row,
    row_backward,
    rows_between,
    share,
    tensor_sync,
    tokens_of,
)
from simulator.models.model import Slice

__all__ = ["AttentionPart"]

_EAGER_ROPE_PASSES, _EAGER_ROPE_LAUNCHES = 10, 5
"""Rotation in elementary operations: negate and concatenate, two products, a sum; elements read
or written per element rotated."""


@dataclass(frozen=True, slots=True)
class AttentionPart:
    """Norm excluded: from the block's input to the output projection."""

    dims: Dims
    windowed: bool

    def _heads(self, part: Slice) -> tuple[int, int]:
        d = self.dims
        return share(d.heads, part.tensor), max(1, share(d.kv_heads, part.tensor))

    def _widths(self, part: Slice) -> tuple[int, int, int]:
        """Return widths of queries, keys and values of this rank."""
        d = self.dims
        heads, kv_heads = self._heads(part)
        if d.latent:
            kv_heads = heads
        return heads * d.head_dim, kv_heads * d.head_dim, kv_heads * d.value_dim

    def _ring_bytes(self, part: Slice) -> int:
        """Return bytes of keys and values of one rank's tokens."""
        _, k, v = self._widths(part)
        return tokens_of(part) * (k + v) * part.activation_bytes

    # Projections

    def forward(self, phase: Phase, part: Slice) -> Iterator[Operation]:
        """Generate the forward, or its recomputation."""
        d = self.dims
        yield from self._project(phase, part) if d.latent else self._qkv(phase, part)
        if d.position == "rope":
            yield from self._rope(phase, part)
        yield from self.core(phase, part)
        heads, _ = self._heads(part)
        yield from row("attention_output", phase, part, heads * d.value_dim, d.hidden)

    def _qkv(self, phase: Phase, part: Slice) -> Iterator[Operation]:
        d = self.dims
        q, k, v = self._widths(part)
        yield from column("qkv", phase, part, d.hidden, q + k + v)
        if d.qk_norm:
            yield from norm("qk_norm", phase, part, d.norm, tokens_of(part), q + k)

    def _project(self, phase: Phase, part: Slice) -> Iterator[Operation]:
        d = self.dims
        q, _, _ = self._widths(part)
        heads, _ = self._heads(part)
        rows = rows_between(part)
        if d.q_lora:
            yield linear("q_down", phase, rows, d.hidden, d.q_lora)
            yield from norm("q_norm", phase, part, d.norm, rows, d.q_lora)
        yield linear("kv_down", phase, rows, d.hidden, d.kv_lora + d.rope_dim)
        yield from norm("kv_norm", phase, part, d.norm, rows, d.kv_lora)
        yield from column("q_up", phase, part, d.q_lora or d.hidden, q)
        if part.sequence_parallel:
            elements = tokens_of(part) * d.rope_dim
            yield from tensor_sync("k_rope", phase, part, "all_gather", elements)
        yield from column("kv_up", phase, part, d.kv_lora, heads * (d.nope_dim + d.value_dim))

    def _rope(self, phase: Phase, part: Slice) -> Iterator[Operation]:
        d = self.dims
        q, k, _ = self._widths(part)
        if d.latent:
            heads, _ = self._heads(part)
            q, k = heads * d.rope_dim, d.rope_dim
        passes, launches = (2, 1) if part.compiled else (_EAGER_ROPE_PASSES, _EAGER_ROPE_LAUNCHES)
        n_bytes = passes * tokens_of(part) * (q + k) * part.activation_bytes
        yield elementwise("rope", phase, n_bytes, launches)

    def backward(self, part: Slice) -> Iterator[Operation]:
        """Generate the backward; a selective recomputation of the core comes first."""
        d = self.dims
        heads, _ = self._heads(part)
        q, k, v = self._widths(part)
        if part.recompute == "selective":
            yield from self.core("recompute", part)
        yield from row_backward(
            "attention_output", part, heads * d.value_dim, d.hidden, bias=bool(d.output_bias)
        )
        yield from self._core_backward(part)
        if d.position == "rope":
            yield from self._rope("input_gradient", part)
        if d.latent:
            yield from self._project_backward(part)
            return
        a, tokens = part.activation_bytes, tokens_of(part)
        if part.attention == "standard":
            yield elementwise("qkv_layout", "input_gradient", 2 * a * tokens * (q + k + v))
        if d.qk_norm:
            yield from norm_backward("qk_norm", part, d.norm, tokens_of(part), q + k)
        yield from column_backward("qkv", part, d.hidden, q + k + v, bias=bool(d.qkv_bias))
        if not d.fused_qkv and not part.compiled:
            # Three layers' gradients of one input are added up, one by one.
            yield elementwise("qkv.sum", "input_gradient", 6 * a * tokens * d.hidden, 2)

    def again(self, part: Slice) -> Iterator[Operation]:
        """Generate what recomputation by operators repeats.

        Of the products in order (queries, keys, values, output) every other one: keys and output;
        what is gathered, element-wise work, and an unfused core.
        """
        d = self.dims
        phase: Phase = "recompute"
        if d.latent:
            yield from self._project(phase, part)
        else:
            _, k, _ = self._widths(part)
            yield from column("qkv", phase, part, d.hidden, k)
            if d.qk_norm:
                q, k, _ = self._widths(part)
                yield from norm("qk_norm", phase, part, d.norm, tokens_of(part), q + k)
        if d.position == "rope":
            yield from self._rope(phase, part)
        if part.attention == "standard":
            yield from self.core(phase, part)
        heads, _ = self._heads(part)
        width = heads * d.value_dim
        yield linear("attention_output", phase, tokens_of(part), width, d.hidden)

    def operators_bytes(self, part: Slice) -> float:
        """Return what recomputation by operators keeps of this part."""
        d = self.dims
        q, _, v = self._widths(part)
        heads, _ = self._heads(part)
        widths = q + v
        if d.latent:
            widths = (d.q_lora or 0) + d.kv_lora + d.rope_dim
        if part.attention == "flash":
            widths += heads * d.value_dim
        kept = float(part.activation_bytes * tokens_of(part) * widths)
        if part.attention == "flash":
            kept += self.core_bytes(part)
        if part.sequence_parallel and part.tensor > 1:
            kept += float(part.activation_bytes * rows_between(part) * d.hidden)
        return kept

    def _project_backward(self, part: Slice) -> Iterator[Operation]:
        d = self.dims
        q, _, _ = self._widths(part)
        heads, _ = self._heads(part)
        rows = rows_between(part)
        yield from column_backward("kv_up", part, d.kv_lora, heads * (d.nope_dim + d.value_dim))
        yield from column_backward("q_up", part, d.q_lora or d.hidden, q)
        yield from norm_backward("kv_norm", part, d.norm, rows, d.kv_lora)
        yield from linear_backward("kv_down", part, rows, d.hidden, d.kv_lora + d.rope_dim)
        if d.q_lora:
            yield from norm_backward("q_norm", part, d.norm, rows, d.q_lora)
            yield from linear_backward("q_down", part, rows, d.hidden, d.q_lora)

    # The core: softmax of queries on keys, times values

    def core(self, phase: Phase, part: Slice) -> Iterator[Operation]:
        """Generate the core of the forward with its context exchanges."""
        if part.context == 1:
            yield from self._products(phase, part, part.seq, part.seq, causal=self.dims.causal)
        elif part.context_kind == "ulysses":
            yield from self._ulysses(phase, part, ("q", "k", "v"))
            yield from self._products(phase, part, part.seq, part.seq, causal=self.dims.causal)
            yield from self._ulysses(phase, part, ("out",))
        elif part.context_kind == "all_gather":
            yield self._context("kv", phase, "all_gather", part.context * self._ring_bytes(part))
            yield from self._slab(phase, part)
        else:
            yield from self._ring(phase, part, self._ring_bytes(part))

    def _core_backward(self, part: Slice) -> Iterator[Operation]:
        phase: Phase = "input_gradient"
        n_bytes = self._ring_bytes(part)
        if part.context == 1:
            yield from self._products(phase, part, part.seq, part.seq, causal=self.dims.causal)
        elif part.context_kind == "ulysses":
            yield from self._ulysses(phase, part, ("out",))
            yield from self._products(phase, part, part.seq, part.seq, causal=self.dims.causal)
            yield from self._ulysses(phase, part, ("q", "k", "v"))
        elif part.context_kind == "all_gather":
            yield self._context("kv", phase, "all_gather", part.context * n_bytes)
            yield from self._slab(phase, part)
            yield self._context("dkv", phase, "reduce_scatter", part.context * n_bytes)
        else:
            # Keys, values and their gradients go round together.
            yield from self._ring(phase, part, 2 * n_bytes)

    @staticmethod
    def _context(
        name: str, phase: Phase, collective: str, size_bytes: int, *, overlaps: bool = False
    ) -> Sync:
        return Sync(
            name=f"{name}.{collective}",
            phase=phase,
            axis="context",
            collective=collective,
            size_bytes=size_bytes,
            overlaps=overlaps,
        )

    def _ulysses(self, phase: Phase, part: Slice, names: tuple[str, ...]) -> Iterator[Operation]:
        q, k, v = self._widths(part)
        heads, _ = self._heads(part)
        width = {"q": q, "k": k, "v": v, "out": heads * self.dims.value_dim}
        for name in names:
            n_bytes = tokens_of(part) * width[name] * part.activation_bytes
            yield self._context(name, phase, "all_to_all", n_bytes)

    def _slab(self, phase: Phase, part: Slice) -> Iterator[Operation]:
        """Generate the work of one rank's queries on all keys; causal: on half of them."""
        own = share(part.seq, part.context)
        keys = share(part.seq, 2) if self.dims.causal else part.seq
        yield from self._products(phase, part, own, keys, causal=False)

    def _ring(self, phase: Phase, part: Slice, n_bytes: int) -> Iterator[Operation]:
        own = share(part.seq, part.context)
        causal = self.dims.causal
        for step in range(part.context):
            if step < part.context - 1:
                yield self._context("kv", phase, "send_recv", n_bytes, overlaps=True)
            keys = own if step == 0 or not causal else share(own, 2)
            yield from self._products(phase, part, own, keys, causal=causal and step == 0)

    def _products(
        self, phase: Phase, part: Slice, queries: int, keys: int, *, causal: bool
    ) -> Iterator[Operation]:
        d = self.dims
        heads, kv_heads = self._heads(part)
        if part.context > 1 and part.context_kind == "ulysses":
            heads = share(heads, part.context)
            kv_heads = max(1, share(kv_heads, part.context))
        window = d.window if self.windowed else None
        if part.attention == "flash":
            yield Attention(
                name="attention",
                phase=phase,
                batch=part.micro_batch,
                heads=heads,
                kv_heads=heads if d.latent else kv_heads,
                q_len=queries,
                kv_len=keys,
                head_dim=d.head_dim,
                value_dim=d.value_dim,
                causal=causal,
                window=window,
            )
            return
        count = part.micro_batch * heads
        scores = float(count) * queries * keys
        products = self._unfused if phase != "input_gradient" else self._unfused_backward
        yield from products(phase, part, queries, keys, count, scores)

    def _unfused(
        self, phase: Phase, part: Slice, queries: int, keys: int, count: int, scores: float
    ) -> Iterator[Operation]:
        d = self.dims
        a = part.activation_bytes
        # Scale, mask and softmax: one kernel that reads and writes scores, or three.
        passes, launches = (2, 1) if part.compiled else (6, 3)
        yield self._batched("scores", phase, queries, keys, d.head_dim, count)
        yield elementwise("softmax", phase, passes * a * scores, launches)
        if part.dropout:
            yield elementwise("attention_dropout", phase, (2 * a + 1) * scores)
        yield self._batched("values", phase, queries, d.value_dim, keys, count)
        yield elementwise("attention_layout", phase, 2 * a * count * queries * d.value_dim)

    def _unfused_backward(
        self, phase: Phase, part: Slice, queries: int, keys: int, count: int, scores: float
    ) -> Iterator[Operation]:
        d = self.dims
        a = part.activation_bytes
        yield elementwise("attention_layout", phase, 2 * a * count * queries * d.value_dim)
        yield self._batched("values.p", phase, queries, keys, d.value_dim, count)
        yield self._batched("values.v", phase, keys, d.value_dim, queries, count)
        if part.dropout:
            yield elementwise("attention_dropout", phase, (2 * a + 1) * scores)
        passes, launches = (3, 1) if part.compiled else (7, 3)
        yield elementwise("softmax", phase, passes * a * scores, launches)
        yield self._batched("scores.q", phase, queries, d.head_dim, keys, count)
        yield self._batched("scores.k", phase, keys, d.head_dim, queries, count)

    @staticmethod
    def _batched(name: str, phase: Phase, m: int, n: int, k: int, count: int) -> Gemm:
        return Gemm(name=name, phase=phase, m=m, n=n, k=k, count=count, eight_bit=False)

    # Memory and FLOPs

    def kept_bytes(self, part: Slice) -> float:
        """Return bytes kept of one micro-batch: Korthikanti et al., section 4.1, by widths.

        Input, queries, keys, values, output; of standard attention also the softmax's output, the
        dropout's mask and its output; of FlashAttention the sums of exponentials (32 bits).
        """
        d = self.dims
        a = part.activation_bytes
        tokens, between = tokens_of(part), rows_between(part)
        q, k, v = self._widths(part)
        heads, _ = self._heads(part)
        kept = float(a * (between * d.hidden + tokens * (q + k + v + heads * d.value_dim)))
        if d.latent:
            norms = norm_kept_bytes(part, d.norm)
            kept += between * (d.q_lora + d.kv_lora) * (norms + a) + a * between * d.rope_dim
        if d.qk_norm:
            kept += tokens * (q + k) * norm_kept_bytes(part, d.norm)
        return kept + (0.0 if part.recompute == "selective" else self.core_bytes(part))

    def core_bytes(self, part: Slice) -> float:
        """Return what of the above selective recomputation does not keep."""
        heads, _ = self._heads(part)
        lines = float(heads * tokens_of(part))
        if part.attention == "flash":
            return 4.0 * lines
        a = part.activation_bytes
        return (2 * a + 1 if part.dropout else a) * lines * part.seq

    def working_bytes(self, part: Slice) -> float:
        """Return bytes of gradients while this part's backward runs."""
        q, k, v = self._widths(part)
        heads, _ = self._heads(part)
        tokens = tokens_of(part)
        own = tokens * (q + k + v + heads * self.dims.value_dim) * part.activation_bytes
        scores = 0.0
        if part.attention == "standard":
            scores = float(part.activation_bytes) * heads * tokens * part.seq
        gathered = 0.0
        if part.context > 1:
            # Two blocks of the ring, or all of them.
            blocks = 2 if part.context_kind == "ring" else part.context
            gathered = 2.0 * blocks * self._ring_bytes(part)
            if part.context_kind == "ulysses":
                gathered = float(own)
        recomputed = self.core_bytes(part) if part.recompute == "selective" else 0.0
        return own + scores + gathered + recomputed

    def flops(self, seq: int) -> float:
        """Return forward FLOPs of one sequence."""
        d = self.dims
        if d.latent:
            weights = (
                (d.hidden * d.q_lora + d.q_lora * d.heads * d.head_dim)
                if d.q_lora
                else d.hidden * d.heads * d.head_dim
            )
            weights += d.hidden * (d.kv_lora + d.rope_dim)
            weights += d.kv_lora * d.heads * (d.nope_dim + d.value_dim)
        else:
            weights = d.hidden * ((d.heads + d.kv_heads) * d.head_dim + d.kv_heads * d.value_dim)
        weights += d.heads * d.value_dim * d.hidden
        return 2.0 * seq * weights + self.core_flops(seq)

    def core_flops(self, seq: int) -> float:
        """Return forward FLOPs of one sequence's scores and of the sums of values."""
        d = self.dims
        keys = min(seq, d.window) if self.windowed else seq
        return 2.0 * seq * keys * d.heads * (d.head_dim + d.value_dim)
