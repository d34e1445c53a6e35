"""Read the JSON that nccl-tests writes under ``-J``, whole or cut short by a killed run.

The JSON of `collsim measure` goes to `simulator.importers.measure_json`.

The file is decoded one result at a time, because per-iteration times can make it large, and
because a run that dies leaves it without its end.

References
----------
.. [1] nccl-tests, ``src/util.cu``: JSON_FILE_VERSION 1 to 3.  Booleans are strings, a missing
   check is null, NaN is the string "nan".
"""

from __future__ import annotations

import math
from typing import Any

from simulator.base.errors import Problem
from simulator.importers.json_stream import CutJsonError, JsonStream
from simulator.importers.log_header import Facts, environment_value, nccl_version, test_name
from simulator.importers.log_hints import Hints
from simulator.importers.log_rows import RawHalf, RawRow
from simulator.importers.log_tables import Block, build_tables
from simulator.importers.measure_json import Sweep, blocks_of, read_sweeps
from simulator.importers.measured import Device, Log, MeasuredTable, RunParameters, line_ranges
from simulator.importers.source import ForeignFileError, TextSource

__all__ = ["looks_like_json", "read_json"]


def looks_like_json(source: TextSource) -> bool:
    """Return True when the text begins with a brace; nothing is consumed."""
    return source.first_line().startswith("{")


def read_json(source: TextSource) -> Log:
    """Read one ``-J`` file; its results may be followed by nothing when the run was killed.

    Raises
    ------
    ForeignFileError
        Not such a file, or without a single complete result.
    """
    hints = Hints()
    hints.feed(source.first_line())
    stream = JsonStream(source)
    head: dict[str, Any] = {}
    rows: list[RawRow] = []
    sweeps: list[Sweep] = []
    dropped: list[int] = []
    problems: list[Problem] = []
    try:
        for key in stream.members():
            if key == "results" and stream.peek() == "[":
                for line, result in stream.elements():
                    row = _result(line, result)
                    if row is None:
                        dropped.append(line)
                    else:
                        rows.append(row)
            elif key == "tables" and stream.peek() == "[":
                read_sweeps(stream, sweeps, dropped)
            elif key == "traceEvents":
                hints.feed('"traceEvents"')
                break
            else:
                hints.feed(f'"{key}"')
                head[key] = stream.value()
    except CutJsonError:
        problems.append(
            Problem(
                file=source.shown,
                line=stream.line,
                message="the JSON ends here: the run was cut; complete results are kept",
            )
        )
    except (ValueError, RecursionError) as error:
        problems.append(
            Problem(
                file=source.shown,
                line=stream.line,
                message=f"not JSON from here: {error}; results above are kept",
            )
        )
    if not rows and not any(sweep.rows for sweep in sweeps):
        looks = f"; it looks like {hints.found}" if hints.found is not None else ""
        detail = f" ({problems[0]})" if problems else ""
        raise ForeignFileError(
            Problem(
                file=source.shown,
                message=f"JSON without complete results of nccl-tests{looks}{detail}",
                allowed="the file of option -J, or of collsim measure --json with collectives",
            )
        )
    if dropped:
        problems.append(
            Problem(
                file=source.shown,
                line=dropped[0],
                message=f"{len(dropped)} dropped, {line_ranges(dropped)}: a result without size, "
                "type or time",
            )
        )
    if source.damage:
        problems.append(Problem(file=source.shown, message=source.damage))
    blocks = blocks_of(source, head, sweeps) if sweeps else [_block(source, head, tuple(rows))]
    tables: list[MeasuredTable] = []
    odd: list[Problem] = []
    for block in blocks:
        more, remarks = build_tables(block)
        tables += more
        odd += remarks
    return Log(tables=tuple(tables), warnings=tuple(odd + problems), dropped_lines=tuple(dropped))


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or value is None:
        return None
    try:
        return float(value)
    except (TypeError, ValueError):
        return None


def _whole(value: Any) -> int | None:
    number = _number(value)
    return int(number) if number is not None and math.isfinite(number) else None


def _half(value: Any, iterations: Any) -> RawHalf | None:
    if not isinstance(value, dict):
        return None
    time = _number(value.get("time", value.get("cpu_time")))
    if time is None:
        return None
    wrong = _number(value.get("nwrong"))
    quantiles = None
    if isinstance(iterations, dict):
        spread = [_number(iterations.get(name)) for name in ("min_us", "max_us", "p99_us")]
        if spread[0] is not None and spread[1] is not None and spread[2] is not None:
            quantiles = (spread[0], spread[1], spread[2])
    return RawHalf(
        time_us=time,
        # JSON has the doubles themselves, or what somebody rounded to the printed places.
        time_resolution=0.005 if time < 100 else 0.05 if time < 10000 else 0.5,
        algbw=_number(value.get("alg_bw")),
        busbw=_number(value.get("bus_bw")),
        bandwidth_resolution=0.005,
        wrong=None if wrong is None or not math.isfinite(wrong) else int(wrong),
        max_error=None,
        quantiles_us=quantiles,
    )


def _result(line: int, result: Any) -> RawRow | None:
    if not isinstance(result, dict):
        return None
    size, count = _whole(result.get("size")), _whole(result.get("count"))
    halves = [
        _half(result.get(name), result.get(f"{name}_per_iter"))
        for name in ("out_of_place", "in_place")
    ]
    dtype = str(result.get("type", "")).strip()
    if size is None or count is None or not dtype or halves == [None, None]:
        return None
    redop = str(result.get("redop") or "none").strip()
    root = _whole(str(result.get("root", -1)).strip())
    return RawRow(
        line=line,
        size_bytes=size,
        count=count,
        dtype=dtype,
        redop=None if redop == "none" else redop,
        root=None if root is None or root < 0 else root,
        out_of_place=halves[0],
        in_place=halves[1],
    )


def _block(source: TextSource, head: dict[str, Any], rows: tuple[RawRow, ...]) -> Block:
    facts = Facts()
    arguments = head.get("args")
    if isinstance(arguments, list) and arguments:
        named = test_name(str(arguments[0]))
        if named is not None:
            facts.collective, facts.collective_from = named[0], "banner"
    code = _whole(head.get("nccl_version"))
    facts.version = nccl_version(code) if code else None
    environment = head.get("env")
    for entry in environment if isinstance(environment, list) else []:
        name, _, value = str(entry).partition("=")
        if name.startswith(("NCCL_", "RCCL_")):
            kept = environment_value(name, value)
            if kept is not None:
                facts.environment[name] = kept
    config = head.get("config")
    config = config if isinstance(config, dict) else {}
    average = head.get("average_bus_bandwidth")
    return Block(
        source=source.name,
        shown=source.shown,
        facts=facts,
        parameters=_parameters(config),
        devices=_devices(head.get("devices", config.get("devices"))),
        copies=1,
        cpu_time=False,
        average=_number(average.get("bandwidth")) if isinstance(average, dict) else None,
        rows=rows,
    )


def _parameters(config: dict[str, Any]) -> RunParameters:
    return RunParameters(
        n_threads=_whole(config.get("nthreads")),
        n_gpus=_whole(config.get("ngpus")),
        min_bytes=_whole(config.get("minimum_bytes")),
        max_bytes=_whole(config.get("maximum_bytes")),
        step_factor=_number(config.get("step_factor")),
        step_bytes=_whole(config.get("step_bytes")),
        warmup_iterations=_whole(config.get("warmup_iters")),
        iterations=_whole(config.get("iterations")),
        aggregated=_whole(config.get("aggregated_iterations")),
        validation=_whole(config.get("validation")),
        graph=_whole(config.get("graph")),
    )


def _devices(listed: Any) -> tuple[Device, ...]:
    devices = []
    for entry in listed if isinstance(listed, list) else []:
        rank = _whole(entry.get("rank")) if isinstance(entry, dict) else None
        if rank is None:
            continue
        devices.append(
            Device(
                rank=rank,
                group=_whole(entry.get("group")) or 0,
                host=str(entry.get("hostname", "")),
                device=_whole(entry.get("device")) or 0,
                bus_id=str(entry.get("device_hex", "")),
                name=str(entry.get("device_info", "")),
            )
        )
    return tuple(devices)
