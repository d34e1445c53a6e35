"""Why compressed gradients need error feedback: a small convex problem, solved by several ranks.

The hooks that the plans price are carried out here in numpy.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

Array = NDArray[np.float64]
Compress = Callable[[list[Array]], tuple[Array, list[Array]]]

RANKS = 4
ROWS, COLUMNS = 12, 10


def problem(seed: int) -> tuple[list[Array], list[Array], Array]:
    """Return each rank's part of a least-squares problem, and the solution of the whole.

    Rank r minimises |A_r X − B_r|²; their solutions differ, so that gradients of single ranks do
    not vanish at the common optimum.
    """
    rng = np.random.default_rng(seed)
    left = [rng.normal(size=(40, ROWS)) for _ in range(RANKS)]
    right = [rng.normal(size=(40, COLUMNS)) * (1 + r) for r in range(RANKS)]
    gram = sum(a.T @ a for a in left)
    mixed = sum(a.T @ b for a, b in zip(left, right, strict=True))
    return left, right, np.linalg.solve(gram, mixed)


def top_k(share: float) -> Compress:
    """Keep the largest values of each rank; sum them (all_gather of values and indices)."""

    def compress(inputs: list[Array]) -> tuple[Array, list[Array]]:
        sent = []
        for values in inputs:
            kept = max(1, round(values.size * share))
            least = np.sort(np.abs(values), axis=None)[-kept]
            sent.append(np.where(np.abs(values) >= least, values, 0.0))
        return sum(sent) / RANKS, [v - s for v, s in zip(inputs, sent, strict=True)]

    return compress


def power_sgd(rank: int, seed: int = 0) -> Compress:
    """One power iteration towards the mean's largest singular vectors, warm-started.

    P = mean of M Q (all_reduce), orthogonalised; Q = mean of Mᵀ P (all_reduce); M ≈ P Qᵀ (Vogels
    et al. 2019, algorithm 1).
    """
    q = np.random.default_rng(seed).normal(size=(COLUMNS, rank))

    def compress(inputs: list[Array]) -> tuple[Array, list[Array]]:
        nonlocal q
        p = np.linalg.qr(sum(m @ q for m in inputs) / RANKS)[0]
        q = sum(m.T @ p for m in inputs) / RANKS
        mean = p @ q.T
        return mean, [m - mean for m in inputs]

    return compress


def distance(
    compress: Compress | None, *, feedback: bool, steps: int = 3000, rate: float = 0.02
) -> float:
    """Return how far from the solution gradient descent ends, relative to where it began."""
    left, right, solution = problem(1)
    x = np.zeros((ROWS, COLUMNS))
    errors = [np.zeros_like(x) for _ in range(RANKS)]
    for _ in range(steps):
        gradients = [
            (a.T @ (a @ x - b)) / 40 + e for a, b, e in zip(left, right, errors, strict=True)
        ]
        if compress is None:
            update = sum(gradients) / RANKS
        else:
            update, left_out = compress(gradients)
            if feedback:
                errors = left_out
        x -= rate * update
    return float(np.linalg.norm(x - solution) / np.linalg.norm(solution))


def test_plain_descent_reaches_the_solution() -> None:
    assert distance(None, feedback=False) < 1e-9


def test_top_k_without_error_feedback_stalls() -> None:
    # At the optimum the mean gradient is 0 but the ranks' own are not, and what each keeps of its
    # own does not cancel: the fixed point is elsewhere, whatever the step.  With the errors fed
    # back, what was left out arrives later, and the distance falls with the step (Stich et al.
    # 2018, theorem 2.4).
    without = distance(top_k(0.05), feedback=False)
    assert without > 0.5
    slower = distance(top_k(0.05), feedback=False, steps=12000, rate=0.005)
    assert slower == pytest.approx(without, rel=0.1)
    with_feedback = distance(top_k(0.05), feedback=True)
    assert with_feedback < without / 5
    assert distance(top_k(0.05), feedback=True, steps=12000, rate=0.005) < with_feedback / 2


def test_power_sgd_converges_as_plain_descent_with_error_feedback() -> None:
    # Directions that a rank of 1 misses wait until they are the largest; fed back, they add up
    # and arrive as a whole.
    steps = 500
    exact = distance(None, feedback=False, steps=steps)
    assert distance(power_sgd(1), feedback=True, steps=steps) < 1.1 * exact
    assert distance(power_sgd(1), feedback=False, steps=steps) > 50 * exact


def test_error_feedback_keeps_every_gradient() -> None:
    # Sum of what was sent and of what is still kept equals the sum of all gradients.
    rng = np.random.default_rng(3)
    for compress in (top_k(0.1),):
        total = np.zeros((ROWS, COLUMNS))
        sent = np.zeros_like(total)
        errors = [np.zeros_like(total) for _ in range(RANKS)]
        for _ in range(20):
            gradients = [rng.normal(size=total.shape) for _ in range(RANKS)]
            total += sum(gradients) / RANKS
            update, errors = compress([g + e for g, e in zip(gradients, errors, strict=True)])
            sent += update
        np.testing.assert_allclose(sent + sum(errors) / RANKS, total, atol=1e-12)
