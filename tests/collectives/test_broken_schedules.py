"""The executor finds what is wrong with a schedule: it is itself tested on broken ones."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest

from simulator.base.errors import ScheduleError
from simulator.collectives import Call, ChunkMap, Layout, Schedule, Stage, Step, make_schedule
from simulator.collectives.executor import check_totals, verify

CALL = Call(collective="all_reduce", world_size=4, size_bytes=400)


def with_stage(schedule: Schedule, index: int, **changes: object) -> Schedule:
    stages = list(schedule.stages)
    stages[index] = dataclasses.replace(stages[index], **changes)
    return dataclasses.replace(schedule, stages=tuple(stages))


def with_step(
    schedule: Schedule, index: int, number: int, change: Callable[[Step], Step]
) -> Schedule:
    old = schedule.stages[index].step
    return with_stage(schedule, index, step=lambda k: change(old(k)) if k == number else old(k))


@pytest.fixture
def ring() -> Schedule:
    schedule = make_schedule(CALL, "ring")
    verify(schedule, CALL)
    return schedule


def test_a_chunk_added_twice(ring: Schedule) -> None:
    # The first gathered chunk is added to the receiver's partial sum instead of replacing it:
    # a boolean "who contributed" would not see the difference.
    broken = with_step(ring, 1, 0, lambda step: dataclasses.replace(step, reduce=True))
    with pytest.raises(ScheduleError, match="ends with"):
        verify(broken, CALL)


def test_one_contribution_twice_is_named() -> None:
    # Rank 1 sends to the root in two steps.
    naive = make_schedule(Call(collective="reduce", world_size=3, size_bytes=6), "naive")
    call = Call(collective="reduce", world_size=3, size_bytes=6)
    again = dataclasses.replace(
        naive.stages[0],
        src=np.array([1]),
        dst=np.array([0]),
        channel=np.array([0]),
        step=lambda _: Step(edge=slice(None), start=np.array([0]), count=1, reduce=True),
    )
    broken = dataclasses.replace(naive, stages=(*naive.stages, again))
    with pytest.raises(ScheduleError, match="rank 0 ends with the contribution of rank 1 twice"):
        verify(broken, call)


def test_one_contribution_missing_is_named() -> None:
    call = Call(collective="reduce", world_size=3, size_bytes=6)
    naive = make_schedule(call, "naive")
    broken = with_step(
        naive,
        0,
        0,
        lambda step: dataclasses.replace(step, edge=np.array([0]), start=step.start[:1]),
    )
    with pytest.raises(ScheduleError, match="a sum without the contribution of rank 2"):
        verify(broken, call)


def test_a_step_left_out(ring: Schedule) -> None:
    broken = with_stage(ring, 1, n_steps=2)
    with pytest.raises(ScheduleError, match="ends with"):
        verify(broken, CALL)


@pytest.mark.parametrize("collective", ["broadcast", "reduce", "gather", "scatter"])
def test_the_wrong_root(collective: str) -> None:
    call = Call(collective=collective, world_size=4, size_bytes=40, root=2)
    name = "binomial"
    verify(make_schedule(call, name), call)
    with pytest.raises(ScheduleError, match="ends with"):
        verify(make_schedule(call, name), dataclasses.replace(call, root=1))


def test_a_copy_of_a_buffer_that_was_never_filled() -> None:
    call = Call(collective="all_gather", world_size=4, size_bytes=400)
    schedule = make_schedule(call, "ring")
    broken = with_step(
        schedule, 0, 1, lambda step: dataclasses.replace(step, start=(step.start + 1) % 4)
    )
    with pytest.raises(ScheduleError, match="another value"):
        verify(broken, call)


def test_data_forwarded_on_another_channel_only_pass_in_lock_step() -> None:
    # Rank 0 → 1 on channel 0, then rank 1 → 2 on channel 1: nothing makes channel 1 of rank 1
    # wait for its channel 0, except a barrier between steps, which does not exist.
    def stage(src: int, dst: int, channel: int) -> Stage:
        return Stage(
            name=f"{src} to {dst}",
            src=np.array([src]),
            dst=np.array([dst]),
            channel=np.array([channel]),
            n_steps=1,
            step=lambda _: Step(edge=slice(None), start=np.array([0]), count=1, reduce=False),
            edge_bytes=np.array([8.0]),
            edge_messages=np.array([1]),
        )

    call = Call(collective="broadcast", world_size=3, size_bytes=8)
    hidden = Schedule(
        collective="broadcast",
        algorithm="hidden_barrier",
        world_size=3,
        chunks=ChunkMap(n_chunks=1, uniform_bytes=8),
        n_channels=2,
        stages=(stage(0, 1, 0), stage(1, 2, 1)),
    )
    verify(hidden, call)
    found = [wrong(hidden, call, seed) for seed in range(20)]
    assert any("rank 2 ends with another value" in message for message in found)
    honest = dataclasses.replace(hidden, stages=(stage(0, 1, 0), stage(1, 2, 0)))
    assert not any(wrong(honest, call, seed) for seed in range(20))


def wrong(schedule: Schedule, call: Call, seed: int) -> str:
    """What one interleaving finds, or nothing."""
    try:
        verify(schedule, call, interleave=np.random.default_rng(seed))
    except ScheduleError as error:
        return str(error)
    return ""


def test_a_barrier_that_forgets_a_rank() -> None:
    call = Call(collective="barrier", world_size=5, size_bytes=0)
    schedule = make_schedule(call, "dissemination")
    verify(schedule, call)
    broken = dataclasses.replace(schedule, stages=schedule.stages[:-1])
    with pytest.raises(ScheduleError, match="rank 0 may leave the barrier before rank"):
        verify(broken, call)


def test_sends_read_what_was_held_before_the_step() -> None:
    # Two ranks that exchange and add in one step: both must end with the sum, not with a sum
    # that already contains it.
    call = Call(collective="all_reduce", world_size=2, size_bytes=8)
    verify(make_schedule(call, "recursive_doubling"), call)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dst": np.array([1, 2, 3, 4])}, "out of range"),
        ({"dst": np.array([0, 2, 3, 0])}, "leads to its source"),
        ({"src": np.array([0, 0, 2, 3]), "dst": np.array([1, 1, 3, 0])}, "same ends and channel"),
    ],
)
def test_edges_that_cannot_be(ring: Schedule, changes: dict[str, object], message: str) -> None:
    with pytest.raises(ScheduleError, match=message):
        verify(with_stage(ring, 0, **changes), CALL)


def test_pieces_that_do_not_match_the_edges(ring: Schedule) -> None:
    fewer = with_step(ring, 0, 0, lambda s: dataclasses.replace(s, start=s.start[:2]))
    with pytest.raises(ScheduleError, match="do not match"):
        verify(fewer, CALL)
    larger = with_step(ring, 0, 0, lambda s: dataclasses.replace(s, count=5))
    with pytest.raises(ScheduleError, match="more chunks than there are"):
        verify(larger, CALL)


def test_chunks_that_do_not_make_up_the_data(ring: Schedule) -> None:
    short = dataclasses.replace(ring, chunks=ChunkMap(n_chunks=4, uniform_bytes=99))
    with pytest.raises(ScheduleError, match="make 396 B, the part has 400 B"):
        verify(short, CALL)
    call = Call(collective="all_gather", world_size=3, size_bytes=300)
    odd = dataclasses.replace(
        make_schedule(call, "ring"), chunks=ChunkMap(n_chunks=4, uniform_bytes=75)
    )
    with pytest.raises(ScheduleError, match="4 chunks cannot make up 3 parts"):
        verify(odd, call)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"edge_bytes": np.array([300.0, 300.0, 300.0, 299.0])}, "edge 3 carries 300.0 bytes"),
        ({"edge_messages": np.array([3, 4, 3, 3])}, "edge 1 carries 3 messages"),
        ({"uniform_step_bytes": 99.0}, "not all of one size"),
    ],
)
def test_totals_that_are_not_those_of_the_steps(
    ring: Schedule, changes: dict[str, object], message: str
) -> None:
    check_totals(ring)
    with pytest.raises(ScheduleError, match=message):
        check_totals(with_stage(ring, 0, **changes))


def test_wrong_first_step_of_a_pipeline_is_found() -> None:
    layout = Layout(world_size=4, pipeline_bytes=100)
    tree = make_schedule(CALL, "tree", layout)
    check_totals(tree)
    first = tree.stages[0].first_step
    assert first is not None
    late = first.copy()
    late[0] += 1
    with pytest.raises(ScheduleError, match="in a row from step"):
        check_totals(with_stage(tree, 0, first_step=late))


def test_an_edge_that_is_silent_in_a_step_is_not_uniform() -> None:
    call = Call(collective="broadcast", world_size=4, size_bytes=400)
    chain = make_schedule(call, "ring", Layout(world_size=4, pipeline_bytes=100))
    check_totals(chain)
    with pytest.raises(ScheduleError, match="not all of one size"):
        check_totals(with_stage(chain, 0, uniform_step_bytes=100.0))
