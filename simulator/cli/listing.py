"""``collsim list``: collectives, algorithms, cost profiles; and ``--version``."""

from __future__ import annotations

from typing import Annotated

import typer

from simulator.cli import completion

HELP = "List collectives with their algorithms and formulas, cost profiles, or models."


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
    debug: Annotated[  # taken from anywhere in the line by `simulator.cli.border`
        bool, typer.Option("--debug", help="Print the traceback of a fault of collsim.")
    ] = False,
) -> None:
    """Predict how long collective communication takes on a GPU cluster."""


def command(
    collective: Annotated[
        str | None,
        typer.Argument(
            help="Only this collective, or `models`.", autocompletion=completion.collectives
        ),
    ] = None,
) -> None:
    """List what there is."""
    from simulator.collectives.names import canonical_collective
    from simulator.collectives.registry import algorithms, collectives, get_algorithm
    from simulator.costs.profile import load_profile, profile_names

    if collective == "models":
        _models()
        return
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


def _models() -> None:
    """Print the named models with their parameters."""
    from simulator.models import get_model, model_names

    typer.echo(f"{'model':<28} {'parameters':>12}  {'layers':>6}  {'hidden':>6}  {'sequence':>8}")
    for name in model_names():
        model = get_model(name)
        size = model.n_parameters
        shown = f"{size / 1e9:.2f} G" if size >= 1e9 else f"{size / 1e6:.1f} M"
        typer.echo(
            f"{name:<28} {shown:>12}  {model.blocks:>6}  {model.hidden or '-':>6}  "
            f"{model.seq if model.unit == 'tokens' else '-':>8}"
        )
