"""The Python API: what `import simulator` offers and what a run returns."""

from __future__ import annotations

from pathlib import Path

import pytest

import simulator
from simulator.base.errors import CollsimError, ScenarioError
from simulator.results.model import FRAME_COLUMNS


def test_public_names():
    assert simulator.__all__ == ["__version__", "run"]
    assert callable(simulator.run)
    assert simulator.__version__.count(".") == 2


def test_run_stays_the_function_whatever_is_imported():
    from simulator.compose import run

    assert run.run_resolved
    assert callable(simulator.run)


def test_a_frame_has_the_columns_of_the_csv_file():
    result = simulator.run(node="4xH100", collective={"op": "all_reduce", "size": "1 MiB"})
    frame = result.to_frame()
    assert tuple(frame.columns) == FRAME_COLUMNS
    (row,) = frame.to_dict("records")
    assert row["collective"] == "all_reduce"
    assert row["world_size"] == 4
    assert row["size_bytes"] == 2**20
    assert row["busbw_GBps"] == pytest.approx(1.5 * row["algbw_GBps"])
    assert row["time_us"] == pytest.approx(result.rows[0].time_s * 1e6)


def test_sections_file_and_words_agree(tmp_path: Path):
    path = tmp_path / "a.yaml"
    path.write_text("schema_version: 1\nnode: 4xH100\ncollective: {op: all_reduce, size: 1 MiB}\n")
    from_file = simulator.run(path)
    from_sections = simulator.run(node="4xH100", collective={"op": "all_reduce", "size": "1 MiB"})
    assert from_file.rows == from_sections.rows
    other = simulator.run(str(path), overrides=["collective.algorithm=ring", "costs=ideal"])
    assert other.rows[0].algorithm == "ring"
    assert other.rows[0].time_s < from_file.rows[0].time_s


def test_a_list_is_a_sweep():
    result = simulator.run(
        node=["4xH100", "4xA100"], collective={"op": "all_gather", "size": "1 MiB"}, workers=1
    )
    assert [row.variant for row in result.rows] == ["node 4xH100", "node 4xA100"]
    assert result.to_frame()["variant"].tolist() == ["node 4xH100", "node 4xA100"]


def test_record_keeps_the_trace():
    collective = {"op": "all_reduce", "size": "1 MiB"}
    assert simulator.run(node="4xH100", collective=collective).trace == ()
    assert simulator.run(node="4xH100", collective=collective, record=True).trace


def test_a_notebook_shows_a_table():
    result = simulator.run(node="4xH100", collective={"op": "all_reduce", "size": "1 MiB"})
    page = result._repr_html_()
    assert "<table" in page
    assert "all_reduce" in page


def test_what_is_wrong_raises_with_all_problems():
    with pytest.raises(ScenarioError) as found:
        simulator.run(node="4xH10", nodes=0, collective={"op": "all_reduc", "size": "1 MiB"})
    keys = {problem.key for problem in found.value.problems}
    assert {"nodes", "collective.op"} <= keys
    assert isinstance(found.value, CollsimError)


def test_a_file_and_sections_do_not_mix():
    with pytest.raises(TypeError, match="not both"):
        simulator.run("a.yaml", node="4xH100")


def test_quantities_need_their_unit_here_too():
    with pytest.raises(CollsimError, match="has no unit"):
        simulator.run(node="4xH100", collective={"op": "all_reduce", "size": 1048576})
