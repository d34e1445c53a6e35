"""Console blocks of the documentation: run their commands, compare or renew what is shown.

A block looks like this::

    ```console
    $ collsim bench all_reduce -g 4 -b 1M -e 1M -q
    first lines of the output
    …
    last lines
    ```

A line ``…`` stands for any number of lines that are not shown.  A block may hold several
commands.  To renew all blocks after a change that moves numbers::

    python tests/docs/console.py README.md docs/*.md
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

ROOT = Path(__file__).resolve().parents[2]
GAP = "…"
BLOCK = re.compile(r"^```console\n(.*?)^```$", flags=re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Shown:
    """A command and what the page shows of its output."""

    command: str
    lines: tuple[str, ...]

    def matches(self, output: str) -> bool:
        """Return whether the real output has the lines shown."""
        return self.renewed(output) == self.lines

    def renewed(self, output: str) -> tuple[str, ...]:
        """Return the lines to show of the output: as many of its head and tail as before."""
        real = tuple(line.rstrip() for line in output.rstrip("\n").split("\n"))
        if GAP not in self.lines:
            return real
        head = self.lines.index(GAP)
        tail = len(self.lines) - head - 1
        if head + tail >= len(real):
            return real
        return (*real[:head], GAP, *real[len(real) - tail :])


def blocks(text: str) -> Iterator[str]:
    """Generate the bodies of the console blocks of a page."""
    for match in BLOCK.finditer(text):
        yield match[1]


def commands(body: str) -> list[Shown]:
    """Return the commands of a block, each with its lines."""
    return [_split(part)[1] for part in _parts(body)]


def _parts(body: str) -> list[str]:
    """Return each command of a block with what stands below it."""
    heads = [match.start() for match in re.finditer(r"^\$ ", body, flags=re.MULTILINE)]
    return [body[begin:end] for begin, end in zip(heads, [*heads[1:], len(body)], strict=True)]


def _split(part: str) -> tuple[str, Shown]:
    """Return the text of a command as written, and what it is."""
    first, _, rest = part.partition("\n")
    written, command = first + "\n", first.removeprefix("$ ")
    while command.endswith("\\"):
        more, _, rest = rest.partition("\n")
        written += more + "\n"
        command = command[:-1].rstrip() + " " + more.strip()
    lines = rest.rstrip("\n").split("\n") if rest.strip() else []
    return written, Shown(command=command, lines=tuple(lines))


def run(command: str) -> str:
    """Return what a ``collsim`` command prints on a terminal of 80 columns."""
    from simulator.cli import main

    words = shlex.split(command)
    assert words[0] == "collsim", command
    out = io.StringIO()
    with (
        mock.patch.dict(os.environ, {"COLUMNS": "80"}),
        mock.patch.object(sys, "argv", words),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(out),
        contextlib.suppress(SystemExit),
    ):
        main()
    return out.getvalue()


def renew(path: Path) -> None:
    """Write the real output of every command into the page."""

    def renewed(match: re.Match[str]) -> str:
        parts = []
        for part in _parts(match[1]):
            written, shown = _split(part)
            if shown.lines and shown.command.startswith("collsim"):
                part = written + "\n".join(shown.renewed(run(shown.command))) + "\n"
            parts.append(part)
        return "```console\n" + "".join(parts) + "```"

    path.write_text(BLOCK.sub(renewed, path.read_text("utf-8")), "utf-8")


if __name__ == "__main__":
    os.chdir(ROOT)
    for name in sys.argv[1:]:
        renew(Path(name))
