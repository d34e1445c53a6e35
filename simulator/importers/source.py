"""Open what a user has: a path, pasted text, bytes or a stream; packed, UTF-16 or cut.

Files are read as a stream of numbered lines, so memory does not grow with the file.
"""

from __future__ import annotations

import bz2
import codecs
import gzip
import io
import lzma
import os
import shutil
import tempfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, BinaryIO, cast

from simulator.base.errors import CollsimError, Problem

__all__ = ["ForeignFileError", "TextSource", "open_source"]

_SNIFF_BYTES = 65536
_KEPT_BYTES = 64 * 2**20
"""Of a pipe, in memory; more goes to a temporary file."""
MAX_LINE = 65536
_DAMAGES = (EOFError, OSError, zlib.error, lzma.LZMAError)
"""What reading a packed file that is cut or broken can raise."""
"""Characters of a line that are looked at; a longer one is no row of any table."""

_PACKED: tuple[tuple[bytes, Callable[[BinaryIO], IO[bytes]]], ...] = (
    (b"\x1f\x8b", lambda stream: cast(IO[bytes], gzip.GzipFile(fileobj=stream))),
    (b"BZh", lambda stream: cast(IO[bytes], bz2.BZ2File(stream))),
    (b"\xfd7zXZ\x00", lambda stream: cast(IO[bytes], lzma.LZMAFile(stream))),  # noqa: SIM115
)
_MAGIC: tuple[tuple[bytes, str], ...] = (
    (b"\x7fELF", "a program (ELF)"),
    (b"%PDF", "a PDF"),
    (b"\x89PNG", "a PNG picture: paste the text, not a screenshot"),
    (b"\xff\xd8\xff", "a JPEG picture: paste the text, not a screenshot"),
    (b"PK\x03\x04", "a zip archive: unpack it first"),
    (b"(\xb5/\xfd", "a zstd file: unpack it first"),
    (b"SQLite format 3", "an SQLite data base, such as a profiler's export"),
    (b"PAR1", "a Parquet file"),
)
_BOMS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)


class ForeignFileError(CollsimError):
    """A file of another program that cannot be read as the wanted format."""


@dataclass(slots=True)
class TextSource:
    """A decoded stream with its name.

    Attributes
    ----------
    name
        File name without folders, or ``text``.
    shown
        The path as given, for messages.
    damage
        Set when a packed file ends early or is damaged; what came before was delivered.
    """

    name: str
    shown: str
    stream: IO[str]
    damage: str = ""
    _ahead: list[str] = field(default_factory=list)

    def first_line(self) -> str:
        """Return the first line that is not blank, without consuming it; empty for none."""
        while len(self._ahead) < 1000:
            line = self._line()
            if not line:
                break
            self._ahead.append(line)
            if line.strip():
                return line.strip()
        return ""

    def chunk(self, size: int) -> str:
        """Return up to *size* more characters, empty at the end."""
        if self._ahead:
            text = "".join(self._ahead)
            self._ahead.clear()
            return text
        return self._read(lambda: self.stream.read(size))

    def _read(self, read: Callable[[], str]) -> str:
        try:
            return read()
        except _DAMAGES as error:
            self._damaged(error)
            return ""

    def _damaged(self, error: Exception) -> None:
        self.damage = f"the packed file is damaged or cut: {error}"

    def lines(self) -> Iterator[tuple[int, str]]:
        """Generate (line number, line without its end); an overlong line is cut to `MAX_LINE`."""
        number = 0
        for line in self._ahead:
            number += 1
            yield number, line.rstrip("\r\n")
        self._ahead.clear()
        readline = self.stream.readline
        try:
            # One call a line: logs have millions.
            while line := readline(MAX_LINE):
                number += 1
                yield number, line.rstrip("\r\n")
                while len(line) == MAX_LINE and not line.endswith("\n"):
                    line = readline(MAX_LINE)
        except _DAMAGES as error:
            self._damaged(error)

    def _line(self) -> str:
        line = self._read(lambda: self.stream.readline(MAX_LINE))
        rest = line
        while len(rest) == MAX_LINE and not rest.endswith("\n"):
            rest = self._read(lambda: self.stream.readline(MAX_LINE))
        return line


def open_source(source: str | bytes | os.PathLike[str] | IO[str]) -> TextSource:
    """Open a path, text (any string with a line end), bytes or text stream.

    Raises
    ------
    ForeignFileError
        Missing, unreadable, a folder, empty, or binary; the message says which and what to do.
    """
    if hasattr(source, "readline"):
        return TextSource("text", "text", cast(IO[str], source))
    if isinstance(source, bytes):
        return _decode(io.BytesIO(source), "text", "text")
    if isinstance(source, str) and ("\n" in source or "\r" in source):
        return TextSource("text", "text", io.StringIO(source, newline=None))
    path = Path(source)
    shown = str(source)
    if shown == "":
        raise ForeignFileError(Problem(message="empty text"))
    try:
        raw = path.open("rb")
    except OSError as error:
        raise ForeignFileError(
            Problem(file=shown, message=f"cannot be read: {(error.strerror or 'error').lower()}")
        ) from None
    return _decode(_rewindable(raw, shown), path.name, shown)


def _rewindable(raw: BinaryIO, shown: str) -> BinaryIO:
    """Return a stream that can be read from its start again: of a pipe, its content in a file."""
    if raw.seekable():
        return raw
    kept = tempfile.SpooledTemporaryFile(max_size=_KEPT_BYTES)  # noqa: SIM115
    try:
        with raw:
            shutil.copyfileobj(raw, kept)
    except OSError as error:
        message = f"cannot be read: {(error.strerror or 'error').lower()}"
        raise ForeignFileError(Problem(file=shown, message=message)) from None
    kept.seek(0)
    return cast(BinaryIO, kept)


def _decode(raw: BinaryIO, name: str, shown: str) -> TextSource:
    start = raw.read(_SNIFF_BYTES)
    raw.seek(0)
    stream: IO[bytes] = raw
    for magic, unpack in _PACKED:
        if start.startswith(magic):
            stream = unpack(raw)
            try:
                start = stream.read(_SNIFF_BYTES)
                stream.seek(0)
            except _DAMAGES:
                # A file cut within its first block: a bounded piece at a time saves its start.
                raw.seek(0)
                stream = unpack(raw)
                start = _readable(stream)
                stream = io.BytesIO(start)
                if not start:
                    raise ForeignFileError(
                        Problem(file=shown, message="the packed file is damaged or cut")
                    ) from None
                source = _wrap(stream, start, name, shown)
                source.damage = "the packed file is damaged or cut; its start was read"
                return source
    if not start:
        raise ForeignFileError(Problem(file=shown, message="the file is empty"))
    return _wrap(stream, start, name, shown)


def _readable(stream: IO[bytes]) -> bytes:
    parts = []
    try:
        while part := stream.read(1):
            parts.append(part)
    except _DAMAGES:
        pass
    return b"".join(parts)


def _wrap(stream: IO[bytes], start: bytes, name: str, shown: str) -> TextSource:
    encoding = _encoding(start, shown)
    text = io.TextIOWrapper(cast(BinaryIO, stream), encoding=encoding, errors="replace")
    return TextSource(name, shown, text)


def _encoding(start: bytes, shown: str) -> str:
    for bom, encoding in _BOMS:
        if start.startswith(bom):
            return encoding
    for magic, what in _MAGIC:
        if start.startswith(magic):
            raise ForeignFileError(Problem(file=shown, message=f"binary: {what}"))
    # UTF-16 without its mark: every other byte of Latin text is zero.
    half = max(len(start) // 2, 1)
    if start[1::2].count(0) > 0.7 * half and start[::2].count(0) < 0.1 * half:
        return "utf-16-le"
    if start[::2].count(0) > 0.7 * half and start[1::2].count(0) < 0.1 * half:
        return "utf-16-be"
    # Escape, tab, form feed and the like belong to text; other control bytes do not.
    control = sum(start.count(code) for code in range(32) if code not in b"\t\n\v\f\r\b\x1b")
    if control > 0.05 * len(start):
        raise ForeignFileError(Problem(file=shown, message="binary: not a text file"))
    return "utf-8"
