"""The measuring loop of one rank, inside an initialised process group.

nccl-tests' method (``src/common.cu``, TimeTest and BenchTime): at every size, out-of-place and
in-place apart: check one call, warm up, wait, barrier, start the clock, enqueue the iterations
back to back, wait, stop the clock; the reported time is the average over ranks.  Successive
iterations use successive parts of a larger buffer where it has room, so that caches do not hold
small data.  What differs: calls are made by torch from Python, whose cost per call (some 10 µs)
shows as the floor at small sizes; with gloo a call returns when it is done, so nothing overlaps.
"""

from __future__ import annotations

import hashlib
import re
import socket
import statistics
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

from simulator.base.units import format_size
from simulator.collectives import Call, Layout
from simulator.collectives.names import busbw_factor, dtype_bytes
from validation.harness import environment, micro
from validation.harness.operations import (
    IN_PLACE,
    OUT_OF_PLACE,
    PARTS,
    Group,
    Prepared,
    count_of,
    prepare,
    span_of,
)
from validation.harness.options import (
    LIBRARY,
    HalfResult,
    Measurement,
    MeasureOptions,
    SweepRow,
    SweepTable,
    sizes_of,
)
from validation.harness.pattern import FOREIGN, Pattern
from validation.harness.scheduled import compile_rank, make, prepare_schedule

__all__ = ["measure_in_group", "torch_dtype"]

_MAX_SPREAD_BYTES = 1 << 28
"""Room for successive iterations at small sizes: 256 MiB, beyond every GPU's cache."""
_CPU_SPREAD_BYTES = 1 << 24
LEAST_REPEATED = 5
"""Repetitions from which on their spread is told."""


def torch_dtype(name: str) -> Any:
    """Return torch's element type by nccl-tests' name."""
    import torch

    return {"half": torch.float16, "float": torch.float32, "double": torch.float64}.get(
        name
    ) or getattr(torch, name)


def measure_in_group(options: MeasureOptions, group: Group) -> Measurement:
    """Run everything that *options* ask for; every rank returns the same tables."""
    notes = [] if group.device.type == "cuda" else environment.busy()
    nodes, devices = _where(group)
    if group.device.type != "cuda":
        notes += environment.crowded(max(nodes.count(node) for node in nodes))
    tables: list[SweepTable] = []
    for name in options.collectives:
        for algorithm in options.algorithms:
            try:
                tables.append(_sweep(name, algorithm, options, group, nodes, notes))
            except _UnavailableError as error:
                notes.append(f"{name}, {options.dtype}: not with {group.backend} here: {error}")
    rows: tuple[Any, ...] = ()
    if options.matmul or options.copy:
        # One device alone: neighbours would share memory and power with it.
        _barrier(group)
        if group.rank == 0:
            rows, remarks = micro.run(options, group)
            notes += remarks
        _barrier(group)
    return Measurement(
        backend=group.backend,
        n_ranks=group.n_ranks,
        n_nodes=max(nodes) + 1,
        options=options,
        environment=environment.describe(group, nodes, devices),
        tables=tuple(tables),
        micro=rows,
        notes=tuple(dict.fromkeys(notes)),
    )


def _where(group: Group) -> tuple[list[int], list[str]]:
    """Return the node number and device name of every rank; host names stay in the process."""
    import torch.distributed as dist

    host = hashlib.sha256(socket.gethostname().encode()).hexdigest()
    own = (host, environment.device_name(group.device))
    everyone: list[Any] = [None] * group.n_ranks
    dist.all_gather_object(everyone, own)
    order = list(dict.fromkeys(host for host, _ in everyone))
    return [order.index(host) for host, _ in everyone], [name for _, name in everyone]


def _sweep(
    collective: str,
    algorithm: str,
    options: MeasureOptions,
    group: Group,
    nodes: list[int],
    notes: list[str],
) -> SweepTable:
    import torch

    element = dtype_bytes(options.dtype)
    reduces = collective in ("all_reduce", "reduce", "reduce_scatter")
    rooted = collective in ("broadcast", "reduce", "gather", "scatter")
    sizes = [0] if collective == "barrier" else sizes_of(options)
    counts = [count_of(collective, size, group.n_ranks, element) for size in sizes]
    small = [size for size, count in zip(sizes, counts, strict=True) if count == 0 < size]
    if small:
        notes.append(f"{collective}: {len(small)} sizes below one element per rank were left out")
    rows = []
    library = algorithm == LIBRARY
    if library:
        length = max(span_of(collective, max(counts), group.n_ranks), _spread(group, element), 1)
        buffer = torch.zeros(length, dtype=torch_dtype(options.dtype), device=group.device)
    for size, count in zip(sizes, counts, strict=True):
        if count == 0 < size:
            continue
        if library:
            halves = _library(collective, options, group, buffer, count)
        else:
            halves = _schedule(collective, algorithm, options, group, nodes, count * element)
        moved = count * element * (group.n_ranks if collective in PARTS else 1)
        results = [
            None if half is None else _result(collective, moved, half, options, group)
            for half in halves
        ]
        rows.append(
            SweepRow(size_bytes=moved, count=count, out_of_place=results[0], in_place=results[1])
        )
    notes += _repetitions(collective, rows)
    return SweepTable(
        collective=collective,
        algorithm=algorithm,
        channels=0 if library else options.channels,
        dtype=options.dtype,
        redop=options.redop if reduces else None,
        root=options.root if rooted else None,
        rows=tuple(rows),
    )


def _repetitions(collective: str, rows: list[SweepRow]) -> list[str]:
    """Return a note on how far the repetitions of a size lie apart; none where not timed alone."""
    factors = [
        (half.high_s / half.low_s, row.size_bytes)
        for row in rows
        for half in (row.out_of_place, row.in_place)
        if half is not None and half.low_s and half.high_s
    ]
    if not factors:
        return []
    worst, size = max(factors)
    middle = statistics.median(factor for factor, _ in factors)
    return [
        f"{collective}: four in five repetitions of a size lie within a factor of {middle:.2f} "
        f"(median of the sizes), at worst {worst:.2f} at {format_size(size)}"
    ]


def _spread(group: Group, element: int) -> int:
    limit = _CPU_SPREAD_BYTES if group.device.type == "cpu" else _MAX_SPREAD_BYTES
    return limit // element


_Half = tuple[float, int | None, tuple[float, float] | None]
"""Seconds per call, wrong elements, and within what four in five repetitions lay."""


def _library(
    collective: str, options: MeasureOptions, group: Group, buffer: Any, count: int
) -> tuple[_Half | None, _Half | None]:
    """Measure torch's own call; returns (out-of-place, in-place)."""
    halves: list[_Half | None] = []
    for in_place, kinds in ((False, OUT_OF_PLACE), (True, IN_PLACE)):
        if collective not in kinds:
            halves.append(None)
            continue
        span = max(span_of(collective, count, group.n_ranks), 1)
        places = min(options.iterations, max(buffer.numel() // span, 1))
        calls = [
            prepare(
                collective,
                group,
                buffer[place * span :],
                count,
                root=options.root,
                redop=options.redop,
                in_place=in_place,
            )
            for place in range(places)
        ]
        halves.append(_measure(calls, buffer, options, group))
    return halves[0], halves[1]


def _schedule(
    collective: str,
    algorithm: str,
    options: MeasureOptions,
    group: Group,
    nodes: list[int],
    part_bytes: int,
) -> tuple[_Half | None, _Half | None]:
    """Measure a schedule by send and receive; it works in place where the data allow it."""
    import numpy as np
    import torch

    n = group.n_ranks
    per_node = options.ranks_per_node
    places = [rank // per_node for rank in range(n)] if per_node else sorted(nodes)
    call = Call(
        collective=collective,
        world_size=n,
        size_bytes=part_bytes * (n if collective in PARTS else 1),
        root=options.root,
        element_bytes=dtype_bytes(options.dtype),
    )
    layout = Layout(
        world_size=n, nodes=np.array(places, dtype=np.int64), n_channels=options.channels
    )
    program = compile_rank(make(collective, algorithm, call, layout), call, group.rank)
    buffer = torch.zeros(
        max(program.n_elements, 1), dtype=torch_dtype(options.dtype), device=group.device
    )
    prepared = prepare_schedule(program, group, buffer, redop=options.redop)
    half = _measure([prepared], buffer, options, group)
    return (None, half) if collective in IN_PLACE else (half, None)


def _measure(calls: list[Prepared], buffer: Any, options: MeasureOptions, group: Group) -> _Half:
    """Return the time of a call on this rank, wrong elements over all ranks, the repetitions."""
    _first_call(calls[0], group)
    wrong = _check(calls[0], options, group) if options.check else None
    # Zeros stay zeros however often they are added: no overflow, no denormal numbers.
    buffer.zero_()
    for index in range(options.warmup):
        calls[index % len(calls)].call()
    _wait(group)
    _barrier(group)
    run: list[Callable[[], None]] = [
        calls[index % len(calls)].call for index in range(options.iterations)
    ]
    replays = 1
    if options.graph:
        run, replays = [_captured(run, group)] * options.graph, options.graph
    stamps = [time.perf_counter()]
    for call in run:
        call()
        stamps.append(time.perf_counter())
    _wait(group)
    each_s = (time.perf_counter() - stamps[0]) / (options.iterations * replays)
    # On the CPU a call returns when it is done; a GPU has only been told to begin.
    alike = len(run) >= LEAST_REPEATED and group.device.type == "cpu"
    return each_s, wrong, _within(stamps) if alike else None


def _within(stamps: list[float]) -> tuple[float, float]:
    """Return the times that a tenth of the repetitions are below, and above."""
    times = sorted(after - before for before, after in pairwise(stamps))
    skipped = len(times) // 10
    return times[skipped], times[-1 - skipped]


class _UnavailableError(Exception):
    """The library has no such call for this type of element; all ranks meet it alike."""


_UNAVAILABLE = re.compile(
    r"not (?:currently )?(?:supported|implemented)|[Uu]nsupported|[Ii]nvalid scalar type"
    r"|does not support|not available|Unhandled|cannot be used with"
)


def _first_call(prepared: Prepared, group: Group) -> None:
    """Make one call, which also sets up connections, and tell what the library cannot do.

    Raises
    ------
    _UnavailableError
        Refused by its arguments, before anything was sent.
    """
    try:
        prepared.call()
        _wait(group)
    except (RuntimeError, ValueError, TypeError, NotImplementedError) as error:
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        if isinstance(error, NotImplementedError) or _UNAVAILABLE.search(first):
            raise _UnavailableError(first[:120]) from None
        raise


def _captured(run: list[Callable[[], None]], group: Group) -> Callable[[], None]:
    """Return the replay of a CUDA graph of calls, after one replay.

    The watchdog thread of torch's NCCL group asks CUDA too, so only this thread is watched while
    the graph is captured.
    """
    import torch

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        for call in run:
            call()
    graph.replay()
    _wait(group)
    _barrier(group)

    def replay() -> None:
        graph.replay()

    return replay


def _check(prepared: Prepared, options: MeasureOptions, group: Group) -> int:
    pattern = Pattern(group.n_ranks, options.dtype, options.redop)
    for view in prepared.scratch:
        view.fill_(FOREIGN)
    for view, rank, start in prepared.fills:
        pattern.fill(view, rank, start)
    _wait(group)
    prepared.call()
    _wait(group)
    found = sum(pattern.wrong(view, rank, start) for view, rank, start in prepared.results)
    return int(_over_ranks(float(found), group)[0])


def _result(
    collective: str, size: int, half: _Half, options: MeasureOptions, group: Group
) -> HalfResult:
    own, wrong, within = half
    total, least, most = _over_ranks(own, group)
    time_s = {"average": total / group.n_ranks, "min": least, "max": most}[options.over_ranks]
    algbw = size / time_s
    return HalfResult(
        time_s=time_s,
        min_s=least,
        max_s=most,
        algbw_Bps=algbw,
        busbw_Bps=algbw * busbw_factor(collective, group.n_ranks),
        wrong=wrong,
        low_s=None if within is None else within[0],
        high_s=None if within is None else within[1],
    )


def _over_ranks(value: float, group: Group) -> tuple[float, float, float]:
    """Return sum, least and greatest of a number over ranks."""
    import torch
    import torch.distributed as dist

    found = []
    for op in (dist.ReduceOp.SUM, dist.ReduceOp.MIN, dist.ReduceOp.MAX):
        cell = torch.tensor([value], dtype=torch.float64, device=group.device)
        dist.all_reduce(cell, op=op)
        found.append(float(cell.item()))
    return found[0], found[1], found[2]


def _wait(group: Group) -> None:
    """Wait until this rank's device has done what was enqueued."""
    if group.device.type == "cuda":
        import torch

        torch.cuda.synchronize(group.device)


def _barrier(group: Group) -> None:
    import torch.distributed as dist

    if group.device.type == "cuda":
        dist.barrier(device_ids=[group.device.index])
        _wait(group)
    else:
        dist.barrier()
