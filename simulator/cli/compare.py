"""``collsim compare LOG...``: measured rows beside predicted ones."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from simulator.cli.measured import (
    Collective,
    Costs,
    Fabric,
    Given,
    GpusPerNode,
    NodeName,
    Nodes,
    Scenario,
    Settings,
    read_tables,
    set_up_for,
    tell_doubts,
    tell_outside,
    tell_set_up,
    tell_warnings,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from simulator.base.errors import Problem
    from simulator.cli.output import Files
    from simulator.importers import MeasuredTable
    from simulator.verdict.predict import Clusters
    from simulator.verdict.records import Comparison
    from simulator.verdict.setup import SetUp

HELP = "Predict the rows of nccl-tests logs and print both side by side."

BEYOND = 1
"""Exit code where a table's median error is beyond ``--max-error``."""


def command(
    logs: Annotated[list[str], typer.Argument(help="Logs of nccl-tests or rccl-tests, or - .")],
    node: NodeName = None,
    nodes: Nodes = None,
    gpus_per_node: GpusPerNode = None,
    fabric: Fabric = None,
    scenario: Scenario = None,
    costs: Costs = None,
    set_: Settings = None,
    collective: Collective = None,
    max_error: Annotated[
        str | None, typer.Option(help="Exit with 1 where a table's median error is above, 20%.")
    ] = None,
    csv: Annotated[
        str | None, typer.Option(help="Write all rows as CSV; - : print it alone.")
    ] = None,
    json: Annotated[
        str | None, typer.Option(help="Write rows, errors and warnings; - : alone.")
    ] = None,
    plot: Annotated[str | None, typer.Option(help="Draw measured dots on the prediction.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar.")] = False,
) -> None:
    """Predict the rows of logs and print both side by side."""
    from simulator.base.errors import CollsimError
    from simulator.base.units import parse_fraction
    from simulator.cli.output import Files, tell_written
    from simulator.cli.places import check_places

    limit = None if max_error is None else parse_fraction(max_error)
    files = Files(csv=csv, json=json, plots=() if plot is None else (plot,))
    check_places(files, inputs=(*logs, *((scenario,) if scenario else ())))
    tables, warnings = read_tables(logs, collective)
    tell_warnings(warnings)
    given = Given(
        node=node,
        nodes=nodes,
        gpus_per_node=gpus_per_node,
        fabric=fabric,
        scenario=scenario,
        settings=tuple(set_ or ()),
        costs=costs,
    )
    comparisons = _compared(tables, given, quiet)
    written, refused = _write(comparisons, warnings, files)
    for place, comparison in enumerate(() if files.takes_output else comparisons):
        _tell(comparison, first=place == 0)
    tell_written(written)
    if refused:
        raise CollsimError(refused)
    if limit is not None:
        beyond = [entry for entry in comparisons if entry.errors[0].median > limit]
        for entry in beyond:
            typer.echo(
                f"{entry.title}: median error {100 * entry.errors[0].median:.1f} % is beyond "
                f"{100 * limit:g} %",
                err=True,
            )
        if beyond:
            raise typer.Exit(BEYOND)


def _compared(
    tables: list[tuple[str, MeasuredTable]], given: Given, quiet: bool
) -> list[Comparison]:
    """Return the tables beside their predictions, with progress by sizes or by tables."""
    from simulator.cli.output import progress_of
    from simulator.verdict.predict import Clusters

    set_ups = [set_up_for(given, table).as_observed() for _, table in tables]
    tell_doubts(set_ups)
    clusters = Clusters()
    alone = len(tables) == 1
    steps = len({row.size_bytes for row in tables[0][1].rows}) if alone else len(tables)
    found: list[Comparison] = []
    report: Any
    with progress_of(steps, "predicting", quiet) as report:
        for set_up, (file, table) in zip(set_ups, tables, strict=True):
            found.append(_compare(file, table, set_up, clusters, report if alone else None))
            if report is not None and not alone:
                report(len(found), steps)
    tell_outside((entry.set_up, entry.rows) for entry in found)
    return found


def _compare(
    file: str, table: MeasuredTable, set_up: SetUp, clusters: Clusters, report: Any
) -> Comparison:
    from simulator.verdict.nics import nic_shares
    from simulator.verdict.predict import predict_rows
    from simulator.verdict.records import Comparison

    rows = predict_rows(set_up, table, clusters=clusters, on_progress=report)
    shares = nic_shares(set_up, table, rows, clusters) if rows[0].predicted.n_nodes > 1 else {}
    return Comparison(file=file, table=table, set_up=set_up, rows=tuple(rows), nic_shares=shares)


def _tell(comparison: Comparison, *, first: bool) -> None:
    import sys

    from simulator.verdict.records import comparison_table, errors_table

    terminal = sys.stdout.isatty()
    if not first:
        typer.echo("")
    tell_set_up(comparison.set_up)
    typer.echo(comparison_table(comparison).render(terminal=terminal))
    typer.echo("")
    typer.echo(errors_table(comparison.errors).render(terminal=terminal))


def _write(
    comparisons: list[Comparison], warnings: list[Any], files: Files
) -> tuple[list[str], list[Problem]]:
    from simulator.cli.output import write_each
    from simulator.results.files import write_text
    from simulator.verdict.records import comparison_csv, comparison_json

    tasks: list[tuple[str, Callable[[str], object]]] = []
    if files.csv is not None:
        tasks.append((files.csv, lambda path: write_text(path, comparison_csv(comparisons))))
    if files.json is not None:
        text = comparison_json(comparisons, warnings)
        tasks.append((files.json, lambda path: write_text(path, text)))
    for plot in files.plots:
        for number, comparison in enumerate(comparisons):
            path = Path(plot)
            if number:
                path = path.with_name(f"{path.stem}-{number + 1}{path.suffix}")
            tasks.append((str(path), partial(draw, comparison)))
    return write_each(tasks)


def draw(comparison: Comparison, path: str) -> None:
    """Draw one comparison."""
    from simulator.results.plots_compare import ComparedPoint, plot_compared

    points: list[ComparedPoint] = []
    for row in comparison.rows:
        least_s, most_s = row.expected_s
        scale = row.predicted.busbw_Bps * row.predicted.time_s
        points.append(
            ComparedPoint(
                size_bytes=row.size_bytes,
                measured_Bps=row.measured_busbw_Bps,
                predicted_Bps=row.predicted.busbw_Bps,
                least_Bps=scale / most_s,
                most_Bps=scale / least_s,
            )
        )
    plot_compared(points, path, title=comparison.title)
