from __future__ import annotations

import dataclasses
import subprocess
import sys

import pytest

import simulator.results
from simulator.results import FRAME_COLUMNS, RankTimes, RunResult


def test_percent_of_bound_is_the_bound_over_the_time(make_row) -> None:
    # 250 MB at 250 GB/s take 1 ms; a time of 2 ms is half as fast.
    assert make_row(250_000_000, 2e-3).percent_of_bound == pytest.approx(50.0)


def test_no_bound_or_no_time_gives_no_percentage(make_row) -> None:
    row = make_row(2**20, 1e-4)
    assert dataclasses.replace(row, bound_s=None).percent_of_bound is None
    assert dataclasses.replace(row, time_s=0.0).percent_of_bound is None


def test_frame_has_units_in_its_names_and_values(result: RunResult) -> None:
    frame = result.to_frame()
    assert tuple(frame.columns) == FRAME_COLUMNS
    first = frame.iloc[0]
    assert first["size_bytes"] == 2**20
    assert first["time_us"] == pytest.approx(40.0)
    # 1 MiB in 40 µs is 26.2144 GB/s; busbw of 8 ranks is 14/8 of it.
    assert first["algbw_GBps"] == pytest.approx(26.2144)
    assert first["busbw_GBps"] == pytest.approx(26.2144 * 1.75)
    assert first["launch_us"] == pytest.approx(5.0)


def test_columns_are_stable() -> None:
    # Regression: scripts read these names; append, never rename.
    assert FRAME_COLUMNS[:13] == (
        "variant",
        "collective",
        "algorithm",
        "protocol",
        "n_channels",
        "level",
        "world_size",
        "n_nodes",
        "size_bytes",
        "count",
        "dtype",
        "redop",
        "root",
    )
    assert FRAME_COLUMNS[13:19] == (
        "time_us",
        "algbw_GBps",
        "busbw_GBps",
        "bound_us",
        "percent_of_bound",
        "binding_link",
    )


def test_html_leaves_empty_columns_out_and_escapes(result: RunResult) -> None:
    page = dataclasses.replace(result, title="<b>4 & more")._repr_html_()
    assert "&lt;b&gt;4 &amp; more" in page
    assert "busbw_GBps" in page
    assert "uncertainty_us" not in page
    assert "source of this preset is weak" in page


def test_html_of_a_result_without_rows_is_a_page(result: RunResult) -> None:
    assert "all_reduce on 4 GPUs" in dataclasses.replace(result, rows=())._repr_html_()


def test_rank_times_of_different_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match="different lengths"):
        RankTimes.of(call_s=[0.0], end_s=[1.0, 1.0], transfer_s=[1.0], wait_s=[0.0])


def test_rank_times_are_python_floats() -> None:
    import numpy as np

    ranks = RankTimes.of(
        call_s=np.zeros(2), end_s=np.ones(2), transfer_s=np.ones(2), wait_s=np.zeros(2)
    )
    assert {type(value) for value in ranks.end_s} == {float}
    assert len(ranks) == 2


def test_the_public_list_is_this() -> None:
    # Regression: what users import from simulator.results.
    assert set(simulator.results.__all__) == {
        "FRAME_COLUMNS",
        "Column",
        "Device",
        "LinkEvent",
        "LinkLoad",
        "Provenance",
        "RankTimes",
        "Row",
        "RunResult",
        "StepSummary",
        "Table",
        "TraceEvent",
        "Vertex",
        "comparison_table",
        "kernel_name",
        "link_kind_table",
        "link_table",
        "nccl_tests_table",
        "parts_table",
        "rank_table",
        "read_json",
        "step_table",
        "summary_table",
        "write_csv",
        "write_json",
        "write_markdown",
        "write_trace",
    }
    assert all(hasattr(simulator.results, name) for name in simulator.results.__all__)


def test_plots_tables_and_html_libraries_are_not_imported_with_the_package() -> None:
    code = (
        "import sys, simulator.results;"
        "heavy = {'matplotlib', 'pandas', 'rich'} & set(sys.modules);"
        "sys.exit(str(sorted(heavy)) if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
