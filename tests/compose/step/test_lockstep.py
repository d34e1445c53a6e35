"""A slow rank of a tensor-parallel group and its peers, followed without the engine."""

from __future__ import annotations

import pytest

import simulator
from simulator.compose.step.lockstep import lockstep
from simulator.training.plan import Call, Compute, Task, Wait


def compute(ms: float) -> Compute:
    return Compute(name="product", duration_s=ms * 1e-3, purpose="forward")


def call(stream: str = "compute", after: str | None = None) -> Call:
    return Call(
        name="sum",
        axis="tensor",
        collective="all_reduce",
        size_bytes=1024,
        traffic="tensor",
        stream=stream,
        after=after,
    )


Followed = list[dict[int, list[tuple[float, bool, int | None]]]]


def follow(tasks: list[Task], slow: list[float], slowdown: float = 0.0) -> Followed:
    found = lockstep(
        tasks,
        list(range(len(slow))),
        slow,
        axis="tensor",
        slowdown=slowdown,
        size=lambda _: 8,
        time_s=lambda _: 1e-3,
    )
    return [
        {
            index: [
                (round(part.duration_s * 1e3, 9), part.is_call, part.waits_for) for part in parts
            ]
            for index, (parts, _) in own.items()
        }
        for own in found
    ]


def test_the_first_call_is_the_engines_and_the_next_waits_for_the_slow() -> None:
    tasks = [compute(4), call(), compute(4), call(), compute(2), call()]
    fast, slow = follow(tasks, [1.0, 1.5])
    # 4 ms against 6 ms, then 2 ms against 3 ms; a call takes 1 ms.
    assert fast == {
        3: [(2.0, True, 1), (1.0, True, None)],
        5: [(1.0, True, 1), (1.0, True, None)],
    }
    assert slow == {3: [(1.0, True, None)], 5: [(1.0, True, None)]}


def test_beside_computes_the_wait_shrinks_by_what_is_computed_meanwhile() -> None:
    tasks = [call(), compute(2), call("tensor", "compute"), compute(1.5)]
    tasks += [Wait(on="tensor", stream="compute"), compute(1), call()]
    fast, slow = follow(tasks, [1.0, 2.0])
    # The fast one calls at 2 ms, the slow one at 4 ms: the fast one's 1.5 ms are done at 3.5 ms,
    # it waits 0.5 ms, then 1 ms for the call.  The slow one computes 3 ms and hides the call.
    assert fast[2] == [(1.5, False, None), (0.5, True, 1), (1.0, True, None)]
    assert slow[2] == [(3.0, False, None), (0.0, True, None)]
    # They are at 5 and 7 ms, and compute 1 and 2 ms: 3 ms apart.
    assert fast[6] == [(3.0, True, 1), (1.0, True, None)]


def test_what_waits_for_anybody_else_ends_it() -> None:
    tasks: list[Task] = [call(), compute(1), call(), Wait(on="gather", stream="compute")]
    tasks += [compute(1), call(), compute(1), call()]
    fast, slow = follow(tasks, [1.0, 2.0])
    assert set(fast) == set(slow) == {2, 7}


@pytest.mark.parametrize("slow", [[(5, 1.5)], [(5, 1.5), (6, 1.2)]])
def test_as_every_rank_simulated(slow: list[tuple[int, float]]) -> None:
    steps = [
        simulator.run(
            node="dgx-h100",
            nodes=2,
            training={
                "model": "llama-2-7b",
                "model_set": {"layers": 4},
                "seq": 512,
                "tensor": 4,
                "pipeline": 2,
                "micro_batches": 4,
                "fold": fold,
            },
            perturb={"slow": [{"ranks": rank, "factor": factor} for rank, factor in slow]},
        ).training[0]
        for fold in (True, False)
    ]
    folded, exact = steps
    assert folded.step_s == pytest.approx(exact.step_s, rel=0.01)
    waits = [next(a for a in step.accounts if 4 in a.ranks).waiting_s["tensor"] for step in steps]
    assert waits[0] == pytest.approx(waits[1], rel=0.03)
    assert folded.straggler.startswith("rank 5 ")
