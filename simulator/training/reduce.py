"""Gradients reduced in buckets while the backward goes on; sharded optimisers.

ZeRO-1 and 2 and Megatron-LM's distributed optimiser reduce-scatter gradients, update shards and
gather the parameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from simulator.training.buckets import filled
from simulator.training.layer_tasks import LocalParameter
from simulator.training.pipeline import PassKind
from simulator.training.plan import Task
from simulator.training.sharing import DataSync, StageContext
from simulator.training.strategy import DataParallel
from simulator.training.tape import Mark, Tape

__all__ = ["BucketedSync", "GradientBucket"]

DEEPSPEED_ELEMENTS = 500_000_000
"""reduce_bucket_size and allgather_bucket_size (deepspeed/runtime/zero/config.py)."""
MEGATRON_ELEMENTS = 40_000_000
"""Least bucket of Megatron-LM's DDP, and 1 M more per data-parallel rank where that is larger
(core/distributed/distributed_data_parallel.py)."""
TORCH_FIRST_BYTES = 2**20
TORCH_CAP_BYTES = 25 * 2**20
"""First bucket and bucket_cap_mb of PyTorch's DDP (c10d/reducer.hpp)."""


def torch_limits_bytes(options: DataParallel) -> tuple[int, int]:
    """Return the limits of the first bucket of PyTorch's DDP and of the others, bytes.

    A ``bucket_cap_mb`` that the user gives holds for the first bucket, too, unless that one is
    given as well (torch/nn/parallel/distributed.py).
    """
    cap = TORCH_CAP_BYTES if options.bucket_bytes is None else options.bucket_bytes
    first = options.first_bucket_bytes
    if first is None:
        first = TORCH_FIRST_BYTES if options.bucket_bytes is None else cap
    return first, cap


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientBucket:
    """Gradients of a chunk that are reduced together."""

    name: str
    count: int
    """Elements."""
    expert: bool
    parameters: tuple[LocalParameter, ...]
    ready: int
    """Complete with this layer, counted from the chunk's last one; the forward meets it first."""


class BucketedSync(DataSync):
    """Kinds ``zero1`` and ``zero2``, and the frame of ``ddp``.

    Notes
    -----
    DeepSpeed with its default use_multi_rank_bucket_allreduce all-reduces each bucket and lets
    ranks keep their part: twice the gradients' volume of the paper's reduce_scatter, which is
    what is planned here (and what Megatron-LM does).
    """

    def __init__(self, context: StageContext) -> None:
        super().__init__(context)
        self.every_pass = self.options.reduce_every_micro_batch or self.options.kind == "zero2"
        self._begun = self.tape()
        self._gathered: dict[str, Mark] = {}
        self.buckets = [self._buckets(chunk) for chunk in range(len(context.chunks))]

    def limits(self, chunk: int) -> tuple[int, ...]:
        """Return the limits of a chunk's buckets, in elements."""
        options = self.options
        width = self.precision.reduce_bytes
        if options.bucket_bytes is not None and self.strategy.framework != "torch":
            return (max(1, options.bucket_bytes // width),)
        if self.strategy.framework == "torch":
            return tuple(max(1, -(-size // width)) for size in torch_limits_bytes(options))
        if self.strategy.framework == "deepspeed":
            return (DEEPSPEED_ELEMENTS,)
        # Stages after the first, and chunks after the first, reduce off the critical path:
        # Megatron-LM does not cut their gradients.
        if self.context.stage > 0 or chunk > 0 or not options.overlap_reduce:
            return (sum(self.context.count(expert=e) for e in (False, True)) + 1,)
        return (max(MEGATRON_ELEMENTS, 1_000_000 * self.context.sizes["data"]),)

    def _buckets(self, chunk: int) -> list[GradientBucket]:
        found = []
        layers = list(reversed(self.context.chunks[chunk]))
        for expert in (False, True):
            members: list[LocalParameter] = []
            position: list[int] = []
            for index, layer in enumerate(layers):
                own = [p for p in reversed(layer.parameters) if p.expert == expert]
                members += own
                position += [index] * len(own)
            sizes = [parameter.count for parameter in members]
            for number, bucket in enumerate(filled(sizes, range(len(sizes)), self.limits(chunk))):
                found.append(
                    GradientBucket(
                        name=f"{'expert ' if expert else ''}bucket {chunk}.{number}",
                        count=bucket.size_bytes,
                        expert=expert,
                        ready=position[bucket.members[-1]],
                        parameters=tuple(members[i] for i in bucket.members),
                    )
                )
        return found

    def reduce(self, tape: Tape, bucket: GradientBucket) -> None:
        """Append the reduction of a bucket."""
        size_bytes = bucket.count * self.precision.reduce_bytes
        prefix = "expert_" if bucket.expert else ""
        stream = f"{prefix}data"
        shards = self.context.sizes[f"{prefix}shard"]
        tape.call(
            f"gradients {bucket.name}",
            "reduce_scatter",
            size_bytes,
            f"{prefix}shard",
            stream=stream,
        )
        tape.call(
            f"gradient shards {bucket.name}",
            "all_reduce",
            -(-size_bytes // shards),
            f"{prefix}replicate",
            stream=f"{prefix}replicate",
            after=stream if shards > 1 else "compute",
        )
        self.offload_gradients(tape, -(-bucket.count // shards), stream)

    def gather(
        self, tape: Tape, name: str, count: int, expert: bool, stream: str, after: str | None
    ) -> None:
        """Append the gather of updated parameters."""
        tape.call(
            f"parameters {name}",
            "all_gather",
            count * self.precision.gather_bytes,
            "expert_shard" if expert else "shard",
            stream=stream,
            after=after,
        )

    @property
    def gathers_ahead(self) -> bool:
        """Gathers run beside the next forward (Megatron-LM's overlap_param_gather)."""
        return self.options.overlap_gather and self.strategy.framework == "megatron"

    def begin(self) -> Sequence[Task]:
        """Return the gathers that the step before left to this one."""
        tape = self.tape()
        self._gathered = {}
        if self.gathers_ahead:
            for buckets in self.buckets:
                for bucket in sorted(buckets, key=lambda b: -b.ready):
                    stream = "expert gather" if bucket.expert else "gather"
                    self.gather(tape, bucket.name, bucket.count, bucket.expert, stream, None)
                    self._gathered[bucket.name] = tape.mark(stream)
        self._begun = tape
        return tape.tasks

    def run(self, kind: PassKind, chunk: int, *, first: bool, last: bool) -> Sequence[Task]:
        """Return a pass: the first forward waits for parameters, the last backward reduces."""
        if kind == "forward" and first and self.gathers_ahead:
            return self._first_forward(chunk)
        reduces = kind in ("backward", "weight_gradient") and (last or self.every_pass)
        if not reduces or (last and not self.options.overlap_reduce):
            return super().run(kind, chunk, first=first, last=last)
        tape = self.tape()
        if not self.options.overlap_reduce:
            tape.put(super().run(kind, chunk, first=first, last=last))
            for bucket in self.buckets[chunk]:
                self.reduce(tape, bucket)
            for stream in ("data", "expert_data"):
                tape.wait(tape.mark(stream))
            return tape.tasks
        pending: list[tuple[Task, ...]] = []
        for position, part in enumerate(self.parts(kind, chunk)):
            pending.append(part)
            complete = [b for b in self.buckets[chunk] if b.ready == position]
            if complete:
                tape.put(self.merged(pending))
                pending = []
                for bucket in complete:
                    self.reduce(tape, bucket)
        tape.put(self.merged(pending))
        return tape.tasks

    def _first_forward(self, chunk: int) -> Sequence[Task]:
        tape = Tape(self.context.sizes, after=self._begun)
        layers = len(self.context.chunks[chunk])
        pending: list[tuple[Task, ...]] = []
        for index, part in enumerate(self.parts("forward", chunk)):
            needed = [b for b in self.buckets[chunk] if layers - 1 - b.ready == index]
            if needed:
                tape.put(self.merged(pending))
                pending = []
                for bucket in needed:
                    tape.wait(self._gathered[bucket.name])
            pending.append(part)
        tape.put(self.merged(pending))
        return tape.tasks

    def finish(self) -> Sequence[Task]:
        """Return the last reductions where they do not run beside the backward."""
        tape = self.tape()
        if not self.options.overlap_reduce:
            for buckets in self.buckets:
                for bucket in buckets:
                    self.reduce(tape, bucket)
        return tape.tasks

    def update(self) -> Sequence[Task]:
        """Return the optimiser step; sharded parameters are gathered after it."""
        tape = self.tape()
        tape.put(super().update())
        if not self.gathers_ahead:
            for name, count, expert in self._gather_cuts():
                stream = "expert_data" if expert else "data"
                self.gather(tape, name, count, expert, stream, "compute")
        return tape.tasks

    def _gather_cuts(self) -> list[tuple[str, int, bool]]:
        if self.strategy.framework == "megatron":
            return [(b.name, b.count, b.expert) for buckets in self.buckets for b in buckets]
        given = self.options.gather_bucket_bytes
        most = DEEPSPEED_ELEMENTS
        if given is not None:
            most = max(1, given // self.precision.gather_bytes)
        found = []
        for expert in (False, True):
            total = self.context.count(expert=expert)
            parts = -(-total // most)
            for index in range(parts):
                count = total * (index + 1) // parts - total * index // parts
                found.append((f"{'expert ' if expert else ''}part {index}", count, expert))
        return found
