"""What ``compare`` and ``check`` share: logs, their warnings, and the set-up of each table."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated

import typer

from simulator.cli import completion
from simulator.cli.foreign import not_foreign

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from simulator.base.errors import Problem
    from simulator.costs.calibration import Calibration
    from simulator.importers import MeasuredTable
    from simulator.verdict.predict import PredictedRow
    from simulator.verdict.setup import SetUp

__all__ = [
    "Collective",
    "Costs",
    "Fabric",
    "Given",
    "GpusPerNode",
    "NodeName",
    "Nodes",
    "Scenario",
    "Settings",
    "read_tables",
    "set_up_for",
    "tell_doubts",
    "tell_outside",
    "tell_set_up",
    "tell_warnings",
]

NodeName = Annotated[
    str | None,
    typer.Option(
        "--node",
        help="Node preset; left out, the log's header is asked.",
        callback=not_foreign,
        autocompletion=completion.nodes,
    ),
]
Nodes = Annotated[str | None, typer.Option("--nodes", "-N", help="Number of nodes.")]
GpusPerNode = Annotated[
    str | None, typer.Option("--gpus-per-node", "-g", help="GPUs of each node that took part.")
]
Fabric = Annotated[
    str | None,
    typer.Option(
        "--fabric", help="Kind of network between nodes.", autocompletion=completion.fabrics
    ),
]
Scenario = Annotated[
    str | None, typer.Option("--scenario", help="Scenario file, instead of --node.")
]
Costs = Annotated[
    str | None,
    typer.Option(
        "--costs",
        help="Library: nccl, rccl, gloo …, or a file of `collsim fit`; left out: asked of the log.",
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Any other key of a scenario."),
]
Collective = Annotated[
    str | None, typer.Option("--collective", help="Of tables that do not tell their own.")
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """The set-up as the command line gives it; None: not said."""

    node: str | None
    nodes: str | None
    gpus_per_node: str | None
    fabric: str | None
    scenario: str | None
    settings: tuple[str, ...]
    costs: str | None = None

    @property
    def words(self) -> dict[str, str]:
        """Return what was said as words of a scenario."""
        from simulator.scenario.patch import split_assignment

        found = {
            "node": self.node,
            "nodes": self.nodes,
            "gpus_per_node": self.gpus_per_node,
            "fabric.kind": self.fabric,
            "costs.profile": self.costs,
        }
        words = {key: value for key, value in found.items() if value is not None}
        return words | dict(split_assignment(text) for text in self.settings)


def read_tables(
    files: list[str], collective: str | None
) -> tuple[list[tuple[str, MeasuredTable]], list[Problem]]:
    """Return every table that can be predicted with its file's name, and all warnings.

    Raises
    ------
    ForeignFileError
        A file without a table.
    ScenarioError
        No table of a collective and a type that collsim knows.
    """
    import sys

    from simulator.base.errors import ScenarioError
    from simulator.collectives.names import canonical_collective
    from simulator.importers.nccl_tests import read
    from simulator.importers.source import ForeignFileError

    name = None if collective is None else canonical_collective(collective)
    tables: list[tuple[str, MeasuredTable]] = []
    warnings: list[Problem] = []
    for file in files:
        try:
            log = read(sys.stdin.buffer.read() if file == "-" else file)
        except ForeignFileError as error:
            if file != "-":
                raise
            raise ForeignFileError([replace(p, file=file) for p in error.problems]) from None
        # Messages name a file as the user did.
        warnings += [replace(problem, file=file) for problem in log.warnings]
        for table in (replace(table, source=file) for table in log.tables):
            if name is not None and (table.collective == "unknown" or name in table.alike):
                tables.append((file, replace(table, collective=name)))
            else:
                tables.append((file, table))
                if name is not None and table.collective != name:
                    warnings.append(_named(table, name))
    strange = [problem for _, table in tables if (problem := _unknown(table)) is not None]
    tables = [(file, table) for file, table in tables if _unknown(table) is None]
    if not tables:
        raise ScenarioError(strange)
    warnings += strange
    usable = [entry for entry in tables if _usable(entry[1])]
    if usable:
        warnings += [_no_times(table) for _, table in tables if not _usable(table)]
    warnings += _unusable_settings(usable or tables)
    # Where no table has a usable time, the prediction's refusal tells the line.
    return usable or tables, warnings


def _named(table: MeasuredTable, name: str) -> Problem:
    from simulator.base.errors import Problem

    return Problem(
        file=table.source,
        line=table.rows[0].line,
        message=f"this table is one of {table.collective}, as the log tells: --collective {name} "
        "is not used for it",
    )


def _unknown(table: MeasuredTable) -> Problem | None:
    """Return why a table cannot be predicted on any set-up; None: it can."""
    from simulator.base.errors import CollsimError
    from simulator.collectives.names import canonical_collective, canonical_dtype
    from simulator.verdict.setup import call_words

    try:
        words = call_words(table, [])
        canonical_collective(words["collective.op"])
        canonical_dtype(words["collective.dtype"])
    except CollsimError as error:
        (problem,) = error.problems
        return replace(
            problem,
            file=table.source,
            line=table.rows[0].line,
            message=f"{problem.message}: this table is left out",
        )
    return None


def _usable(table: MeasuredTable) -> bool:
    return any(table.usable_rows(in_place=half) for half in (False, True))


def _unusable_settings(tables: list[tuple[str, MeasuredTable]]) -> list[Problem]:
    """Return what predictions leave out of the logs' settings, each line once."""
    from simulator.verdict.variables import unusable_settings

    found = [problem for _, table in tables for problem in unusable_settings(table)]
    return list(dict.fromkeys(found))


def _no_times(table: MeasuredTable) -> Problem:
    from simulator.base.errors import Problem

    return Problem(
        file=table.source,
        line=table.rows[0].line,
        message=f"this table of {table.collective} has no row with data and a time above zero: "
        "left out",
    )


def tell_warnings(warnings: list[Problem]) -> None:
    """Print what was odd in the logs, with line numbers, on standard error."""
    for problem in warnings:
        typer.echo(f"warning: {problem}", err=True)


def set_up_for(given: Given, table: MeasuredTable) -> SetUp:
    """Return the set-up of a table: as given, or guessed with what was given laid over it."""
    from simulator.verdict.guess import guess, with_observed
    from simulator.verdict.setup import SetUp, fitted

    words = given.words
    if given.scenario is not None:
        return fitted(with_observed(SetUp(words=words, file=given.scenario), table), table)
    if "node" in words:
        return fitted(with_observed(SetUp(words=words), table), table)
    found = guess(table)
    if "node.nic_rate" in words:
        found = replace(found, unknown="")
    if found.unknown:
        found = replace(found, doubts=(*found.doubts, found.unknown))
    return fitted(found.with_words(words), table)


def tell_doubts(set_ups: Iterable[SetUp]) -> None:
    """Warn of what the logs say against their set-ups, each once."""
    for text in dict.fromkeys(text for set_up in set_ups for text in set_up.doubts):
        typer.echo(f"warning: {text}", err=True)


def tell_set_up(set_up: SetUp) -> None:
    """Print a guessed set-up with its reasons, and what the log says about the run."""
    if set_up.reasons:
        typer.echo(f"set-up guessed from the log: {set_up.title}")
        for reason in set_up.reasons:
            typer.echo(f"  - {reason}")
        typer.echo("  give --node, --nodes or --set to correct it")
    for text in set_up.evidence:
        typer.echo(f"the log says: {text}")


def tell_outside(predicted: Iterable[tuple[SetUp, Sequence[PredictedRow]]]) -> None:
    """Warn once of rows that lie outside what a calibrated profile was fitted to.

    Parameters
    ----------
    predicted
        The set-up and the rows of each table.
    """
    from simulator.compose.calibrated import settings_of
    from simulator.costs.calibration import way_key
    from simulator.costs.profile import load_profile
    from simulator.scenario.nodes import node_template

    reasons: dict[str, list[str]] = {}
    words: dict[str, Calibration] = {}
    for set_up, rows in predicted:
        resolved = set_up.resolve({"collective.op": "barrier"})
        profile = load_profile(resolved.costs.profile)
        calibration = profile.calibration
        if calibration is None:
            continue
        words[calibration.file] = calibration
        presets = [node_template(group.node).name for group in resolved.node_groups]
        for row in (row.predicted for row in rows if row.predicted.world_size > 1):
            reasons.setdefault(calibration.file, []).extend(
                calibration.outside(
                    row.collective,
                    row.world_size,
                    row.n_nodes,
                    row.size_bytes,
                    nodes_of=presets,
                    way=way_key(row.algorithm, row.protocol),
                    settings=settings_of(resolved, profile.version),
                )
            )
    for file, found in reasons.items():
        if found:
            typer.echo(f"warning: {words[file].warning(found)}", err=True)
