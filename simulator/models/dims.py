"""The sizes and choices that make a transformer: read from data files, config files or words."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast, get_args, get_origin, get_type_hints

from simulator.base.errors import Problem, ScenarioError, nearest
from simulator.base.limits import MOST_BLOCKS, MOST_DIMENSION, shortened

__all__ = ["Dims", "read_dims"]

Activation = Literal["gelu", "relu", "squared_relu", "swiglu", "geglu"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Dims:
    """A transformer in numbers.  Only `hidden`, `layers` and `heads` have no default."""

    hidden: int
    """Width of what passes from block to block."""
    layers: int
    """Blocks."""
    heads: int
    """Query heads."""
    kv_heads: int = 0
    """Key and value heads; 0: as many as `heads`, 1: multi-query."""
    head_dim: int = 0
    """0: hidden / heads."""
    ffn: int = 0
    """Inner width of the feed-forward part; 0: four times hidden."""
    vocab: int = 50257
    seq: int = 2048
    """Tokens of a sequence it was trained with, also rows of learned positions."""
    activation: Activation = "gelu"
    norm: Literal["layer_norm", "rms_norm"] = "layer_norm"
    bias: bool = True
    """Linear layers (but the head and routers) have biases."""
    qkv_bias: bool | None = None
    """None: as `bias`."""
    output_bias: bool | None = None
    """Of the attention's output projection; None: as `bias`."""
    norm_bias: bool | None = None
    """None: layer_norm has one, rms_norm has none."""
    head_bias: bool = False
    position: Literal["learned", "rope", "alibi", "none"] = "learned"
    position_offset: int = 0
    """Rows of learned positions beyond `seq` (OPT has two)."""
    tied: bool = True
    """The head shares the embedding's weight."""
    embedding_norm: bool = False
    token_types: int = 0
    """Rows of a token-type embedding (BERT)."""
    post_norm: bool = False
    """Norms follow the residual additions; there is no final norm (BERT)."""
    causal: bool = True
    fused_qkv: bool = True
    """One registered weight for queries, keys and values; False: three, and two for a gated up
    projection.  Their products are one kernel here; where nothing is compiled, their gradients are
    added up."""
    qk_norm: bool = False
    """Queries and keys are normed per head."""
    window: int = 0
    """Keys that a query of a windowed block sees; 0: no window."""
    window_every: int = 1
    """Of so many blocks the first is windowed (2: every other block)."""
    sinks: bool = False
    """A learned logit per head (GPT-OSS)."""
    experts: int = 0
    """Routed experts of a block; 0: dense."""
    experts_per_token: int = 0
    expert_ffn: int = 0
    """Inner width of one expert; 0: `ffn`."""
    expert_bias: bool = False
    router_bias: bool = False
    shared_ffn: int = 0
    """Inner width of all shared experts together."""
    dense_first: int = 0
    """Blocks at the start that are dense in a model with experts."""
    moe_every: int = 1
    """Of so many blocks the last has experts."""
    q_lora: int = 0
    """Rank of compressed queries (multi-head latent attention); 0: not compressed."""
    kv_lora: int = 0
    """Rank of compressed keys and values; not 0: multi-head latent attention."""
    nope_dim: int = 0
    """Part of a latent attention's head without positions."""
    rope_dim: int = 0
    """Part with positions, shared by all heads in the keys."""
    value_dim: int = 0
    """Width of a value head; 0: `head_dim`."""
    mtp_layers: int = 0
    """Multi-token prediction blocks that the training adds; not counted, not computed."""
    classes: int = 0
    """A classifier in place of the language head (ViT)."""
    image: int = 0
    """Pixels of a side; not 0: patches in place of tokens, and `seq` follows."""
    patch: int = 16
    """Pixels of a patch's side."""
    mlm_head: bool = False
    """BERT's pre-training heads: transform and norm before the tied decoder, pooler, next
    sentence."""
    names: Literal["gpt2", "llama", "bert", "vit"] = "gpt2"
    """Whose order and names of parameters."""

    @property
    def gated(self) -> bool:
        """Two up projections, one of which gates the other."""
        return self.activation in ("swiglu", "geglu")

    @property
    def latent(self) -> bool:
        """Multi-head latent attention."""
        return self.kv_lora > 0

    def routed(self, block: int) -> bool:
        """Return whether that block has experts."""
        return (
            self.experts > 0
            and block >= self.dense_first
            and (block + 1 - self.dense_first) % self.moe_every == 0
        )


_TYPES: dict[str, Any] = {}


def _types() -> dict[str, Any]:
    if not _TYPES:
        _TYPES.update(get_type_hints(Dims))
    return _TYPES


def _value_problem(key: str, value: object) -> Problem | None:
    """Return what is wrong with one value, by the declared type."""
    declared = _types()[key]
    if get_origin(declared) is Literal:
        choices = get_args(declared)
        if value not in choices:
            return Problem(
                key=key,
                message=f"unknown {key} {value!r}",
                allowed=", ".join(choices),
                suggestion=nearest(str(value), choices),
            )
    elif declared is int:
        least = 1 if key in ("hidden", "layers", "heads", "vocab", "seq", "patch") else 0
        most = MOST_BLOCKS if key == "layers" else MOST_DIMENSION
        is_whole = isinstance(value, int) and not isinstance(value, bool)
        if not is_whole or not least <= cast(int, value) <= most:
            return Problem(
                key=key,
                message=f"{shortened(repr(value))} is no size",
                allowed=f"a whole number, {least} … {most:,}",
            )
    elif not isinstance(value, bool) and not (value is None and declared is not bool):
        return Problem(key=key, message=f"{value!r} is not yes or no", allowed="true, false")
    return None


def _contradictions(dims: Dims) -> list[Problem]:
    """Return sizes that do not fit together."""
    found: list[Problem] = []
    if not dims.head_dim and not dims.latent and dims.hidden % dims.heads:
        found.append(
            Problem(
                key="heads",
                message=f"hidden {dims.hidden} is not a multiple of {dims.heads} heads",
                allowed="a divisor of hidden, or head_dim given",
            )
        )
    if dims.heads % (dims.kv_heads or dims.heads):
        found.append(
            Problem(
                key="kv_heads",
                message=f"{dims.heads} heads are not a multiple of {dims.kv_heads} kv_heads",
                allowed="a divisor of heads",
            )
        )
    if dims.experts and not 1 <= dims.experts_per_token <= dims.experts:
        found.append(
            Problem(
                key="experts_per_token",
                message=f"{dims.experts_per_token} of {dims.experts} experts",
                allowed=f"1 … {dims.experts}",
            )
        )
    if dims.image % dims.patch:
        found.append(
            Problem(
                key="patch",
                message=f"patches of {dims.patch} do not divide an image of {dims.image} pixels",
                allowed=f"a divisor of {dims.image}",
            )
        )
    if dims.latent and not (dims.nope_dim and dims.rope_dim):
        found.append(Problem(key="kv_lora", message="latent attention needs nope_dim and rope_dim"))
    return found


def read_dims(values: Mapping[str, Any]) -> Dims:
    """Return complete sizes: zeros that mean "derive" are replaced.

    Raises
    ------
    ScenarioError
        Unknown keys, missing sizes, values of the wrong type, sizes that do not fit together; all
        problems at once.

    Examples
    --------
    >>> read_dims({"hidden": 768, "layers": 12, "heads": 12}).ffn
    3072
    """
    known = {item.name for item in dataclasses.fields(Dims)}
    problems = [
        Problem(
            key=str(key),
            message=f"unknown size {key!r}",
            allowed=", ".join(sorted(known)),
            suggestion=nearest(str(key), known),
        )
        for key in values
        if key not in known
    ]
    problems += [
        Problem(key=key, message="is missing", allowed="a whole number ≥ 1")
        for key in ("hidden", "layers", "heads")
        if key not in values
    ]
    for key in known & set(values):
        problem = _value_problem(key, values[key])
        if problem:
            problems.append(problem)
    if problems:
        raise ScenarioError(problems)
    dims = Dims(**values)
    problems = _contradictions(dims)
    if problems:
        raise ScenarioError(problems)
    head_dim = dims.nope_dim + dims.rope_dim if dims.latent else dims.head_dim
    head_dim = head_dim or dims.hidden // dims.heads
    ffn = dims.ffn or 4 * dims.hidden
    # Of images the sequence is their patches and the class token.
    seq = (dims.image // dims.patch) ** 2 + 1 if dims.image else dims.seq
    return dataclasses.replace(
        dims,
        kv_heads=dims.kv_heads or dims.heads,
        head_dim=head_dim,
        value_dim=dims.value_dim or head_dim,
        ffn=ffn,
        seq=seq,
        expert_ffn=dims.expert_ffn or ffn,
        qkv_bias=dims.bias if dims.qkv_bias is None else dims.qkv_bias,
        output_bias=dims.bias if dims.output_bias is None else dims.output_bias,
        norm_bias=dims.norm == "layer_norm" if dims.norm_bias is None else dims.norm_bias,
    )
