"""``collsim check LOG``: is this cluster healthy, and if not, why."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from simulator.cli.measured import (
    Collective,
    Fabric,
    Given,
    GpusPerNode,
    NodeName,
    Nodes,
    Scenario,
    Settings,
    read_tables,
    set_up_for,
    tell_set_up,
    tell_warnings,
)

if TYPE_CHECKING:
    from simulator.verdict.check import Check
    from simulator.verdict.diagnose import Explanation

HELP = "Say whether a log is healthy; exit code 0 healthy, 3 suspicious, 4 sick, 2 bad input."

MOST_CAUSES = 5


def command(
    logs: Annotated[list[str], typer.Argument(help="Logs of nccl-tests or rccl-tests, or - .")],
    node: NodeName = None,
    nodes: Nodes = None,
    gpus_per_node: GpusPerNode = None,
    fabric: Fabric = None,
    scenario: Scenario = None,
    set_: Settings = None,
    collective: Collective = None,
    inverse: Annotated[
        str | None,
        typer.Option(help="Solve for what explains the numbers: nic, nvlink, pcie or latency."),
    ] = None,
    json: Annotated[str | None, typer.Option(help="Write verdict, rows and causes.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar.")] = False,
) -> None:
    """Judge logs, and look for the causes of what is slow."""
    from simulator.base.errors import ScenarioError, unknown_name
    from simulator.cli.output import Files, check_places, progress_of
    from simulator.verdict.check import check_table, quickly
    from simulator.verdict.hypotheses import HYPOTHESES
    from simulator.verdict.inverse import CLASSES, solve

    if inverse is not None and inverse not in CLASSES:
        raise ScenarioError(unknown_name("class of links", inverse, CLASSES))
    check_places(Files(json=json))
    tables, warnings = read_tables(logs, collective)
    tell_warnings(warnings)
    given = Given(
        node=node,
        nodes=nodes,
        gpus_per_node=gpus_per_node,
        fabric=fabric,
        scenario=scenario,
        settings=tuple(set_ or ()),
    )
    checks: list[Check] = []
    for place, (_file, table) in enumerate(tables):
        set_up = set_up_for(given, table)
        report: Any
        with progress_of(len(HYPOTHESES), "simulating faults", quiet) as report:
            check = check_table(set_up, table, on_progress=report)
        if place:
            typer.echo("")
        _tell(check)
        if inverse is not None:
            _tell_inverse(solve(quickly(check.set_up), table, check.rows, inverse))
        checks.append(check)
    if json is not None:
        _write(checks, json)
    raise typer.Exit(int(max(check.health for check in checks)))


def _tell(check: Check) -> None:
    import sys

    from simulator.verdict.records import check_table_text

    tell_set_up(check.set_up)
    typer.echo(check_table_text(check).render(terminal=sys.stdout.isatty()))
    typer.echo("")
    typer.echo(f"verdict: {check.health.name.lower()}")
    for finding in check.findings:
        typer.echo(f"  {finding.name:<7} {finding.health.name.lower()}: {finding.words}")
    if not any(finding.name == ">=16M" for finding in check.findings):
        typer.echo("  no size of 16 MiB or more: bandwidth is not judged")
    typer.echo(f"a healthy machine is bound by {check.binding or 'latency'} at the largest size")
    if check.diagnosis is None:
        return
    typer.echo("")
    if not check.diagnosis.explanations:
        typer.echo("likely causes: none of the faults that were simulated gives this curve;")
        typer.echo("  is the set-up right? (--node, --nodes, --set)")
        return
    away = check.diagnosis.healthy_distance
    typer.echo(f"likely causes, best first (a healthy machine misses the curve by {_share(away)}):")
    for number, found in enumerate(check.diagnosis.explanations[:MOST_CAUSES], start=1):
        _tell_cause(number, found)


def _tell_cause(number: int, found: Explanation) -> None:
    from simulator.verdict.hypotheses import HYPOTHESES

    _wrap(f"  {number}. ", f"{found.hypothesis.cause}: misses it by {_share(found.distance)}")
    for text in found.said:
        _wrap("     ", f"the log says: {text}")
    _wrap("     ", f"look at: {found.hypothesis.look}")
    for name in found.alike:
        _wrap("     ", f"same curve: {HYPOTHESES[name].cause}")


def _wrap(head: str, text: str) -> None:
    """Print a paragraph of 80 columns, indented below its head."""
    import textwrap

    indent = " " * len(head)
    typer.echo(textwrap.fill(text, 80, initial_indent=head, subsequent_indent=indent))


def _share(distance: float) -> str:
    """Return a distance of logarithms as a percentage."""
    import math

    return f"{100 * math.expm1(distance):.0f} %"


def _tell_inverse(found: Any) -> None:
    from simulator.base.units import format_rate, format_time

    shown = format_time if found.name == "latency" else format_rate
    typer.echo("")
    typer.echo(
        f"inverse: {found.name} of {shown(found.value)} explains the numbers best "
        f"(preset {shown(found.preset)})"
    )
    typer.echo(
        f"  misses them by {_share(found.distance)}, the preset by {_share(found.preset_distance)}"
    )
    open_end = "" if found.bounded else "; the numbers do not bound it: it does not bind"
    typer.echo(f"  range: {shown(found.least)} to {shown(found.most)}{open_end}")


def _write(checks: list[Check], path: str) -> None:
    from simulator.results.files import write_text
    from simulator.verdict.records import checks_json

    write_text(path, checks_json(checks))
    typer.echo(f"wrote {path}", err=True)
