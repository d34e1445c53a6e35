"""Trace files for Perfetto and chrome://tracing.

Trace Event Format, JSON object form [1]_: complete events (``X``) with ``ts`` and ``dur`` in µs,
one process a node, one thread a GPU stream, and a further process a link kind with its links as
threads.  Times are rounded to whole nanoseconds, so that nesting survives the division.

References
----------
.. [1] "Trace Event Format", Google, 2016, https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
"""

from __future__ import annotations

import gzip
import os
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from simulator.results.files import json_text, plain, write_bytes
from simulator.results.model import LinkEvent, RunResult, TraceEvent

__all__ = ["kernel_name", "trace_mapping", "write_trace"]

_FUNCTIONS = {
    "all_reduce": "AllReduce",
    "all_gather": "AllGather",
    "reduce_scatter": "ReduceScatter",
    "broadcast": "Broadcast",
    "reduce": "Reduce",
}
"""Collectives with a kernel of their own; the others are grouped send and receive."""

_REDUCES = frozenset({"all_reduce", "reduce_scatter", "reduce"})

_TYPES = {
    "float": "f32",
    "float32": "f32",
    "fp32": "f32",
    "half": "f16",
    "float16": "f16",
    "fp16": "f16",
    "bfloat16": "bf16",
    "bf16": "bf16",
    "double": "f64",
    "float64": "f64",
    "f8e4m3": "f8e4m3",
    "f8e5m2": "f8e5m2",
    "int8": "i8",
    "uint8": "u8",
    "int32": "i32",
    "uint32": "u32",
    "int64": "i64",
    "uint64": "u64",
}

_OPERATIONS = {"sum": "Sum", "prod": "Prod", "max": "MinMax", "min": "MinMax"}
"""``avg`` is a scaled sum: PreMulSum on floats (NCCL 2.19 and later, ``src/enqueue.cc``)."""

# Reserved colour names of the trace viewer; waiting is grey, so that the eye skips it.
_COLOURS = {
    "compute": "thread_state_running",
    "collective": "rail_response",
    "transfer": "thread_state_iowait",
    "wait": "grey",
}


def kernel_name(
    collective: str, *, redop: str = "sum", dtype: str = "float", algorithm: str, protocol: str
) -> str:
    """Return the name under which profilers show the call's NCCL kernel.

    NCCL itself launches the LL kernel of a function for all its protocols; here the name tells
    the protocol that is simulated.

    Examples
    --------
    >>> kernel_name("all_reduce", algorithm="ring", protocol="Simple")
    'ncclDevKernel_AllReduce_Sum_f32_RING_SIMPLE'
    >>> kernel_name("all_gather", algorithm="ring", protocol="LL128")
    'ncclDevKernel_AllGather_RING_LL128'
    >>> kernel_name("all_to_all", algorithm="pairwise", protocol="Simple")
    'ncclDevKernel_SendRecv'
    """
    function = _FUNCTIONS.get(collective)
    if function is None:
        return "ncclDevKernel_SendRecv"
    parts = ["ncclDevKernel", function]
    if collective in _REDUCES:
        parts += [_OPERATIONS.get(redop, "PreMulSum"), _TYPES.get(dtype, dtype)]
    return "_".join([*parts, algorithm.upper(), (protocol or "Simple").upper()])


@dataclass(slots=True)
class _Lanes:
    """Places of one row: events in one lane are nested or apart, as the format demands."""

    open_ends: list[list[int]] = field(default_factory=list)
    """Per lane the ends of the events that enclose the present, outermost first."""

    def place(self, start: int, end: int) -> int:
        """Return the first lane in which the event overlaps no other in part."""
        for lane, ends in enumerate(self.open_ends):
            while ends and ends[-1] <= start:
                ends.pop()
            if not ends or end <= ends[-1]:
                ends.append(end)
                return lane
        self.open_ends.append([end])
        return len(self.open_ends) - 1


@dataclass(frozen=True, slots=True)
class _Placed:
    """An interval on its way into the file."""

    process: int
    row: Hashable
    row_name: str
    sort: tuple[Any, ...]
    name: str
    kind: str
    start: int
    end: int
    args: dict[str, Any]


def _nanoseconds(time_s: float) -> int:
    return round(time_s * 1e9)


def _from_ranks(events: Iterable[TraceEvent]) -> list[_Placed]:
    return [
        _Placed(
            process=event.node,
            row=(event.rank, event.stream),
            row_name=f"GPU {event.rank} {event.stream}",
            sort=(event.rank, event.stream),
            name=event.name,
            kind=event.kind,
            start=_nanoseconds(event.start_s),
            end=_nanoseconds(event.end_s),
            args=plain({"rank": event.rank, **event.args}),
        )
        for event in events
    ]


def _from_links(events: Sequence[LinkEvent], first_process: int) -> tuple[list[_Placed], list[str]]:
    kinds = list(dict.fromkeys(event.kind for event in events))
    first_seen = {name: i for i, name in enumerate(dict.fromkeys(e.link for e in events))}
    placed = [
        _Placed(
            process=first_process + kinds.index(event.kind),
            row=event.link,
            row_name=event.link,
            sort=(first_seen[event.link],),
            name=event.name,
            kind="transfer",
            start=_nanoseconds(event.start_s),
            end=_nanoseconds(event.end_s),
            args=plain(event.args),
        )
        for event in events
    ]
    return placed, kinds


def _metadata(pid: int, tid: int | None, what: str, name: str, sort_index: int) -> list[Any]:
    common = {"ph": "M", "pid": pid, "ts": 0} | ({} if tid is None else {"tid": tid})
    return [
        {"name": f"{what}_name", "args": {"name": name}, **common},
        {"name": f"{what}_sort_index", "args": {"sort_index": sort_index}, **common},
    ]


def trace_mapping(result: RunResult) -> dict[str, Any]:
    """Return the trace as the mapping that the JSON file holds.

    Events of one stream that overlap in part are put in further rows, named ``… (2)``: the format
    allows only nesting within a row.
    """
    ranks = _from_ranks(result.trace)
    nodes = sorted({event.process for event in ranks})
    first = nodes[-1] + 1 if nodes else 0
    links, kinds = _from_links(result.link_trace, first)
    names = {node: f"node {node}" for node in nodes}
    names |= {first + i: f"{kind} links" for i, kind in enumerate(kinds)}

    events: list[Any] = []
    for position, (pid, name) in enumerate(names.items()):
        events += _metadata(pid, None, "process", name, position)

    placed = sorted(ranks + links, key=lambda e: (e.process, e.sort, e.start, -e.end))
    lanes: dict[Hashable, _Lanes] = {}
    threads: dict[Hashable, int] = {}
    next_tid: dict[int, int] = {}
    for event in placed:
        row = (event.process, event.row)
        lane = lanes.setdefault(row, _Lanes()).place(event.start, event.end)
        thread = (*row, lane)
        if thread not in threads:
            tid = next_tid[event.process] = next_tid.get(event.process, -1) + 1
            threads[thread] = tid
            shown = event.row_name + (f" ({lane + 1})" if lane else "")
            events += _metadata(event.process, tid, "thread", shown, tid)
        events.append(
            {
                "name": event.name,
                "cat": event.kind,
                "ph": "X",
                "ts": event.start / 1e3,
                "dur": (event.end - event.start) / 1e3,
                "pid": event.process,
                "tid": threads[thread],
                "cname": _COLOURS[event.kind],
                "args": event.args,
            }
        )
    return {
        "traceEvents": events,
        "displayTimeUnit": "ns",
        "otherData": {"title": result.title, "producer": f"collsim {result.provenance.version}"},
    }


def write_trace(result: RunResult, path: str | os.PathLike[str]) -> None:
    """Write the trace for Perfetto; compressed when the name ends in ``.gz``.

    Raises
    ------
    CollsimError
        The file cannot be written.
    """
    data = json_text(trace_mapping(result)).encode()
    if os.fspath(path).endswith(".gz"):
        data = gzip.compress(data, compresslevel=5, mtime=0)
    write_bytes(path, data)
