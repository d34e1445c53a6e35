"""What a signal, a killed process or a failing variant leaves: what is done, and a code."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from simulator.compose import sweep
from simulator.compose.run import run_resolved
from simulator.scenario.resolve import from_words

pytestmark = pytest.mark.skipif(
    not Path("/proc/self").exists(), reason="looks for processes in /proc"
)

LONG = (
    "schema_version: 1\nnode: dgx-h100\nnodes: 4\nseed: {seeds}\n"
    "collective: {{op: all_reduce, size: 64 MiB, algorithm: ring}}\n"
    "perturb: {{jitter: {{sigma: 5 %}}}}\n"
)
CODE = "import sys; from simulator.cli import main; main()"


def children(pid: int) -> list[int]:
    """Return the processes that a process has started."""
    path = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(word) for word in path.read_text().split()] if path.exists() else []


def wait_until(true: Callable[[], object], seconds: float) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if true():
            return True
        time.sleep(0.02)
    return False


def is_running(pid: int) -> bool:
    """Return False for a process that has ended, waited for or not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@contextlib.contextmanager
def started(*words: object):
    with subprocess.Popen(
        [sys.executable, "-c", CODE, *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


@pytest.fixture
def long(tmp_path: Path) -> Path:
    path = tmp_path / "long.yaml"
    path.write_text(LONG.format(seeds=list(range(2000))))
    return path


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_keeps_what_is_done(long: Path, tmp_path: Path, number: signal.Signals):
    out = tmp_path / "out.json"
    with started("run", long, "--json", out, "--workers", 2) as process:
        assert wait_until(lambda: len(children(process.pid)) >= 2, 60)
        workers = children(process.pid)
        time.sleep(1)
        os.kill(process.pid, number)
        printed, told = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert "Traceback" not in told
    assert "interrupted: " in told
    assert "seed" in printed
    rows = json.loads(out.read_text())["rows"]
    assert 1 < len(rows) < 2000
    assert not any(is_running(pid) for pid in workers)


def test_a_signal_that_is_ignored_stays_so(tmp_path: Path):
    """``nohup`` ignores SIGHUP: the run goes on."""
    code = (
        "import os, signal, sys\n"
        "signal.signal(signal.SIGHUP, signal.SIG_IGN)\n"
        "from simulator.cli import border\n"
        "border.guarded(lambda: os.kill(os.getpid(), signal.SIGHUP))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_workers_end_soon_after_the_parent_was_killed(long: Path):
    with started("run", long, "--workers", 2, "-q") as process:
        assert wait_until(lambda: len(children(process.pid)) >= 2, 60)
        workers = children(process.pid)
        process.kill()
        assert wait_until(lambda: not any(is_running(pid) for pid in workers), 1.5)


def test_a_killed_worker_loses_nothing(tmp_path: Path):
    """What it was at is done again by another one."""
    path, out = tmp_path / "a.yaml", tmp_path / "out.json"
    path.write_text(LONG.format(seeds=list(range(40))))
    with started("run", path, "--json", out, "--workers", 2, "-q") as process:
        assert wait_until(lambda: len(children(process.pid)) >= 2, 60)
        os.kill(children(process.pid)[0], signal.SIGKILL)
        _, told = process.communicate(timeout=120)
    assert (process.returncode, told) == (0, f"wrote {out}\n")
    assert len(json.loads(out.read_text())["rows"]) == 40


def test_a_variant_whose_process_dies_twice_is_named(monkeypatch: pytest.MonkeyPatch):
    """As the kernel kills what takes too much memory; the others are kept, in order."""
    parent = os.getpid()

    def heavy(variant, **options):
        if variant.seed == 3 and os.getpid() != parent:
            os.kill(os.getpid(), signal.SIGKILL)
        return run_resolved(variant, **options)

    monkeypatch.setattr(sweep, "POOL_PAYS_S", 0.0)
    monkeypatch.setattr(sweep, "run_resolved", heavy)
    words = {
        "node": "4xH100",
        "seed": "1,2,3,4,5",
        "collective.op": "all_reduce",
        "collective.size": "1M",
        "perturb.jitter.sigma": "1 %",
    }
    monkeypatch.setattr("simulator.compose.workers.threading.active_count", lambda: 1)
    result = sweep.run_set(from_words(words), workers=2)
    assert [row.variant for row in result.rows] == ["seed 1", "seed 2", "seed 4", "seed 5"]
    (failure,) = result.failures
    assert (failure.variant, failure.exit_code) == ("seed 3", 1)
    assert "killed 2 times, at last by signal 9 (is there enough memory?)" in failure.message


def test_a_variant_that_fails_is_named_and_the_others_are_written(collsim, tmp_path: Path):
    out = tmp_path / "out.json"
    path = tmp_path / "a.yaml"
    path.write_text(
        "schema_version: 1\nnode: dgx-h100\nnodes: 2\n"
        "collective: {op: all_reduce, size: 1 MiB, algorithm: [ring, nvls, double_binary_tree]}\n"
    )
    done = collsim("run", path, "-q", "--json", out)
    assert done.code == 2
    assert re.search(r"not simulated: nvls: .*nvls on 2 nodes", done.err)
    assert "double_binary_tree" in done.out
    found = json.loads(out.read_text())
    assert [row["variant"] for row in found["rows"]] == ["ring", "double_binary_tree"]
    assert [entry["variant"] for entry in found["failures"]] == ["nvls"]


def test_an_invalid_variant_is_named_and_the_others_are_run(collsim):
    done = collsim("bench", "--node", "4xH100,foo,8xH100", "-b", "1M", "-e", "1M", "-q")
    assert done.code == 2
    assert "not simulated: command line: node.preset: unknown node preset 'foo'" in done.err
    assert "4xH100" in done.out
    assert "8xH100" in done.out


def test_a_sweep_of_which_nothing_can_be_run_is_refused(collsim):
    done = collsim("bench", "--node", "foo,bar", "-b", "1M", "-e", "1M", "-q")
    assert (done.code, done.out) == (2, "")
    assert "'foo'" in done.err
    assert "'bar'" in done.err


def test_a_fault_in_a_variant_ends_with_70(collsim, monkeypatch: pytest.MonkeyPatch):
    def broken(variant, **options):
        if variant.nodes == 2:
            raise KeyError("lost")
        return run_resolved(variant, **options)

    monkeypatch.setattr(sweep, "run_resolved", broken)
    done = collsim("bench", "-N", "1,2", "-b", "1M", "-e", "1M", "-q")
    assert done.code == 70
    assert "not simulated: nodes 2: KeyError: 'lost'" in done.err
    assert "please report" in done.err
    assert "nodes 1" in done.out


def test_tune_after_a_signal_tells_the_best_so_far(tmp_path: Path):
    out = tmp_path / "out.json"
    words = ("tune", "-m", "llama-3-70b", "-N", 16, "--simulate", 400, "--json", out)
    with started(*words, "--workers", 2) as process:
        assert wait_until(lambda: len(children(process.pid)) >= 2, 120)
        time.sleep(1)
        os.kill(process.pid, signal.SIGINT)
        printed, told = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "interrupted: " in told
    assert "the fastest: collsim step" in printed
    assert json.loads(out.read_text())["training"]
