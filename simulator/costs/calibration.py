"""What a calibration knows of one machine beside its constants.

``collsim fit`` writes a cost profile with the constants that one machine showed, and with what the
model still gets wrong there: factors on a call's time over size, in parts common to all calls, to
those of one algorithm and protocol, and to one table (collective, ranks, nodes).  They hold for the
preset they were fitted on and fade to one away from the sizes that were measured.  What lies
outside the measured ranges is told, and keeps the uncertainty of the profile that was fitted.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from simulator.base.units import format_size

__all__ = [
    "Calibration",
    "Curve",
    "Measured",
    "OutsideFit",
    "joined",
    "table_key",
    "way_key",
]

MOST_REASONS = 8
"""Reasons of a warning that are told one by one."""


def way_key(algorithm: str, protocol: str) -> str:
    """Return the name of an algorithm's and protocol's curve.

    Examples
    --------
    >>> way_key("ring", "LL")
    'ring/LL'
    """
    return f"{algorithm}/{protocol}"


def table_key(collective: str, n_ranks: int, n_nodes: int) -> str:
    """Return the name of a table's curve.

    Examples
    --------
    >>> table_key("all_reduce", 16, 2), table_key("broadcast", 8, 1)
    ('all_reduce/16 ranks/2 nodes', 'broadcast/8 ranks/1 node')
    """
    plural = "" if n_nodes == 1 else "s"
    return f"{collective}/{n_ranks} ranks/{n_nodes} node{plural}"


@dataclass(frozen=True, slots=True)
class Curve:
    """Log factors over log2 of the size: linear between the points, none beyond them."""

    first: int
    """Octave of the first value; one octave lies between two."""
    values: tuple[float, ...]

    def at(self, size_bytes: float) -> float:
        """Return the log factor at a size.

        Examples
        --------
        >>> curve = Curve(10, (0.1, 0.3))
        >>> curve.at(1024), round(curve.at(1448), 3), curve.at(1 << 20)
        (0.1, 0.2, 0.0)
        """
        place = math.log2(max(size_bytes, 1.0)) - self.first
        last = len(self.values) - 1
        if place < 0 or place > last:
            return 0.0
        below = min(int(place), max(last - 1, 0))
        after = self.values[min(below + 1, last)]
        return self.values[below] + (place - below) * (after - self.values[below])


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Where a table was measured, both ends included."""

    collective: str
    ranks: int
    nodes: int
    sizes_bytes: tuple[int, int]
    ways: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """By way (`way_key`) the sizes to which it holds; empty: not told."""
    settings: Mapping[str, str] | None = None
    """Dotted keys of what was not usual in the run: `simulator.compose.calibrated.settings_of`;
    None: not told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Discrepancy, bands and ranges of one calibrated machine."""

    name: str
    file: str
    base: str
    """Profile that was calibrated."""
    base_identity: str
    """Of the constants of that profile when it was calibrated."""
    base_now: str
    """Of the constants of that profile as it is."""
    node: str
    """Node preset of the machine."""
    measured: tuple[Measured, ...]
    common: Curve = Curve(0, ())
    ways: Mapping[str, Curve] = field(default_factory=dict)
    tables: Mapping[str, Curve] = field(default_factory=dict)
    bands: Mapping[str, tuple[tuple[float, float], ...]] = field(default_factory=dict)
    """By table, and ``other`` for ranks and nodes between those of tables: (largest size in bytes,
    half width in log time of the 80 % band)."""

    def log_factor(
        self,
        collective: str,
        n_ranks: int,
        n_nodes: int,
        way: str,
        size_bytes: float,
        *,
        nodes_of: Iterable[str],
    ) -> float:
        """Return the log of measured over modelled time that is expected of a call.

        Parameters
        ----------
        collective, n_ranks, n_nodes, size_bytes
            The call.
        way
            As `way_key` returns it.  One that was not measured at the size has no curve of its
            own; what is common to all ways stays, so that ways can be compared.
        nodes_of
            Presets of the call's nodes; another machine than the fitted one has no factor.
        """
        if set(nodes_of) != {self.node}:
            return 0.0
        known = self.way_sizes(collective, n_ranks, n_nodes)
        least, most = (0.0, math.inf) if known is None else known.get(way, (math.inf, 0.0))
        curves = (
            self.common,
            self.ways.get(way) if least <= size_bytes <= most else None,
            self.tables.get(table_key(collective, n_ranks, n_nodes)),
        )
        return sum(curve.at(size_bytes) for curve in curves if curve is not None and curve.values)

    def outside(
        self,
        collective: str,
        n_ranks: int,
        n_nodes: int,
        size_bytes: float,
        *,
        nodes_of: Iterable[str],
        way: str | None = None,
        settings: Mapping[str, str] | None = None,
    ) -> tuple[str, ...]:
        """Return in how far a call lies outside what was measured, in words; empty: inside.

        Parameters
        ----------
        collective, n_ranks, n_nodes, size_bytes, nodes_of
            As `log_factor`.
        way
            As `way_key` returns it; None: not looked at.
        settings
            What is not usual in the run: `simulator.compose.calibrated.settings_of`; None: not
            looked at.
        """
        found: list[str] = []
        others = sorted(set(nodes_of) - {self.node})
        found += [f"node {name}" for name in others]
        if self.base_identity != self.base_now:
            found.append(f"another version of the profile {self.base}")
        near = [entry for entry in self.measured if entry.collective == collective]
        if not near:
            return (*found, collective)
        if not min(e.ranks for e in near) <= n_ranks <= max(e.ranks for e in near):
            found.append(f"{collective} of {n_ranks} ranks")
        if not min(e.nodes for e in near) <= n_nodes <= max(e.nodes for e in near):
            found.append(f"{collective} on {n_nodes} node{'' if n_nodes == 1 else 's'}")
        least, most = self.sizes_of(collective)
        if size_bytes < least:
            found.append(f"{collective} below {format_size(least)}")
        if size_bytes > most:
            found.append(f"{collective} above {format_size(most)}")
        if way is not None:
            found += self._other_way(collective, n_ranks, n_nodes, size_bytes, way)
        if settings is not None:
            found += self._other_settings(near, n_nodes, settings)
        return tuple(found)

    def way_sizes(
        self, collective: str, n_ranks: int, n_nodes: int
    ) -> Mapping[str, tuple[float, float]] | None:
        """Return the ways that were measured, with the sizes to which each holds.

        Those of the table with the same ranks and nodes, else of all tables of the collective.
        A file that does not say it has the ways with a curve, at all sizes; None: it has none.
        """
        near = [entry for entry in self.measured if entry.collective == collective]
        own = [entry for entry in near if (entry.ranks, entry.nodes) == (n_ranks, n_nodes)]
        found: dict[str, tuple[float, float]] = {}
        for entry in own or near:
            for way, (low, high) in entry.ways.items():
                least, most = found.get(way, (low, high))
                found[way] = min(least, low), max(most, high)
        if found:
            return found
        return dict.fromkeys(self.ways, (0.0, math.inf)) or None

    def _other_way(
        self, collective: str, n_ranks: int, n_nodes: int, size_bytes: float, way: str
    ) -> list[str]:
        """Return that a way was not measured, or not at the size."""
        known = self.way_sizes(collective, n_ranks, n_nodes)
        if known is None:
            return []
        if way not in known:
            return [f"{collective} by {way}"]
        low, high = known[way]
        least, most = self.sizes_of(collective)
        # Beyond all sizes the collective itself is told to be outside.
        if least <= size_bytes < low:
            return [f"{collective} by {way} below {format_size(int(low))}"]
        if high < size_bytes <= most:
            return [f"{collective} by {way} above {format_size(int(high))}"]
        return []

    def _other_settings(
        self, near: Iterable[Measured], n_nodes: int, settings: Mapping[str, str]
    ) -> list[str]:
        """Return what differs from the settings of the table that is most alike."""
        entries = list(near)
        alike = [entry for entry in entries if (entry.nodes > 1) == (n_nodes > 1)]
        if not alike:
            # That nothing is known of a network is told already.
            settings = {k: v for k, v in settings.items() if not k.startswith("fabric.")}
        return min((_apart(entry.settings, settings) for entry in alike or entries), key=len)

    def sizes_of(self, collective: str) -> tuple[int, int]:
        """Return the smallest and the largest size that were measured of a collective."""
        near = [e.sizes_bytes for e in self.measured if e.collective == collective]
        return min(low for low, _ in near), max(high for _, high in near)

    def half_width(
        self,
        collective: str,
        n_ranks: int,
        n_nodes: int,
        size_bytes: float,
        *,
        nodes_of: Iterable[str],
        way: str | None = None,
        settings: Mapping[str, str] | None = None,
    ) -> float | None:
        """Return the half width in log time of the 80 % band; None: that of the base profile.

        Parameters are those of `outside`.
        """
        if self.outside(
            collective,
            n_ranks,
            n_nodes,
            size_bytes,
            nodes_of=tuple(nodes_of),
            way=way,
            settings=settings,
        ):
            return None
        rows = self.bands.get(table_key(collective, n_ranks, n_nodes), self.bands.get("other"))
        if not rows:
            return None
        return next((width for limit, width in rows if size_bytes < limit), rows[-1][1])

    @property
    def words(self) -> str:
        """What was measured, in words."""
        parts = []
        for collective in dict.fromkeys(entry.collective for entry in self.measured):
            near = [entry for entry in self.measured if entry.collective == collective]
            least, most = self.sizes_of(collective)
            nodes = _span([e.nodes for e in near])
            parts.append(
                f"{collective}, {_span([e.ranks for e in near])} ranks, "
                f"{nodes} node{'' if nodes == '1' else 's'}, "
                f"{format_size(least)} to {format_size(most)}"
            )
        return f"{'; '.join(parts)} on {self.node}"

    def warning(self, reasons: Iterable[str]) -> OutsideFit:
        """Return the one warning of calls that lie outside, with their reasons."""
        return OutsideFit(self, tuple(dict.fromkeys(reasons)))


class OutsideFit(str):
    """A warning of calls outside a calibration, which can be joined with others: `joined`."""

    calibration: Calibration
    reasons: tuple[str, ...]

    def __new__(cls, calibration: Calibration, reasons: tuple[str, ...]) -> OutsideFit:
        """Return the warning in words."""
        shown = list(reasons[:MOST_REASONS])
        if len(reasons) > MOST_REASONS:
            shown.append(f"and {len(reasons) - MOST_REASONS} more")
        made = super().__new__(
            cls,
            f"{calibration.file}: outside its fit: {', '.join(shown)}. Measured: "
            f"{calibration.words}. Elsewhere its constants stand with the uncertainty of "
            f"{calibration.base}.",
        )
        made.calibration, made.reasons = calibration, reasons
        return made

    def __reduce__(self) -> tuple[type[OutsideFit], tuple[Calibration, tuple[str, ...]]]:
        """Return what a process hands to another."""
        return OutsideFit, (self.calibration, self.reasons)


def joined(warnings: Iterable[str]) -> tuple[str, ...]:
    """Return warnings, each once, and one of all calls outside the same file."""
    found: dict[str, str] = {}
    for text in warnings:
        if not isinstance(text, OutsideFit):
            found.setdefault(text, text)
            continue
        key = f"{text.calibration.file}: outside"
        before = found.get(key)
        reasons = before.reasons if isinstance(before, OutsideFit) else ()
        found[key] = text.calibration.warning((*reasons, *text.reasons))
    return tuple(found.values())


_OFTEN_UNTOLD = ("costs.version", "costs.gpus_per_process")
"""Settings that always have a value, which a file without settings does not say."""


def _apart(then: Mapping[str, str] | None, now: Mapping[str, str]) -> list[str]:
    """Return the settings that differ, in words."""
    if then is None:
        then = {}
        now = {key: value for key, value in now.items() if key not in _OFTEN_UNTOLD}
    found = []
    for key in sorted({*then, *now}):
        if key not in now:
            found.append(f"without {key} {then[key]}")
        elif key not in then:
            found.append(f"{key} {now[key]}")
        elif then[key] != now[key]:
            found.append(f"{key} {now[key]} (fitted with {then[key]})")
    return found


def _span(values: list[int]) -> str:
    low, high = min(values), max(values)
    return str(low) if low == high else f"{low} to {high}"
