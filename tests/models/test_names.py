"""Models are found as people type them; wrong names and sizes say what is right."""

from __future__ import annotations

import pytest

from simulator.base.errors import CollsimError, ScenarioError
from simulator.models import from_dims, get_model


@pytest.mark.parametrize(
    ("typed", "name"),
    [
        ("llama-2-70b", "llama-2-70b"),
        ("Llama2_70B", "llama-2-70b"),
        ("meta-llama/Llama-2-70b-hf", "llama-2-70b"),
        ("meta-llama/Meta-Llama-3-8B-Instruct", "llama-3-8b"),
        ("llama3.1-405b", "llama-3.1-405b"),
        ("llama31-405b", "llama-3.1-405b"),
        ("gpt3-175b", "gpt3-175b"),
        ("GPT-3 175B", "gpt3-175b"),
        ("gpt2", "gpt2-small"),
        ("openai-community/gpt2-xl", "gpt2-xl"),
        ("gpt3-1.3b", "gpt3-1.3b"),
        ("gpt3-13b", "gpt3-13b"),
        ("mistralai/Mixtral-8x7B-v0.1", "mixtral-8x7b"),
        ("deepseek-ai/DeepSeek-V3", "deepseek-v3"),
        ("Qwen/Qwen3-235B-A22B", "qwen3-235b-a22b"),
        ("resnet50", "resnet-50"),
        ("vit_b_16", "vit-b-16"),
        ("bert-base", "bert-base"),
    ],
)
def test_a_name_as_typed(typed: str, name: str) -> None:
    assert get_model(typed).name == name


def test_an_unknown_name_has_a_neighbour() -> None:
    with pytest.raises(CollsimError) as caught:
        get_model("lama-2-70b")
    assert caught.value.problems[0].suggestion == "llama-2-70b"


def test_sizes_can_be_changed() -> None:
    model = get_model("llama-2-70b", layers=4, seq=1024)
    assert (model.blocks, model.seq, model.hidden) == (4, 1024, 8192)
    assert model.name != "llama-2-70b"


def test_a_larger_image_has_more_patches() -> None:
    # torchvision's ViT-B/16 for 384 pixels: 86,859,496 parameters.
    model = get_model("vit-b-16", image=384)
    assert (model.seq, model.n_parameters) == (577, 86_859_496)


def test_all_wrong_sizes_are_told_at_once() -> None:
    with pytest.raises(ScenarioError) as caught:
        from_dims(hiden=768, layers=0, heads=12, activation="swish", tied=3)
    told = str(caught.value)
    for part in ("hiden", "hidden", "layers", "swiglu", "true, false"):
        assert part in told
    assert len(caught.value.problems) == 5


@pytest.mark.parametrize(
    ("sizes", "key"),
    [
        ({"hidden": 100, "heads": 12}, "heads"),
        ({"hidden": 768, "heads": 12, "kv_heads": 5}, "kv_heads"),
        ({"hidden": 768, "heads": 12, "experts": 4}, "experts_per_token"),
        ({"hidden": 768, "heads": 12, "kv_lora": 64}, "kv_lora"),
        ({"hidden": 768, "heads": 12, "image": 225}, "patch"),
    ],
)
def test_sizes_that_do_not_fit_together(sizes: dict[str, int], key: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        from_dims(layers=2, **sizes)
    assert [problem.key for problem in caught.value.problems] == [key]


def test_residual_networks_refuse_sizes_they_do_not_have() -> None:
    with pytest.raises(ScenarioError, match="heads"):
        get_model("resnet-50", heads=3)
    with pytest.raises(ScenarioError, match="32"):
        get_model("resnet-50", image=100)
    assert get_model("resnet-50", image=256).flops() > get_model("resnet-50").flops()
