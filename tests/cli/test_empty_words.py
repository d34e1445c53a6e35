"""An empty word, as of an unset shell variable, is refused by every option of every command."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from simulator.cli import application


def parameters(command: Any, words: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Generate every parameter that takes a text, with the words of its command."""
    for name, below in getattr(command, "commands", {}).items():
        yield from parameters(below, (*words, name))
    for parameter in command.params:
        if not getattr(parameter, "is_flag", False) and parameter.name != "help":
            yield words, parameter


CASES = [
    pytest.param(words, parameter, spelled, id=" ".join([*words, spelled]))
    for words, parameter in parameters(application(), ())
    for spelled in (parameter.opts if parameter.param_type_name == "option" else [""])
]


def test_every_command_has_options():
    assert len(CASES) > 150
    assert {case.values[0][0] for case in CASES} >= {"run", "bench", "check", "fit", "step", "tune"}


@pytest.mark.parametrize(("words", "parameter", "spelled"), CASES)
@pytest.mark.parametrize("empty", ["", "  "])
def test_an_empty_word_is_an_error(
    words: tuple[str, ...], parameter: Any, spelled: str, empty: str, collsim: Callable[..., Any]
):
    given = [spelled, empty] if spelled else [empty]
    done = collsim(*words, *given)
    assert (done.code, done.out) == (2, "")
    # Whole numbers are refused by the parser of the command line itself.
    assert "is empty" in done.err or "valid integer" in done.err
    assert max(parameter.opts, key=len) in done.err or parameter.name.upper() in done.err


@pytest.mark.parametrize("words", [("--op", ""), ("--op=",), ("all_reduce", ""), ("-b", " ")])
def test_measure_hands_no_empty_word_on(words: tuple[str, ...], collsim: Callable[..., Any]):
    done = collsim("measure", *words)
    assert (done.code, done.out) == (2, "")
    assert "is empty" in done.err


def test_an_empty_word_writes_nothing(collsim: Callable[..., Any], tmp_path: Any):
    done = collsim("bench", "-b", "1M", "-e", "1M", "--csv=")
    assert done.code == 2
    assert done.err.startswith("command line: --csv: is empty\n  allowed: a value, or ")


def test_an_unfinished_list(collsim: Callable[..., Any]):
    done = collsim("bench", "-b", "1M", "-e", "1M", "-N", "1,")
    assert done.code == 2
    assert "nodes: is empty" in done.err
