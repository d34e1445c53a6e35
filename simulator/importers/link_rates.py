"""Read measurements of single links: perftest (ib_write_bw, ib_send_lat …) and nvbandwidth.

References
----------
.. [1] perftest, ``src/perftest_parameters.h``: the printed tables; MB/sec are MiB/s, Gb/sec 10^9
   bits/s (``src/perftest_resources.c``, ``print_report_bw``).
.. [2] nvbandwidth, ``output.cpp`` and ``json_output.cpp``: "Running NAME.", a matrix in GB/s, SUM.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO

from simulator.base.errors import Problem
from simulator.importers.registry import importer
from simulator.importers.source import ForeignFileError, open_source

__all__ = ["LinkRate", "read"]

_PERFTEST = re.compile(r"(RDMA_Write|RDMA_Read|Send|Atomic)\s+(Bidirectional )?(BW|Latency) Test")
_BANDWIDTH = re.compile(r"BW average\[(MB|Gb)/sec\]")
_LATENCY = re.compile(r"t_typical\[usec\]")
_ROW = re.compile(r"^\s*\d+\s+\d+(?:\s+\d+\.\d+){2,}")
_RUNNING = re.compile(r"^Running (\w+)\.")
_CELL = re.compile(r"^\d+\.\d+$")
_KINDS = (
    (re.compile(r"^(?:host_to_device|device_to_host)_memcpy_(?:ce|sm)$"), "host"),
    (re.compile(r"^device_to_device_memcpy_(?:read|write)_(?:ce|sm)$"), "gpu"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkRate:
    """What one test of one kind of link gave."""

    kind: str
    """``nic`` (a port, one direction), ``host`` (GPU and host memory), ``gpu`` (two GPUs) or
    ``latency`` (one way between two ports)."""
    test: str
    """The tool's name of the test."""
    best: float
    """Bytes/s, or seconds for ``latency``; of pairs or sizes the best."""
    worst: float
    """Of pairs (GPUs, directions) the worst; equal to `best` for one pair."""
    line: int
    """Of the file; 1 for JSON."""


@importer(
    "link_rates",
    summary="perftest and nvbandwidth output: rates of single links",
    reference="perftest src/perftest_resources.c; nvbandwidth output.cpp",
)
def read(source: str | bytes | os.PathLike[str] | IO[str]) -> tuple[LinkRate, ...]:
    r"""Read every test of a file.

    Raises
    ------
    ForeignFileError
        Missing, binary, or no table of either tool.

    Examples
    --------
    >>> text = "RDMA_Write BW Test\n#bytes #iterations BW peak[Gb/sec] BW average[Gb/sec] MsgRate\n"
    >>> read(text + "65536 5000 197.05 196.80 0.375\n")[0].best
    24600000000.0
    """
    opened = open_source(source)
    lines = list(opened.lines())
    text = "\n".join(line for _, line in lines)
    found = _json(text) if text.lstrip().startswith("{") else [*_perftest(lines), *_matrices(lines)]
    if not found:
        raise ForeignFileError(
            Problem(
                file=opened.shown,
                message="no table of perftest or nvbandwidth",
                allowed="the output of ib_write_bw, ib_write_lat or nvbandwidth (text or JSON)",
            )
        )
    return tuple(found)


def _perftest(lines: list[tuple[int, str]]) -> Iterator[LinkRate]:
    """Generate one rate a table: the best size's average, the smallest message's latency."""
    test, unit, latency, start = "", 0.0, False, 0
    values: list[float] = []

    def done() -> Iterator[LinkRate]:
        if values and latency:
            yield LinkRate(kind="latency", test=test, best=values[0], worst=values[0], line=start)
        elif values:
            top = max(values) / (2.0 if "Bidirectional" in test else 1.0)
            yield LinkRate(kind="nic", test=test, best=top, worst=top, line=start)

    for number, line in lines:
        if match := _PERFTEST.search(line):
            if values:
                yield from done()
                values = []
            test = match.group(0)
        elif (match := _BANDWIDTH.search(line)) or _LATENCY.search(line):
            # Both ends of a loopback print the title.
            if values:
                yield from done()
                values = []
            latency, start = match is None, number
            unit = 0.0 if match is None else (1 << 20) if match.group(1) == "MB" else 1e9 / 8
        elif start and _ROW.match(line):
            cells = line.split()
            # bytes, iterations, then peak and average; or t_min, t_max, t_typical.
            place = 4 if latency else 3
            if len(cells) > place and _CELL.match(cells[place]):
                value = float(cells[place]) * (1e-6 if latency else unit)
                if value > 0:
                    values.append(value)
    yield from done()


def _matrices(lines: list[tuple[int, str]]) -> Iterator[LinkRate]:
    name, start = "", 0
    cells: list[float] = []
    for number, line in [*lines, (0, "SUM")]:
        if match := _RUNNING.match(line):
            name, start, cells = match.group(1), number, []
        elif line.startswith("SUM"):
            yield from _rate(name, cells, start)
            name, cells = "", []
        elif name:
            words = line.split()
            if words and words[0].isdigit():
                cells += [float(word) for word in words[1:] if _CELL.match(word)]


def _json(text: str) -> list[LinkRate]:
    try:
        document = json.loads(text)
        tests = document["nvbandwidth"]["testcases"]
        found: list[LinkRate] = []
        for entry in tests:
            rows = entry.get("bandwidth_matrix") or []
            cells = [float(cell) for row in rows for cell in row if _number(cell)]
            found += _rate(str(entry.get("name", "")), cells, 1)
    except (ValueError, KeyError, TypeError, AttributeError):
        return []
    return found


def _number(cell: object) -> bool:
    try:
        return math.isfinite(float(str(cell)))
    except ValueError:
        return False


def _rate(name: str, cells: list[float], line: int) -> Iterator[LinkRate]:
    good = [cell for cell in cells if cell > 0]
    for pattern, kind in _KINDS:
        if pattern.match(name) and good:
            yield LinkRate(
                kind=kind, test=name, best=max(good) * 1e9, worst=min(good) * 1e9, line=line
            )
