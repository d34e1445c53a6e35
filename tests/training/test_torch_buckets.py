"""PyTorch's buckets: one split for what is printed and what is simulated, and it is torch's."""

from __future__ import annotations

import pytest

from simulator.models import get_model
from simulator.training.buckets import bucket_plan
from simulator.training.reduce import torch_limits_bytes
from simulator.training.strategy import DataParallel

MIB = 2**20


@pytest.mark.parametrize(
    ("bucket", "first", "limits"),
    [
        (None, None, (MIB, 25 * MIB)),
        (35 * MIB, None, (35 * MIB, 35 * MIB)),
        (35 * MIB, MIB, (MIB, 35 * MIB)),
        (None, 2 * MIB, (2 * MIB, 25 * MIB)),
    ],
)
def test_a_first_bucket_that_is_given_holds(bucket, first, limits):
    options = DataParallel(bucket_bytes=bucket, first_bucket_bytes=first)
    assert torch_limits_bytes(options) == limits


def test_the_split_is_torchs():
    torch = pytest.importorskip("torch")
    dist = pytest.importorskip("torch.distributed")
    model = get_model("resnet-18")
    counts = [p.count for layer in model.layers for p in layer.parameters if not p.tied_to]
    first, cap = torch_limits_bytes(DataParallel(bucket_bytes=35 * MIB, first_bucket_bytes=MIB))
    plan = bucket_plan([4 * n for n in counts], first_bucket_bytes=first, bucket_cap_bytes=cap)
    tensors = [torch.empty(n, device="meta") for n in reversed(counts)]
    theirs, _ = dist._compute_bucket_assignment_by_size(tensors, [first, cap])
    last = len(counts) - 1
    assert [list(b.members) for b in plan] == [[last - i for i in own] for own in theirs]
    assert plan[0].size_bytes == 2_052_000
