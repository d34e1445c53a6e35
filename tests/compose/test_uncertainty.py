"""Every prediction of a fitted profile tells how far it may be off."""

from __future__ import annotations

import math

import pytest

from simulator.compose.run import run_resolved
from simulator.costs.profile import load_profile
from simulator.results.model import Row
from simulator.scenario.resolve import from_words


def _row(profile: str, size: int, gpus: int = 8) -> Row:
    words = {
        "node": "dgx-h100",
        "gpus_per_node": str(gpus),
        "collective.op": "all_reduce",
        "collective.size": str(size),
        "costs": profile,
    }
    return run_resolved(from_words(words).variants[0]).rows[0]


@pytest.mark.parametrize("size", [8, 2**20, 2**30])
def test_a_row_carries_the_band_of_its_profile(size: int) -> None:
    row = _row("nccl", size)
    share = load_profile("nccl").uncertainty(size, 1)
    assert share is not None
    assert row.uncertainty_s is not None
    assert math.isclose(row.uncertainty_s, share * row.time_s)


def test_a_profile_that_is_not_fitted_promises_nothing() -> None:
    assert _row("ideal", 2**20).uncertainty_s is None


def test_one_rank_alone_is_no_part_of_the_fit() -> None:
    assert _row("nccl", 2**20, gpus=1).uncertainty_s is None
