"""Every registered schedule, compiled rank by rank, moves the right data; no process is started."""

from collections import defaultdict, deque

import numpy as np
import pytest

from simulator.base.errors import ScheduleError
from simulator.collectives import Call, Layout, algorithms, collectives
from validation.harness.options import MeasureError
from validation.harness.scheduled import compile_rank, make

CASES = [
    (collective, algorithm)
    for collective in collectives()
    for algorithm in algorithms(collective)
    if collective != "all_to_allv"
]


def value(rank, index):
    return (index * 5 + index // 7 + 3 * rank) % 8


def run(programs):
    """Run the compiled ranks over queues, each as far as its messages allow."""
    n = len(programs)
    buffers = [np.full(max(program.n_elements, 1), 77) for program in programs]
    for buffer, program in zip(buffers, programs, strict=True):
        for (start, end), rank, first in program.fills:
            buffer[start:end] = value(rank, np.arange(first, first + end - start))
    wire = defaultdict(deque)
    todo = [deque(program.steps) for program in programs]
    posted = [False] * n
    while any(todo):
        moved = False
        for rank in range(n):
            while todo[rank]:
                step = todo[rank][0]
                if not posted[rank]:
                    for message in step.sends:
                        parts = [buffers[rank][a:b] for a, b in message.ranges]
                        data = np.concatenate(parts) if parts else np.empty(0, dtype=int)
                        wire[rank, message.peer, message.channel].append(data.copy())
                    posted[rank] = moved = True
                if not all(wire[m.peer, rank, m.channel] for m in step.receives):
                    break
                take(buffers[rank], rank, step, wire)
                todo[rank].popleft()
                posted[rank] = False
                moved = True
        assert moved, "the compiled ranks wait for each other"
    assert not any(wire.values()), "a message was sent that nobody receives"
    return buffers


def take(buffer, rank, step, wire):
    parts = []
    for message in step.receives:
        data = wire[message.peer, rank, message.channel].popleft()
        assert data.size == message.n_elements
        offset = 0
        for (start, end), reduce in zip(message.ranges, message.reduces, strict=True):
            parts.append((reduce, start, data[offset : offset + end - start]))
            offset += end - start
    for reduce, start, data in sorted(parts, key=lambda part: part[0]):
        target = buffer[start : start + data.size]
        target[:] = target + data if reduce else data


def wrong(programs, buffers):
    count = 0
    n = len(programs)
    for program, buffer in zip(programs, buffers, strict=True):
        for (start, end), rank, first in program.results:
            index = np.arange(first, first + end - start)
            each = [value(r, index) for r in (range(n) if rank is None else [rank])]
            count += int((buffer[start:end] != np.sum(each, axis=0)).sum())
    return count


def compiled(collective, algorithm, world, size, *, channels=1, root=0, per_node=None):
    call = Call(
        collective=collective, world_size=world, size_bytes=size, root=root, element_bytes=4
    )
    nodes = np.arange(world) // (per_node or world)
    layout = Layout(world_size=world, nodes=nodes, n_channels=channels)
    schedule = make(collective, algorithm, call, layout)
    return [compile_rank(schedule, call, rank) for rank in range(world)]


@pytest.mark.parametrize(("collective", "algorithm"), CASES)
def test_compiled_schedule_moves_the_right_data(collective, algorithm):
    done = 0
    for world in (1, 2, 3, 4, 5, 8):
        for size in (0, 4 * world, 4 * 97, 4096):
            for channels, root, per_node in ((1, 0, None), (2, world - 1, max(world // 2, 1))):
                try:
                    programs = compiled(
                        *(collective, algorithm, world, size),
                        **{"channels": channels, "root": root, "per_node": per_node},
                    )
                except (ScheduleError, MeasureError):
                    continue
                assert wrong(programs, run(programs)) == 0, (world, size, channels, root)
                done += 1
    in_switch = algorithm.startswith(("nvls", "collnet"))
    assert done > 0 or in_switch


def test_in_switch_schedule_is_refused():
    with pytest.raises(MeasureError, match="reduces in a switch"):
        compiled("all_reduce", "nvls", 4, 4096)


def test_lost_step_is_found_by_the_data_check():
    programs = compiled("all_reduce", "ring", 4, 4096)
    # Without everybody's last step each rank misses one quarter of the result.
    cut = [type(p)(p.n_elements, p.steps[:-1], p.fills, p.results) for p in programs]
    found = wrong(programs, run(cut))
    # At most 4 ranks × 1,024 elements / 4; what stands there instead is right one time in eight.
    assert 800 < found <= 1024


def test_buffer_holds_only_what_a_rank_touches():
    # all_to_all has n² parts of S / n; a rank touches n of its own and n of others': 2 S − S / n.
    programs = compiled("all_to_all", "direct", 4, 4096)
    assert [program.n_elements for program in programs] == [(2 * 4096 - 1024) // 4] * 4


def test_receive_into_what_is_sent_in_the_same_step_is_not_direct():
    # Recursive doubling exchanges the whole buffer with the partner, and reduces.
    for program in compiled("all_reduce", "recursive_doubling", 4, 64):
        for step in program.steps:
            assert not any(message.direct for message in step.receives)
    # The ring's all-gather lands where nothing is being sent.
    assert any(
        message.direct
        for step in compiled("all_gather", "ring", 4, 64)[0].steps
        for message in step.receives
    )
