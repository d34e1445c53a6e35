"""``collsim run FILE``: simulate a scenario."""

from __future__ import annotations

from typing import Annotated

import typer

HELP = "Simulate a scenario file and print its table."


def command(
    file: Annotated[str, typer.Argument(help="Scenario YAML, see docs/scenario.md.")],
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Override, as fabric.oversubscription=2."),
    ] = None,
    csv: Annotated[str | None, typer.Option(help="Write the table as CSV.")] = None,
    json: Annotated[str | None, typer.Option(help="Write everything, with provenance.")] = None,
    markdown: Annotated[str | None, typer.Option(help="Write the table as Markdown.")] = None,
    trace: Annotated[
        str | None, typer.Option(help="Write a Chrome/Perfetto trace (.json or .json.gz).")
    ] = None,
    plot: Annotated[
        list[str] | None,
        typer.Option(help="Draw busbw, comparison, link-load or gantt, by name (.png .svg .pdf)."),
    ] = None,
    table: Annotated[str, typer.Option(help="summary or nccl-tests.")] = "summary",
    links: Annotated[bool, typer.Option("--links", help="Print the loads of links.")] = False,
    ranks: Annotated[bool, typer.Option("--ranks", help="Print waiting against transfer.")] = False,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Processes for sweeps; default one per core.")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar.")] = False,
) -> None:
    """Simulate a scenario file and print its table."""
    from simulator.cli.output import Files
    from simulator.cli.shared import simulate_and_print
    from simulator.scenario.resolve import load

    simulate_and_print(
        load(file, overrides=set_ or ()),
        Files(csv=csv, json=json, markdown=markdown, trace=trace, plots=tuple(plot or ())),
        table=table,
        links=links,
        ranks=ranks,
        workers=workers,
        quiet=quiet,
    )
