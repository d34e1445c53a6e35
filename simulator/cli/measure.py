"""``collsim measure``: run the collectives for real; the work is done by `validation.measure`."""

from __future__ import annotations

import typer

HELP = "Run collectives for real with torch.distributed (NCCL or gloo), nccl-tests' way."


def command(context: typer.Context) -> None:
    """Hand the words on to the measuring harness, which has its own ``--help``."""
    from simulator.cli.words import refuse_empty
    from validation.measure import main

    refuse_empty(context.args)
    raise typer.Exit(main(context.args))
