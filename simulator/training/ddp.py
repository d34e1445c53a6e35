"""Data parallel: gradients are all-reduced in buckets while the backward goes on."""

from __future__ import annotations

from collections.abc import Sequence

from simulator.models.model import Model
from simulator.training.buckets import Bucket, bucket_plan, buckets, print_plan
from simulator.training.generators import ddp_step
from simulator.training.hooks import hooked
from simulator.training.plan import Task, Wait
from simulator.training.reduce import BucketedSync, GradientBucket, torch_limits_bytes
from simulator.training.strategy import Strategy
from simulator.training.tape import Tape

__all__ = ["Bucket", "DdpSync", "bucket_plan", "buckets", "ddp_buckets", "ddp_step"]


class DdpSync(BucketedSync):
    """Kind ``ddp``.

    Notes
    -----
    PyTorch copies each gradient into its bucket, dividing it by the number of ranks, and copies
    it back when all buckets are reduced (gradient_as_bucket_view off, its default).  Megatron-LM
    accumulates in the buckets themselves.  Gradient accumulation reduces in the last micro-batch
    only (no_sync), unless `reduce_every_micro_batch`.
    """

    @property
    def gathers_ahead(self) -> bool:
        """Nothing is gathered."""
        return False

    @property
    def _copies(self) -> bool:
        return self.strategy.framework == "torch" and self.context.sizes["data"] > 1

    def reduce(self, tape: Tape, bucket: GradientBucket) -> None:
        """Append the reduction of a bucket, through the comm hook if there is one."""
        size_bytes = bucket.count * self.precision.reduce_bytes
        axis = "expert_data" if bucket.expert else "data"
        if self.context.sizes[axis] == 1:
            return
        if self._copies:
            tape.compute(f"copy to {bucket.name}", self.compute.copy_s(size_bytes), "copy")
        if self.options.hook == "none":
            tape.call(f"gradients {bucket.name}", "all_reduce", size_bytes, axis, stream=axis)
        else:
            hooked(tape, bucket, axis, self.context)
        self.offload_gradients(tape, bucket.count, axis)

    def finish(self) -> Sequence[Task]:
        """Return the wait for all buckets, and the copies back to the gradients."""
        tape = self.tape()
        tape.put(super().finish())
        if self._copies:
            names = ("data", "expert_data", "hook")
            tape.tasks += [Wait(on=stream) for stream in names if self._uses(stream)]
            for buckets_of in self.buckets:
                for bucket in buckets_of:
                    seconds = self.compute.copy_s(bucket.count * self.precision.reduce_bytes)
                    tape.compute("copy to gradients", seconds, "copy")
        return tape.tasks

    def _uses(self, stream: str) -> bool:
        if stream == "hook":
            return self.options.hook != "none"
        expert = stream == "expert_data"
        return self.context.sizes[stream] > 1 and self.context.count(expert=expert) > 0

    def update(self) -> Sequence[Task]:
        """Return the optimiser step."""
        return super(BucketedSync, self).update()


def ddp_buckets(model: Model, strategy: Strategy) -> str:
    """Return PyTorch's buckets of a whole model as text: size, first and last gradient of each.

    Examples
    --------
    >>> from simulator.models import get_model
    >>> from simulator.training.strategy import Precision
    >>> plain = Strategy(precision=Precision(reduce_bytes=4))
    >>> print(ddp_buckets(get_model("resnet-18"), plain))
    bucket 0: 1.96 MiB, 2 gradients: fc.bias … fc.weight
    bucket 1: 27.52 MiB, 12 gradients: layer4.1.bn2.bias … layer4.0.conv2.weight
    bucket 2: 15.12 MiB, 48 gradients: layer4.0.bn1.bias … conv1.weight
    """
    own = [p for layer in model.layers for p in layer.parameters if not p.tied_to]
    options = strategy.data_parallel
    first, cap = torch_limits_bytes(options)
    plan = bucket_plan(
        [parameter.count * strategy.precision.reduce_bytes for parameter in own],
        first_bucket_bytes=first,
        bucket_cap_bytes=cap,
    )
    return print_plan(plan, [parameter.name for parameter in own])
