"""Hugging Face ``config.json`` to a model.

References
----------
.. [1] huggingface/transformers, ``src/transformers/models/*/configuration_*.py``: keys, and
   defaults of keys that a file leaves out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from simulator.base.errors import CollsimError, Problem, nearest
from simulator.base.limits import MOST_DIMENSION, shortened
from simulator.importers.json_object import JsonSource, read_json_object
from simulator.importers.registry import importer
from simulator.importers.source import ForeignFileError
from simulator.models import Model, from_dims

__all__ = ["LONGEST_DEFAULT", "read", "supported_types"]

LONGEST_DEFAULT = 8192
"""Tokens of the model's default sequence at most: files state the longest positions, after
extensions, not the length of pre-training."""

_GATED = {"silu": "swiglu", "swish": "swiglu"}
_PLAIN = {"relu": "relu", "relu2": "squared_relu"}

Sizes = dict[str, Any]


class _Config:
    """Reads keys and collects problems."""

    def __init__(self, values: Mapping[str, Any], shown: str) -> None:
        self.values = values
        self.shown = shown
        self.problems: list[Problem] = []
        self.seq_assumed = False
        """The file does not tell how long sequences are."""

    def problem(self, key: str, message: str, allowed: str = "") -> None:
        self.problems.append(Problem(file=self.shown, key=key, message=message, allowed=allowed))

    def first(self, *keys: str) -> tuple[str, Any]:
        """Return the first key that has a value, and the value."""
        for key in keys:
            if self.values.get(key) is not None:
                return key, self.values[key]
        return keys[0], None

    def size(self, *keys: str, default: int | None = None, least: int = 1) -> int:
        """Return a whole number; without a default a missing one is a problem."""
        key, value = self.first(*keys)
        if value is None:
            if default is None:
                close = nearest(key, [str(name) for name in self.values])
                hint = f"; the file has {close!r}" if close else ""
                self.problem(key, f"is missing{hint}", "a whole number")
                return least or 1
            return default
        is_whole = isinstance(value, int) and not isinstance(value, bool)
        if not is_whole or not least <= value <= MOST_DIMENSION:
            allowed = f"a whole number, {least} … {MOST_DIMENSION:,}"
            self.problem(key, f"{shortened(repr(value))} is no size", allowed)
            return least or 1
        return int(value)

    def flag(self, key: str, default: bool) -> bool:
        value = self.values.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            self.problem(key, f"{value!r} is not true or false", "true, false")
            return default
        return value

    def activation(self, *keys: str, gated: bool, default: str) -> str:
        """Return our name of an activation; tanh and erf forms of GELU are one."""
        key, value = self.first(*keys)
        text = str(default if value is None else value).lower()
        if text.startswith("gelu") or text == "quick_gelu":
            return "geglu" if gated else "gelu"
        known = _GATED if gated else _PLAIN
        if text not in known:
            self.problem(key, f"unknown activation {text!r}", ", ".join(["gelu", *known]))
            return "swiglu" if gated else "gelu"
        return known[text]

    def positions(self, *keys: str, default: int) -> int:
        """Return the longest positions; remember when the default stands in for them."""
        self.seq_assumed = self.first(*keys)[1] is None
        return self.size(*keys, default=default)

    def seq(self, *keys: str, default: int = 2048) -> int:
        """Return a default sequence from the longest positions."""
        scaling = self.values.get("rope_scaling")
        longest = self.positions(*keys, default=default)
        if isinstance(scaling, Mapping):
            original = scaling.get("original_max_position_embeddings")
            if isinstance(original, int) and original > 0:
                longest = original
        return min(longest, LONGEST_DEFAULT)


def _llama(c: _Config, *, gated: bool = True) -> Sizes:
    heads = c.size("num_attention_heads")
    bias = c.flag("attention_bias", False)
    return {
        "hidden": c.size("hidden_size"),
        "layers": c.size("num_hidden_layers"),
        "heads": heads,
        "kv_heads": c.size("num_key_value_heads", default=heads),
        "head_dim": c.size("head_dim", default=0),
        "ffn": c.size("intermediate_size"),
        "vocab": c.size("vocab_size"),
        "seq": c.seq("max_position_embeddings"),
        "activation": c.activation("hidden_act", gated=gated, default="silu" if gated else "relu2"),
        "norm": "rms_norm",
        "bias": c.flag("mlp_bias", False),
        "qkv_bias": bias,
        "output_bias": bias,
        "position": "rope",
        "tied": c.flag("tie_word_embeddings", False),
        "fused_qkv": False,
        "names": "llama",
    }


def _mistral(c: _Config) -> Sizes:
    return _llama(c) | {"window": c.size("sliding_window", default=0, least=0)}


def _internlm(c: _Config) -> Sizes:
    bias = c.flag("bias", True)
    return _llama(c) | {"qkv_bias": bias, "output_bias": bias}


def _mixtral(c: _Config) -> Sizes:
    return _mistral(c) | {
        "experts": c.size("num_local_experts", default=8),
        "experts_per_token": c.size("num_experts_per_tok", default=2),
    }


def _qwen_window(c: _Config) -> Sizes:
    if not c.flag("use_sliding_window", False):
        return {}
    return {"window": c.size("sliding_window", default=0, least=0)}


def _qwen2(c: _Config) -> Sizes:
    return _llama(c) | _qwen_window(c) | {"qkv_bias": True, "output_bias": False}


def _qwen3(c: _Config) -> Sizes:
    return (
        _llama(c) | _qwen_window(c) | {"qk_norm": True, "head_dim": c.size("head_dim", default=128)}
    )


def _qwen3_moe(c: _Config) -> Sizes:
    dense = c.values.get("mlp_only_layers") or []
    if list(dense) != list(range(len(dense))):
        c.problem("mlp_only_layers", f"dense blocks {dense}", "the first blocks, or none")
    return _qwen3(c) | {
        "experts": c.size("num_experts", "num_local_experts"),
        "experts_per_token": c.size("num_experts_per_tok"),
        "expert_ffn": c.size("moe_intermediate_size"),
        "dense_first": len(dense),
        "moe_every": c.size("decoder_sparse_step", default=1),
    }


def _deepseek(c: _Config) -> Sizes:
    shared = c.size("n_shared_experts", "num_shared_experts", default=0, least=0)
    inner = c.size("moe_intermediate_size")
    return _llama(c) | {
        "kv_heads": 0,
        "head_dim": 0,
        "output_bias": False,
        "q_lora": c.size("q_lora_rank", default=0),
        "kv_lora": c.size("kv_lora_rank"),
        "nope_dim": c.size("qk_nope_head_dim"),
        "rope_dim": c.size("qk_rope_head_dim"),
        "value_dim": c.size("v_head_dim"),
        "experts": c.size("n_routed_experts", "num_routed_experts"),
        "experts_per_token": c.size("num_experts_per_tok"),
        "expert_ffn": inner,
        "shared_ffn": shared * inner,
        "dense_first": c.size("first_k_dense_replace", default=0, least=0),
        "moe_every": c.size("moe_layer_freq", default=1),
        "mtp_layers": c.size("num_nextn_predict_layers", default=0, least=0),
    }


def _gpt_oss(c: _Config) -> Sizes:
    bias = c.flag("attention_bias", True)
    return _llama(c) | {
        "qkv_bias": bias,
        "output_bias": bias,
        "window": c.size("sliding_window", default=128, least=0),
        "window_every": 2,
        "sinks": True,
        "experts": c.size("num_local_experts", "num_experts"),
        "experts_per_token": c.size("num_experts_per_tok", "experts_per_token"),
        "router_bias": True,
        "expert_bias": True,
    }


def _nemotron(c: _Config) -> Sizes:
    return _llama(c, gated=False) | {"norm": "layer_norm"}


def _gpt2(c: _Config) -> Sizes:
    hidden = c.size("n_embd", default=768)
    return {
        "hidden": hidden,
        "layers": c.size("n_layer", default=12),
        "heads": c.size("n_head", default=12),
        "ffn": c.size("n_inner", default=4 * hidden),
        "vocab": c.size("vocab_size", default=50257),
        "seq": c.positions("n_positions", "n_ctx", default=1024),
        "activation": c.activation("activation_function", gated=False, default="gelu_new"),
        "tied": c.flag("tie_word_embeddings", True),
    }


def _bloom(c: _Config) -> Sizes:
    return {
        "hidden": c.size("hidden_size", "n_embed"),
        "layers": c.size("n_layer", "num_hidden_layers"),
        "heads": c.size("n_head", "num_attention_heads"),
        "vocab": c.size("vocab_size", default=250880),
        "seq": c.seq("seq_length"),
        "position": "alibi",
        "embedding_norm": True,
        "tied": c.flag("tie_word_embeddings", True),
    }


def _opt(c: _Config) -> Sizes:
    hidden = c.size("hidden_size")
    if c.size("word_embed_proj_dim", default=hidden) != hidden:
        c.problem("word_embed_proj_dim", "projected embeddings are not modelled", str(hidden))
    if not c.flag("do_layer_norm_before", True):
        c.problem("do_layer_norm_before", "norms after the blocks are not modelled", "true")
    return {
        "hidden": hidden,
        "layers": c.size("num_hidden_layers"),
        "heads": c.size("num_attention_heads"),
        "ffn": c.size("ffn_dim"),
        "vocab": c.size("vocab_size", default=50272),
        "seq": c.positions("max_position_embeddings", default=2048),
        "activation": c.activation("activation_function", gated=False, default="relu"),
        "position_offset": 2,
        "tied": c.flag("tie_word_embeddings", True),
    }


def _mpt(c: _Config) -> Sizes:
    hidden = c.size("d_model")
    attention = c.values.get("attn_config")
    attention = attention if isinstance(attention, Mapping) else {}
    alibi = bool(attention.get("alibi"))
    bias = not c.flag("no_bias", False)
    learned = c.flag("learned_pos_emb", True) and not alibi
    return {
        "hidden": hidden,
        "layers": c.size("n_layers"),
        "heads": c.size("n_heads"),
        "kv_heads": attention.get("kv_n_heads") or 0,
        "ffn": hidden * c.size("expansion_ratio", default=4),
        "vocab": c.size("vocab_size", default=50368),
        "seq": c.seq("max_seq_len"),
        "bias": bias,
        "norm_bias": bias,
        "position": "learned" if learned else "alibi" if alibi else "rope",
        "tied": c.flag("tie_word_embeddings", True),
    }


def _encoder(c: _Config) -> Sizes:
    return {
        "hidden": c.size("hidden_size", default=768),
        "layers": c.size("num_hidden_layers", default=12),
        "heads": c.size("num_attention_heads", default=12),
        "ffn": c.size("intermediate_size", default=3072),
        "activation": c.activation("hidden_act", gated=False, default="gelu"),
        "causal": False,
    }


def _bert(c: _Config) -> Sizes:
    return _encoder(c) | {
        "vocab": c.size("vocab_size", default=30522),
        "seq": c.positions("max_position_embeddings", default=512),
        "token_types": c.size("type_vocab_size", default=2),
        "embedding_norm": True,
        "post_norm": True,
        "fused_qkv": False,
        "mlm_head": True,
        "names": "bert",
    }


def _vit(c: _Config) -> Sizes:
    image, patch = c.size("image_size", default=224), c.size("patch_size", default=16)
    labels = c.values.get("id2label")
    return _encoder(c) | {
        "image": image,
        "patch": patch,
        "classes": len(labels) if isinstance(labels, Mapping) and labels else 1000,
        "tied": False,
        "names": "vit",
    }


_TYPES: dict[str, Callable[[_Config], Sizes]] = {
    "bert": _bert,
    "bloom": _bloom,
    "deepseek_v2": _deepseek,
    "deepseek_v3": _deepseek,
    "gpt2": _gpt2,
    "gpt_oss": _gpt_oss,
    "internlm": _internlm,
    "llama": _llama,
    "mistral": _mistral,
    "mixtral": _mixtral,
    "mpt": _mpt,
    "nemotron": _nemotron,
    "opt": _opt,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "qwen3_moe": _qwen3_moe,
    "vit": _vit,
}


def supported_types() -> list[str]:
    """Return every ``model_type`` that can be read."""
    return sorted(_TYPES)


def _model_type(config: _Config) -> str:
    """Return the type that a file names, or that its first architecture belongs to."""
    stated = config.values.get("model_type")
    if isinstance(stated, str) and stated in _TYPES:
        return stated
    architectures = config.values.get("architectures")
    names = architectures if isinstance(architectures, list) else []
    folded = {name.replace("_", ""): name for name in _TYPES}
    for name in names:
        for fold in sorted(folded, key=len, reverse=True):
            rest = str(name).lower().removeprefix(fold)
            if rest != str(name).lower() and rest.startswith(("for", "lmhead", "model")):
                return folded[fold]
    found = stated or (names[0] if names else None)
    if found is None:
        message = "neither model_type nor architectures: no configuration of a model"
        raise ForeignFileError(
            Problem(file=config.shown, key="model_type", message=message, allowed=_listed(_TYPES))
        )
    raise ForeignFileError(
        Problem(
            file=config.shown,
            key="model_type",
            message=f"models of type {str(found)!r} cannot be read",
            allowed=f"{_listed(_TYPES)}; others by their sizes",
            suggestion=nearest(str(found), _TYPES),
        )
    )


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))


@importer(
    "hf_config",
    summary="config.json of a Hugging Face model",
    reference="huggingface/transformers src/transformers/models/*/configuration_*.py",
)
def read(source: JsonSource, *, name: str | None = None) -> Model:
    """Return the model that a ``config.json`` describes.

    Parameters
    ----------
    source
        A path, the text, bytes, an open stream, or the object.
    name
        Of the model; None: as the file says, or its type.

    Raises
    ------
    ForeignFileError
        No such file, no JSON, an unknown type (with those that are known), or missing and wrong
        values, all at once.

    Examples
    --------
    >>> read('{"model_type": "gpt2"}').n_parameters
    124439808
    """
    values, shown = read_json_object(source, "a model's configuration")
    config = _Config(values, shown)
    kind = _model_type(config)
    sizes = _TYPES[kind](config)
    if config.problems:
        raise ForeignFileError(config.problems)
    title = name or str(values.get("_name_or_path") or "") or kind
    try:
        model = from_dims(
            name=title, source=shown if shown not in ("", "text") else "a config.json", **sizes
        )
    except CollsimError as error:
        raise ForeignFileError(
            [
                Problem(file=shown, key=p.key, message=p.message, allowed=p.allowed)
                for p in error.problems
            ]
        ) from None
    if config.seq_assumed:
        return replace(model, traits={**model.traits, "seq_assumed": True})
    return model
