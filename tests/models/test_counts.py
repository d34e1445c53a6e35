"""Parameters and FLOPs of named models equal the published ones."""

from __future__ import annotations

import pytest

from simulator.models import get_model, model_names

# Exact totals: `num_parameters` of the released checkpoints as Hugging Face shows them
# (safetensors metadata of the repositories named in simulator/models/data/*.yaml); torchvision's
# `_META["num_params"]`; llm-foundry's benchmarking table (`numparams`).
EXACT = {
    "gpt2-small": 124_439_808,
    "gpt2-medium": 354_823_168,
    "gpt2-large": 774_030_080,
    "gpt2-xl": 1_557_611_200,
    "llama-7b": 6_738_415_616,
    "llama-13b": 13_015_864_320,
    "llama-33b": 32_528_943_616,
    "llama-65b": 65_285_660_672,
    "llama-2-7b": 6_738_415_616,
    "llama-2-13b": 13_015_864_320,
    "llama-2-70b": 68_976_648_192,
    "llama-3-8b": 8_030_261_248,
    "llama-3-70b": 70_553_706_496,
    "llama-3.1-405b": 405_853_388_800,
    "llama-3.2-1b": 1_235_814_400,
    "llama-3.2-3b": 3_212_749_824,
    "mistral-7b": 7_241_732_096,
    "mixtral-8x7b": 46_702_792_704,
    "mixtral-8x22b": 140_620_634_112,
    "qwen2.5-0.5b": 494_032_768,
    "qwen2.5-1.5b": 1_543_714_304,
    "qwen2.5-7b": 7_615_616_512,
    "qwen2.5-14b": 14_770_033_664,
    "qwen2.5-32b": 32_763_876_352,
    "qwen2.5-72b": 72_706_203_648,
    "qwen3-0.6b": 596_049_920,
    "qwen3-8b": 8_190_735_360,
    "qwen3-30b-a3b": 30_532_122_624,
    "qwen3-235b-a22b": 235_093_634_560,
    "deepseek-v2-lite": 15_706_484_224,
    "deepseek-v2": 235_741_434_880,
    # 671,026,419,200 with the 58 x 256 biases of expert choice, which have no gradient.
    "deepseek-v3": 671_026_419_200 - 58 * 256,
    "gpt-oss-20b": 20_914_757_184,
    "gpt-oss-120b": 116_829_156_672,
    "bloom-560m": 559_214_592,
    "bloom-7.1b": 7_069_016_064,
    "bloom-176b": 176_247_271_424,
    "opt-125m": 125_239_296,
    "opt-1.3b": 1_315_758_080,
    "mpt-7b": 6_658_859_008,
    "mpt-30b": 29_975_214_080,
    "mpt-70b": 64_862_437_376,
    "bert-base": 110_106_428,
    "resnet-18": 11_689_512,
    "resnet-34": 21_797_672,
    "resnet-50": 25_557_032,
    "resnet-101": 44_549_160,
    "resnet-152": 60_192_808,
    "vit-b-16": 86_567_656,
    "vit-l-16": 304_326_632,
    "vit-h-14": 632_045_800,
}

# Totals that papers round, in units of 1e9: Narayanan et al. 2021, table 1; Korthikanti et al.
# 2022, table 3; Nemotron-4 15B and 340B (9.4 of embeddings and 331.6 of others).
ROUNDED = {
    "megatron-1.7b": 1.7,
    "megatron-3.6b": 3.6,
    "megatron-7.5b": 7.5,
    "megatron-18.4b": 18.4,
    "megatron-39.1b": 39.1,
    "megatron-76.1b": 76.1,
    "megatron-145.6b": 145.6,
    "megatron-310.1b": 310.1,
    "megatron-529.6b": 529.6,
    "megatron-1008b": 1008.0,
    "nemotron-4-15b": 15.6,
    "nemotron-4-340b": 341.0,
}


@pytest.mark.parametrize("name", EXACT)
def test_parameters_equal_the_published_count(name: str) -> None:
    assert get_model(name).n_parameters == EXACT[name]


@pytest.mark.parametrize("name", ROUNDED)
def test_parameters_round_to_the_published_count(name: str) -> None:
    assert round(get_model(name).n_parameters / 1e9, 1) == ROUNDED[name]


@pytest.mark.parametrize("name", ["megatron-18.4b", "megatron-1008b", "mt-nlg-530b"])
def test_parameters_follow_the_formula_of_megatron(name: str) -> None:
    # Narayanan et al. 2021, equation 2: P = 12 l h^2 (1 + 13/(12h) + (V + s)/(12 l h)), which
    # leaves out the final norm (2h).
    model = get_model(name)
    layers, h = model.blocks, model.hidden
    formula = 12 * layers * h * h + 13 * layers * h + (model.vocab + model.seq) * h
    assert model.n_parameters == formula + 2 * h


# Multiply-accumulates of one image of 224 pixels, in 1e9: torchvision `_META["_ops"]`.
MACS = {
    "resnet-18": 1.814,
    "resnet-34": 3.664,
    "resnet-50": 4.089,
    "resnet-101": 7.801,
    "resnet-152": 11.514,
    "vit-b-16": 17.564,
    "vit-l-16": 61.555,
    "vit-h-14": 167.295,
}


@pytest.mark.parametrize("name", MACS)
def test_operations_of_an_image_equal_torchvisions(name: str) -> None:
    model = get_model(name)
    assert model.flops() / 3 / 2 / 1e9 == pytest.approx(MACS[name], abs=6e-4)


@pytest.mark.parametrize("name", ["megatron-1.7b", "megatron-22b", "megatron-1008b"])
def test_flops_equal_megatrons_formula(name: str) -> None:
    # Narayanan et al. 2021, equation 3, without recomputation (three of four passes):
    # F = 72 B s l h^2 (1 + s/(6h) + V/(12 l h)).
    model = get_model(name)
    s, layers, h, v = model.seq, model.blocks, model.hidden, model.vocab
    formula = 72 * s * layers * h**2 * (1 + s / (6 * h) + v / (12 * layers * h))
    assert model.flops() == pytest.approx(formula, rel=1e-12)


def test_flops_are_six_per_parameter_and_token_plus_attention() -> None:
    # 6 N D counts every weight of a product; attention adds 12 l s h_q per token.
    model = get_model("llama-3-8b", seq=4096)
    embedding = model.vocab * model.hidden
    norms = (2 * model.blocks + 1) * model.hidden
    weights = model.n_parameters - embedding - norms
    per_token = 6 * weights + 12 * model.blocks * 4096 * model.hidden
    assert model.flops() == pytest.approx(4096 * per_token, rel=1e-12)


def test_only_visited_experts_count() -> None:
    # DeepSeek-V3, arXiv:2412.19437, section 4.2: 37e9 of 671e9 parameters work for a token.
    model = get_model("deepseek-v3")
    attention = 3 * model.blocks * 2 * 4096 * 4096 * 128 * (192 + 128)
    embedding = 129280 * 7168
    active = (model.flops() - attention) / 6 / 4096 + embedding
    assert active / 1e9 == pytest.approx(37.5, abs=0.6)


def test_every_model_can_be_built_and_names_its_source() -> None:
    names = model_names()
    assert len(names) > 80
    for name in names:
        model = get_model(name)
        assert model.source
        assert model.blocks > 0
        assert model.layers[0].kind == "embedding"
        assert model.layers[-1].kind == "head"
        assert len({p.name for layer in model.layers for p in layer.parameters}) == sum(
            len(layer.parameters) for layer in model.layers
        )
