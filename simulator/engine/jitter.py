"""Seeded randomness of messages and calls."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["JitterSpec", "MessageJitter"]

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class JitterSpec:
    """How much messages and calls vary.  All zero: none.

    Notes
    -----
    Not modelled: correlation in time or between neighbours (a slow switch, a busy host); use
    `LinkChange` and late programs for those.
    """

    transfer_sigma: float = 0.0
    """Each message's time on the wire is multiplied by exp(σ z), z standard normal: log-normal
    with median 1 and about σ relative spread."""
    latency_s: float = 0.0
    """Each message's latency grows by an exponential delay of this mean, in s."""
    skew_s: float = 0.0
    """Each rank begins each collective later by a delay uniform in 0 … skew_s, in s."""

    def __bool__(self) -> bool:
        return self.transfer_sigma > 0 or self.latency_s > 0 or self.skew_s > 0


class MessageJitter:
    """The draws of one collective call, in the fixed order (stage, step, edge).

    Parameters
    ----------
    spec
        How much to vary.
    seed
        Two objects of one seed give the same draws, however the call is simulated.
    """

    def __init__(self, spec: JitterSpec, seed: int) -> None:
        self._spec = spec
        self._seed = seed
        self._rng = np.random.default_rng(seed)

    def again(self) -> MessageJitter:
        """Return the same draws from their beginning."""
        return MessageJitter(self._spec, self._seed)

    def draw(self, n_messages: int) -> tuple[FloatArray | None, FloatArray | None]:
        """Return the factors on the transfer time and the added latencies (s) of one step."""
        factor = added = None
        if self._spec.transfer_sigma > 0:
            factor = np.exp(self._spec.transfer_sigma * self._rng.standard_normal(n_messages))
        if self._spec.latency_s > 0:
            added = self._spec.latency_s * self._rng.standard_exponential(n_messages)
        return factor, added
