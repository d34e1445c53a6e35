"""Predicted rows, their statistics, and the limits of the verdict."""

from __future__ import annotations

import re

import pytest
from logs import SIZES, context, faulty_text, healthy_text, table_of

from simulator.base.errors import CollsimError
from simulator.importers.nccl_tests import read
from simulator.verdict.bands import expected_s
from simulator.verdict.health import LIMITS, Health, judge
from simulator.verdict.inverse import solve
from simulator.verdict.predict import predict_rows
from simulator.verdict.setup import SetUp, fitted
from simulator.verdict.statistics import errors_by_range, errors_of

WORDS = {"node": "dgx-a100-80gb", "nodes": "2"}


def rows_of(text: str):
    set_up, _ = context(WORDS)
    return predict_rows(set_up, table_of(text))


def test_a_machine_half_as_fast_has_ratio_one_half_everywhere() -> None:
    rows = rows_of(healthy_text(WORDS, factor=2.0))
    assert [row.size_bytes for row in rows] == list(SIZES)
    for row in rows:
        # Printed times have four digits.
        assert row.ratio == pytest.approx(0.5, rel=2e-3)
        assert row.error == pytest.approx(0.5, rel=2e-3)
        assert row.percent_reached == pytest.approx(50, rel=2e-3)
    errors = errors_of(rows)
    assert errors.geometric_mean_ratio == pytest.approx(0.5, rel=2e-3)
    assert errors.median == pytest.approx(0.5, rel=2e-3)


def test_ranges_hold_every_row_once() -> None:
    errors = errors_by_range(rows_of(healthy_text(WORDS)))
    assert [entry.name for entry in errors] == ["all", "<1M", "1M-16M", ">=16M"]
    assert errors[0].n_rows == sum(entry.n_rows for entry in errors[1:]) == len(SIZES)
    # A machine that is as predicted lies in its own band.
    assert errors[0].within_band == 1.0


@pytest.mark.parametrize(
    ("share", "verdict"),
    [
        (1.0, Health.HEALTHY),
        (LIMITS[">=16M"][0] + 0.02, Health.HEALTHY),
        (LIMITS[">=16M"][0] - 0.02, Health.SUSPICIOUS),
        (LIMITS[">=16M"][1] - 0.02, Health.SICK),
    ],
)
def test_the_limits_of_large_sizes_decide(share: float, verdict: Health) -> None:
    assert judge(rows_of(healthy_text(WORDS, factor=1 / share)))[0] is verdict


def test_wrong_results_are_sick_whatever_the_speed() -> None:
    first = r"(?m)^( +\d+ +\d+ +float +sum +-1(?: +[\d.]+){3} +)0 "
    text = re.sub(first, r"\g<1>17 ", healthy_text(WORDS), count=1)
    rows = rows_of(text)
    assert any(row.wrong for row in rows)
    health, findings = judge(rows)
    assert health is Health.SICK
    assert "wrong results" in findings[-1].words


def test_in_place_is_taken_where_out_of_place_is_missing() -> None:
    # time 0 in the first half of the row: not usable.
    text = "1048576 262144 float sum -1 0.00 0.00 0.00 0 76.17 13.77 24.09 0\n"
    rows = predict_rows(SetUp(words={"node": "dgx-a100-80gb"}), read(text).tables[0])
    assert [row.in_place for row in rows] == [True]
    assert rows[0].measured_s == pytest.approx(76.17e-6)


def test_a_table_without_usable_times_is_refused_with_its_line() -> None:
    text = "1048576 262144 float sum -1 0.00 0.00 0.00 0 0.00 0.00 0.00 0\n"
    with pytest.raises(CollsimError, match="above zero"):
        predict_rows(SetUp(words={"node": "dgx-a100-80gb"}), read(text).tables[0])


def test_ranks_that_contradict_the_set_up_are_refused() -> None:
    table = table_of(healthy_text(WORDS))
    with pytest.raises(CollsimError, match=r"16 ranks .* 8 GPUs"):
        fitted(SetUp(words={"node": "dgx-a100-80gb", "nodes": "1"}), table)


def test_nodes_left_open_follow_the_log() -> None:
    table = table_of(healthy_text(WORDS))
    assert fitted(SetUp(words={"node": "dgx-a100-80gb"}), table).words["nodes"] == "2"
    few = fitted(SetUp(words={"node": "dgx-a100-80gb", "nodes": "4"}), table)
    assert few.words["gpus_per_node"] == "4"


def test_the_band_is_symmetric_on_the_logarithm() -> None:
    for row in rows_of(healthy_text(WORDS)):
        least_s, most_s = expected_s(row.predicted)
        assert least_s * most_s == pytest.approx(row.predicted.time_s**2)


def test_the_inverse_finds_the_nics_rate_again() -> None:
    set_up, _ = context(WORDS)
    text = faulty_text(WORDS, "nic_shared")  # every NIC at half of 25 GB/s
    assert text is not None
    table = table_of(text)
    rows = predict_rows(set_up, table)
    found = solve(set_up, table, rows, "nic")
    assert found.preset == 25e9
    assert found.value == pytest.approx(12.5e9, rel=0.10)
    assert found.least <= found.value <= found.most
    assert found.bounded


def test_the_inverse_says_when_a_class_does_not_bind() -> None:
    set_up, _ = context(WORDS)
    table = table_of(healthy_text(WORDS))
    rows = predict_rows(set_up, table)
    assert solve(set_up, table, rows, "nvlink").most > 300e9
    with pytest.raises(CollsimError, match="nvlnik"):
        solve(set_up, table, rows, "nvlnik")
