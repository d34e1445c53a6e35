"""Open a JSON object: from a path, text, bytes, a stream, or one that is already read."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import IO, Any, TypeAlias

from simulator.base.errors import Problem
from simulator.importers.source import ForeignFileError, open_source

__all__ = ["JsonSource", "read_json_object"]

JsonSource: TypeAlias = str | bytes | os.PathLike[str] | IO[str] | Mapping[str, Any]

_LIMIT = 4 * 2**20
"""Characters: configurations are small, checkpoints and their indices are not."""


def read_json_object(source: JsonSource, what: str) -> tuple[dict[str, Any], str]:
    """Return a JSON object and the name of its file for messages.

    Parameters
    ----------
    source
        A path, the text itself (with a line end, or beginning with a brace), bytes, a stream, or
        the object.
    what
        What is expected, for messages: ``a DeepSpeed configuration``.

    Raises
    ------
    ForeignFileError
        Not readable, too long, no JSON, a template, or not an object; with the line.
    """
    if isinstance(source, Mapping):
        return dict(source), ""
    if isinstance(source, str) and source.lstrip().startswith("{"):
        source = source + "\n"
    opened = open_source(source)
    shown = opened.shown
    text = opened.chunk(_LIMIT + 1)
    if len(text) > _LIMIT:
        raise ForeignFileError(
            Problem(file=shown, message=f"too long for {what}", allowed="up to 4 MiB")
        )
    try:
        value = json.loads(text, object_pairs_hook=_once)
    except json.JSONDecodeError as error:
        raise ForeignFileError(_no_json(text, error, shown, what)) from None
    except _TwiceError as error:
        raise ForeignFileError(
            Problem(file=shown, key=str(error), message="the key stands twice", allowed="once")
        ) from None
    except ValueError as error:
        # Python reads no whole number of more than 4,300 digits.
        message = f"holds a number of too many digits: {error}".partition(";")[0]
        raise ForeignFileError(Problem(file=shown, message=message)) from None
    except RecursionError:
        raise ForeignFileError(Problem(file=shown, message="nested too deeply")) from None
    if not isinstance(value, dict):
        kind = {list: "a list", str: "a text", type(None): "null"}.get(type(value), "a number")
        raise ForeignFileError(
            Problem(file=shown, message=f"{what} is an object, this is {kind}", allowed="{ … }")
        )
    return value, shown


class _TwiceError(ValueError):
    """A key that an object holds twice."""


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise _TwiceError(key)
        found[key] = value
    return found


def _no_json(text: str, error: json.JSONDecodeError, shown: str, what: str) -> Problem:
    """Return why a text is no JSON; templates of configurations are common."""
    for mark, name in (("{%", "Jinja"), ("{{", "Jinja"), ("${", "shell")):
        if mark in text:
            line = text[: text.index(mark)].count("\n") + 1
            return Problem(
                file=shown,
                line=line,
                message=f"a {name} template, not {what}",
                allowed="the file that the template makes",
            )
    return Problem(
        file=shown,
        line=error.lineno,
        message=f"no JSON: {error.msg.lower()} (column {error.colno})",
        allowed=what,
    )
