"""``collsim tune``: the fastest strategy that fits, from words."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from simulator.cli import completion
from simulator.cli.options import (
    Environment,
    Fabric,
    Json,
    Node,
    Profile,
    Quiet,
    Settings,
    Workers,
)

HELP = "Find the fastest parallel strategy of a model that fits a cluster."


def command(
    model: Annotated[
        str,
        typer.Option(
            "--model",
            "-m",
            help="Name (`collsim list models`) or config.json.",
            autocompletion=completion.models,
        ),
    ],
    node: Node = "dgx-h100",
    nodes: Annotated[int, typer.Option("--nodes", "-N", min=1, help="Number of nodes.")] = 1,
    fabric: Fabric = None,
    global_batch: Annotated[
        int | None, typer.Option(min=1, help="Sequences of a step; default one a GPU.")
    ] = None,
    seq: Annotated[str | None, typer.Option(help="Tokens of a sequence.")] = None,
    precision: Annotated[str, typer.Option(help="bf16, fp16, fp8, fp4, tf32, fp32.")] = "bf16",
    framework: Annotated[str, typer.Option(help="megatron, deepspeed or torch.")] = "megatron",
    profile: Profile = "auto",
    simulate: Annotated[
        int, typer.Option(min=1, max=1000, help="Strategies that are simulated.")
    ] = 16,
    top: Annotated[int, typer.Option(min=1, help="Lines of the table.")] = 8,
    env: Environment = None,
    set_: Settings = None,
    csv: Annotated[
        str | None, typer.Option(help="Write all simulated ones as CSV; - : alone.")
    ] = None,
    json: Json = None,
    workers: Workers = None,
    quiet: Quiet = False,
) -> None:
    """Find the fastest strategy that fits."""
    import sys
    from dataclasses import replace

    from simulator.cli.output import (
        Files,
        finish,
        progress_of,
        tell_written,
        warn,
        write_files,
    )
    from simulator.cli.places import check_places
    from simulator.cli.shared import environment_words
    from simulator.compose.build import build_cluster
    from simulator.compose.step.search import candidates
    from simulator.compose.sweep import run_set, variant_labels
    from simulator.results.training_tables import comparison_table
    from simulator.scenario.patch import split_assignment
    from simulator.scenario.resolve import ScenarioSet, from_words

    given = {
        "node": node,
        "nodes": str(nodes),
        "fabric.kind": fabric,
        "costs.profile": profile,
        "training.model": model,
        "training.seq": seq,
        "training.precision": precision,
        "training.framework": framework,
        "training.global_batch": None if global_batch is None else str(global_batch),
    }
    words = {key: value for key, value in given.items() if value is not None}
    words |= environment_words(env)
    words |= dict(split_assignment(text) for text in set_ or [])
    (asked, *_) = from_words(words).variants
    files = Files(csv=csv, json=json)
    check_places(files, inputs=(model, profile))
    cluster = build_cluster(asked)
    found = candidates(cluster, asked, most=simulate)
    report: Any
    with progress_of(len(found.best), "simulating", quiet) as report:
        result = run_set(
            ScenarioSet(name="tune", variants=found.best, warnings=()),
            workers=workers,
            on_progress=report,
        )
    ordered = sorted(result.training, key=lambda step: step.step_s)
    named = tuple(replace(step, variant=_short(step.strategy)) for step in ordered)
    title = (
        f"{model} on {cluster.n_gpus} GPUs{cluster.library_words}: "
        f"{found.n_fitting} of {found.n_allowed} strategies fit, {len(ordered)} simulated"
    )
    shown = comparison_table(named[:top], title=title)
    written, refused = write_files(replace(result, training=named), files)
    for text in result.warnings:
        warn(text)
    if not files.takes_output:
        labels = variant_labels([variant.labels for variant in found.best])
        alone = len(found.best) == 1
        best = found.best[0 if alone else labels.index(ordered[0].variant)]
        typer.echo(shown.render(terminal=sys.stdout.isatty()))
        typer.echo("\nthe fastest: " + _command(dict(best.labels), given, best.training))
    tell_written(written)
    finish(result, refused)


def _short(strategy: str) -> str:
    """Return a strategy's words in fewer letters: ``TP2 DP8 ZeRO-1 SP mb1x16``."""
    for long, short in ((", micro-batch ", " mb"), (" x ", "x"), (", recompute ", " "), (",", "")):
        strategy = strategy.replace(long, short)
    return strategy


_FLAGS = {
    "tensor": "--tp",
    "pipeline": "--pp",
    "virtual": "--vp",
    "context": "--cp",
    "expert": "--ep",
    "data_parallel": "--data-parallel",
    "micro_batch": "--micro-batch",
    "recompute": "--recompute",
}
_USUAL = {"--data-parallel": "ddp", "--recompute": "none"}
_USUAL_COSTS = ("costs.profile", "auto")


def _command(labels: dict[str, str], given: dict[str, str | None], spec: Any) -> str:
    """Return the command that simulates a strategy alone."""
    parts = ["collsim step"]
    names = {
        "training.model": "--model",
        "node": "--node",
        "nodes": "--nodes",
        "fabric.kind": "--fabric",
        "training.seq": "--seq",
        "training.precision": "--precision",
        "training.framework": "--framework",
        "costs.profile": "--costs",
    }
    given = {key: value for key, value in given.items() if (key, value) != _USUAL_COSTS}
    parts += [f"{flag} {given[key]}" for key, flag in names.items() if given.get(key) is not None]
    for key, value in labels.items():
        flag = _FLAGS[key.removeprefix("training.")]
        if value != _USUAL.get(flag, "1"):
            parts.append(f"{flag} {value}")
    return " ".join([*parts, f"--global-batch {spec.global_batch}"])
