"""What ``run`` and ``bench`` share: simulate, print, write."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from simulator.base.errors import CollsimError, ScenarioError, unknown_name
from simulator.cli.output import (
    Files,
    check_places,
    files_of,
    print_result,
    progress_of,
    warn,
    write_files,
)

if TYPE_CHECKING:
    from simulator.scenario.resolve import ScenarioSet

__all__ = ["TABLES", "environment_words", "has_sizes", "simulate_and_print"]

TABLES = ("summary", "nccl-tests")


def has_sizes(collective: str) -> bool:
    """Return False for a barrier, which moves no bytes."""
    from simulator.collectives.names import canonical_collective

    try:
        return canonical_collective(collective) != "barrier"
    except CollsimError:
        return True  # an unknown name is refused with all other problems


def simulate_and_print(
    scenarios: ScenarioSet,
    given: Files,
    *,
    table: str,
    links: bool,
    ranks: bool,
    workers: int | None,
    quiet: bool,
) -> None:
    """Simulate all variants, print the table and write the files."""
    from simulator.compose.sweep import run_set

    if table not in TABLES:
        raise ScenarioError(unknown_name("table", table, TABLES))
    first = scenarios.variants[0]
    files = files_of(first, given)
    check_places(files)
    steps = len(scenarios.variants)
    if steps == 1 and first.collective is not None:
        steps = max(1, len(first.collective.sizes_bytes))
    if first.description and not quiet and not files.takes_output:
        typer.echo(first.description.strip())
        typer.echo("")
    report: Any
    try:
        with progress_of(steps, "simulating", quiet) as report:
            result = run_set(
                scenarios,
                record=True if files.needs_record else None,
                workers=workers,
                on_progress=report,
            )
    except KeyboardInterrupt:
        warn("interrupted before anything was done")
        raise typer.Exit(130) from None
    perturbed = bool(first.perturb.late) or first.perturb.skew_s > 0
    if files.takes_output:
        for text in result.warnings:
            warn(text)
    else:
        print_result(result, table=table, links=links, ranks=ranks or perturbed)
    write_files(result, files)
    if any(text.startswith("interrupted") for text in result.warnings):
        raise typer.Exit(130)


def environment_words(given: list[str] | None) -> dict[str, str]:
    """Return ``--env`` options as words of a scenario; a comma in a value is no sweep.

    Raises
    ------
    ScenarioError
        An option without ``=``.
    """
    import json

    from simulator.base.errors import Problem

    words: dict[str, str] = {}
    for text in given or ():
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise ScenarioError(
                Problem(file="--env", message=f"{text!r} has no value", allowed="NAME=VALUE")
            )
        words[f"env.{name.strip()}"] = json.dumps(value)
    return words
