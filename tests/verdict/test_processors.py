"""Logs of gloo among processes are met by hosts without GPUs."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from simulator.base.errors import ScenarioError
from simulator.cli import main
from simulator.importers.nccl_tests import read
from simulator.verdict.guess import guess
from simulator.verdict.predict import predict_rows
from simulator.verdict.processors import host_set_up

LOGS = Path(__file__).parents[2] / "validation" / "measurements" / "gloo"


@pytest.mark.parametrize(("ranks", "node"), [(2, "cpu-2"), (4, "cpu-4-2cores")])
def test_the_device_lines_tell_processes_and_cores(ranks: int, node: str) -> None:
    table = read(str(LOGS / f"loopback-{ranks}-a.txt")).tables[0]
    set_up = guess(table)
    assert {**set_up.words} == {"node": node, "nodes": "1", "costs": "gloo"}
    assert any("2 cores" in reason for reason in set_up.reasons)
    rows = predict_rows(set_up, table)
    assert [row.predicted.algorithm for row in rows] == ["ring"] * len(rows)
    assert len(rows) == 8


def test_without_a_number_of_cores_every_process_has_one() -> None:
    table = read(str(LOGS / "loopback-4-a.txt")).tables[0]
    plain = replace(table, gpus=("AMD EPYC 7763 64-Core Processor",))
    assert host_set_up(plain).words["node"] == "cpu-4"


def test_gpus_are_no_processors_and_ranks_must_fit() -> None:
    table = read(str(LOGS / "loopback-4-a.txt")).tables[0]
    assert host_set_up(replace(table, gpus=("NVIDIA H100 80GB HBM3",))) is None
    with pytest.raises(ScenarioError, match="does not tell the number of ranks"):
        host_set_up(replace(table, n_ranks=None))
    with pytest.raises(ScenarioError, match="do not divide"):
        host_set_up(replace(table, n_nodes=3))


def test_compare_reads_them_from_the_command_line(monkeypatch, capsys) -> None:
    log = str(LOGS / "loopback-2-a.txt")
    monkeypatch.setattr(sys, "argv", ["collsim", "compare", log, "-q"])
    with pytest.raises(SystemExit, match="0"):
        main()
    out = capsys.readouterr().out
    assert "set-up guessed from the log: 1 × cpu-2" in out
    assert "broadcast on 2 GPUs" in out
    words = ["collsim", "compare", log, "--node", "cpu-2", "--costs", "mpi", "-q"]
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit, match="0"):
        main()
    by_mpi = capsys.readouterr().out
    assert "guessed" not in by_mpi
    # Open MPI's table for two ranks in one node names another algorithm for small calls.
    assert "naive Simple" in by_mpi
