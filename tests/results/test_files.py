from __future__ import annotations

import csv
import dataclasses
import io
import json
import os
from pathlib import Path

import numpy as np
import pytest

from simulator.base.errors import CollsimError
from simulator.results import (
    FRAME_COLUMNS,
    RunResult,
    read_json,
    summary_table,
    write_csv,
    write_json,
    write_markdown,
)
from simulator.results.files import csv_text, from_mapping, to_mapping, write_bytes


def test_json_round_trip_gives_an_equal_result(result: RunResult, tmp_path: Path) -> None:
    write_json(result, tmp_path / "run.json", trace=True)
    assert read_json(tmp_path / "run.json") == result


def test_json_without_trace_keeps_all_else(result: RunResult, tmp_path: Path) -> None:
    write_json(result, tmp_path / "run.json")
    found = read_json(tmp_path / "run.json")
    assert found == dataclasses.replace(result, trace=(), link_trace=())


def test_json_names_version_seed_and_scenario(result: RunResult, tmp_path: Path) -> None:
    write_json(result, tmp_path / "run.json")
    told = json.loads((tmp_path / "run.json").read_text())
    assert told["schema_version"] == 1
    assert told["provenance"]["seed"] == 7
    assert told["provenance"]["version"] == "0.1.0"
    assert told["provenance"]["scenario"] == {"nodes": 1}
    assert told["rows"][0]["percent_of_bound"] == result.rows[0].percent_of_bound


def test_equal_results_give_equal_files(result: RunResult, tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_json(result, tmp_path / name, trace=True)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_json_stays_valid_with_numbers_that_are_not_finite(result: RunResult) -> None:
    row = dataclasses.replace(result.rows[0], busbw_Bps=float("inf"))
    mapping = to_mapping(dataclasses.replace(result, rows=(row,)))
    text = json.dumps(mapping, allow_nan=False)
    assert np.isnan(from_mapping(json.loads(text)).rows[0].busbw_Bps)


def test_numpy_inside_a_scenario_is_written_as_numbers(result: RunResult, tmp_path: Path) -> None:
    scenario = {"sizes": np.array([1, 2]), "rate": np.float64(2.5), "path": Path("a/b")}
    made = dataclasses.replace(result.provenance, scenario=scenario)
    write_json(dataclasses.replace(result, provenance=made), tmp_path / "run.json")
    found = read_json(tmp_path / "run.json").provenance.scenario
    assert found == {"sizes": [1, 2], "rate": 2.5, "path": "a/b"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not JSON"),
        ("[1]", "not a result"),
        ('{"schema_version": 99}', "schema version 99"),
        ('{"schema_version": 1}', "not a result"),
        ('{"schema_version": 1, "title": "", "provenance": {}, "rows": [{}]}', "not a result"),
    ],
)
def test_foreign_files_are_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(CollsimError, match=message):
        read_json(tmp_path / "x.json")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(CollsimError, match=r"gone\.json: cannot read: No such file"):
        read_json(tmp_path / "gone.json")


def test_csv_has_the_columns_of_the_frame_and_plain_numbers(result: RunResult) -> None:
    lines = list(csv.DictReader(io.StringIO(csv_text(result))))
    assert tuple(lines[0]) == FRAME_COLUMNS
    assert len(lines) == 3
    assert lines[0]["time_us"] == "40"
    assert lines[0]["uncertainty_us"] == ""
    assert float(lines[2]["busbw_GBps"]) == pytest.approx(result.rows[2].busbw_Bps / 1e9)


def test_csv_and_frame_agree(result: RunResult, tmp_path: Path) -> None:
    import pandas as pd

    write_csv(result, tmp_path / "run.csv")
    read = pd.read_csv(tmp_path / "run.csv")
    frame = result.to_frame()
    assert list(read.columns) == list(frame.columns)
    assert np.allclose(read["busbw_GBps"], frame["busbw_GBps"])


def test_markdown_has_title_table_warning_and_provenance(result: RunResult, tmp_path: Path) -> None:
    write_markdown(result, summary_table(result), tmp_path / "run.md")
    text = (tmp_path / "run.md").read_text()
    assert text.startswith("## all_reduce on 4 GPUs\n\n|")
    assert "> **Warning:** the source of this preset is weak" in text
    assert "Predicted by collsim 0.1.0, seed 7." in text


def test_a_failed_write_leaves_the_old_file_and_no_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "run.json"
    target.write_text("old")

    def full_disk(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full_disk)
    with pytest.raises(CollsimError, match="No space left on device") as caught:
        write_bytes(target, b"new")
    assert caught.value.exit_code == 2
    assert target.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]


def test_ctrl_c_while_writing_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "run.json"
    target.write_text("old")

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_bytes(target, b"new")
    assert target.read_text() == "old"
    assert len(list(tmp_path.iterdir())) == 1


def test_an_existing_file_is_replaced_whole(tmp_path: Path) -> None:
    target = tmp_path / "x"
    target.write_text("a much longer old content")
    write_bytes(target, b"new")
    assert target.read_bytes() == b"new"


def test_a_link_keeps_pointing_at_the_new_content(tmp_path: Path) -> None:
    (tmp_path / "real").write_text("old")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    write_bytes(tmp_path / "link", b"new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_bytes() == b"new"


@pytest.mark.parametrize("name", ["missing/run.json", "file/run.json", "."])
def test_a_folder_that_cannot_take_the_file_is_a_clear_error(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("I am no folder")
    with pytest.raises(CollsimError, match=r"cannot write: .*\n.*folder that exists") as caught:
        write_bytes(tmp_path / name, b"x")
    assert caught.value.problems[0].file == str(tmp_path / name)


def test_a_device_is_written_directly(tmp_path: Path) -> None:
    write_bytes("/dev/null", b"x")
    assert not Path("/dev/null").is_file()
