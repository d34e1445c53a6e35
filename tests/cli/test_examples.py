"""Each command's help has an example, and every example runs."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from simulator.cli.examples import EXAMPLES
from tests.docs.console import ROOT

LOG = ROOT / "tests/importers/data/aws_efa_eks_p4d_excerpt.log"
RUN = [
    (command, line.removeprefix("$ collsim "))
    for command, lines in EXAMPLES.items()
    for line in lines
    if line.startswith("$ ")
]


@pytest.mark.parametrize("command", EXAMPLES)
def test_help_shows_the_examples(collsim, command: str) -> None:
    done = collsim(*command.split(), "--help")
    assert done.code == 0
    assert all(line in done.out for line in EXAMPLES[command])


@pytest.mark.parametrize(("command", "line"), RUN)
def test_every_example_runs(
    collsim, command: str, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert line.startswith(command + " ") or line == command
    monkeypatch.chdir(tmp_path)
    (tmp_path / "scenarios").symlink_to(ROOT / "scenarios")
    (tmp_path / "nccl.log").write_bytes(LOG.read_bytes())
    if command in ("check", "compare"):
        line = line.replace("p5.48xlarge", "p4d.24xlarge").replace("dgx-h100", "p4d.24xlarge")
    done = collsim(*shlex.split(line))
    # check tells health by its code; fit may refuse what is sick.
    assert done.code in ((0, 3, 4) if command == "check" else (0,)), done.err
    assert done.out or done.err
