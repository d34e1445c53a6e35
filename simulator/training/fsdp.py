"""PyTorch's fully sharded data parallel, and its hybrid over groups of replicas (HSDP)."""

from __future__ import annotations

from simulator.training.layer_tasks import LayerTasks
from simulator.training.pipeline import PassKind
from simulator.training.sharded import ShardedSync
from simulator.training.tape import Tape

__all__ = ["FsdpSync"]


class FsdpSync(ShardedSync):
    """Kind ``fsdp``: each layer is a unit.

    Notes
    -----
    The next unit's gather runs beside the compute of this one in the forward
    (limit_all_gathers: two units are unsharded at once) and in the backward (BACKWARD_PRE, or
    FSDP2's prefetch in reverse order of the forward); a unit's reduce_scatter follows its
    backward and precedes the gather of the unit after the next.  The head stays gathered from
    forward to backward: the backward begins with it (torch/distributed/fsdp,
    fully_shard: the root is not resharded after the forward).

    In a pipeline gradients are reduced in the last micro-batch only, and units that are not
    resharded stay gathered from the first micro-batch's forward on
    (torch/distributed/pipelining/stage.py, backward_maybe_with_nosync).

    A gathered unit is copied out to its parameters, and its gradients are copied and cast into
    the reduction's buffer, on the compute stream (foreach_all_gather_copy_out,
    foreach_reduce_scatter_copy_in of FSDP2).
    """

    def kept(self, layer: LayerTasks) -> bool:
        """Return whether a layer's parameters stay gathered from its forward to its backward."""
        return super().kept(layer) or layer.layer.kind == "head"

    def gathers(self, layer: LayerTasks, kind: PassKind, *, first: bool) -> bool:
        """Return whether a pass gathers a layer's parameters."""
        if kind == "forward" and not first and not self.options.reshard_after_forward:
            return self.strategy.pipeline == 1
        return super().gathers(layer, kind, first=first)

    def reduces(self, *, last: bool) -> bool:
        """Return whether a micro-batch's gradients are reduced."""
        return last if self.strategy.pipeline > 1 else super().reduces(last=last)

    def after_gather(self, tape: Tape, name: str, count: int, kind: PassKind) -> None:
        """Append the copy out of the gathered buffer."""
        seconds = self.compute.copy_s(count * self.precision.gather_bytes)
        tape.compute(f"copy out {name}", seconds, "copy")

    def reduce(self, tape: Tape, name: str, count: int, *, expert: bool) -> None:
        """Append the copy into the reduction's buffer and the reduction."""
        prefix = "expert_" if expert else ""
        if self.context.sizes[f"{prefix}shard"] > 1:
            precision = self.precision
            seconds = self.compute.cast_s(count, precision.gather_bytes, precision.reduce_bytes)
            tape.compute(f"copy in {name}", seconds, "copy")
        super().reduce(tape, name, count, expert=expert)
