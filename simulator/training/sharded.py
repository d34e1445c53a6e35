"""Sharded parameters: gathered before each unit computes, its gradients reduce-scattered after.

The frame of FSDP and ZeRO-3; what differs between them are their units, precisions and buckets.
"""

from __future__ import annotations

from collections.abc import Sequence

from simulator.training.layer_tasks import LayerTasks
from simulator.training.pipeline import PassKind
from simulator.training.plan import Task, Wait
from simulator.training.sharing import DataSync
from simulator.training.tape import Mark, Tape

__all__ = ["ShardedSync"]


class ShardedSync(DataSync):
    """Parameters of each layer are sharded over the ranks of an axis.

    Notes
    -----
    Gathers and reductions of one group share a communicator and hence run in the order in which
    they were enqueued.  `prefetch` units are gathered ahead of the one that computes; a further
    gather waits for the compute that frees its place.  The first unit of a pass is gathered when
    the pass before is done: updated parameters, or the freed ones, must not be read earlier.
    """

    replicates_every_pass = True
    """Shards of gradients are summed over replicas whenever they are reduced; else only in the
    last micro-batch."""
    _last = True

    def kept(self, layer: LayerTasks) -> bool:
        """Return whether a layer's parameters stay gathered from its forward to its backward."""
        return not self.options.reshard_after_forward

    def gathers(self, layer: LayerTasks, kind: PassKind, *, first: bool) -> bool:
        """Return whether a pass gathers a layer's parameters."""
        return kind == "forward" or not self.kept(layer)

    def gathered(self, layer: LayerTasks, *, expert: bool) -> int:
        """Return the elements of a layer that a pass gathers."""
        return layer.count(expert=expert)

    def gather_axis(self, kind: PassKind, *, expert: bool) -> str:
        """Return the axis over which a pass gathers."""
        return "expert_shard" if expert else "shard"

    def gather_bytes(self, kind: PassKind) -> float:
        """Return the bytes per element that a pass gathers."""
        return self.precision.gather_bytes

    def before_gather(self, tape: Tape, name: str, count: int, kind: PassKind) -> str:
        """Append what makes a shard ready to be gathered; return the stream to wait for."""
        if self.options.offload_parameters == "none":
            return "compute"
        tape.tasks.append(Wait(on="compute", stream="copy"))
        n_bytes = count * self.precision.gather_bytes
        if self.options.offload_parameters == "nvme":
            seconds = n_bytes / self.context.host.storage_Bps
            tape.compute(f"read {name}", seconds, "copy", "copy")
        self.host_copy(tape, f"fetch {name}", n_bytes, "copy")
        return "copy"

    def after_gather(self, tape: Tape, name: str, count: int, kind: PassKind) -> None:
        """Append what makes gathered parameters usable, on the compute stream."""

    def reduces(self, *, last: bool) -> bool:
        """Return whether a micro-batch's gradients are reduced."""
        return last or self.options.reduce_every_micro_batch

    def reduce_pass(self, tape: Tape, layers: Sequence[LayerTasks], position: int) -> None:
        """Append what is reduced when the layer at `position` of a backward is done."""
        for expert in (False, True):
            count = layers[position].count(expert=expert)
            self.reduce(tape, layers[position].layer.name, count, expert=expert)

    def reduce(self, tape: Tape, name: str, count: int, *, expert: bool) -> None:
        """Append the reduction of gradients."""
        prefix = "expert_" if expert else ""
        size_bytes = count * self.precision.reduce_bytes
        stream = f"{prefix}data" if self.options.overlap_reduce else "compute"
        tape.call(
            f"gradients {name}",
            "reduce_scatter",
            size_bytes,
            f"{prefix}shard",
            stream=stream,
            after="compute" if self.options.overlap_reduce else None,
        )
        self.replicate(tape, name, count, prefix=prefix, stream=stream)

    def replicate(self, tape: Tape, name: str, count: int, *, prefix: str, stream: str) -> None:
        """Append the sum of a shard's gradients over replicas, and its way to the CPU."""
        shards = self.context.sizes[f"{prefix}shard"]
        if self._last or self.replicates_every_pass:
            tape.call(
                f"gradient shards {name}",
                "all_reduce",
                -(-count * self.precision.reduce_bytes // shards),
                f"{prefix}replicate",
                stream=f"{prefix}replicate",
                after=stream if shards > 1 else "compute",
            )
        self.offload_gradients(tape, -(-count // shards), stream)

    def run(self, kind: PassKind, chunk: int, *, first: bool, last: bool) -> Sequence[Task]:
        """Return a pass with its gathers and reductions."""
        self._last = last
        tape = self.tape()
        layers = list(self.context.chunks[chunk])
        if kind != "forward":
            layers.reverse()
        gathers = kind != "weight_gradient"  # which needs no parameters
        reduces = kind in ("backward", "weight_gradient") and self.reduces(last=last)
        ahead = self.options.prefetch if self.options.overlap_gather else 0
        marks: dict[int, list[Mark]] = {}

        def gather(position: int) -> None:
            layer = layers[position]
            marks[position] = []
            if not self.gathers(layer, kind, first=first):
                return
            for expert in (False, True):
                count = self.gathered(layer, expert=expert)
                axis = self.gather_axis(kind, expert=expert)
                ranks = self.context.sizes[axis]
                if count == 0 or ranks == 1:
                    continue
                stream = {"shard": "data", "expert_shard": "expert_data"}.get(axis, axis)
                name = f"parameters {layer.layer.name}"
                after = self.before_gather(tape, name, -(-count // ranks), kind)
                size_bytes = count * self.gather_bytes(kind)
                tape.call(name, "all_gather", size_bytes, axis, stream=stream, after=after)
                marks[position].append(tape.mark(stream))

        if gathers:
            for position in range(min(ahead + 1, len(layers))):
                gather(position)
        for position, part in enumerate(self.parts(kind, chunk)):
            if gathers:
                for mark in marks[position]:
                    tape.wait(mark)
                if marks[position]:
                    layer = layers[position]
                    count = self.gathered(layer, expert=False) + self.gathered(layer, expert=True)
                    self.after_gather(tape, layer.layer.name, count, kind)
            tape.put(self.merged((part,)))
            if reduces:
                self.reduce_pass(tape, layers, position)
            if gathers and position + ahead + 1 < len(layers):
                gather(position + ahead + 1)
        return tape.tasks
