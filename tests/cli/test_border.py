"""The border: faults, streams and terminals of every kind end in words and a code."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from simulator.cli import border, listing
from simulator.cli.border import guarded

CODE = "from simulator.cli import main; main()"
ONE = "bench -b 1M -e 1M --node 4xH100,8xH100"


def shell(command: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[bytes]:
    line = f'collsim() {{ "{sys.executable}" -c "{CODE}" "$@"; }}; {command}'
    return subprocess.run(
        ["bash", "-c", line],
        cwd=folder,
        capture_output=True,
        timeout=120,
        check=False,
        env={**os.environ, **environment},
    )


def _broken(*_: object) -> None:
    raise ZeroDivisionError("no such\nnumber")


def test_a_fault_is_one_line_and_code_70(collsim, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(listing, "_models", _broken)
    done = collsim("list", "models")
    assert (done.code, done.out) == (70, "")
    first, second = done.err.splitlines()
    assert first.startswith(
        "collsim failed by a fault of its own: ZeroDivisionError: no such number (cli/listing.py:"
    )
    assert "please report" in second
    assert "--debug prints the traceback" in second


@pytest.mark.parametrize("words", [("--debug", "list", "models"), ("list", "models", "--debug")])
def test_debug_prints_the_traceback(
    words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    from simulator.cli import main

    monkeypatch.setattr(listing, "_models", _broken)
    monkeypatch.setattr(sys, "argv", ["collsim", *words])
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 70
    assert "Traceback (most recent call last)" in capsys.readouterr().err


def test_memory_that_is_gone_is_no_fault(collsim, monkeypatch: pytest.MonkeyPatch):
    def full(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(listing, "_models", full)
    done = collsim("list", "models")
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith("out of memory")


def test_handlers_of_signals_are_given_back():
    import signal

    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    guarded(lambda: None)
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before


# -- streams -----------------------------------------------------------------------------------


def test_a_reader_that_has_gone_is_met_in_silence(tmp_path: Path):
    for command in ("list", "topologies list", "show --help", ONE):
        done = shell(f"collsim {command} | true", tmp_path)
        assert done.stderr == b"", command
    done = shell("(sleep 0.5; collsim list; echo $? >&2) | true", tmp_path)
    assert done.stderr == b"141\n"


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_streams_that_are_closed(tmp_path: Path, closed: str):
    done = shell(f"collsim {ONE} --json a.json {closed}", tmp_path)
    assert (done.returncode, b"Traceback" in done.stderr) == (0, False)
    text = (tmp_path / "a.json").read_text()
    assert text.startswith('{\n "schema_version"')
    assert text.endswith("}\n")


def test_an_error_with_closed_streams_keeps_its_code(tmp_path: Path):
    assert shell("collsim bench --node foo >&- 2>&-", tmp_path).returncode == 2


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_errors_to_a_full_disk_keep_their_code(tmp_path: Path):
    assert shell("collsim bench --node foo 2> /dev/full", tmp_path).returncode == 2


# -- terminals ---------------------------------------------------------------------------------

TERMINALS = [
    {"LC_ALL": "C"},
    {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    {"LC_ALL": "nowhere.NO-SUCH"},
    {"PYTHONIOENCODING": "ascii"},
    {"PYTHONIOENCODING": "ascii:strict"},
    {"PYTHONIOENCODING": "latin-1"},
    {"PYTHONIOENCODING": "cp437"},
    {"PYTHONIOENCODING": "utf-16"},
    {"TERM": "dumb"},
    {"TERM": ""},
    {"COLUMNS": "0"},
    {"COLUMNS": "-5"},
    {"COLUMNS": "9999999"},
    {"COLUMNS": "wide"},
    {"HOME": ""},
    {"HOME": "/nowhere"},
    {"TMPDIR": "/nowhere"},
    {"NO_COLOR": "1"},
    {"FORCE_COLOR": "1"},
    {"MPLBACKEND": "nosuch"},
    {"MPLBACKEND": "qtagg"},
    {"PYTHONWARNINGS": "error"},
]


@pytest.mark.parametrize("environment", TERMINALS, ids=str)
def test_terminals(tmp_path: Path, environment: dict[str, str]):
    done = shell(f"collsim {ONE} --csv a.csv --plot a.png", tmp_path, **environment)
    assert (done.returncode, b"Traceback" in done.stderr) == (0, False), done.stderr
    assert done.stderr.replace(b"\0", b"").endswith(
        b"wrote a.csv\nwrote a.png\n".replace(b"\n", b"\n")
    )
    assert (tmp_path / "a.csv").read_text().count("\n") == 3


def test_characters_that_a_terminal_does_not_have_keep_the_columns(tmp_path: Path):
    words = "bench all_reduce -N 4 -b 1M -e 1M --set fabric.kind=rail_optimized -q --table summary"
    plain = shell(f"collsim {words}", tmp_path, PYTHONIOENCODING="ascii").stdout.decode("ascii")
    whole = shell(f"collsim {words}", tmp_path, PYTHONIOENCODING="utf-8").stdout.decode()
    assert not whole.isascii()
    assert "?" not in plain
    assert [len(line) for line in plain.splitlines()] == [len(line) for line in whole.splitlines()]


def test_every_letter_that_is_replaced_becomes_one_letter():
    assert all(
        len(key) == len(value) == 1 and value.isascii() for key, value in border.PLAIN.items()
    )


# -- places ------------------------------------------------------------------------------------


def test_a_folder_that_is_gone(tmp_path: Path):
    line = f"mkdir gone; cd gone; rmdir ../gone; collsim {ONE} --csv {tmp_path}/a.csv"
    done = shell(line, tmp_path)
    assert (done.returncode, b"Traceback" in done.stderr) == (0, False), done.stderr
    assert (tmp_path / "a.csv").exists()
    done = shell(f"mkdir gone; cd gone; rmdir ../gone; collsim {ONE} --csv b.csv", tmp_path)
    assert done.returncode == 2
    assert b"b.csv: cannot write: " in done.stderr
