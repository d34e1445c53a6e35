"""Pictures of training steps: what is drawn is what the step says, in every format, or an error."""

from __future__ import annotations

import csv
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import simulator
from simulator.base.errors import CollsimError
from simulator.results.model import RunResult
from simulator.results.plots_training import plot_memory, plot_step, plot_timeline

Plot = Callable[..., None]
KINDS: tuple[Plot, ...] = (plot_step, plot_memory, plot_timeline)


@pytest.fixture(scope="module")
def result() -> RunResult:
    return simulator.run(
        node="dgx-h100",
        nodes=2,
        training={
            "model": "llama-2-7b",
            "model_set": {"layers": 4},
            "seq": 512,
            "tensor": 4,
            "pipeline": 2,
            "micro_batches": 4,
        },
        record=True,
    )


def numbers(figure: Path) -> list[dict[str, str]]:
    with figure.with_suffix(".csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_the_bars_of_a_step_are_its_parts_and_as_long_as_it(
    result: RunResult, tmp_path: Path
) -> None:
    plot_step(result, tmp_path / "step.svg", with_csv=True)
    step = result.training[0]
    rows = numbers(tmp_path / "step.svg")
    bars = {row["bar"] for row in rows}
    assert len(bars) == len(step.accounts) == 2
    for bar in bars:
        length = sum(float(row["seconds"]) for row in rows if row["bar"] == bar)
        assert length == pytest.approx(step.step_s)
    forward = [float(row["seconds"]) for row in rows if row["name"] == "forward"]
    busy = [account.busy_s["forward"] for account in step.accounts]
    assert sorted(forward) == pytest.approx(sorted(busy))


def test_the_bars_of_memory_add_up_to_the_stages(result: RunResult, tmp_path: Path) -> None:
    plot_memory(result, tmp_path / "memory.svg", with_csv=True)
    rows = numbers(tmp_path / "memory.svg")
    for stage in result.training[0].memory:
        own = [float(row["bytes"]) for row in rows if row["bar"] == f"stage {stage.stage}"]
        assert sum(own) == pytest.approx(stage.total_bytes)


def test_the_timeline_has_the_events_of_one_rank_of_each_kind(
    result: RunResult, tmp_path: Path
) -> None:
    plot_timeline(result, tmp_path / "timeline.svg", with_csv=True)
    rows = numbers(tmp_path / "timeline.svg")
    assert {row["rank"] for row in rows} == {"0", "8"}
    assert {row["stream"] for row in rows} >= {"compute", "send forward", "recv backward"}
    ends = [float(row["end_s"]) for row in rows]
    assert max(ends) == pytest.approx(result.training[0].step_s)
    assert all(float(row["start_s"]) < float(row["end_s"]) for row in rows)


@pytest.mark.parametrize("plot", KINDS)
@pytest.mark.parametrize(
    ("ending", "magic"), [("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF")]
)
def test_every_format(
    plot: Plot, ending: str, magic: bytes, result: RunResult, tmp_path: Path
) -> None:
    path = tmp_path / f"figure.{ending}"
    plot(result, path)
    assert path.read_bytes().startswith(magic)


@pytest.mark.parametrize("plot", KINDS)
def test_a_format_that_is_none_is_refused(plot: Plot, result: RunResult, tmp_path: Path) -> None:
    with pytest.raises(CollsimError, match="bmp"):
        plot(result, tmp_path / "figure.bmp")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("plot", KINDS)
def test_without_a_step_nothing_is_drawn(plot: Plot, result: RunResult, tmp_path: Path) -> None:
    with pytest.raises(CollsimError):
        plot(replace(result, training=(), trace=()), tmp_path / "figure.png")
    assert not list(tmp_path.iterdir())
