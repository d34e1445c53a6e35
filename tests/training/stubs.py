"""Layers and a GPU of which times and sizes are known exactly."""

from __future__ import annotations

from collections.abc import Iterable

from simulator.models.kernels import MemoryBound, Operation, Sync, Work
from simulator.models.model import ActivationBytes, Layer, Model, Parameter, Slice


class SecondsGpu:
    """A GPU on which a memory-bound kernel of n bytes takes n seconds, and nothing else any."""

    def work_s(self, work: Iterable[Operation], dtype: str) -> tuple[float, ...]:
        return tuple(0.0 if isinstance(o, Sync) else getattr(o, "n_bytes", 1e-6) for o in work)

    def copy_s(self, n_bytes: float, *, launches: int = 1) -> float:
        return 0.0

    def cast_s(self, n_elements: float, from_bytes: float, to_bytes: float) -> float:
        return 0.0

    def optimizer_s(self, n_parameters: float, **_: object) -> float:
        return 0.0

    def host_copy_s(self, n_bytes: float, link_Bps: float) -> float:
        return n_bytes / link_Bps

    def cpu_optimizer_s(self, n_parameters: float, cpu_memory_Bps: float, **_: object) -> float:
        return n_parameters / cpu_memory_Bps


class Plain(Layer):
    """A block of given times and parameters."""

    def __init__(
        self,
        name: str,
        *,
        forward: float = 1.0,
        input_gradient: float = 1.0,
        weight_gradient: float = 1.0,
        parameters: tuple[Parameter, ...] = (),
        syncs: tuple[Sync, ...] = (),
        kind: str = "block",
    ) -> None:
        self.name = name
        self.kind = kind  # type: ignore[assignment]
        self.parameters = parameters
        self.times = (forward, input_gradient, weight_gradient)
        self.syncs = syncs

    def forward(self, part: Slice) -> Work:
        return (
            *self.syncs,
            MemoryBound(name="forward", phase="forward", n_bytes=self.times[0]),
        )

    def backward(self, part: Slice) -> Work:
        return (
            MemoryBound(name="input", phase="input_gradient", n_bytes=self.times[1]),
            MemoryBound(name="weight", phase="weight_gradient", n_bytes=self.times[2]),
        )

    def activations(self, part: Slice) -> ActivationBytes:
        return ActivationBytes(kept_bytes=0.0, working_bytes=0.0)

    def model_flops(self, seq: int) -> float:
        return 0.0


def plain_model(
    blocks: int, *, count: int = 0, seq: int = 64, hidden: int = 8, **times: float
) -> Model:
    """Return a model of equal blocks with `count` parameters each."""
    layers = tuple(
        Plain(
            f"block.{i}",
            parameters=(Parameter(name=f"block.{i}.weight", shape=(count,)),) if count else (),
            **times,  # type: ignore[arg-type]
        )
        for i in range(blocks)
    )
    return Model(
        name="plain",
        layers=layers,
        seq=seq,
        hidden=hidden,
        heads=8,
        kv_heads=8,
        vocab=16,
        source="invented",
    )
