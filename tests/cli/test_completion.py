"""Shell completion: what a shell asks and what it is told, without an installed script."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from simulator.cli import completion
from simulator.models import model_names
from topologies import hardware

CODE = "from simulator.cli import main; main()"


def completed(line: str) -> list[str]:
    """Return what bash offers for the last word of a line."""
    words = line.split(" ")
    done = subprocess.run(
        [sys.executable, "-c", CODE],
        env={
            **os.environ,
            "_COLLSIM_COMPLETE": "complete_bash",
            "COMP_WORDS": line,
            "COMP_CWORD": str(len(words) - 1),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == ""
    return done.stdout.split()


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("collsim ben", ["bench"]),
        ("collsim bench --node dgx-a", ["dgx-a100-40gb", "dgx-a100-80gb"]),
        ("collsim bench --fabric rail", ["rail_only", "rail_optimized"]),
        ("collsim bench all_g", ["all_gather"]),
        ("collsim bench -a double", ["double_binary_tree"]),
        ("collsim bench --profile rc", ["rccl"]),
        ("collsim step --model llama-3-", ["llama-3-70b", "llama-3-8b"]),
        ("collsim check a.log --node gh", ["gh200", "gh200-4"]),
    ],
)
def test_what_a_shell_is_offered(line: str, offered: list[str]):
    assert completed(line) == offered


def test_the_last_word_of_a_list_is_completed():
    assert completion.nodes("dgx-h100,gh200-") == ["dgx-h100,gh200-4"]


def test_every_name_is_offered():
    assert completion.nodes("") == sorted(hardware.names())
    assert completion.models("") == sorted(model_names())


def test_the_script_of_a_shell_is_shown(collsim, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION", "1")
    done = collsim("--show-completion", "bash")
    assert done.code == 0
    assert "_COLLSIM_COMPLETE=complete_bash" in done.out
    assert "--install-completion" in collsim("--help").out
