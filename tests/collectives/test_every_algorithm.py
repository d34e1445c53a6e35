"""Every registered schedule computes its collective, whatever the world, size and layout."""

from __future__ import annotations

import numpy as np
import pytest

from simulator.base.errors import ScheduleError
from simulator.collectives import Layout, algorithms, collectives, get_algorithm, make_schedule
from simulator.collectives.executor import check_totals, verify
from simulator.collectives.spec import COLLECTIVES
from tests.collectives.worlds import WORLDS, calls, layouts, must_refuse

ALL = [(collective, name) for collective in collectives() for name in algorithms(collective)]


def test_every_collective_has_an_algorithm() -> None:
    assert collectives() == sorted(COLLECTIVES)
    assert len(ALL) > 50


@pytest.mark.parametrize(("collective", "name"), ALL)
def test_computes_its_collective_or_refuses_as_documented(collective: str, name: str) -> None:
    done = 0
    for n in WORLDS:
        for index, layout in enumerate(layouts(n)):
            for number, call in enumerate(calls(collective, n)):
                # The largest world takes every third combination only.
                if n > 17 and (index + number) % 3:
                    continue
                if must_refuse(name, layout, collective):
                    with pytest.raises(ScheduleError, match="allowed: "):
                        make_schedule(call, name, layout)
                    continue
                schedule = make_schedule(call, name, layout)
                verify(schedule, call)
                check_totals(schedule)
                assert (schedule.n_steps == 0) == (n == 1)
                done += 1
    assert done > 40


@pytest.mark.parametrize(("collective", "name"), ALL)
def test_needs_no_order_of_ranks_but_its_messages(collective: str, name: str) -> None:
    done = 0
    for n in (2, 3, 4, 6, 8):
        for index, layout in enumerate(layouts(n)):
            if must_refuse(name, layout, collective):
                continue
            call = list(calls(collective, n))[-1 - index % 2 if collective != "barrier" else -1]
            schedule = make_schedule(call, name, layout)
            verify(schedule, call, interleave=np.random.default_rng([n, index]))
            done += 1
    assert done >= 4


@pytest.mark.parametrize(("collective", "name"), ALL)
def test_the_same_call_gives_the_same_steps(collective: str, name: str) -> None:
    layout = next(found for found in layouts(8) if not must_refuse(name, found, collective))
    call = next(iter(calls(collective, 8)))
    first, again = (make_schedule(call, name, layout) for _ in range(2))
    for stage, other in zip(first.stages, again.stages, strict=True):
        middle = stage.n_steps // 2
        assert np.array_equal(stage.step(middle).start, other.step(middle).start)
        assert np.array_equal(stage.step(middle).start, stage.step(middle).start)


@pytest.mark.parametrize(("collective", "name"), ALL)
def test_says_what_it_is(collective: str, name: str) -> None:
    entry = get_algorithm(collective, name)
    assert entry.summary
    assert entry.reference
    assert "α" in entry.formula
    layout = next(found for found in layouts(8) if not must_refuse(name, found, collective))
    schedule = make_schedule(next(iter(calls(collective, 8))), name, layout)
    assert (schedule.collective, schedule.algorithm) == (collective, name)
    assert all(stage.name for stage in schedule.stages)


def test_a_layout_of_another_world_is_refused() -> None:
    call = next(iter(calls("all_reduce", 4)))
    with pytest.raises(ScheduleError, match="4 ranks, the layout 5"):
        make_schedule(call, "ring", Layout(world_size=5))


def test_a_call_of_another_collective_is_refused() -> None:
    call = next(iter(calls("all_gather", 4)))
    with pytest.raises(ScheduleError, match="given a call of all_gather"):
        get_algorithm("all_reduce", "ring").function(call, Layout(world_size=4))


def test_an_unknown_algorithm_names_the_nearest() -> None:
    call = next(iter(calls("all_reduce", 4)))
    with pytest.raises(ScheduleError, match="Did you mean 'ring'"):
        make_schedule(call, "rign")
