"""``collsim show``: what a scenario means, every number with its unit and where it comes from."""

from __future__ import annotations

from typing import Annotated

import typer

from simulator.cli.foreign import not_foreign

HELP = "Print a scenario with nothing left open: every number, its unit, where it comes from."


def command(
    file: Annotated[str, typer.Argument(help="Scenario YAML.", callback=not_foreign)],
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override.")
    ] = None,
    resolved: Annotated[
        bool, typer.Option("--resolved", help="Kept for habit; this is what is shown anyway.")
    ] = True,
    yaml: Annotated[bool, typer.Option("--yaml", help="As a scenario file again.")] = False,
) -> None:
    """Print the resolved scenario."""
    from textwrap import wrap

    from simulator.cli.output import warn
    from simulator.scenario.dump import describe, dump
    from simulator.scenario.resolve import load

    scenarios = load(file, overrides=set_ or ())
    for problem in scenarios.warnings:
        warn(str(problem))
    for index, variant in enumerate(scenarios.variants):
        if len(scenarios.variants) > 1:
            typer.echo(f"{'' if index == 0 else chr(10)}# variant: {variant.label}")
        if yaml:
            typer.echo(dump(variant), nl=False)
            continue
        rows = describe(variant)
        width = max(len(key) for key, _, _ in rows)
        value_width = min(40, max(len(value) for _, value, _ in rows))
        for key, value, origin in rows:
            first, *more = wrap(value, value_width) or [""]
            typer.echo(f"{key:<{width}}  {first:<{value_width}}  {origin}")
            for line in more:
                typer.echo(f"{'':<{width}}  {line}")
