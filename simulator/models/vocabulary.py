"""Vocabularies as frameworks hold them."""

from __future__ import annotations

from dataclasses import replace

from simulator.models.dims import Dims
from simulator.models.model import Model
from simulator.models.transformer import transformer

__all__ = ["padded_model", "padded_vocabulary"]

MEGATRON_MULTIPLE = 128
"""--make-vocab-size-divisible-by (megatron/training/arguments.py)."""


def padded_vocabulary(words: int, tensor: int, multiple: int = MEGATRON_MULTIPLE) -> int:
    """Return the rows of the embedding in Megatron-LM: a multiple of `multiple` on each rank.

    Parameters
    ----------
    words
        Of the tokeniser.
    tensor
        Tensor-parallel ranks.

    References
    ----------
    .. [1] Megatron-LM, megatron/training/tokenizer/tokenizer.py, ``_vocab_size_with_padding``.

    Examples
    --------
    >>> padded_vocabulary(50257, 1), padded_vocabulary(50257, 8)
    (50304, 51200)
    """
    step = multiple * tensor
    return -(-words // step) * step


def padded_model(model: Model, tensor: int) -> Model:
    """Return a language model with its vocabulary padded as Megatron-LM pads it.

    Models of images, and vocabularies that divide already, stay as they are.
    """
    dims = model.traits.get("dims")
    if not isinstance(dims, Dims) or not model.vocab:
        return model
    rows = padded_vocabulary(dims.vocab, tensor)
    if rows == dims.vocab:
        return model
    made = transformer(model.name, replace(dims, vocab=rows), model.source)
    return replace(made, traits={**model.traits, **made.traits})
