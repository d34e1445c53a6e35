"""Words of the command line that say nothing are refused, of every option and argument alike.

A shell hands on ``-N "$NODES"`` with an unset variable as an empty word.  That is not the same as
leaving the option away, and never means its default.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from simulator.base.errors import Problem, ScenarioError

__all__ = ["refuse_empty", "refuse_empty_words"]


def refuse_empty_words(command: Any) -> Any:
    """Make a command, and all commands below it, refuse empty words.

    Parameters
    ----------
    command
        Command or group as click has them (typer brings its own copy of click along, so that its
        classes have no name to import).

    Returns
    -------
    Any
        The command itself.
    """
    for below in getattr(command, "commands", {}).values():
        refuse_empty_words(below)
    for parameter in command.params:
        _guard(parameter)
    return command


def _guard(parameter: Any) -> None:
    before = parameter.callback

    def checked(context: Any, given: Any, value: Any) -> Any:
        if context.get_parameter_source(given.name).name == "COMMANDLINE":
            words = value if isinstance(value, list | tuple) else (value,)
            if any(isinstance(word, str) and not word.strip() for word in words):
                is_option = given.param_type_name == "option"
                raise _empty(max(given.opts, key=len) if is_option else given.name.upper())
        return value if before is None else before(context, given, value)

    parameter.callback = checked


def refuse_empty(words: Sequence[str]) -> None:
    """Refuse empty words among those that a command hands on as they are.

    Raises
    ------
    ScenarioError
        An empty word, named by the option before it, or an option that ends in ``=``.
    """
    for before, word in zip(["", *words], words, strict=False):
        option, equals, value = word.partition("=")
        if not word.strip():
            raise _empty(before if before.startswith("-") else "word")
        if option.startswith("-") and equals and not value.strip():
            raise _empty(option)


def _empty(name: str) -> ScenarioError:
    allowed = f"a value, or leave {name} away"
    return ScenarioError(
        Problem(file="command line", key=name, message="is empty", allowed=allowed)
    )
