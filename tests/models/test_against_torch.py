"""Parameters of GPT-2 and ResNet-18 equal those that torch registers, in order."""

from __future__ import annotations

from typing import Any

import pytest

from simulator.models import get_model
from tests.models.torch_models import gpt2, resnet18

torch = pytest.importorskip("torch")


@pytest.mark.parametrize(("name", "build"), [("resnet-18", resnet18), ("gpt2-small", gpt2)])
def test_parameters_equal_torchs(name: str, build: Any) -> None:
    with torch.device("meta"):
        net = build()
    registered = [(key, tuple(value.shape)) for key, value in net.named_parameters()]
    ours = [
        (p.name, p.shape)
        for layer in get_model(name).layers
        for p in layer.parameters
        if not p.tied_to
    ]
    assert ours == registered
    assert len(ours) == {"resnet-18": 62, "gpt2-small": 148}[name]
