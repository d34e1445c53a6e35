"""The table of nccl-tests, character by character, so that existing parsers read predictions.

Layout of nccl-tests 2.13 to 2.17 (``src/common.cu``: PrintHeader lines and BenchTime): columns
size(12) count(12) type(8) redop(6) root(6), then time(7) algbw(6) busbw(6) #wrong(5) for
out-of-place and in-place; time in µs as %7.2f below 100, %7.1f below 10,000, else %7.0f;
bandwidths %6.2f in 10⁹ bytes/s.  Sizes 2.17 and later name the test in the first comment.

What is predicted is the out-of-place call; the in-place half repeats it.  Schedules are proved
on integers apart from this table, hence 0 in ``#wrong``; ``checked=False`` prints ``N/A`` as
``-c 0`` does.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby, pairwise

from simulator.results.model import Device, Row, RunResult

__all__ = ["TEST_NAMES", "nccl_tests_table"]

TEST_NAMES = {
    "all_reduce": "all_reduce_perf",
    "all_gather": "all_gather_perf",
    "reduce_scatter": "reduce_scatter_perf",
    "broadcast": "broadcast_perf",
    "reduce": "reduce_perf",
    "all_to_all": "alltoall_perf",
    "all_to_allv": "alltoallv_perf",
    "gather": "gather_perf",
    "scatter": "scatter_perf",
    "send_recv": "sendrecv_perf",
}
"""Names of nccl-tests' programs; a collective without one (barrier) keeps its own name."""

# These set reportErrors to 0 for in-place calls (src/alltoall.cu, src/sendrecv.cu).
_NO_IN_PLACE = frozenset({"all_to_all", "all_to_allv", "send_recv"})

_TITLE = (
    "#\n"
    "#                                                              out-of-place"
    "                       in-place          \n"
    "#       size         count      type   redop    root     time   algbw   busbw #wrong"
    "     time   algbw   busbw #wrong\n"
    "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)       "
    "     (us)  (GB/s)  (GB/s)       \n"
)


def _time(time_s: float) -> str:
    micros = time_s * 1e6
    if micros >= 10000.0:
        return f"{micros:7.0f}"
    return f"{micros:7.1f}" if micros >= 100.0 else f"{micros:7.2f}"


def _half(row: Row, wrong: str) -> str:
    bandwidths = f"{row.algbw_Bps / 1e9:6.2f}  {row.busbw_Bps / 1e9:6.2f}"
    return f"  {_time(row.time_s):>7}  {bandwidths}  {wrong:>5}"


def _line(row: Row, checked: bool) -> str:
    out_of_place = "0" if checked else "N/A"
    in_place = "N/A" if row.collective in _NO_IN_PLACE else out_of_place
    head = f"{row.size_bytes:12d}  {row.count:12d}  {row.dtype:>8}  {row.redop:>6}  {row.root:6d}"
    return head + _half(row, out_of_place) + _half(row, in_place)


def _step(rows: Sequence[Row]) -> str:
    """Return the step as nccl-tests writes it: a factor, or bytes where differences are equal."""
    sizes = sorted({row.size_bytes for row in rows})
    if len(sizes) > 2 and len({b - a for a, b in pairwise(sizes)}) == 1:
        return f"{sizes[1] - sizes[0]}(bytes)"
    factor = round(sizes[1] / sizes[0]) if len(sizes) > 1 and sizes[0] else 2
    return f"{factor}(factor)"


def _device(device: Device) -> str:
    return (
        f"#  Rank {device.rank:2d} Group  0 Pid      0 on {device.node:>10} "
        f"device {device.local_rank:2d} [0000:00:00] {device.name}"
    )


def _table(rows: Sequence[Row], devices: Iterable[Device], remark: str, checked: bool) -> str:
    test = TEST_NAMES.get(rows[0].collective, rows[0].collective)
    sizes = [row.size_bytes for row in rows]
    busbw = [row.busbw_Bps / 1e9 for row in rows]
    lines = [
        f"# Collective test starting: {test}",
        f"# {remark}",
        f"# nThread 1 nGpus 1 minBytes {min(sizes)} maxBytes {max(sizes)} step: {_step(rows)} "
        f"warmup iters: 0 iters: 1 agg iters: 1 validation: {int(checked)} graph: 0",
        "#",
        "# Using devices",
        *map(_device, devices),
    ]
    footer = [
        "# Out of bounds values : 0 OK",
        # Both halves are equal, so the mean over both is the mean over one.
        f"# Avg bus bandwidth    : {sum(busbw) / len(busbw):g} ",
        "#",
        f"# Collective test concluded: {test}",
    ]
    body = [_line(row, checked) for row in rows]
    return "\n".join(lines) + "\n" + _TITLE + "\n".join([*body, *footer]) + "\n"


def nccl_tests_table(result: RunResult, *, checked: bool = True) -> str:
    """Return the rows as nccl-tests prints them, one table per collective and variant.

    Parameters
    ----------
    result
        Its ``rows`` give the body, its ``devices`` the rank lines.
    checked
        False prints ``N/A`` in ``#wrong``, as nccl-tests does with ``-c 0``.
    """
    version = result.provenance.version
    library = str(result.provenance.scenario.get("costs", {}).get("profile", "nccl"))
    by = "" if library == "nccl" else f" with costs of {library.rpartition('/')[2]}"

    def kind(row: Row) -> tuple[str, str]:
        return row.collective, row.variant

    tables: list[str] = []
    for (_, variant), group in groupby(result.rows, key=kind):
        remark = f"predicted by collsim {version}{'' if variant else by}, not measured" + (
            f"; variant: {variant}" if variant else ""
        )
        tables.append(_table(tuple(group), result.devices, remark, checked))
    return "\n".join(tables)
