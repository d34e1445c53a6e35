"""``collsim list``: collectives, algorithms, cost profiles; and ``--version``."""

from __future__ import annotations

from typing import Annotated

import typer

HELP = "List collectives with their algorithms and formulas, and cost profiles."


def _print_version(wanted: bool) -> None:
    if wanted:
        from simulator import __version__

        typer.echo(f"collsim {__version__}")
        raise typer.Exit


def version_option(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    """Predict how long collective communication takes on a GPU cluster."""


def command(
    collective: Annotated[str | None, typer.Argument(help="Only this collective.")] = None,
) -> None:
    """List what there is."""
    from simulator.collectives.names import canonical_collective
    from simulator.collectives.registry import algorithms, collectives, get_algorithm
    from simulator.costs.profile import load_profile, profile_names

    names = collectives() if collective is None else [canonical_collective(collective)]
    for name in names:
        typer.echo(name)
        for algorithm in algorithms(name):
            entry = get_algorithm(name, algorithm)
            typer.echo(f"  {algorithm:<20} {entry.summary}")
            typer.echo(f"  {'':<20} time: {entry.formula}")
    if collective is None:
        typer.echo("\ncost profiles")
        for name in profile_names():
            typer.echo(f"  {name:<20} {load_profile(name).summary}")
