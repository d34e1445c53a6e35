"""Sweeps: one after the other or in a pool, interrupted or not, the same rows."""

from __future__ import annotations

import concurrent.futures
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from simulator.compose import sweep
from simulator.compose.run import run_resolved
from simulator.compose.sweep import run_set, variant_labels
from simulator.results.model import RunResult
from simulator.scenario.resolve import ScenarioSet, loads

SWEPT = """
schema_version: 1
description: a sweep
node: 4xH100
collective: {op: all_reduce, algorithm: [ring, double_binary_tree], sizes: [1 MiB, 8 MiB]}
perturb: {jitter: {sigma: [0 %, 5 %]}}
"""


@pytest.fixture
def scenarios() -> ScenarioSet:
    found = loads(SWEPT)
    assert len(found.variants) == 4
    return found


def stripped(result: RunResult) -> list[tuple[str, int, float]]:
    return [(row.variant, row.size_bytes, row.time_s) for row in result.rows]


def test_rows_of_all_variants_in_order(scenarios: ScenarioSet):
    result = run_set(scenarios, workers=1)
    alone = [run_resolved(variant).rows for variant in scenarios.variants]
    assert [row.time_s for row in result.rows] == [row.time_s for rows in alone for row in rows]
    labels = variant_labels([variant.labels for variant in scenarios.variants])
    assert [row.variant for row in result.rows] == [label for label in labels for _ in range(2)]
    assert len(set(labels)) == 4


def test_a_pool_gives_the_same(scenarios: ScenarioSet, monkeypatch: pytest.MonkeyPatch):
    one = run_set(scenarios, workers=1)
    monkeypatch.setattr(sweep, "POOL_PAYS_S", 0.0)
    seen: list[tuple[int, int]] = []
    two = run_set(scenarios, workers=2, on_progress=lambda *done: seen.append(done))
    assert two == one
    assert sorted(seen) == [(1, 4), (2, 4), (3, 4), (4, 4)]


def test_one_worker_starts_no_processes(scenarios: ScenarioSet, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sweep, "POOL_PAYS_S", 0.0)

    def refuse(*args: object, **options: object) -> None:
        raise AssertionError("a pool was started")

    monkeypatch.setattr(concurrent.futures, "ProcessPoolExecutor", refuse)
    assert len(run_set(scenarios, workers=1).rows) == 8


def test_progress_counts_variants_or_sizes(scenarios: ScenarioSet):
    seen: list[tuple[int, int]] = []
    run_set(scenarios, workers=1, on_progress=lambda *done: seen.append(done))
    assert seen == [(1, 4), (2, 4), (3, 4), (4, 4)]
    seen.clear()
    plain = loads("schema_version: 1\nnode: 4xH100\ncollective: {op: barrier}")
    run_set(plain, on_progress=lambda *done: seen.append(done))
    assert seen == [(1, 1)]


class _CtrlC:
    """Presses Ctrl-C when so many pieces of work are done."""

    def __init__(self, after: int) -> None:
        self.after = after

    def __call__(self, done: int, total: int) -> None:
        if done == self.after:
            raise KeyboardInterrupt


def test_ctrl_c_keeps_what_is_done(scenarios: ScenarioSet):
    whole = run_set(scenarios, workers=1)
    part = run_set(scenarios, workers=1, on_progress=_CtrlC(2))
    assert stripped(part) == stripped(whole)[:4]
    assert part.warnings[0] == "interrupted: 2 of 4 variants are done"


def test_ctrl_c_in_a_pool_keeps_what_is_done(
    scenarios: ScenarioSet, monkeypatch: pytest.MonkeyPatch
):
    whole = run_set(scenarios, workers=1)
    monkeypatch.setattr(sweep, "POOL_PAYS_S", 0.0)
    part = run_set(scenarios, workers=2, on_progress=_CtrlC(3))
    assert set(stripped(part)) <= set(stripped(whole))
    assert len(part.rows) >= 4
    assert part.warnings[0].startswith("interrupted: ")


def test_ctrl_c_keeps_the_sizes_of_one_variant():
    scenarios = loads(
        "schema_version: 1\nnode: 4xH100\n"
        "collective: {op: all_reduce, sizes: [1 MiB, 2 MiB, 4 MiB, 8 MiB]}"
    )
    whole = run_set(scenarios)
    try:
        part = run_set(scenarios, on_progress=_CtrlC(2))
    except KeyboardInterrupt:
        pytest.fail("nothing was kept")
    assert stripped(part) == stripped(whole)[:2]
    assert part.warnings[0].startswith("interrupted: 2 of 4")


def test_ctrl_c_before_anything_is_done_is_ctrl_c(
    scenarios: ScenarioSet, monkeypatch: pytest.MonkeyPatch
):
    def interrupted(*args: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(sweep, "run_resolved", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_set(scenarios, workers=1)


def _wait_for_workers(pid: int) -> None:
    """Return when a process has started others, and they have had time to work."""
    children = Path(f"/proc/{pid}/task/{pid}/children")
    for _ in range(300):
        if children.exists() and children.read_text():
            break
        time.sleep(0.1)
    time.sleep(2)


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="looks for processes in /proc")
def test_ctrl_c_in_a_terminal(tmp_path: Path):
    """The signal reaches the whole process group: the table is printed, exit code 130."""
    path = tmp_path / "long.yaml"
    path.write_text(
        f"schema_version: 1\nnode: dgx-h100\nnodes: 4\nseed: {list(range(400))}\n"
        "collective: {op: all_reduce, size: 64 MiB, algorithm: ring}\n"
        "perturb: {jitter: {sigma: 5 %}}\n"
    )
    code = "from simulator.cli import main; main()"
    with subprocess.Popen(
        [sys.executable, "-c", code, "run", str(path), "--csv", str(tmp_path / "out.csv")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        _wait_for_workers(process.pid)
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in err
    assert "interrupted: " in err
    assert "seed" in out
    lines = (tmp_path / "out.csv").read_text().splitlines()
    assert 1 < len(lines) < 401
