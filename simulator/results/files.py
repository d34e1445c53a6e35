"""CSV, JSON and Markdown files of a result, written whole or not at all."""

from __future__ import annotations

import csv
import io
import json
import math
import os
import stat
import sys
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from simulator.base.errors import CollsimError, Problem
from simulator.results.goodput import GoodputResult
from simulator.results.layout import Table
from simulator.results.model import (
    FRAME_COLUMNS,
    Device,
    Failure,
    LinkEvent,
    LinkLoad,
    Provenance,
    RankTimes,
    Row,
    RunResult,
    StepSummary,
    TraceEvent,
    Vertex,
    row_record,
)
from simulator.results.training import (
    STEP_COLUMNS,
    CallTimes,
    MemoryRow,
    RankAccount,
    TrainingStep,
    step_record,
)

__all__ = [
    "SCHEMA_VERSION",
    "STANDARD_OUTPUT",
    "csv_text",
    "from_mapping",
    "json_text",
    "markdown_text",
    "plain",
    "read_json",
    "to_mapping",
    "write_bytes",
    "write_csv",
    "write_json",
    "write_markdown",
    "write_text",
]

SCHEMA_VERSION = 1
"""Of the JSON file; raised when a field changes its meaning."""

STANDARD_OUTPUT = "-"
"""Path of a file that is printed instead."""

_RECORDS: dict[str, type[Any]] = {
    "rows": Row,
    "steps": StepSummary,
    "goodput": GoodputResult,
    "links": LinkLoad,
    "trace": TraceEvent,
    "link_trace": LinkEvent,
    "vertices": Vertex,
    "devices": Device,
    "failures": Failure,
}


def _refusal(path: Path, error: OSError) -> CollsimError:
    reason = error.strerror or str(error)
    return CollsimError(
        Problem(
            message=f"cannot write: {reason}",
            file=str(path),
            allowed="a file in a folder that exists and may be written",
        )
    )


def write_bytes(path: str | os.PathLike[str], data: bytes) -> None:
    """Write a file so that readers see the old content or the new one, never a part.

    The data go to a temporary file beside the target, which then takes its name and its
    permissions.  Targets that are no regular files (a pipe, a device) and open descriptors
    (``/dev/fd/3``) are written directly, as is a file in a folder that takes no new ones;
    `STANDARD_OUTPUT` is printed.

    Raises
    ------
    CollsimError
        The folder does not exist or cannot be written, or *path* is a folder.
    """
    if os.fspath(path) == STANDARD_OUTPUT:
        _print_bytes(data)
        return
    target = Path(path)
    try:
        if target.is_dir():
            raise IsADirectoryError(0, "it is a folder")
        number = _descriptor(os.fspath(path))
        if number is not None:
            with open(os.dup(number), "wb") as stream:
                stream.write(data)
        elif target.exists() and not target.is_file():
            with open(target, "wb") as stream:
                stream.write(data)
        else:
            _replace(Path(os.path.realpath(target)), data)
    except ValueError as error:  # a name with a NUL
        raise _refusal(Path(path), OSError(0, str(error))) from error
    except OSError as error:
        raise _refusal(Path(path), error) from error


def _print_bytes(data: bytes) -> None:
    sys.stdout.flush()
    try:
        sys.stdout.buffer.write(data)
    except AttributeError:  # a stream of text alone, as in notebooks
        sys.stdout.write(data.decode())
    sys.stdout.flush()


def _descriptor(name: str) -> int | None:
    """Return the number of an open descriptor that a name stands for; None: a name of its own.

    Opened by name, a regular file behind ``/dev/stdout`` would be written from its start, over
    what was printed.
    """
    known = {"/dev/stdin": 0, "/dev/stdout": 1, "/dev/stderr": 2}
    if name in known:
        return known[name]
    folder, _, last = name.rpartition("/")
    is_number = folder in ("/dev/fd", "/proc/self/fd") and last.isascii() and last.isdigit()
    return int(last) if is_number else None


def _replace(target: Path, data: bytes) -> None:
    """Give a regular file new content at once, with the permissions that it has."""
    partial = target.with_name(f".collsim-{os.getpid()}.part")  # short, whatever the name is
    try:
        mode = target.stat().st_mode if target.exists() else None
        try:
            stream = open(partial, "wb")  # noqa: SIM115
        except PermissionError:
            if mode is None:
                raise
            _overwrite(target, data)
            return
        with stream:
            stream.write(data)
            if mode is not None:
                os.chmod(partial, stat.S_IMODE(mode))
        os.replace(partial, target)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def _overwrite(target: Path, data: bytes) -> None:
    """Write over a file whose folder takes no new ones; where the disk is full it stays as it was.

    The room is asked for before anything is lost.
    """
    with open(target, "r+b") as stream:
        if hasattr(os, "posix_fallocate") and data:
            os.posix_fallocate(stream.fileno(), 0, len(data))
        stream.write(data)
        stream.truncate()


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write text as UTF-8, whole or not at all; see `write_bytes`."""
    write_bytes(path, text.encode())


def _csv_cell(value: Any) -> Any:
    if value is None:
        return ""
    # Twelve digits: more than any model deserves, and free of the noise of s → us.
    return f"{value:.12g}" if isinstance(value, float) else value


def csv_text(result: RunResult) -> str:
    """Return the rows as CSV with the columns `FRAME_COLUMNS`, LF line ends."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    if result.training:
        writer.writerow(STEP_COLUMNS)
        for step in result.training:
            writer.writerow([_csv_cell(value) for value in step_record(step).values()])
        return buffer.getvalue()
    writer.writerow(FRAME_COLUMNS)
    for row in result.rows:
        writer.writerow([_csv_cell(value) for value in row_record(row).values()])
    return buffer.getvalue()


def write_csv(result: RunResult, path: str | os.PathLike[str]) -> None:
    """Write `csv_text` to a file."""
    write_text(path, csv_text(result))


def plain(value: Any) -> Any:
    """Return *value* as what JSON knows; numbers that are not finite become null."""
    # Nearly all values are of these exact types (numpy's float64 is a float too, but not exactly).
    kind = type(value)
    if kind is str or kind is int or kind is bool or value is None:
        return value
    if kind is float:
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if is_dataclass(value) and not isinstance(value, type):
        return {item.name: plain(getattr(value, item.name)) for item in fields(value)}
    if hasattr(value, "tolist"):  # numpy arrays and scalars inside scenarios and args
        return plain(value.tolist())
    return str(value)


def to_mapping(result: RunResult, *, trace: bool = True) -> dict[str, Any]:
    """Return a result as plain mappings, lists, numbers and text.

    Parameters
    ----------
    result
        What to convert.
    trace
        Include the intervals; they can be a hundred times larger than the rest.
    """
    mapping = {"schema_version": SCHEMA_VERSION, **plain(result)}
    for shown, row in zip(mapping["rows"], result.rows, strict=True):
        shown["percent_of_bound"] = plain(row.percent_of_bound)
    if not trace:
        mapping["trace"] = mapping["link_trace"] = []
    return mapping


def write_json(result: RunResult, path: str | os.PathLike[str], *, trace: bool = False) -> None:
    """Write a result with its provenance as JSON (SI units, names as in `RunResult`)."""
    write_text(path, json_text(to_mapping(result, trace=trace)))


def json_text(mapping: Mapping[str, Any]) -> str:
    """Return a mapping as JSON with one line a record.

    ``json.dumps(indent=…)`` would leave its C encoder and take ten times as long.
    """
    dumps = json.JSONEncoder(allow_nan=False, ensure_ascii=False).encode
    entries = []
    for key, value in mapping.items():
        if isinstance(value, list) and value and isinstance(value[0], dict):
            shown = "[\n  " + ",\n  ".join(map(dumps, value)) + "\n ]"
        else:
            shown = dumps(value)
        entries.append(f" {dumps(key)}: {shown}")
    return "{\n" + ",\n".join(entries) + "\n}\n"


def _step(mapping: Mapping[str, Any]) -> TrainingStep:
    """Return a training step of a file, with its nested records."""
    nested = {
        "accounts": tuple(
            _record(RankAccount, {**item, "ranks": tuple(item["ranks"])})
            for item in mapping["accounts"]
        ),
        "calls": tuple(_record(CallTimes, item) for item in mapping["calls"]),
        "memory": tuple(_record(MemoryRow, item) for item in mapping["memory"]),
        "remedies": tuple(mapping["remedies"]),
    }
    step: TrainingStep = _record(TrainingStep, {**mapping, **nested})
    return step


def _record(kind: type[Any], mapping: Mapping[str, Any]) -> Any:
    values = {item.name: mapping[item.name] for item in fields(kind) if item.name in mapping}
    for item in fields(kind):
        if item.type == "float" and values.get(item.name, 0.0) is None:
            values[item.name] = math.nan  # JSON has no other word for "not finite" than null
    return kind(**values)


def from_mapping(mapping: Mapping[str, Any]) -> RunResult:
    """Return the result that `to_mapping` described.

    Raises
    ------
    CollsimError
        Another schema version, or fields missing.
    """
    found = mapping.get("schema_version")
    if found != SCHEMA_VERSION:
        raise CollsimError(
            Problem(
                message=f"result of schema version {found!r}",
                key="schema_version",
                allowed=str(SCHEMA_VERSION),
            )
        )
    try:
        parts: dict[str, Any] = {
            name: tuple(_record(kind, item) for item in mapping.get(name, ()))
            for name, kind in _RECORDS.items()
        }
        ranks = mapping.get("ranks")
        return RunResult(
            title=mapping["title"],
            provenance=_record(Provenance, mapping["provenance"]),
            ranks=None
            if ranks is None
            else RankTimes(**{key: tuple(value) for key, value in ranks.items()}),
            warnings=tuple(mapping.get("warnings", ())),
            notes=tuple(mapping.get("notes", ())),
            training=tuple(_step(item) for item in mapping.get("training", ())),
            **parts,
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CollsimError(f"not a result of collsim: {error}") from error


def read_json(path: str | os.PathLike[str]) -> RunResult:
    """Return the result written by `write_json`.

    Raises
    ------
    CollsimError
        The file cannot be read, is not JSON, or is not a result.
    """
    try:
        mapping = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        message = f"cannot read: {error.strerror or error}"
        raise CollsimError(Problem(message=message, file=str(path))) from error
    except ValueError as error:
        raise CollsimError(Problem(message=f"not JSON: {error}", file=str(path))) from error
    if not isinstance(mapping, dict):
        raise CollsimError(Problem(message="not a result of collsim", file=str(path)))
    return from_mapping(mapping)


def markdown_text(result: RunResult, table: Table) -> str:
    """Return a table under the result's title, with warnings, notes and provenance."""
    made = result.provenance
    parts = [f"## {result.title}", table.markdown()]
    if result.warnings:
        parts.append("\n".join(f"> **Warning:** {text}" for text in result.warnings))
    if result.notes:
        parts.append("\n".join(f"- {text}" for text in result.notes))
    seed = "" if made.seed is None else f", seed {made.seed}"
    parts.append(f"Predicted by collsim {made.version}{seed}.")
    return "\n\n".join(parts) + "\n"


def write_markdown(result: RunResult, table: Table, path: str | os.PathLike[str]) -> None:
    """Write `markdown_text` to a file."""
    write_text(path, markdown_text(result, table))
