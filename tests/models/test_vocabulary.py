"""Vocabularies are padded by Megatron-LM and by nobody else."""

from __future__ import annotations

import pytest

from simulator.compose.step.request import model_of
from simulator.importers import hf_config
from simulator.scenario.resolve import from_words


@pytest.mark.parametrize(
    ("framework", "tensor", "rows"),
    [("megatron", 1, 50304), ("megatron", 8, 51200), ("deepspeed", 8, 50257), ("torch", 1, 50257)],
)
def test_the_framework_pads(framework, tensor, rows):
    words = {
        "training.model": "gpt3-6.7b",
        "training.framework": framework,
        "training.tensor": str(tensor),
        "node": "dgx-a100",
    }
    assert model_of(from_words(words).variants[0].training).vocab == rows


def test_a_length_that_no_key_tells_is_marked():
    sizes = '"hidden_size":64,"num_hidden_layers":2,"num_attention_heads":4'
    text = f'{{"model_type":"llama",{sizes},"intermediate_size":256,"vocab_size":999%s}}'
    assert hf_config.read(text % "").traits.get("seq_assumed") is True
    assert "seq_assumed" not in hf_config.read(text % ',"max_position_embeddings":4096').traits
