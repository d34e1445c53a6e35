"""Whatever is done to a log, reading it gives tables or one clear error, and loses nothing."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from simulator.importers import ForeignFileError
from simulator.importers.nccl_tests import read

DATA = Path(__file__).parent / "data"
SAMPLES = [
    (DATA / name).read_text()
    for name in (
        "superbench_nccl_allreduce.log",
        "superbench_nccl_alltoall.log",
        "aws_eks_mpirun_tagoutput.log",
        "coreweave_gb200_1rack.log",
        "derived_J_output.json",
        "derived_interleaved_stderr_inside_row.log",
    )
]
PLAIN = SAMPLES[0]


def numbers(text: str | bytes):
    return [
        (row.size_bytes, row.count, row.out_of_place and row.out_of_place.time_s)
        for table in read(text).tables
        for row in table.rows
    ]


def readable(text: str | bytes) -> None:
    """Read, and check what every caller relies on; only the importer's own error may come out."""
    try:
        log = read(text)
    except ForeignFileError:
        return
    assert log.tables
    for table in log.tables:
        assert table.rows
        for row in table.rows:
            assert row.size_bytes >= 0
            assert row.line >= 1
            for half in (row.timing(), row.timing(in_place=True)):
                assert half is None or (math.isfinite(half.time_s) and half.time_s > 0)


@st.composite
def damaged(draw):
    text = draw(st.sampled_from(SAMPLES))
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(text)))
        end = min(len(text), start + draw(st.integers(0, 200)))
        piece = draw(
            st.sampled_from(
                ["", "\x1b[31m", "\x00", "-", ",", "NaN", "1e999", "[1,3]<stdout>:", "\r\n", "é"]
            )
            | st.text(max_size=30)
        )
        text = text[:start] + piece + text[end:]
    return text + "\n"


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(damaged())
def test_a_damaged_log_is_read_or_refused(text: str) -> None:
    readable(text)


@settings(max_examples=80, deadline=None)
@given(st.binary(max_size=400))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    readable(data)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(200, len(PLAIN)))
def test_a_log_cut_anywhere_keeps_its_complete_rows(place: int) -> None:
    whole = numbers(PLAIN)
    cut = PLAIN[:place]
    complete = cut[: cut.rfind("\n") + 1]
    n_rows = sum(line.strip()[:1].isdigit() for line in complete.splitlines())
    try:
        found = numbers(cut + "\n")
    except ForeignFileError:
        assert n_rows == 0
        return
    # The last row may be cut within a number, which nobody can see: it is warned of.
    assert found[:n_rows] == whole[:n_rows]
    assert len(found) <= n_rows + 1


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.replace("\n", "\r\n"),
        lambda text: "".join(f"\x1b[32m{line}\x1b[0m\n" for line in text.splitlines()),
        lambda text: "".join(f"[1,0]<stdout>:{line}\n" for line in text.splitlines()),
        lambda text: "".join(f"0: {line}\n" for line in text.splitlines()),
        lambda text: text.replace(" ", "\u00a0"),
        lambda text: text.encode("utf-16"),
        lambda text: text.encode("utf-8-sig"),
        lambda text: "\n\n" + text + "\n\n",
    ],
    ids=["crlf", "ansi", "mpirun", "srun", "nbsp", "utf-16", "bom", "blank lines"],
)
def test_decoration_changes_no_number(change) -> None:
    assert numbers(change(PLAIN)) == numbers(PLAIN)


def test_decimal_commas_are_the_same_numbers() -> None:
    row = "1048576 262144 float sum -1 {} 0 {} 0\n"
    dots = row.format("74.78 14.02 24.54", "76.17 13.77 24.09")
    commas = row.format("74,78 14,02 24,54", "76,17 13,77 24,09")
    assert numbers(commas) == numbers(dots)


@pytest.mark.parametrize("average", ["112,578", "112.578", "112,58", "1,1258e+02"])
def test_an_average_with_a_decimal_comma_is_no_contradiction(average: str) -> None:
    text = (
        "1048576 262144 float sum -1 74,78 14,02 24,54 0 76,17 13,77 24,09 0\n"
        "67108864 16777216 float sum -1 584,5 114,82 200,93 0 585,0 114,71 200,75 0\n"
        f"# Avg bus bandwidth    : {average}\n"
    )
    log = read(text)
    assert not [str(problem) for problem in log.warnings if "average" in str(problem)]
    assert log.tables[0].printed_average_Bps == pytest.approx(112.58e9, rel=1e-4)


def test_a_row_cut_anywhere_is_told_with_its_line() -> None:
    title = "# size count type redop root time algbw busbw #wrong time algbw busbw #wrong\n"
    first = "1048576 262144 float sum -1 74.78 14.02 24.54 0 76.17 13.77 24.09 0\n"
    row = (
        "   67108864      16777216     bfloat16     sum      -1    584.5  114.82  200.93      0"
        "    585.0  114.71  200.75      0"
    )
    end = "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 24.3150\n"
    for place in range(row.index("67") + 1, len(row)):
        log = read(title + first + row[:place] + "\n" + end)
        told = 3 in log.dropped_lines or any("line 3" in str(found) for found in log.warnings)
        kept = any(found.line == 3 for table in log.tables for found in table.rows)
        assert told or kept, row[:place]
        assert not kept or place >= row.index("200"), row[:place]
        times = {found.out_of_place.time_s for found in log.tables[-1].rows[-kept:] if kept}
        assert times <= {584.5e-6}, row[:place]


@pytest.mark.parametrize("time", ["0.00", "-3.50", "-1,074", "nan", "inf"])
def test_a_time_that_cannot_be_is_kept_as_a_row_and_never_used(time: str) -> None:
    text = (
        f"1048576 262144 float sum -1 {time} 14.02 24.54 0 76.17 13.77 24.09 0\n"
        "2097152 524288 float sum -1 93.5 22.4 39.3 0 94.0 22.3 39.0 0\n"
    )
    log = read(text)
    rows = log.tables[0].rows
    assert [row.size_bytes for row in rows] == [1 << 20, 1 << 21]
    assert rows[0].timing() is None
    assert rows[1].timing() is not None
    assert any("line 1" in str(problem) for problem in log.warnings)


@pytest.mark.parametrize("name", ["gather", "scatter"])
def test_tables_of_gather_and_scatter_need_no_root(name: str) -> None:
    row = "1048576 32768 float none -1 74.78 14.02 12.27 0 76.17 13.77 12.05 0\n"
    log = read(f"# Collective test starting: {name}_perf\n{row}")
    assert log.tables[0].collective == name
    assert not [str(problem) for problem in log.warnings if "columns" in str(problem)]
