"""From a scenario's ``training`` section to a model and a strategy with nothing left open."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from simulator.base.errors import CollsimError, Problem, ScenarioError
from simulator.base.fields import parse_count, parse_flag
from simulator.importers import hf_config
from simulator.models import Model, from_dims, get_model
from simulator.models.vocabulary import padded_model
from simulator.scenario.training import TrainingSpec
from simulator.training.strategy import DataParallel, Kind, Precision, Strategy

__all__ = ["model_of", "precision_of", "precision_word", "section_of", "strategy_of"]

_COMPUTE = {
    "bf16": "bfloat16",
    "fp16": "half",
    "fp8": "f8e4m3",
    "fp4": "f4e2m1",
    "tf32": "tf32",
    "fp32": "float32",
}


def model_of(spec: TrainingSpec) -> Model:
    """Return the model that a section names, as the section's framework holds it.

    Megatron-LM pads vocabularies for its tensor ranks; other frameworks take them as given.

    Raises
    ------
    ScenarioError
        No such model or file, or sizes that do not fit together; at the key that says so.
    """
    model = _named(spec)
    return padded_model(model, spec.tensor) if spec.framework == "megatron" else model


def _named(spec: TrainingSpec) -> Model:
    sizes: dict[str, Any] = {name: _typed(text) for name, text in spec.model_set.items()}
    key = "training.model"
    try:
        if Path(spec.model).suffix == ".json":
            if sizes:
                raise CollsimError("sizes of a config.json are changed in that file")
            return hf_config.read(Path(spec.model))
        if spec.model == "custom":
            key = "training.model_set"
            return from_dims(**sizes)
        found = get_model(spec.model)
        key = "training.model_set"
        return get_model(spec.model, **sizes) if sizes else found
    except CollsimError as error:
        inside = key == "training.model_set"
        raise ScenarioError(
            [replace(p, key=f"{key}.{p.key}" if inside and p.key else key) for p in error.problems]
        ) from None


def _typed(text: str) -> int | float | bool | str:
    for convert in (parse_count, parse_flag, int, float):
        try:
            return convert(text)
        except (ValueError, CollsimError):
            continue
    return text


def precision_word(compute: str) -> str:
    """Return the word of a scenario for a type of matrix products."""
    return next((word for word, name in _COMPUTE.items() if name == compute), compute)


def precision_of(
    word: str,
    framework: str,
    kind: str,
    *,
    gradient_bytes: int | None = None,
    reduce_bytes: int | None = None,
) -> Precision:
    """Return what a framework keeps and communicates for a type of matrix products.

    Megatron-LM accumulates and reduces gradients of bf16 and fp8 in fp32, of fp16 in fp16
    (megatron/training/arguments.py, accumulate_allreduce_grads_in_fp32); DeepSpeed keeps them in
    the type of the parameters (docs/_pages/config-json.md, communication_data_type);
    PyTorch's autocast keeps parameters and gradients of DDP in fp32, FSDP gathers in the compute
    type and reduces in fp32 (torch.distributed.fsdp, MixedPrecision with reduce_dtype fp32).
    """
    compute = _COMPUTE[word]
    if word in ("fp32", "tf32"):
        made = Precision(
            compute=compute,
            parameter_bytes=4,
            gradient_bytes=4,
            reduce_bytes=4,
            gather_bytes=4,
            master_bytes=0,
        )
    elif framework == "torch":
        whole = kind == "ddp"
        made = Precision(
            compute=compute,
            parameter_bytes=4,
            gradient_bytes=4,
            reduce_bytes=4,
            gather_bytes=4 if whole else 2,
            master_bytes=0,
        )
    else:
        short = word == "fp16" or framework == "deepspeed"
        gradient = 2 if short else 4
        made = Precision(compute=compute, gradient_bytes=gradient, reduce_bytes=gradient)
    if gradient_bytes is None and reduce_bytes is None:
        return made
    kept = gradient_bytes or made.gradient_bytes
    return Precision(
        compute=made.compute,
        parameter_bytes=made.parameter_bytes,
        gradient_bytes=kept,
        reduce_bytes=reduce_bytes or (kept if gradient_bytes else made.reduce_bytes),
        gather_bytes=made.gather_bytes,
        master_bytes=made.master_bytes,
        moment_bytes=made.moment_bytes,
    )


def strategy_of(spec: TrainingSpec, n_gpus: int, gpus_per_node: int) -> Strategy:
    """Return the whole strategy of a section on a cluster.

    Raises
    ------
    ScenarioError
        Sizes that do not multiply to the number of GPUs, or a batch that does not divide.
    """
    data = spec.data if spec.data is not None else _rest(spec, n_gpus)
    sharded = spec.data_parallel
    kind: Kind = "fsdp" if sharded == "hsdp" else sharded  # type: ignore[assignment]
    shard = spec.shard
    if sharded == "hsdp" and shard is None:
        shard = max(1, gpus_per_node // (spec.tensor * spec.context))
    micro_batches = _micro_batches(spec, data)
    schedule = spec.schedule or ("interleaved" if spec.virtual > 1 else "1f1b")
    split = spec.sequence_parallel
    if split is None:
        split = spec.tensor > 1 and spec.framework != "deepspeed"
    often = spec.reduce_every_micro_batch
    if often is None:
        often = sharded in ("zero2", "zero3", "fsdp", "hsdp")
    # DeepSpeed's overlap_comm is on by default in stage 3 only (runtime/zero/config.py).
    default = spec.framework != "deepspeed" or sharded == "zero3"
    return Strategy(
        tensor=spec.tensor,
        sequence_parallel=split,
        context=spec.context,
        context_kind=spec.context_kind,  # type: ignore[arg-type]
        expert=spec.expert,
        expert_tensor=spec.expert_tensor,
        expert_imbalance=spec.expert_imbalance,
        capacity_factor=spec.capacity_factor,
        routed_nodes=spec.routed_nodes,
        overlap_expert=spec.overlap_expert,
        pipeline=spec.pipeline,
        virtual=spec.virtual,
        schedule=schedule,  # type: ignore[arg-type]
        overlap_p2p=spec.overlap_p2p,
        overlap_tensor=spec.overlap_tensor,
        data=data,
        order=tuple(spec.order),
        micro_batch=spec.micro_batch,
        micro_batches=micro_batches,
        seq=spec.seq,
        recompute=spec.recompute,  # type: ignore[arg-type]
        recompute_layers=spec.recompute_layers,
        attention=spec.attention,  # type: ignore[arg-type]
        compiled=spec.framework == "megatron" if spec.compiled is None else spec.compiled,
        dropout=spec.dropout,
        precision=precision_of(
            spec.precision,
            spec.framework,
            kind,
            gradient_bytes=spec.gradient_bytes,
            reduce_bytes=spec.reduce_bytes,
        ),
        data_parallel=DataParallel(
            kind=kind,
            shard=shard,
            secondary_shard=spec.secondary_shard,
            overlap_reduce=default if spec.overlap_reduce is None else spec.overlap_reduce,
            overlap_gather=default if spec.overlap_gather is None else spec.overlap_gather,
            bucket_bytes=spec.bucket_bytes,
            first_bucket_bytes=spec.first_bucket_bytes,
            prefetch=spec.prefetch,
            reshard_after_forward=spec.reshard_after_forward,
            reduce_every_micro_batch=often,
            hook=spec.hook,
            hook_ratio=spec.hook_ratio,
            hook_rank=spec.hook_rank,
            quantized_weights=spec.quantized_weights,
            quantized_gradients=spec.quantized_gradients,
            offload_optimizer=spec.offload_optimizer,  # type: ignore[arg-type]
            offload_parameters=spec.offload_parameters,  # type: ignore[arg-type]
        ),
        optimizer=spec.optimizer,  # type: ignore[arg-type]
        framework=spec.framework,  # type: ignore[arg-type]
    )


def section_of(strategy: Strategy) -> dict[str, str]:
    """Return the keys of a section ``training`` that ask for a strategy read from a file."""
    options = strategy.data_parallel
    given: dict[str, object] = {
        "framework": strategy.framework,
        "tensor": strategy.tensor,
        "pipeline": strategy.pipeline,
        "context": strategy.context,
        "context_kind": strategy.context_kind,
        "micro_batch": strategy.micro_batch,
        "micro_batches": strategy.micro_batches,
        "recompute": strategy.recompute,
        "precision": precision_word(strategy.precision.compute),
        "gradient": f"{strategy.precision.gradient_bytes} B",
        "reduce": f"{strategy.precision.reduce_bytes} B",
        "optimizer": strategy.optimizer,
        "data_parallel": options.kind,
        "shard": options.shard,
        "secondary_shard": options.secondary_shard,
        "overlap_reduce": options.overlap_reduce,
        "overlap_gather": options.overlap_gather,
        "bucket": None if options.bucket_bytes is None else f"{options.bucket_bytes} B",
        "prefetch": options.prefetch,
        "reduce_every_micro_batch": options.reduce_every_micro_batch,
        "quantized_weights": options.quantized_weights,
        "quantized_gradients": options.quantized_gradients,
        "offload_optimizer": options.offload_optimizer,
        "offload_parameters": options.offload_parameters,
    }
    return {
        f"training.{key}": str(value).lower() if isinstance(value, bool) else str(value)
        for key, value in given.items()
        if value is not None
    }


def _rest(spec: TrainingSpec, n_gpus: int) -> int:
    others = spec.tensor * spec.pipeline * spec.context
    if n_gpus % others:
        raise ScenarioError(
            Problem(
                key="training.tensor",
                message=f"tensor {spec.tensor} x pipeline {spec.pipeline} x context "
                f"{spec.context} = {others} does not divide {n_gpus} GPUs",
                allowed=f"sizes whose product divides {n_gpus}: "
                + ", ".join(str(n) for n in range(1, n_gpus + 1) if n_gpus % n == 0),
            )
        )
    return n_gpus // others


def _micro_batches(spec: TrainingSpec, data: int) -> int:
    if spec.global_batch is None:
        return spec.micro_batches or 1
    each = spec.micro_batch * data
    if spec.micro_batches is not None and spec.micro_batches * each != spec.global_batch:
        raise ScenarioError(
            Problem(
                key="training.global_batch",
                message=f"{spec.global_batch} is not micro_batch {spec.micro_batch} x "
                f"micro_batches {spec.micro_batches} x data {data}",
                allowed=f"{spec.micro_batches * each}, or leave micro_batches out",
            )
        )
    if spec.global_batch % each:
        low = spec.global_batch // each * each
        near = f"{low} or {low + each}" if low else f"{each}"
        raise ScenarioError(
            Problem(
                key="training.global_batch",
                message=f"{spec.global_batch} sequences do not divide over micro_batch "
                f"{spec.micro_batch} x data {data}",
                allowed=f"a multiple of {each}, such as {near}",
            )
        )
    return spec.global_batch // each
