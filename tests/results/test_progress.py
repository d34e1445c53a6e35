from __future__ import annotations

import io
import sys
import time

import pytest

from simulator.results.progress import progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def wait_for_text(stream: io.StringIO, text: str) -> bool:
    deadline = time.monotonic() + 10
    while text not in stream.getvalue() and time.monotonic() < deadline:
        time.sleep(0.01)
    return text in stream.getvalue()


def test_silent_when_standard_error_is_no_terminal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr("simulator.results.progress.DELAY_S", 0.0)
    with progress(2, "sweep") as bar:
        bar.advance()
        time.sleep(0.05)
    assert stream.getvalue() == ""
    assert bar.done == 1


def test_quick_work_shows_nothing_even_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    with progress(2, "sweep") as bar:
        bar.advance(2)
    assert stream.getvalue() == ""


def test_a_bar_appears_without_any_advance_and_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr("simulator.results.progress.DELAY_S", 0.01)
    with progress(7, "sweep of sizes") as bar:
        assert wait_for_text(stream, "sweep of sizes")
        bar.advance(3)
        assert wait_for_text(stream, "3/7")


def test_the_bar_goes_away_when_the_work_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", Terminal())
    bars = []

    def work() -> None:
        with progress(7, "sweep") as bar:
            bars.append(bar)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        work()
    assert bars[0]._bar is None
    assert bars[0]._closed
