"""What the compute model needs to know of a GPU, in plain numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from simulator.base.errors import ScenarioError, unknown_name

__all__ = ["DTYPES", "Gpu"]

DTYPES = {
    "float32": ("fp32", 4.0),
    "tf32": ("tf32", 4.0),
    "half": ("fp16", 2.0),
    "bfloat16": ("bf16", 2.0),
    "f8e4m3": ("fp8", 1.0),
    "f8e5m2": ("fp8", 1.0),
    "int8": ("int8", 1.0),
    "f4e2m1": ("fp4", 0.5),
}
"""Element types by name: key of a data sheet's peaks, bytes of an element."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """A GPU as the roofline sees it."""

    name: str
    generation: str
    peak_flops: Mapping[str, float]
    """Dense data-sheet peaks, FLOP/s, by ``fp32 tf32 fp16 bf16 fp8 fp4 int8``."""
    memory_Bps: float
    """Data-sheet HBM bandwidth."""
    compute_units: int = 0
    """Streaming multiprocessors, or AMD's compute units; 0: unknown, waves are not counted."""
    l2_bytes: int = 0
    """Last cache before HBM; 0: unknown, every operand is read once."""

    def peak(self, dtype: str) -> float:
        """Return the dense peak of a type in FLOP/s.

        Raises
        ------
        ScenarioError
            The type is unknown, or the GPU has no peak for it.
        """
        if dtype not in DTYPES:
            raise ScenarioError(unknown_name("element type", dtype, DTYPES))
        key = DTYPES[dtype][0]
        if key not in self.peak_flops:
            has = [name for name, (peak, _) in DTYPES.items() if peak in self.peak_flops]
            raise ScenarioError(unknown_name(f"element type of {self.name}", dtype, has))
        return self.peak_flops[key]

    def wider(self, dtype: str) -> str:
        """Return the type itself, or the two-byte type used where it is too narrow."""
        if dtype not in DTYPES or DTYPES[dtype][1] >= 2.0:
            return dtype
        return "bfloat16" if "bf16" in self.peak_flops else "half"
