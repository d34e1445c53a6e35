"""Microbenchmarks of one device: matrix products, copies, additions, launches.

They give the compute model its constants: FLOP/s over shape, memory bandwidth over size, and what
one launch costs.  Each is called back to back until the clock resolves it, three times; the
median counts.
"""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable
from typing import Any

from validation.harness.operations import Group
from validation.harness.options import MeasureOptions, MicroRow, sizes_of

__all__ = ["run"]

_SQUARE = (256, 512, 1024, 2048, 4096, 8192)
# Tokens × hidden × 4 hidden of common transformer layers.
_LAYERS = ((2048, 4096, 4096), (2048, 16384, 4096), (4096, 8192, 8192), (4096, 28672, 8192))
_CPU_FLOPS = 2.0 * 1024**3
"""Largest product on a CPU: one of 1,024 cubed takes some hundredth of a second per core."""
_LEAST_S = 0.02
_LEAST_GPU_S = 0.05
"""A GPU needs some ten milliseconds to raise its clocks."""
_MOST_COPY_BYTES = 1 << 30
_MOST_PINNED_BYTES = 1 << 28


def run(options: MeasureOptions, group: Group) -> tuple[MicroRow, ...]:
    """Return the rows that the options ask for."""
    rows: list[MicroRow] = []
    if options.matmul:
        rows += _matmul(options, group)
    if options.copy:
        rows += _copies(options, group)
        rows.append(_launch(group))
    return tuple(rows)


def _matmul(options: MeasureOptions, group: Group) -> list[MicroRow]:
    import torch

    from validation.harness.worker import torch_dtype

    dtype = torch_dtype(options.dtype)
    if not dtype.is_floating_point:
        dtype = torch.float32
    name = str(dtype).removeprefix("torch.")
    rows = []
    for m, n, k in (*((s, s, s) for s in _SQUARE), *_LAYERS):
        work = 2.0 * m * n * k
        if group.device.type == "cpu" and work > _CPU_FLOPS:
            continue
        a = torch.randn(m, k, device=group.device).to(dtype)
        b = torch.randn(k, n, device=group.device).to(dtype)
        out = torch.empty(m, n, dtype=dtype, device=group.device)
        seconds = _time(functools.partial(torch.matmul, a, b, out=out), group)
        rows.append(
            MicroRow(
                kind="matmul", shape=(m, n, k), dtype=name, time_s=seconds, rate=work / seconds
            )
        )
    return rows


def _copies(options: MeasureOptions, group: Group) -> list[MicroRow]:
    import torch

    rows = []
    cuda = group.device.type == "cuda"
    for size in sizes_of(options):
        if size > _MOST_COPY_BYTES:
            break
        one = torch.zeros(size, dtype=torch.uint8, device=group.device)
        other = torch.zeros(size, dtype=torch.uint8, device=group.device)
        kinds: list[tuple[str, Callable[[], Any], str]] = [
            ("copy", functools.partial(one.copy_, other), "uint8")
        ]
        if size % 4 == 0:
            x, y = one.view(torch.float32), other.view(torch.float32)
            kinds.append(("add", functools.partial(x.add_, y), "float"))
        if cuda and size <= _MOST_PINNED_BYTES:
            host = torch.zeros(size, dtype=torch.uint8, pin_memory=True)
            kinds += [
                ("host_to_device", functools.partial(one.copy_, host, non_blocking=True), "uint8"),
                ("device_to_host", functools.partial(host.copy_, one, non_blocking=True), "uint8"),
            ]
        for kind, call, dtype in kinds:
            seconds = _time(call, group)
            rows.append(
                MicroRow(kind=kind, shape=(size,), dtype=dtype, time_s=seconds, rate=size / seconds)
            )
    return rows


def _launch(group: Group) -> MicroRow:
    """Time a kernel that does nothing worth mentioning: the floor of any call."""
    import torch

    cell = torch.zeros(1, device=group.device)
    seconds = _time(lambda: cell.add_(1.0), group)
    return MicroRow(kind="launch", shape=(4,), dtype="float", time_s=seconds, rate=4 / seconds)


def _time(call: Callable[[], Any], group: Group) -> float:
    import torch

    def wait() -> None:
        if group.device.type == "cuda":
            torch.cuda.synchronize(group.device)

    def repeat(times: int) -> float:
        wait()
        start = time.perf_counter()
        for _ in range(times):
            call()
        wait()
        return time.perf_counter() - start

    least_s = _LEAST_GPU_S if group.device.type == "cuda" else _LEAST_S
    repeat(2)
    times = 1
    while (spent := repeat(times)) < least_s and times < 1 << 16:
        times = max(2 * times, int(1.2 * times * least_s / max(spent, 1e-9)))
    return statistics.median(repeat(times) / times for _ in range(3))
