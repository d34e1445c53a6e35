"""Megatron-LM's flags from where people keep them: command lines, shell scripts, YAML."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import IO, Any, TypeAlias

from simulator.base.errors import Problem
from simulator.importers.source import ForeignFileError, open_source

__all__ = ["FlagSource", "Flags", "read_flags"]

FlagSource: TypeAlias = str | bytes | os.PathLike[str] | IO[str] | Mapping[str, Any] | Sequence[str]
Flags: TypeAlias = dict[str, str]
"""Values by name, with hyphens and without leading dashes; a flag without a value is ``true``."""

_LIMIT = 2**20
_ASSIGNED = re.compile(r"^(?:export\s+)?([A-Za-z_]\w*)=(.*)$", re.DOTALL)
_VARIABLE = re.compile(r"\$\{([A-Za-z_]\w*)(?:\[@\]|\[\*\])?(?::?-([^}]*))?\}|\$([A-Za-z_]\w*)")
_DEPTH = 8


def read_flags(source: FlagSource) -> tuple[Flags, str]:
    """Return the flags and the name of their file.

    Parameters
    ----------
    source
        A path, the text of a shell script or of YAML, bytes, a stream; or the flags: a list of
        words, or a mapping.

    Raises
    ------
    ForeignFileError
        Not readable, or no flag in it.
    """
    if isinstance(source, Mapping):
        flags, shown = _from_mapping(source), ""
    elif isinstance(source, list | tuple):
        flags, shown = _from_words([str(word) for word in source]), ""
    else:
        if isinstance(source, str) and source.lstrip().startswith("--"):
            source = source + "\n"
        assert not isinstance(source, Sequence) or isinstance(source, str | bytes)
        opened = open_source(source)
        shown = opened.shown
        text = opened.chunk(_LIMIT)
        flags = _from_yaml(text, shown) if _looks_like_yaml(text) else _from_shell(text)
    if not flags:
        raise ForeignFileError(
            Problem(
                file=shown,
                message="no flags of Megatron-LM in it",
                allowed="--num-layers 32 …, in a shell script, or as keys of YAML",
            )
        )
    return flags, shown


def _looks_like_yaml(text: str) -> bool:
    return re.search(r"^\s*--[\w-]+:", text, re.MULTILINE) is not None or "MODEL_ARGS:" in text


def _from_mapping(values: Mapping[str, Any]) -> Flags:
    nested = values.get("MODEL_ARGS")
    found: Flags = {}
    for key, value in (nested if isinstance(nested, Mapping) else values).items():
        name = str(key).lstrip("-").replace("_", "-")
        if value is None or value is False:
            continue
        found[name] = "true" if value is True else str(value)
    return found


def _from_yaml(text: str, shown: str) -> Flags:
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        values = yaml.load(text, Loader=loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        raise ForeignFileError(
            Problem(
                file=shown,
                line=mark.line + 1 if mark else None,
                message=f"no YAML: {getattr(error, 'problem', error)}",
                allowed="keys with dashes: `--num-layers: 32`",
            )
        ) from None
    return _from_mapping(values) if isinstance(values, Mapping) else {}


def _from_words(words: Sequence[str]) -> Flags:
    found: Flags = {}
    name = ""
    for word in words:
        if word.startswith("--") and len(word) > 2:
            name, equals, value = word[2:].partition("=")
            name = name.replace("_", "-")
            found[name] = value if equals else "true"
            name = "" if equals else name
        elif name:
            # Of a list (of numbers, of data) the first word is kept: none of those is read.
            found[name] = word
            name = ""
    return found


def _from_shell(text: str) -> Flags:
    """Return flags of a script: of the command, of arrays, and of quoted variables."""
    joined = re.sub(r"\\\s*\n", " ", text)
    # Arrays are words of their own: NAME=( … ) and NAME+=( … ).
    joined = re.sub(r"(\w+)\+?=\(", r"\1= ", joined)
    joined = re.sub(r"(^|\s)\)(?=\s|$)", " ", joined, flags=re.MULTILINE)
    variables: dict[str, str] = {}
    words: list[str] = []
    for token in _tokens(joined):
        assigned = _ASSIGNED.match(token)
        if assigned:
            variables[assigned[1]] = assigned[2]
            # A command line in quotes.
            words += assigned[2].split() if "--" in assigned[2] else []
        else:
            words.append(token[:-1] if token.endswith(")") and "(" not in token else token)
    flags = _from_words([_expanded(word, variables) for word in words])
    for name in ("WORLD_SIZE", "NNODES", "NUM_NODES", "GPUS_PER_NODE"):
        if name in variables:
            value = _expanded(variables[name], variables)
            if value.isdecimal():
                flags[f"variable-{name.lower().replace('_', '-')}"] = value
    return flags


def _tokens(text: str) -> list[str]:
    """Return a script's words; of one with unbalanced quotes, line by line."""
    try:
        return shlex.split(text, comments=True)
    except ValueError:
        return [word for line in text.split("\n") for word in line.split("#")[0].split()]


def _expanded(word: str, variables: Mapping[str, str]) -> str:
    for _ in range(_DEPTH):
        if "$" not in word:
            break
        replaced = _VARIABLE.sub(
            lambda match: variables.get(match[1] or match[3], match[2] or match[0]), word
        )
        if replaced == word:
            break
        word = replaced
    return word
