"""Residual networks: convolutions as implicit matrix products, batch norms, pooling.

A convolution of `k` × `k` from `c` to `n` channels on `p` output positions is one product of
``[images · p, c k²] x [c k², n]`` (Chetlur et al. 2014, arXiv:1410.0759, section 3.1).

Only data parallelism splits these models; `Slice` is read for images, element size and
recomputation.  Not modelled: exchanges of synchronised batch norms.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from simulator.base.errors import Problem, ScenarioError, nearest
from simulator.base.limits import MOST_DIMENSION, shortened
from simulator.models.kernels import Gemm, MemoryBound, Operation, Phase, Work
from simulator.models.model import ActivationBytes, Layer, Model, Parameter, Slice

__all__ = ["Classifier", "ConvBlock", "residual_network"]

_SIZES = ("image", "classes", "blocks", "bottleneck")


@dataclass(frozen=True, slots=True)
class _Conv:
    """A convolution without bias and the batch norm after it."""

    name: str
    norm: str
    inputs: int
    outputs: int
    kernel: int
    side: int
    """Positions of an output's side."""
    stride: int
    activated: bool

    def parameters(self, prefix: str) -> Iterator[Parameter]:
        shape = (self.outputs, self.inputs, self.kernel, self.kernel)
        yield Parameter(name=f"{prefix}{self.name}.weight", shape=shape)
        yield Parameter(name=f"{prefix}{self.norm}.weight", shape=(self.outputs,))
        yield Parameter(name=f"{prefix}{self.norm}.bias", shape=(self.outputs,))

    @property
    def elements(self) -> int:
        """Of the output of one image."""
        return self.outputs * self.side**2

    @property
    def macs(self) -> int:
        return self.elements * self.inputs * self.kernel**2

    def forward(self, phase: Phase, part: Slice) -> Iterator[Operation]:
        images, a = part.micro_batch, part.activation_bytes
        depth = self.inputs * self.kernel**2
        rows = images * self.side**2
        yield Gemm(name=self.name, phase=phase, m=rows, n=self.outputs, k=depth)
        # Read for the statistics, read, written; the activation again reads and writes.
        passes = 3 + (0 if part.compiled or not self.activated else 2)
        launches = 1 if part.compiled or not self.activated else 2
        n_bytes = float(passes * a * images * self.elements)
        yield MemoryBound(name=self.norm, phase=phase, n_bytes=n_bytes, launches=launches)

    def backward(self, part: Slice, *, first: bool) -> Iterator[Operation]:
        images, a = part.micro_batch, part.activation_bytes
        depth = self.inputs * self.kernel**2
        rows = images * self.side**2
        # Sums over input and gradient, then both again and the result.
        passes = 5 + (0 if part.compiled or not self.activated else 3)
        launches = 1 if part.compiled or not self.activated else 2
        n_bytes = float(passes * a * images * self.elements)
        yield MemoryBound(
            name=self.norm, phase="input_gradient", n_bytes=n_bytes, launches=launches
        )
        if not first:
            positions = images * (self.side * self.stride) ** 2
            # As a product over the input's positions: of the same FLOPs.
            yield Gemm(
                name=self.name,
                phase="input_gradient",
                m=positions,
                n=self.inputs,
                k=self.outputs * self.kernel**2 // self.stride**2 or 1,
            )
        yield Gemm(name=self.name, phase="weight_gradient", m=self.outputs, n=depth, k=rows)


@dataclass(frozen=True, kw_only=True)
class ConvBlock(Layer):
    """The stem (kind ``embedding``) or one residual block."""

    name: str
    kind: Literal["embedding", "block"]
    parameters: tuple[Parameter, ...]
    convs: tuple[_Conv, ...]
    """In the order of the forward; a projection of the shortcut comes last."""
    pooled: int = 0
    """Elements per image of what the stem's max-pooling writes."""

    def forward(self, part: Slice) -> Work:
        """Return convolutions, norms, activations, and the residual sum."""
        return tuple(self._forward(part, "forward"))

    def _forward(self, part: Slice, phase: Phase) -> Iterator[Operation]:
        for conv in self.convs:
            yield from conv.forward(phase, part)
        images, a = part.micro_batch, part.activation_bytes
        if self.kind == "block":
            # Sum and activation.
            passes, launches = (3, 1) if part.compiled else (5, 2)
            elements = self._output()
        else:
            passes, launches, elements = 1, 1, self.convs[0].elements + self.pooled
        n_bytes = float(passes * a * images * elements)
        yield MemoryBound(
            name="add" if self.kind == "block" else "pool",
            phase=phase,
            n_bytes=n_bytes,
            launches=launches,
        )

    def _output(self) -> int:
        return self.convs[-1].elements

    def backward(self, part: Slice) -> Work:
        """Return the backward; fully recomputed after another forward."""
        return tuple(self._backward(part))

    def _backward(self, part: Slice) -> Iterator[Operation]:
        if part.recompute == "full":
            yield from self._forward(part, "recompute")
        images, a = part.micro_batch, part.activation_bytes
        elements = self._output() if self.kind == "block" else self.convs[0].elements
        # The activation's gradient, and the sum of the two branches'.
        passes = 6 if self.kind == "block" else 2
        yield MemoryBound(
            name="add" if self.kind == "block" else "pool",
            phase="input_gradient",
            n_bytes=float(passes * a * images * elements),
            launches=2 if self.kind == "block" else 1,
        )
        for conv in reversed(self.convs):
            yield from conv.backward(part, first=self.kind == "embedding")

    def activations(self, part: Slice) -> ActivationBytes:
        """Return inputs of every convolution and norm (activations work in place)."""
        images, a = part.micro_batch, part.activation_bytes
        every = sum(
            conv.inputs * (conv.side * conv.stride) ** 2 + conv.elements for conv in self.convs
        )
        kept = float(a * images * every)
        working = 2.0 * a * images * max(conv.elements for conv in self.convs)
        if part.recompute == "full":
            first = self.convs[0]
            own = float(a * images * first.inputs * (first.side * first.stride) ** 2)
            return ActivationBytes(kept_bytes=own, working_bytes=working + kept)
        return ActivationBytes(kept_bytes=kept, working_bytes=working)

    def model_flops(self, seq: int) -> float:
        """Return forward FLOPs of one image; `seq` is not read."""
        return 2.0 * sum(conv.macs for conv in self.convs)


@dataclass(frozen=True, kw_only=True)
class Classifier(Layer):
    """Average pooling, one linear layer, loss."""

    name: str = "head"
    kind: Literal["head"] = "head"
    parameters: tuple[Parameter, ...]
    features: int
    classes: int
    pooled: int
    """Elements per image that are averaged."""

    def forward(self, part: Slice) -> Work:
        """Return pooling, product and cross entropy."""
        images = part.micro_batch
        n_bytes = float(part.activation_bytes * images * self.pooled)
        return (
            MemoryBound(name="pool", phase="forward", n_bytes=n_bytes),
            Gemm(name="classes", phase="forward", m=images, n=self.classes, k=self.features),
            MemoryBound(
                name="loss", phase="forward", n_bytes=14.0 * images * self.classes, launches=3
            ),
        )

    def backward(self, part: Slice) -> Work:
        """Return the loss' gradient, the product's two, and the pooling's."""
        images = part.micro_batch
        n_bytes = float(part.activation_bytes * images * self.pooled)
        return (
            MemoryBound(
                name="loss",
                phase="input_gradient",
                n_bytes=18.0 * images * self.classes,
                launches=3,
            ),
            Gemm(name="classes", phase="input_gradient", m=images, n=self.features, k=self.classes),
            Gemm(
                name="classes", phase="weight_gradient", m=self.classes, n=self.features, k=images
            ),
            MemoryBound(name="pool", phase="input_gradient", n_bytes=n_bytes),
        )

    def activations(self, part: Slice) -> ActivationBytes:
        """Return the product's input and the logits."""
        images = part.micro_batch
        kept = images * (part.activation_bytes * self.features + 4.0 * self.classes)
        return ActivationBytes(
            kept_bytes=kept, working_bytes=float(part.activation_bytes * images * self.pooled)
        )

    def model_flops(self, seq: int) -> float:
        """Return forward FLOPs of one image; `seq` is not read."""
        return 2.0 * self.features * self.classes


def _block(
    place: str, inputs: int, width: int, side: int, stride: int, *, bottleneck: bool
) -> ConvBlock:
    outputs = 4 * width if bottleneck else width
    if bottleneck:
        convs = [
            _Conv("conv1", "bn1", inputs, width, 1, side * stride, 1, True),
            _Conv("conv2", "bn2", width, width, 3, side, stride, True),
            _Conv("conv3", "bn3", width, outputs, 1, side, 1, False),
        ]
    else:
        convs = [
            _Conv("conv1", "bn1", inputs, width, 3, side, stride, True),
            _Conv("conv2", "bn2", width, width, 3, side, 1, False),
        ]
    if stride != 1 or inputs != outputs:
        convs.append(_Conv("downsample.0", "downsample.1", inputs, outputs, 1, side, stride, False))
    parameters = tuple(p for conv in convs for p in conv.parameters(place + "."))
    return ConvBlock(name=place, kind="block", parameters=parameters, convs=tuple(convs))


def _check(sizes: Mapping[str, Any]) -> None:
    problems = [
        Problem(
            key=key,
            message=f"unknown size {key!r} of a residual network",
            allowed=", ".join(_SIZES),
            suggestion=nearest(key, _SIZES),
        )
        for key in sizes
        if key not in _SIZES
    ]
    for key in ("image", "classes"):
        value = sizes.get(key)
        whole = isinstance(value, int) and not isinstance(value, bool)
        if value is None or not whole or not 1 <= value <= MOST_DIMENSION:
            problems.append(
                Problem(
                    key=key,
                    message=f"{shortened(repr(value))} is no size",
                    allowed=f"a whole number, 1 … {MOST_DIMENSION:,}",
                )
            )
        elif key == "image" and value % 32:
            problems.append(
                Problem(key=key, message=f"image side {value}", allowed="a multiple of 32 pixels")
            )
    if problems:
        raise ScenarioError(problems)


def residual_network(name: str, sizes: Mapping[str, Any], source: str) -> Model:
    """Return a ResNet.

    Parameters
    ----------
    sizes
        ``image`` (pixels of a side), ``classes``, ``blocks`` (of each of the four groups),
        ``bottleneck``.

    Raises
    ------
    ScenarioError
        Unknown sizes, or an image whose side the five halvings do not divide.
    """
    _check(sizes)
    image, classes, bottleneck = sizes["image"], sizes["classes"], bool(sizes["bottleneck"])
    stem = _Conv("conv1", "bn1", 3, 64, 7, image // 2, 2, True)
    side = image // 4
    layers: list[Layer] = [
        ConvBlock(
            name="stem",
            kind="embedding",
            parameters=tuple(stem.parameters("")),
            convs=(stem,),
            pooled=64 * side**2,
        )
    ]
    channels = 64
    for group, count in enumerate(sizes["blocks"]):
        width = 64 * 2**group
        for index in range(count):
            stride = 2 if group > 0 and index == 0 else 1
            side //= stride
            layers.append(
                _block(
                    f"layer{group + 1}.{index}",
                    channels,
                    width,
                    side,
                    stride,
                    bottleneck=bottleneck,
                )
            )
            channels = 4 * width if bottleneck else width
    weights = (
        Parameter(name="fc.weight", shape=(classes, channels)),
        Parameter(name="fc.bias", shape=(classes,)),
    )
    layers.append(
        Classifier(
            parameters=weights, features=channels, classes=classes, pooled=channels * side**2
        )
    )
    return Model(
        name=name,
        layers=tuple(layers),
        seq=1,
        hidden=0,
        heads=0,
        kv_heads=0,
        vocab=0,
        source=source,
        unit="images",
        traits={"image": image, "classes": classes, "causal": False},
    )
