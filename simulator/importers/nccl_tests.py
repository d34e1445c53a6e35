"""Read the logs of nccl-tests and rccl-tests: every version, any launcher, text or ``-J`` JSON.

Nothing is lost silently: what cannot be kept is listed with its line, and what contradicts
itself is a warning.

References
----------
.. [1] nccl-tests 2.0.0 to 2.20, ``src/common.cu`` and ``src/util.cu``: the printed formats.
.. [2] rccl-tests, ``src/common.cu``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import IO

from simulator.base.errors import Problem
from simulator.importers.log_header import Facts, device_line, parameter_line
from simulator.importers.log_hints import Hints
from simulator.importers.log_rows import RawRow, RowBudget, RowReader, Titles, may_begin
from simulator.importers.log_tables import Block, build_tables
from simulator.importers.log_text import clean, info_host, number_readings, split_info
from simulator.importers.measured import (
    Device,
    Log,
    MeasuredTable,
    RunParameters,
    line_ranges,
)
from simulator.importers.nccl_tests_json import looks_like_json, read_json
from simulator.importers.registry import importer
from simulator.importers.source import ForeignFileError, TextSource, open_source

__all__ = ["MAX_ROWS", "read"]

MAX_HOSTS = 10_000
MAX_ROWS = 100_000
"""Rows kept of one file (about 100 MB of objects); more are counted and reported."""

_AVERAGE = re.compile(r"Avg bus bandwidth\s*:\s*(\d[\d.,_']*(?:e[+-]\d+)?|nan|inf)")
_OUT_OF_BOUNDS = re.compile(r"Out of bounds values\s*:\s*(\d+)\s*(\w+)")
_FAILURE = re.compile(r"Test (?:NCCL|CUDA|HIP) failure|: Test failure|NCCL WARN|Test timeout")
_BEGINS = re.compile(r"_perf|-tests.*ersion|# collsim measure:|Collective test starting:")
_DIGIT = re.compile(r"\d")
_REDUCED = re.compile(r"Reducing maxBytes to (\d+)")


@dataclass(slots=True)
class _Stream:
    """One process's printout: header, then rows."""

    reader: RowReader
    parameters: RunParameters = field(default_factory=RunParameters)
    devices: list[Device] = field(default_factory=list)
    average: float | None = None
    closed: bool = False
    ended_at: int = 0
    """Line of the last row of the last table."""
    printed: bool = False
    """True once a table of this process was kept."""


class _Reader:
    """The state machine over lines."""

    def __init__(self, source: TextSource) -> None:
        self.source = source
        self.facts = Facts()
        self.streams: dict[str, _Stream] = {}
        self.tables: list[MeasuredTable] = []
        self.problems: list[Problem] = []
        self.dropped: list[tuple[int, str]] = []
        self.cut: list[int] = []
        self.halves: list[int] = []
        self.elided: list[int] = []
        self.failures: list[int] = []
        self.n_rows = 0
        self.budget = RowBudget(left=MAX_ROWS)
        self.hints = Hints()
        self.command: list[str] = []
        self.hosts: set[str] = set()
        self.heads: set[str] = set()
        """What stood before messages: process, thread and device, with a launcher's tag."""
        self.carried: tuple[int, str, str] | None = None
        self.any_closed = False
        self.any_open = False

    # -- lines ------------------------------------------------------------------------------

    def line(self, number: int, raw: str) -> None:
        """Take one line of the file."""
        # The usual line of a debug log, of which there may be millions, without a full clean.
        if (place := raw.find(" NCCL INFO ")) > 0:
            start = 22 if raw[20:22] == "] " and raw[0] == "[" else 0
            message = raw[place + 11 :]
            if self._is_info_head(raw[start:place]) and "    " not in message:
                self.facts.at = number
                self.facts.message(message)
                if self.hints.watching:
                    self.hints.feed(raw)
                return
        if self.n_rows == 0:
            self.hints.feed(raw)
        cleaned = clean(raw)
        info = split_info(cleaned.text) if " NCCL " in cleaned.text else None
        if info is not None:
            self._info(number, cleaned.tag, info)
            return
        if self.carried is not None:
            joined = self._join(cleaned.text)
            if joined is not None:
                self.carried = None
                self._row(cleaned.tag, number, joined)
                return
            self._release()
        self._text(cleaned.tag, number, cleaned.text)

    def _is_info_head(self, head: str) -> bool:
        """Return True where *head* is all that stands before a message; its host is kept."""
        if head in self.heads:
            return True
        host = info_host(head)
        # A host that begins with a digit may have a number of a row glued to it: it must be known.
        if host is None or (host[0].isdigit() and host not in self.hosts):
            return False
        if self._glued_digits(host):
            return False
        if host not in self.hosts and len(self.hosts) < MAX_HOSTS:
            self.hosts.add(host)
            self.heads.clear()
        if len(self.heads) >= MAX_HOSTS:
            self.heads.clear()
        self.heads.add(head)
        return True

    def _glued_digits(self, host: str) -> str:
        """Return the digits of a row that stand before a known host's name; empty for none."""
        for place, letter in enumerate(host):
            if not letter.isdigit():
                return ""
            if host[place + 1 :] in self.hosts:
                return host[: place + 1]
        return ""

    def _info(self, number: int, tag: str, info: tuple[str, str, str, str]) -> None:
        before, host, level, message = info
        self.facts.at = number
        if level == "WARN":
            self.failures.append(number)
            self.facts.warning(message)
        self.facts.message(message)
        # Glued to the end of what stood there: a number at least, behind words anything.
        if before.strip():
            known = [name for name in self.hosts if host.endswith(name) and host != name]
            before += host[: -len(max(known, key=len))] if known else ""
        else:
            before = self._glued_digits(host)
        if not before.strip():
            if len(self.hosts) < MAX_HOSTS:
                self.hosts.add(host)
            if "    " in message:
                self._row(tag, number, message)
            return
        # A table row was interrupted, perhaps within a word: its end stands in a later line.
        if self.carried is None:
            self.carried = (number, tag, before)
        else:
            first, tag, start = self.carried
            self.carried = (first, tag, start + before)

    def _join(self, text: str) -> str | None:
        """Return the carried start and *text* as one row, None when that gives no whole row."""
        assert self.carried is not None
        _, tag, start = self.carried
        reader = self._stream(tag).reader
        for joined in (start + text, start + text.lstrip(), f"{start} {text}"):
            if reader.is_row(joined):
                return joined
        return None

    def _release(self) -> None:
        if self.carried is not None:
            number, tag, text = self.carried
            self.carried = None
            self._text(tag, number, text)

    def _text(self, tag: str, number: int, text: str) -> None:
        text = text.replace("|", " ") if text.lstrip()[:1] == "|" else text
        stripped = text.strip()
        if not stripped:
            return
        if stripped in ("...", "…", "[...]", "# ..."):
            self.elided.append(number)
            return
        if not self._row(tag, number, text):
            self._other(tag, number, text, stripped)

    def _row(self, tag: str, number: int, text: str) -> bool:
        first = text.lstrip()[:1]
        if first == "#":
            stream = self.streams.get(tag)
            if stream is not None:
                stream.reader.feed(number, "#")
            return False
        if _DIGIT.search(text) is None:
            return False
        stream = self.streams.get(tag)
        if stream is None:
            # Lines without a table above them are tried too: a log may begin in its middle.
            if not may_begin(text):
                return False
            stream = self._stream(tag)
        return stream.reader.feed(number, text)

    def _other(self, tag: str, number: int, text: str, stripped: str) -> None:
        titles = Titles.parse(stripped)
        if titles is not None:
            stream = self._stream(tag)
            if stream.reader.started:
                self._close(stream)
            stream.reader.set_titles(titles)
        elif "nThread" in text and "nGpus" in text:
            stream = self._start(tag)
            stream.parameters = parameter_line(text)
        elif "Rank" in text and (device := device_line(text)) is not None:
            self._stream(tag).devices.append(device)
        elif "Avg bus bandwidth" in text and "`" not in text:
            stream = self._stream(tag)
            match = _AVERAGE.search(text)
            if match is not None and stream.reader.started:
                stream.average = _average(match.group(1), stream.reader.rows)
                self._close(stream, whole=True)
        elif "Out of bounds values" in text and "`" not in text:
            match = _OUT_OF_BOUNDS.search(text)
            if match is not None and match.group(2) not in ("OK",) and int(match.group(1)) > 0:
                self.problems.append(
                    self._problem(f"{match.group(1)} values out of bounds: FAILED", number)
                )
        else:
            self._plain(tag, number, text, stripped)

    def _plain(self, tag: str, number: int, text: str, stripped: str) -> None:
        if _FAILURE.search(text):
            self.failures.append(number)
        if match := _REDUCED.search(text):
            self.problems.append(
                self._problem(f"the test lowered maxBytes to {match.group(1)}: memory", number)
            )
        if "concluded" not in text and _BEGINS.search(text):
            self._start(tag)
        if stripped.endswith("\\") and len(self.command) < 200:
            self.command.append(stripped[:-1])
            return
        if self.command:
            # One command over several lines: the ranks stand apart from the program.
            text = " ".join([*self.command, text])
            self.command = []
        self.facts.at = number
        self.facts.line(text)

    # -- blocks -----------------------------------------------------------------------------

    def _stream(self, tag: str) -> _Stream:
        stream = self.streams.get(tag)
        if stream is None:
            if len(self.streams) == 1 and (tag == "" or "" in self.streams):
                # A header without tag above tagged rows, or the other way round.
                stream = next(iter(self.streams.values()))
            else:
                stream = _Stream(reader=RowReader(self.budget))
            self.streams[tag] = stream
        return stream

    def _start(self, tag: str) -> _Stream:
        """Begin another test: close the table above and forget what belonged to it."""
        stream = self._stream(tag)
        if stream.reader.started:
            self._close(stream)
            self._fresh(stream)
        elif stream.closed:
            self._fresh(stream)
        return stream

    def _fresh(self, stream: _Stream) -> None:
        stream.closed = False
        stream.devices = []
        stream.parameters = RunParameters()
        self.facts = self.facts.following(stream.ended_at)

    def _close(self, stream: _Stream, *, whole: bool = False) -> None:
        reader = stream.reader
        reader.flush()
        self.dropped.extend(reader.dropped)
        self.cut.extend(reader.cut_rows)
        self.halves.extend(reader.half_rows)
        self.any_closed |= whole
        self.any_open |= not whole and bool(reader.rows)
        if reader.unknown_types:
            names = ", ".join(sorted(reader.unknown_types))
            self.problems.append(self._problem(f"unknown data type {names}", None))
        if reader.rows:
            stream.ended_at = reader.rows[-1].line
            devices = {device.rank: device for device in stream.devices}
            zeros = sum(device.rank == 0 for device in stream.devices)
            # A failed run's header above a good one repeats rank 0 too, but not the sizes.
            repeated = 2 * len({row.size_bytes for row in reader.rows}) <= len(reader.rows)
            self.n_rows += len(reader.rows)
            tables, problems = build_tables(
                Block(
                    source=self.source.name,
                    shown=self.source.shown,
                    facts=self.facts,
                    parameters=stream.parameters,
                    devices=tuple(devices[rank] for rank in sorted(devices)),
                    copies=zeros if zeros > 1 and repeated else 1,
                    cpu_time=reader.titles.cpu_time,
                    average=stream.average,
                    rows=tuple(reader.rows),
                )
            )
            stream.printed = True
            self.tables.extend(tables)
            self.problems.extend(problems)
        stream.reader = RowReader(self.budget, titles=reader.titles)
        stream.average = None
        stream.closed = True

    def _problem(self, message: str, line: int | None) -> Problem:
        return Problem(message=message, file=self.source.shown, line=line)

    # -- the end ----------------------------------------------------------------------------

    def finish(self) -> Log:
        """Close what is open and report everything lost."""
        self._release()
        streams = {id(stream): stream for stream in self.streams.values()}
        for stream in streams.values():
            self._close(stream)
        if not self.tables:
            raise self._nothing()
        printing = sum(stream.printed for stream in streams.values())
        if printing > 1:
            message = (
                f"{printing} processes printed tables of their own: separate tests (nccl-tests "
                "built without MPI=1?), or the logs of several jobs"
            )
            self.problems.append(self._problem(message, None))
        self._report_losses()
        return Log(
            tables=tuple(sorted(self.tables, key=lambda table: table.rows[0].line)),
            warnings=tuple(self.problems),
            dropped_lines=tuple(sorted({line for line, _ in self.dropped})),
        )

    def _report_losses(self) -> None:
        by_reason: dict[str, list[int]] = {}
        for line, reason in self.dropped:
            by_reason.setdefault(reason, []).append(line)
        for reason, lines in by_reason.items():
            count = len(set(lines))
            self.problems.append(
                self._problem(f"{count} dropped, {line_ranges(lines)}: {reason}", min(lines))
            )
        notes = (
            (self.cut, "{}: the row is cut in its in-place columns; the out-of-place half is kept"),
            (self.halves, "{}: no in-place columns"),
            (self.elided, "{}: rows were left out by hand (…)"),
            (self.failures, "{}: NCCL or the test reported a failure or warning"),
        )
        for lines, text in notes:
            if lines:
                self.problems.append(self._problem(text.format(line_ranges(lines)), min(lines)))
        if self.any_open and not self.any_closed:
            last = max(table.rows[-1].line for table in self.tables)
            self.problems.append(
                self._problem("no closing lines: the log may be cut after this row", last)
            )
        budget = self.budget
        if budget.lost:
            self.problems.append(
                self._problem(
                    f"{budget.lost} rows beyond the first {MAX_ROWS} were not kept, "
                    f"lines {budget.first_lost} to {budget.last_lost}",
                    budget.first_lost,
                )
            )
        if budget.pieces:
            message = f"{budget.pieces} more lines of numbers were dropped, not listed singly"
            self.problems.append(self._problem(message, None))
        if self.source.damage:
            self.problems.append(self._problem(self.source.damage, None))

    def _nothing(self) -> ForeignFileError:
        lost = sorted({line for line, _ in self.dropped})
        if lost:
            message = f"no complete row of an nccl-tests table; {line_ranges(lost)} hold pieces"
        elif any(stream.devices or stream.reader.titled for stream in self.streams.values()):
            message = "the header of a test is here, but no row of results"
        else:
            message = "no table of nccl-tests or rccl-tests"
        if self.hints.found is not None:
            message += f"; it looks like {self.hints.found}"
        if self.failures:
            message += f"; a failure is reported at {line_ranges(self.failures, 3)}"
        return ForeignFileError(
            Problem(
                file=self.source.shown,
                message=message,
                allowed="rows such as '1048576 262144 float sum -1 74.78 14.02 24.54 0 …', or the "
                "JSON of option -J",
            )
        )


def _average(text: str, rows: Sequence[RawRow]) -> float | None:
    """Return the printed average; of 112,578 the reading that the rows are nearer to."""
    readings = number_readings(text)
    if len(readings) < 2:
        return readings[0] if readings else None
    most = max((half.busbw or 0.0 for row in rows for half in row.halves), default=0.0)
    return min(readings, key=lambda value: value > most)


@importer(
    "nccl_tests",
    summary="logs of nccl-tests and rccl-tests, text or JSON",
    reference="nccl-tests src/common.cu, src/util.cu",
)
def read(source: str | bytes | os.PathLike[str] | IO[str]) -> Log:
    r"""Read every table of a log.

    Parameters
    ----------
    source
        A path (plain, gzip, bzip2, xz; UTF-8 or UTF-16), the text itself (any string with a line
        end), bytes, or an open text stream.

    Returns
    -------
    Log
        At least one table; warnings name the file and line.

    Raises
    ------
    ForeignFileError
        Missing, empty or binary, or without a single complete row; then the message says what the
        text looks like.

    Notes
    -----
    One pass over a stream of lines; memory grows with the rows, up to `MAX_ROWS`, not with the
    file.  Lines that several processes write into one row are joined as far as the pieces stand
    in order.

    Examples
    --------
    >>> log = read("1048576 262144 float sum -1 74.78 14.02 24.54 0 76.17 13.77 24.09 0\n")
    >>> log.tables[0].collective, log.tables[0].n_ranks, len(log.tables[0].rows)
    ('all_reduce', 8, 1)
    """
    opened = open_source(source)
    if looks_like_json(opened):
        return read_json(opened)
    reader = _Reader(opened)
    for number, raw in opened.lines():
        reader.line(number, raw)
    return reader.finish()
