"""Measured steps are predicted; what is fitted is found again; bounds can be missed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from validation.training.accuracy import compare_with_bounds, sample
from validation.training.cross import errors_of, fit, leave_one_out, ratios
from validation.training.predict import cluster_of, compute_for, predict
from validation.training.records import all_records
from validation.training.response import PARAMETERS, Responses, measured_of

SHIPPED = dict.fromkeys((p.name for p in PARAMETERS), 1.0)


def record_of(source, row):
    return next(r for r in all_records() if (r.source, r.row) == (source, row))


def measured(source, row):
    record = record_of(source, row)
    compute = compute_for(record, cluster_of(record.node, record.nodes, record.gpus_per_node), None)
    return measured_of(record, predict(record), compute)


@pytest.fixture(scope="module")
def rows():
    return [
        measured("mosaic", 38),  # 1.3B, 8 H100, FSDP
        measured("mosaic", 122),  # 1.3B, 8 A100, FSDP
        measured("vtrain-single", 377),  # tp1 dp4 pp2
        measured("internevo", 12),  # 7B, 8 A100, ZeRO-1
        measured("megatron-2020", 12),  # 1B, one A100
    ]


def test_steps_of_five_sources_are_within_a_quarter(rows):
    for row in rows:
        assert row.ratio == pytest.approx(1.0, abs=0.25), row.record.name


def test_the_response_is_that_of_the_simulation(rows):
    shipped = ratios(rows, SHIPPED)
    slower = ratios(rows, {**SHIPPED, "run_slowdown": 1.1})
    for row, one, other in zip(rows, shipped, slower, strict=True):
        assert one == pytest.approx(row.ratio)
        assert 1.0 <= other / one <= 1.1


def test_a_fit_finds_a_factor_again(rows):
    # Were all machines 8 % slower in their kernels, the fit would say so.
    times_s = Responses(rows).times_s({**SHIPPED, "run_slowdown": 1.08})
    slower = [
        replace(row, record=replace(row.record, measured_s=float(time_s)))
        for row, time_s in zip(rows, times_s, strict=True)
    ]
    assert errors_of(ratios(slower, fit(slower))).median < 0.02


def test_a_source_left_out_is_predicted_by_the_others(rows):
    found = leave_one_out(rows)
    assert set(found) == {row.record.source for row in rows}
    assert all(errors.median < 0.3 for errors in found.values())


def test_a_bound_that_is_missed_is_told():
    errors = {"all": errors_of([0.8, 1.0, 1.3])}
    assert not compare_with_bounds(errors, {"all": {"median": 0.21, "p90": 0.3}})
    worse = compare_with_bounds(errors, {"all": {"median": 0.1, "p90": 0.3}, "new": {}})
    assert worse == ["all: median 20.0 % > 10.0 %", "new: not evaluated"]


def test_the_quick_sample_is_small_and_of_many_sources():
    quick = list(sample(all_records(), quick=True))
    assert 20 <= len(quick) <= 80
    assert len({record.source for record in quick}) >= 7
