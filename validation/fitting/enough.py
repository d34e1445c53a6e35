"""What data must have before constants are fitted to them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from simulator.base.errors import Problem

__all__ = ["LEAST_ROWS", "LEAST_SPAN", "too_little"]

LEAST_ROWS = 12
"""Fewer rows than this say too little for a fit."""
LEAST_SPAN = 64.0
"""Largest over smallest size below which a sweep says nothing of both latency and bandwidth."""


def too_little(sizes_bytes: NDArray[np.int64]) -> list[Problem]:
    """Return why rows of these sizes are too few for a fit; empty: they are enough."""
    if len(sizes_bytes) < LEAST_ROWS:
        allowed = f"at least {LEAST_ROWS} rows for a fit"
        return [Problem(message=f"{len(sizes_bytes)} rows", allowed=allowed)]
    least, most = int(sizes_bytes.min()), int(sizes_bytes.max())
    if most < LEAST_SPAN * max(least, 1):
        return [
            Problem(
                message=f"sizes from {least} to {most} B",
                allowed=f"a sweep over a factor of {LEAST_SPAN:g}, that shows latency and rate",
            )
        ]
    return []
