"""Rules by which a library chooses its algorithm: tables of rank counts and sizes.

MPI libraries and gloo do not calculate; they look up.  A profile's ``rules`` hold, by collective,
rows in order; the first whose conditions hold decides, by the first size limit above the call's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Picked", "Rules"]

_UNITS = ("buffer", "part", "any")


@dataclass(frozen=True, slots=True, kw_only=True)
class Picked:
    """What the rules say about a call."""

    algorithm: str
    reason: str
    """In words, with the source."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    """Sizes and algorithms for some rank counts."""

    below: float
    """Fewer ranks than this."""
    power: bool | None
    """Rank counts that are (or are not) powers of two; None: any."""
    use: tuple[tuple[float, str], ...]
    """(bytes below, algorithm), ascending; the last limit is infinite."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The rules of a library."""

    source: str
    tables: Mapping[tuple[str, str], tuple[_Row, ...]]
    """By (collective, place): ``one`` node, ``many`` nodes."""
    units: Mapping[str, str] = field(default_factory=dict)
    """What the limits count, by collective: ``buffer`` nccl-tests' size, ``part`` one rank's."""
    numbers: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Our algorithm for each of the library's numbers from 1 on, by collective."""

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Rules:
        """Return the rules of a profile's section ``rules``."""
        tables: dict[tuple[str, str], tuple[_Row, ...]] = {}
        units: dict[str, str] = {}
        for collective, entry in data["collectives"].items():
            units[collective] = entry.get("unit", "buffer")
            both = entry.get("rows")
            for place in ("one", "many"):
                rows = entry.get(place, both)
                tables[collective, place] = tuple(_row(row) for row in rows or ())
        return cls(
            source=data["source"],
            tables=tables,
            units=units,
            numbers={key: tuple(names) for key, names in data.get("numbers", {}).items()},
        )

    def pick(self, collective: str, n_ranks: int, n_nodes: int, size_bytes: int) -> Picked | None:
        """Return the library's choice; None where its rules say nothing.

        Parameters
        ----------
        collective
            Name.
        n_ranks, n_nodes
            Of the group.
        size_bytes
            nccl-tests' size.
        """
        place = "one" if n_nodes == 1 else "many"
        unit = self.units.get(collective, "buffer")
        size = size_bytes // n_ranks if unit == "part" else size_bytes
        power = n_ranks & (n_ranks - 1) == 0
        for row in self.tables.get((collective, place), ()):
            if n_ranks >= row.below or row.power not in (None, power):
                continue
            least = 0.0
            for below, name in row.use:
                if size < below:
                    return Picked(algorithm=name, reason=self._reason(row, unit, least, below))
                least = below
        return None

    def _reason(self, row: _Row, unit: str, least: float, below: float) -> str:
        what = "a rank's part" if unit == "part" else "the buffer"
        parts = []
        if math.isfinite(row.below):
            parts.append(f"fewer than {row.below:.0f} ranks")
        if row.power is not None:
            parts.append("a power of two" if row.power else "no power of two")
        if least > 0:
            parts.append(f"{what} of at least {least:.0f} B")
        if math.isfinite(below):
            parts.append(f"{what} below {below:.0f} B")
        return f"{', '.join(parts) or 'always'} ({self.source})"


def _row(data: Mapping[str, Any]) -> _Row:
    use = data["use"]
    if isinstance(use, str):
        limits: tuple[tuple[float, str], ...] = ((math.inf, use),)
    else:
        limits = tuple((float(below), str(name)) for below, name in use)
    return _Row(
        below=float(data.get("ranks_below", math.inf)), power=data.get("power_of_two"), use=limits
    )
