"""The file of a calibrated profile: what ``collsim fit`` writes and `simulator.costs` reads."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import simulator
from simulator.costs.calibration import table_key
from simulator.costs.calibration_file import identity_of
from simulator.costs.profile import profile_data
from simulator.verdict.predict import PredictedRow
from simulator.verdict.statistics import errors_by_range
from validation.fitting.calibrate import Posterior
from validation.fitting.causes import GROUPS, group_of
from validation.fitting.document import with_constants
from validation.fitting.problem import Parameter

__all__ = ["CalibratedFile", "Constant", "TableData", "constants_at"]

FloatArray = NDArray[np.float64]
Uncertainty = Callable[[float, int], float | None]

STILL = 0.005
"""A constant that moves by less, in log, is left as shipped."""
HALF_80 = 1.2816
"""Standard deviations within which four fifths of a normal distribution lie."""
_FADE = 12
"""Octaves beyond the data to which the curves are written: three of their longest lengths."""
_MOST_OCTAVE = 48
_BANDS = tuple(2.0**octave for octave in (*range(12, 36, 4), 48))
_LEAST_LOG = 5e-4
"""A curve with no larger value is left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Constant:
    """A constant that the rows depend on, in the file's unit."""

    parameter: Parameter
    shipped: float
    fitted: float
    """Three digits."""
    spread: float
    """Standard deviation of its log."""

    @property
    def key(self) -> str:
        """Dotted key."""
        return self.parameter.key

    @property
    def group(self) -> str:
        """Mechanism."""
        return GROUPS[group_of(self.key)][0]

    @property
    def moved(self) -> bool:
        """Whether the data moved it."""
        return self.fitted != self.shipped

    @property
    def at_end(self) -> bool:
        """Whether it stands at an end of the range that is plausible."""
        ends = (self.parameter.low, self.parameter.high)
        return self.moved and any(abs(math.log(self.fitted / end)) < 2 * STILL for end in ends)

    def record(self) -> dict[str, Any]:
        """Return what the file says of it."""
        return {
            "shipped": self.shipped,
            "fitted": self.fitted,
            "unit": self.parameter.unit,
            "spread": _short(self.spread),
            "moved": self.moved,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class TableData:
    """Where the rows of a table come from."""

    file: str
    lines: tuple[int, int]
    collective: str
    ranks: int
    nodes: int
    rows: int
    sizes_bytes: tuple[int, int]
    set_up: str
    ways: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """By algorithm and protocol the sizes to which it holds."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """What was not usual in the run, see `simulator.compose.calibrated.settings_of`."""

    @property
    def key(self) -> str:
        """Name of its curve."""
        return table_key(self.collective, self.ranks, self.nodes)

    def record(self) -> dict[str, Any]:
        """Return what the file says of it."""
        found: dict[str, Any] = {"file": Path(self.file).name}
        if Path(self.file).is_file():
            found["sha256"] = hashlib.sha256(Path(self.file).read_bytes()).hexdigest()
        return found | {
            "lines": list(self.lines),
            "set_up": self.set_up,
            "collective": self.collective,
            "ranks": self.ranks,
            "nodes": self.nodes,
            "rows": self.rows,
            "sizes_bytes": list(self.sizes_bytes),
        }


def constants_at(
    given: Sequence[Parameter], used: Sequence[bool], shipped: FloatArray, found: Posterior
) -> tuple[Constant, ...]:
    """Return the constants that the data say something of, rounded as the file has them."""
    made = []
    for i, parameter in enumerate(given):
        if not used[i] or not found.spread[i] > 0:
            continue
        before = math.exp(float(shipped[i])) / parameter.scale
        after = before
        if abs(float(found.theta[i] - shipped[i])) > STILL:
            after = float(f"{math.exp(float(found.theta[i])) / parameter.scale:.3g}")
        made.append(
            Constant(
                parameter=parameter,
                shipped=float(f"{before:.6g}"),
                fitted=float(f"{after:.6g}"),
                spread=float(found.spread[i]),
            )
        )
    return tuple(made)


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibratedFile:
    """The contents; without *data* the constants alone."""

    name: str
    base: str
    version: str | None
    """Of the library, where the logs tell it."""
    node: str
    constants: tuple[Constant, ...]
    health: str = ""
    """The verdict on the tables when they were fitted."""
    data: tuple[TableData, ...] = ()
    first_octave: int = 0
    common: tuple[float, ...] = ()
    ways: dict[str, tuple[float, ...]] = field(default_factory=dict)
    tables: dict[str, tuple[float, ...]] = field(default_factory=dict)
    bands: dict[str, list[list[float]]] = field(default_factory=dict)
    residuals: dict[str, Any] = field(default_factory=dict)

    def theta(self, given: Sequence[Parameter], shipped: FloatArray) -> FloatArray:
        """Return the logs of the constants as the file has them."""
        fitted = {entry.key: entry for entry in self.constants}
        found = shipped.copy()
        for i, parameter in enumerate(given):
            entry = fitted.get(parameter.key)
            if entry is not None and entry.moved:
                found[i] = math.log(entry.fitted * parameter.scale)
        return found

    def with_rest(
        self,
        rest: Posterior,
        ways: Sequence[str],
        data: Sequence[TableData],
        of_row: Sequence[int],
        uncertainty: Uncertainty,
    ) -> CalibratedFile:
        """Return the file with discrepancy and bands.

        Parameters
        ----------
        rest
            What the constants leave.
        ways
            Name of algorithm and protocol of each row.
        data
            Of the tables.
        of_row
            Place of each row's table in *data*.
        uncertainty
            The shipped profile's, by size and nodes.
        """
        octave = rest.machine.octave
        first = max(0, math.floor(float(octave.min())) - _FADE)
        last = min(_MOST_OCTAVE, math.ceil(float(octave.max())) + _FADE)
        grid = np.arange(first, last + 1, dtype=np.float64)

        def curve(part: int, *, way: int = -1, table: int = -1) -> tuple[float, ...]:
            same_way, same_table = np.full(len(grid), way), np.full(len(grid), table)
            values = -rest.by_part(grid, same_way, same_table)[part]
            return tuple(round(value, 4) + 0.0 for value in values.tolist())

        def curves(part: int, numbers: dict[str, int], of: str) -> dict[str, tuple[float, ...]]:
            made = {name: curve(part, **{of: number}) for name, number in numbers.items()}
            return {
                name: values for name, values in made.items() if max(map(abs, values)) >= _LEAST_LOG
            }

        way_numbers = dict(zip(ways, rest.machine.way.tolist(), strict=True))
        keys = [data[index].key for index in of_row]
        table_numbers = dict(zip(keys, rest.machine.table.tolist(), strict=True))
        return replace(
            self,
            data=_with_ways(data, ways, octave, of_row),
            first_octave=first,
            common=curve(0),
            ways=curves(1, way_numbers, "way"),
            tables=curves(2, table_numbers, "table"),
            bands=_bands(rest, keys, [data[index].nodes for index in of_row], uncertainty),
        )

    def with_residuals(
        self, before: Sequence[PredictedRow], after: Sequence[PredictedRow], of_row: Sequence[int]
    ) -> CalibratedFile:
        """Return the file with the errors of its rows."""
        tables = []
        for index, entry in enumerate(self.data):
            pairs = [
                [
                    old.line,
                    old.size_bytes,
                    _short(old.measured_s * 1e6, 4),
                    _short(old.ratio),
                    _short(new.ratio),
                ]
                for old, new, place in zip(before, after, of_row, strict=True)
                if place == index
            ]
            if pairs:
                tables.append({"file": Path(entry.file).name, "table": entry.key, "rows": pairs})
        return replace(
            self,
            residuals={
                "columns": ["line", "size_bytes", "measured_us", "ratio_before", "ratio_after"],
                "ratio_is": "predicted / measured time",
                "before": _errors(before),
                "after": _errors(after),
                "tables": tables,
            },
        )

    def document(self) -> dict[str, Any]:
        """Return the contents as plain data."""
        moved = [entry for entry in self.constants if entry.moved]
        found: dict[str, Any] = {"name": self.name, "extends": self.base}
        if self.data:
            found["summary"] = f"{self.base.upper()} as calibrated on {self.data[0].set_up}"
        if self.version is not None:
            found["tuning"] = {"version": str(self.version)}
        values = {entry.key: entry.fitted * entry.parameter.scale for entry in moved}
        with_constants(found, [entry.parameter for entry in moved], values)
        if not self.data:
            return found
        found["discrepancy"] = {
            "source": "fitted: log of measured over modelled time, an octave of size a value",
            "first_octave": self.first_octave,
            "common": list(self.common),
            "ways": {name: list(values) for name, values in self.ways.items()},
            "tables": {name: list(values) for name, values in self.tables.items()},
        }
        found["bands"] = {
            "source": "half widths in log time that hold 80 % of left-out rows; elsewhere "
            "those of the shipped profile",
            "tables": self.bands,
        }
        found["fitted"] = {
            "by": f"collsim {simulator.__version__}",
            "base_identity": identity_of(profile_data(self.base)),
            "node": self.node,
            "health": self.health or "not judged",
            "data": [entry.record() for entry in self.data],
            "ranges": self.ranges(),
            "constants": {entry.key: entry.record() for entry in self.constants},
            "residuals": self.residuals,
        }
        return found

    def ranges(self) -> list[dict[str, Any]]:
        """Return what was measured, each call once."""
        found: dict[object, dict[str, Any]] = {}
        for entry in self.data:
            key = (entry.key, tuple(sorted(entry.settings.items())))
            there = found.setdefault(
                key,
                {
                    "collective": entry.collective,
                    "ranks": entry.ranks,
                    "nodes": entry.nodes,
                    "sizes_bytes": list(entry.sizes_bytes),
                    "ways": {name: list(sizes) for name, sizes in entry.ways.items()},
                    "settings": dict(entry.settings),
                },
            )
            low, high = there["sizes_bytes"]
            there["sizes_bytes"] = [min(low, entry.sizes_bytes[0]), max(high, entry.sizes_bytes[1])]
        return list(found.values())

    def text(self) -> str:
        """Return the file."""
        import yaml

        dumped = yaml.safe_dump(
            self.document(), sort_keys=False, width=100, allow_unicode=True, default_flow_style=None
        )
        return "# Written by `collsim fit`; what it rests on stands under `fitted`.\n" + str(dumped)


def _with_ways(
    data: Sequence[TableData], ways: Sequence[str], octave: FloatArray, of_row: Sequence[int]
) -> tuple[TableData, ...]:
    """Return the tables with the sizes of each way, up to the next size of the table.

    Where between two sizes the library changes its way is not known.
    """
    sizes = [round(value) for value in (2.0**octave).tolist()]
    found = []
    for entry in data:
        mine = [i for i, place in enumerate(of_row) if data[place].key == entry.key]
        every = sorted({sizes[i] for i in mine})
        spans: dict[str, tuple[int, int]] = {}
        for name in dict.fromkeys(ways[i] for i in mine):
            places = [every.index(sizes[i]) for i in mine if ways[i] == name]
            last = min(max(places) + 1, len(every) - 1)
            spans[name] = every[max(min(places) - 1, 0)], every[last]
        found.append(replace(entry, ways=spans))
    return tuple(found)


def _bands(
    rest: Posterior, keys: Sequence[str], nodes: Sequence[int], uncertainty: Uncertainty
) -> dict[str, list[list[float]]]:
    """Return the half widths of the 80 % band by table, and of other tables between them."""
    machine = rest.machine
    size = 2.0**machine.octave
    own = rest.half_widths()
    other = HALF_80 * rest.spread_of(replace(machine, table=np.full(len(keys), -1), loose=None))
    found: dict[str, list[list[float]]] = {}
    for name in (*dict.fromkeys(keys), "other"):
        mine = np.array([name in ("other", key) for key in keys])
        half = other if name == "other" else own
        low = 0.0
        rows: list[list[float]] = []
        for high in _BANDS:
            chosen = np.flatnonzero(mine & (size >= low) & (size < high))
            low = high
            if not len(chosen):
                continue
            width = float(half[chosen].max() if name == "other" else np.median(half[chosen]))
            for i in chosen.tolist():
                shipped = uncertainty(float(size[i]), nodes[i])
                width = width if shipped is None else min(width, math.log1p(shipped))
            rows.append([high, round(max(width, 0.01), 4)])
        found[name] = rows
    return found


def _errors(rows: Sequence[PredictedRow]) -> dict[str, dict[str, float]]:
    return {
        entry.name: {
            "median": _short(entry.median),
            "p90": _short(entry.p90),
            "rows": entry.n_rows,
        }
        for entry in errors_by_range(rows)
    }


def _short(value: float, digits: int = 3) -> float:
    return float(f"{value:.{digits}g}")
