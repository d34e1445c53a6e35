"""Calls, layouts, chunk maps and specifications: what they hold and what they refuse."""

from __future__ import annotations

import numpy as np
import pytest

from simulator.base.errors import ScheduleError
from simulator.collectives import Call, ChunkMap, Layout
from simulator.collectives.spec import specification
from simulator.collectives.split import borders, channel_major, part_major, whole


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"world_size": 0}, "world size 0"),
        ({"size_bytes": -1}, "negative"),
        ({"root": 4}, "root 4 is outside the world: ranks are 0 … 3"),
        ({"root": -1}, "root -1"),
        ({"element_bytes": 0}, "elements of 0 B"),
        ({"counts_bytes": np.array([25] * 3)}, r"shape \(3,\).*\n.*shape \(4,\)"),
        ({"counts_bytes": np.array([-1, 51, 25, 25])}, "count -1 B is negative"),
        ({"counts_bytes": np.array([25, 25, 25, 26])}, "make 101 B, the size is 100 B"),
        (
            {"collective": "all_reduce", "counts_bytes": np.array([25] * 4)},
            "takes no uneven counts",
        ),
        (
            {"collective": "all_to_allv", "counts_bytes": np.array([25] * 4)},
            r"shape \(4, 4\)",
        ),
    ],
)
def test_calls_that_cannot_be(arguments: dict[str, object], message: str) -> None:
    good = {"collective": "all_gather", "world_size": 4, "size_bytes": 100}
    Call(**good)
    with pytest.raises(ScheduleError, match=message):
        Call(**(good | arguments))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"n_channels": 0}, "0 channels"),
        ({"pipeline_bytes": 0}, "0 B: at least 1 B"),
        ({"nodes": np.array([0, 0, 1])}, "node of each rank"),
        ({"nodes": np.array([0, 1, 0, 1])}, "node of each rank"),
        ({"nodes": np.array([0, 0, 2, 2])}, "node of each rank"),
        ({"nodes": np.array([1, 1, 2, 2])}, "node of each rank"),
        ({"rings": np.array([0, 1, 2, 3])}, "one row of 4 ranks"),
        ({"rings": np.array([[0, 1, 2, 2]])}, "ring 0 does not visit each"),
        ({"rings": np.array([[0, 1, 2, -1]])}, "ring 0 does not visit each"),
        ({"rings": np.array([[0, 1, 2, 3], [0, 1, 2, 4]])}, "ring 1 does not visit each"),
        (
            {"nodes": np.array([0, 0, 1, 1]), "chains": np.array([[0, 2, 1, 3]])},
            "node by node",
        ),
    ],
)
def test_layouts_that_cannot_be(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ScheduleError, match=message):
        Layout(world_size=4, **arguments)


def test_layout_of_uneven_nodes() -> None:
    layout = Layout(world_size=6, nodes=np.array([0, 1, 1, 2, 2, 2]))
    assert layout.n_nodes == 3
    assert layout.node_starts.tolist() == [0, 1, 3, 6]
    assert layout.ranks_per_node is None
    assert Layout(world_size=6).ranks_per_node == 6


def test_more_channels_reuse_the_orders() -> None:
    layout = Layout(world_size=2, n_channels=3, rings=np.array([[0, 1], [1, 0]]))
    assert layout.ring_orders().tolist() == [[0, 1], [1, 0], [0, 1]]
    assert layout.chain_orders(1).tolist() == [[0, 1]]


@pytest.mark.parametrize("element", [1, 4])
@pytest.mark.parametrize("size", [0, 3, 100, 1003])
@pytest.mark.parametrize("pieces", [1, 7, 64])
def test_borders_are_even_and_on_elements(size: int, pieces: int, element: int) -> None:
    found = borders(size, pieces, element)
    sizes = np.diff(found)
    assert sizes.sum() == size
    assert (found[:-1] % element == 0).all()
    whole_elements = sizes - np.eye(pieces, dtype=int)[-1] * (size % element)
    assert whole_elements.max() - whole_elements.min() <= element


def test_cyclic_ranges_of_chunks() -> None:
    # Sizes 4, 3, 3; a range may wrap, and may cover everything.
    start, count = np.array([0, 2, 1, 5]), np.array([2, 2, 3, 1])
    plain = ChunkMap(n_chunks=3, offset_bytes=np.array([0, 4, 7, 10]))
    assert plain.size_bytes(start, count).tolist() == [7, 7, 10, 3]
    # The same row of sizes twice: chunks 0 … 5.
    rows = ChunkMap(n_chunks=6, offset_bytes=np.array([0, 4, 7, 10]))
    assert rows.sizes().tolist() == [4, 3, 3, 4, 3, 3]
    assert rows.size_bytes(start, count).tolist() == [7, 7, 10, 3]
    assert rows.size_bytes(np.array([4, 3]), np.array([4, 6])).tolist() == [13, 20]
    equal = ChunkMap(n_chunks=6, uniform_bytes=5)
    assert equal.size_bytes(start, count).tolist() == [10, 10, 15, 5]
    assert equal.sizes().tolist() == [5] * 6


def test_equal_chunks_hold_no_borders() -> None:
    call = Call(collective="all_to_all", world_size=4, size_bytes=64)
    assert part_major(call) == ChunkMap(n_chunks=16, uniform_bytes=16)
    # Unequal parts of all_to_all repeat row by row, so that n² borders are never held.
    uneven = Call(collective="all_to_all", world_size=4, size_bytes=65)
    assert len(part_major(uneven).offset_bytes) == 5


def test_chunks_follow_the_bytes_of_their_part() -> None:
    call = Call(collective="all_gather", world_size=2, size_bytes=10)
    # Parts of 5 and 5 in two pieces of 3 and 2.
    assert part_major(call, 2).sizes().tolist() == [3, 2, 3, 2]
    rows = channel_major(call, 2, np.array([[1, 0]]))
    assert rows.part.tolist() == [1, 0, 1, 0]
    assert rows.sizes().tolist() == [3, 3, 2, 2]


def test_elements_are_not_cut() -> None:
    call = Call(collective="all_reduce", world_size=2, size_bytes=24, element_bytes=8)
    assert whole(call, 2).sizes().tolist() == [16, 8]
    gather = Call(collective="all_gather", world_size=2, size_bytes=16, element_bytes=8)
    assert part_major(gather, 2).sizes().tolist() == [8, 0, 8, 0]


def test_send_recv_goes_to_the_next_rank() -> None:
    found = specification(Call(collective="send_recv", world_size=3, size_bytes=1))
    # Part p is rank p's buffer; rank p + 1 must hold it.
    assert np.argwhere(found.holds).tolist() == [[0, 2], [1, 0], [2, 1]]


def test_all_to_all_transposes() -> None:
    found = specification(Call(collective="all_to_all", world_size=2, size_bytes=2))
    assert found.contributes.astype(int).tolist() == [[1, 1, 0, 0], [0, 0, 1, 1]]
    assert found.holds.astype(int).tolist() == [[1, 0, 1, 0], [0, 1, 0, 1]]


def test_an_unknown_collective_has_no_specification() -> None:
    with pytest.raises(ScheduleError, match="Did you mean 'all_reduce'"):
        specification(Call(collective="allreduce", world_size=2, size_bytes=2))
