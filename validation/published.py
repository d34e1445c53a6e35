"""Published measurements of collectives: 99 set-ups with their sources, and a table of 14 more.

Each YAML file under ``measurements/collectives`` holds what one public log says of one machine;
files are never edited, only added (format: ``measurements/collectives/README.md``).  Loading
checks the schema; `check` tests that time, algbw and busbw of each row agree.
"""

from __future__ import annotations

import functools
import gzip
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib import resources
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.base.errors import CalibrationError, Problem, nearest
from simulator.importers import bus_factor
from validation.records import Hardware, PublishedTable, SetUp, Software
from validation.vtrain import vtrain

__all__ = [
    "Hardware",
    "PublishedTable",
    "SetUp",
    "Software",
    "check",
    "get",
    "healthy",
    "parse",
    "set_ups",
    "slugs",
    "vtrain",
]

FloatArray = NDArray[np.float64]

_COLLECTIVES = {
    "all_reduce": "all_reduce",
    "all_gather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "alltoall": "all_to_all",
    "sendrecv": "send_recv",
    "gather": "gather",
    "scatter": "scatter",
}


def _folder() -> Any:
    return resources.files("validation") / "measurements" / "collectives"


@functools.cache
def slugs() -> tuple[str, ...]:
    """Return the names of all set-ups in YAML files, sorted."""
    names = (entry.name for entry in _folder().iterdir())
    return tuple(sorted(name.partition(".yaml")[0] for name in names if ".yaml" in name))


@functools.cache
def get(slug: str) -> SetUp:
    """Return one set-up; reads its file only.

    Raises
    ------
    CalibrationError
        An unknown name, or a file that breaks the schema.
    """
    folder = _folder()
    plain, packed = folder / f"{slug}.yaml", folder / f"{slug}.yaml.gz"
    if plain.is_file():
        return parse(plain.read_bytes(), plain.name)
    if packed.is_file():
        return parse(gzip.decompress(packed.read_bytes()), packed.name)
    raise CalibrationError(
        Problem(
            message=f"unknown published set-up {slug!r}",
            allowed=f"one of {len(slugs())} names",
            suggestion=nearest(slug, slugs()),
        )
    )


@functools.cache
def set_ups() -> tuple[SetUp, ...]:
    """Return every set-up, sorted by name (about a second at first, then cached)."""
    return tuple(get(slug) for slug in slugs())


def healthy() -> tuple[SetUp, ...]:
    """Return the set-ups that may be fitted."""
    return tuple(entry for entry in set_ups() if entry.health == "healthy")


def parse(text: bytes | str, name: str) -> SetUp:
    """Read one YAML file and check its schema.

    Raises
    ------
    CalibrationError
        Not YAML, unknown or missing keys, wrong types; all problems at once.
    """
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        document = yaml.load(text, Loader=loader)
    except yaml.YAMLError as error:
        raise CalibrationError(Problem(file=name, message=f"not YAML: {error}")) from None
    reader = _Reader(name)
    result = reader.set_up(document)
    if reader.problems or result is None:
        raise CalibrationError(reader.problems)
    return result


@dataclass(slots=True)
class _Reader:
    """Turns a document into records and collects everything that is wrong with it."""

    name: str
    problems: list[Problem] = field(default_factory=list)

    def wrong(self, key: str, message: str, allowed: str = "") -> None:
        self.problems.append(Problem(file=self.name, key=key, message=message, allowed=allowed))

    def keys(self, key: str, value: Any, required: str, optional: str = "") -> dict[str, Any]:
        """Return the mapping when its keys are right; report what is missing or unknown."""
        if not isinstance(value, dict):
            self.wrong(key, f"{type(value).__name__} where a mapping was expected")
            return {}
        need, may = required.split(), optional.split()
        for missing in [name for name in need if name not in value]:
            self.wrong(f"{key}.{missing}".lstrip("."), "missing")
        for extra in [name for name in value if name not in need + may]:
            self.wrong(f"{key}.{extra}".lstrip("."), "unknown key", ", ".join(need + may))
        return value

    def set_up(self, document: Any) -> SetUp | None:
        top = self.keys(
            "", document, "slug source date hardware software health tables", "health_cause notes"
        )
        if self.problems:
            return None
        for key in ("slug", "source", "date"):
            if not str(top[key]).strip():
                self.wrong(key, "empty")
        if top["health"] not in ("healthy", "faulty"):
            self.wrong("health", f"found {top['health']!r}", "healthy, faulty")
        if self.name.partition(".yaml")[0] != top["slug"]:
            self.wrong("slug", f"{top['slug']!r} is not the file's name")
        hardware = self.hardware(top["hardware"])
        software = self.software(top["software"])
        listed = top["tables"]
        if not isinstance(listed, list) or not listed:
            self.wrong("tables", "no table")
            return None
        tables = [
            self.table(f"tables[{place}]", entry, hardware) for place, entry in enumerate(listed)
        ]
        if self.problems or hardware is None or software is None:
            return None
        return SetUp(
            slug=str(top["slug"]),
            source=str(top["source"]),
            date=str(top["date"]),
            hardware=hardware,
            software=software,
            health=str(top["health"]),
            health_cause=str(top.get("health_cause", "")),
            notes=str(top.get("notes", "")),
            tables=tuple(table for table in tables if table is not None),
        )

    def hardware(self, value: Any) -> Hardware | None:
        words = "gpu gpus_per_node nodes ranks intra_node inter_node nics_per_node gdr cpu_numa"
        found = self.keys("hardware", value, words)
        if any(name not in found for name in words.split()):
            return None
        return Hardware(
            gpu=str(found["gpu"]),
            gpus_per_node=_count(found["gpus_per_node"]),
            nodes=_count(found["nodes"]),
            n_ranks=_count(found["ranks"]),
            intra_node=str(found["intra_node"]),
            inter_node=str(found["inter_node"]),
            nics_per_node=_count(found["nics_per_node"]),
            gdr=str(found["gdr"]),
            cpu_numa=str(found["cpu_numa"]),
        )

    def software(self, value: Any) -> Software | None:
        found = self.keys("software", value, "nccl cuda env nccl_log")
        if len(found) < 4:
            return None
        return Software(
            nccl=str(found["nccl"]),
            cuda=str(found["cuda"]),
            environment=_variables(found["env"]),
            nccl_log=tuple(str(line) for line in found["nccl_log"] or ()),
        )

    def table(self, key: str, value: Any, hardware: Hardware | None) -> PublishedTable | None:
        found = self.keys(
            key,
            value,
            "collective dtype redop root in_place_columns flagged_rows rows",
            "ranks nodes variant run hw algo proto env algbw_convention notes",
        )
        if "rows" not in found or "collective" not in found:
            return None
        collective = _COLLECTIVES.get(str(found["collective"]))
        if collective is None:
            self.wrong(
                f"{key}.collective", f"found {found['collective']!r}", ", ".join(_COLLECTIVES)
            )
            return None
        columns = self.columns(f"{key}.rows", found["rows"])
        if columns is None:
            return None
        n_ranks = _count(found["ranks"]) if "ranks" in found else None
        n_nodes = _count(found["nodes"]) if "nodes" in found else None
        if hardware is not None:
            n_ranks = hardware.n_ranks if n_ranks is None else n_ranks
            n_nodes = hardware.nodes if n_nodes is None else n_nodes
            if n_nodes is None and n_ranks is not None and hardware.gpus_per_node:
                n_nodes = -(-n_ranks // hardware.gpus_per_node)
        root = _count(found.get("root"))
        redop = found.get("redop")
        return PublishedTable(
            collective=collective,
            dtype=str(found.get("dtype", "float")),
            redop=None if redop in (None, "none") else str(redop),
            root=root,
            n_ranks=n_ranks,
            n_nodes=n_nodes,
            variant=str(found.get("variant", "")),
            run=str(found.get("run", "")),
            hardware_note=str(found.get("hw", "")),
            algorithm=None if found.get("algo") is None else str(found["algo"]),
            protocol=None if found.get("proto") is None else str(found["proto"]),
            environment=_variables(found.get("env")),
            old_convention=found.get("algbw_convention") == "old",
            size_bytes=columns[:, 0].astype(np.int64),
            time_s=columns[:, 1] / 1e6,
            printed_algbw_Bps=columns[:, 2] * 1e9,
            printed_busbw_Bps=columns[:, 3] * 1e9,
            in_place_time_s=columns[:, 4] / 1e6,
            in_place_printed_algbw_Bps=columns[:, 5] * 1e9,
            in_place_printed_busbw_Bps=columns[:, 6] * 1e9,
        )

    def columns(self, key: str, rows: Any) -> FloatArray | None:
        if not isinstance(rows, list) or not rows:
            self.wrong(key, "no row")
            return None
        try:
            columns = np.array(rows, dtype=np.float64)
        except (TypeError, ValueError):
            columns = np.empty((0,))
        if columns.ndim != 2 or columns.shape[1] != 7:
            self.wrong(key, "rows must be seven numbers", "size, time, algbw, busbw, in-place × 3")
            return None
        sizes = columns[:, 0]
        if not np.all(np.isfinite(sizes)) or np.any(sizes < 0) or np.any(sizes != sizes.round()):
            self.wrong(key, "a size is not a whole number of bytes")
            return None
        return columns


def _count(value: Any) -> int | None:
    """Return a number of things, None for words such as ``unknown`` or ``per table``."""
    try:
        number = int(str(value))
    except ValueError:
        return None
    return number if number >= 0 else None


def _variables(value: Any) -> dict[str, str]:
    return {} if not isinstance(value, dict) else {str(k): str(v) for k, v in value.items()}


def check(set_up: SetUp) -> list[Problem]:
    """Return a problem for every row whose printed bandwidths do not follow from size and time.

    Notes
    -----
    algbw must be size / time and busbw algbw × factor, each within the printed places: times have
    four digits, bandwidths two decimals.
    """
    return [problem for table in set_up.tables for problem in _check_table(set_up, table)]


def _check_table(set_up: SetUp, table: PublishedTable) -> Iterator[Problem]:
    factor = None if table.n_ranks is None else bus_factor(table.collective, table.n_ranks)
    halves = (
        (False, table.time_s, table.printed_algbw_Bps, table.printed_busbw_Bps),
        (
            True,
            table.in_place_time_s,
            table.in_place_printed_algbw_Bps,
            table.in_place_printed_busbw_Bps,
        ),
    )
    for in_place, time_s, algbw_Bps, busbw_Bps in halves:
        mask = table.usable(in_place=in_place) & np.isfinite(algbw_Bps)
        for place in np.flatnonzero(mask):
            size, time_us = int(table.size_bytes[place]), float(time_s[place]) * 1e6
            expected = size / time_us / 1e3
            scale = 1.0 if factor is None else factor
            if table.old_convention and table.n_ranks is not None:
                expected *= (table.n_ranks - 1) / table.n_ranks
                scale = 1.0
            places = 0.5 if time_us >= 10000 else 0.05 if time_us >= 100 else 0.005
            slack = max(0.0101 + expected * places / time_us * 1.5, 0.004 * expected)
            algbw = float(algbw_Bps[place]) / 1e9
            where = f"{table.collective}, {size} B" + (", in-place" if in_place else "")
            if abs(algbw - expected) > slack:
                yield Problem(
                    file=set_up.slug,
                    message=f"{where}: algbw {algbw:g} GB/s, size / time is {expected:.4g}",
                )
            busbw = float(busbw_Bps[place]) / 1e9
            slack = max(0.0101 * max(scale, 1.0), 0.004 * busbw)
            if factor is not None and math.isfinite(busbw) and abs(algbw * scale - busbw) > slack:
                yield Problem(
                    file=set_up.slug,
                    message=f"{where}: busbw {busbw:g} GB/s, algbw × factor is {algbw * scale:.4g}",
                )
