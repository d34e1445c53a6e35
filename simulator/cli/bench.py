"""``collsim bench``: a sweep from words alone, with nccl-tests' letters."""

from __future__ import annotations

from typing import Annotated

import typer

HELP = "Predict an nccl-tests table from words: collective, node preset, number of nodes."


def command(
    collective: Annotated[
        str, typer.Argument(help="all_reduce, alltoall, all_gather_perf … (any tool's spelling).")
    ] = "all_reduce",
    node: Annotated[
        str, typer.Option(help="Node preset; see `collsim topologies list`.")
    ] = "dgx-h100",
    nodes: Annotated[str, typer.Option("--nodes", "-N", help="Number of nodes.")] = "1",
    gpus_per_node: Annotated[
        str | None,
        typer.Option("--gpus-per-node", "-g", help="Use only the first GPUs of each node."),
    ] = None,
    fabric: Annotated[
        str | None, typer.Option(help="Network: single_switch, fat_tree, rail_optimized …")
    ] = None,
    algorithm: Annotated[str, typer.Option("--algorithm", "-a", help="Name(s) or auto.")] = "auto",
    protocol: Annotated[str, typer.Option("--protocol", "-p", help="Name(s) or auto.")] = "auto",
    channels: Annotated[str | None, typer.Option(help="Number(s) of channels.")] = None,
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
    profile: Annotated[str, typer.Option(help="Cost profile.")] = "nccl",
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Any other key of a scenario."),
    ] = None,
    csv: Annotated[str | None, typer.Option(help="Write the table as CSV.")] = None,
    json: Annotated[str | None, typer.Option(help="Write everything, with provenance.")] = None,
    markdown: Annotated[str | None, typer.Option(help="Write the table as Markdown.")] = None,
    trace: Annotated[str | None, typer.Option(help="Trace of the last size.")] = None,
    plot: Annotated[list[str] | None, typer.Option(help="Draw busbw over size.")] = None,
    table: Annotated[str, typer.Option(help="nccl-tests or summary.")] = "nccl-tests",
    links: Annotated[bool, typer.Option("--links", help="Print the loads of links.")] = False,
    ranks: Annotated[bool, typer.Option("--ranks", help="Print waiting against transfer.")] = False,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Processes for sweeps; default one per core.")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar.")] = False,
) -> None:
    """Predict an nccl-tests table from words."""
    from simulator.cli.output import Files
    from simulator.cli.shared import has_sizes, simulate_and_print
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
    words |= _assignments(set_ or [])
    scenarios = from_words(words)
    several = len(scenarios.variants) > 1
    simulate_and_print(
        scenarios,
        Files(csv=csv, json=json, markdown=markdown, trace=trace, plots=tuple(plot or ())),
        table="summary" if several else table,
        links=links,
        ranks=ranks,
        workers=workers,
        quiet=quiet,
    )


def _assignments(texts: list[str]) -> dict[str, str]:
    from simulator.scenario.patch import split_assignment

    return dict(split_assignment(text) for text in texts)
