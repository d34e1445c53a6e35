"""How a simulated step answers to constants of the compute model, without simulating it again.

The busiest stage's layers are timed kind by kind.  When a constant changes, their times are added
up anew, the host's bound included; the step changes by the same factor, but for what of its
critical path is communication.  Good for fits by a few ten per cent; what is reported of shipped
constants is simulated.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from simulator.compute import ComputeModel
from simulator.compute.model import slowest_of
from simulator.models.kernels import Attention, Gemm, Sync, Work
from simulator.training.layer_tasks import slice_of
from simulator.training.stages import split_layers
from validation.training.predict import Predicted
from validation.training.record import Record

__all__ = ["PARAMETERS", "Measured", "Parameter", "measured_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """A constant that is fitted, as a factor on the shipped one."""

    name: str
    low: float
    high: float
    given: float
    """Where a fit starts, and is drawn to: the published value, or one typical of frameworks."""


PARAMETERS = (
    Parameter(name="run_slowdown", low=0.85, high=1.1, given=0.95),
    Parameter(name="gemm ampere", low=0.9, high=1.2, given=1.0),
    Parameter(name="gemm hopper", low=0.9, high=1.2, given=1.0),
    Parameter(name="gemm hopper fp8", low=0.8, high=1.3, given=1.0),
    Parameter(name="gemm blackwell", low=0.8, high=1.3, given=1.0),
    Parameter(name="memory", low=0.8, high=1.4, given=1.0),
    Parameter(name="host deepspeed", low=0.2, high=1.5, given=0.5),
    Parameter(name="host torch", low=0.3, high=3.0, given=1.5),
    Parameter(name="step torch", low=0.0, high=3.0, given=0.5),
    Parameter(name="gpu_spread", low=0.2, high=1.5, given=1.0),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layer:
    times: int
    gemm_s: float
    attention_s: float
    memory_s: float
    launches: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A record, its simulated step, and what it is made of."""

    record: Record
    predicted_s: float
    exposed_s: float
    """Communication on the critical path."""
    layers: tuple[_Layer, ...]
    generation: str
    dtype: str
    host_launch_s: float
    host_step_s: float
    spread: float
    framework: str
    blocking: bool
    verdict: str

    @property
    def ratio(self) -> float:
        """Predicted over measured."""
        return self.predicted_s / self.record.measured_s

    def answer(self, factors: Mapping[str, float]) -> float:
        """Return the step time under other constants, by factors on the shipped ones."""
        before = self._compute(dict.fromkeys((p.name for p in PARAMETERS), 1.0))
        after = self._compute(factors)
        step_s = self.host_step_s
        changed_s = step_s * (factors["step torch"] - 1.0) if self.framework == "torch" else 0.0
        exposed_s = min(self.exposed_s, 0.9 * self.predicted_s)
        compute_s = max(self.predicted_s - exposed_s - step_s, 0.05 * self.predicted_s)
        return exposed_s + step_s + changed_s + compute_s * after / before

    def _compute(self, factors: Mapping[str, float]) -> float:
        kind = f"gemm {self.generation}"
        if self.generation == "hopper" and self.dtype == "f8e4m3":
            kind += " fp8"
        gemm = factors.get(kind, 1.0)
        memory = factors["memory"]
        host_s = self.host_launch_s * factors.get(f"host {self.framework}", 1.0)
        deviations = slowest_of(self.record.strategy.world_size)
        pace = factors["run_slowdown"] * (1 + self.spread * deviations * factors["gpu_spread"])
        pace /= 1 + self.spread * deviations
        total_s = 0.0
        for layer in self.layers:
            busy_s = pace * (gemm * layer.gemm_s + layer.attention_s + memory * layer.memory_s)
            enqueued_s = layer.launches * host_s
            total_s += layer.times * (
                busy_s + enqueued_s if self.blocking else max(busy_s, enqueued_s)
            )
        return total_s


def _layers(record: Record, compute: ComputeModel) -> tuple[_Layer, ...]:
    strategy = record.strategy
    seq = strategy.seq or record.model.seq
    whole, plain = slice_of(strategy, seq), slice_of(strategy, seq, recompute=False)
    chunks = split_layers(
        record.model,
        strategy.pipeline,
        strategy.virtual,
        uneven=strategy.framework != "megatron",
    )
    found = []
    for stage in chunks:
        left = strategy.recompute_layers
        counts: dict[Work, int] = {}
        for layer in (one for chunk in stage for one in chunk):
            part = whole
            if left is not None and layer.kind == "block":
                part = whole if left > 0 else plain
                left -= 1
            for work in (layer.forward(part), layer.backward(part)):
                counts[work] = counts.get(work, 0) + 1
        found.append(
            tuple(
                _timed(work, n, compute, strategy.precision.compute) for work, n in counts.items()
            )
        )
    return max(found, key=lambda layers: sum(_busy(layer) for layer in layers))


def _busy(layer: _Layer) -> float:
    return layer.times * (layer.gemm_s + layer.attention_s + layer.memory_s)


def _timed(work: Work, times: int, compute: ComputeModel, dtype: str) -> _Layer:
    parts = {"gemm": 0.0, "attention": 0.0, "memory": 0.0}
    launches = 0
    for operation in work:
        if isinstance(operation, Sync):
            continue
        kind = "memory"
        count = 1
        if isinstance(operation, Gemm):
            kind = "gemm"
        elif isinstance(operation, Attention):
            kind = "attention"
        else:
            count = operation.launches
        launches += count
        parts[kind] += compute.kernel_s(operation, dtype)
    return _Layer(
        times=times,
        gemm_s=parts["gemm"],
        attention_s=parts["attention"],
        memory_s=parts["memory"],
        launches=launches,
    )


def measured_of(record: Record, step: Predicted, compute: ComputeModel) -> Measured:
    """Return a record with its simulated step."""
    known = compute.constants
    return Measured(
        record=record,
        predicted_s=step.step_s,
        exposed_s=step.exposed_s,
        layers=_layers(record, compute),
        generation=compute.gpu.generation,
        dtype=record.strategy.precision.compute,
        host_launch_s=known.host_launch_s[compute.framework],
        host_step_s=known.host_step_s[compute.framework],
        spread=known.gpu_spread,
        framework=compute.framework,
        blocking=compute.blocking,
        verdict=step.verdict,
    )
