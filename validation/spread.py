"""How far healthy machines of each kind are from their predictions: a mixed model of the published.

The slowness of a table is a common mean, what its place (one node or a network), its way and its
collectives have in common, its machine's own, and the rest.  The shares of the variance are fitted
by maximum likelihood under Student's t [1]_; the limit of a kind is a quantile of what the model
predicts for a new machine of it, so a kind with few machines leans on the others and has a wide
limit.

.. [1] J. Pinheiro, C. Liu and Y. N. Wu, Efficient algorithms for robust estimation in linear mixed
   models using the multivariate t distribution, J. Comput. Graph. Stat. 10 (2001).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from simulator.verdict.kinds import OF_EXCHANGES

__all__ = ["Entry", "Spread", "fitted_spread"]

FloatArray = NDArray[np.float64]

FREEDOM = 4.0
"""Degrees of freedom of Student's t."""
MEAN_SPREAD = 1.0
"""Standard deviation of the common mean before the data, in half widths of the 80 % band."""
MOST_APART = 3.0
"""A table farther from the median than so many half widths counts as if it were there."""
STEPS = (0.0, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
"""Variances that are tried, in squares of half widths."""
SWEEPS = 4


@dataclass(frozen=True, slots=True)
class Entry:
    """A healthy published table."""

    kind: str
    """See `simulator.verdict.kinds`."""
    machine: str
    slowness: float

    @property
    def place(self) -> str:
        """``node`` or ``network``."""
        return self.kind.partition(" ")[0]

    @property
    def exchanged(self) -> bool:
        """Whether it is of exchanges."""
        return OF_EXCHANGES in self.kind


_SHARED: tuple[Callable[[Entry], object], ...] = (
    lambda entry: entry.place,
    lambda entry: entry.kind.removesuffix(OF_EXCHANGES),
    lambda entry: entry.kind,
    lambda entry: entry.machine,
    lambda entry: (entry.machine, entry.exchanged),
)
"""What tables have in common, one part of the variance each."""


@dataclass(frozen=True, slots=True)
class Spread:
    """The fitted model of one range of sizes."""

    entries: tuple[Entry, ...]
    variances: FloatArray
    """Of each of `_SHARED`, then of the rest."""

    def without(self, machine: str) -> Spread:
        """Return the model that has not seen a machine."""
        kept = tuple(entry for entry in self.entries if entry.machine != machine)
        return Spread(kept, self.variances)

    def limits(self, kinds: Sequence[str], shares: Sequence[float]) -> FloatArray:
        """Return the slowness that shares of the healthy machines of each kind pass.

        Shape (kinds, shares).
        """
        new = [Entry(kind, f"a new machine {place}", 0.0) for place, kind in enumerate(kinds)]
        both = _covariance((*self.entries, *new), self.variances)
        both[np.diag_indices(len(both))] += self.variances[-1]
        n = len(self.entries)
        weights = np.linalg.solve(both[:n, :n], both[:n, n:])
        middle = _bounded(self.entries) @ weights
        spread = np.sqrt(np.diag(both)[n:] - np.sum(weights * both[:n, n:], axis=0))
        quantiles = stats.t.ppf(1.0 - np.asarray(shares), FREEDOM)
        return np.asarray(middle[:, None] + spread[:, None] * quantiles[None, :])

    def machines(self, kind: str) -> int:
        """Return the number of machines of a kind."""
        return len({entry.machine for entry in self.entries if entry.kind == kind})


def fitted_spread(entries: Sequence[Entry]) -> Spread:
    """Return the model with the likeliest variances, by coordinate search over `STEPS`."""
    found = tuple(entries)
    values = _bounded(found)
    alone = [_covariance(found, row) - MEAN_SPREAD**2 for row in np.eye(len(_SHARED) + 1)]
    parts = [*alone[:-1], np.eye(len(found))]

    def likelihood(variances: FloatArray) -> float:
        total = MEAN_SPREAD**2 + sum(v * part for v, part in zip(variances, parts, strict=True))
        root = np.linalg.cholesky(total)
        white = np.linalg.solve(root, values)
        far = math.log1p(float(white @ white) / FREEDOM)
        return -float(np.log(np.diag(root)).sum()) - 0.5 * (FREEDOM + len(values)) * far

    best = np.full(len(parts), 0.1)
    reached = likelihood(best)
    for _ in range(SWEEPS):
        before = reached
        for place in range(len(parts)):
            for step in STEPS[place == len(parts) - 1 :]:
                tried = best.copy()
                tried[place] = step
                value = likelihood(tried)
                if value > reached + 1e-9:
                    best, reached = tried, value
        if reached == before:
            break
    return Spread(found, best)


def _bounded(entries: Sequence[Entry]) -> FloatArray:
    values = np.array([entry.slowness for entry in entries])
    middle = float(np.median(values)) if len(values) else 0.0
    return np.asarray(np.clip(values, middle - MOST_APART, middle + MOST_APART))


def _covariance(entries: Sequence[Entry], variances: FloatArray) -> FloatArray:
    """Return the covariance of tables by what they share, without each one's rest."""
    found = np.full((len(entries), len(entries)), MEAN_SPREAD**2)
    for variance, common in zip(variances, _SHARED, strict=False):
        if variance > 0:
            known: dict[object, int] = {}
            codes = np.array([known.setdefault(common(entry), len(known)) for entry in entries])
            found += variance * (codes[:, None] == codes[None, :])
    return found
