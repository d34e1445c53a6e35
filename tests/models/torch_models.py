"""GPT-2 and ResNet-18 as torch modules, layer by layer under their published names.

torch is imported where it is used: a module that is skipped while others import from it is left
half-made in ``sys.modules``, and they fail.
"""

from __future__ import annotations

from typing import Any


def conv(inputs: int, outputs: int, kernel: int, stride: int = 1) -> Any:
    from torch import nn

    return nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False)


def residual(inputs: int, outputs: int, stride: int) -> Any:
    from torch import nn

    block = nn.Module()
    block.conv1, block.bn1 = conv(inputs, outputs, 3, stride), nn.BatchNorm2d(outputs)
    block.conv2, block.bn2 = conv(outputs, outputs, 3), nn.BatchNorm2d(outputs)
    if stride != 1 or inputs != outputs:
        block.downsample = nn.Sequential(conv(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs))
    return block


def resnet18() -> Any:
    """Layers as He et al. 2016, table 1, and torchvision's names."""
    from torch import nn

    net = nn.Module()
    net.conv1, net.bn1 = conv(3, 64, 7, 2), nn.BatchNorm2d(64)
    inputs = 64
    for group, outputs in enumerate((64, 128, 256, 512), start=1):
        stride = 1 if group == 1 else 2
        blocks = nn.Sequential(residual(inputs, outputs, stride), residual(outputs, outputs, 1))
        setattr(net, f"layer{group}", blocks)
        inputs = outputs
    net.fc = nn.Linear(512, 1000)
    return net


def transposed(inputs: int, outputs: int) -> Any:
    """GPT-2's linear layers keep the inputs first."""
    import torch
    from torch import nn

    layer = nn.Module()
    layer.weight = nn.Parameter(torch.empty(inputs, outputs))
    layer.bias = nn.Parameter(torch.empty(outputs))
    return layer


def gpt2() -> Any:
    """Modules as openai/gpt-2 ``src/model.py`` and Hugging Face name them."""
    from torch import nn

    h = 768
    net = nn.Module()
    net.transformer = nn.Module()
    net.transformer.wte = nn.Embedding(50257, h)
    net.transformer.wpe = nn.Embedding(1024, h)
    blocks = []
    for _ in range(12):
        block = nn.Module()
        block.ln_1 = nn.LayerNorm(h)
        block.attn = nn.Module()
        block.attn.c_attn, block.attn.c_proj = transposed(h, 3 * h), transposed(h, h)
        block.ln_2 = nn.LayerNorm(h)
        block.mlp = nn.Module()
        block.mlp.c_fc, block.mlp.c_proj = transposed(h, 4 * h), transposed(4 * h, h)
        blocks.append(block)
    net.transformer.h = nn.ModuleList(blocks)
    net.transformer.ln_f = nn.LayerNorm(h)
    net.lm_head = nn.Linear(h, 50257, bias=False)
    net.lm_head.weight = net.transformer.wte.weight
    return net
