"""``collsim fit LOG...``: a cost profile of this machine from its own measurements."""

from __future__ import annotations

import shlex
from contextlib import suppress
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
    tell_set_up,
    tell_warnings,
)

if TYPE_CHECKING:
    from simulator.base.errors import Problem
    from simulator.results.layout import Table as Shown
    from simulator.verdict.check import Machine
    from validation.fitting.machine import MachineFit, Table
    from validation.fitting.profile_file import Constant

HELP = "Calibrate a cost profile with nccl-tests logs of one machine, for --costs FILE."

MOST_CONSTANTS = 16
LEAST_MOVE = 0.02
"""Constants on the screen, and how far in log they moved at least; the file has all."""
MOST_FAR = 6
"""Rows on the screen that fit badly."""


def command(
    logs: Annotated[
        list[str], typer.Argument(help="Logs of nccl-tests or rccl-tests of one machine, or - .")
    ],
    out: Annotated[str, typer.Option("--out", help="Where the profile goes, such as my.yaml.")],
    name: Annotated[
        str | None, typer.Option("--name", help="Of the profile; default the file's.")
    ] = None,
    node: NodeName = None,
    nodes: Nodes = None,
    gpus_per_node: GpusPerNode = None,
    fabric: Fabric = None,
    scenario: Scenario = None,
    costs: Costs = None,
    set_: Settings = None,
    collective: Collective = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar.")] = False,
) -> None:
    """Calibrate a cost profile with logs of one machine."""
    from simulator.base.errors import CalibrationError, Problem
    from simulator.cli.output import progress_of
    from simulator.results.files import write_text
    from validation.fitting.machine import Table, fit_machine, problems_of
    from validation.fitting.widths import PROFILES

    name = name or Path(out).stem
    _check_out(out, force, logs)
    _check_name(name)
    logs, twice = _each_once(logs)
    read, warnings = read_tables(logs, collective)
    tell_warnings(twice + warnings)
    given = Given(
        node=node,
        nodes=nodes,
        gpus_per_node=gpus_per_node,
        fabric=fabric,
        scenario=scenario,
        settings=tuple(set_ or ()),
        costs=costs,
    )
    tables = [
        Table(file=file, table=table, set_up=set_up_for(given, table)) for file, table in read
    ]
    tell_doubts(entry.set_up for entry in tables)
    _tell_set_ups(tables)
    problems = problems_of(tables)
    asked = dict.fromkeys(entry.set_up.unknown for entry in tables if entry.set_up.unknown)
    problems += [Problem(message=text) for text in asked]
    health = ""
    if len(_presets(tables)) == 1 and _profiles(tables) <= set(PROFILES):
        health, doubtful = _tell_verdict(tables, given, warned=not problems)
        problems += doubtful
    if problems:
        raise CalibrationError([*problems])
    report: Any
    with progress_of(3 * len(tables), "fitting", quiet) as report:
        found = fit_machine(
            [_as_run(entry) for entry in tables],
            name=name,
            health=health,
            on_progress=report,
        )
    write_text(out, found.text)
    _tell(found, tables)
    typer.echo(f"wrote {out}", err=True)
    typer.echo(f"try: {_next(tables[0], given, out)}")


def _check_out(out: str, force: bool, logs: list[str]) -> None:
    """Refuse a file that cannot be written, is there already, or that --costs would not take."""
    from simulator.base.errors import Problem, ScenarioError
    from simulator.cli.output import Files
    from simulator.cli.places import check_places

    if Path(out).suffix not in (".yaml", ".yml"):
        raise ScenarioError(
            Problem(file=out, message="is no name of a profile's file", allowed="--out NAME.yaml")
        )
    if Path(out).is_file() and not force:
        raise ScenarioError(
            Problem(file=out, message="is there already", allowed="another file, or --force")
        )
    check_places(Files(json=out), inputs=logs)


def _check_name(name: str) -> None:
    """Refuse the name of a shipped profile: results would not tell which one was used."""
    from simulator.base.errors import Problem, ScenarioError
    from simulator.costs.profile import profile_names

    if name in profile_names():
        raise ScenarioError(
            Problem(
                key="--name",
                message=f"{name!r} is a shipped profile",
                allowed="another name, by --name or that of the file",
            )
        )


def _each_once(logs: list[str]) -> tuple[list[str], list[Problem]]:
    """Return the logs without those of the same bytes, and which ones these are."""
    import hashlib

    from simulator.base.errors import Problem

    found: dict[str, str] = {}
    twice: list[Problem] = []
    for log in logs:
        key = log
        # What cannot be opened is refused where it is read.
        with suppress(OSError):
            if Path(log).is_file():
                with open(log, "rb") as stream:
                    key = hashlib.file_digest(stream, "sha256").hexdigest()
        if key in found:
            twice.append(Problem(file=log, message=f"the same as {found[key]}: counted once"))
        found.setdefault(key, log)
    return list(found.values()), twice


def _as_run(entry: Table) -> Table:
    from dataclasses import replace

    return replace(entry, set_up=entry.set_up.as_observed())


def _presets(tables: list[Table]) -> set[str]:
    return {entry.set_up.words.get("node", "") for entry in tables}


def _profiles(tables: list[Table]) -> set[str]:
    found = (entry.set_up.resolve({"collective.op": "barrier"}) for entry in tables)
    return {resolved.costs.profile for resolved in found}


def _tell_set_ups(tables: list[Table]) -> None:
    """Print the set-ups, each once."""
    told: set[str] = set()
    for entry in tables:
        if entry.set_up.title in told:
            continue
        told.add(entry.set_up.title)
        if not entry.set_up.reasons:
            typer.echo(f"set-up: {entry.set_up.title}")
        tell_set_up(entry.set_up)


def _tell_verdict(tables: list[Table], given: Given, *, warned: bool) -> tuple[str, list[Problem]]:
    """Print whether the machine is healthy; return that, and why it is not fitted.

    A warning that it is fitted is only printed where it will be.
    """
    from simulator.base.errors import Problem
    from simulator.cli.output import warn
    from simulator.verdict.check import check_tables, quickly
    from simulator.verdict.health import Health
    from simulator.verdict.predict import predict_rows
    from validation.fitting.doubtful import impossible

    machines = check_tables([(entry.set_up, entry.table) for entry in tables], causes=False)
    health = max(machine.health for machine in machines)
    word = health.words
    typer.echo(f"verdict: {word}")
    problems = [
        problem
        for machine in machines
        for check in machine.checks
        if impossible(check.table.source, check.rows)
        # A check looks at some sizes only; all lines are told.
        for problem in impossible(
            check.table.source, predict_rows(quickly(check.set_up), check.table)
        )
    ]
    ask = f"`collsim check {_words(tables, given)}` tells the likely causes"
    slow, fast = _reasons(machines, fast=False), _reasons(machines, fast=True)
    if fast:
        problems.append(
            Problem(
                message=f"the machine is faster than this set-up: {'; '.join(fast)}",
                allowed="the set-up that was measured (--node, --nodes, --gpus-per-node)",
            )
        )
    if health is Health.SICK and slow:
        problems.append(
            Problem(
                message=f"the machine is sick: {'; '.join(slow)}; its times say what is broken, "
                "not what the library costs",
                allowed=f"logs of a healthy machine. {ask}",
            )
        )
    if health is Health.SUSPICIOUS and warned and not problems:
        reasons = "; ".join(slow)
        warn(f"the machine is suspicious, and fitted as it is: {reasons}\n  {ask}")
    return word, problems


def _reasons(machines: list[Machine], *, fast: bool) -> list[str]:

    return list(
        dict.fromkeys(
            f"{check.table.collective} {finding.name}: {finding.words}"
            for machine in machines
            for check in machine.checks
            for finding in check.findings
            if finding.health.bad and finding.fast == fast
        )
    )


def _words(tables: list[Table], given: Given) -> str:
    """Return logs and set-up as the command line has them."""
    words = [shlex.quote(file) for file in dict.fromkeys(entry.file for entry in tables)]
    flags = {
        "--node": given.node,
        "--nodes": given.nodes,
        "--gpus-per-node": given.gpus_per_node,
        "--fabric": given.fabric,
        "--scenario": given.scenario,
    }
    words += [f"{flag} {shlex.quote(value)}" for flag, value in flags.items() if value is not None]
    words += [f"--set {shlex.quote(text)}" for text in given.settings]
    return " ".join(words)


def _next(first: Table, given: Given, out: str) -> str:
    """Return a command that uses the file."""
    words = first.set_up.words
    if first.set_up.file is not None:
        return f"collsim compare {_words([first], given)} --costs {shlex.quote(out)}"
    parts = [f"collsim bench {first.table.collective} --node {words['node']}"]
    parts += [f"--nodes {words['nodes']}"] if "nodes" in words else []
    parts += [f"-g {words['gpus_per_node']}"] if "gpus_per_node" in words else []
    parts += [f"--fabric {words['fabric.kind']}"] if "fabric.kind" in words else []
    together = "costs.gpus_per_process"
    parts += [f"--set {together}={words[together]}"] if together in words else []
    return " ".join([*parts, f"--costs {shlex.quote(out)}"])


# -- the screen -------------------------------------------------------------------------------


def _tell(found: MachineFit, tables: list[Table]) -> None:
    import sys

    terminal = sys.stdout.isatty()
    moved = [entry for entry in found.file.constants if entry.moved]
    typer.echo("")
    shown = sorted((entry for entry in moved if _move(entry) >= LEAST_MOVE), key=_move)
    shown = shown[::-1][:MOST_CONSTANTS]
    if shown:
        typer.echo(_constants_table(shown).render(terminal=terminal))
    typer.echo(
        f"{len(moved) - len(shown)} more constants moved a little, "
        f"{len(found.file.constants) - len(moved)} in play stay as shipped"
    )
    typer.echo("")
    typer.echo(_errors_table(found).render(terminal=terminal))
    _tell_far(found, tables)
    typer.echo("")
    typer.echo(f"measured on {found.file.node}; uses beyond are told:")
    for text in _ranges(found):
        typer.echo(f"  {text}")
    if found.left_out:
        typer.echo(f"{found.left_out} rows did not take part: their neighbours say enough")
    typer.echo("")


def _ranges(found: MachineFit) -> list[str]:
    from simulator.base.units import format_size
    from simulator.costs.calibration import table_key

    return list(
        dict.fromkeys(
            table_key(entry["collective"], entry["ranks"], entry["nodes"]).replace("/", ", ")
            + f", {format_size(entry['sizes_bytes'][0])} to {format_size(entry['sizes_bytes'][1])}"
            for entry in found.file.ranges()
        )
    )


def _move(entry: Constant) -> float:
    import math

    return abs(math.log(entry.fitted / entry.shipped))


def _constants_table(moved: list[Constant]) -> Shown:
    import math

    from simulator.results.layout import Column, Table

    def shown(value: float, unit: str) -> str:
        return f"{value:.3g}" + ("" if unit == "share" else f" {unit}")

    lines = [
        (
            entry.key,
            entry.group,
            shown(entry.shipped, entry.parameter.unit),
            shown(entry.fitted, entry.parameter.unit) + ("*" if entry.at_end else ""),
            f"{100 * math.expm1(entry.spread):.0f} %",
        )
        for entry in moved
    ]
    remarks = ["±: standard deviation of the fitted value"]
    if any(entry.at_end for entry in moved):
        remarks.append("*: the end of what is plausible; the rest went into the discrepancy")
    return Table(
        columns=(
            Column(title="constant", right=False, style="cyan", flexible=True),
            Column(title="mechanism", right=False),
            Column(title="shipped"),
            Column(title="fitted", style="bold green"),
            Column(title="±"),
        ),
        rows=tuple(lines),
        title="Constants that moved",
        remarks=tuple(remarks),
    )


def _errors_table(found: MachineFit) -> Shown:
    from simulator.results.layout import Column, Table
    from simulator.verdict.statistics import errors_by_range

    before, after = errors_by_range(found.before), errors_by_range(found.after)

    def percent(value: float) -> str:
        return f"{100 * value:.1f} %"

    return Table(
        columns=(
            Column(title="sizes", right=False, style="bold"),
            Column(title="rows"),
            Column(title="median before"),
            Column(title="after", style="bold green"),
            Column(title="90 % before"),
            Column(title="after", style="bold green"),
        ),
        rows=tuple(
            (
                old.name,
                str(old.n_rows),
                percent(old.median),
                percent(new.median),
                percent(old.p90),
                percent(new.p90),
            )
            for old, new in zip(before, after, strict=True)
        ),
        title="Errors of these rows, as shares of the measured time",
        remarks=("rows that were not fitted are off by more: docs/accuracy.md, calibrated",),
    )


def _tell_far(found: MachineFit, tables: list[Table]) -> None:
    from simulator.base.units import format_size, format_time

    if not found.far:
        return
    typer.echo("")
    count = len(found.far)
    head = f"{count} rows fit badly and count less:"
    typer.echo(head if count > 1 else "a row fits badly and counts less:")
    for place in found.far[:MOST_FAR]:
        row = found.after[place]
        of = f" (median of {found.count[place]})" if found.count[place] > 1 else ""
        typer.echo(
            f"  {tables[found.of_table[place]].file}:{row.line}: {format_size(row.size_bytes)} "
            f"took {format_time(row.measured_s, 3)}{of}, "
            f"fitted {format_time(row.predicted.time_s, 3)}"
        )
