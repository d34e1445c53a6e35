"""A small made-up result, whose numbers are easy to check by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from simulator.results import (
    Device,
    LinkEvent,
    LinkLoad,
    Provenance,
    RankTimes,
    Row,
    RunResult,
    TraceEvent,
    Vertex,
)


def _row(size_bytes: int, time_s: float, **changes: Any) -> Row:
    world_size = changes.pop("world_size", 8)
    algbw = size_bytes / time_s
    values: dict[str, Any] = {
        "collective": "all_reduce",
        "algorithm": "ring",
        "protocol": "Simple",
        "n_channels": 8,
        "world_size": world_size,
        "n_nodes": max(world_size // 8, 1),
        "size_bytes": size_bytes,
        "count": size_bytes // 4,
        "time_s": time_s,
        "algbw_Bps": algbw,
        # nccl-tests doc/PERFORMANCE.md: all_reduce moves 2(n−1)/n of the buffer.
        "busbw_Bps": algbw * 2 * (world_size - 1) / world_size,
        "redop": "sum",
        "bound_s": size_bytes / 250e9,
        "binding_link": "node0.gpu0→node0.nvswitch0",
        "binding_kind": "nvlink",
        "launch_s": 5e-6,
        "latency_s": 10e-6,
        "bandwidth_s": time_s - 15e-6,
    }
    return Row(**(values | changes))


@pytest.fixture(scope="session")
def make_row() -> Callable[..., Row]:
    return _row


@pytest.fixture(scope="session")
def result() -> RunResult:
    vertices = [Vertex(name=f"gpu{i}", kind="gpu", node=0) for i in range(4)]
    vertices.append(Vertex(name="nvswitch0", kind="nvswitch", node=0))
    links = [
        LinkLoad(
            name=f"gpu{i}→nvswitch0",
            kind="nvlink",
            capacity_Bps=450e9,
            wire_bytes=1e9 * (i + 1),
            utilisation=0.2 * (i + 1),
            src=f"gpu{i}",
            dst="nvswitch0",
        )
        for i in range(4)
    ]
    trace = (
        TraceEvent(
            rank=0,
            node=0,
            stream="comm",
            name="ncclDevKernel_AllReduce_Sum_f32_RING_SIMPLE",
            kind="collective",
            start_s=0.0,
            end_s=30e-6,
            args={"bytes": 1024},
        ),
        TraceEvent(
            rank=0,
            node=0,
            stream="comm",
            name="reduce_scatter",
            kind="transfer",
            start_s=0.0,
            end_s=10e-6,
            args={"step": 0, "stage": "reduce_scatter"},
        ),
        TraceEvent(
            rank=0, node=0, stream="comm", name="wait", kind="wait", start_s=10e-6, end_s=30e-6
        ),
        TraceEvent(
            rank=1, node=0, stream="compute", name="layer 0", kind="compute", start_s=0, end_s=2e-5
        ),
    )
    link_trace = (
        LinkEvent(link="gpu0→nvswitch0", kind="nvlink", name="step 0", start_s=0.0, end_s=10e-6),
        LinkEvent(link="gpu0→nvswitch0", kind="nvlink", name="step 1", start_s=5e-6, end_s=15e-6),
    )
    return RunResult(
        title="all_reduce on 4 GPUs",
        rows=(_row(2**20, 40e-6), _row(2**25, 200e-6), _row(2**30, 4.5e-3)),
        provenance=Provenance(
            version="0.1.0", python="3.12.0", numpy="2.0.0", seed=7, scenario={"nodes": 1}
        ),
        links=tuple(links),
        ranks=RankTimes.of(
            call_s=[0.0, 0.0, 1e-3, 0.0],
            end_s=[5e-3, 5e-3, 5e-3, 5.5e-3],
            transfer_s=[3e-3, 3e-3, 3.5e-3, 3e-3],
            wait_s=[2e-3, 2e-3, 0.5e-3, 2.5e-3],
            node=[0, 0, 0, 0],
        ),
        trace=trace,
        link_trace=link_trace,
        vertices=tuple(vertices),
        devices=tuple(
            Device(rank=i, node="node0", local_rank=i, name="NVIDIA H100 80GB HBM3")
            for i in range(4)
        ),
        warnings=("the source of this preset is weak",),
        notes=("level: steps",),
    )
