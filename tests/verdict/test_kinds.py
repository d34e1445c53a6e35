"""Limits by kind of machine; what is not known well enough is not called healthy."""

from __future__ import annotations

from pathlib import Path

import pytest
from logs import context, healthy_text, table_of

from simulator.importers.nccl_tests import read
from simulator.verdict.check import check_table
from simulator.verdict.health import Health, Limits, judge, limits, rule_of, together
from simulator.verdict.kinds import kind_of, kinds
from simulator.verdict.predict import predict_rows
from simulator.verdict.setup import SetUp, fitted
from validation.spread import Entry, fitted_spread

DATA = Path(__file__).parent / "data"


def test_small_sizes_alone_are_never_healthy() -> None:
    table = read(DATA / "p5_old_plugin_small.log").tables[0]
    set_up = fitted(SetUp(words={"node": "p5.48xlarge", "nodes": "2"}), table)
    machine = check_table(set_up, table)
    assert machine.health is Health.NOT_JUDGED
    assert "say too little" in machine.checks[0].findings[0].words
    # Nor where they are as predicted.
    words = {"node": "hgx-h100", "nodes": "2"}
    rows = predict_rows(context(words)[0], table_of(healthy_text(words)))
    small = [row for row in rows if row.size_bytes < 1 << 20]
    assert judge(small)[0] is Health.NOT_JUDGED
    assert judge(rows)[0] is Health.HEALTHY
    assert together([judge(small), judge(small)]) is Health.NOT_JUDGED


def test_forty_times_too_long_is_sick_and_its_small_sizes_are_not_healthy() -> None:
    words = {"node": "hgx-h100", "nodes": "2"}
    rows = predict_rows(context(words)[0], table_of(healthy_text(words, factor=40.0)))
    assert judge(rows)[0] is Health.SICK
    small, findings = judge([row for row in rows if row.size_bytes < 1 << 20])
    assert small is not Health.HEALTHY
    assert findings[0].health is not Health.HEALTHY


@pytest.mark.parametrize(
    ("words", "way"),
    [
        ({"node": "hgx-h100"}, "node nvswitch"),
        ({"node": "pcie-rtx4090-4"}, "node pcie"),
        ({"node": "mi300x"}, "node xgmi"),
        ({"node": "p5.48xlarge", "nodes": "2"}, "network efa"),
        ({"node": "hgx-h100", "nodes": "2", "node.nic_kind": "roce"}, "network roce"),
    ],
)
def test_the_way_of_the_data_is_the_kind(words: dict[str, str], way: str) -> None:
    row = predict_rows(context(words)[0], table_of(healthy_text(words)))[0]
    assert row.way == way
    assert rule_of(limits(), "<1M", row).kind == way


def test_limits_rest_on_machines_of_the_kind() -> None:
    known = limits()
    for kind in kinds():
        assert {f"{name} {kind}" for name in ("<1M", "1M-16M", "16M-256M", ">=256M")} <= set(known)
    assert list(kind_of("", "all_gather")) == ["network"]
    few = Limits(suspicious=2.0, sick=3.0, machines=1)
    many = Limits(suspicious=2.0, sick=3.0, machines=5)
    assert [few.of(x) for x in (0.0, 2.5, 3.5)] == [
        Health.NOT_JUDGED,
        Health.NOT_JUDGED,
        Health.SICK,
    ]
    assert [many.of(x) for x in (0.0, 2.5)] == [Health.HEALTHY, Health.SUSPICIOUS]
    # Within limits up to e^(2 x 0.9) = 6 times the time: nothing is said of it.
    assert many.of(0.0, 0.9) is Health.NOT_JUDGED


def test_kinds_that_scatter_have_wider_limits_and_unknown_ones_lean_on_all() -> None:
    # Machines of one way all 2 off, of another 0; a kind without any lies between, and wider.
    entries = [
        Entry(f"network {way}", f"{way}{machine}", value + 0.1 * machine)
        for way, value in (("efa", 2.0), ("roce", 0.0))
        for machine in range(6)
    ]
    spread = fitted_spread(entries)
    efa, roce, none = spread.limits(["network efa", "network roce", "network slingshot"], [0.05])
    assert roce[0] < efa[0] < none[0]
    assert spread.machines("network efa") == 6
    assert spread.without("efa0").machines("network efa") == 5
