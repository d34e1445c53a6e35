"""Read JSON one value at a time: large files, and files cut by the end of a run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from simulator.importers.source import TextSource

__all__ = ["CutJsonError", "JsonStream"]

_CHUNK = 1 << 16
_MAX_VALUE = 1 << 24
"""Characters of one value (an environment, one result with its iterations)."""
_SPACE = " \t\r\n"


class CutJsonError(Exception):
    """The text ends inside a value."""


class JsonStream:
    """A cursor over JSON text that grows as needed."""

    def __init__(self, source: TextSource) -> None:
        self._source = source
        self._decoder = json.JSONDecoder()
        self._text = ""
        self._place = 0
        self.line = 1

    def _more(self, size: int = _CHUNK) -> None:
        chunk = self._source.chunk(size)
        if not chunk:
            raise CutJsonError
        self._text = self._text[self._place :] + chunk
        self._place = 0

    def peek(self) -> str:
        """Return the next character that is not blank."""
        while True:
            while self._place < len(self._text):
                character = self._text[self._place]
                if character not in _SPACE:
                    return character
                self.line += character == "\n"
                self._place += 1
            self._more()

    def take(self, allowed: str) -> str:
        """Consume the next character, which must be one of *allowed*."""
        character = self.peek()
        if character not in allowed:
            raise ValueError(f"{character!r} where one of {allowed!r} was expected")
        self._place += 1
        return character

    def value(self) -> Any:
        """Decode one whole value."""
        self.peek()
        size = _CHUNK
        while True:
            try:
                value, end = self._decoder.raw_decode(self._text, self._place)
            except json.JSONDecodeError as error:
                # An error far before the end of what is there is an error, not a cut.
                if error.pos < len(self._text) - 16 and "Unterminated" not in error.msg:
                    raise ValueError(error.msg) from None
                if len(self._text) - self._place > _MAX_VALUE:
                    raise ValueError("a value is too long") from None
                self._more(size)
                size *= 2
                continue
            if end == len(self._text) and isinstance(value, int | float):
                # A number may go on in the next chunk.
                try:
                    self._more(size)
                    continue
                except CutJsonError:
                    pass
            self.line += self._text.count("\n", self._place, end)
            self._place = end
            return value

    def members(self) -> Iterator[str]:
        """Generate the keys of an object; the caller consumes each value."""
        self.take("{")
        if self.peek() == "}":
            self.take("}")
            return
        while True:
            key = self.value()
            self.take(":")
            yield str(key)
            if self.take(",}") == "}":
                return

    def places(self) -> Iterator[int]:
        """Generate the lines of an array's entries; the caller consumes each value."""
        self.take("[")
        if self.peek() == "]":
            self.take("]")
            return
        while True:
            self.peek()
            yield self.line
            if self.take(",]") == "]":
                return

    def elements(self) -> Iterator[tuple[int, Any]]:
        """Generate (line, value) of an array."""
        for line in self.places():
            yield line, self.value()
