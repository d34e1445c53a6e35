"""Tables that a log repeats are predicted once, and count as one in the search for causes."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from logs import context, healthy_text, table_of

from simulator.cli import main
from simulator.verdict import nics, predict
from simulator.verdict.check import check_tables

WORDS = {"node": "dgx-a100-80gb", "nodes": "2"}


@pytest.fixture
def runs(monkeypatch) -> list[tuple[int, ...]]:
    """Return the list that grows by the sizes of each run, and of each plan for NICs."""
    seen: list[tuple[int, ...]] = []

    def counted(real):
        def run(resolved, **words):
            seen.append(resolved.collective.sizes_bytes)
            return real(resolved, **words)

        return run

    monkeypatch.setattr(predict, "run_rows", counted(predict.run_rows))
    plan_call = nics.plan_call

    def planned(cluster, spec, size_bytes, *words):
        seen.append((size_bytes,))
        return plan_call(cluster, spec, size_bytes, *words)

    monkeypatch.setattr(nics, "plan_call", planned)
    return seen


def test_repeats_are_predicted_once(runs) -> None:
    set_up, _ = context(WORDS)
    table = table_of(healthy_text(WORDS))
    runs.clear()
    check_tables([(set_up, table)])
    once = list(runs)
    runs.clear()
    (machine,) = check_tables([(set_up, table)] * 4)
    # With many tables each is checked at fewer sizes, which are simulated once.
    assert len(runs) == len(once) == 1
    assert len(machine.checks) == 4


def test_compare_predicts_repeats_once(runs, monkeypatch, capsys, tmp_path: Path) -> None:
    counts = []
    for repeats in (1, 3):
        log = tmp_path / f"{repeats}.log"
        log.write_text(healthy_text(WORDS) * repeats)
        runs.clear()
        words = ["compare", str(log), "--node", "dgx-a100-80gb", "-q", "--set"]
        monkeypatch.setattr(sys, "argv", ["collsim", *words, "engine.level=folded"])
        with pytest.raises(SystemExit, match="0"):
            main()
        counts.append(len(runs))
        assert capsys.readouterr().out.count("Errors, as shares") == repeats
    assert counts[0] == counts[1]


def test_repeats_are_no_more_evidence_than_their_mean() -> None:
    # One table's error is the model's, which its repeats share.
    set_up, _ = context(WORDS)
    slow = table_of(healthy_text(WORDS, factor=3.0))
    (one,) = check_tables([(set_up, slow)], workers=1)
    (three,) = check_tables([(set_up, slow)] * 3, workers=1)
    assert one.diagnosis is not None
    assert three.diagnosis is not None
    weights = [dict(found.diagnosis.tried) for found in (one, three)]
    for name, weight in weights[0].items():
        assert weights[1][name] == pytest.approx(weight)
    assert np.isfinite(list(weights[1].values())).all()
