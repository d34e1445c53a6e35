"""``collsim explain``: one call in plain words, and its steps one by one."""

from __future__ import annotations

from typing import Annotated

import typer

from simulator.cli import completion
from simulator.cli.options import (
    Algorithm,
    Channels,
    Environment,
    Fabric,
    GpusPerNode,
    Node,
    Nodes,
    Profile,
    Protocol,
    Settings,
)

HELP = "Explain one call: algorithm, steps, the formula with its numbers, who sends what."


def command(
    collective: Annotated[
        str, typer.Argument(help="all_reduce, alltoall, …", autocompletion=completion.collectives)
    ] = "all_reduce",
    node: Node = "dgx-h100",
    nodes: Nodes = "1",
    gpus_per_node: GpusPerNode = None,
    fabric: Fabric = None,
    size: Annotated[
        str, typer.Option("--size", "-s", help="Size as nccl-tests counts it.")
    ] = "64M",
    algorithm: Algorithm = "auto",
    protocol: Protocol = "auto",
    channels: Channels = None,
    profile: Profile = "auto",
    steps: Annotated[
        bool, typer.Option("--steps", help="Print who sends what in every step (one channel).")
    ] = False,
    env: Environment = None,
    set_: Settings = None,
) -> None:
    """Explain one call."""
    from dataclasses import replace

    import numpy as np

    from simulator.cli.output import warn
    from simulator.cli.shared import environment_words, has_sizes
    from simulator.compose.build import build_cluster
    from simulator.compose.cluster import Choice
    from simulator.compose.explain import explain_call, step_table
    from simulator.compose.programs import call_of
    from simulator.compose.run import run_resolved
    from simulator.scenario.patch import split_assignment
    from simulator.scenario.resolve import from_words

    words = {
        "node": node,
        "nodes": nodes,
        "collective.op": collective,
        "collective.algorithm": algorithm,
        "collective.protocol": protocol,
        "costs.profile": profile,
    }
    if has_sizes(collective):
        words["collective.sizes"] = size
    optional = {
        "gpus_per_node": gpus_per_node,
        "fabric.kind": fabric,
        "collective.channels": channels,
    }
    words |= {key: value for key, value in optional.items() if value is not None}
    words |= environment_words(env)
    words |= dict(split_assignment(text) for text in set_ or [])
    scenarios = from_words(words)
    for problem in scenarios.warnings:
        warn(str(problem))
    for variant in scenarios.variants:
        cluster = build_cluster(variant)
        for text in cluster.warnings:
            warn(text)
        for text in cluster.notes:
            typer.echo(text)
        told = {*cluster.warnings, *cluster.notes}
        spec = variant.collective
        assert spec is not None
        group = np.arange(cluster.n_gpus) if spec.ranks is None else np.asarray(spec.ranks)
        for size_bytes in spec.sizes_bytes or (0,):
            call = call_of(spec, len(group), size_bytes)
            alone = replace(spec, sizes_bytes=(size_bytes,) if spec.sizes_bytes else ())
            (row,) = run_resolved(replace(variant, collective=alone), cluster=cluster).rows
            lines = explain_call(
                cluster,
                call,
                group,
                row=row,
                algorithm=spec.algorithm,
                protocol=spec.protocol,
                channels=spec.channels,
            )
            for line in lines:
                typer.echo(line)
            if steps:
                single = Choice(
                    algorithm=row.algorithm,
                    protocol=row.protocol,
                    n_channels=spec.channels or 1,
                )
                typer.echo("")
                for line in step_table(cluster.schedule(call, group, single)):
                    typer.echo(line)
        for text in (*cluster.warnings, *cluster.outside):
            if text not in told:
                warn(text)
        for text in cluster.notes:
            if text not in told:
                typer.echo(text)
