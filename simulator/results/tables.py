"""Tables of at most 80 columns: summary, parts of the time, comparison, links, ranks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby

from simulator.base.units import format_size, format_time
from simulator.results.layout import Column, Table
from simulator.results.model import LinkLoad, RankTimes, Row, RunResult, StepSummary

__all__ = [
    "comparison_table",
    "link_kind_table",
    "link_table",
    "parts_table",
    "rank_table",
    "step_table",
    "summary_table",
]


_RANGE_REMARK = "±%: 80 % of measurements not fitted lie between time / (1 + ±) and time · (1 + ±)"


_WIRE = "payload, the protocol's flags, and what the link's efficiency takes"


def _bandwidth(rate_Bps: float) -> str:
    """Return GB/s: ``0.041``, ``3.91``, ``38.7``, ``386.6``."""
    value = rate_Bps / 1e9
    if 0 < value < 0.0005:
        return "<0.001"
    return f"{value:.3f}" if value < 1 else f"{value:.1f}" if value >= 99.95 else f"{value:#.3g}"


def _percent(value: float | None) -> str:
    """Return a percentage with one decimal below 10; ``-`` where there is none."""
    if value is None:
        return "-"
    if 0 < value < 0.05:
        return "<0.1"
    return f"{value:.1f}" if value < 10 else f"{value:.0f}"


def _binding(row: Row) -> str:
    return row.binding_link or "latency"


def _range(row: Row) -> str:
    """Return the expected range as a percentage of the time."""
    if row.uncertainty_s is None or row.time_s <= 0:
        return "-"
    return f"{100 * row.uncertainty_s / row.time_s:.0f}"


def _optional_time(time_s: float | None) -> str:
    return "-" if time_s is None else format_time(time_s)


def _differs(rows: Iterable[Row], name: str) -> bool:
    return len({getattr(row, name) for row in rows}) > 1


def summary_table(result: RunResult) -> Table:
    """Return one line a row: size, how, time, busbw, percent of the bound, binding link.

    Warnings and notes are not in it: they go to standard error, or below the table.  The variant
    and the collective are shown where they differ between rows.
    """
    rows = result.rows
    extra = [name for name in ("variant", "collective") if _differs(rows, name)]
    ranged = any(row.uncertainty_s is not None for row in rows)
    columns = [
        *(Column(title=name, right=False, flexible=True, style="bold") for name in extra),
        Column(title="size", style="cyan"),
        Column(title="algorithm", right=False, flexible=True),
        Column(title="proto", right=False),
        Column(title="ch"),
        Column(title="time"),
        *([Column(title="±%", style="dim")] if ranged else []),
        Column(title="busbw", style="bold green"),
        Column(title="%bound", style="yellow"),
        Column(title="binding link", right=False, flexible=True),
    ]
    lines = [
        (
            *(getattr(row, name) or "-" for name in extra),
            format_size(row.size_bytes),
            row.called,
            row.protocol or "-",
            str(row.n_channels),
            format_time(row.time_s),
            *([_range(row)] if ranged else []),
            _bandwidth(row.busbw_Bps),
            _percent(row.percent_of_bound),
            _binding(row),
        )
        for row in rows
    ]
    remarks = ["busbw in GB/s (10^9 bytes/s); %bound: bandwidth lower bound / time"]
    if ranged:
        remarks.append(_RANGE_REMARK)
    remarks += _level_remark(rows)
    return Table(
        columns=tuple(columns), rows=tuple(lines), title=result.title, remarks=tuple(remarks)
    )


def parts_table(result: RunResult) -> Table:
    """Return what each row's time is made of: launch, latency of the steps, moving bytes."""
    extra = ["variant"] if _differs(result.rows, "variant") else []
    columns = [
        *(Column(title=name, right=False, flexible=True, style="bold") for name in extra),
        Column(title="size", style="cyan"),
        Column(title="time", style="bold"),
        Column(title="launch"),
        Column(title="latency"),
        Column(title="bandwidth"),
        Column(title="bound"),
        Column(title="mostly", right=False),
    ]
    lines: list[tuple[str, ...]] = []
    for row in result.rows:
        parts = {
            "launch": row.launch_s,
            "latency": row.latency_s,
            "bandwidth": row.bandwidth_s,
        }
        known = {name: value for name, value in parts.items() if value is not None}
        lines.append(
            (
                *(getattr(row, name) or "-" for name in extra),
                format_size(row.size_bytes),
                format_time(row.time_s),
                *(_optional_time(value) for value in parts.values()),
                _optional_time(row.bound_s),
                max(known, key=lambda name: known[name]) if known else "-",
            )
        )
    return Table(columns=tuple(columns), rows=tuple(lines), title="Parts of the time")


def comparison_table(rows: Sequence[Row], *, title: str = "Comparison") -> Table:
    """Return variants side by side: time, ratio to the first of the same size, what binds.

    Parameters
    ----------
    rows
        In any order; lines are grouped by size, variants keep their order of appearance.
    title
        Heading.
    """
    order = {label: i for i, label in reversed(list(enumerate(row.label for row in rows)))}
    ordered = sorted(rows, key=lambda row: (row.size_bytes, order[row.label]))
    several = _differs(rows, "size_bytes")
    worlds = _differs(rows, "world_size")
    ranged = any(row.uncertainty_s is not None for row in rows)
    columns = [
        *([Column(title="size", style="cyan")] if several else []),
        Column(title="variant", right=False, flexible=True, style="bold"),
        *([Column(title="ranks")] if worlds else []),
        Column(title="time"),
        *([Column(title="±%", style="dim")] if ranged else []),
        Column(title="ratio"),
        Column(title="busbw", style="bold green"),
        Column(title="%bound", style="yellow"),
        Column(title="binds", right=False),
    ]
    lines: list[tuple[str, ...]] = []
    for _, group in groupby(ordered, key=lambda row: row.size_bytes):
        same_size = list(group)
        first_s = same_size[0].time_s
        lines += [
            (
                *([format_size(row.size_bytes)] if several else []),
                row.label,
                *([str(row.world_size)] if worlds else []),
                format_time(row.time_s),
                *([_range(row)] if ranged else []),
                f"{row.time_s / first_s:.2f}x" if first_s > 0 else "-",
                _bandwidth(row.busbw_Bps),
                _percent(row.percent_of_bound),
                row.binding_kind or "latency",
            )
            for row in same_size
        ]
    what = "time relative to the first variant" + (" of the same size" if several else "")
    return Table(
        columns=tuple(columns),
        rows=tuple(lines),
        title=title,
        remarks=(
            f"busbw in GB/s; ratio: {what}; binds: kind of link that limits",
            *([_RANGE_REMARK] if ranged else []),
            *_level_remark(rows),
        ),
    )


def _level_remark(rows: Sequence[Row]) -> list[str]:
    """Return the level of detail of the rows, and why they are folded."""
    told = dict.fromkeys((row.level, row.level_reason) for row in rows if row.level)
    if not told:
        return []
    names = [f"{level} ({reason})" if reason else level for level, reason in sorted(told)]
    return [f"level: {', '.join(names)}"]


def step_table(steps: Sequence[StepSummary], *, title: str = "Steps") -> Table:
    """Return whole runs of programs side by side: time, computing, exposed communication."""
    named = any(step.variant for step in steps)
    columns = (
        *([Column(title="variant", right=False, flexible=True, style="bold")] if named else []),
        Column(title="time", style="bold green"),
        *([Column(title="ratio")] if len(steps) > 1 else []),
        Column(title="computing"),
        Column(title="exposed"),
        Column(title="%exposed", style="yellow"),
        Column(title="calls"),
        Column(title="sent/rank", style="cyan"),
    )
    first_s = steps[0].time_s if steps else 0.0
    rows = tuple(
        (
            *([step.variant] if named else []),
            format_time(step.time_s),
            *([f"{step.time_s / first_s:.2f}x" if first_s > 0 else "-"] if len(steps) > 1 else []),
            format_time(step.compute_s),
            format_time(step.exposed_s),
            f"{100 * step.exposed_s / step.time_s:.1f}" if step.time_s > 0 else "-",
            str(step.n_calls),
            format_size(step.sent_bytes),
        )
        for step in steps
    )
    return Table(
        columns=columns,
        rows=rows,
        title=title,
        remarks=("exposed: time in which the busiest rank does not compute",),
    )


def _bar(share: float, width: int = 10) -> str:
    return "█" * round(min(max(share, 0.0), 1.0) * width)


def link_kind_table(links: Sequence[LinkLoad]) -> Table:
    """Return totals per link kind, the most loaded kind first."""
    kinds: dict[str, list[LinkLoad]] = {}
    for link in links:
        kinds.setdefault(link.kind, []).append(link)
    columns = (
        Column(title="kind", right=False, style="bold"),
        Column(title="links"),
        Column(title="wire"),
        Column(title="mean%"),
        Column(title="max%", style="yellow"),
        Column(title="", right=False, style="yellow"),
        Column(title="busiest", right=False, flexible=True),
    )
    lines: list[tuple[float, tuple[str, ...]]] = []
    for kind, members in kinds.items():
        busiest = max(members, key=lambda link: link.utilisation)
        mean = sum(link.utilisation for link in members) / len(members)
        lines.append(
            (
                busiest.utilisation,
                (
                    kind,
                    str(len(members)),
                    format_size(sum(link.wire_bytes for link in members)),
                    _percent(100 * mean),
                    _percent(100 * busiest.utilisation),
                    _bar(busiest.utilisation),
                    busiest.name,
                ),
            )
        )
    lines.sort(key=lambda item: -item[0])
    return Table(
        columns=columns,
        rows=tuple(cells for _, cells in lines),
        title="Links by kind",
        remarks=("Directed links; % of the link's capacity over the whole run; wire: " + _WIRE,),
    )


def link_table(links: Sequence[LinkLoad], *, top: int = 10) -> Table:
    """Return the *top* links by utilisation, equal ones in their given order."""
    faulty = any(link.fault for link in links)
    columns = (
        Column(title="link", right=False, flexible=True, style="bold"),
        Column(title="kind", right=False),
        *([Column(title="fault", right=False, flexible=True, style="bold red")] if faulty else []),
        Column(title="capacity"),
        Column(title="payload"),
        Column(title="wire"),
        Column(title="used%", style="yellow"),
        *([] if faulty else [Column(title="", right=False, style="yellow")]),
    )
    chosen = sorted(links, key=lambda link: (not link.fault, -link.utilisation))[:top]
    lines = tuple(
        (
            link.name,
            link.kind,
            *([link.fault] if faulty else []),
            f"{_bandwidth(link.capacity_Bps)} GB/s",
            format_size(link.payload_bytes),
            format_size(link.wire_bytes),
            _percent(100 * link.utilisation),
            *([] if faulty else [_bar(link.utilisation, 6)]),
        )
        for link in chosen
    )
    left = len(links) - len(chosen)
    remarks = [f"wire: {_WIRE}"]
    if faulty:
        remarks.append("links with a fault first; capacity: mean over the run")
    if left:
        remarks.append(f"{left} more links, all with the same load or less")
    title = "Links with a fault, and the busiest" if faulty else "Busiest links"
    return Table(columns=columns, rows=lines, title=title, remarks=tuple(remarks))


def _notable_ranks(ranks: RankTimes, limit: int) -> list[int]:
    """Return all ranks, or the last to call, the last to end and those that wait most."""
    n_ranks = len(ranks)
    if n_ranks <= limit:
        return list(range(n_ranks))
    each = max(limit // 3, 1)
    chosen: list[int] = []
    for values in (ranks.call_s, ranks.end_s, ranks.wait_s):
        chosen += sorted(range(n_ranks), key=lambda rank: -values[rank])[:each]
    return sorted(set(chosen))


def rank_table(ranks: RankTimes, *, limit: int = 16) -> Table:
    """Return waiting against transfer per rank; of many ranks the remarkable ones.

    Parameters
    ----------
    ranks
        Times of all ranks.
    limit
        Largest number of ranks of which all are listed.
    """
    columns = (
        Column(title="rank", style="bold"),
        Column(title="node"),
        Column(title="called"),
        Column(title="ended"),
        Column(title="transfer", style="green"),
        Column(title="waiting", style="yellow"),
        Column(title="wait%", style="yellow"),
        Column(title="", right=False, style="dim"),
    )
    if not len(ranks):
        return Table(columns=columns, rows=(), title="Ranks")
    last_call, last_end = max(ranks.call_s), max(ranks.end_s)
    lines: list[tuple[str, ...]] = []
    for rank in _notable_ranks(ranks, limit):
        call_s, end_s, wait_s = ranks.call_s[rank], ranks.end_s[rank], ranks.wait_s[rank]
        remarks = []
        # Ranks that all call at once are not late.
        if call_s == last_call > min(ranks.call_s):
            remarks.append("last call")
        if end_s == last_end > min(ranks.end_s):
            remarks.append("last end")
        busy_s = end_s - call_s
        lines.append(
            (
                str(rank),
                str(ranks.node[rank]) if ranks.node else "-",
                format_time(call_s),
                format_time(end_s),
                format_time(ranks.transfer_s[rank]),
                format_time(wait_s),
                _percent(100 * wait_s / busy_s) if busy_s > 0 else "-",
                ", ".join(remarks),
            )
        )
    remarks_below = []
    if len(lines) < len(ranks):
        remarks_below.append(
            f"{len(lines)} of {len(ranks)} ranks: last to call, last to end, longest waits"
        )
    for name, values in (("transfer", ranks.transfer_s), ("waiting", ranks.wait_s)):
        mean = sum(values) / len(values)
        spread = f"min {format_time(min(values))}, max {format_time(max(values))}"
        remarks_below.append(f"{name}: mean {format_time(mean)}, {spread}")
    return Table(columns=columns, rows=tuple(lines), title="Ranks", remarks=tuple(remarks_below))
