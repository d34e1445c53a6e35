"""``collsim run FILE``: simulate a scenario."""

from __future__ import annotations

from typing import Annotated

import typer

from simulator.cli.foreign import not_foreign
from simulator.cli.options import (
    Csv,
    Force,
    Json,
    Links,
    Markdown,
    Plot,
    Quiet,
    Ranks,
    Settings,
    Table,
    Trace,
    Workers,
)

HELP = "Simulate a scenario file and print its table."


def command(
    file: Annotated[
        str, typer.Argument(help="Scenario YAML, see docs/scenario.md.", callback=not_foreign)
    ],
    set_: Settings = None,
    csv: Csv = None,
    json: Json = None,
    markdown: Markdown = None,
    trace: Trace = None,
    plot: Plot = None,
    table: Table = "summary",
    links: Links = False,
    ranks: Ranks = False,
    workers: Workers = None,
    force: Force = False,
    quiet: Quiet = False,
) -> None:
    """Simulate a scenario file and print its table."""
    from simulator.cli.output import Files
    from simulator.cli.shared import simulate_and_print
    from simulator.scenario.resolve import load

    simulate_and_print(
        load(file, overrides=set_ or (), partial=True),
        Files(csv=csv, json=json, markdown=markdown, trace=trace, plots=tuple(plot or ())),
        table=table,
        links=links,
        ranks=ranks,
        workers=workers,
        quiet=quiet,
        inputs=(file,),
        force=force,
    )
