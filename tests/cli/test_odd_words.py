"""Numbers of thousands of digits, digits of other scripts, long names, control characters."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

LONG, DIGITS = "x" * 300, "9" * 5000


@pytest.mark.parametrize(
    "words",
    [
        ["bench", "--node", f"pcie-h100-{DIGITS}"],
        ["bench", "--set", f"perturb.links[{DIGITS}].factor=1"],
        ["bench", "--set", f"costs.version={DIGITS}"],
        ["bench", "--set", "costs.version=²"],
        ["bench", "--env", "NCCL_P2P_LEVEL=²"],
        ["step", "-m", "gpt2", "--deepspeed", "x.json", "--tp", "²"],
        ["fit", LONG, "--out", "x.yaml"],
        ["run", f"{LONG}.yaml"],
        ["step", "-m", "big.json"],
    ],
)
def test_it_is_one_error_of_the_user(
    words: list[str], collsim: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "big.json").write_text(f'{{"model_type": "gpt2", "vocab_size": {DIGITS}}}')
    done = collsim(*words)
    assert (done.code, done.out) == (2, "")


def test_a_variable_in_a_file_names_its_line(collsim: Callable[..., Any], tmp_path: Path):
    call = "collective: {op: all_reduce, size: 1 MiB}\n"
    path = tmp_path / "a.yaml"
    path.write_text(
        f"schema_version: 1\nnode: dgx-h100\n{call}env:\n  NCCL_P2P_LEVEL: ²\n", encoding="utf-8"
    )
    done = collsim("run", path)
    assert done.err.startswith(f"{path}:5: env.NCCL_P2P_LEVEL: '²' is not a path level")


def test_a_control_character_never_reaches_the_terminal(
    collsim: Callable[..., Any], tmp_path: Path
):
    path = tmp_path / "a.yaml"
    path.write_text('schema_version: 1\nnode: dgx-h100\ndescription: "\\e[31mred"\n')
    done = collsim("run", path)
    assert done.code == 2
    assert f"{path}:3: holds the control character '\\x1b'" in done.err
    assert "\x1b" not in done.err
