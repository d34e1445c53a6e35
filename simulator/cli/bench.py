"""``collsim bench``: a sweep from words alone, with nccl-tests' letters."""

from __future__ import annotations

from typing import Annotated

import typer

from simulator.cli import completion
from simulator.cli.options import (
    Algorithm,
    Channels,
    Csv,
    Environment,
    Fabric,
    GpusPerNode,
    Json,
    Links,
    Markdown,
    Node,
    Nodes,
    Plot,
    Profile,
    Protocol,
    Quiet,
    Ranks,
    Settings,
    Table,
    Trace,
    Workers,
)

HELP = "Predict an nccl-tests table from words: collective, node preset, number of nodes."


def command(
    collective: Annotated[
        str,
        typer.Argument(
            help="all_reduce, alltoall, all_gather_perf … (any tool's spelling).",
            autocompletion=completion.collectives,
        ),
    ] = "all_reduce",
    node: Node = "dgx-h100",
    nodes: Nodes = "1",
    gpus_per_node: GpusPerNode = None,
    fabric: Fabric = None,
    algorithm: Algorithm = "auto",
    protocol: Protocol = "auto",
    channels: Channels = None,
    begin: Annotated[str, typer.Option("--begin", "-b", help="First size.")] = "8",
    end: Annotated[str, typer.Option("--end", "-e", help="Last size.")] = "8G",
    factor: Annotated[str, typer.Option("--factor", "-f", help="Factor between sizes.")] = "2",
    step: Annotated[
        str | None, typer.Option("--step", "-i", help="Step between sizes, instead of a factor.")
    ] = None,
    dtype: Annotated[str, typer.Option("--dtype", "-d", help="Type of an element.")] = "float",
    redop: Annotated[
        str | None, typer.Option("--redop", "-o", help="Reduction; default sum.")
    ] = None,
    root: Annotated[str | None, typer.Option("--root", "-r", help="Root rank; default 0.")] = None,
    profile: Profile = "auto",
    env: Environment = None,
    set_: Settings = None,
    csv: Csv = None,
    json: Json = None,
    markdown: Markdown = None,
    trace: Trace = None,
    plot: Plot = None,
    table: Table = "nccl-tests",
    links: Links = False,
    ranks: Ranks = False,
    workers: Workers = None,
    quiet: Quiet = False,
) -> None:
    """Predict an nccl-tests table from words."""
    from simulator.cli.output import Files
    from simulator.cli.shared import environment_words, has_sizes, simulate_and_print
    from simulator.scenario.resolve import from_words

    words = {
        "node": node,
        "nodes": nodes,
        "collective.op": collective,
        "collective.algorithm": algorithm,
        "collective.protocol": protocol,
        "collective.dtype": dtype,
        "costs.profile": profile,
    }
    if has_sizes(collective):
        words |= {"collective.sizes.from": begin, "collective.sizes.to": end}
        if step is None:
            words["collective.sizes.factor"] = factor
        else:
            words["collective.sizes.step"] = step
    optional = {
        "collective.redop": redop,
        "collective.root": root,
        "gpus_per_node": gpus_per_node,
        "fabric.kind": fabric,
        "collective.channels": channels,
    }
    words |= {key: value for key, value in optional.items() if value is not None}
    words |= environment_words(env)
    words |= _assignments(set_ or [])
    scenarios = from_words(words, partial=True)
    several = len(scenarios.variants) + len(scenarios.invalid) > 1
    simulate_and_print(
        scenarios,
        Files(csv=csv, json=json, markdown=markdown, trace=trace, plots=tuple(plot or ())),
        table="summary" if several else table,
        links=links,
        ranks=ranks,
        workers=workers,
        quiet=quiet,
        inputs=(profile,),
    )


def _assignments(texts: list[str]) -> dict[str, str]:
    from simulator.scenario.patch import split_assignment

    return dict(split_assignment(text) for text in texts)
