"""Rows of an nccl-tests table: find them in a line, join their pieces, read their columns.

A row is ``size count type [redop] [root]`` and one or two groups of ``time algbw busbw [#wrong]``,
with four more columns per group under option ``-I`` and a date behind under ``-S``.  The program
prints a row in two or three pieces, so other processes' lines may stand inside it.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field

from simulator.importers.log_text import is_value, number_readings, resolution, whole

__all__ = ["DTYPES", "RawHalf", "RawRow", "RowBudget", "RowReader", "Titles", "may_begin"]

DTYPES: dict[str, int] = {
    "int8": 1,
    "char": 1,
    "uint8": 1,
    "fp8_e4m3": 1,
    "fp8_e5m2": 1,
    "f8e4m3": 1,
    "f8e5m2": 1,
    "half": 2,
    "float16": 2,
    "bfloat16": 2,
    "bf16": 2,
    "int32": 4,
    "int": 4,
    "uint32": 4,
    "float": 4,
    "float32": 4,
    "int64": 8,
    "uint64": 8,
    "double": 8,
    "float64": 8,
}
"""Bytes of an element, by the names of all versions."""

_START = re.compile(r"(?<![\w.,\]])(\d[\d,._']*)\s+(\d[\d,._']*)\s+([A-Za-z]\w*)(?=\s|$)")
_NOT_MEASURED = ("N/A", "n/a")
MAX_DROPPED = 10_000
_GLUED = re.compile(r"^(-?\d+(?:\.\d+)?(?:e[+-]\d+)?|N/A)(?=[A-Za-z(\[])")


@dataclass(frozen=True, slots=True)
class Titles:
    """Columns by the title line."""

    has_root: bool | None = None
    per_half: int | None = None
    halves: int = 2
    cpu_time: bool = False

    @classmethod
    def parse(cls, text: str) -> Titles | None:
        """Read a title line, or return None when the line is none.

        Examples
        --------
        >>> Titles.parse("# size count type redop time algbw busbw error time algbw busbw error")
        Titles(has_root=False, per_half=4, halves=2, cpu_time=False)
        """
        words = text.replace("#", " ").replace("|", " ").split()
        if words[:3] != ["size", "count", "type"]:
            return None
        times = [place for place, word in enumerate(words) if word in ("time", "cputime")]
        if not times:
            return cls(has_root="root" in words)
        ends = [*times[1:], len(words)]
        return cls(
            has_root="root" in words[: times[0]],
            per_half=max(ends[0] - times[0], 3),
            halves=len(times),
            cpu_time=words[times[0]] == "cputime",
        )


@dataclass(frozen=True, slots=True)
class RawHalf:
    """One group of result columns, in the printed units (µs, GB/s)."""

    time_us: float
    time_resolution: float
    algbw: float | None
    busbw: float | None
    bandwidth_resolution: float
    wrong: int | None
    max_error: float | None
    quantiles_us: tuple[float, float, float] | None


@dataclass(frozen=True, slots=True)
class RawRow:
    """One row before rank count and collective are known."""

    line: int
    size_bytes: int
    count: int
    dtype: str
    redop: str | None
    root: int | None
    out_of_place: RawHalf | None
    in_place: RawHalf | None

    @property
    def halves(self) -> tuple[RawHalf, ...]:
        """The halves that were measured."""
        return tuple(half for half in (self.out_of_place, self.in_place) if half is not None)


def may_begin(text: str) -> bool:
    """Return True for a line that holds the start of a row, or numbers enough for its end."""
    if _START.search(text) is not None:
        return True
    tokens = text.split()
    return len(tokens) >= 6 and all(map(is_value, tokens))


@dataclass(slots=True)
class RowBudget:
    """How many rows may still be kept of a file, and what was not."""

    left: int
    lost: int = 0
    first_lost: int = 0
    last_lost: int = 0
    pieces: int = 0
    """Lines dropped beyond the `MAX_DROPPED` that are listed."""

    def take(self, line: int) -> bool:
        """Return True when a row may be kept; else count it."""
        if self.left > 0:
            self.left -= 1
            return True
        self.lost += 1
        self.first_lost = self.first_lost or line
        self.last_lost = line
        return False


@dataclass(slots=True)
class _Pending:
    line: int
    size: int
    count: int
    dtype: str
    redop: str | None
    values: list[str]
    lines: list[int]


@dataclass(slots=True)
class RowReader:
    """Joins pieces to rows; everything that is no full row is kept by line number.

    Attributes
    ----------
    rows
        Finished rows, in order; the caller may take them away.
    dropped
        Line and reason of everything that was lost.
    half_rows
        Lines of rows with out-of-place columns only.
    """

    budget: RowBudget
    titles: Titles = field(default_factory=Titles)
    rows: list[RawRow] = field(default_factory=list)
    dropped: list[tuple[int, str]] = field(default_factory=list)
    half_rows: list[int] = field(default_factory=list)
    cut_rows: list[int] = field(default_factory=list)
    unknown_types: set[str] = field(default_factory=set)
    started: bool = False
    titled: bool = False
    _root: bool | None = None
    _pending: _Pending | None = None

    def set_titles(self, titles: Titles) -> None:
        """Use the columns of a title line for the rows that follow."""
        self.flush()
        self.titles = titles
        self.titled = True
        self._root = None

    def is_row(self, text: str) -> bool:
        """Return True when *text* alone is a whole row with both halves; nothing is kept."""
        trial = RowReader(RowBudget(left=1), titles=self.titles, _root=self._root)
        trial.feed(0, text)
        trial.flush()
        whole_row = len(trial.rows) == 1 and trial.rows[0].in_place is not None
        return whole_row and not trial.cut_rows

    @property
    def _per_half(self) -> int:
        return self.titles.per_half or 4

    def feed(self, number: int, text: str) -> bool:
        """Take a cleaned line; return True when it was (part of) a row."""
        match = _START.search(text)
        # One word more than two numbers is prose unless the type is known or numbers follow.
        if match is not None:
            dtype = match.group(3)
            tail = text[match.end() :].split()
            known = dtype in DTYPES
            if known or sum(map(is_value, tail)) >= 6:
                size, count = whole(match.group(1)), whole(match.group(2))
                if size is not None and count is not None:
                    self.flush()
                    if self.budget.left <= 0:
                        self.started = True
                        self.budget.take(number)
                        return True
                    if not known:
                        self.unknown_types.add(dtype)
                    self._begin(number, size, count, dtype, tail)
                    return True
            elif not tail and (self.started or self.titled) and _begins_a_type(dtype):
                self.flush()
                self._drop([number], "the row is cut before its first result")
                return True
        tokens = text.split()
        if tokens and all(map(is_value, tokens)):
            return self._continue(number, tokens)
        if text.lstrip()[:1] == "#":
            self.flush()
        return False

    def _begin(self, number: int, size: int, count: int, dtype: str, tail: list[str]) -> None:
        self.started = True
        redop = None
        if tail and not is_value(tail[0]) and tail[0].isidentifier():
            redop = tail.pop(0)
        values: list[str] = []
        for token in tail:
            if not is_value(token):
                # Another process's message may be glued to the last number.
                glued = _GLUED.match(token)
                if glued is not None:
                    values.append(glued.group(1))
                break
            values.append(token)
        # nccl-tests prints "none" where an operation means nothing.
        redop = None if redop == "none" else redop
        self._pending = _Pending(number, size, count, dtype, redop, values, [number])
        if self._columns(len(values), values) == (2, True):
            self.flush()

    def _continue(self, number: int, tokens: list[str]) -> bool:
        pending = self._pending
        if pending is not None:
            total = len(pending.values) + len(tokens)
            if total <= 2 * self._per_half + 1:
                pending.values.extend(tokens)
                pending.lines.append(number)
                if self._columns(total, pending.values) == (2, True):
                    self.flush()
                return True
            self.flush()
        if self.started or len(tokens) >= 6:
            self._drop([number], "numbers without size, count and type")
            return True
        return False

    def _drop(self, lines: list[int], reason: str) -> None:
        if len(self.dropped) < MAX_DROPPED:
            self.dropped.extend((line, reason) for line in lines)
        else:
            self.budget.pieces += len(lines)

    def _columns(self, total: int, values: list[str]) -> tuple[int, bool]:
        """Return (full halves, nothing left over) and settle whether there is a root column."""
        if self.titles.per_half is None and total in (16, 17):
            self.titles = Titles(has_root=self.titles.has_root, per_half=8, halves=2)
        per = self._per_half
        has_root = self._has_root(total, values)
        halves, rest = divmod(total - has_root, per)
        return halves, rest == 0

    def _has_root(self, total: int, values: list[str]) -> bool:
        per = self._per_half
        if not values or whole(values[0]) is None:
            return False
        if total == 2 * per + 1:
            self._root = True
            return True
        if total == 2 * per:
            # Whole without a root, or with one and cut before its last column: -1 is no time.
            return self._root is True or values[0] == "-1"
        # An unfinished row: what the others have, else what the titles say.
        if self._root is not None:
            return self._root
        if self.titles.has_root is not None:
            return self.titles.has_root
        return total % per == 1 or values[0] == "-1"

    def flush(self) -> None:
        """Finish the row under construction; what is incomplete is noted."""
        pending, self._pending = self._pending, None
        if pending is None:
            return
        values = pending.values
        has_root = self._has_root(len(values), values)
        if self._root is None and len(values) >= 2 * self._per_half:
            self._root = has_root
        root = whole(values[0]) if has_root else None
        results = values[1:] if has_root else values
        per = self._per_half
        halves = [
            results[start : start + per] for start in range(0, min(len(results), 2 * per), per)
        ]
        complete = [half for half in halves if len(half) == per]
        if not complete:
            self._drop(pending.lines, "the row is cut before its first result")
            return
        parsed = [
            None if half[0] in _NOT_MEASURED else _half(half, pending.size) for half in complete
        ]
        unread = any(
            result is None and half[0] not in _NOT_MEASURED
            for half, result in zip(complete, parsed, strict=True)
        )
        if unread or not any(parsed):
            reason = "a number cannot be read" if unread else "the row has no time"
            self._drop(pending.lines, reason)
            return
        if len(halves) > len(complete):
            self.cut_rows.append(pending.line)
        elif len(parsed) < 2 and self.titles.halves == 2:
            self.half_rows.append(pending.line)
        if not self.budget.take(pending.line):
            return
        self.rows.append(
            RawRow(
                line=pending.line,
                size_bytes=pending.size,
                count=pending.count,
                dtype=pending.dtype,
                redop=pending.redop,
                root=None if root is None or root < 0 else root,
                out_of_place=parsed[0],
                in_place=parsed[1] if len(parsed) > 1 else None,
            )
        )


def _begins_a_type(word: str) -> bool:
    return any(name.startswith(word) for name in DTYPES)


def _half(tokens: list[str], size: int) -> RawHalf | None:
    times = number_readings(tokens[0])
    algbws, busbws = number_readings(tokens[1]), number_readings(tokens[2])
    if not times:
        return None
    algbw = algbws[0] if algbws else None
    time = times[0]
    if len(times) > 1 and algbw and algbw > 0 and min(times) > 0:
        # 13,552 is thirteen thousand or thirteen: size / time must give the printed algbw.
        time = min(times, key=lambda t: abs(math.log(max(size, 1) / (t * 1e3) / algbw)))
    wrong, max_error = _check(tokens[3]) if len(tokens) > 3 else (None, None)
    quantiles = None
    if len(tokens) >= 8:
        spread = [number_readings(token) for token in tokens[4:7]]
        if all(spread):
            quantiles = (spread[0][0], spread[1][0], spread[2][0])
    return RawHalf(
        time_us=time,
        time_resolution=resolution(tokens[0]),
        algbw=algbw,
        busbw=busbws[0] if busbws else None,
        bandwidth_resolution=max(resolution(tokens[1]), resolution(tokens[2])),
        wrong=wrong,
        max_error=max_error,
        quantiles_us=quantiles,
    )


def _check(token: str) -> tuple[int | None, float | None]:
    """Return (#wrong, error): old logs print an error like 2e-07, new ones a count (``%g``)."""
    readings = number_readings(token)
    if not readings:
        return None, None
    value = readings[0]
    exceeded = token.endswith("*")
    if not math.isfinite(value):
        return None, None
    if exceeded or "e-" in token or "e+00" in token or value != math.floor(value):
        return None, value
    return int(value), None
