"""How a simulated step answers to constants of the compute model, without simulating it again.

The busiest stage's layers are timed kind by kind.  When a constant changes, their times are added
up anew, the host's bound included; the step changes by the same factor, but for what of its
critical path is communication.  Good for fits by a few ten per cent; what is reported of shipped
constants is simulated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulator.compute import ComputeModel
from simulator.compute.model import slowest_of
from simulator.models.kernels import Attention, Gemm, Sync, Work
from simulator.training.layer_tasks import slice_of
from simulator.training.stages import split_layers
from validation.training.predict import Predicted
from validation.training.record import Record

__all__ = ["PARAMETERS", "Measured", "Parameter", "Responses", "measured_of"]

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """A constant that is fitted, as a factor on the shipped one."""

    name: str
    low: float
    high: float
    given: float
    """Where a fit starts, and is drawn to: the published value, or one typical of frameworks.

    A Megatron layer calls about 75 operators forward, as many again recomputed, and 100 backward;
    at 10 to 12 us each that is 3 ms for 62 of this model's kernels, 48 us a kernel.
    """


PARAMETERS = (
    Parameter(name="run_slowdown", low=0.85, high=1.1, given=0.95),
    Parameter(name="gemm ampere", low=0.9, high=1.2, given=1.0),
    Parameter(name="gemm hopper", low=0.9, high=1.2, given=1.0),
    Parameter(name="gemm hopper fp8", low=0.8, high=1.3, given=1.0),
    Parameter(name="gemm blackwell", low=0.8, high=1.3, given=1.0),
    Parameter(name="memory", low=0.8, high=1.4, given=1.0),
    Parameter(name="host deepspeed", low=0.2, high=1.5, given=0.9),
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


class Responses:
    """Step times of many records as a function of factors on the shipped constants."""

    def __init__(self, rows: Sequence[Measured]) -> None:
        self.rows = rows
        layers = [(i, layer) for i, row in enumerate(rows) for layer in row.layers]
        self._of = np.array([i for i, _ in layers])
        self._times = np.array([layer.times for _, layer in layers], dtype=float)
        self._gemm_s = np.array([layer.gemm_s for _, layer in layers])
        self._attention_s = np.array([layer.attention_s for _, layer in layers])
        self._memory_s = np.array([layer.memory_s for _, layer in layers])
        self._launches = np.array([layer.launches for _, layer in layers], dtype=float)
        self._blocking = np.array([rows[i].blocking for i in self._of], dtype=bool)
        self._kinds = [_kind(row) for row in rows]
        # What the host waits for at each blocking launch is not fitted with the usual ones.
        self._hosts = ["" if row.blocking else f"host {row.framework}" for row in rows]
        self._host_s = np.array([row.host_launch_s for row in rows])
        self._spread = np.array(
            [row.spread * slowest_of(row.record.strategy.world_size) for row in rows]
        )
        self._torch_step_s = np.array(
            [row.host_step_s if row.framework == "torch" else 0.0 for row in rows]
        )
        predicted_s = np.array([row.predicted_s for row in rows])
        step_s = np.array([row.host_step_s for row in rows])
        exposed_s = np.minimum([row.exposed_s for row in rows], 0.9 * predicted_s)
        self._compute_s = np.maximum(predicted_s - exposed_s - step_s, 0.05 * predicted_s)
        self._fixed_s = predicted_s - self._compute_s
        self._before = self._sums(dict.fromkeys((p.name for p in PARAMETERS), 1.0))

    def times_s(self, factors: Mapping[str, float]) -> FloatArray:
        """Return the step time of each record under other constants."""
        changed_s = self._torch_step_s * (factors["step torch"] - 1.0)
        return self._fixed_s + changed_s + self._compute_s * self._sums(factors) / self._before

    def _sums(self, factors: Mapping[str, float]) -> FloatArray:
        """Return the time of the busiest stage's layers, one micro-batch."""
        gemm = np.array([factors.get(kind, 1.0) for kind in self._kinds])[self._of]
        host_s = self._host_s * np.array([factors.get(name, 1.0) for name in self._hosts])
        pace = (1 + self._spread * factors["gpu_spread"]) / (1 + self._spread)
        busy_s = gemm * self._gemm_s + self._attention_s + factors["memory"] * self._memory_s
        busy_s = busy_s * factors["run_slowdown"] * pace[self._of]
        enqueued_s = self._launches * host_s[self._of]
        whole_s = np.where(self._blocking, busy_s + enqueued_s, np.maximum(busy_s, enqueued_s))
        return np.bincount(self._of, weights=self._times * whole_s, minlength=len(self.rows))


def _kind(row: Measured) -> str:
    narrow = row.generation == "hopper" and row.dtype == "f8e4m3"
    return f"gemm {row.generation}" + (" fp8" if narrow else "")


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
