from __future__ import annotations

import dataclasses
import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.results import LinkEvent, Provenance, RunResult, TraceEvent, kernel_name, write_trace
from simulator.results.trace import trace_mapping


def validate(mapping: dict[str, Any]) -> list[dict[str, Any]]:
    """Check a trace against the Trace Event Format and return its X events.

    Independent of the writer: object form, allowed phases, required keys, durations ≥ 0, every
    thread and process named, and per thread events nested or apart (in whole nanoseconds).
    """
    assert mapping["displayTimeUnit"] in ("ms", "ns")
    named: set[tuple[str, int, int | None]] = set()
    per_thread: dict[tuple[int, int], list[tuple[int, int]]] = {}
    complete = []
    for event in mapping["traceEvents"]:
        assert event["ph"] in ("X", "M")
        assert isinstance(event["name"], str)
        assert isinstance(event["pid"], int)
        if event["ph"] == "M":
            allowed = ("process_name", "process_sort_index", "thread_name", "thread_sort_index")
            assert event["name"] in allowed
            if event["name"].endswith("_name"):
                assert event["args"]["name"]
                named.add((event["name"], event["pid"], event.get("tid")))
            continue
        assert {"ts", "dur", "tid", "cat", "args"} <= event.keys()
        assert event["dur"] >= 0
        assert ("process_name", event["pid"], None) in named
        assert ("thread_name", event["pid"], event["tid"]) in named
        start = round(event["ts"] * 1000)
        end = start + round(event["dur"] * 1000)
        per_thread.setdefault((event["pid"], event["tid"]), []).append((start, end))
        complete.append(event)
    for spans in per_thread.values():
        for i, (start, end) in enumerate(spans):
            for other_start, other_end in spans[i + 1 :]:
                apart = other_end <= start or end <= other_start
                inside = start <= other_start and other_end <= end
                outside = other_start <= start and end <= other_end
                assert apart or inside or outside
    return complete


def test_the_trace_is_valid_and_complete(result: RunResult) -> None:
    events = validate(json.loads(json.dumps(trace_mapping(result))))
    assert len(events) == len(result.trace) + len(result.link_trace) == 6


def test_times_are_microseconds(result: RunResult) -> None:
    wait = next(e for e in trace_mapping(result)["traceEvents"] if e.get("cat") == "wait")
    assert (wait["ts"], wait["dur"]) == (10.0, 20.0)


def test_waiting_is_apart_from_transfer_in_name_category_and_colour(result: RunResult) -> None:
    events = [e for e in trace_mapping(result)["traceEvents"] if e["ph"] == "X"]
    wait = next(e for e in events if e["cat"] == "wait")
    transfer = next(e for e in events if e["cat"] == "transfer")
    assert wait["name"] != transfer["name"]
    assert wait["cname"] != transfer["cname"]


def test_one_process_a_node_and_one_row_a_stream_and_link(result: RunResult) -> None:
    metadata = [e for e in trace_mapping(result)["traceEvents"] if e["ph"] == "M"]
    processes = [e["args"]["name"] for e in metadata if e["name"] == "process_name"]
    rows = [e["args"]["name"] for e in metadata if e["name"] == "thread_name"]
    assert processes == ["node 0", "nvlink links"]
    # The two messages on the link overlap in part, so the second gets a row of its own.
    assert rows == ["GPU 0 comm", "GPU 1 compute", "gpu0→nvswitch0", "gpu0→nvswitch0 (2)"]


def test_args_and_kernel_names_are_kept(result: RunResult) -> None:
    events = [e for e in trace_mapping(result)["traceEvents"] if e["ph"] == "X"]
    kernel = next(e for e in events if e["cat"] == "collective")
    assert kernel["name"] == "ncclDevKernel_AllReduce_Sum_f32_RING_SIMPLE"
    assert kernel["args"] == {"rank": 0, "bytes": 1024}


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (("all_reduce", "sum", "bfloat16", "tree", "LL"), "AllReduce_Sum_bf16_TREE_LL"),
        (("all_reduce", "avg", "half", "nvls", "Simple"), "AllReduce_PreMulSum_f16_NVLS_SIMPLE"),
        (("reduce_scatter", "max", "int8", "ring", "LL128"), "ReduceScatter_MinMax_i8_RING_LL128"),
        (("broadcast", "none", "uint8", "ring", "LL"), "Broadcast_RING_LL"),
        (("send_recv", "none", "float", "direct", "Simple"), "SendRecv"),
        (("gather", "none", "float", "direct", "Simple"), "SendRecv"),
    ],
)
def test_kernels_are_named_as_in_nccl(call: tuple[str, str, str, str, str], name: str) -> None:
    collective, redop, dtype, algorithm, protocol = call
    found = kernel_name(
        collective, redop=redop, dtype=dtype, algorithm=algorithm, protocol=protocol
    )
    assert found == f"ncclDevKernel_{name}"


def test_gz_names_are_compressed_and_reproducible(result: RunResult, tmp_path: Path) -> None:
    write_trace(result, tmp_path / "a.json")
    write_trace(result, tmp_path / "a.json.gz")
    write_trace(result, tmp_path / "b.json.gz")
    plain = (tmp_path / "a.json").read_bytes()
    assert gzip.decompress((tmp_path / "a.json.gz").read_bytes()) == plain
    packed = (tmp_path / "a.json.gz").read_bytes()
    assert packed == (tmp_path / "b.json.gz").read_bytes()
    # RFC 1952: bytes 4 to 7 are the time of writing, which must not be told.
    assert packed[4:8] == b"\0\0\0\0"
    validate(json.loads(plain))


spans = st.tuples(st.integers(0, 60), st.integers(0, 30))


@given(st.lists(spans, min_size=1, max_size=30), st.sampled_from([1e-9, 1e-7, 3.3e-10]))
def test_any_overlap_becomes_valid_rows(intervals: list[tuple[int, int]], unit: float) -> None:
    trace = tuple(
        TraceEvent(
            rank=0,
            node=0,
            stream="comm",
            name="x",
            kind="transfer",
            start_s=start * unit,
            end_s=(start + length) * unit,
        )
        for start, length in intervals
    )
    links = tuple(
        LinkEvent(link="a→b", kind="pcie", name="m", start_s=e.start_s, end_s=e.end_s)
        for e in trace
    )
    made = RunResult(
        title="t", rows=(), provenance=Provenance(version="0"), trace=trace, link_trace=links
    )
    assert len(validate(trace_mapping(made))) == 2 * len(intervals)


def test_a_result_without_trace_gives_an_empty_valid_trace(result: RunResult) -> None:
    empty = dataclasses.replace(result, trace=(), link_trace=())
    assert validate(trace_mapping(empty)) == []
