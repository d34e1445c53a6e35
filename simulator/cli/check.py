"""``collsim check LOG``: is this cluster healthy, and if not, why."""

from __future__ import annotations

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
    from collections.abc import Callable, Sequence

    from simulator.base.errors import Problem
    from simulator.verdict.check import Check, Machine
    from simulator.verdict.diagnose import Diagnosis, Explanation
    from simulator.verdict.inverse import Inverse
    from simulator.verdict.setup import SetUp

HELP = "Say whether a log is healthy; exit code 0 healthy, 1 not judged, 3 suspicious, 4 sick."

MOST_CAUSES = 4
MOST_FINDINGS = 8
"""In one line."""
KNOWN_RANKS = 128
"""Beyond twice the largest machine behind the limits (`validation.alarms`) it is told."""
MOST_NAMES = 3
"""Of further causes with the same curve, in one line."""
BUSY = 0.8
"""From this share of the time on a link binds; below it steps and channels do."""
CERTAIN = 0.8
"""A cause with this share of the weight is told without its rivals' tests."""


def command(
    logs: Annotated[
        list[str],
        typer.Argument(
            help="Logs of nccl-tests or rccl-tests, or - ; several of one machine weigh together."
        ),
    ],
    node: NodeName = None,
    nodes: Nodes = None,
    gpus_per_node: GpusPerNode = None,
    fabric: Fabric = None,
    scenario: Scenario = None,
    set_: Settings = None,
    collective: Collective = None,
    costs: Costs = None,
    link: Annotated[
        list[str] | None,
        typer.Option(help="Output of ib_write_bw, ib_write_lat or nvbandwidth of this machine."),
    ] = None,
    inverse: Annotated[
        str | None,
        typer.Option(help="Solve for what explains the numbers: nic, nvlink, pcie or latency."),
    ] = None,
    json: Annotated[
        str | None, typer.Option(help="Write verdict, rows and causes; - : to standard output.")
    ] = None,
    brief: Annotated[
        bool, typer.Option("--brief", help="One line a machine, for scripts.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar.")] = False,
) -> None:
    """Judge logs, and look for the causes of what is slow.

    In an acceptance test: `collsim check *.log --node hgx-h100 --nodes 16 --brief --json out.json`
    and the exit code (0 healthy, 1 not judged, 3 suspicious, 4 sick, 2 bad input).
    """
    from simulator.base.errors import CollsimError, ScenarioError, unknown_name
    from simulator.cli.output import Files, progress_of, tell_written
    from simulator.cli.places import check_places
    from simulator.verdict.check import check_tables
    from simulator.verdict.hypotheses import HYPOTHESES
    from simulator.verdict.inverse import CLASSES

    if inverse is not None and inverse not in CLASSES:
        raise ScenarioError(unknown_name("class of links", inverse, CLASSES))
    files = Files(json=json)
    check_places(files, inputs=(*logs, *(link or ()), *((scenario,) if scenario else ())))
    json = files.json
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
    pairs = [(_linked(set_up_for(given, table), link or []), table) for _, table in tables]
    tell_doubts(set_up for set_up, _ in pairs)
    report: Any
    with progress_of(len(HYPOTHESES), "simulating faults", quiet) as report:
        machines = check_tables(pairs, on_progress=report)
    tell_outside((entry.set_up, entry.rows) for machine in machines for entry in machine.checks)
    solved: list[list[Inverse]] = [[] for _ in machines]
    if inverse is not None:
        count = sum(len(machine.checks) for machine in machines)
        with progress_of(count, f"solving for {inverse}", quiet) as report:
            solved = [_inverses(machine, inverse, report, count) for machine in machines]
    written, refused = _write(machines, json, solved)
    for place, (machine, found) in enumerate(zip(machines, solved, strict=True)):
        if json == "-":
            break
        if brief:
            typer.echo(_line(machine, found))
            continue
        if place:
            typer.echo("")
        _tell(machine)
        for answer in found:
            _tell_inverse(answer)
    tell_written(written)
    if refused:
        raise CollsimError(refused)
    raise typer.Exit(int(max(machine.health for machine in machines)))


def _inverses(machine: Machine, name: str, report: Any, count: int) -> list[Inverse]:
    """Return the answer to the inverse question for each table of a machine."""
    from simulator.verdict.check import quickly
    from simulator.verdict.inverse import solve
    from simulator.verdict.predict import Clusters

    found: list[Inverse] = []
    clusters = Clusters()
    for check in machine.checks:
        set_up = quickly(check.set_up)
        found.append(solve(set_up, check.table, check.rows, name, clusters=clusters))
        if report is not None:
            report(len(found), count)
    return found


def _linked(set_up: SetUp, files: list[str]) -> SetUp:
    """Return the set-up with what measurements of single links say."""
    from simulator.importers.link_rates import read
    from simulator.scenario.nodes import node_template
    from simulator.verdict.links import with_links

    groups = set_up.resolve({"collective.op": "barrier"}).node_groups if files else ()
    for file in files if len(groups) == 1 else ():
        set_up = with_links(set_up, node_template(groups[0].node), read(file))
    return set_up


def _line(machine: Machine, inverses: Sequence[Inverse]) -> str:
    """Return the verdict in one line: health, machine, what is slow, the likeliest cause."""
    from simulator.verdict.bands import JUDGED
    from simulator.verdict.health import Health

    first = machine.checks[0]
    parts = [f"{machine.health.words}: {first.set_up.title}"]
    found: dict[str, Health] = {}
    for check in machine.checks:
        bad = [f for f in check.findings if f.health.bad]
        shown = bad or [f for f in check.findings if f.name in JUDGED][-1:]
        found |= {f"{check.table.collective} {f.name} {f.words}": f.health for f in shown}
    told = sorted(found, key=lambda words: -found[words])
    parts += told[:MOST_FINDINGS]
    parts += [f"{len(told) - MOST_FINDINGS} more"] if len(told) > MOST_FINDINGS else []
    if machine.diagnosis is not None and machine.diagnosis.explanations:
        best = machine.diagnosis.explanations[0]
        names = " or ".join((best.hypothesis.name, *best.alike[:MOST_NAMES]))
        rest = len(best.alike) - MOST_NAMES
        names += f" or {rest} more" if rest > 0 else ""
        parts.append(f"likely {names} ({100 * best.weight:.0f} %)")
    doubts = dict.fromkeys(text for check in machine.checks for text in check.set_up.doubts)
    parts += [text.partition(";")[0] for text in doubts]
    parts += list(dict.fromkeys(f"inverse {_inverse_words(answer)}" for answer in inverses))
    return "; ".join(parts)


def _tell(machine: Machine) -> None:
    for place, check in enumerate(machine.checks):
        if place:
            typer.echo("")
        _tell_check(check, first=place == 0, alone=len(machine.checks) == 1)
    if len(machine.checks) > 1:
        typer.echo("")
        count = len(machine.checks)
        typer.echo(f"verdict on the machine, {count} tables: {machine.health.words}")
    if machine.diagnosis is not None:
        typer.echo("")
        _tell_causes(machine.diagnosis)


def _tell_check(check: Check, *, first: bool, alone: bool) -> None:
    import sys

    from simulator.verdict.bands import JUDGED
    from simulator.verdict.records import check_table_text

    if first:
        tell_set_up(check.set_up)
    typer.echo(check_table_text(check).render(terminal=sys.stdout.isatty()))
    typer.echo("")
    typer.echo(f"verdict{'' if alone else ' on this table'}: {check.health.words}")
    for finding in check.findings:
        _wrap(f"  {finding.name:<8} {finding.health.words}: ", finding.words)
    judged = {finding.name for finding in check.findings}
    if not judged & {*JUDGED[2:]}:
        typer.echo("  no size of 16 MiB or more: bandwidth is not judged")
    elif JUDGED[-1] not in judged:
        typer.echo("  no size of 256 MiB or more, where bandwidth is judged best")
    if check.rows[0].predicted.world_size > KNOWN_RANKS:
        _wrap(
            "  ", "The limits come from machines of at most 64 GPUs: here they may be too narrow."
        )
    typer.echo(f"at the largest size a healthy machine {_bound(check)}")


def _bound(check: Check) -> str:
    """Return in words what limits a healthy machine at the largest size."""
    row = max(check.rows, key=lambda row: row.size_bytes).predicted
    if not check.binding:
        return "is bound by latency"
    if row.binding_share >= BUSY:
        return f"is bound by {check.binding}"
    busy = f"{100 * row.binding_share:.0f} % of the time"
    return f"is bound by no link:\n  the busiest, {check.binding}, works {busy}"


def _tell_causes(diagnosis: Diagnosis) -> None:
    from simulator.verdict.check import causes_of

    causes = causes_of(diagnosis)
    rest = diagnosis.other_weight + diagnosis.healthy_weight
    if not causes:
        _wrap(
            "likely causes: ",
            "none of the faults that were simulated gives these numbers. Is the set-up right "
            "(--node, --nodes, --set)? --inverse nic, nvlink or pcie tells which bandwidth would.",
        )
        return
    typer.echo("likely causes, with their shares of the weight of evidence:")
    for number, found in enumerate(causes[:MOST_CAUSES], start=1):
        _tell_cause(number, found)
    if rest >= 0.05:
        typer.echo(f"  {100 * rest:.0f} %: none of them, or the model is wrong for this machine")
    rivals = causes[0].weight < CERTAIN and len(causes) > 1
    if rivals or causes[0].alike:
        _wrap("  ", "These numbers cannot tell apart what is listed here; the tests above do.")


def _tell_cause(number: int, found: Explanation) -> None:
    from simulator.verdict.hypotheses import HYPOTHESES

    _wrap(f"  {number}. {100 * found.weight:.0f} %: ", found.hypothesis.cause)
    for text in found.said:
        _wrap("     ", f"the log says: {text}")
    _wrap("     look at: ", found.hypothesis.look)
    _wrap("     test: ", found.hypothesis.tell)
    for name in found.alike:
        _wrap("     or, with the same curve: ", HYPOTHESES[name].cause)
        _wrap("       test: ", HYPOTHESES[name].tell)


def _wrap(head: str, text: str) -> None:
    """Print a paragraph of 80 columns, indented below its head."""
    import textwrap

    indent = " " * min(len(head), 11)
    shown = textwrap.fill(
        text, 80, initial_indent=head, subsequent_indent=indent, break_on_hyphens=False
    )
    typer.echo(shown)


def _share(distance: float) -> str:
    """Return a distance of logarithms as a percentage."""
    import math

    return f"{100 * math.expm1(distance):.0f} %"


def _inverse_words(found: Inverse) -> str:
    """Return the answer in a few words."""
    from simulator.base.units import format_rate, format_time

    shown = format_time if found.name == "latency" else format_rate
    if found.value == found.preset:
        return f"{found.name} as preset, {shown(found.preset)}"
    return f"{found.name} {shown(found.value)} (preset {shown(found.preset)})"


def _tell_inverse(found: Inverse) -> None:
    from simulator.base.units import format_rate, format_time

    shown = format_time if found.name == "latency" else format_rate
    typer.echo("")
    if found.value == found.preset:
        typer.echo(f"inverse: no other {found.name} than the preset's {shown(found.preset)}")
        typer.echo(f"  explains the numbers better; it misses them by {_share(found.distance)}")
    else:
        typer.echo(f"inverse: {found.name} of {shown(found.value)} explains the numbers best")
        typer.echo(
            f"  misses them by {_share(found.distance)}, the preset of {shown(found.preset)} by "
            f"{_share(found.preset_distance)}"
        )
    if found.seen:
        typer.echo("  with the algorithms that the library chooses for ports of that speed")
    typer.echo(f"  range: {_range(found, shown)}")


def _range(found: Inverse, shown: Callable[[float], str]) -> str:
    """Return in words from where to where the numbers fit."""
    if found.bounded:
        return f"{shown(found.least)} to {shown(found.most)}"
    if not found.bounded_below and not found.bounded_above:
        return "any: it does not bind"
    if found.bounded_below:
        return f"{shown(found.least)} or more, where something else binds"
    return f"{shown(found.most)} or less"


def _write(
    machines: list[Machine], path: str | None, solved: list[list[Inverse]]
) -> tuple[list[str], list[Problem]]:
    from simulator.cli.output import write_each
    from simulator.results.files import write_text
    from simulator.verdict.records import machines_json

    if path is None:
        return [], []
    text = machines_json(machines, solved)
    return write_each([(path, lambda place: write_text(place, text))])
