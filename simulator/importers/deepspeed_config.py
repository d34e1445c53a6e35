"""DeepSpeed's JSON configuration to a strategy.

Sizes of buckets are elements there and bytes here.  What a training script decides, recomputation,
tensor and pipeline parallel ranks, is given beside the file.

References
----------
.. [1] deepspeedai/DeepSpeed, ``deepspeed/runtime/config.py``, ``deepspeed/runtime/zero/config.py``:
   keys, defaults, and how the three batch sizes complete each other.
.. [2] ``deepspeed/runtime/pipe/engine.py``: ZeRO-2 and 3 are refused with pipelines.
.. [3] huggingface/transformers, ``src/transformers/integrations/deepspeed.py``: what ``auto``
   becomes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from simulator.base.errors import Problem, nearest
from simulator.base.limits import shortened
from simulator.importers.json_object import JsonSource, read_json_object
from simulator.importers.known_keys import known_keys
from simulator.importers.registry import importer
from simulator.importers.source import ForeignFileError
from simulator.training.strategy import DataParallel, Kind, Precision, Strategy

__all__ = ["DeepSpeedPlan", "read"]

Offload = Literal["none", "cpu", "nvme"]

# Values that `auto` takes from Hugging Face Trainer's arguments [3]_.
_TRAINER = {
    "train_batch_size": "per_device_train_batch_size x gradient_accumulation_steps x replicas",
    "train_micro_batch_size_per_gpu": "per_device_train_batch_size",
    "gradient_accumulation_steps": "gradient_accumulation_steps",
    "fp16.enabled": "fp16",
    "bf16.enabled": "bf16",
}
_COMPRESSED = ("onebitadam", "zerooneadam", "onebitlamb")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeepSpeedPlan:
    """What a file and the arguments beside it say."""

    strategy: Strategy
    warnings: tuple[str, ...]
    """What of the file is not simulated, or was assumed."""


class _File:
    """The file's values, what `auto` becomes, and problems."""

    def __init__(self, values: dict[str, Any], shown: str, arguments: Mapping[str, Any]) -> None:
        self.values = values
        self.shown = shown
        self.arguments = arguments
        self.problems: list[Problem] = []
        self.warnings: list[str] = []

    def problem(self, key: str, message: str, allowed: str = "", hint: str | None = None) -> None:
        found = Problem(file=self.shown, key=key, message=message, allowed=allowed, suggestion=hint)
        if found not in self.problems:
            self.problems.append(found)

    def section(self, name: str) -> dict[str, Any]:
        value = self.values.get(name)
        if value is None:
            return {}
        if not isinstance(value, dict):
            self.problem(name, f"{value!r} is no section", "an object, { … }")
            return {}
        return value

    def value(self, key: str) -> Any:
        """Return a value of a dotted key, with `auto` replaced; None where it is missing."""
        node: Any = self.values
        for part in key.split("."):
            node = node.get(part) if isinstance(node, dict) else None
        if node is None and _TRAINER.get(key) in self.arguments:
            return self.arguments[_TRAINER[key]]
        return self._filled(key) if node == "auto" else node

    def _filled(self, key: str) -> Any:
        argument = _TRAINER.get(key, "")
        if argument in self.arguments:
            return self.arguments[argument]
        hidden = self.arguments.get("hidden_size")
        if isinstance(hidden, int):
            by_hidden = {
                "zero_optimization.reduce_bucket_size": hidden**2,
                "zero_optimization.stage3_prefetch_bucket_size": int(0.9 * hidden**2),
                "zero_optimization.stage3_param_persistence_threshold": 10 * hidden,
            }
            if key in by_hidden:
                return by_hidden[key]
        if key == "train_batch_size":
            # Follows from the other two.
            return None
        wanted = f"--{argument}" if argument else "the model's hidden size"
        self.problem(
            key,
            "'auto' is filled in by the training script, not by DeepSpeed",
            f"a value, or {wanted} given beside the file",
        )
        return None

    def count(self, key: str, *, least: int = 1) -> int | None:
        """Return a whole number (``5e8`` is one), or None."""
        value = self.value(key)
        if value is None:
            return None
        whole = isinstance(value, int | float) and not isinstance(value, bool)
        if not whole or not math.isfinite(value) or value != int(value) or value < least:
            self.problem(key, f"{value!r} is no count", f"a whole number ≥ {least}")
            return None
        return int(value)

    def flag(self, key: str, default: bool) -> bool:
        value = self.value(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            self.problem(key, f"{value!r} is not true or false", "true, false")
            return default
        return value

    def unknown_keys(self) -> None:
        for prefix, keys, known in (
            ("", self.values, known_keys("deepspeed")),
            (
                "zero_optimization.",
                self.section("zero_optimization"),
                known_keys("deepspeed_zero"),
            ),
        ):
            for key in keys:
                if key not in known:
                    close = nearest(key, known)
                    hint = f"; did you mean {prefix + close!r}?" if close else ""
                    self.warnings.append(f"{prefix}{key} is not known and not read{hint}")


@importer(
    "deepspeed_config",
    summary="DeepSpeed's JSON configuration",
    reference="deepspeedai/DeepSpeed deepspeed/runtime/config.py, runtime/zero/config.py",
)
def read(
    source: JsonSource,
    *,
    world_size: int | None = None,
    tensor: int = 1,
    pipeline: int = 1,
    recompute: Literal["none", "selective", "full"] = "none",
    arguments: Mapping[str, Any] | Sequence[str] = (),
) -> DeepSpeedPlan:
    """Return the strategy of a DeepSpeed configuration.

    Parameters
    ----------
    source
        A path, the text, bytes, an open stream, or the object.
    world_size
        GPUs; None: as the three batch sizes imply.
    tensor, pipeline
        Ranks that the training script shares tensors and layers over.
    recompute
        What the training script recomputes.
    arguments
        What replaces ``auto``: Hugging Face Trainer's arguments, as a command line
        (``["--bf16", "--per_device_train_batch_size", "4"]``) or by name; also ``hidden_size``.

    Raises
    ------
    ForeignFileError
        No JSON, values that DeepSpeed refuses, ``auto`` without what replaces it, batch sizes that
        contradict each other; all at once.

    Examples
    --------
    >>> plan = read('{"train_micro_batch_size_per_gpu": 4, "zero_optimization": {"stage": 3}}',
    ...             world_size=64)
    >>> plan.strategy.data_parallel.kind, plan.strategy.data
    ('zero3', 64)
    """
    values, shown = read_json_object(source, "a DeepSpeed configuration")
    file = _File(values, shown, _named(arguments))
    file.unknown_keys()
    _refusals(file, pipeline)
    precision = _precision(file)
    data_parallel = _data_parallel(file, precision)
    context = file.count("sequence_parallel_size") or 1
    given = file.count("tensor_parallel.autotp_size", least=0)
    tensor = given or tensor
    data, micro_batch, micro_batches = _batches(file, world_size, tensor * pipeline * context)
    _warn(file, recompute)
    if file.problems:
        raise ForeignFileError(file.problems)
    strategy = Strategy(
        tensor=tensor,
        pipeline=pipeline,
        context=context,
        context_kind="ulysses" if context > 1 else "ring",
        data=data,
        micro_batch=micro_batch,
        micro_batches=micro_batches,
        recompute=recompute,
        precision=precision,
        data_parallel=data_parallel,
        optimizer=_optimizer(file),
        framework="deepspeed",
    )
    return DeepSpeedPlan(strategy=strategy, warnings=tuple(file.warnings))


def _named(arguments: Mapping[str, Any] | Sequence[str]) -> dict[str, Any]:
    """Return a command line by name; numbers as numbers, flags as True."""
    if isinstance(arguments, Mapping):
        return {str(key).replace("-", "_"): value for key, value in arguments.items()}
    found: dict[str, Any] = {}
    name = ""
    for word in arguments:
        if word.startswith("--"):
            name, _, value = word[2:].partition("=")
            name = name.replace("-", "_")
            found[name] = _typed(value) if value else True
        elif name:
            found[name] = _typed(word)
            name = ""
    return found


def _typed(word: str) -> Any:
    if word.lower() in ("true", "false"):
        return word.lower() == "true"
    return int(word) if word.isdecimal() else word


def _refusals(file: _File, pipeline: int) -> None:
    """Add what DeepSpeed itself refuses."""
    stage = file.value("zero_optimization.stage")
    if file.values.get("zero_optimization") in (True, False):
        file.problem("zero_optimization", "true and false are no longer read", '{"stage": 1}')
        return
    if stage is not None and (isinstance(stage, bool) or stage not in (0, 1, 2, 3)):
        file.problem("zero_optimization.stage", f"{stage!r} is no stage", "0, 1, 2, 3")
        return
    stage = stage or 0
    if pipeline > 1 and stage > 1:
        file.problem(
            "zero_optimization.stage",
            f"ZeRO-{stage} and a pipeline of {pipeline} stages: DeepSpeed refuses both together, "
            "as gradients must be whole until the last micro-batch",
            "0, 1, or no pipeline",
        )
    if _device(file, "offload_param") != "none" and stage != 3:
        file.problem(
            "zero_optimization.offload_param", f"parameters are whole in stage {stage}", "stage 3"
        )
    if _device(file, "offload_optimizer") != "none" and stage == 0:
        file.problem("zero_optimization.offload_optimizer", "needs a ZeRO stage", "stage 1, 2, 3")


def _device(file: _File, key: str) -> Offload:
    section = file.section("zero_optimization").get(key)
    old = {"offload_optimizer": "cpu_offload", "offload_param": "cpu_offload_params"}[key]
    if section is None:
        return "cpu" if file.section("zero_optimization").get(old) is True else "none"
    device = section.get("device", "none") if isinstance(section, dict) else section
    for known in ("none", "cpu", "nvme"):
        if device == known:
            return known
    file.problem(f"zero_optimization.{key}.device", f"unknown device {device!r}", "none, cpu, nvme")
    return "none"


def _precision(file: _File) -> Precision:
    half = file.flag("fp16.enabled", False)
    name = "bf16" if "bf16" in file.values else "bfloat16"
    brain = file.flag(f"{name}.enabled", False)
    if half and brain:
        file.problem("fp16.enabled", "fp16 and bf16 are both enabled", "one of them")
    reduced = _bytes(file, "communication_data_type")
    if not half and not brain:
        return Precision(
            compute="float32",
            parameter_bytes=4,
            gradient_bytes=4,
            reduce_bytes=reduced or 4,
            gather_bytes=4,
            master_bytes=0,
        )
    kept = _bytes(file, "data_types.grad_accum_dtype")
    if kept is None:
        # Without ZeRO, bf16 gradients are accumulated in 32 bits beside those of the backward
        # (deepspeed/runtime/bf16_optimizer.py).
        whole = brain and not file.value("zero_optimization.stage")
        kept = 6 if whole else 2
    return Precision(
        compute="half" if half else "bfloat16",
        parameter_bytes=2,
        gradient_bytes=kept,
        reduce_bytes=reduced or 2,
        gather_bytes=2,
    )


def _bytes(file: _File, key: str) -> int | None:
    value = file.value(key)
    if value is None:
        return None
    widths = {"fp32": 4, "float32": 4, "fp16": 2, "float16": 2, "bf16": 2, "bfp16": 2}
    if not isinstance(value, str) or value not in widths:
        file.problem(
            key, f"unknown type {value!r}", "fp32, fp16, bf16", nearest(str(value), widths)
        )
        return None
    return widths[value]


def _data_parallel(file: _File, precision: Precision) -> DataParallel:
    zero = "zero_optimization."
    stage = file.value(zero + "stage")
    kinds: dict[int, Kind] = {0: "ddp", 1: "zero1", 2: "zero2", 3: "zero3"}
    known = isinstance(stage, int) and not isinstance(stage, bool) and stage in kinds
    if stage is not None and not known:
        file.problem(zero + "stage", f"{shortened(str(stage))!r} is no stage", "0, 1, 2 or 3")
    kind = kinds[stage] if known else "ddp"
    # overlap_comm is on for stage 3 and off for the others unless it is set [1]_.
    overlap = file.flag(zero + "overlap_comm", kind == "zero3")
    reduced = file.count(zero + "reduce_bucket_size") if kind != "ddp" else None
    gathered = file.count(zero + "allgather_bucket_size") if kind != "ddp" else None
    ahead = None
    if kind == "zero3":
        ahead = file.count(zero + "stage3_prefetch_bucket_size", least=0)
        if ahead is None:
            ahead = file.count(zero + "prefetch_bucket_size", least=0)
    secondary = file.count(zero + "zero_hpz_partition_size")
    shard = file.value(zero + "mics_shard_size")
    return DataParallel(
        kind=kind,
        shard=shard if isinstance(shard, int) and shard > 0 else None,
        secondary_shard=secondary if secondary and secondary > 1 else None,
        overlap_reduce=overlap,
        overlap_gather=kind == "zero3" and ahead != 0,
        bucket_bytes=reduced * precision.reduce_bytes if reduced else None,
        gather_bucket_bytes=gathered * precision.gather_bytes if gathered else None,
        prefetch=0 if ahead == 0 else 1,
        reduce_every_micro_batch=kind in ("zero2", "zero3"),
        quantized_weights=file.flag(zero + "zero_quantized_weights", False),
        quantized_gradients=file.flag(zero + "zero_quantized_gradients", False),
        offload_optimizer=_device(file, "offload_optimizer"),
        offload_parameters=_device(file, "offload_param"),
    )


def _batches(file: _File, world_size: int | None, per_replica: int) -> tuple[int, int, int]:
    """Return replicas, micro-batch and micro-batches, each from what is given [1]_."""
    total = file.count("train_batch_size")
    micro = file.count("train_micro_batch_size_per_gpu")
    steps = file.count("gradient_accumulation_steps")
    if world_size is None:
        if not (total and micro):
            file.problem(
                "world_size",
                "the number of GPUs is not given, and does not follow from the file",
                "GPUs beside the file, or train_batch_size and train_micro_batch_size_per_gpu",
            )
            return 1, micro or 1, steps or 1
        steps = steps or 1
        replicas, rest = divmod(total, micro * steps)
        if rest:
            file.problem(
                "train_batch_size",
                f"{total} is no multiple of {micro} x {steps}",
                f"a multiple of {micro * steps}",
            )
        return max(1, replicas), micro, steps
    if world_size % per_replica:
        file.problem(
            "world_size",
            f"{world_size} GPUs are no multiple of the {per_replica} of a replica",
            f"a multiple of {per_replica}",
        )
        return 1, micro or 1, steps or 1
    replicas = world_size // per_replica
    if micro is None and total is None:
        if not any(problem.key.startswith("train_") for problem in file.problems):
            file.problem(
                "train_micro_batch_size_per_gpu",
                "neither it nor train_batch_size is given",
                "at least one of the two",
            )
        return replicas, 1, 1
    if micro is None and total is not None:
        steps = steps or 1
        micro = _divided(file, total, replicas * steps)
    elif steps is None:
        assert micro is not None
        steps = 1 if total is None else _divided(file, total, replicas * micro)
    assert micro is not None
    assert steps is not None
    if total is not None and total != micro * steps * replicas:
        file.problem(
            "train_batch_size",
            f"{total} is not {micro} per GPU x {steps} steps x {replicas} replicas",
            str(micro * steps * replicas),
        )
    return replicas, micro, steps


def _divided(file: _File, total: int, by: int) -> int:
    if total % by:
        file.problem("train_batch_size", f"{total} is no multiple of {by}", f"a multiple of {by}")
    return max(1, total // by)


def _optimizer(file: _File) -> Literal["adam", "sgd", "none"]:
    name = str(file.section("optimizer").get("type", "adam")).lower()
    return "sgd" if name == "sgd" else "adam"


def _warn(file: _File, recompute: str) -> None:
    """Add what is not simulated."""
    say = file.warnings.append
    name = str(file.section("optimizer").get("type", "adam"))
    if name.lower() in _COMPRESSED:
        say(f"optimizer {name}: its compressed communication is not simulated, only Adam's")
    elif not any(known in name.lower() for known in ("adam", "sgd")):
        say(f"optimizer {name}: taken as Adam")
    if file.section("activation_checkpointing") and recompute == "none":
        say("activation_checkpointing takes effect where the model calls it: recompute is none")
    zero = file.section("zero_optimization")
    if zero.get("zenflow"):
        say("zenflow is not simulated")
    if zero.get("reduce_scatter") is False:
        say("reduce_scatter false: gradients are reduce-scattered all the same")
    if file.section("autotuning").get("enabled"):
        say("autotuning changes the configuration while it runs; the file is taken as it is")
    if file.section("compile").get("deepcompile"):
        say("deepcompile reorders communication; the order of the eager engine is simulated")
    for key in ("stage3_param_persistence_threshold", "stage3_max_live_parameters"):
        if zero.get(key) not in (None, 1e5, 1e9, "auto"):
            say(f"zero_optimization.{key}: DeepSpeed's default is simulated")
