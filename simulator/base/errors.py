"""Errors a user can meet: one base class, one subclass per room, problems with their place.

A *problem* says where (file, line, dotted key), what was found, what is allowed and the nearest
valid name.  All problems of one input are reported together.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

__all__ = [
    "CalibrationError",
    "CollsimError",
    "InternalError",
    "Problem",
    "RoutingError",
    "ScenarioError",
    "ScheduleError",
    "SimulationError",
    "TopologyError",
    "UnitError",
    "expected",
    "nearest",
    "unknown_name",
    "visible",
]


def nearest(found: str, allowed: Iterable[str]) -> str | None:
    """Return the allowed name closest to *found*, or None when nothing is close.

    Case, hyphens, underscores and blanks are ignored in the comparison.

    Examples
    --------
    >>> nearest("rign", ["ring", "tree"])
    'ring'
    >>> nearest("DGX_H100", ["dgx-h100", "dgx-a100"])
    'dgx-h100'
    """

    def fold(name: str) -> str:
        return name.lower().replace("-", "").replace("_", "").replace(" ", "")

    by_folded = {fold(name): name for name in allowed}
    close = difflib.get_close_matches(fold(found), list(by_folded), n=1, cutoff=0.6)
    return by_folded[close[0]] if close else None


_CONTROL = {
    code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"
}


def visible(text: str) -> str:
    r"""Return a text with control characters escaped: foreign text must not steer a terminal.

    Examples
    --------
    >>> print(visible("\x1b[31mred"))
    \x1b[31mred
    """
    return text if text.isprintable() else text.translate(_CONTROL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One thing wrong with an input, and where it stands."""

    message: str
    """What was found, in words."""
    key: str = ""
    """Dotted key, such as ``collective.algorithm``; empty when none applies."""
    file: str = ""
    """File name, or ``command line``; empty when the input is a Python object."""
    line: int | None = None
    """1-based line in *file*."""
    allowed: str = ""
    """What would be valid, in words."""
    suggestion: str | None = None
    """The nearest valid name."""

    def __str__(self) -> str:
        place = self.file + (f":{self.line}" if self.line is not None else "")
        head = ": ".join(part for part in (place, self.key, self.message) if part)
        tail = [f"allowed: {self.allowed}."] if self.allowed else []
        if self.suggestion is not None:
            tail.append(f"Did you mean {self.suggestion!r}?")
        return visible(head + ("\n  " + " ".join(tail) if tail else ""))


class CollsimError(Exception):
    """Base of every error that a user can cause.

    Parameters
    ----------
    message
        Text, or the list of problems found.
    """

    exit_code = 2

    def __init__(self, message: str | Problem | Sequence[Problem]) -> None:
        if isinstance(message, str):
            self.problems: tuple[Problem, ...] = (Problem(message=message),)
        elif isinstance(message, Problem):
            self.problems = (message,)
        else:
            self.problems = tuple(message)
        super().__init__("\n".join(str(problem) for problem in self.problems))

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle the problems, not their text: an error comes whole from another process."""
        return (type(self), (self.problems,), self.__dict__)


class InternalError(CollsimError):
    """A fault of collsim itself, met where nobody expected it."""

    exit_code = 70
    detail = ""
    """The traceback."""


class UnitError(CollsimError, ValueError):
    """A quantity without its unit, with the wrong unit, or not a finite positive number."""


class ScenarioError(CollsimError):
    """A scenario file or command line that does not describe a run."""


class TopologyError(CollsimError):
    """A node, network or topology file that cannot be built."""


class RoutingError(CollsimError):
    """No path is left between two vertices that must talk."""

    exit_code = 1


class ScheduleError(CollsimError):
    """A collective that the chosen algorithm cannot do for this call."""


class CalibrationError(CollsimError):
    """Measurements that cannot be used, or a fit that must be refused."""


class SimulationError(CollsimError):
    """A run that cannot finish: deadlock, mismatched calls, a cut fabric."""

    exit_code = 1


def expected(error: BaseException) -> CollsimError:
    """Return an exception as one that a user can read, in one line.

    Parameters
    ----------
    error
        Of this project, as it is; `MemoryError`: a `SimulationError`; any other: an
        `InternalError` with kind, message and place, and the traceback in its ``detail``.

    Examples
    --------
    >>> str(expected(ValueError("no such")))
    'ValueError: no such'
    """
    if isinstance(error, CollsimError):
        return error
    if isinstance(error, MemoryError):
        return SimulationError("out of memory: a smaller cluster or fewer calls may fit")
    import traceback

    place = ""
    for frame in traceback.extract_tb(error.__traceback__):
        parts = frame.filename.replace("\\", "/").split("/")
        if not place or {"simulator", "topologies", "validation"} & set(parts):
            place = f" ({'/'.join(parts[-2:])}:{frame.lineno})"
    text = " ".join(str(error).split())[:300]
    made = InternalError(": ".join(part for part in (type(error).__name__, text) if part) + place)
    made.detail = "".join(traceback.format_exception(error))
    return made


def unknown_name(kind: str, found: str, allowed: Iterable[str]) -> Problem:
    """Return the problem of an unknown name, with the allowed ones and the nearest.

    Examples
    --------
    >>> print(unknown_name("algorithm", "rign", ["tree", "ring"]))
    unknown algorithm 'rign'
      allowed: ring, tree. Did you mean 'ring'?
    """
    names = sorted(allowed)
    return Problem(
        message=f"unknown {kind} {found!r}",
        allowed=", ".join(names),
        suggestion=nearest(found, names),
    )
