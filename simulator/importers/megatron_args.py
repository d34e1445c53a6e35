"""Megatron-LM's flags to a model and a strategy.

References
----------
.. [1] NVIDIA/Megatron-LM, ``megatron/training/arguments.py``: flags, defaults, and what follows
   from them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from simulator.base.errors import CollsimError, Problem, nearest
from simulator.importers.known_keys import known_keys
from simulator.importers.megatron_flags import Flags, FlagSource, read_flags
from simulator.importers.registry import importer
from simulator.importers.source import ForeignFileError
from simulator.models import Model, from_dims
from simulator.models.vocabulary import padded_vocabulary
from simulator.training.strategy import AXES, DataParallel, Kind, Precision, Strategy

__all__ = ["MegatronPlan", "read"]

_VOCABULARIES = {
    "GPT2BPETokenizer": 50257,
    "Llama2Tokenizer": 32000,
    "BertWordPieceLowerCase": 30522,
    "BertWordPieceCase": 28996,
}
"""Words of tokenisers that need no file to be known."""
_UNEVEN = (
    "pipeline-model-parallel-layout",
    "decoder-first-pipeline-num-layers",
    "decoder-last-pipeline-num-layers",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MegatronPlan:
    """What a command line trains, and how."""

    model: Model
    strategy: Strategy
    warnings: tuple[str, ...]
    """What is not simulated, or was assumed."""


class _Reader:
    """Typed values of flags; problems and warnings."""

    def __init__(self, flags: Flags, shown: str) -> None:
        self.flags = flags
        self.shown = shown
        self.problems: list[Problem] = []
        self.warnings: list[str] = []

    def problem(self, flag: str, message: str, allowed: str = "") -> None:
        self.problems.append(
            Problem(file=self.shown, key=f"--{flag}", message=message, allowed=allowed)
        )

    def count(self, flag: str, default: int | None = None, least: int = 1) -> int:
        """Return a whole number; without a default a missing flag is a problem."""
        text = self.flags.get(flag)
        if text is None or text.lower() == "none":
            if default is None:
                close = nearest(flag, self.flags)
                hint = f"; there is --{close}" if close else ""
                self.problem(flag, f"is missing{hint}", "a whole number")
                return 1
            return default
        if not re.fullmatch(r"\d+", text) or int(text) < least:
            why = "is a variable without a value" if "$" in text else "is no count"
            self.problem(flag, f"{text!r} {why}", f"a whole number ≥ {least}")
            return max(1, least)
        return int(text)

    def number(self, flag: str, default: float) -> float:
        text = self.flags.get(flag)
        if text is None:
            return default
        try:
            return float(text)
        except ValueError:
            self.problem(flag, f"{text!r} is no number", "such as 0.1")
            return default

    def flag(self, *names: str) -> bool:
        """Return whether one of the flags is set."""
        return any(self.flags.get(name, "false").lower() not in ("false", "no") for name in names)

    def choice(self, flag: str, default: str, allowed: Iterable[str]) -> str:
        text = self.flags.get(flag, default)
        names = tuple(allowed)
        if text not in names:
            self.problem(flag, f"unknown {text!r}", ", ".join(names))
            return default
        return text


@importer(
    "megatron_args",
    summary="flags of Megatron-LM: a command line, a shell script, YAML",
    reference="NVIDIA/Megatron-LM megatron/training/arguments.py",
)
def read(source: FlagSource, *, world_size: int | None = None) -> MegatronPlan:
    """Return the model and the strategy that Megatron-LM's flags describe.

    Parameters
    ----------
    source
        A path, the text of a shell script or of YAML, bytes, a stream, a list of words, or a
        mapping.
    world_size
        GPUs; None: as the launcher's flags or variables say, else one replica of the model (and of
        its experts).

    Raises
    ------
    ForeignFileError
        Missing or wrong sizes, or ones that do not divide; all at once.

    Examples
    --------
    >>> plan = read("--num-layers 24 --hidden-size 1024 --num-attention-heads 16 --seq-length 1024"
    ...             " --max-position-embeddings 1024 --micro-batch-size 4 --global-batch-size 64"
    ...             " --vocab-size 50257 --tensor-model-parallel-size 2", world_size=16)
    >>> plan.model.blocks, plan.strategy.data, plan.strategy.micro_batches
    (24, 8, 2)
    """
    flags, shown = read_flags(source)
    reader = _Reader(flags, shown)
    dims = _dims(reader)
    strategy = _strategy(reader, dims, world_size)
    _warn(reader)
    if reader.problems:
        raise ForeignFileError(reader.problems)
    try:
        model = from_dims(name="megatron", source=shown or "flags of Megatron-LM", **dims)
    except CollsimError as error:
        raise ForeignFileError(
            [
                Problem(file=shown, key=p.key, message=p.message, allowed=p.allowed)
                for p in error.problems
            ]
        ) from None
    return MegatronPlan(model=model, strategy=strategy, warnings=tuple(reader.warnings))


def _dims(r: _Reader) -> dict[str, Any]:
    hidden = r.count("hidden-size")
    heads = r.count("num-attention-heads")
    gated = r.flag("swiglu")
    # A gated part has two thirds of the width by default, rounded down to 64 [1]_.
    inner = int(4 * hidden * 2 / 3 / 64) * 64 if gated else 4 * hidden
    ffn = r.count("ffn-hidden-size", inner)
    bias = not r.flag("disable-bias-linear")
    rms = r.choice("normalization", "LayerNorm", ("LayerNorm", "RMSNorm")) == "RMSNorm"
    positions = {"learned_absolute": "learned", "rope": "rope", "yarn": "rope", "none": "none"}
    position = r.choice("position-embedding-type", "learned_absolute", positions)
    activation = "swiglu" if gated else "squared_relu" if r.flag("squared-relu") else "gelu"
    dims: dict[str, Any] = {
        "hidden": hidden,
        "layers": r.count("num-layers"),
        "heads": heads,
        "ffn": ffn,
        "vocab": _vocabulary(r),
        "seq": r.count("seq-length"),
        "activation": activation,
        "norm": "rms_norm" if rms else "layer_norm",
        "bias": bias,
        "qkv_bias": bias or r.flag("add-qkv-bias"),
        "position": positions[position],
        "tied": not r.flag("untie-embeddings-and-output-weights"),
        "qk_norm": r.flag("qk-layernorm"),
        "names": "llama",
    }
    if positions[position] == "learned":
        rows = r.count("max-position-embeddings", dims["seq"])
        dims["position_offset"] = max(0, rows - dims["seq"])
    if r.flag("multi-latent-attention"):
        dims |= {
            "qk_norm": False,
            "q_lora": r.count("q-lora-rank", 0),
            "kv_lora": r.count("kv-lora-rank", 32),
            "nope_dim": r.count("qk-head-dim", 128),
            "rope_dim": r.count("qk-pos-emb-head-dim", 64),
            "value_dim": r.count("v-head-dim", 128),
            "mtp_layers": r.count("mtp-num-layers", 0),
        }
    else:
        groups = r.count("num-query-groups", 1) if r.flag("group-query-attention") else heads
        dims |= {"kv_heads": groups, "head_dim": r.count("kv-channels", 0)}
    experts = r.count("num-experts", 0)
    if experts:
        dims |= {
            "experts": experts,
            "experts_per_token": r.count("moe-router-topk", 2),
            "expert_ffn": r.count("moe-ffn-hidden-size", ffn),
            "shared_ffn": r.count("moe-shared-expert-intermediate-size", 0, least=0),
            **_expert_layers(r, dims["layers"]),
        }
    return dims


def _vocabulary(r: _Reader) -> int:
    """Return words, padded as Megatron pads them for its tensor ranks."""
    if "padded-vocab-size" in r.flags:
        return r.count("padded-vocab-size")
    tokenizer = r.flags.get("tokenizer-type", "")
    if "vocab-size" in r.flags:
        words = r.count("vocab-size")
    elif tokenizer in _VOCABULARIES:
        words = _VOCABULARIES[tokenizer]
    else:
        # Names of tokenisers tell: nemotron_2_256k.model.
        named = re.search(r"(\d+)k(?![a-z0-9])", r.flags.get("tokenizer-model", "").lower())
        if named is None:
            r.problem(
                "vocab-size",
                f"is not given, and the words of {tokenizer or 'the tokeniser'} are in its file",
                "--vocab-size or --padded-vocab-size",
            )
            return 1
        words = int(named[1]) * 1000
        r.warnings.append(f"a vocabulary of {words} words, by the name of the tokeniser's file")
    multiple = r.count("make-vocab-size-divisible-by", 128)
    return padded_vocabulary(words, r.count("tensor-model-parallel-size", 1), multiple)


def _expert_layers(r: _Reader, layers: int) -> dict[str, int]:
    """Return which blocks have experts, of ``2`` or ``([0]*3+[1]*11)``."""
    text = r.flags.get("moe-layer-freq", "1").replace(" ", "")
    if text.isdecimal() and int(text) > 0:
        every = int(text)
        # Megatron gives experts to every n-th block from the first on, the models here to every
        # n-th from the n-th on: as many.
        return {"moe_every": every} if every > 1 else {}
    pattern = _unrolled(text)
    if pattern is not None and len(pattern) == layers:
        dense = pattern.index(1) if 1 in pattern else layers
        if pattern == [0] * dense + [1] * (layers - dense):
            return {"dense_first": dense}
    r.problem(
        "moe-layer-freq",
        f"{text!r} is no frequency of {layers} blocks that can be read",
        "a number, or dense blocks first: ([0]*3+[1]*58)",
    )
    return {}


def _unrolled(text: str) -> list[int] | None:
    """Return ``[0]*3+[1]*2`` as a list, without evaluating it."""
    found: list[int] = []
    for term in text.strip("()").split("+"):
        match = re.fullmatch(r"\(*\[([01,]+)\](?:\*(\d{1,4}))?\)*", term)
        if match is None:
            return None
        found += [int(digit) for digit in match[1].split(",") if digit] * int(match[2] or 1)
    return found


def _strategy(r: _Reader, dims: dict[str, Any], world_size: int | None) -> Strategy:
    tensor = r.count("tensor-model-parallel-size", 1)
    pipeline = r.count("pipeline-model-parallel-size", 1)
    context = r.count("context-parallel-size", 1)
    expert = r.count("expert-model-parallel-size", 1)
    expert_tensor = r.count("expert-tensor-parallel-size", tensor)
    virtual = _virtual(r, dims["layers"], pipeline)
    data = _replicas(r, world_size, tensor * pipeline * context, expert * expert_tensor)
    micro_batch = r.count("micro-batch-size")
    total = _global_batch(r, micro_batch * data)
    micro_batches, rest = divmod(total, micro_batch * data)
    if rest or not micro_batches:
        r.problem(
            "global-batch-size",
            f"{total} is no multiple of {micro_batch} per GPU x {data} replicas",
            f"a multiple of {micro_batch * data}",
        )
    recompute, recomputed = _recompute(r, pipeline)
    kinds: dict[str, Literal["ring", "all_gather", "ulysses"]] = {
        "p2p": "ring",
        "all_gather": "all_gather",
        "a2a": "ulysses",
        "a2a+p2p": "ring",
    }
    kind = kinds[r.choice("cp-comm-type", "p2p", kinds)]
    capacity = r.number("moe-expert-capacity-factor", 0.0)
    padded = capacity > 0 and r.flag("moe-pad-expert-input-to-capacity")
    order = ("tensor", "context", "pipeline", "data") if r.flag("use-tp-pp-dp-mapping") else AXES
    fused = r.flags.get("transformer-impl", "transformer_engine") == "transformer_engine"
    dropout = (r.number("attention-dropout", 0.1), r.number("hidden-dropout", 0.1))
    return Strategy(
        tensor=tensor,
        sequence_parallel=r.flag("sequence-parallel") and tensor > 1,
        context=context,
        context_kind=kind,
        expert=expert,
        expert_tensor=expert_tensor if expert_tensor != tensor else None,
        capacity_factor=capacity if padded else None,
        overlap_expert=r.flag("overlap-moe-expert-parallel-comm"),
        pipeline=pipeline,
        virtual=virtual,
        schedule="interleaved" if virtual > 1 else "1f1b",
        overlap_p2p=virtual > 1 and not r.flag("no-overlap-p2p-communication"),
        overlap_tensor=r.flag("tp-comm-overlap"),
        data=data,
        order=order,
        micro_batch=micro_batch,
        micro_batches=max(1, micro_batches),
        seq=dims["seq"],
        recompute=recompute,
        recompute_layers=recomputed,
        attention="flash" if fused or r.flag("use-flash-attn") else "standard",
        compiled=True,
        dropout=any(share > 0 for share in dropout),
        precision=_precision(r),
        data_parallel=_data_parallel(r, data * context),
        optimizer="sgd" if r.flags.get("optimizer") == "sgd" else "adam",
        framework="megatron",
    )


def _virtual(r: _Reader, layers: int, pipeline: int) -> int:
    if "num-virtual-stages-per-pipeline-rank" in r.flags:
        return r.count("num-virtual-stages-per-pipeline-rank")
    each = r.count("num-layers-per-virtual-pipeline-stage", 0)
    if not each or pipeline == 1:
        return 1
    if layers % (pipeline * each):
        fits = [n for n in range(1, layers // pipeline + 1) if layers % (pipeline * n) == 0]
        r.problem(
            "num-layers-per-virtual-pipeline-stage",
            f"{each} x {pipeline} stages do not divide {layers} blocks",
            ", ".join(map(str, fits)) or "another number of stages",
        )
        return 1
    return layers // (pipeline * each)


def _replicas(r: _Reader, world_size: int | None, model: int, experts: int) -> int:
    """Return data-parallel replicas of the GPUs that are given, launched, or needed."""
    world = world_size or r.count("world-size", 0) or r.count("variable-world-size", 0)
    for nodes, each in (
        ("nnodes", "nproc-per-node"),
        ("variable-nnodes", "variable-gpus-per-node"),
        ("variable-num-nodes", "variable-gpus-per-node"),
    ):
        if not world and nodes in r.flags and each in r.flags:
            texts = (r.flags[nodes], r.flags[each])
            if all(text.isdecimal() for text in texts):
                world = int(texts[0]) * int(texts[1])
    if not world:
        # One replica, or as many as hold all experts.
        data = 1
        stage_ranks = model // r.count("pipeline-model-parallel-size", 1)
        while (data * stage_ranks) % experts:
            data += 1
        r.warnings.append(f"the number of GPUs is not given: {model * data}, the fewest possible")
        return data
    if world % model:
        r.problem(
            "world-size",
            f"{world} GPUs are no multiple of tensor x pipeline x context = {model}",
            f"a multiple of {model}",
        )
    return max(1, world // model)


def _global_batch(r: _Reader, default: int) -> int:
    steps = r.flags.get("step-batch-size-schedule")
    if "global-batch-size" in r.flags or not steps:
        return r.count("global-batch-size", default)
    sizes = re.findall(r":\s*(\d+)", steps)
    if not sizes:
        r.problem("step-batch-size-schedule", f"{steps!r} has no sizes", "0:384 200B:768")
        return default
    r.warnings.append(f"the batch grows: its last size, {sizes[-1]}, is taken")
    return int(sizes[-1])


def _recompute(
    r: _Reader, pipeline: int
) -> tuple[Literal["none", "selective", "full"], int | None]:
    kind = r.flags.get("recompute-granularity")
    if kind is None:
        return ("selective" if r.flag("recompute-activations") else "none"), None
    chosen = r.choice("recompute-granularity", "full", ("full", "selective"))
    if chosen == "selective":
        return "selective", None
    layers = r.count("recompute-num-layers", 0)
    # ``uniform``: all blocks, in groups; ``block``: the first so many of each stage.
    by_block = r.flags.get("recompute-method") == "block" and layers
    return "full", layers if by_block else None


def _precision(r: _Reader) -> Precision:
    eight = r.flag("fp8-hybrid") or r.flags.get("fp8-format", "none") != "none"
    if r.flag("bf16") or eight:
        narrow = r.flag("grad-reduce-in-bf16")
        return Precision(
            compute="f8e4m3" if eight else "bfloat16",
            gradient_bytes=2 if narrow else 4,
            reduce_bytes=2 if narrow else 4,
            gather_bytes=1 if r.flag("fp8-param-gather") else 2,
        )
    if r.flag("fp16"):
        wide = r.flag("accumulate-allreduce-grads-in-fp32")
        return Precision(
            compute="half", gradient_bytes=4 if wide else 2, reduce_bytes=4 if wide else 2
        )
    return Precision(
        compute="float32", parameter_bytes=4, gather_bytes=4, master_bytes=0, reduce_bytes=4
    )


def _data_parallel(r: _Reader, replicas: int) -> DataParallel:
    kind: Kind = "zero1" if r.flag("use-distributed-optimizer") else "ddp"
    fsdp = r.flag("use-megatron-fsdp", "use-custom-fsdp", "use-torch-fsdp2")
    if fsdp:
        sharded = r.flags.get("data-parallel-sharding-strategy", "optim_grads_params")
        kinds: dict[str, Kind] = {
            "no_shard": "ddp",
            "optim": "zero1",
            "optim_grads": "zero2",
            "optim_grads_params": "fsdp",
        }
        kind = kinds[r.choice("data-parallel-sharding-strategy", sharded, kinds)]
    instances = r.count("num-distributed-optimizer-instances", 1)
    shard = None
    if instances > 1:
        if replicas % instances:
            r.problem(
                "num-distributed-optimizer-instances",
                f"{instances} do not divide {replicas} replicas",
                f"a divisor of {replicas}",
            )
        shard = max(1, replicas // instances)
    width = 2 if r.flag("grad-reduce-in-bf16") else 4
    bucket = r.count("ddp-bucket-size", 0)
    return DataParallel(
        kind=kind,
        shard=shard,
        overlap_reduce=r.flag("overlap-grad-reduce"),
        overlap_gather=r.flag("overlap-param-gather") or kind == "fsdp",
        bucket_bytes=bucket * width if bucket else None,
        reduce_every_micro_batch=kind in ("zero2", "fsdp"),
        offload_optimizer="cpu" if r.flag("optimizer-cpu-offload") else "none",
    )


def _warn(r: _Reader) -> None:
    """Add what is not simulated, and flags that look misspelt."""
    for flag in _UNEVEN:
        if flag in r.flags:
            r.warnings.append(f"--{flag}: blocks are divided evenly over stages instead")
    if r.flag("mtp-num-layers"):
        r.warnings.append("--mtp-num-layers: blocks of multi-token prediction are not simulated")
    known = known_keys("megatron")
    for flag in r.flags:
        if flag in known or flag in _UNEVEN or flag.startswith("variable-"):
            continue
        close = nearest(flag, known)
        if close is not None and _alike(flag, close):
            r.warnings.append(f"--{flag} is not read; did you mean --{close}?")


def _alike(flag: str, known: str) -> bool:
    """Return whether a flag is a known one with a letter or two wrong."""
    if abs(len(flag) - len(known)) > 2 or flag.count("-") != known.count("-"):
        return False
    parts = list(zip(flag.split("-"), known.split("-"), strict=True))
    wrong = [(a, b) for a, b in parts if a != b]
    return (
        len(wrong) == 1
        and nearest(wrong[0][0], [wrong[0][1]]) is not None
        and all(abs(len(a) - len(b)) <= 2 and a[:2] == b[:2] and len(b) > 3 for a, b in wrong)
    )
