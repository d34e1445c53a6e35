"""Read the sweeps in the JSON of `collsim measure`: rows, schedules, devices, settings.

The file is `validation.harness.options.Measurement` as plain values.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from simulator.importers.json_stream import JsonStream
from simulator.importers.log_header import Facts, environment_value
from simulator.importers.log_infer import Block
from simulator.importers.log_rows import RawHalf, RawRow
from simulator.importers.measured import Device, RunParameters
from simulator.importers.source import TextSource

__all__ = ["Sweep", "blocks_of", "read_sweeps"]

LIBRARY = "library"
"""What a table is said to be run by that is no schedule of collsim."""


@dataclass(slots=True)
class Sweep:
    """One table as it stands in the file."""

    head: dict[str, Any] = field(default_factory=dict)
    rows: list[tuple[int, Mapping[str, Any]]] = field(default_factory=list)
    """Line and values of each row."""


def read_sweeps(stream: JsonStream, sweeps: list[Sweep], dropped: list[int]) -> None:
    """Add the tables of an array to *sweeps*; what was added stays where the text is cut.

    Parameters
    ----------
    stream
        Before the array.
    sweeps
        Gets the tables.
    dropped
        Gets the lines of rows that lack a size or a time.
    """
    for line in stream.places():
        if stream.peek() != "{":
            stream.value()
            dropped.append(line)
            continue
        sweep = Sweep()
        sweeps.append(sweep)
        for key in stream.members():
            if key != "rows" or stream.peek() != "[":
                sweep.head[key] = stream.value()
                continue
            for place, row in stream.elements():
                if _is_row(row):
                    sweep.rows.append((place, row))
                else:
                    dropped.append(place)


def blocks_of(source: TextSource, head: Mapping[str, Any], sweeps: Iterable[Sweep]) -> list[Block]:
    """Return the sweeps that have rows, with what the file says of the run."""
    options = _mapping(head.get("options"))
    environment = _mapping(head.get("environment"))
    devices = _devices(environment)
    blocks = []
    for sweep in sweeps:
        rows = tuple(_row(line, row, sweep.head) for line, row in sweep.rows)
        if not rows:
            continue
        facts = Facts(collective=str(sweep.head.get("collective", "")), collective_from="banner")
        if not devices:
            facts.command_ranks = _whole(head.get("n_ranks"))
        if environment.get("nccl"):
            facts.version = str(environment["nccl"])
        for name, value in _mapping(environment.get("variables")).items():
            kept = (
                environment_value(name, str(value)) if name.startswith(("NCCL_", "RCCL_")) else None
            )
            if kept is not None:
                facts.environment[name] = kept
        algorithm = sweep.head.get("algorithm", LIBRARY)
        if algorithm != LIBRARY:
            facts.schedule = str(algorithm), _whole(sweep.head.get("channels")) or 1
        blocks.append(
            Block(
                source=source.name,
                shown=source.shown,
                facts=facts,
                parameters=_parameters(options),
                devices=devices,
                copies=1,
                cpu_time=False,
                average=None,
                rows=rows,
            )
        )
    return blocks


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _is_row(row: Any) -> bool:
    if not isinstance(row, dict) or _whole(row.get("size_bytes")) is None:
        return False
    halves = [_mapping(row.get(name)) for name in ("out_of_place", "in_place")]
    return any(isinstance(half.get("time_s"), int | float) for half in halves)


def _row(line: int, row: Mapping[str, Any], head: Mapping[str, Any]) -> RawRow:
    return RawRow(
        line=line,
        size_bytes=row["size_bytes"],
        count=_whole(row.get("count")) or 0,
        dtype=str(head.get("dtype", "float")),
        redop=head.get("redop"),
        root=_whole(head.get("root")),
        out_of_place=_half(_mapping(row.get("out_of_place"))),
        in_place=_half(_mapping(row.get("in_place"))),
    )


def _half(half: Mapping[str, Any]) -> RawHalf | None:
    time_s = half.get("time_s")
    if not isinstance(time_s, int | float):
        return None

    def bandwidth(name: str) -> float | None:
        value = half.get(name)
        return value / 1e9 if isinstance(value, int | float) and math.isfinite(value) else None

    return RawHalf(
        time_us=time_s * 1e6,
        # The file has the doubles themselves.
        time_resolution=1e-6,
        algbw=bandwidth("algbw_Bps"),
        busbw=bandwidth("busbw_Bps"),
        bandwidth_resolution=1e-9,
        wrong=_whole(half.get("wrong")),
        max_error=None,
        quantiles_us=None,
    )


def _parameters(options: Mapping[str, Any]) -> RunParameters:
    factor, step = options.get("factor"), _whole(options.get("step_bytes"))
    return RunParameters(
        n_threads=1,
        n_gpus=1,
        min_bytes=_whole(options.get("min_bytes")),
        max_bytes=_whole(options.get("max_bytes")),
        step_factor=float(factor) if isinstance(factor, int | float) and step is None else None,
        step_bytes=step,
        warmup_iterations=_whole(options.get("warmup")),
        iterations=_whole(options.get("iterations")),
        aggregated=1,
        validation=int(bool(options.get("check"))),
        graph=_whole(options.get("graph")),
    )


def _devices(environment: Mapping[str, Any]) -> tuple[Device, ...]:
    names, nodes = environment.get("devices"), environment.get("nodes")
    if not isinstance(names, list) or not isinstance(nodes, list) or len(names) != len(nodes):
        return ()
    return tuple(
        Device(
            rank=rank,
            group=0,
            host=f"node{node}",
            device=_before(nodes, rank),
            bus_id="",
            name=str(name),
        )
        for rank, (name, node) in enumerate(zip(names, nodes, strict=True))
    )


def _before(nodes: Sequence[Any], rank: int) -> int:
    """Return how many ranks before this one share its node."""
    return nodes[:rank].count(nodes[rank])
