"""What a simulated training step tells, in plain frozen records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["STEP_COLUMNS", "CallTimes", "MemoryRow", "RankAccount", "TrainingStep", "step_record"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankAccount:
    """The step of ranks that are alike, seconds.  All parts but `traffic_s` sum to the step."""

    ranks: tuple[int, ...]
    """All of them, ascending."""
    stage: int
    """Pipeline stage."""
    busy_s: Mapping[str, float]
    """Computing, by purpose: ``forward``, ``backward``, ``recompute``, ``optimizer`` …"""
    exposed_s: Mapping[str, float]
    """Standing while data move, by traffic: ``data``, ``tensor``, ``pipeline`` …"""
    waiting_s: Mapping[str, float]
    """Standing because a peer is not there yet, by traffic; ``pipeline`` is the bubble."""
    idle_s: float
    """Before its first and after its last work, and waits for copies."""
    traffic_s: Mapping[str, float]
    """Time with data moving, by traffic, hidden behind computes or not."""

    @property
    def compute_s(self) -> float:
        """Computing in all."""
        return sum(self.busy_s.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class CallTimes:
    """One kind of call of the step."""

    axis: str
    traffic: str
    collective: str
    size_bytes: int
    """nccl-tests' S."""
    group_size: int
    group_nodes: int
    n_calls: int
    """Of one rank that makes most of them, per step."""
    time_s: float
    """Of one call while nobody else needs its links."""
    algorithm: str
    protocol: str
    n_channels: int
    library_algorithm: str = ""
    """What the library calls the algorithm; empty where it has no name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryRow:
    """Memory of a rank of one pipeline stage, bytes."""

    stage: int
    parts: Mapping[str, float]
    """``parameters``, ``gradients``, ``optimizer``, ``activations``, ``buffers`` …"""
    capacity_bytes: float

    @property
    def total_bytes(self) -> float:
        """All parts."""
        return sum(self.parts.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingStep:
    """One training step of one variant."""

    model: str
    strategy: str
    """In one line, as people write it: ``TP8 PP4 DP2 ZeRO-1, 1F1B, micro-batch 1 x 16``."""
    world_size: int
    n_nodes: int
    step_s: float
    samples: int
    """Sequences or images of a step, of all ranks."""
    tokens: int
    """Tokens of a step; of images their number."""
    unit: str
    """``tokens`` or ``images``."""
    model_flops: float
    """Forward and backward of a step, all ranks, without recomputation."""
    hardware_flops: float
    """With recomputation."""
    peak_flops: float
    """Data-sheet peak of a GPU in the type of the products."""
    peak_type: str
    accounts: tuple[RankAccount, ...]
    critical_s: Mapping[str, float]
    """Time on the critical path by purpose or traffic; ``start`` where it begins late."""
    calls: tuple[CallTimes, ...]
    memory: tuple[MemoryRow, ...] = ()
    verdict: str = ""
    """Compute- or communication-bound, with the evidence."""
    straggler: str = ""
    """Who makes others wait; empty: nobody."""
    remedies: tuple[str, ...] = ()
    """What would make it fit, cheapest first; empty where it fits."""
    folded: bool = True
    variant: str = ""
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def tokens_per_s(self) -> float:
        """Of all ranks."""
        return self.tokens / self.step_s

    @property
    def tokens_per_s_per_gpu(self) -> float:
        """Of one GPU on the average."""
        return self.tokens_per_s / self.world_size

    @property
    def flops_per_gpu(self) -> float:
        """Model FLOP/s of one GPU."""
        return self.model_flops / self.world_size / self.step_s

    @property
    def mfu(self) -> float:
        """Model FLOPs utilisation, 0 … 1."""
        return self.flops_per_gpu / self.peak_flops

    @property
    def hfu(self) -> float:
        """Hardware FLOPs utilisation, recomputation counted, 0 … 1."""
        return self.hardware_flops / self.world_size / self.step_s / self.peak_flops

    @property
    def exposed_s(self) -> dict[str, float]:
        """Exposed communication by traffic, mean over all ranks."""
        return self._mean("exposed_s")

    @property
    def waiting_s(self) -> dict[str, float]:
        """Waiting by traffic, mean over all ranks."""
        return self._mean("waiting_s")

    @property
    def busy_s(self) -> dict[str, float]:
        """Computing by purpose, mean over all ranks."""
        return self._mean("busy_s")

    @property
    def traffic_s(self) -> dict[str, float]:
        """Time with data moving by traffic, mean over all ranks."""
        return self._mean("traffic_s")

    @property
    def idle_s(self) -> float:
        """Idle, mean over all ranks."""
        return sum(a.idle_s * len(a.ranks) for a in self.accounts) / self.world_size

    @property
    def exposed_share(self) -> float:
        """Exposed communication over the step, 0 … 1."""
        return sum(self.exposed_s.values()) / self.step_s

    @property
    def bubble_share(self) -> float:
        """Waiting for other pipeline stages over the step, idle ends included, 0 … 1."""
        idle = self.idle_s if any(a.stage for a in self.accounts) else 0.0
        return (self.waiting_s.get("pipeline", 0.0) + idle) / self.step_s

    @property
    def fits(self) -> bool | None:
        """Whether every stage fits into its GPU's memory; None: not asked."""
        if not self.memory:
            return None
        return all(row.total_bytes <= row.capacity_bytes for row in self.memory)

    def _mean(self, name: str) -> dict[str, float]:
        total: dict[str, float] = {}
        for account in self.accounts:
            for key, value in getattr(account, name).items():
                total[key] = total.get(key, 0.0) + value * len(account.ranks)
        return {key: value / self.world_size for key, value in total.items()}


STEP_COLUMNS = (
    "variant",
    "model",
    "strategy",
    "world_size",
    "n_nodes",
    "step_ms",
    "tokens_per_s",
    "tokens_per_s_per_gpu",
    "tflops_per_gpu",
    "mfu_percent",
    "hfu_percent",
    "compute_ms",
    "exposed_ms",
    "exposed_percent",
    "bubble_percent",
    "memory_GiB",
    "capacity_GiB",
    "fits",
    "verdict",
)
"""Columns of `step_record`; new ones are only ever appended."""


def step_record(step: TrainingStep) -> dict[str, Any]:
    """Return a step as a mapping of `STEP_COLUMNS`."""
    most = max((row.total_bytes for row in step.memory), default=None)
    least = min((row.capacity_bytes for row in step.memory), default=None)
    return {
        "variant": step.variant,
        "model": step.model,
        "strategy": step.strategy,
        "world_size": step.world_size,
        "n_nodes": step.n_nodes,
        "step_ms": step.step_s * 1e3,
        "tokens_per_s": step.tokens_per_s,
        "tokens_per_s_per_gpu": step.tokens_per_s_per_gpu,
        "tflops_per_gpu": step.flops_per_gpu / 1e12,
        "mfu_percent": 100 * step.mfu,
        "hfu_percent": 100 * step.hfu,
        "compute_ms": sum(step.busy_s.values()) * 1e3,
        "exposed_ms": sum(step.exposed_s.values()) * 1e3,
        "exposed_percent": 100 * step.exposed_share,
        "bubble_percent": 100 * step.bubble_share,
        "memory_GiB": None if most is None else most / 2**30,
        "capacity_GiB": None if least is None else least / 2**30,
        "fits": step.fits,
        "verdict": step.verdict,
    }
