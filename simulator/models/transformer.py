"""Transformers as layers: embedding, blocks, head.

Blocks of one shape share their work: `forward` and `backward` of equal blocks return the same
tuple, so whoever prices work may remember it by identity.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from simulator.models.attention import AttentionPart
from simulator.models.dims import Dims
from simulator.models.feedforward import DensePart, ExpertsPart
from simulator.models.kernels import Gemm, Operation, Phase, Work
from simulator.models.local import (
    column,
    column_backward,
    elementwise,
    linear,
    linear_backward,
    norm,
    norm_backward,
    norm_kept_bytes,
    rows_between,
    share,
    tensor_sync,
    tokens_of,
)
from simulator.models.model import ActivationBytes, Layer, Model, Parameter, Slice
from simulator.models.parameters import (
    block_parameters,
    embedding_parameters,
    head_parameters,
)

__all__ = ["Block", "Embedding", "Head", "transformer"]


@dataclass(frozen=True, slots=True)
class _Shape:
    """All that decides a block's work."""

    attention: AttentionPart
    feed: DensePart | ExpertsPart

    @property
    def dims(self) -> Dims:
        return self.attention.dims


def _residual(name: str, phase: Phase, part: Slice, hidden: int) -> Iterator[Operation]:
    """Generate dropout and residual addition; back: dropout and the sum of both gradients."""
    elements = rows_between(part) * hidden
    a = part.activation_bytes
    if part.dropout and part.compiled and phase != "input_gradient":
        yield elementwise(f"{name}.dropout_add", phase, (3 * a + 1) * elements)
        return
    if part.dropout:
        yield elementwise(f"{name}.dropout", phase, (2 * a + 1) * elements)
    yield elementwise(f"{name}.add", phase, 3 * a * elements)


def _forward(shape: _Shape, part: Slice, phase: Phase) -> Iterator[Operation]:
    d = shape.dims
    rows = rows_between(part)
    for name, inner in (("attention", shape.attention), ("feed", shape.feed)):
        if not d.post_norm:
            yield from norm(f"{name}_norm", phase, part, d.norm, rows, d.hidden)
        yield from inner.forward(phase, part)
        yield from _residual(name, phase, part, d.hidden)
        if d.post_norm:
            yield from norm(f"{name}_norm", phase, part, d.norm, rows, d.hidden)


def _backward(shape: _Shape, part: Slice) -> Iterator[Operation]:
    d = shape.dims
    rows = rows_between(part)
    if part.recompute == "full":
        yield from _forward(shape, part, "recompute")
    if part.recompute == "operators":
        yield from _again(shape, part)
    for name, inner in (("feed", shape.feed), ("attention", shape.attention)):
        if d.post_norm:
            yield from norm_backward(f"{name}_norm", part, d.norm, rows, d.hidden)
        yield from inner.backward(part)
        if not d.post_norm:
            yield from norm_backward(f"{name}_norm", part, d.norm, rows, d.hidden)
        yield from _residual(name, "input_gradient", part, d.hidden)


def _again(shape: _Shape, part: Slice) -> Iterator[Operation]:
    """Generate what recomputation by operators repeats of a block."""
    d = shape.dims
    rows = rows_between(part)
    yield from norm("attention_norm", "recompute", part, d.norm, rows, d.hidden)
    yield from shape.attention.again(part)
    yield from _residual("attention", "recompute", part, d.hidden)
    yield from norm("feed_norm", "recompute", part, d.norm, rows, d.hidden)
    yield from shape.feed.again(part)


@lru_cache(maxsize=512)
def _forward_work(shape: _Shape, part: Slice) -> Work:
    return tuple(_forward(shape, part, "forward"))


@lru_cache(maxsize=512)
def _backward_work(shape: _Shape, part: Slice) -> Work:
    return tuple(_backward(shape, part))


def _gathered_bytes(part: Slice, hidden: int) -> float:
    """Return a gathered input, and a gradient before it is scattered (sequence parallelism)."""
    if part.tensor == 1 or not part.sequence_parallel:
        return 0.0
    return 2.0 * part.activation_bytes * tokens_of(part) * hidden


@lru_cache(maxsize=512)
def _block_activations(shape: _Shape, part: Slice) -> ActivationBytes:
    """Return what Korthikanti et al. 2022 count (section 4, equations 1 to 6), by widths."""
    d = shape.dims
    a = part.activation_bytes
    between = float(rows_between(part)) * d.hidden
    # Gradient of the block's output, and the one that its residual passes on.
    working = max(shape.attention.working_bytes(part), shape.feed.working_bytes(part))
    working += 2.0 * a * between
    working += _gathered_bytes(part, d.hidden)
    everything = dataclasses.replace(part, recompute="none")
    masks = 2.0 * between if part.dropout else 0.0
    norms = 2.0 * norm_kept_bytes(part, d.norm) * between
    if part.recompute == "operators":
        kept = shape.attention.operators_bytes(part) + shape.feed.operators_bytes(part)
        whole = shape.attention.kept_bytes(everything) + shape.feed.kept_bytes(everything)
        kept += a * between
        return ActivationBytes(
            kept_bytes=kept, working_bytes=working + max(0.0, whole + norms + masks - kept)
        )
    if part.recompute == "full":
        kept = shape.attention.kept_bytes(everything) + shape.feed.kept_bytes(everything)
        return ActivationBytes(kept_bytes=a * between, working_bytes=working + kept + norms + masks)
    kept = shape.attention.kept_bytes(part) + shape.feed.kept_bytes(part)
    return ActivationBytes(kept_bytes=kept + norms + masks, working_bytes=working)


@dataclass(frozen=True, kw_only=True)
class Block(Layer):
    """Attention and feed-forward part, each with norm and residual."""

    name: str
    kind: Literal["block"] = "block"
    parameters: tuple[Parameter, ...]
    shape: _Shape

    def forward(self, part: Slice) -> Work:
        """Return the forward's operations on one rank, in order."""
        return _forward_work(self.shape, part)

    def backward(self, part: Slice) -> Work:
        """Return the backward's operations in order, recomputation included."""
        return _backward_work(self.shape, part)

    def activations(self, part: Slice) -> ActivationBytes:
        """Return what one micro-batch keeps in memory."""
        return _block_activations(self.shape, part)

    def model_flops(self, seq: int) -> float:
        """Return forward FLOPs of one sequence."""
        return self.shape.attention.flops(seq) + self.shape.feed.flops(seq)

    def recomputed_flops(self, part: Slice) -> float:
        """Return FLOPs that the backward of one whole sequence computes again.

        In Megatron-LM's selective recomputation the core of attention counts once more with its
        backward, as Korthikanti et al. count it: hardware FLOPs of 72 B l s h^2 (1 + s/3h +
        v/12hl), where those of the model have s/6h (arXiv:2205.05198, appendix A), which are their
        41.5 and 43.7 % for the 22B model.  (Kernels repeat its forward only, a third.)  The
        products that are not kept where operators are chosen.
        """
        if part.recompute == "selective":
            return 3.0 * self.shape.attention.core_flops(part.seq)
        if part.recompute == "operators":
            whole = Slice(
                micro_batch=1, seq=part.seq, attention=part.attention, recompute="operators"
            )
            return sum(o.flops for o in _again(self.shape, whole) if isinstance(o, Gemm))
        return super().recomputed_flops(part)


@dataclass(frozen=True, kw_only=True)
class Embedding(Layer):
    """Words (or patches of an image) to vectors, with positions."""

    name: str = "embedding"
    kind: Literal["embedding"] = "embedding"
    parameters: tuple[Parameter, ...]
    dims: Dims

    def forward(self, part: Slice) -> Work:
        """Return the look-up in each rank's part of the vocabulary, and the sum over ranks."""
        return tuple(self._forward(part))

    def _forward(self, part: Slice) -> Iterator[Operation]:
        d = self.dims
        a = part.activation_bytes
        tokens, between = tokens_of(part), rows_between(part)
        if d.image:
            yield linear("patches", "forward", tokens, 3 * d.patch**2, d.hidden, eight_bit=False)
        else:
            yield elementwise("words", "forward", 2 * a * tokens * d.hidden)
            collective = "reduce_scatter" if part.sequence_parallel else "all_reduce"
            yield from tensor_sync("words", "forward", part, collective, tokens * d.hidden)
        if d.position == "learned":
            yield elementwise("positions", "forward", 3 * a * between * d.hidden)
        if d.token_types:
            yield elementwise("token_types", "forward", 3 * a * between * d.hidden)
        if d.embedding_norm:
            yield from norm("embedding_norm", "forward", part, d.norm, between, d.hidden)
        if part.dropout:
            yield elementwise("embedding_dropout", "forward", (2 * a + 1) * between * d.hidden)

    def backward(self, part: Slice) -> Work:
        """Return the weight gradients: a dense gradient is cleared and rows are added to it."""
        return tuple(self._backward(part))

    def _backward(self, part: Slice) -> Iterator[Operation]:
        d = self.dims
        a = part.activation_bytes
        tokens, between = tokens_of(part), rows_between(part)
        if part.dropout:
            n_bytes = (2 * a + 1) * between * d.hidden
            yield elementwise("embedding_dropout", "input_gradient", n_bytes)
        if d.embedding_norm:
            yield from norm_backward("embedding_norm", part, d.norm, between, d.hidden)
        if d.image:
            yield list(
                linear_backward("patches", part, tokens, 3 * d.patch**2, d.hidden, eight_bit=False)
            )[1]
            return
        if part.sequence_parallel:
            yield from tensor_sync(
                "words", "weight_gradient", part, "all_gather", tokens * d.hidden
            )
        rows = share(d.vocab, part.tensor)
        yield elementwise(
            "words", "weight_gradient", a * d.hidden * (rows + 3 * min(tokens, rows) + tokens)
        )

    def activations(self, part: Slice) -> ActivationBytes:
        """Return the dropout's mask (Korthikanti et al., section 4.3), and a norm's input."""
        d = self.dims
        between = float(rows_between(part)) * d.hidden
        kept = between if part.dropout else 0.0
        if d.embedding_norm:
            kept += norm_kept_bytes(part, d.norm) * between
        return ActivationBytes(kept_bytes=kept, working_bytes=2.0 * part.activation_bytes * between)

    def model_flops(self, seq: int) -> float:
        """Return FLOPs of the patches' projection; a look-up has none."""
        d = self.dims
        return 2.0 * (seq - 1) * 3 * d.patch**2 * d.hidden if d.image else 0.0


@dataclass(frozen=True, kw_only=True)
class Head(Layer):
    """Final norm, logits, and loss.

    The vocabulary is split over tensor ranks, and the loss exchanges three numbers per token:
    maximum, target's logit, sum of exponentials (Megatron-LM,
    ``core/tensor_parallel/cross_entropy.py``).
    """

    name: str = "head"
    kind: Literal["head"] = "head"
    parameters: tuple[Parameter, ...]
    dims: Dims

    def _vocab(self, part: Slice) -> int:
        return share(self.dims.vocab, part.tensor)

    def forward(self, part: Slice) -> Work:
        """Return norm, product and cross entropy."""
        return tuple(self._forward(part))

    def _forward(self, part: Slice) -> Iterator[Operation]:
        d = self.dims
        tokens, between = tokens_of(part), rows_between(part)
        if not d.post_norm:
            yield from norm("final_norm", "forward", part, d.norm, between, d.hidden)
        if d.classes:
            rows = part.micro_batch
            yield linear("classes", "forward", rows, d.hidden, d.classes, eight_bit=False)
            yield elementwise("loss", "forward", 14.0 * rows * d.classes, 3)
            return
        if d.mlm_head:
            yield linear("transform", "forward", between, d.hidden, d.hidden)
            yield from norm("transform_norm", "forward", part, d.norm, between, d.hidden)
        vocab = self._vocab(part)
        yield from column("logits", "forward", part, d.hidden, vocab, eight_bit=False)
        # Compiled: logits are read twice.  Else they are widened to 32 bits, then a logarithm of
        # the softmax is written.
        passes, launches = (4.0, 1) if part.compiled else (14.0, 3)
        yield elementwise("loss", "forward", passes * tokens * vocab, launches)
        for name in ("maximum", "target", "sum"):
            yield from tensor_sync(name, "forward", part, "all_reduce", tokens, element_bytes=4)

    def backward(self, part: Slice) -> Work:
        """Return the loss' gradient, the product's two, and the norm's."""
        return tuple(self._backward(part))

    def _backward(self, part: Slice) -> Iterator[Operation]:
        d = self.dims
        tokens, between = tokens_of(part), rows_between(part)
        if d.classes:
            rows = part.micro_batch
            yield elementwise("loss", "input_gradient", 18.0 * rows * d.classes, 3)
            yield from linear_backward(
                "classes", part, rows, d.hidden, d.classes, bias=True, eight_bit=False
            )
        else:
            vocab = self._vocab(part)
            passes, launches = (4.0, 1) if part.compiled else (18.0, 3)
            yield elementwise("loss", "input_gradient", passes * tokens * vocab, launches)
            yield from column_backward(
                "logits", part, d.hidden, vocab, bias=d.head_bias, eight_bit=False
            )
        if d.mlm_head:
            yield from norm_backward("transform_norm", part, d.norm, between, d.hidden)
            yield from linear_backward("transform", part, between, d.hidden, d.hidden, bias=True)
        if not d.post_norm:
            yield from norm_backward("final_norm", part, d.norm, between, d.hidden)

    def activations(self, part: Slice) -> ActivationBytes:
        """Return inputs of norm and product, and logits in 32 bits (Korthikanti, section 4.3).

        While the backward begins, the logits' gradient is there too: in 16 bits where the loss is
        one kernel or works in place; else in 32 bits before and after the softmax's gradient.
        """
        d = self.dims
        a = part.activation_bytes
        between = float(rows_between(part)) * d.hidden
        if d.classes:
            logits = float(part.micro_batch) * d.classes
        else:
            logits = float(tokens_of(part)) * self._vocab(part)
        working = (a if part.compiled else 8) * logits + 2.0 * a * between
        inputs = a + (0.0 if d.post_norm else norm_kept_bytes(part, d.norm))
        if d.mlm_head:
            inputs += 2 * a + norm_kept_bytes(part, d.norm)
        return ActivationBytes(
            kept_bytes=inputs * between + 4.0 * logits,
            working_bytes=working + _gathered_bytes(part, d.hidden),
        )

    def model_flops(self, seq: int) -> float:
        """Return forward FLOPs of the logits of one sequence (or image)."""
        d = self.dims
        if d.classes:
            return 2.0 * d.hidden * d.classes
        transform = 2.0 * seq * d.hidden**2 if d.mlm_head else 0.0
        return 2.0 * seq * d.hidden * d.vocab + transform


def transformer(name: str, dims: Dims, source: str) -> Model:
    """Return the model of complete sizes (`simulator.models.dims.read_dims`)."""
    layers: list[Layer] = [Embedding(parameters=tuple(embedding_parameters(dims)), dims=dims)]
    experts = ExpertsPart(dims)
    dense = DensePart(dims, dims.ffn)
    for block in range(dims.layers):
        windowed = dims.window > 0 and block % dims.window_every == 0
        shape = _Shape(AttentionPart(dims, windowed), experts if dims.routed(block) else dense)
        layers.append(
            Block(name=f"block.{block}", parameters=block_parameters(dims, block), shape=shape)
        )
    layers.append(Head(parameters=tuple(head_parameters(dims)), dims=dims))
    return Model(
        name=name,
        layers=tuple(layers),
        seq=dims.seq,
        hidden=dims.hidden,
        heads=dims.heads,
        kv_heads=dims.kv_heads,
        vocab=0 if dims.classes else dims.vocab,
        experts=dims.experts,
        experts_per_token=dims.experts_per_token,
        source=source,
        unit="images" if dims.image else "tokens",
        traits={
            "activation": dims.activation,
            "norm": dims.norm,
            "position": dims.position,
            "tied": dims.tied,
            "causal": dims.causal,
            "mtp_layers": dims.mtp_layers,
            "dims": dims,
        },
    )
