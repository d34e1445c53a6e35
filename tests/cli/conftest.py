"""A command line in the test's own process."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from simulator.cli import main


@dataclass(frozen=True)
class Done:
    """What a command left behind."""

    code: int
    out: str
    err: str


@pytest.fixture
def collsim(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Done]:
    """Run ``collsim WORDS…`` as a shell would, on a terminal of 80 columns."""
    monkeypatch.setenv("COLUMNS", "80")

    def run(*words: object) -> Done:
        monkeypatch.setattr(sys, "argv", ["collsim", *map(str, words)])
        capsys.readouterr()
        code: object = 0
        try:
            main()
        except SystemExit as stop:
            code = stop.code or 0
        captured = capsys.readouterr()
        assert isinstance(code, int)
        assert "Traceback" not in captured.err
        return Done(code=code, out=captured.out, err=captured.err)

    return run
