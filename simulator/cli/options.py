"""Options that several commands have, declared once."""

from __future__ import annotations

from typing import Annotated

import typer

from simulator.cli import completion
from simulator.cli.foreign import not_foreign

__all__ = [
    "Algorithm",
    "Channels",
    "Csv",
    "Environment",
    "Fabric",
    "Force",
    "GpusPerNode",
    "Json",
    "Links",
    "Markdown",
    "Node",
    "Nodes",
    "Plot",
    "Profile",
    "Protocol",
    "Quiet",
    "Ranks",
    "Settings",
    "Table",
    "Trace",
    "Workers",
]

# Where.
Node = Annotated[
    str,
    typer.Option(
        "--node",
        help="Node preset; see `collsim topologies list`.",
        callback=not_foreign,
        autocompletion=completion.nodes,
    ),
]
Nodes = Annotated[str, typer.Option("--nodes", "-N", help="Number of nodes.")]
GpusPerNode = Annotated[
    str | None,
    typer.Option("--gpus-per-node", "-g", help="Use only the first GPUs of each node."),
]
Fabric = Annotated[
    str | None,
    typer.Option(
        "--fabric",
        help="Network: single_switch, fat_tree, rail_optimized …",
        autocompletion=completion.fabrics,
    ),
]
Profile = Annotated[
    str,
    typer.Option(
        "--profile",
        "--costs",
        help="Library: nccl, rccl, gloo, mpi, mpich; auto: that of the GPUs; ideal: the textbook; "
        "a file of `collsim fit`.",
        autocompletion=completion.profiles,
    ),
]
Environment = Annotated[
    list[str] | None,
    typer.Option("--env", metavar="NAME=VALUE", help="Variable of the library, as in a shell."),
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Any other key, as fabric.oversubscription=2."),
]

# How.
Algorithm = Annotated[
    str,
    typer.Option(
        "--algorithm", "-a", help="Name(s) or auto.", autocompletion=completion.algorithms
    ),
]
Protocol = Annotated[str, typer.Option("--protocol", "-p", help="Name(s) or auto.")]
Channels = Annotated[str | None, typer.Option("--channels", help="Number(s) of channels.")]

# What is printed and written.
Csv = Annotated[
    str | None, typer.Option("--csv", help="Write the table as CSV; - : print it alone.")
]
Json = Annotated[
    str | None,
    typer.Option("--json", help="Write everything, with provenance; - : print it alone."),
]
Markdown = Annotated[
    str | None, typer.Option("--markdown", help="Write the table as Markdown; - : print it alone.")
]
Trace = Annotated[
    str | None,
    typer.Option("--trace", help="Write a Chrome/Perfetto trace (.json or .json.gz)."),
]
Force = Annotated[
    bool, typer.Option("--force", help="Overwrite files that the scenario's output section names.")
]
Plot = Annotated[
    list[str] | None,
    typer.Option(
        "--plot",
        help="Draw busbw, comparison, link-load or gantt, by name (.png .svg .pdf).",
    ),
]
Table = Annotated[str, typer.Option("--table", help="summary or nccl-tests.")]
Links = Annotated[bool, typer.Option("--links", help="Print the loads of links.")]
Ranks = Annotated[bool, typer.Option("--ranks", help="Print waiting against transfer.")]
Workers = Annotated[
    int | None,
    typer.Option("--workers", min=1, help="Processes for sweeps; default one per core."),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar.")]
