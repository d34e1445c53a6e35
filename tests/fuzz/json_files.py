"""Configurations of other programs with one or two things wrong."""

from __future__ import annotations

import copy
import json
from typing import Any

from hypothesis import strategies as st

from tests.fuzz.runner import Case
from tests.fuzz.values import json_garbage

__all__ = ["configurations"]

MODELS: tuple[dict[str, Any], ...] = (
    {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 512,
     "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 2,
     "intermediate_size": 1024, "vocab_size": 32000, "max_position_embeddings": 1024,
     "tie_word_embeddings": False, "torch_dtype": "bfloat16"},
    {"model_type": "gpt2", "n_embd": 256, "n_layer": 3, "n_head": 4, "n_ctx": 512,
     "n_positions": 512, "vocab_size": 50257},
    {"model_type": "mixtral", "hidden_size": 512, "num_hidden_layers": 2, "num_attention_heads": 8,
     "num_key_value_heads": 8, "intermediate_size": 1024, "num_local_experts": 8,
     "num_experts_per_tok": 2, "vocab_size": 32000, "max_position_embeddings": 512},
)  # fmt: skip
DEEPSPEED: tuple[dict[str, Any], ...] = (
    {"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 2,
     "zero_optimization": {"stage": 2, "reduce_bucket_size": 5e8, "overlap_comm": True},
     "bf16": {"enabled": True}},
    {"train_batch_size": 16, "fp16": {"enabled": True, "loss_scale": 0},
     "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"},
                           "stage3_prefetch_bucket_size": "auto"}},
)  # fmt: skip


def _changed(draw: st.DrawFn, tree: Any) -> Any:
    here = tree
    while isinstance(here, dict | list) and here:
        key = draw(st.sampled_from(sorted(here) if isinstance(here, dict) else range(len(here))))
        if isinstance(here[key], dict | list) and here[key] and draw(st.booleans()):
            here = here[key]
            continue
        change = draw(st.sampled_from(["value", "value", "value", "drop", "rename"]))
        if change == "value":
            here[key] = draw(json_garbage)
        else:
            value = here.pop(key)
            if change == "rename" and isinstance(here, dict):
                here[str(key) + "x"] = value
        return tree
    return draw(json_garbage)


@st.composite
def configurations(draw: st.DrawFn) -> Case:
    """``collsim step`` with a model's config.json or DeepSpeed's JSON."""
    of_model = draw(st.booleans())
    tree = copy.deepcopy(draw(st.sampled_from(MODELS if of_model else DEEPSPEED)))
    for _ in range(draw(st.integers(1, 3))):
        tree = _changed(draw, tree)
    text = json.dumps(tree)
    if draw(st.integers(0, 9)) == 0:
        text = text[: draw(st.integers(0, len(text)))]
    options = ("--node", "4xA100", "--seq", "128", "-q", "--json", "result.json")
    words: tuple[str, ...] = ("step", "--model", "config.json", *options)
    if not of_model:
        words = ("step", "--model", "gpt2-small", "--deepspeed", "config.json", *options)
    return Case(words, {"config.json": text.encode("utf-8", "surrogatepass")})
