"""Microbenchmarks of one device: matrix products, copies, additions, launches.

They give the compute model its constants: FLOP/s over shape, memory bandwidth over size, and what
one launch costs.  Each is called back to back until the clock resolves it, nine times; the median
counts, and the quartiles tell how far it can be trusted.
"""

from __future__ import annotations

import functools
import math
import statistics
import time
from collections.abc import Callable
from typing import Any

from validation.harness.operations import Group
from validation.harness.options import MeasureOptions, MicroRow, sizes_of

__all__ = ["doubts", "run"]

_SQUARE = (256, 512, 1024, 2048, 4096, 8192)
# Tokens × hidden × 4 hidden of common transformer layers.
_LAYERS = ((2048, 4096, 4096), (2048, 16384, 4096), (4096, 8192, 8192), (4096, 28672, 8192))
_CPU_FLOPS = 2.0 * 1024**3
"""Largest product on a CPU: one of 1,024 cubed takes some hundredth of a second per core."""
_LEAST_S = 0.02
_LEAST_GPU_S = 0.05
"""A GPU needs some ten milliseconds to raise its clocks."""
_REPETITIONS = 9
_SHARE = 3
"""A repetition takes the least time over this: nine cost as much as three whole ones."""
_MOST_COPY_BYTES = 1 << 30
_MOST_PINNED_BYTES = 1 << 28


def run(options: MeasureOptions, group: Group) -> tuple[tuple[MicroRow, ...], list[str]]:
    """Return the rows that the options ask for, and notes on how far they can be trusted."""
    rows: list[MicroRow] = []
    if options.matmul:
        rows += _matmul(options, group)
    if options.copy:
        rows += _copies(options, group)
        rows.append(_launch(group))
    return tuple(rows), doubts(rows)


def doubts(rows: list[MicroRow]) -> list[str]:
    """Return notes on the rows whose repetitions lie far apart, or were held up."""
    notes = []
    far = [row for row in rows if row.is_far_apart]
    if far:
        worst = max(far, key=lambda row: (row.high_s or 0.0) / (row.low_s or 1.0))
        low, high = 1e6 * (worst.low_s or 0.0), 1e6 * (worst.high_s or 0.0)
        notes.append(
            f"repetitions of {len(far)} of {len(rows)} microbenchmarks lie far apart, worst "
            f"{_name(worst)}: quartiles {low:.4g} and {high:.4g} us; their medians say little"
        )
    late = [row for row in rows if row.has_waited]
    if late:
        worst = min(late, key=lambda row: row.cpu_share or 0.0)
        notes.append(
            f"{len(late)} of {len(rows)} microbenchmarks waited for a core, worst {_name(worst)}, "
            f"which had one {100 * (worst.cpu_share or 0.0):.0f} % of the time: other work on the "
            "machine? Their times are too long"
        )
    return notes


def _name(row: MicroRow) -> str:
    return f"{row.kind} {'×'.join(map(str, row.shape))}"


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
        timed = _time(functools.partial(torch.matmul, a, b, out=out), group)
        rows.append(_row("matmul", (m, n, k), name, work, timed))
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
            rows.append(_row(kind, (size,), dtype, size, _time(call, group)))
    return rows


def _launch(group: Group) -> MicroRow:
    """Time a kernel that does nothing worth mentioning: the floor of any call."""
    import torch

    cell = torch.zeros(1, device=group.device)
    return _row("launch", (4,), "float", 4, _time(lambda: cell.add_(1.0), group))


def _row(
    kind: str, shape: tuple[int, ...], dtype: str, work: float, timed: tuple[list[float], float]
) -> MicroRow:
    times, cpu_share = timed
    low_s, median_s, high_s = statistics.quantiles(times, n=4, method="inclusive")
    return MicroRow(
        kind=kind,
        shape=shape,
        dtype=dtype,
        time_s=median_s,
        rate=work / median_s,
        low_s=low_s,
        high_s=high_s,
        cpu_share=None if math.isnan(cpu_share) else cpu_share,
    )


def _time(call: Callable[[], Any], group: Group) -> tuple[list[float], float]:
    """Return the seconds of one call, of each repetition, and the processor's share of them."""
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

    on_gpu = group.device.type == "cuda"
    least_s = _LEAST_GPU_S if on_gpu else _LEAST_S
    repeat(2)
    times = 1
    while (spent := repeat(times)) < least_s and times < 1 << 16:
        times = max(2 * times, int(1.2 * times * least_s / max(spent, 1e-9)))
    times = max(1, times // _SHARE)
    before_s = time.process_time()
    spans = [repeat(times) for _ in range(_REPETITIONS)]
    share = math.nan if on_gpu else (time.process_time() - before_s) / sum(spans)
    return [span / times for span in spans], share
