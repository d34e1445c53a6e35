"""Parameters of transformers, named, shaped and ordered as the usual implementations register them.

The order decides data-parallel buckets.  ``gpt2`` and ``llama`` (with latent attention as in
``deepseek_v3``) follow Hugging Face Transformers' ``modeling_*.py``, ``bert`` its
``BertForPreTraining``, ``vit`` torchvision's ``vision_transformer.py``.  The experts of a block are
stacked in one tensor per projection, as grouped products hold them.
"""

from __future__ import annotations

from collections.abc import Iterator

from simulator.models.dims import Dims
from simulator.models.model import Parameter

__all__ = ["block_parameters", "embedding_parameters", "head_parameters", "word_embedding_name"]

_WORDS = {
    "gpt2": "transformer.wte.weight",
    "llama": "model.embed_tokens.weight",
    "bert": "bert.embeddings.word_embeddings.weight",
    "vit": "conv_proj.weight",
}
_PREFIX = {
    "gpt2": "transformer.h.{}.",
    "llama": "model.layers.{}.",
    "bert": "bert.encoder.layer.{}.",
    "vit": "encoder.layers.encoder_layer_{}.",
}
# Norm before attention, fused projection or three, output, norm before the feed-forward part,
# gate, up, down.
_PARTS = {
    "gpt2": ("ln_1", "attn.c_attn", "attn.c_proj", "ln_2", "mlp.gate", "mlp.c_fc", "mlp.c_proj"),
    "llama": (
        "input_layernorm",
        "self_attn.{}_proj",
        "self_attn.o_proj",
        "post_attention_layernorm",
        "mlp.gate_proj",
        "mlp.up_proj",
        "mlp.down_proj",
    ),
    "bert": (
        "attention.output.LayerNorm",
        "attention.self.{}",
        "attention.output.dense",
        "output.LayerNorm",
        "intermediate.gate",
        "intermediate.dense",
        "output.dense",
    ),
    "vit": (
        "ln_1",
        "self_attention.in_proj",
        "self_attention.out_proj",
        "ln_2",
        "mlp.g",
        "mlp.0",
        "mlp.3",
    ),
}


def word_embedding_name(dims: Dims) -> str:
    """Return the name of the word embedding, to which a head may be tied."""
    return _WORDS[dims.names]


def _linear(
    name: str,
    dims: Dims,
    inputs: int,
    outputs: int,
    *,
    bias: bool | None,
    split: str | None = None,
) -> Iterator[Parameter]:
    """Generate weight and bias; GPT-2 keeps weights with the inputs first."""
    shape = (inputs, outputs) if dims.names == "gpt2" else (outputs, inputs)
    yield Parameter(
        name=f"{name}.weight", shape=shape, sharding="tensor" if split is not None else "none"
    )
    if bias:
        yield Parameter(
            name=f"{name}.bias",
            shape=(outputs,),
            sharding="tensor" if split == "column" else "none",
        )


def _norm(name: str, dims: Dims, width: int) -> Iterator[Parameter]:
    yield Parameter(name=f"{name}.weight", shape=(width,))
    if dims.norm_bias:
        yield Parameter(name=f"{name}.bias", shape=(width,))


def _attention(dims: Dims, prefix: str, qkv: str, out: str) -> Iterator[Parameter]:
    d = dims
    if d.latent:
        yield from _latent(d, prefix + "self_attn.")
    else:
        q, kv = d.heads * d.head_dim, d.kv_heads * d.head_dim
        widths = (q, kv, d.kv_heads * d.value_dim)
        if d.fused_qkv:
            yield from _linear(
                prefix + qkv, d, d.hidden, sum(widths), bias=d.qkv_bias, split="column"
            )
        else:
            letters = ("query", "key", "value") if d.names == "bert" else ("q", "k", "v")
            for letter, width in zip(letters, widths, strict=True):
                name = prefix + qkv.format(letter)
                yield from _linear(name, d, d.hidden, width, bias=d.qkv_bias, split="column")
    if d.sinks:
        yield Parameter(name=f"{prefix}self_attn.sinks", shape=(d.heads,), sharding="tensor")
    width = d.heads * d.value_dim
    yield from _linear(prefix + out, d, width, d.hidden, bias=d.output_bias, split="row")
    if d.qk_norm:
        yield from _norm(f"{prefix}self_attn.q_norm", d, d.head_dim)
        yield from _norm(f"{prefix}self_attn.k_norm", d, d.head_dim)


def _latent(dims: Dims, prefix: str) -> Iterator[Parameter]:
    d = dims
    q = d.heads * d.head_dim
    if d.q_lora:
        yield from _linear(prefix + "q_a_proj", d, d.hidden, d.q_lora, bias=d.qkv_bias)
        yield from _norm(prefix + "q_a_layernorm", d, d.q_lora)
        yield from _linear(prefix + "q_b_proj", d, d.q_lora, q, bias=False, split="column")
    else:
        yield from _linear(prefix + "q_proj", d, d.hidden, q, bias=False, split="column")
    compressed = d.kv_lora + d.rope_dim
    yield from _linear(prefix + "kv_a_proj_with_mqa", d, d.hidden, compressed, bias=d.qkv_bias)
    yield from _norm(prefix + "kv_a_layernorm", d, d.kv_lora)
    width = d.heads * (d.nope_dim + d.value_dim)
    yield from _linear(prefix + "kv_b_proj", d, d.kv_lora, width, bias=False, split="column")


def _dense(dims: Dims, prefix: str, ffn: int, gate: str, up: str, down: str) -> Iterator[Parameter]:
    d = dims
    for name in (gate, up) if d.gated else (up,):
        yield from _linear(prefix + name, d, d.hidden, ffn, bias=d.bias, split="column")
    yield from _linear(prefix + down, d, ffn, d.hidden, bias=d.bias, split="row")


def _experts(dims: Dims, prefix: str) -> Iterator[Parameter]:
    d = dims
    yield from _linear(prefix + "mlp.gate", d, d.hidden, d.experts, bias=d.router_bias)
    up = d.expert_ffn * (2 if d.gated else 1)
    for name, outputs, inputs in (
        ("gate_up_proj" if d.gated else "up_proj", up, d.hidden),
        ("down_proj", d.hidden, d.expert_ffn),
    ):
        yield Parameter(
            name=f"{prefix}mlp.experts.{name}",
            shape=(d.experts, outputs, inputs),
            sharding="expert",
        )
        if d.expert_bias:
            yield Parameter(
                name=f"{prefix}mlp.experts.{name}_bias",
                shape=(d.experts, outputs),
                sharding="expert",
            )
    if d.shared_ffn:
        yield from _dense(
            d, prefix + "mlp.shared_experts.", d.shared_ffn, "gate_proj", "up_proj", "down_proj"
        )


def block_parameters(dims: Dims, block: int) -> tuple[Parameter, ...]:
    """Return the parameters of one block."""
    d = dims
    prefix = _PREFIX[d.names].format(block)
    first, qkv, out, second, gate, up, down = _PARTS[d.names]
    attention = tuple(_attention(d, prefix, qkv, out))
    feed = tuple(
        _experts(d, prefix) if d.routed(block) else _dense(d, prefix, d.ffn, gate, up, down)
    )
    norms = tuple(tuple(_norm(prefix + name, d, d.hidden)) for name in (first, second))
    if d.names == "llama":
        return (*attention, *feed, *norms[0], *norms[1])
    if d.names == "bert":
        return (*attention, *norms[0], *feed, *norms[1])
    return (*norms[0], *attention, *norms[1], *feed)


def embedding_parameters(dims: Dims) -> Iterator[Parameter]:
    """Generate the parameters before the first block."""
    d = dims
    if d.image:
        yield Parameter(name="class_token", shape=(1, 1, d.hidden))
        yield Parameter(name="conv_proj.weight", shape=(d.hidden, 3, d.patch, d.patch))
        yield Parameter(name="conv_proj.bias", shape=(d.hidden,))
        yield Parameter(name="encoder.pos_embedding", shape=(1, d.seq, d.hidden))
        return
    words = _WORDS[d.names]
    yield Parameter(name=words, shape=(d.vocab, d.hidden), sharding="tensor")
    place = words.rpartition(".")[0].rpartition(".")[0]
    if d.position == "learned":
        name = {"gpt2": "wpe", "bert": "position_embeddings"}.get(d.names, "embed_positions")
        rows = d.seq + d.position_offset
        yield Parameter(name=f"{place}.{name}.weight", shape=(rows, d.hidden))
    if d.token_types:
        shape = (d.token_types, d.hidden)
        yield Parameter(name=f"{place}.token_type_embeddings.weight", shape=shape)
    if d.embedding_norm:
        yield from _norm(f"{place}.LayerNorm", d, d.hidden)


def head_parameters(dims: Dims) -> Iterator[Parameter]:
    """Generate the parameters after the last block."""
    d = dims
    if not d.post_norm:
        names = {"gpt2": "transformer.ln_f", "vit": "encoder.ln"}
        yield from _norm(names.get(d.names, "model.norm"), d, d.hidden)
    if d.classes:
        yield from _linear("heads.head", d, d.hidden, d.classes, bias=True)
        return
    if d.mlm_head:
        yield from _linear("bert.pooler.dense", d, d.hidden, d.hidden, bias=True)
        yield Parameter(name="cls.predictions.bias", shape=(d.vocab,), sharding="tensor")
        yield from _linear("cls.predictions.transform.dense", d, d.hidden, d.hidden, bias=True)
        yield from _norm("cls.predictions.transform.LayerNorm", d, d.hidden)
        yield from _linear("cls.seq_relationship", d, d.hidden, 2, bias=True)
    yield Parameter(
        name="lm_head.weight",
        shape=(d.vocab, d.hidden),
        sharding="tensor",
        tied_to=_WORDS[d.names] if d.tied else None,
    )
    if d.head_bias:
        yield Parameter(name="lm_head.bias", shape=(d.vocab,), sharding="tensor")
