"""The command line: arguments and printing only, one file per command.

Command modules import what they need inside their functions, so that ``collsim --help`` stays
fast.
"""

from __future__ import annotations

from typing import Any

__all__ = ["application", "main"]


def main() -> None:
    """Run the command line; errors of the user end with exit code 2 (1: a run cannot finish)."""
    from simulator.cli.border import guarded

    guarded(_run)


def _run() -> None:
    application()(prog_name="collsim")


def application() -> Any:
    """Return the command line as click's group of commands; empty words are refused everywhere."""
    import typer
    from typer.core import TyperGroup

    from simulator.cli import (
        bench,
        check,
        compare,
        explain,
        fit,
        listing,
        measure,
        run,
        show,
        step,
        topologies,
        tune,
    )
    from simulator.cli.border import EscapedError
    from simulator.cli.examples import epilog
    from simulator.cli.words import refuse_empty_words

    class Group(TyperGroup):
        def invoke(self, ctx: Any) -> Any:
            try:
                return super().invoke(ctx)
            except (KeyboardInterrupt, EOFError, OSError) as error:
                raise EscapedError(error) from error

    app = typer.Typer(
        name="collsim",
        cls=Group,
        help="Predict how long collectives and training steps take on a GPU cluster.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    )
    app.callback()(listing.version_option)
    app.command("run", help=run.HELP, epilog=epilog("run"))(run.command)
    app.command("bench", help=bench.HELP, epilog=epilog("bench"))(bench.command)
    app.command("check", help=check.HELP, epilog=epilog("check"))(check.command)
    app.command("compare", help=compare.HELP, epilog=epilog("compare"))(compare.command)
    app.command("explain", help=explain.HELP, epilog=epilog("explain"))(explain.command)
    app.command("fit", help=fit.HELP, epilog=epilog("fit"))(fit.command)
    app.command("step", help=step.HELP, epilog=epilog("step"))(step.command)
    app.command("tune", help=tune.HELP, epilog=epilog("tune"))(tune.command)
    app.command("show", help=show.HELP, epilog=epilog("show"))(show.command)
    app.add_typer(topologies.app, name="topologies", help=topologies.HELP)
    app.command(
        "measure",
        help=measure.HELP,
        add_help_option=False,
        context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    )(measure.command)
    app.command("list", help=listing.HELP, epilog=epilog("list"))(listing.command)
    return refuse_empty_words(typer.main.get_command(app))
