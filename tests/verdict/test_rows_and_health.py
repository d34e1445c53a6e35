"""Predicted rows, their statistics, and the limits of the verdict."""

from __future__ import annotations

import re
from dataclasses import replace
from math import exp

import pytest
from logs import SIZES, context, faulty_text, healthy_text, table_of

from simulator.base.errors import CollsimError
from simulator.importers.nccl_tests import read
from simulator.verdict.bands import expected_s, half_width
from simulator.verdict.health import Finding, Health, fall_of, judge, limits, row_word, together
from simulator.verdict.inverse import solve
from simulator.verdict.predict import predict_rows, predict_sizes
from simulator.verdict.setup import SetUp, fitted
from simulator.verdict.statistics import errors_by_range, errors_of

WORDS = {"node": "dgx-a100-80gb", "nodes": "2"}
KIND = "network infiniband"
PLATEAU = limits()[f">=256M {KIND}"]


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
    ("slowness", "verdict", "word"),
    [
        (0.0, Health.HEALTHY, "ok"),
        (-2.0, Health.HEALTHY, "fast"),
        (PLATEAU.suspicious - 0.1, Health.HEALTHY, "slow"),
        (PLATEAU.suspicious + 0.1, Health.SUSPICIOUS, "suspicious"),
        (PLATEAU.sick + 0.1, Health.SICK, "sick"),
    ],
)
def test_large_sizes_are_judged_by_their_place_in_the_band(
    slowness: float, verdict: Health, word: str
) -> None:
    rows = [
        replace(row, measured_s=row.predicted.time_s * exp(slowness * half_width(row.predicted)))
        for row in rows_of(healthy_text(WORDS))
        if row.size_bytes >= 256 << 20
    ]
    assert rows[0].slowness == pytest.approx(slowness)
    # Without the rule on falls: the bands of the sizes differ, so the shift bends the curve.
    assert judge(rows, measured_s={})[0] is verdict
    assert {row_word(row) for row in rows} == {word}


def test_limits_are_narrower_in_time_where_bandwidth_rules() -> None:
    rows = {row.size_bytes: row for row in rows_of(healthy_text(WORDS))}
    small, large = rows[SIZES[0]], rows[SIZES[-1]]
    factors = [
        exp(limits()[f"{name} {KIND}"].suspicious * half_width(row.predicted))
        for name, row in (("<1M", small), (">=256M", large))
    ]
    assert 1.2 < factors[1] < factors[0]


def test_bandwidth_that_falls_with_size_is_suspicious_without_any_prediction() -> None:
    mib = 1 << 20
    times = {16 * mib: 1e-3, 64 * mib: 3e-3, 256 * mib: 9e-3, 1024 * mib: 1e-1}
    share, size, before = fall_of(times)
    # 1 GiB in 100 ms against 256 MiB in 9 ms: 4 × 9 / 100.
    assert share == pytest.approx(0.36)
    assert (size, before) == (1024 * mib, 256 * mib)
    rows = rows_of(healthy_text(WORDS))
    health, findings = judge(rows, measured_s=times)
    assert health is Health.SUSPICIOUS
    assert findings[-1].name == "falls"


def test_of_several_tables_the_mean_decides_and_one_bad_one_counts_less() -> None:
    def judged(slowness: float):
        rule = PLATEAU
        health = rule.of(slowness)
        found = Finding(
            name=">=256M",
            health=health,
            reached=1.0,
            slowness=slowness,
            n_rows=5,
            words="",
            rule=rule,
        )
        return health, [found]

    sick = PLATEAU.sick + 0.5
    suspicious = PLATEAU.suspicious + 0.1
    assert together([judged(sick)]) is Health.SICK
    assert together([judged(suspicious), judged(0.0), judged(0.0)]) is Health.HEALTHY
    assert together([judged(sick), judged(-3.0), judged(-3.0)]) is Health.SUSPICIOUS
    assert together([judged(suspicious)] * 3) is Health.SUSPICIOUS
    assert together([judged(sick)] * 2) is Health.SICK


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


def test_hosts_and_ranks_that_contradict_the_set_up_are_refused() -> None:
    table = table_of(healthy_text(WORDS))
    # 16 ranks on 2 hosts: also 4 nodes of 4 GPUs and 16 of one have 16 ranks.
    for nodes in ("1", "4", "16"):
        with pytest.raises(CollsimError, match=rf"nodes: .*16 ranks on 2 hosts.*nodes: {nodes}"):
            fitted(SetUp(words={"node": "dgx-a100-80gb", "nodes": nodes}), table)
    bare = replace(table, devices=(), n_nodes=None)
    with pytest.raises(CollsimError, match=r"16 ranks .* 8 GPUs"):
        fitted(SetUp(words={"node": "dgx-a100-80gb", "nodes": "1"}), bare)


def test_hosts_that_are_only_guessed_are_a_doubt() -> None:
    table = table_of(healthy_text(WORDS))
    cut = replace(table, devices=table.devices[8:])
    found = fitted(SetUp(words={"node": "dgx-a100-80gb", "nodes": "4"}), cut)
    assert "let guess 16 ranks on 2 hosts" in found.doubts[0]


def test_another_gpu_in_the_log_is_a_doubt() -> None:
    table = table_of(healthy_text(WORDS))
    told = replace(table, gpus=("NVIDIA A100-SXM4-40GB",))
    # Memory and form may differ: names in logs often do not tell them.
    assert fitted(SetUp(words=WORDS), told).doubts == ()
    (doubt,) = fitted(SetUp(words={**WORDS, "node": "hgx-h100"}), told).doubts
    assert "ANOTHER GPU" in doubt
    assert "h100" in doubt


def test_nodes_left_open_follow_the_log() -> None:
    table = table_of(healthy_text(WORDS))
    assert fitted(SetUp(words={"node": "dgx-a100-80gb"}), table).words["nodes"] == "2"
    bare = replace(table, devices=(), n_nodes=None)
    few = fitted(SetUp(words={"node": "dgx-a100-80gb", "nodes": "4"}), bare)
    assert few.words["gpus_per_node"] == "4"


def test_what_is_faster_than_the_set_up_allows_is_suspicious() -> None:
    rows = rows_of(healthy_text(WORDS, factor=0.5))
    health, findings = judge(rows)
    assert health is Health.SUSPICIOUS
    fast = [found for found in findings if "faster than this set-up allows" in found.words]
    assert [found.name for found in fast if found.fast] == ["16M-256M", ">=256M"]
    # Of several tables it counts as it is.
    well = judge(rows_of(healthy_text(WORDS)))
    assert together([(health, findings), well, well]) is Health.SUSPICIOUS


def test_two_nodes_at_seven_tenths_on_the_plateau_are_suspicious() -> None:
    # As of half of the NICs: below 16 MiB as predicted, from 1 GiB on 69 %.
    rows = [
        replace(row, measured_s=row.predicted.time_s / (0.69 if row.size_bytes >= 1 << 30 else 1))
        for row in rows_of(healthy_text(WORDS))
    ]
    health, findings = judge(rows)
    assert health is Health.SUSPICIOUS
    assert [f.name for f in findings if f.health.bad] == [">=256M"]


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
    found = solve(set_up, table, rows, "nvlink")
    assert found.most > 300e9
    assert not found.bounded_above
    # A machine as predicted needs no other links than the preset's, though faster ones fit too.
    assert found.value == found.preset == 300e9
    with pytest.raises(CollsimError, match="nvlnik"):
        solve(set_up, table, rows, "nvlnik")


def test_the_inverse_finds_ports_whose_speed_the_library_saw() -> None:
    # Ports at half speed: the library takes trees where it would have taken rings.
    set_up, _ = context(WORDS)
    base = table_of(healthy_text(WORDS))
    slow = set_up.with_words({"node.nic_rate": "100 Gbit/s"})
    healthy, seen = (predict_sizes(s, base, SIZES) for s in (set_up, slow))
    assert {row.algorithm for row in seen.values()} != {row.algorithm for row in healthy.values()}
    rows = [
        replace(row, measured_s=seen[row.size_bytes].time_s) for row in predict_rows(set_up, base)
    ]
    found = solve(set_up, base, rows, "nic")
    assert found.seen
    assert found.value == pytest.approx(12.5e9, rel=0.05)
    assert found.bounded


def test_the_inverse_keeps_the_preset_where_the_numbers_are_a_little_better() -> None:
    # 3 % faster than predicted: no NIC of half as much again explains that.
    set_up, _ = context(WORDS)
    table = table_of(healthy_text(WORDS, factor=0.97))
    found = solve(set_up, table, predict_rows(set_up, table), "nic")
    assert found.value == found.preset == 25e9
    assert found.least < 25e9
