"""What `collsim measure` writes is read back: its table and its JSON say the same."""

from __future__ import annotations

import json

import pytest

from simulator.importers.nccl_tests import read
from simulator.importers.source import ForeignFileError
from simulator.verdict.guess import guess
from simulator.verdict.predict import predict_rows
from simulator.verdict.setup import call_words
from validation.harness.options import (
    HalfResult,
    Measurement,
    MeasureOptions,
    SweepRow,
    SweepTable,
)
from validation.measure import measurement_text


def half(size_bytes: int, time_s: float) -> HalfResult:
    rate = size_bytes / time_s
    return HalfResult(
        time_s=time_s, min_s=time_s, max_s=time_s, algbw_Bps=rate, busbw_Bps=1.5 * rate, wrong=0
    )


def sweep(algorithm: str, channels: int, factor: float = 1.0) -> SweepTable:
    rows = tuple(
        SweepRow(
            size_bytes=size,
            count=size // 4,
            out_of_place=None,
            in_place=half(size, factor * time_s),
        )
        for size, time_s in ((4096, 123.4e-6), (1048576, 2345e-6))
    )
    return SweepTable(
        collective="all_reduce",
        algorithm=algorithm,
        channels=channels,
        dtype="float",
        redop="sum",
        root=None,
        rows=rows,
    )


def measurement(*tables: SweepTable) -> Measurement:
    return Measurement(
        backend="gloo",
        n_ranks=4,
        n_nodes=1,
        options=MeasureOptions(min_bytes=4096, max_bytes=1048576, factor=256),
        environment={
            "torch": "2.5.0",
            "nodes": [0] * 4,
            "devices": ["Intel(R) Xeon(R) Processor, 4 cores"] * 4,
            "variables": {"NCCL_ALGO": "Ring", "GLOO_SOCKET_IFNAME": "lo"},
        },
        tables=tables,
    )


MEASURED = measurement(sweep("library", 0), sweep("tree", 2, 2.0), sweep("ring", 1, 3.0))
JSON = json.dumps(MEASURED.to_dict(), indent=1) + "\n"


@pytest.mark.parametrize("text", [measurement_text(MEASURED), JSON], ids=["table", "json"])
def test_tables_and_their_schedules_are_read(text: str) -> None:
    log = read(text)
    assert not log.warnings
    assert [(t.algorithm, t.channels) for t in log.tables] == [
        (None, None),
        ("tree", 2),
        ("ring", 1),
    ]
    first, second = log.tables[:2]
    assert (first.collective, first.n_ranks, first.n_nodes, first.dtype) == (
        *("all_reduce", 4),
        *(1, "float"),
    )
    assert first.parameters.max_bytes == 1048576
    timing = second.rows[0].in_place
    assert timing is not None
    assert timing.time_s == pytest.approx(246.8e-6)
    assert second.rows[0].out_of_place is None
    lines = text.splitlines()
    assert "4096" in lines[second.rows[0].line - 1] + lines[second.rows[0].line]


def test_a_schedule_is_predicted_as_itself_and_the_librarys_call_is_not() -> None:
    library, tree, _ = read(JSON).tables
    assert "collective.algorithm" not in call_words(library, [8])
    found = predict_rows(guess(tree), tree)[0].predicted
    assert (found.algorithm, found.n_channels) == ("tree", 2)
    assert predict_rows(guess(library), library)[0].predicted.algorithm != "tree"
    assert any("tree × 2" in text for text in guess(tree).evidence)


def test_json_without_device_names_still_tells_the_ranks() -> None:
    document = MEASURED.to_dict()
    del document["environment"]["devices"]
    table = read(json.dumps(document) + "\n").tables[0]
    assert table.n_ranks == 4


def test_what_stands_before_the_cut_is_kept() -> None:
    cut = JSON[: JSON.index('"ring"')]
    log = read(cut)
    assert [table.algorithm for table in log.tables] == [None, "tree"]
    assert "cut" in str(log.warnings[-1])


def test_rows_without_a_time_are_told_with_their_lines() -> None:
    document = MEASURED.to_dict()
    document["tables"][1]["rows"][0]["in_place"] = None
    log = read(json.dumps(document, indent=1) + "\n")
    assert len(log.tables[1].rows) == 1
    assert len(log.dropped_lines) == 1
    assert "dropped" in str(log.warnings[-1])


def test_a_measurement_without_collectives_is_refused() -> None:
    with pytest.raises(ForeignFileError, match="with collectives"):
        read(json.dumps(measurement().to_dict()) + "\n")
