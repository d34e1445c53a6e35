"""From raw rows to meaning: which collective, how many ranks, how many nodes.

Printed numbers are rounded, so busbw / algbw is an interval of factors, and that an interval of
rank counts.

References
----------
.. [1] nccl-tests, ``GetCollByteCount`` and ``GetBw`` in ``src/<collective>.cu``: size is
   count × element for all_reduce, broadcast, reduce and sendrecv, and n × count × element where
   each rank has a part.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from simulator.base.errors import Problem
from simulator.importers.log_header import COLLECTIVES, Facts
from simulator.importers.log_rows import DTYPES, RawRow
from simulator.importers.measured import Device, RunParameters, implied_ranks

__all__ = [
    "PARTS",
    "Block",
    "alike",
    "collective_of",
    "factor_ranks",
    "factor_span",
    "nodes_of",
    "problem",
    "ranks_of",
]

PARTS = ("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter", "all_to_allv")
"""Collectives whose size is the total over ranks."""
_MAX_RANKS = 1_000_000
_ROOTLESS = ("gather", "scatter")


@dataclass(frozen=True, slots=True)
class Block:
    """One printed table: what the header said and the rows below it."""

    source: str
    shown: str
    facts: Facts
    parameters: RunParameters
    devices: tuple[Device, ...]
    copies: int
    """How many processes printed a header: more than one means separate tests."""
    cpu_time: bool
    average: float | None
    rows: tuple[RawRow, ...]


def problem(block: Block, message: str, *, line: int | None = None) -> Problem:
    """Return a problem at a line of the block's file."""
    return Problem(message=message, file=block.shown, line=line)


def _scale(rows: Sequence[RawRow]) -> float | None:
    """Return size / (count × element): 1, or the number of ranks where each has a part."""
    for row in reversed(rows):
        element = DTYPES.get(row.dtype)
        if element is not None and row.count > 0 and row.size_bytes > 0:
            return row.size_bytes / (row.count * element)
    return None


def _candidates(rows: Sequence[RawRow], factor: tuple[float, float] | None) -> tuple[str, ...]:
    scale = _scale(rows)
    if scale is None:
        return ()
    row = rows[0]
    if scale == 1.0:
        if row.root is not None:
            return ("broadcast",) if row.redop is None else ("reduce",)
        if row.redop is None:
            return ("send_recv", "broadcast")
        # send_recv prints an operation too; its busbw is its algbw.
        plain = factor is not None and factor[0] <= 1.0 <= factor[1]
        return ("send_recv", "all_reduce") if plain else ("all_reduce",)
    if row.root is not None:
        return ("gather", "scatter", "broadcast", "reduce")
    if row.redop is not None:
        return ("reduce_scatter",)
    return ("all_gather", "all_to_all", "all_to_allv", "hypercube")


def alike(rows: Sequence[RawRow], collective: str) -> tuple[str, ...]:
    """Return other collectives that the columns of a table fit as well."""
    found = _candidates(rows, factor_span(rows))
    found += _ROOTLESS if "all_gather" in found else ()
    return tuple(name for name in found if name != collective)


def collective_of(block: Block, rows: Sequence[RawRow], problems: list[Problem]) -> tuple[str, str]:
    """Return (collective, what told): a name where the columns allow it, else the columns."""
    line = rows[0].line
    candidates = _candidates(rows, factor_span(rows))
    named, told = block.facts.collective, block.facts.collective_from
    if not named:
        folded = block.source.lower().replace("-", "_")
        for word in sorted(COLLECTIVES, key=len, reverse=True):
            if word in folded:
                named, told = COLLECTIVES[word], "file name"
                break
    # On one rank the parts are the whole: a name of any origin is believed.
    ambiguous = _scale(rows) == 1.0 and named in PARTS and _known_ranks(block) == 1
    # Tables without a root column have gather and scatter like all_gather.
    ambiguous |= named in _ROOTLESS and "all_gather" in candidates
    if named and (not candidates or named in candidates or told == "banner" or ambiguous):
        if candidates and named not in candidates and not ambiguous:
            problems.append(
                problem(
                    block,
                    f"the log says {named}, but its columns fit {' or '.join(candidates)}",
                    line=line,
                )
            )
        return named, told
    if not candidates:
        problems.append(
            problem(block, "nothing tells which collective this table is of", line=line)
        )
        return "unknown", ""
    if named:
        problems.append(
            problem(
                block,
                f"the {told} says {named}, but the columns fit {' or '.join(candidates)}; "
                f"taken as {candidates[0]}",
                line=line,
            )
        )
    elif len(candidates) > 1 and candidates[0] not in ("send_recv",):
        problems.append(
            problem(
                block,
                f"the columns fit {' and '.join(candidates)} alike and no program name is in the "
                f"log; taken as {candidates[0]}",
                line=line,
            )
        )
    elif candidates[0] == "send_recv":
        problems.append(
            problem(
                block,
                "busbw equals algbw: send_recv, or all_reduce on two ranks; taken as "
                + ("all_reduce" if _known_ranks(block) in (None, 2) else "send_recv"),
                line=line,
            )
        )
        if _known_ranks(block) in (None, 2):
            return "all_reduce", "columns"
    return candidates[0], "columns"


def _known_ranks(block: Block) -> int | None:
    if block.devices:
        groups = {device.group for device in block.devices}
        if len(groups) > 1:
            return sum(device.group == min(groups) for device in block.devices)
        return max(device.rank for device in block.devices) + 1
    return None


def factor_span(rows: Sequence[RawRow]) -> tuple[float, float] | None:
    """Return the interval of busbw / algbw that most rows allow, None when none is printed."""
    spans = []
    for row in rows:
        for half in (row.out_of_place, row.in_place):
            if half is None or not half.algbw or half.busbw is None:
                continue
            err = half.bandwidth_resolution * 1.001
            if half.algbw > 2 * err:
                spans.append(
                    (
                        (half.busbw - err) / (half.algbw + err),
                        (half.busbw + err) / (half.algbw - err),
                    )
                )
    if not spans:
        return None
    # The narrowest interval is the best resolved one: that of the largest bandwidth.
    return min(spans, key=lambda span: span[1] - span[0])


def factor_ranks(collective: str, span: tuple[float, float] | None) -> tuple[int, int] | None:
    """Return the least and greatest rank count that fit a span of busbw / algbw."""
    if span is None:
        return None
    ends = [implied_ranks(collective, min(max(end, 0.0), _top(collective))) for end in span]
    if ends[0] is None or ends[1] is None or not math.isfinite(ends[0]):
        return None
    low = math.ceil(ends[0] - 1e-6)
    high = math.floor(min(ends[1] + 1e-6, _MAX_RANKS))
    return (low, high) if low <= high else None


def _top(collective: str) -> float:
    return 2.0 if collective == "all_reduce" else 1.0


def ranks_of(
    block: Block, rows: Sequence[RawRow], collective: str, problems: list[Problem]
) -> tuple[int | None, str]:
    """Return (rank count, what told); sources that disagree are a problem."""
    line = rows[0].line
    said: list[tuple[int, str]] = []
    devices = _known_ranks(block)
    if devices is not None:
        said.append((devices, "device lines"))
        seen = {device.rank for device in block.devices}
        if len({device.group for device in block.devices}) == 1 and len(seen) < devices:
            problems.append(
                problem(
                    block,
                    f"only {len(seen)} of {devices} device lines are in the log",
                    line=line,
                )
            )
    scale = _scale(rows)
    if collective in PARTS and scale is not None and scale >= 1.0 and scale == int(scale):
        said.append((int(scale), "columns"))
    if block.facts.info_ranks is not None:
        said.append((block.facts.info_ranks, "NCCL INFO"))
    if block.facts.command_ranks is not None:
        said.append((block.facts.command_ranks, "command line"))
    span = factor_ranks(collective, factor_span(rows))
    if not said:
        if span is not None and span[0] == span[1]:
            problems.append(
                problem(
                    block,
                    f"no rank count in the log; busbw / algbw implies {span[0]} ranks",
                    line=line,
                )
            )
            return span[0], "busbw"
        fits = "" if span is None else f"; busbw / algbw implies {span[0]} to {span[1]}"
        problems.append(problem(block, f"no rank count in the log{fits}", line=line))
        return None, ""
    n_ranks, told = said[0]
    for other, by in said[1:]:
        if other != n_ranks:
            problems.append(
                problem(
                    block,
                    f"the {told} say {n_ranks} ranks, the {by} {other}; taken as {n_ranks}",
                    line=line,
                )
            )
    return n_ranks, told


def nodes_of(block: Block, n_ranks: int | None) -> int | None:
    """Guess the number of nodes: hosts; ranks of one host and bus id share a GPU of one node.

    A host's name that repeats all of several devices stands for several nodes: names are cut.
    """
    devices = block.devices
    if n_ranks is not None and len(devices) == n_ranks:
        nodes = 0
        for host in dict.fromkeys(device.host for device in devices):
            places = [(d.device, d.bus_id) for d in devices if d.host == host]
            several = len(set(places)) > 1
            nodes += max(places.count(place) for place in set(places)) if several else 1
        return nodes
    if block.facts.info_nodes is not None:
        return block.facts.info_nodes
    if n_ranks is not None and devices:
        last = max(devices, key=lambda device: device.rank)
        # The last rank of a packed run sits on the last device of its node.
        if last.rank == n_ranks - 1 and n_ranks % (last.device + 1) == 0:
            return n_ranks // (last.device + 1)
    return None
