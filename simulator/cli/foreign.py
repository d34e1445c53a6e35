"""Words that name a file of another tool: refused with the command that reads it."""

from __future__ import annotations

__all__ = ["not_foreign"]


def not_foreign(word: str | None) -> str | None:
    """Return an argument as it is; used as callback of options that take scenarios or names.

    Raises
    ------
    ScenarioError
        It is a log, a topology, a trace or a configuration of another tool.
    """
    if word is None or not any(mark in word for mark in "./\\"):
        return word  # a plain name is no file
    from simulator.base.errors import Problem, ScenarioError
    from simulator.importers.foreign import recognise

    found = recognise(word)
    if found is not None:
        raise ScenarioError(
            Problem(
                file=word,
                message=f"is {found.what}, not a scenario or a name",
                allowed=found.read_by.replace("FILE", word),
            )
        )
    return word
