"""DeepSpeed's ZeRO-3, with ZeRO++ and MiCS.

Elements moved per rank and step, of Ψ parameters: 3Ψ (Rajbhandari et al. 2020, arXiv:1910.02054,
section 7): gathered in the forward, gathered in the backward, gradients reduce-scattered.
"""

from __future__ import annotations

from collections.abc import Sequence

from simulator.training.generators import zero_step
from simulator.training.layer_tasks import LayerTasks
from simulator.training.pipeline import PassKind
from simulator.training.plan import Task
from simulator.training.reduce import DEEPSPEED_ELEMENTS
from simulator.training.sharded import ShardedSync
from simulator.training.tape import Tape

__all__ = ["Zero3Sync", "zero_step"]

PERSISTENT_ELEMENTS = 100_000
"""stage3_param_persistence_threshold: smaller parameters stay whole on every rank
(deepspeed/runtime/zero/config.py)."""
SCALE_SHARE = 4 / 2048
"""Bytes of scales per quantised value: one float per block of 2048 values."""


def _flushes(counts: Sequence[int], most: int) -> dict[int, int]:
    """Return after which layers a bucket of at most `most` elements is reduced, and what it holds.

    Examples
    --------
    >>> _flushes([3, 0, 3, 3, 9], 6)
    {2: 6, 3: 3, 4: 9}
    """
    found: dict[int, int] = {}
    held = 0
    last = -1
    for position, count in enumerate(counts):
        if count == 0:
            continue
        if held and held + count > most:
            found[last] = held
            held = 0
        held += count
        last = position
    if held:
        found[last] = held
    return found


class Zero3Sync(ShardedSync):
    """Kind ``zero3``.

    Notes
    -----
    Gradients fill buckets of reduce_bucket_size elements; a bucket is reduced before a layer that
    no longer fits in.  Prefetching is by layers; DeepSpeed's is by elements of a recorded trace.

    ZeRO++ (Wang et al. 2023, arXiv:2306.10209): qwZ gathers weights as int8; hpZ gathers them in
    the backward from a second copy within `secondary_shard` ranks; qgZ reduces gradients by two
    all-to-alls of int4, first within `secondary_shard` ranks, then across.  MiCS (Zhang et al.
    2022, arXiv:2205.00119) is a `shard` smaller than all ranks, whose gradients are summed over
    replicas once per step; its gathers in two levels are the collective's matter.
    """

    replicates_every_pass = False

    def gathered(self, layer: LayerTasks, *, expert: bool) -> int:
        """Return the elements of a layer that a pass gathers: without the persistent ones."""
        return layer.count(expert=expert, least=PERSISTENT_ELEMENTS)

    def _secondary(self, kind: PassKind) -> bool:
        return kind != "forward" and self.context.sizes["secondary"] > 1

    def gather_axis(self, kind: PassKind, *, expert: bool) -> str:
        """Return the axis over which a pass gathers."""
        if self._secondary(kind) and not expert:
            return "secondary"
        return super().gather_axis(kind, expert=expert)

    def gather_bytes(self, kind: PassKind) -> float:
        """Return the bytes per element that a pass gathers."""
        if self._quantized(kind):
            return 1.0 + SCALE_SHARE
        return super().gather_bytes(kind)

    def _quantized(self, kind: PassKind) -> bool:
        return self.options.quantized_weights and not self._secondary(kind)

    def before_gather(self, tape: Tape, name: str, count: int, kind: PassKind) -> str:
        """Append the fetch of an offloaded shard, and its quantisation."""
        ready = super().before_gather(tape, name, count, kind)
        if self._quantized(kind):
            seconds = self.compute.cast_s(count, self.precision.gather_bytes, 1.0)
            tape.compute(f"quantise {name}", seconds, "compress", ready)
        return ready

    def after_gather(self, tape: Tape, name: str, count: int, kind: PassKind) -> None:
        """Append the expansion of quantised weights."""
        if self._quantized(kind):
            seconds = self.compute.cast_s(count, 1.0, self.precision.gather_bytes)
            tape.compute(f"expand {name}", seconds, "compress")

    def reduces(self, *, last: bool) -> bool:
        """Return True: gradients have no whole copy in which to accumulate."""
        return True

    def _most(self) -> int:
        given = self.options.bucket_bytes
        return DEEPSPEED_ELEMENTS if given is None else max(1, given // self.precision.reduce_bytes)

    def reduce_pass(self, tape: Tape, layers: Sequence[LayerTasks], position: int) -> None:
        """Append the reduction of a full bucket, or of what is left at the end."""
        most = self._most()
        for expert in (False, True):
            counts = [layer.count(expert=expert) for layer in layers]
            held = _flushes(counts, most).get(position, 0)
            parts = -(-held // most)
            name = f"to {layers[position].layer.name}"
            for index in range(parts):
                count = held * (index + 1) // parts - held * index // parts
                self.reduce(tape, name if parts == 1 else f"{name}.{index}", count, expert=expert)

    def reduce(self, tape: Tape, name: str, count: int, *, expert: bool) -> None:
        """Append the reduction of gradients, quantised with qgZ."""
        if not self.options.quantized_gradients or expert:
            super().reduce(tape, name, count, expert=expert)
            return
        width = self.precision.reduce_bytes
        stream = "data" if self.options.overlap_reduce else "compute"
        near = self.context.sizes["secondary"]
        size_bytes = count * (0.5 + SCALE_SHARE)
        tape.compute(f"quantise {name}", self.compute.cast_s(count, width, 0.5), "compress")
        left = float(count)
        if near > 1:
            self._exchange(tape, f"gradients {name}", size_bytes, "secondary", stream)
            left = count / near
            seconds = self.compute.cast_s(count, 0.5, 0.5 / near)
            tape.compute(f"sum {name}", seconds, "compress", stream)
            size_bytes /= near
        axis = "secondary_across" if near > 1 else "shard"
        self._exchange(tape, f"gradients across {name}", size_bytes, axis, stream)
        seconds = self.compute.cast_s(left, 0.5, width / self.context.sizes[axis])
        tape.compute(f"sum across {name}", seconds, "compress", stream)
        self.replicate(tape, name, count, prefix="", stream=stream)

    def _exchange(self, tape: Tape, name: str, size_bytes: float, axis: str, stream: str) -> None:
        after = None if stream == "compute" else "compute"
        tape.call(name, "all_to_all", size_bytes, axis, stream=stream, after=after)

    def update(self) -> Sequence[Task]:
        """Return the optimiser step and the gather of the persistent parameters."""
        tape = self.tape()
        tape.put(super().update())
        for expert in (False, True):
            persistent = self.context.count(expert=expert) - sum(
                self.gathered(layer, expert=expert)
                for chunk in self.context.chunks
                for layer in chunk
            )
            tape.call(
                "parameters that persist",
                "all_gather",
                persistent * self.precision.gather_bytes,
                "expert_shard" if expert else "shard",
                stream="expert_data" if expert else "data",
            )
        return tape.tasks
