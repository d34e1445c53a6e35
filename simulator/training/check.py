"""Does a strategy fit its model and its machine?  All problems at once, each with what would."""

from __future__ import annotations

from collections.abc import Iterable

from simulator.base.errors import Problem, ScenarioError, unknown_name
from simulator.base.limits import MOST_BLOCKS, MOST_PARAMETERS, MOST_PASSES
from simulator.models.model import Model
from simulator.training.hooks import HOOKS
from simulator.training.stages import block_counts
from simulator.training.strategy import AXES, Strategy

__all__ = ["check_strategy", "notes_of", "problems_of"]

COMPUTE_TYPES = ("float32", "tf32", "half", "bfloat16", "f8e4m3", "f4e2m1")


def check_strategy(
    model: Model, strategy: Strategy, world_size: int, gpus_per_node: int | None = None
) -> None:
    """Raise where a strategy cannot run.

    Parameters
    ----------
    model, strategy
        What is trained, and how it is spread.
    world_size
        Ranks that there are.
    gpus_per_node
        Ranks of a node, where that is known.

    Raises
    ------
    ScenarioError
        With every problem found.
    """
    found = problems_of(model, strategy, world_size, gpus_per_node)
    if found:
        raise ScenarioError(found)


def problems_of(
    model: Model, strategy: Strategy, world_size: int, gpus_per_node: int | None = None
) -> list[Problem]:
    """Return what is wrong with a strategy."""
    found = _counts(strategy)
    if found:
        return found
    found += _amount(model, strategy)
    found += _world(strategy, world_size)
    found += _tensor(model, strategy)
    found += _context(model, strategy)
    found += _pipeline(model, strategy)
    found += _experts(model, strategy, gpus_per_node)
    found += _data(strategy)
    if strategy.precision.compute not in COMPUTE_TYPES:
        found.append(unknown_name("type", strategy.precision.compute, COMPUTE_TYPES))
    return found


def notes_of(model: Model, strategy: Strategy, gpus_per_node: int | None = None) -> tuple[str, ...]:
    """Return what a user should know about a strategy that can run."""
    notes = []
    if strategy.routed_nodes is not None and gpus_per_node is None:
        notes.append("routed_nodes has no effect: the size of a node is not known")
    if strategy.seq is not None and model.unit != "tokens":
        notes.append(f"seq has no effect: {model.name} works on {model.unit}")
    if strategy.sequence_parallel and strategy.tensor == 1:
        notes.append("sequence_parallel has no effect with tensor 1")
    if model.kv_heads and model.kv_heads < strategy.tensor:
        notes.append(
            f"each of {model.kv_heads} key-value heads is held by "
            f"{strategy.tensor // model.kv_heads} tensor ranks"
        )
    parts = strategy.pipeline * strategy.virtual
    counts = block_counts(model.blocks, parts, uneven=strategy.framework != "megatron")
    if counts and len(set(counts)) > 1:
        notes.append(
            f"{model.blocks} blocks on {parts} pipeline parts: {counts[0]} on the first, "
            f"{counts[-1]} on the last, up to {max(counts)} between"
        )
    if strategy.pipeline > 1 and strategy.micro_batches < strategy.pipeline:
        notes.append(
            f"{strategy.micro_batches} micro-batches leave some of {strategy.pipeline} stages idle "
            "at all times"
        )
    if strategy.schedule == "zb_h2" and strategy.micro_batches < 2 * strategy.pipeline - 1:
        notes.append(
            f"zb_h2 of {strategy.pipeline} stages fills them with {2 * strategy.pipeline - 1} "
            f"micro-batches, there are {strategy.micro_batches}"
        )
    return tuple(notes)


def _problem(key: str, message: str, allowed: str) -> Problem:
    return Problem(key=f"training.{key}", message=message, allowed=allowed)


def _near(values: Iterable[int], wanted: int) -> str:
    """Return the valid values next to a wanted one, in words."""
    known = sorted(set(values))
    below = [value for value in known if value <= wanted]
    above = [value for value in known if value > wanted]
    return ", ".join(str(value) for value in below[-2:] + above[:2])


def _divisors(n: int) -> list[int]:
    return [k for k in range(1, n + 1) if n % k == 0]


def _counts(strategy: Strategy) -> list[Problem]:
    names = ("tensor", "context", "expert", "pipeline", "virtual", "data", "micro_batch")
    found = [
        _problem(name, f"{getattr(strategy, name)} is not a number of at least 1", "1, 2, 3, …")
        for name in (*names, "micro_batches")
        if getattr(strategy, name) < 1
    ]
    for name in ("expert_tensor", "routed_nodes", "seq", "recompute_layers"):
        value = getattr(strategy, name)
        if value is not None and value < 1:
            found.append(_problem(name, f"{value} is not a number of at least 1", "1, 2, 3, …"))
    for name in ("shard", "secondary_shard", "bucket_bytes", "gather_bucket_bytes"):
        value = getattr(strategy.data_parallel, name)
        if value is not None and value < 1:
            found.append(_problem(name, f"{value} is not a number of at least 1", "1, 2, 3, …"))
    if strategy.data_parallel.prefetch < 0:
        found.append(_problem("prefetch", f"{strategy.data_parallel.prefetch} units", "0, 1, 2, …"))
    if sorted(strategy.order) != sorted(AXES):
        found.append(
            _problem(
                "order",
                f"{', '.join(strategy.order)}",
                f"each once, in any order: {', '.join(AXES)}",
            )
        )
    return found


def _amount(model: Model, strategy: Strategy) -> list[Problem]:
    blocks = model.blocks
    if model.n_parameters > MOST_PARAMETERS:
        message = f"the model has {model.n_parameters:.3g} parameters"
        return [_problem("model", message, f"at most {MOST_PARAMETERS:.0e}")]
    if blocks > MOST_BLOCKS:
        message = f"{blocks} blocks are too many to simulate"
        return [_problem("model_set.layers", message, f"at most {MOST_BLOCKS}")]
    passes = blocks * strategy.micro_batches
    if passes > MOST_PASSES:
        message = (
            f"{strategy.micro_batches} passes through {blocks} blocks are too many to simulate"
        )
        return [_problem("micro_batches", message, f"at most {MOST_PASSES // blocks}")]
    return []


def _world(strategy: Strategy, world_size: int) -> list[Problem]:
    if strategy.world_size == world_size:
        return []
    own = strategy.tensor * strategy.context * strategy.pipeline
    message = (
        f"tensor {strategy.tensor} x context {strategy.context} x pipeline {strategy.pipeline} x "
        f"data {strategy.data} are {strategy.world_size} ranks, there are {world_size}"
    )
    if world_size % own == 0:
        return [_problem("data", message, f"data {world_size // own}")]
    near = _near(_divisors(world_size), own)
    allowed = f"tensor x context x pipeline that divides {world_size}: {near}"
    return [_problem("data", message, allowed)]


def _tensor(model: Model, strategy: Strategy) -> list[Problem]:
    found = []
    ways = strategy.tensor
    if ways > 1 and not model.heads:
        return [_problem("tensor", f"{model.name} cannot be split over {ways} tensor ranks", "1")]
    if model.heads and model.heads % ways:
        near = _near(_divisors(model.heads), ways)
        message = f"{model.heads} heads do not divide over {ways} tensor ranks"
        found.append(_problem("tensor", message, near))
    elif model.kv_heads and model.kv_heads % ways and ways % model.kv_heads:
        valid = [
            k for k in _divisors(model.heads) if model.kv_heads % k == 0 or k % model.kv_heads == 0
        ]
        message = f"{model.kv_heads} key-value heads do not divide over {ways} tensor ranks"
        found.append(_problem("tensor", message, _near(valid, ways)))
    ffn = getattr(model.traits.get("dims"), "ffn", 0)
    if ffn and ffn % ways and not found:
        message = f"the inner width {ffn} does not divide over {ways} tensor ranks"
        found.append(_problem("tensor", message, _near(_divisors(ffn), ways)))
    seq = strategy.seq or model.seq
    own = seq // strategy.context
    if strategy.sequence_parallel and model.unit == "tokens" and own % ways:
        message = f"{own} tokens of a sequence do not divide over {ways} tensor ranks"
        found.append(_problem("seq", message, f"a multiple of {ways * strategy.context}"))
    return found


def _context(model: Model, strategy: Strategy) -> list[Problem]:
    ways = strategy.context
    if ways == 1:
        return []
    if not model.heads:
        return [_problem("context", f"{model.name} has no attention to split", "1")]
    found = []
    seq = strategy.seq or model.seq
    # A causal ring gives each rank an early and a late piece, so that all have equal work.
    pieces = (
        2 * ways if strategy.context_kind == "ring" and model.traits.get("causal", True) else ways
    )
    if seq % pieces:
        message = f"a sequence of {seq} does not divide into {pieces} pieces"
        found.append(
            _problem(
                "seq",
                message,
                _near(
                    (max(1, seq // pieces) * pieces, -(-seq // pieces) * pieces),
                    seq,
                ),
            )
        )
    if strategy.context_kind == "ulysses":
        heads = model.heads // strategy.tensor
        if heads % ways:
            message = f"{heads} heads of a tensor rank do not divide over {ways} context ranks"
            found.append(_problem("context", message, _near(_divisors(max(1, heads)), ways)))
    return found


def _pipeline(model: Model, strategy: Strategy) -> list[Problem]:
    found = []
    stages, virtual = strategy.pipeline, strategy.virtual
    kind = strategy.schedule
    if stages > 1 and not model.hidden:
        return [_problem("pipeline", f"{model.name} cannot be cut into stages", "1")]
    uneven = strategy.framework != "megatron"
    parts = stages * virtual
    if block_counts(model.blocks, parts, uneven=uneven) is None and parts > 1:
        valid = [
            k for k in range(1, model.blocks + 1) if block_counts(model.blocks, k, uneven=uneven)
        ]
        message = f"{model.blocks} blocks do not divide over pipeline {stages} x virtual {virtual}"
        allowed = f"pipeline x virtual of {_near(valid, parts)}"
        if not uneven:
            # Megatron's rule: equal stages, of which the first and last may hold a block less.
            allowed += (
                " under Megatron's rule, or framework torch or deepspeed, whose stages differ"
            )
        found.append(_problem("pipeline", message, allowed))
    if virtual > 1 and (kind != "interleaved" or stages == 1):
        what = f"schedule {kind}" if kind != "interleaved" else "pipeline 1"
        found.append(
            _problem(
                "virtual", f"{virtual} chunks per stage with {what}", "1, or interleaved stages"
            )
        )
    if kind == "interleaved" and virtual == 1:
        found.append(
            _problem("virtual", "the interleaved schedule has 1 chunk per stage", "2, 3, …")
        )
    if kind == "interleaved" and virtual > 1 and strategy.micro_batches % stages:
        rest = strategy.micro_batches // stages * stages
        message = (
            f"{strategy.micro_batches} micro-batches: the interleaved schedule takes them in "
            f"groups of {stages}"
        )
        near = _near([k for k in (rest, rest + stages) if k], strategy.micro_batches)
        found.append(_problem("micro_batches", message, near))
    options = strategy.data_parallel
    if stages > 1 and options.kind in ("zero2", "zero3") and strategy.framework == "deepspeed":
        message = f"DeepSpeed refuses {options.kind} with a pipeline"
        found.append(_problem("data_parallel", message, "ddp, zero1, or pipeline 1"))
    if strategy.recompute_layers is not None and strategy.recompute != "full":
        message = f"recompute_layers with recompute {strategy.recompute}"
        found.append(_problem("recompute", message, "full"))
    return found


def _experts(model: Model, strategy: Strategy, gpus_per_node: int | None) -> list[Problem]:
    found = []
    ways = strategy.expert
    if not model.experts:
        for name, set_ in (
            ("expert", ways > 1),
            ("expert_tensor", strategy.expert_tensor is not None),
            ("routed_nodes", strategy.routed_nodes is not None),
            ("overlap_expert", strategy.overlap_expert),
            ("capacity_factor", strategy.capacity_factor is not None),
        ):
            if set_:
                message = f"{model.name} has no experts"
                found.append(_problem(name, message, "a model with experts, or leave it out"))
        return found
    if model.experts % ways:
        message = f"{model.experts} experts do not divide over {ways} expert ranks"
        found.append(_problem("expert", message, _near(_divisors(model.experts), ways)))
    own = strategy.expert_tensor or strategy.tensor
    ranks = strategy.data * strategy.context * strategy.tensor
    if ranks % (ways * own):
        valid = [k for k in _divisors(model.experts) if ranks % (k * own) == 0]
        message = (
            f"expert {ways} x expert_tensor {own} does not divide the {ranks} ranks of a stage "
            f"(tensor x context x data)"
        )
        found.append(_problem("expert", message, _near(valid, ways) or "a smaller expert_tensor"))
    if (
        ways > 1
        and strategy.tensor > 1
        and not strategy.sequence_parallel
        and strategy.framework == "megatron"
    ):
        message = "Megatron-LM runs experts with tensor parallelism only with sequence_parallel"
        found.append(_problem("sequence_parallel", message, "true"))
    if strategy.expert_imbalance < 1:
        message = f"the busiest rank has {strategy.expert_imbalance} of the mean"
        found.append(_problem("expert_imbalance", message, "1 or more"))
    if strategy.capacity_factor is not None and strategy.capacity_factor <= 0:
        message = f"a capacity of {strategy.capacity_factor} times the mean"
        found.append(_problem("capacity_factor", message, "more than 0"))
    if strategy.routed_nodes is not None and gpus_per_node is not None:
        nodes = max(1, ways * own // gpus_per_node)
        if strategy.routed_nodes > nodes:
            message = f"tokens go to {strategy.routed_nodes} nodes, experts are on {nodes}"
            found.append(_problem("routed_nodes", message, f"1 … {nodes}"))
    return found


def _data(strategy: Strategy) -> list[Problem]:
    found = []
    options = strategy.data_parallel
    replicas = strategy.data * strategy.context
    shard = options.shard or replicas
    if replicas % shard:
        message = f"groups of {shard} do not divide {replicas} data-parallel ranks"
        found.append(_problem("shard", message, _near(_divisors(replicas), shard)))
    if options.shard is not None and options.shard > 1 and options.kind == "ddp":
        found.append(_problem("shard", "ddp shards nothing", "zero1, zero2, zero3, fsdp"))
    if options.secondary_shard is not None:
        if options.kind != "zero3":
            message = f"a secondary shard with {options.kind}"
            found.append(_problem("secondary_shard", message, "data_parallel zero3"))
        elif shard % options.secondary_shard:
            message = f"{options.secondary_shard} does not divide a shard of {shard} ranks"
            near = _near(_divisors(shard), options.secondary_shard)
            found.append(_problem("secondary_shard", message, near))
    found += [
        _problem(name, f"{name} with {options.kind}", "data_parallel zero3")
        for name in ("quantized_weights", "quantized_gradients")
        if getattr(options, name) and options.kind != "zero3"
    ]
    if options.hook not in HOOKS:
        found.append(unknown_name("hook", options.hook, HOOKS))
    elif options.hook != "none" and options.kind != "ddp":
        message = f"the hook {options.hook} with {options.kind}"
        found.append(_problem("hook", message, "data_parallel ddp"))
    if not 0 < options.hook_ratio <= 1:
        found.append(_problem("hook_ratio", f"keeps {options.hook_ratio}", "more than 0, up to 1"))
    if options.hook_rank < 1:
        found.append(_problem("hook_rank", f"rank {options.hook_rank}", "1, 2, 3, …"))
    if options.offload_parameters != "none" and options.kind not in ("zero3", "fsdp"):
        message = f"parameters are offloaded with {options.kind}"
        found.append(_problem("offload_parameters", message, "data_parallel zero3, fsdp"))
    if options.offload_optimizer != "none" and strategy.optimizer != "adam":
        message = f"the optimiser {strategy.optimizer} is offloaded"
        found.append(_problem("offload_optimizer", message, "optimizer adam"))
    return found
