"""How fast schedules are built and their steps generated."""

from __future__ import annotations

import numpy as np
import pytest

from simulator.collectives import Call, Layout, make_schedule

GIB = 2**30


def build(collective: str, name: str, n: int, channels: int) -> object:
    call = Call(collective=collective, world_size=n, size_bytes=GIB)
    layout = Layout(world_size=n, n_channels=channels, nodes=np.arange(n) // 8)
    return make_schedule(call, name, layout)


@pytest.mark.parametrize(
    ("collective", "name", "n", "channels"),
    [
        ("all_reduce", "ring", 16384, 1),
        ("all_reduce", "ring", 16384, 8),
        ("all_reduce", "double_binary_tree", 16384, 8),
        ("all_reduce", "hierarchical", 16384, 8),
        ("all_to_all", "pairwise", 2048, 1),
        ("all_to_all", "direct", 2048, 1),
    ],
)
def test_build(benchmark, collective: str, name: str, n: int, channels: int) -> None:
    schedule = benchmark(build, collective, name, n, channels)
    assert schedule.n_steps > 0


@pytest.mark.parametrize("channels", [1, 8])
def test_ring_steps_of_1024_ranks(benchmark, channels: int) -> None:
    stage = build("all_reduce", "ring", 1024, channels).stages[0]
    # As the engine does: one step at a time, none kept.
    assert benchmark(lambda: sum(len(step.start) for step in stage.steps())) > 0
