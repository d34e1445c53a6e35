"""HFU over MFU, by the conventions of the papers that print both."""

from __future__ import annotations

import pytest

from simulator.models import get_model
from simulator.models.model import Model, Slice


def again(model: Model, kind: str) -> float:
    part = Slice(micro_batch=1, seq=model.seq, recompute=kind)  # type: ignore[arg-type]
    return sum(layer.recomputed_flops(part) for layer in model.layers if layer.kind == "block")


@pytest.mark.parametrize(
    ("name", "mfu", "hfu"),
    # Korthikanti et al. 2022, arXiv:2205.05198, table 5.
    [("megatron-22b", 41.5, 43.7), ("megatron-175b", 51.4, 52.8), ("megatron-530b", 56.0, 57.0)],
)
def test_selective_recomputation(name: str, mfu: float, hfu: float) -> None:
    model = get_model(name)
    ratio = 1 + again(model, "selective") / model.flops()
    assert mfu * ratio == pytest.approx(hfu, abs=0.11)


def test_full_recomputation_repeats_the_blocks_forward() -> None:
    # Narayanan et al., SC21, equation 3: 96 B l s h^2 (1 + s/6h + V/16lh).
    model = get_model("megatron-18.4b")
    s, h, layers, words = model.seq, model.hidden, model.blocks, model.vocab
    published = 96 * layers * s * h**2 * (1 + s / (6 * h) + words / (16 * layers * h))
    assert model.flops() + again(model, "full") == pytest.approx(published, rel=1e-9)
