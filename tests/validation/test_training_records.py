"""Measured training steps are read as their sources mean them."""

from __future__ import annotations

from collections import Counter

import pytest

from validation.training.cross import errors_of
from validation.training.record import rows_of
from validation.training.records import all_records, excluded_rows
from validation.training.sources.common import megatron_seconds, padded

FILES = {
    "mosaic_llm_foundry.csv": ("mosaic",),
    "vtrain_ground_truth.csv": ("vtrain-single", "vtrain-multi"),
    "internevo_7b_tgs.csv": ("internevo",),
    "torchtitan.csv": ("torchtitan",),
    "megatron_bridge_performance.csv": ("megatron-bridge",),
    "bigscience_experiments.csv": ("bigscience",),
}


@pytest.mark.parametrize("name", sorted(FILES))
def test_every_row_is_a_record_or_excluded_with_a_reason(name):
    rows = {row for row, _ in rows_of(name)}
    used = {r.row for r in all_records() if r.source in FILES[name]}
    left = {e.row: e.reason for e in excluded_rows() if e.source in FILES[name]}
    assert rows
    assert used | set(left) == rows
    assert not used & set(left)
    assert all(left.values())


def test_sizes_multiply_to_the_gpus():
    for record in all_records():
        cells = record.strategy.world_size
        per_node = record.gpus_per_node or (4 if "nvl72" in record.node else 8)
        assert cells in (record.nodes * per_node, cells if cells < 8 else 0), record.name
        assert record.measured_s > 0


def test_rates_of_sc21_give_its_step_time():
    # 530B in table 1 of arXiv:2104.04473: 2,520 GPUs at 163 TFLOP/s, batch 2,520.
    # 96·2520·2048·105·20480²·(1 + 2048/(6·20480) + 51200/(16·105·20480)) FLOPs.
    flops = 96 * 2520 * 2048 * 105 * 20480**2 * (1 + 1 / 60 + 51200 / (16 * 105 * 20480))
    seconds = megatron_seconds(
        163, 2520, batch=2520, seq=2048, layers=105, hidden=20480, vocab=51200, recomputed=True
    )
    assert seconds == pytest.approx(flops / (163e12 * 2520))


def test_models_have_the_parameters_that_their_source_prints():
    for record in all_records():
        if record.source == "mosaic":
            cells = next(c for row, c in rows_of("mosaic_llm_foundry.csv") if row == record.row)
            assert record.model.n_parameters == pytest.approx(int(cells["numparams"]), rel=2e-3)


def test_vocabularies_are_padded_as_megatron_pads():
    assert padded(50257, 1) == 50304
    assert padded(50257, 8) == 51200


def test_sources_are_many_and_errors_are_of_ratios():
    assert len(Counter(r.source for r in all_records())) >= 12
    found = errors_of([0.9, 1.0, 1.2])
    assert found.median == pytest.approx(0.1)
    assert found.bias == pytest.approx(0.0)
