"""What ``run`` and ``bench`` share: simulate, print, write."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from simulator.base.errors import CollsimError, ScenarioError, unknown_name
from simulator.cli.border import stop_code
from simulator.cli.output import (
    Files,
    files_of,
    finish,
    print_result,
    progress_of,
    tell_written,
    warn,
    write_files,
)
from simulator.cli.places import check_places, refuse_of_one, refuse_overwriting

if TYPE_CHECKING:
    from collections.abc import Sequence

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
    inputs: Sequence[str] = (),
    force: bool = False,
) -> None:
    """Simulate all variants, write the files and print the table.

    The files come first: they are there even where nobody reads what is printed.
    """
    from simulator.compose.sweep import run_set

    if table not in TABLES:
        raise ScenarioError(unknown_name("table", table, TABLES))
    first = scenarios.variants[0]
    files = files_of(first, given)
    check_places(files, inputs=inputs)
    several = len(scenarios.variants) + len(scenarios.invalid) > 1
    if several:
        refuse_of_one(files)
        if links or ranks:
            warn("--links and --ranks show one variant, and here are several")
    if not force:
        refuse_overwriting(files, given)
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
        raise typer.Exit(stop_code()) from None
    perturbed = bool(first.perturb.late) or first.perturb.skew_s > 0
    written, refused = write_files(result, files)
    if files.takes_output:
        for text in result.warnings:
            warn(text)
    else:
        print_result(result, table=table, links=links, ranks=ranks or perturbed)
    tell_written(written)
    finish(result, refused)


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
