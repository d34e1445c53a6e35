"""Names that people type, bus-bandwidth factors, byte bounds."""

from __future__ import annotations

import numpy as np
import pytest

from simulator.base.errors import ScheduleError
from simulator.collectives import Call
from simulator.collectives.bounds import byte_bound
from simulator.collectives.names import (
    DTYPE_BYTES,
    busbw_factor,
    canonical_collective,
    canonical_dtype,
    dtype_bytes,
)
from simulator.collectives.spec import COLLECTIVES, part_bytes


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        *((name, name) for name in COLLECTIVES),
        *((name.replace("_", "").upper(), name) for name in COLLECTIVES),
        ("all_reduce_perf", "all_reduce"),
        ("alltoall_perf", "all_to_all"),
        ("alltoallv_perf", "all_to_allv"),
        ("sendrecv_perf", "send_recv"),
        ("reduce_perf", "reduce"),
        ("all_gather_into_tensor", "all_gather"),
        ("_allgather_base", "all_gather"),
        ("reduce_scatter_tensor", "reduce_scatter"),
        ("_reduce_scatter_base", "reduce_scatter"),
        ("all_to_all_single", "all_to_all"),
        ("all-to-all", "all_to_all"),
        ("torch.distributed.all_reduce", "all_reduce"),
        ("dist.broadcast", "broadcast"),
        ("ncclReduceScatter", "reduce_scatter"),
        ("MPI_Allgatherv", "all_gather"),
        ("MPI_Bcast", "broadcast"),
        ("isend", "send_recv"),
    ],
)
def test_collectives_as_people_type_them(typed: str, meant: str) -> None:
    assert canonical_collective(typed) == meant


def test_an_unknown_collective_names_the_nearest() -> None:
    with pytest.raises(ScheduleError, match="Did you mean 'all_reduce'"):
        canonical_collective("all_redcue")
    with pytest.raises(ScheduleError, match="unknown collective 'perf'"):
        canonical_collective("perf")


@pytest.mark.parametrize(
    ("typed", "meant", "size"),
    [
        ("float", "float", 4),
        ("torch.float32", "float", 4),
        ("fp16", "half", 2),
        ("torch.float16", "half", 2),
        ("BF16", "bfloat16", 2),
        ("ncclFloat64", "double", 8),
        ("fp8", "f8e4m3", 1),
        ("torch.float8_e5m2", "f8e5m2", 1),
        ("int", "int32", 4),
        ("Long", "int64", 8),
        ("uint8", "uint8", 1),
    ],
)
def test_element_types(typed: str, meant: str, size: int) -> None:
    assert canonical_dtype(typed) == meant
    assert dtype_bytes(typed) == size


def test_logs_and_scenarios_know_the_same_element_types() -> None:
    """Importers may not use this table; theirs must say the same."""
    from simulator.importers.log_rows import DTYPES

    assert len(DTYPES) > 10
    for name, size in DTYPES.items():
        assert dtype_bytes(name) == size, name
    assert set(DTYPE_BYTES) <= set(DTYPES)


def test_an_unknown_element_type_names_the_nearest() -> None:
    with pytest.raises(ScheduleError, match="Did you mean 'bfloat16'"):
        canonical_dtype("bfloat61")


def test_busbw_factors_are_those_of_nccl_tests() -> None:
    # doc/PERFORMANCE.md, n = 8.
    expected = {
        "all_reduce": 1.75,
        "all_gather": 0.875,
        "reduce_scatter": 0.875,
        "all_to_all": 0.875,
        "all_to_allv": 0.875,
        "gather": 0.875,
        "scatter": 0.875,
        "broadcast": 1.0,
        "reduce": 1.0,
        "send_recv": 1.0,
        "barrier": 0.0,
    }
    assert {name: busbw_factor(name, 8) for name in COLLECTIVES} == expected
    assert busbw_factor("all_reduce", 1) == 0.0
    with pytest.raises(ScheduleError, match="unknown collective"):
        busbw_factor("all_reduces", 8)


@pytest.mark.parametrize(
    ("collective", "in_network", "send", "receive", "port"),
    [
        # n = 4, S = 800, root 1.
        ("all_reduce", False, [800] * 4, [800] * 4, 1200),
        ("all_reduce", True, [800] * 4, [800] * 4, 800),
        ("all_gather", False, [200] * 4, [600] * 4, 600),
        ("reduce_scatter", False, [600] * 4, [200] * 4, 600),
        ("all_to_all", False, [600] * 4, [600] * 4, 600),
        ("broadcast", False, [0, 800, 0, 0], [800, 0, 800, 800], 800),
        ("reduce", False, [800, 0, 800, 800], [0, 800, 0, 0], 800),
        ("gather", False, [200, 0, 200, 200], [0, 600, 0, 0], 600),
        ("scatter", False, [0, 600, 0, 0], [200, 0, 200, 200], 600),
        ("send_recv", False, [800] * 4, [800] * 4, 800),
        ("barrier", False, [0] * 4, [0] * 4, 0),
    ],
)
def test_bounds_of_four_ranks(
    collective: str, in_network: bool, send: list[int], receive: list[int], port: int
) -> None:
    call = Call(collective=collective, world_size=4, size_bytes=800, root=1)
    bound = byte_bound(call, in_network=in_network)
    assert bound.send_bytes.tolist() == send
    assert bound.receive_bytes.tolist() == receive
    assert bound.port_bytes == port
    assert type(bound.port_bytes) is float


def test_bounds_of_uneven_parts() -> None:
    counts = np.array([[5, 1, 2], [0, 7, 3], [4, 4, 9]])
    call = Call(collective="all_to_allv", world_size=3, size_bytes=11, counts_bytes=counts)
    bound = byte_bound(call)
    # The diagonal stays at home.
    assert bound.send_bytes.tolist() == [3, 3, 8]
    assert bound.receive_bytes.tolist() == [4, 5, 5]
    assert bound.port_bytes == 8
    uneven = Call(collective="all_to_all", world_size=3, size_bytes=10)
    assert part_bytes(uneven).tolist() == [4, 3, 3]
    assert byte_bound(uneven).receive_bytes.tolist() == [8, 6, 6]


def test_one_rank_moves_nothing() -> None:
    for collective in COLLECTIVES:
        call = Call(collective=collective, world_size=1, size_bytes=100)
        assert byte_bound(call).port_bytes == 0
