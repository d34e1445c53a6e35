"""Where files may go: refused, before anything is simulated, is what could not be written."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Sequence
from pathlib import Path

from simulator.base.errors import Problem, ScenarioError, nearest
from simulator.cli.output import Files

__all__ = ["check_places", "refuse_of_one", "refuse_overwriting"]

ALLOWED = "a file in a folder that exists and may be written"


def check_places(files: Files, *, inputs: Sequence[str] = ()) -> None:
    """Refuse, before anything is simulated, files that could not be written afterwards.

    Parameters
    ----------
    files
        What is asked for.
    inputs
        Files that are read: none of them may be written.

    Raises
    ------
    ScenarioError
        Every file whose folder is missing or closed, that is an input or asked for twice, and
        every unknown kind of picture.
    """
    problems: list[Problem] = []
    if files.documents.count("-") > 1:
        problems.append(
            Problem(
                file="-",
                message="several documents for standard output",
                allowed="- for one of --csv, --json, --markdown and --trace, files for the others",
            )
        )
    read = {_identity(name): name for name in inputs if name != "-"}
    taken: dict[object, str] = {}
    for name in (*(name for name in files.documents if name != "-"), *files.plots):
        place = _identity(name)
        reason = _refusal(name)
        if reason:
            problems.append(Problem(file=name, message=f"cannot write: {reason}", allowed=ALLOWED))
        elif place in read:
            problems.append(
                Problem(
                    file=name,
                    message=f"cannot write: it is the input {read[place]}",
                    allowed="another file",
                )
            )
        elif place in taken:
            problems.append(
                Problem(
                    file=name,
                    message="cannot write: two outputs have this place",
                    allowed="a file for each",
                )
            )
        taken.setdefault(place, name)
    problems += _unknown_formats(files.plots)
    if problems:
        raise ScenarioError(problems)


def refuse_of_one(files: Files) -> None:
    """Refuse files that show one run, where several variants are asked for.

    Raises
    ------
    ScenarioError
        A trace, or a picture of links or of a timeline.
    """
    words = ("gantt", "timeline", "link", "memory")
    wanted = [name for name in (files.trace,) if name is not None]
    wanted += [name for name in files.plots if any(word in Path(name).stem for word in words)]
    if wanted:
        raise ScenarioError(
            [
                Problem(
                    file=name,
                    message="shows one run, and several variants are asked for",
                    allowed="one variant: --set KEY=VALUE for each swept key",
                )
                for name in wanted
            ]
        )


def refuse_overwriting(files: Files, given: Files) -> None:
    """Refuse to overwrite files that the scenario names, and the command line does not.

    Raises
    ------
    ScenarioError
        One that exists; a device or a pipe may be named.
    """
    named = {*given.documents, *given.plots}
    found = [
        name
        for name in (*files.documents, *files.plots)
        if name not in named and name != "-" and Path(name).is_file()
    ]
    if found:
        raise ScenarioError(
            [
                Problem(
                    file=name,
                    key="output",
                    message="is there already, and the scenario would overwrite it",
                    allowed="--force, or another place by --csv, --json, --trace or --plot",
                )
                for name in found
            ]
        )


def _identity(name: str) -> object:
    """Return the same for two names of one file, whether it is there or not yet."""
    try:
        found = os.stat(name)
    except (OSError, ValueError):
        return _real(name)
    if not stat.S_ISREG(found.st_mode):
        return object()  # a device or a pipe takes all
    return found.st_dev, found.st_ino


def _real(name: str) -> str:
    try:
        return os.path.realpath(name)
    except (OSError, ValueError):  # the current folder is gone, or a NUL is in the name
        return name


def _refusal(name: str) -> str:
    """Return why a file cannot be written, by trying; empty: it can.

    Permissions alone do not tell: a superuser has all, and /proc takes none of them.  What is no
    regular file is only looked at: opened, a pipe would wait for its reader, and end it.
    """
    path = Path(name)
    try:
        if path.is_dir():
            return "it is a folder"
        if path.exists() and not path.is_file():
            return "" if os.access(path, os.W_OK) else f"it may not be written ({path.parent})"
        path = Path(os.path.realpath(path)) if path.is_symlink() else path
        if not path.parent.is_dir():
            return f"there is no folder {path.parent}"
        is_new = not path.exists()
        with path.open("ab"):
            pass
        if is_new:
            path.unlink()
    except (OSError, ValueError) as error:
        return f"{getattr(error, 'strerror', None) or error} ({path.parent})"
    return ""


def _unknown_formats(plots: Iterable[str]) -> list[Problem]:
    names = list(plots)
    if not names:
        return []
    from simulator.results.plots_style import FORMATS  # drawing is slow to import

    return [
        Problem(
            file=name,
            message=f"unknown picture format {Path(name).suffix or Path(name).name!r}",
            allowed=", ".join(f".{known}" for known in FORMATS),
            suggestion=nearest(Path(name).suffix.removeprefix(".").lower(), FORMATS),
        )
        for name in names
        if Path(name).suffix.removeprefix(".").lower() not in FORMATS
    ]
