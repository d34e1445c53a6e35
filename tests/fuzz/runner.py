"""One command line or function in a child process, with a guard on its time and memory.

A child is forked from this process, which has imported everything: that takes a hundredth of a
second, and whatever the child does to its memory, its signals or its folder ends with it.
"""

from __future__ import annotations

import json
import os
import pickle
import resource
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

__all__ = ["MOST_BYTES", "MOST_S", "Case", "Outcome", "called", "run_case", "warm"]

MOST_S = 30.0
"""Of processor time, and three times that of the clock."""
MOST_BYTES = 4 * 2**30
"""Of address space."""


@dataclass(frozen=True)
class Case:
    """A command line with the files that it reads."""

    words: tuple[str, ...]
    files: Mapping[str, bytes]
    """By name, in the folder in which the command runs."""
    must_refuse: str = ""
    """Why the input is certainly wrong; empty: it may be valid."""

    def __repr__(self) -> str:
        return f"Case({self.words!r}, {dict(self.files)!r})"

    def keep(self, folder: Path) -> None:
        """Write the files and a shell script that reproduces the case."""
        import shlex

        folder.mkdir(parents=True, exist_ok=True)
        for name, data in self.files.items():
            (folder / name).write_bytes(data)
        (folder / "command.sh").write_text(shlex.join(["collsim", *self.words]) + "\n")


@dataclass(frozen=True)
class Outcome:
    """What a command left."""

    code: int
    """Exit code; negative: the signal that killed it."""
    out: str
    err: str
    seconds: float
    hung: bool
    document: Any
    """Of ``result.json`` in its folder; None: not there, text: not JSON."""


@cache
def warm() -> None:
    """Import and build, once, what most cases need: children have it from their birth."""
    import simulator
    from simulator.cli import bench, check, compare, explain, run, show, step, tune  # noqa: F401
    from simulator.importers import deepspeed_config, hf_config, nccl_tests  # noqa: F401
    from simulator.verdict import check as verdict  # noqa: F401

    call = {"op": "all_reduce", "size": "1 MiB"}
    for node in ("4xH100", "dgx-a100", "dgx-h100"):
        simulator.run(node=node, nodes=2, collective=call, workers=1)
    simulator.run(node="4xA100", training={"model": "gpt2-small"}, workers=1)


def run_case(case: Case, *, most_s: float = MOST_S) -> Outcome:
    """Run ``collsim`` with the words of a case in a folder of its own."""
    warm()
    with tempfile.TemporaryDirectory(prefix="collsim-fuzz-") as name:
        folder = Path(name)
        for file, data in case.files.items():
            (folder / file).write_bytes(data)
        begin = time.monotonic()
        pid = os.fork()
        if pid == 0:
            _command(case.words, folder, most_s)
        code, hung = _waited(pid, 3 * most_s)
        seconds = time.monotonic() - begin
        return Outcome(
            code=code,
            out=_text(folder / ".out"),
            err=_text(folder / ".err"),
            seconds=seconds,
            hung=hung or code in (-signal.SIGXCPU, -signal.SIGKILL),
            document=_document(folder / "result.json"),
        )


def called(function: Callable[..., Any], *values: Any, most_s: float = MOST_S) -> Any:
    """Return what a function returns in a child process.

    Raises
    ------
    TimeoutError
        It took too long.
    Exception
        What it raised.
    """
    warm()
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        _function(function, values, writing, most_s)
    os.close(writing)
    with os.fdopen(reading, "rb") as stream:
        data = stream.read()
    code, hung = _waited(pid, 3 * most_s)
    if hung or not data:
        raise TimeoutError(f"ended with {code} after {most_s:.0f} s of processor time or before")
    failed, found = pickle.loads(data)
    if failed:
        raise found
    return found


def _limit(most_s: float) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (int(most_s), int(most_s) + 2))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**30, 2**30))


def _function(
    function: Callable[..., Any], values: Sequence[Any], writing: int, most_s: float
) -> None:
    try:
        _limit(most_s)
        try:
            answer = (False, function(*values))
        except Exception as error:
            answer = (True, error)
        with os.fdopen(writing, "wb") as stream:
            stream.write(pickle.dumps(answer))
    finally:
        os._exit(0)


def _command(words: Sequence[str], folder: Path, most_s: float) -> None:
    """Be ``collsim`` until the end of this process."""
    code: object = 99
    try:
        os.setsid()
        os.chdir(folder)
        nowhere = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nowhere, 0)
        for number, name in ((1, ".out"), (2, ".err")):
            os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT, 0o600), number)
        sys.stdin = open(0, closefd=False)  # noqa: SIM115
        sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
        sys.stderr = open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
        _limit(most_s)
        sys.argv = ["collsim", *words]
        from simulator.cli import main

        try:
            main()
            code = 0
        except SystemExit as stop:
            code = stop.code or 0
        except BaseException:
            import traceback

            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code if isinstance(code, int) else 1)


def _waited(pid: int, most_s: float) -> tuple[int, bool]:
    """Return the exit code of a child, and whether it had to be killed for the clock."""
    end = time.monotonic() + most_s
    while True:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status), False
        if time.monotonic() > end:
            os.kill(pid, signal.SIGKILL)
            _, status = os.waitpid(pid, 0)
            return os.waitstatus_to_exitcode(status), True
        time.sleep(0.002)


def _text(path: Path) -> str:
    return path.read_bytes()[:200_000].decode("utf-8", "replace") if path.exists() else ""


def _document(path: Path) -> Any:
    if not path.is_file():
        return None
    text = path.read_text(encoding="utf-8", errors="replace")
    try:
        return json.loads(text)
    except ValueError:
        return text
