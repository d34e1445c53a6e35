"""What a benchmark log says, as plain records: tables of rows of measured times.

Times are those printed, in seconds.  Bandwidths come twice: as printed, and recomputed from size
and time, because printed ones have two decimals and may follow another rank count.

References
----------
.. [1] nccl-tests, ``doc/PERFORMANCE.md``: definitions of size, algbw and busbw.
.. [2] nccl-tests, ``GetBw`` in ``src/<collective>.cu``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from simulator.base.errors import Problem
from simulator.importers.log_network import NetworkTold

__all__ = [
    "Device",
    "Log",
    "MeasuredRow",
    "MeasuredTable",
    "RunParameters",
    "Timing",
    "bus_factor",
    "implied_ranks",
]

_PARTS = ("all_gather", "reduce_scatter", "all_to_all", "all_to_allv", "gather", "scatter")
_PLAIN = ("broadcast", "reduce", "send_recv", "hypercube")


def bus_factor(collective: str, n_ranks: int) -> float | None:
    """Return busbw / algbw of nccl-tests [1]_, or None for a collective without one.

    Examples
    --------
    >>> bus_factor("all_reduce", 8), bus_factor("all_gather", 8), bus_factor("broadcast", 8)
    (1.75, 0.875, 1.0)
    """
    if collective == "all_reduce":
        return 2.0 * (n_ranks - 1) / n_ranks
    if collective in _PARTS:
        return (n_ranks - 1) / n_ranks
    return 1.0 if collective in _PLAIN else None


def implied_ranks(collective: str, factor: float) -> float | None:
    """Return the rank count for which busbw / algbw is *factor*; None when it does not tell.

    Examples
    --------
    >>> implied_ranks("all_reduce", 1.875), implied_ranks("broadcast", 1.0)
    (16.0, None)
    """
    share = factor / 2 if collective == "all_reduce" else factor
    if collective != "all_reduce" and collective not in _PARTS:
        return None
    if not 0.0 <= share < 1.0:
        return math.inf if share == 1.0 else None
    return 1.0 / (1.0 - share)


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """One half of a row: out-of-place or in-place."""

    time_s: float
    """Average time of one call.  May be zero, negative or NaN in a bad log, see `usable`."""
    algbw_Bps: float | None
    """Recomputed: size / time.  None when the time is not usable."""
    busbw_Bps: float | None
    """Recomputed: size / time × `bus_factor`.  None when rank count or collective is unknown."""
    printed_algbw_Bps: float | None
    printed_busbw_Bps: float | None
    wrong: int | None = None
    """Elements with a wrong result; None when nothing was checked or an old log gave an error."""
    max_error: float | None = None
    """Largest difference, printed instead of a count by nccl-tests before 2.13."""
    quantiles_s: tuple[float, float, float] | None = None
    """Least, greatest and 99th percentile of the iterations (option ``-I``)."""

    @property
    def usable(self) -> bool:
        """True when the time is finite and greater than zero."""
        return math.isfinite(self.time_s) and self.time_s > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRow:
    """One size of a table."""

    line: int
    """1-based line of the file."""
    size_bytes: int
    """nccl-tests' size: the buffer, or the total over ranks where each rank has a part."""
    count: int
    """Elements as printed: per rank where each rank has a part."""
    out_of_place: Timing | None
    in_place: Timing | None

    def timing(self, *, in_place: bool = False) -> Timing | None:
        """Return the wanted half when its time is usable, else None."""
        half = self.in_place if in_place else self.out_of_place
        return half if half is not None and half.usable else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One ``Rank … on … device …`` line."""

    rank: int
    group: int
    host: str
    device: int
    bus_id: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunParameters:
    """The parameter line; None where the log does not say."""

    n_threads: int | None = None
    n_gpus: int | None = None
    """GPUs per thread."""
    min_bytes: int | None = None
    max_bytes: int | None = None
    step_factor: float | None = None
    step_bytes: int | None = None
    warmup_iterations: int | None = None
    iterations: int | None = None
    aggregated: int | None = None
    """Calls between two groups' ends (``-m``)."""
    validation: int | None = None
    graph: int | None = None
    """Replays of a CUDA graph; 0: launched one by one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredTable:
    """One sweep over sizes of one collective, type, operation and root."""

    source: str
    """File name, without folders; with them where a command line gives them."""
    collective: str
    """As spelled in collsim; ``unknown`` when nothing tells."""
    collective_from: str
    """What told: ``banner``, ``command line``, ``columns``, ``file name`` or empty."""
    alike: tuple[str, ...] = ()
    """Other collectives that fit as well, where only the columns told."""
    dtype: str
    """As printed: ``float``, ``half``, ``bfloat16`` …"""
    redop: str | None
    root: int | None
    """None where a root means nothing (printed as −1 or not at all)."""
    n_ranks: int | None
    n_ranks_from: str
    """What told: ``device lines``, ``NCCL INFO``, ``command line``, ``columns``, ``busbw``."""
    implied_ranks: tuple[int, int] | None = None
    """Least and greatest count that busbw / algbw allows, where nothing tells it."""
    n_nodes: int | None
    """A guess from hosts and device numbers."""
    hosts: tuple[str, ...]
    gpus: tuple[str, ...]
    """Distinct GPU names, in order of rank."""
    devices: tuple[Device, ...]
    nccl_version: str | None
    """Such as ``2.21.5``; of RCCL likewise."""
    tests_version: str | None
    environment: Mapping[str, str]
    """NCCL_… and RCCL_… variables seen; addresses and folders removed, secrets never."""
    environment_lines: Mapping[str, int] = field(default_factory=dict)
    """Line of the file where a variable was last seen; none in JSON."""
    transports: Mapping[str, int]
    """Connections that NCCL reported, such as ``NET/IB/GDRDMA``, with their number."""
    messages: tuple[str, ...] = ()
    """What else the library said of its paths, and its warnings; without addresses."""
    n_nics: int | None = None
    """Network devices that a process listed; None where the log does not say."""
    network: NetworkTold | None = None
    """Kind, rate and use of the network's ports; None where no message tells anything of them."""
    library: str = ""
    """``nccl`` or ``rccl`` where the log names it."""
    algorithm: str | None = None
    """Schedule that `collsim measure` ran by send and receive; None: the library's own choice."""
    channels: int | None = None
    """Of the schedule."""
    parameters: RunParameters
    cpu_time: bool
    """True when the time column is ``cputime``: the time to launch, not to finish."""
    printed_average_Bps: float | None
    """``Avg bus bandwidth``: over all sizes, tiny and huge, so of no use for comparison."""
    rows: tuple[MeasuredRow, ...]

    def usable_rows(self, *, in_place: bool = False) -> tuple[MeasuredRow, ...]:
        """Return the rows with data to move and a usable time."""
        return tuple(
            row
            for row in self.rows
            if row.size_bytes > 0 and row.timing(in_place=in_place) is not None
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    """All tables of a file, and everything that was odd or lost."""

    tables: tuple[MeasuredTable, ...]
    warnings: tuple[Problem, ...] = field(default=())
    dropped_lines: tuple[int, ...] = field(default=())
    """Lines that held (part of) a row that could not be kept."""


def line_ranges(lines: Iterable[int], most: int = 12) -> str:
    """Return line numbers in words, neighbours joined.

    Examples
    --------
    >>> line_ranges([3, 7, 8, 9]), line_ranges([5])
    ('lines 3, 7–9', 'line 5')
    """
    ordered = sorted(set(lines))
    spans: list[list[int]] = []
    for line in ordered:
        if spans and line == spans[-1][1] + 1:
            spans[-1][1] = line
        else:
            spans.append([line, line])
    texts = [str(a) if a == b else f"{a}–{b}" for a, b in spans]
    rest = f" and {len(texts) - most} more places" if len(texts) > most else ""
    return ("line " if len(ordered) == 1 else "lines ") + ", ".join(texts[:most]) + rest
