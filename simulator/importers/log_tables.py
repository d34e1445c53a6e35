"""From the raw rows of one printed table to `MeasuredTable` records."""

from __future__ import annotations

import math
from collections.abc import Iterator

from simulator.base.errors import Problem
from simulator.importers.log_checks import check_average, check_bandwidths, check_rows
from simulator.importers.log_infer import (
    Block,
    alike,
    collective_of,
    factor_ranks,
    factor_span,
    nodes_of,
    problem,
    ranks_of,
)
from simulator.importers.log_rows import RawHalf, RawRow
from simulator.importers.measured import MeasuredRow, MeasuredTable, Timing, bus_factor

__all__ = ["Block", "build_tables"]


def build_tables(block: Block) -> tuple[list[MeasuredTable], list[Problem]]:
    """Return the tables of a block and what is odd about it."""
    problems: list[Problem] = []
    tables = [_table(block, rows, problems) for rows in _sweeps(block)]
    if block.copies > 1 and block.rows:
        problems.append(
            problem(
                block,
                f"{block.copies} processes ran a test of their own (rank 0 appears "
                f"{block.copies} times): nccl-tests was probably built without MPI=1, so these "
                "are not the times of one collective over all processes",
                line=block.rows[0].line,
            )
        )
    problems.extend(check_average(block, tables))
    return tables, problems


def _sweeps(block: Block) -> Iterator[tuple[RawRow, ...]]:
    """Cut rows where type, operation or root changes, or the sizes start again."""
    start = 0
    rows = block.rows
    for place in range(1, len(rows) + 1):
        if place < len(rows):
            row, before = rows[place], rows[place - 1]
            same = (row.dtype, row.redop, row.root) == (before.dtype, before.redop, before.root)
            again = row.size_bytes < before.size_bytes and block.copies == 1
            if same and not again:
                continue
        if start < place:
            yield rows[start:place]
        start = place


def _table(block: Block, rows: tuple[RawRow, ...], problems: list[Problem]) -> MeasuredTable:
    collective, collective_from = collective_of(block, rows, problems)
    n_ranks, n_ranks_from = ranks_of(block, rows, collective, problems)
    check_bandwidths(block, rows, collective, n_ranks, problems)
    check_rows(block, rows, problems)
    algorithm, channels = block.facts.schedule or (None, None)
    return MeasuredTable(
        source=block.source,
        collective=collective,
        collective_from=collective_from,
        alike=alike(rows, collective) if collective_from == "columns" else (),
        dtype=rows[0].dtype,
        redop=rows[0].redop,
        root=rows[0].root,
        n_ranks=n_ranks,
        n_ranks_from=n_ranks_from,
        implied_ranks=factor_ranks(collective, factor_span(rows)) if n_ranks is None else None,
        n_nodes=nodes_of(block, n_ranks),
        hosts=tuple(dict.fromkeys(device.host for device in block.devices)),
        gpus=tuple(dict.fromkeys(device.name for device in block.devices if device.name)),
        devices=block.devices,
        nccl_version=block.facts.version,
        tests_version=block.facts.tests_version,
        environment=dict(sorted(block.facts.environment.items())),
        environment_lines=dict(block.facts.environment_lines),
        transports=dict(block.facts.transports),
        messages=tuple(block.facts.messages),
        n_nics=block.facts.n_nics,
        network=block.facts.network.told(),
        library=block.facts.library,
        algorithm=algorithm,
        channels=channels,
        parameters=block.parameters,
        cpu_time=block.cpu_time,
        printed_average_Bps=None if block.average is None else block.average * 1e9,
        rows=tuple(_row(row, collective, n_ranks) for row in rows),
    )


def _row(row: RawRow, collective: str, n_ranks: int | None) -> MeasuredRow:
    return MeasuredRow(
        line=row.line,
        size_bytes=row.size_bytes,
        count=row.count,
        out_of_place=_timing(row.out_of_place, row.size_bytes, collective, n_ranks),
        in_place=_timing(row.in_place, row.size_bytes, collective, n_ranks),
    )


def _timing(
    half: RawHalf | None, size_bytes: int, collective: str, n_ranks: int | None
) -> Timing | None:
    if half is None:
        return None
    usable = math.isfinite(half.time_us) and half.time_us > 0
    algbw = size_bytes / (half.time_us * 1e-6) if usable else None
    factor = None if n_ranks is None else bus_factor(collective, n_ranks)
    spread = half.quantiles_us
    return Timing(
        # Divided, so that 35.2 µs is the float nearest to 0.0000352.
        time_s=half.time_us / 1e6,
        algbw_Bps=algbw,
        busbw_Bps=None if algbw is None or factor is None else algbw * factor,
        printed_algbw_Bps=None if half.algbw is None else half.algbw * 1e9,
        printed_busbw_Bps=None if half.busbw is None else half.busbw * 1e9,
        wrong=half.wrong,
        max_error=half.max_error,
        quantiles_s=None if spread is None else (spread[0] / 1e6, spread[1] / 1e6, spread[2] / 1e6),
    )
