"""``collsim step``: a training step from words alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simulator.cli import completion
from simulator.cli.options import (
    Csv,
    Environment,
    Fabric,
    GpusPerNode,
    Json,
    Markdown,
    Node,
    Nodes,
    Profile,
    Quiet,
    Settings,
    Workers,
)

if TYPE_CHECKING:
    from simulator.scenario.resolve import ScenarioSet

_NO_STRATEGY = ("training.model", "training.seq", "training.fold", "training.micro_batch")
"""Keys that say nothing of how a step is spread over GPUs."""

HELP = "Predict a training step from words: model, cluster, parallelism."


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
    nodes: Nodes = "1",
    gpus_per_node: GpusPerNode = None,
    fabric: Fabric = None,
    tensor: Annotated[str, typer.Option("--tensor", "--tp", help="Tensor-parallel ranks.")] = "1",
    pipeline: Annotated[str, typer.Option("--pipeline", "--pp", help="Pipeline stages.")] = "1",
    virtual: Annotated[
        str, typer.Option("--virtual", "--vp", help="Model chunks per stage (interleaved).")
    ] = "1",
    schedule: Annotated[
        str | None, typer.Option(help="gpipe, 1f1b, interleaved, zb_h1, zb_h2.")
    ] = None,
    context: Annotated[
        str, typer.Option("--context", "--cp", help="Context-parallel ranks.")
    ] = "1",
    expert: Annotated[str, typer.Option("--expert", "--ep", help="Expert-parallel ranks.")] = "1",
    data_parallel: Annotated[
        str | None, typer.Option(help="ddp, zero1, zero2, zero3, fsdp, hsdp.")
    ] = None,
    zero: Annotated[str | None, typer.Option(help="0-3: ddp, zero1, zero2, zero3.")] = None,
    deepspeed: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="DeepSpeed's JSON: ZeRO, batches, precision, offload."),
    ] = None,
    micro_batch: Annotated[
        str, typer.Option("--micro-batch", "-b", help="Sequences of a rank and pass.")
    ] = "1",
    micro_batches: Annotated[
        str | None, typer.Option(help="Passes of a step (gradient accumulation).")
    ] = None,
    global_batch: Annotated[str | None, typer.Option(help="Sequences of a step.")] = None,
    seq: Annotated[str | None, typer.Option(help="Tokens of a sequence.")] = None,
    recompute: Annotated[str, typer.Option(help="none, selective, full.")] = "none",
    precision: Annotated[str, typer.Option(help="bf16, fp16, fp8, fp4, tf32, fp32.")] = "bf16",
    framework: Annotated[
        str | None,
        typer.Option(
            help="megatron, deepspeed (zero2, zero3) or torch (fsdp): whose defaults hold."
        ),
    ] = None,
    profile: Profile = "auto",
    env: Environment = None,
    set_: Settings = None,
    csv: Csv = None,
    json: Json = None,
    markdown: Markdown = None,
    trace: Annotated[
        str | None, typer.Option(help="Write the timeline for Perfetto (.json or .json.gz).")
    ] = None,
    plot: Annotated[
        list[str] | None,
        typer.Option(help="Draw the step, its memory or gantt, by name (.png .svg .pdf)."),
    ] = None,
    ranks: Annotated[bool, typer.Option("--ranks", help="Print each kind of rank.")] = False,
    buckets: Annotated[
        bool, typer.Option("--buckets", help="Print PyTorch DDP's buckets of the model.")
    ] = False,
    workers: Workers = None,
    quiet: Quiet = False,
) -> None:
    """Predict a training step; words with commas are swept."""
    from simulator.base.errors import Problem, ScenarioError
    from simulator.cli.output import Files
    from simulator.cli.shared import environment_words, simulate_and_print
    from simulator.scenario.patch import split_assignment
    from simulator.scenario.resolve import from_words

    kind = data_parallel
    if zero is not None:
        if kind is not None:
            raise ScenarioError(
                Problem(
                    key="--zero",
                    message="stands beside --data-parallel",
                    allowed="one of the two",
                )
            )
        stages = {"0": "ddp", "1": "zero1", "2": "zero2", "3": "zero3"}
        words = [stages.get(stage.strip(), stage.strip()) for stage in zero.split(",")]
        kind = ",".join(words)
    given = {
        "node": node,
        "nodes": nodes,
        "gpus_per_node": gpus_per_node,
        "fabric.kind": fabric,
        "costs.profile": profile,
        "training.model": model,
        "training.tensor": tensor,
        "training.pipeline": pipeline,
        "training.virtual": virtual,
        "training.schedule": schedule,
        "training.context": context,
        "training.expert": expert,
        "training.data_parallel": kind,
        "training.micro_batch": micro_batch,
        "training.micro_batches": micro_batches,
        "training.global_batch": global_batch,
        "training.seq": seq,
        "training.recompute": recompute,
        "training.precision": precision,
        "training.framework": framework or _framework(kind),
    }
    words_given = {key: value for key, value in given.items() if value is not None}
    if deepspeed is not None:
        if kind is not None:
            raise ScenarioError(
                Problem(
                    key="--deepspeed",
                    message="stands beside --zero or --data-parallel",
                    allowed="one of them",
                )
            )
        words_given |= _of_deepspeed(deepspeed, words_given)
    words_given |= environment_words(env)
    told = dict(split_assignment(text) for text in set_ or [])
    words_given |= told
    scenarios = from_words(words_given, partial=True)
    files = Files(csv=csv, json=json, markdown=markdown, trace=trace, plots=tuple(plot or ()))
    said = kind or framework or schedule or deepspeed or recompute != "none"
    said = said or {tensor, pipeline, virtual, context, expert} != {"1"}
    said = said or any(key.startswith("training.") and key not in _NO_STRATEGY for key in told)
    if not said and len(scenarios.variants) == 1:
        from simulator.compose.step.usual import usual_strategy

        found = usual_strategy(scenarios.variants[0])
        if found is not None:
            typer.echo(found[1], err=True)
            scenarios = from_words({**words_given, **found[0]}, partial=True)
    if buckets:
        _print_buckets(scenarios, err=files.takes_output)
    simulate_and_print(
        scenarios,
        files,
        table="summary",
        links=False,
        ranks=ranks,
        workers=workers,
        quiet=quiet,
        inputs=(model, profile, *(() if deepspeed is None else (deepspeed,))),
    )


def _print_buckets(scenarios: ScenarioSet, *, err: bool) -> None:
    """Print the gradients of every bucket, as PyTorch's DDP fills them after its rebuild.

    Parameters
    ----------
    scenarios
        One variant.
    err
        On standard error: standard output is for a document.

    Raises
    ------
    ScenarioError
        Another kind of data parallelism, or several variants.
    """
    from simulator.base.errors import Problem, ScenarioError
    from simulator.compose.step.request import model_of, strategy_of
    from simulator.training.ddp import ddp_buckets

    spec = scenarios.variants[0].training
    is_ddp = spec is not None and (spec.framework, spec.data_parallel) == ("torch", "ddp")
    if spec is None or not is_ddp or len(scenarios.variants) > 1:
        raise ScenarioError(
            Problem(
                key="--buckets",
                message="only PyTorch's DDP of one variant has these buckets",
                allowed="--framework torch --data-parallel ddp, nothing swept",
            )
        )
    # The buckets depend on sizes of gradients alone, not on how many ranks reduce them.
    ranks = spec.tensor * spec.pipeline * spec.context * (spec.data or 1)
    batch = replace(spec, global_batch=None)
    typer.echo(ddp_buckets(model_of(spec), strategy_of(batch, ranks, ranks)) + "\n", err=err)


def _of_deepspeed(file: str, words: dict[str, str]) -> dict[str, str]:
    """Return what a DeepSpeed configuration asks for on the cluster of the other words."""
    from typing import Any, cast

    from simulator.base.errors import Problem, ScenarioError
    from simulator.base.units import is_whole
    from simulator.compose.build import build_cluster
    from simulator.compose.step.request import section_of
    from simulator.importers import deepspeed_config
    from simulator.scenario.resolve import from_words

    for key in ("training.tensor", "training.pipeline", "nodes"):
        if not is_whole(words[key].strip()):
            raise ScenarioError(
                Problem(
                    key=key,
                    message=f"{words[key]!r} beside --deepspeed",
                    allowed="one whole number",
                )
            )
    keys = ("node", "nodes", "gpus_per_node")
    machine = {key: value for key, value in words.items() if key in keys}
    cluster = build_cluster(from_words({**machine, "collective.op": "barrier"}).variants[0])
    plan = deepspeed_config.read(
        Path(file),
        world_size=cluster.n_gpus,
        tensor=int(words["training.tensor"]),
        pipeline=int(words["training.pipeline"]),
        recompute=cast(Any, words["training.recompute"]),
    )
    for warning in plan.warnings:
        typer.echo(f"warning: {warning}", err=True)
    return section_of(plan.strategy)


def _framework(kind: str | None) -> str:
    """Return the framework that people mean who name kinds of data parallelism.

    One for all kinds of a sweep, so that only the kind differs: that of the first kind which
    Megatron-LM does not have.
    """
    for word in (kind or "").split(","):
        if word.strip() in ("zero2", "zero3"):
            return "deepspeed"
        if word.strip() in ("fsdp", "hsdp"):
            return "torch"
    return "megatron"
