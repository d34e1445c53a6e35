from __future__ import annotations

import dataclasses
import re

import pytest

from simulator.results import RunResult, nccl_tests_table

# Rows and titles of a public log: CoreWeave, github.com/coreweave/nccl-tests, README (64 H100).
PUBLIC_TITLES = (
    "#                                                              out-of-place"
    "                       in-place          ",
    "#       size         count      type   redop    root     time   algbw   busbw #wrong"
    "     time   algbw   busbw #wrong",
    "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)       "
    "     (us)  (GB/s)  (GB/s)       ",
)
PUBLIC_ROWS = (
    "   536870912     134217728     float     sum      -1   2984.6  179.88  356.01      0"
    "   2979.7  180.18  356.60      0",
    "  2147483648     536870912     float     sum      -1    11163  192.37  380.73      0"
    "    11203  191.70  379.40      0",
)

# An independent reader, as people have it in their scripts.
ROW = re.compile(
    r"^\s*(\d+)\s+(\d+)\s+(\w+)\s+(\w+)\s+(-?\d+)"
    r"\s+([\d.]+)\s+([\d.]+)\s+([\d.]+)\s+(\d+|N/A)"
    r"\s+([\d.]+)\s+([\d.]+)\s+([\d.]+)\s+(\d+|N/A)\s*$"
)


def body(text: str) -> list[str]:
    return [line for line in text.splitlines() if line and not line.startswith("#")]


def test_titles_equal_those_of_a_public_log(result: RunResult) -> None:
    lines = nccl_tests_table(result).splitlines()
    start = lines.index(PUBLIC_TITLES[0])
    assert tuple(lines[start : start + 3]) == PUBLIC_TITLES


@pytest.mark.parametrize("public", PUBLIC_ROWS)
def test_a_row_with_the_numbers_of_a_public_log_is_printed_as_there(
    result: RunResult, make_row, public: str
) -> None:
    cells = public.split()
    row = dataclasses.replace(
        make_row(int(cells[0]), float(cells[5]) / 1e6, world_size=64),
        algbw_Bps=float(cells[6]) * 1e9,
        busbw_Bps=float(cells[7]) * 1e9,
    )
    text = nccl_tests_table(dataclasses.replace(result, rows=(row,)))
    (line,) = body(text)
    half = len("   2984.6  179.88  356.01      0")
    assert line[:-half] == public[:-half]
    # The prediction stands in both halves.
    assert line[-half:] == line[-2 * half : -half]


def test_an_independent_parser_reads_the_values_back(result: RunResult) -> None:
    found = [ROW.match(line) for line in body(nccl_tests_table(result))]
    assert len(found) == len(result.rows) == 3
    for match, row in zip(found, result.rows, strict=True):
        assert match is not None
        assert int(match[1]) == row.size_bytes
        assert int(match[2]) == row.count
        assert (match[3], match[4], match[5]) == ("float", "sum", "-1")
        assert float(match[6]) == pytest.approx(row.time_s * 1e6, rel=1e-3)
        assert float(match[7]) == pytest.approx(row.algbw_Bps / 1e9, abs=0.006)
        assert float(match[8]) == pytest.approx(row.busbw_Bps / 1e9, abs=0.006)
        assert match[9] == match[13] == "0"


@pytest.mark.parametrize(
    ("micros", "shown"),
    [
        (7.0, "   7.00"),
        (99.5, "  99.50"),
        (100.0, "  100.0"),
        (9999.5, " 9999.5"),
        (10000.0, "  10000"),
        (2225678.4, "2225678"),
    ],
)
def test_time_loses_decimals_by_magnitude_as_in_common_cu(
    result: RunResult, make_row, micros: float, shown: str
) -> None:
    # PRINT("%7.2f") below 100 µs, "%7.1f" below 10,000 µs, "%7.0f" above.
    table = nccl_tests_table(dataclasses.replace(result, rows=(make_row(2**20, micros / 1e6),)))
    prefix = "     1048576        262144     float     sum      -1  "
    assert body(table)[0].startswith(prefix + shown + "  ")


def test_header_and_footer_tell_range_step_ranks_and_mean(result: RunResult) -> None:
    lines = nccl_tests_table(result).splitlines()
    assert lines[0] == "# Collective test starting: all_reduce_perf"
    assert (
        "# nThread 1 nGpus 1 minBytes 1048576 maxBytes 1073741824 step: 32(factor) "
        "warmup iters: 0 iters: 1 agg iters: 1 validation: 1 graph: 0" in lines
    )
    ranks = [line for line in lines if re.match(r"#\s+Rank\s+\d+ ", line)]
    assert len(ranks) == 4
    assert ranks[3] == (
        "#  Rank  3 Group  0 Pid      0 on      node0 device  3 [0000:00:00] NVIDIA H100 80GB HBM3"
    )
    assert "# Out of bounds values : 0 OK" in lines
    mean = sum(row.busbw_Bps for row in result.rows) / 3 / 1e9
    average = next(line for line in lines if line.startswith("# Avg bus bandwidth"))
    assert average == f"# Avg bus bandwidth    : {mean:g} "
    assert lines[-1] == "# Collective test concluded: all_reduce_perf"


def test_equal_differences_are_a_step_in_bytes(result: RunResult, make_row) -> None:
    rows = tuple(make_row(size, 1e-4) for size in (2**20, 2 * 2**20, 3 * 2**20))
    assert "step: 1048576(bytes)" in nccl_tests_table(dataclasses.replace(result, rows=rows))


@pytest.mark.parametrize(
    ("collective", "in_place"), [("all_to_all", "N/A"), ("send_recv", "N/A"), ("all_gather", "0")]
)
def test_in_place_is_not_checked_where_nccl_tests_has_none(
    result: RunResult, make_row, collective: str, in_place: str
) -> None:
    # alltoall.cu and sendrecv.cu set args->reportErrors = in_place ? 0 : 1.
    row = make_row(2**20, 1e-4, collective=collective, redop="none")
    match = ROW.match(body(nccl_tests_table(dataclasses.replace(result, rows=(row,))))[0])
    assert match is not None
    assert (match[9], match[13]) == ("0", in_place)


def test_unchecked_prints_what_c_0_prints(result: RunResult) -> None:
    text = nccl_tests_table(result, checked=False)
    assert "validation: 0" in text
    assert all(line.split()[8] == line.split()[12] == "N/A" for line in body(text))


def test_each_variant_has_its_own_table(result: RunResult, make_row) -> None:
    rows = tuple(make_row(2**20, 1e-4, variant=name) for name in ("ring", "tree"))
    text = nccl_tests_table(dataclasses.replace(result, rows=rows))
    assert text.count("# Avg bus bandwidth") == 2
    assert "variant: tree" in text
