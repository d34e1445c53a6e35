"""Does a log agree with itself: printed bandwidths, rank count, sizes, averages.

Printed numbers are rounded, so every comparison is one of intervals: a contradiction is reported
only where no value within the rounding fits.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from simulator.base.errors import Problem
from simulator.importers.log_infer import PARTS, Block, factor_ranks, factor_span, problem
from simulator.importers.log_rows import RawHalf, RawRow
from simulator.importers.measured import MeasuredTable, bus_factor, line_ranges

__all__ = ["check_average", "check_bandwidths", "check_rows"]


def _halves(rows: Sequence[RawRow]) -> Iterator[tuple[RawRow, RawHalf]]:
    for row in rows:
        for half in (row.out_of_place, row.in_place):
            if half is not None and math.isfinite(half.time_us) and half.time_us > 0:
                yield row, half


def _algbw_fits(row: RawRow, half: RawHalf, share: float) -> bool:
    if half.algbw is None or not math.isfinite(half.algbw):
        return half.algbw is None
    size = row.size_bytes * share
    low = size / (half.time_us + half.time_resolution) / 1e3
    shortest = half.time_us - half.time_resolution
    high = size / shortest / 1e3 if shortest > 0 else math.inf
    err = half.bandwidth_resolution
    return low * 0.998 - err <= half.algbw <= high * 1.002 + err


def check_bandwidths(
    block: Block,
    rows: Sequence[RawRow],
    collective: str,
    n_ranks: int | None,
    problems: list[Problem],
) -> None:
    """Compare printed algbw with size / time, and printed busbw with algbw × factor."""
    wrong = sorted({row.line for row, half in _halves(rows) if not _algbw_fits(row, half, 1.0)})
    old = False
    if wrong and collective in PARTS and n_ranks is not None:
        share = (n_ranks - 1) / n_ranks
        old = all(_algbw_fits(row, half, share) for row, half in _halves(rows))
    if collective == "hypercube" and wrong:
        return  # Its algbw counts one part less than its size [1].
    if old:
        problems.append(
            problem(
                block,
                "the printed algbw counts (n − 1) / n of the size, as nccl-tests did at first; "
                "recomputed values follow today's definition",
                line=rows[0].line,
            )
        )
        return
    if wrong:
        problems.append(
            problem(
                block,
                f"{line_ranges(wrong)}: the printed algbw is not size / time; recomputed",
                line=wrong[0],
            )
        )
    _check_factor(block, rows, collective, n_ranks, set(wrong), problems)


def _check_factor(
    block: Block,
    rows: Sequence[RawRow],
    collective: str,
    n_ranks: int | None,
    wrong: set[int],
    problems: list[Problem],
) -> None:
    factor = None if n_ranks is None else bus_factor(collective, n_ranks)
    if factor is None:
        return
    odd: list[int] = []
    odd_rows: list[RawRow] = []
    for row, half in _halves(rows):
        if half.algbw is None or half.busbw is None or row.line in wrong:
            continue
        err = half.bandwidth_resolution * 1.002
        low, high = (half.algbw - err) * factor - err, (half.algbw + err) * factor + err
        if not low <= half.busbw <= high:
            odd.append(row.line)
            odd_rows.append(row)
    if not odd:
        return
    span = factor_ranks(collective, factor_span(odd_rows))
    implied = ""
    if span is not None:
        several = f"{span[0]}" if span[0] == span[1] else f"{span[0]} to {span[1]}"
        implied = f": it implies {several} ranks"
    problems.append(
        problem(
            block,
            f"{line_ranges(odd)}: the printed busbw is not algbw × {factor:.4g} of {collective} "
            f"on {n_ranks} ranks{implied}",
            line=odd[0],
        )
    )


def check_rows(block: Block, rows: Sequence[RawRow], problems: list[Problem]) -> None:
    """Report times that cannot be, wrong results, and sizes beyond the header's limit."""
    bad = sorted(
        {
            row.line
            for row in rows
            for half in (row.out_of_place, row.in_place)
            if half is not None and not (math.isfinite(half.time_us) and half.time_us > 0)
        }
    )
    if bad:
        problems.append(
            problem(
                block,
                f"{line_ranges(bad)}: a time is not greater than zero; that half of the row is "
                "listed but not used",
                line=bad[0],
            )
        )
    faulty = sorted({row.line for row, half in _halves(rows) if half.wrong})
    if faulty:
        problems.append(
            problem(
                block,
                f"{line_ranges(faulty)}: wrong results were counted; the data was damaged, do "
                "not trust the times",
                line=faulty[0],
            )
        )
    most = block.parameters.max_bytes
    if most is not None:
        beyond = [row.line for row in rows if row.size_bytes > most]
        if beyond:
            problems.append(
                problem(
                    block,
                    f"{line_ranges(beyond)}: sizes above the header's maxBytes {most}",
                    line=beyond[0],
                )
            )


def check_average(block: Block, tables: Sequence[MeasuredTable]) -> list[Problem]:
    """Compare the printed average with that of the rows: a difference means lost rows."""
    if block.average is None or block.copies > 1:
        return []
    printed = [
        half.printed_busbw_Bps / 1e9
        for table in tables
        for row in table.rows
        for half in (row.out_of_place, row.in_place)
        if half is not None and half.printed_busbw_Bps is not None
    ]
    if not printed:
        return []
    mean = sum(printed) / len(printed)
    if math.isclose(mean, block.average, rel_tol=1e-4, abs_tol=0.0051):
        return []
    return [
        problem(
            block,
            f"the printed average {block.average:g} GB/s is not that of the rows "
            f"({mean:.6g} GB/s): rows are missing or were edited",
            line=block.rows[-1].line,
        )
    ]
