"""Print a measurement as nccl-tests does, so that every reader of its logs reads this one.

Layout of nccl-tests 2.13 to 2.17 (``src/common.cu``).  A half that torch cannot do is ``N/A``.
Devices stand on ``node0``, ``node1`` …: host names are never printed.
"""

from __future__ import annotations

from validation.harness.options import (
    LIBRARY,
    HalfResult,
    Measurement,
    MicroRow,
    SweepRow,
    SweepTable,
)

__all__ = ["micro_text", "nccl_tests_text"]

_PROGRAMS = {"all_to_all": "alltoall", "send_recv": "sendrecv"}
_TITLES = (
    "#\n"
    "#                                                              out-of-place"
    "                       in-place          \n"
    "#       size         count      type   redop    root     time   algbw   busbw #wrong"
    "     time   algbw   busbw #wrong\n"
    "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)"
    "            (us)  (GB/s)  (GB/s)       \n"
)


def nccl_tests_text(measurement: Measurement) -> str:
    """Return all tables of a measurement, one after another."""
    return "".join(_table(measurement, table) for table in measurement.tables)


def _table(measurement: Measurement, table: SweepTable) -> str:
    options = measurement.options
    program = f"{_PROGRAMS.get(table.collective, table.collective)}_perf"
    scheduled = table.algorithm != LIBRARY
    by = f", schedule {table.algorithm} × {table.channels}" if scheduled else ""
    step = (
        f"{options.factor}(factor)"
        if options.step_bytes is None
        else f"{options.step_bytes}(bytes)"
    )
    lines = [
        f"# collsim measure: torch {measurement.environment.get('torch', '')}, "
        f"{measurement.backend}{by}\n",
        f"# Collective test starting: {program}\n",
        f"# nThread 1 nGpus 1 minBytes {options.min_bytes} maxBytes {options.max_bytes} "
        f"step: {step} warmup iters: {options.warmup} iters: {options.iterations} agg iters: 1 "
        f"validation: {int(options.check)} graph: {options.graph}\n",
        "#\n# Using devices\n",
    ]
    nodes = measurement.environment.get("nodes", [0] * measurement.n_ranks)
    devices = measurement.environment.get("devices", [""] * measurement.n_ranks)
    for rank in range(measurement.n_ranks):
        local = nodes[:rank].count(nodes[rank])
        lines.append(
            f"#  Rank {rank:2d} Group  0 Pid      0 on {f'node{nodes[rank]}':>10} device "
            f"{local:2d} [0x00] {devices[rank]}\n"
        )
    if "nccl" in measurement.environment:
        lines.append(f"NCCL version {measurement.environment['nccl']}\n")
    lines.append(_TITLES)
    lines.extend(_row(table, row) for row in table.rows)
    lines.append(_footer(table))
    return "".join(lines)


def _row(table: SweepTable, row: SweepRow) -> str:
    redop = table.redop or "none"
    root = -1 if table.root is None else table.root
    head = f"{row.size_bytes:12d}  {row.count:12d}  {table.dtype:>8}  {redop:>6}  {root:6d}"
    return head + _half(row.out_of_place) + _half(row.in_place) + "\n"


def _half(half: HalfResult | None) -> str:
    if half is None:
        return f"  {'N/A':>7}  {'N/A':>6}  {'N/A':>6}  {'N/A':>5}"
    micros = half.time_s * 1e6
    time = f"{micros:7.0f}" if micros >= 1e4 else f"{micros:7.{1 if micros >= 100 else 2}f}"
    wrong = "N/A" if half.wrong is None else str(half.wrong)
    return f"  {time}  {half.algbw_Bps / 1e9:6.2f}  {half.busbw_Bps / 1e9:6.2f}  {wrong:>5}"


def _footer(table: SweepTable) -> str:
    halves = [half for row in table.rows for half in (row.out_of_place, row.in_place) if half]
    wrong = sum(half.wrong or 0 for half in halves)
    mean = sum(half.busbw_Bps for half in halves) / len(halves) / 1e9 if halves else 0.0
    verdict = "OK" if wrong == 0 else "FAILED"
    return f"# Out of bounds values : {wrong} {verdict}\n# Avg bus bandwidth    : {mean:g} \n#\n"


def _quartiles(row: MicroRow) -> str:
    if row.low_s is None or row.high_s is None:
        return ""
    mark = " !" if row.is_far_apart or row.has_waited else ""
    return f"{row.low_s * 1e6:.2f} … {row.high_s * 1e6:.2f}{mark}"


def micro_text(measurement: Measurement) -> str:
    """Return the microbenchmarks as a plain table; empty when there are none."""
    if not measurement.micro:
        return ""
    lines = [f"{'what':<16}{'shape':>24}{'type':>10}{'time':>14}{'quartiles':>24}{'rate':>20}\n"]
    for row in measurement.micro:
        shape = "×".join(map(str, row.shape)) + (" B" if len(row.shape) == 1 else "")
        scale, unit = (1e12, "TFLOP/s") if row.kind == "matmul" else (1e9, "GB/s")
        lines.append(
            f"{row.kind:<16}{shape:>24}{row.dtype:>10}{row.time_s * 1e6:>11.2f} us"
            f"{_quartiles(row):>24}{row.rate / scale:>12.4g} {unit}\n"
        )
    return "".join(lines)
