"""What known rows of a machine say about its others."""

from __future__ import annotations

import numpy as np

from validation.fitting.calibrate import conditioned
from validation.fitting.causes import GROUPS, START, Machine, estimate, group_of

KEYS = ["launch.time", "links.infiniband.efficiency"]


def machine(errors: np.ndarray, slopes: np.ndarray, tables: int = 2) -> Machine:
    """Return a machine with *tables* tables over the same sizes, one algorithm in each."""
    n = len(errors) // tables
    return Machine(
        errors=errors,
        slopes=slopes,
        octave=np.tile(np.linspace(3.0, 33.0, n), tables),
        way=np.repeat(np.arange(tables), n),
        table=np.repeat(np.arange(tables), n),
    )


def ramp(n: int) -> np.ndarray:
    """Return slopes of two tables: the launch rules small sizes, the link large ones."""
    share = np.linspace(1.0, 0.0, n)
    one = np.column_stack([share, share - 1.0])
    return np.vstack([one, one])


def test_another_constant_is_found_in_one_table_and_used_in_the_other() -> None:
    # Launch 20 % longer than fitted, link 10 % slower: errors are slopes times the differences.
    slopes = ramp(12)
    errors = slopes @ np.array([-0.18, -0.10])
    known, asked = np.arange(12), np.arange(12, 24)
    found = conditioned(machine(errors, slopes), known, asked, KEYS, START)
    assert np.abs(errors[asked] - found).max() < 0.35 * np.abs(errors[asked]).max()


def test_nothing_known_of_a_size_leaves_it_to_the_fit() -> None:
    # One row of 8 B tells nothing of 8 GiB: the correction is what the constants share, here none.
    slopes = np.zeros((24, 2))
    errors = np.full(24, 0.4)
    found = conditioned(machine(errors, slopes), np.array([0]), np.array([23]), KEYS, START)
    assert abs(float(found[0])) < 0.01


def test_an_outlier_moves_its_neighbours_less_than_a_true_row() -> None:
    slopes = np.zeros((24, 2))
    calm = np.full(24, 0.1)
    known, asked = np.arange(0, 12, 2), np.arange(1, 12, 2)
    plain = conditioned(machine(calm, slopes), known, asked, KEYS, START)
    wild = calm.copy()
    wild[4] = 2.0
    moved = conditioned(machine(wild, slopes), known, asked, KEYS, START)
    # Taken at its word the row would pull its two neighbours up by more than half of 1.9.
    assert np.abs(moved - plain).max() < 0.6


def test_widths_follow_how_far_machines_are_off() -> None:
    random = np.random.default_rng(3)
    slopes = ramp(12)

    def machines(width: float) -> list[Machine]:
        return [
            machine(slopes @ random.normal(0.0, [width, 0.02]) + random.normal(0, 0.02, 24), slopes)
            for _ in range(30)
        ]

    launch = group_of("launch.time")
    near = estimate(machines(0.05), KEYS).constants[launch]
    far = estimate(machines(0.6), KEYS).constants[launch]
    assert near < 0.5 * far


def test_each_constant_of_the_fit_has_a_group() -> None:
    from validation.fitting.problem import parameters

    named = {
        GROUPS[group_of(p.key)][0] for profile in ("nccl", "rccl") for p in parameters(profile)
    }
    assert named == {name for name, _ in GROUPS}
