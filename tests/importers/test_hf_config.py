"""Hugging Face configurations become the models that are known by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from simulator.importers import IMPORTERS, hf_config
from simulator.importers.source import ForeignFileError
from simulator.models import Slice, get_model

DATA = Path(__file__).parent / "data" / "configs"

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "vocab_size": 32000,
    "max_position_embeddings": 4096,
    "model_type": "llama",
}


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("deepseek_v3_config.json", "deepseek-v3"),
        ("gpt2_default_config.json", "gpt2-small"),
        ("mixtral_default_config.json", "mixtral-8x7b"),
        ("qwen3-30B-A3B_config.json", "qwen3-30b-a3b"),
        ("qwen3-8B_config.json", "qwen3-8b"),
    ],
)
def test_a_file_is_the_named_model(file: str, name: str) -> None:
    ours, named = hf_config.read(DATA / file), get_model(name)
    assert [(p.name, p.shape, p.sharding) for layer in ours.layers for p in layer.parameters] == [
        (p.name, p.shape, p.sharding) for layer in named.layers for p in layer.parameters
    ]
    part = Slice(micro_batch=1, seq=1024)
    for mine, theirs in zip(ours.layers, named.layers, strict=True):
        assert mine.forward(part) == theirs.forward(part)
    assert ours.source.endswith(file)


# Keys of other families with the sizes of models that are known by name.
OTHERS: list[tuple[str, dict[str, Any]]] = [
    ("llama-2-70b", LLAMA),
    (
        "llama-3.2-1b",
        LLAMA
        | {
            "hidden_size": 2048,
            "intermediate_size": 8192,
            "num_hidden_layers": 16,
            "num_attention_heads": 32,
            "head_dim": 64,
            "vocab_size": 128256,
            "max_position_embeddings": 131072,
            "rope_scaling": {"original_max_position_embeddings": 8192, "factor": 32.0},
            "tie_word_embeddings": True,
        },
    ),
    (
        "mistral-7b",
        LLAMA
        | {
            "model_type": "mistral",
            "hidden_size": 4096,
            "intermediate_size": 14336,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "max_position_embeddings": 32768,
            "sliding_window": 4096,
        },
    ),
    (
        "qwen2.5-7b",
        LLAMA
        | {
            "model_type": "qwen2",
            "hidden_size": 3584,
            "intermediate_size": 18944,
            "num_hidden_layers": 28,
            "num_attention_heads": 28,
            "num_key_value_heads": 4,
            "vocab_size": 152064,
            "use_sliding_window": False,
            "sliding_window": 131072,
        },
    ),
    (
        "internlm-7b",
        {
            "model_type": "internlm",
            "hidden_size": 4096,
            "intermediate_size": 11008,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "vocab_size": 103168,
            "bias": True,
        },
    ),
    (
        "gpt-oss-20b",
        {
            "model_type": "gpt_oss",
            "hidden_size": 2880,
            "intermediate_size": 2880,
            "num_hidden_layers": 24,
            "num_attention_heads": 64,
            "num_key_value_heads": 8,
            "head_dim": 64,
            "vocab_size": 201088,
            "num_local_experts": 32,
            "num_experts_per_tok": 4,
            "sliding_window": 128,
        },
    ),
    (
        "nemotron-4-15b",
        {
            "architectures": ["NemotronForCausalLM"],
            "hidden_size": 6144,
            "intermediate_size": 24576,
            "num_hidden_layers": 32,
            "num_attention_heads": 48,
            "num_key_value_heads": 8,
            "vocab_size": 256000,
            "hidden_act": "relu2",
        },
    ),
    (
        "bloom-176b",
        {"model_type": "bloom", "n_embed": 14336, "n_layer": 70, "num_attention_heads": 112},
    ),
    (
        "opt-125m",
        {
            "model_type": "opt",
            "hidden_size": 768,
            "ffn_dim": 3072,
            "num_hidden_layers": 12,
            "num_attention_heads": 12,
            "word_embed_proj_dim": 768,
        },
    ),
    ("mpt-7b", {"model_type": "mpt", "d_model": 4096, "n_heads": 32, "n_layers": 32}),
    ("bert-base", {"model_type": "bert"}),
    ("vit-b-16", {"architectures": ["ViTForImageClassification"]}),
]


@pytest.mark.parametrize(("name", "values"), OTHERS)
def test_keys_of_every_family(name: str, values: dict[str, Any]) -> None:
    ours, named = hf_config.read(values), get_model(name)
    assert ours.n_parameters == named.n_parameters
    part = Slice(micro_batch=1, seq=named.seq)
    for mine, theirs in zip(ours.layers, named.layers, strict=True):
        assert mine.forward(part) == theirs.forward(part)


def test_every_family_is_tested() -> None:
    files = [json.loads(path.read_text()) for path in DATA.glob("*_config.json")]
    seen = {value.get("model_type") for value in [*files, *(v for _, v in OTHERS)]}
    seen |= {"nemotron", "vit", "deepseek_v2"}
    assert set(hf_config.supported_types()) <= seen


def test_the_default_sequence_is_that_of_pre_training_where_the_file_tells() -> None:
    # DeepSeek-V3: 163,840 positions by YaRN from 4096; Qwen3: 40,960, nothing told.
    assert hf_config.read(DATA / "deepseek_v3_config.json").seq == 4096
    assert hf_config.read(DATA / "qwen3-8B_config.json").seq == hf_config.LONGEST_DEFAULT


def test_sources_of_all_kinds(tmp_path: Path) -> None:
    text = json.dumps(LLAMA)
    path = tmp_path / "config.json"
    path.write_text(text)
    for source in (LLAMA, text, text.encode(), path, str(path), path.open()):
        assert hf_config.read(source).n_parameters == 68_976_648_192
    assert hf_config.read(LLAMA, name="mine").name == "mine"
    assert IMPORTERS["hf_config"].value is hf_config.read


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ('{"model_type": "falcon"}', ["'falcon' cannot be read", "llama", "by their sizes"]),
        ('{"model_type": "lama"}', ["Did you mean 'llama'?"]),
        ('{"architectures": ["MambaForCausalLM"]}', ["MambaForCausalLM", "qwen3_moe"]),
        ('{"weight_map": {}}', ["no configuration of a model"]),
        ('{"model_type": "llama", "hidden_size": ', ["no JSON"]),
        ("[1, 2]\n", ["this is a list"]),
        ('{"model_type": "gpt2", "n_embd": 1, "n_embd": 2}', ["n_embd", "twice"]),
        ('{"model_type": "llama", "num_hidden_layer": 3}', ["num_hidden_layers: is missing"]),
        ('{"model_type": "gpt2", "n_layer": "twelve"}', ["n_layer", "whole number"]),
        ('{"model_type": "gpt2", "n_layer": 2.5}', ["n_layer", "whole number"]),
        ('{"model_type": "gpt2", "n_head": 7}', ["768 is not a multiple of 7 heads"]),
        ('{"model_type": "gpt2", "activation_function": "selu"}', ["'selu'", "gelu"]),
        ('{"model_type": "gpt2", "tie_word_embeddings": "yes"}', ["true, false"]),
        (
            '{"model_type": "vit", "patch_size": 15}',
            ["patches of 15 do not divide an image of 224"],
        ),
    ],
)
def test_what_cannot_be_read_says_why(source: str, told: list[str]) -> None:
    with pytest.raises(ForeignFileError) as caught:
        hf_config.read(source)
    for part in told:
        assert part in str(caught.value)


def test_what_is_not_modelled_is_refused() -> None:
    opt = OTHERS[8][1]
    for change in ({"word_embed_proj_dim": 512}, {"do_layer_norm_before": False}):
        with pytest.raises(ForeignFileError, match="not modelled"):
            hf_config.read(opt | change)
    moe = json.loads((DATA / "qwen3-30B-A3B_config.json").read_text())
    with pytest.raises(ForeignFileError, match="the first blocks, or none"):
        hf_config.read(moe | {"mlp_only_layers": [3, 7]})
    assert hf_config.read(moe | {"mlp_only_layers": [0, 1]}).n_parameters < 30_532_122_624


def test_all_missing_keys_are_told_at_once() -> None:
    with pytest.raises(ForeignFileError) as caught:
        hf_config.read({"model_type": "llama"})
    assert len(caught.value.problems) == 5


def test_a_file_that_is_not_there() -> None:
    with pytest.raises(ForeignFileError, match="no such file"):
        hf_config.read("nowhere/config.json")
