"""Whether a model can be cut as wanted: every size that an axis does not divide, at once."""

from __future__ import annotations

from simulator.base.errors import Problem
from simulator.models.dims import Dims
from simulator.models.model import Model, Slice

__all__ = ["slice_problems"]


def _divisors(extent: int, up_to: int = 1024) -> str:
    return ", ".join(str(ways) for ways in range(1, min(extent, up_to) + 1) if extent % ways == 0)


def _uneven(key: str, what: str, extent: int, ways: int) -> list[Problem]:
    if extent % ways == 0:
        return []
    message = f"{ways} does not divide {extent} {what}"
    return [Problem(key=key, message=message, allowed=_divisors(extent))]


def slice_problems(model: Model, part: Slice) -> list[Problem]:
    """Return what forbids the cut; an empty list if nothing does.

    Key and value heads fewer than tensor ranks are allowed, if they divide them: ranks then hold
    the same ones.  Vocabularies are padded, as frameworks do.

    Examples
    --------
    >>> from simulator.models import get_model
    >>> wrong = Slice(micro_batch=1, seq=4096, tensor=12)
    >>> print(slice_problems(get_model("llama-2-70b"), wrong)[0])
    tensor: 12 does not divide 64 attention heads
      allowed: 1, 2, 4, 8, 16, 32, 64.
    """
    dims = model.traits.get("dims")
    if not isinstance(dims, Dims):
        return [
            Problem(
                key=axis,
                message=f"{model.name} is convolutional and is not cut over a {axis} axis",
                allowed="1",
            )
            for axis in ("tensor", "context", "expert")
            if getattr(part, axis) != 1
        ]
    return [*_tensor_problems(dims, part), *_token_problems(dims, part), *_experts(dims, part)]


def _tensor_problems(dims: Dims, part: Slice) -> list[Problem]:
    found = _uneven("tensor", "attention heads", dims.heads, part.tensor)
    kv_heads = dims.kv_heads
    if not dims.latent and kv_heads % part.tensor and part.tensor % kv_heads:
        found.append(
            Problem(
                key="tensor",
                message=f"{part.tensor} neither divides {kv_heads} key-value heads nor is a "
                "multiple of them",
                allowed=_divisors(kv_heads),
            )
        )
    widths = {dims.ffn, dims.shared_ffn} if dims.dense_first or not dims.experts else set()
    for width in sorted(widths - {0}):
        found += _uneven("tensor", "columns of the feed-forward part", width, part.tensor)
    if part.sequence_parallel and part.tensor > 1:
        found += _uneven(
            "tensor", "tokens of a context rank", part.seq // part.context, part.tensor
        )
    return found


def _token_problems(dims: Dims, part: Slice) -> list[Problem]:
    if part.context == 1:
        return []
    # Causal work is even where each rank takes one chunk from the front and one from the back.
    balanced = dims.causal and part.context_kind != "ulysses"
    chunks = 2 * part.context if balanced else part.context
    found: list[Problem] = []
    if part.seq % chunks:
        found.append(
            Problem(
                key="context",
                message=f"a sequence of {part.seq} tokens is not cut in {chunks} chunks",
                allowed=f"a multiple of {chunks} tokens",
            )
        )
    if part.context_kind == "ulysses":
        heads = dims.heads // part.tensor
        found += _uneven("context", "attention heads of a tensor rank", heads, part.context)
    return found


def _experts(dims: Dims, part: Slice) -> list[Problem]:
    if not dims.experts:
        if part.expert == 1:
            return []
        return [Problem(key="expert", message="the model has no experts", allowed="1")]
    found = _uneven("expert", "experts", dims.experts, part.expert)
    return found + _uneven(
        "expert_tensor", "columns of an expert", dims.expert_ffn, part.expert_tensor
    )
