"""What to measure, and what was measured: plain records that go to and from JSON."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

from simulator.base.errors import CollsimError, Problem, unknown_name
from simulator.collectives import algorithms
from simulator.collectives.names import canonical_collective, canonical_dtype, dtype_bytes

__all__ = [
    "FORMAT_VERSION",
    "LIBRARY",
    "HalfResult",
    "MeasureError",
    "MeasureOptions",
    "Measurement",
    "MicroRow",
    "SweepRow",
    "SweepTable",
    "check_root",
    "sizes_of",
    "validated",
]

FORMAT_VERSION = 1
LIBRARY = "library"
FAR_APART = 1.25
"""Third over first quartile of repetitions above which a median is told to say little."""
LEAST_CPU_SHARE = 0.9
"""Share of the time in which a process must have had a core; on an idle machine it is 1."""
BACKENDS = ("auto", "gloo", "nccl")
OPERATIONS = ("sum", "prod", "min", "max")
OVER_RANKS = ("average", "min", "max")
DTYPES = ("int8", "uint8", "int32", "int64", "half", "bfloat16", "float", "double")
MEASURED = (
    "all_gather",
    "all_reduce",
    "all_to_all",
    "barrier",
    "broadcast",
    "gather",
    "reduce",
    "reduce_scatter",
    "scatter",
    "send_recv",
)


class MeasureError(CollsimError):
    """A measurement that cannot be run: bad options, missing torch or GPU, a failed process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasureOptions:
    """One run of the harness.

    Sizes are nccl-tests': the total over ranks where each rank has a part.
    """

    collectives: tuple[str, ...] = ("all_reduce",)
    """In order; empty with `matmul` or `copy` alone."""
    ranks: int | None = None
    """Processes to start here; None: one per GPU, or 2 with gloo.  Ignored under torchrun."""
    backend: str = "auto"
    """``nccl``, ``gloo``, or ``auto``: NCCL where every rank has a GPU."""
    min_bytes: int = 8
    max_bytes: int = 32 * 1024 * 1024
    factor: int = 2
    """Each size is this many times the one before, unless `step_bytes` is set."""
    step_bytes: int | None = None
    dtype: str = "float"
    redop: str = "sum"
    root: int = 0
    warmup: int = 5
    """Calls before the clock starts, at every size."""
    iterations: int = 20
    """Calls between start and stop of the clock, enqueued back to back."""
    over_ranks: str = "average"
    """Whose time counts: nccl-tests' default ``average``, or ``min`` or ``max`` over ranks.  The
    record holds all three."""
    graph: int = 0
    """With NCCL: capture the iterations in a CUDA graph and replay it so often; 0: launch each
    call from Python, whose cost per call then is the floor at small sizes."""
    check: bool = True
    """Compare the result of one call with the expected data."""
    algorithms: tuple[str, ...] = (LIBRARY,)
    """``library`` for torch's own collective, or names of schedules (``ring``, ``tree`` …) to run
    by send and receive; one table each."""
    channels: int = 1
    """Channels of the schedule."""
    ranks_per_node: int | None = None
    """Node size that hierarchical schedules assume; None: the real one."""
    matmul: bool = False
    copy: bool = False
    timeout_s: float = 300.0
    """A rank that waits longer for another one fails."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HalfResult:
    """Times of one call, out-of-place or in-place."""

    time_s: float
    """Over ranks as `MeasureOptions.over_ranks` says, by default the average."""
    min_s: float
    """Fastest rank."""
    max_s: float
    """Slowest rank."""
    algbw_Bps: float
    busbw_Bps: float
    wrong: int | None
    """Wrong elements over all ranks; None: not checked."""
    low_s: float | None = None
    """On rank 0, a tenth of the repetitions took less; None: not timed one by one."""
    high_s: float | None = None
    """A tenth took more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepRow:
    """One size."""

    size_bytes: int
    count: int
    out_of_place: HalfResult | None
    """None where torch has no such call."""
    in_place: HalfResult | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepTable:
    """One sweep over sizes."""

    collective: str
    algorithm: str
    """``library``, or the name of a schedule."""
    channels: int
    """Of the schedule; 0 with ``library``: the library chooses."""
    dtype: str
    redop: str | None
    root: int | None
    rows: tuple[SweepRow, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroRow:
    """One microbenchmark on one device, for the compute model."""

    kind: str
    """``matmul``, ``copy``, ``add``, ``host_to_device``, ``device_to_host``, ``launch``."""
    shape: tuple[int, ...]
    """(m, n, k) of a matmul; (bytes,) otherwise."""
    dtype: str
    time_s: float
    """Median of the repetitions."""
    rate: float
    """FLOP/s of a matmul; payload bytes/s otherwise (a copy's bytes counted once)."""
    low_s: float | None = None
    """First quartile of the repetitions; None in records of before."""
    high_s: float | None = None
    """Third quartile."""

    cpu_share: float | None = None
    """Processor time of all threads over time on the clock: below 1 the process waited for a core.
    None on GPUs, whose host waits anyway."""

    @property
    def is_far_apart(self) -> bool:
        """True where repetitions differ much."""
        if self.low_s is None or self.high_s is None:
            return False
        return self.high_s > FAR_APART * self.low_s

    @property
    def has_waited(self) -> bool:
        """True where the process did not have a core all the time."""
        return self.cpu_share is not None and self.cpu_share < LEAST_CPU_SHARE


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """Everything one run gave."""

    version: int = FORMAT_VERSION
    backend: str
    n_ranks: int
    n_nodes: int
    options: MeasureOptions
    environment: dict[str, Any]
    """Devices, versions, settings; no host names or addresses."""
    tables: tuple[SweepTable, ...] = ()
    micro: tuple[MicroRow, ...] = ()
    notes: tuple[str, ...] = field(default=())
    """What was left out and why."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain lists and dictionaries for JSON."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, document: dict[str, Any]) -> Measurement:
        """Return the measurement that `to_dict` wrote.

        Raises
        ------
        MeasureError
            Another version or missing keys.
        """
        if document.get("version") != FORMAT_VERSION:
            raise MeasureError(
                Problem(
                    message=f"measurement of version {document.get('version')!r}",
                    allowed=str(FORMAT_VERSION),
                )
            )
        try:
            options = dict(document["options"])
            for key in ("collectives", "algorithms"):
                options[key] = tuple(options[key])
            return cls(
                backend=document["backend"],
                n_ranks=document["n_ranks"],
                n_nodes=document["n_nodes"],
                options=MeasureOptions(**options),
                environment=document["environment"],
                tables=tuple(_table(entry) for entry in document["tables"]),
                micro=tuple(
                    MicroRow(**{**entry, "shape": tuple(entry["shape"])})
                    for entry in document["micro"]
                ),
                notes=tuple(document["notes"]),
            )
        except (KeyError, TypeError) as error:
            raise MeasureError(Problem(message=f"not a measurement: {error}")) from None


def _table(entry: dict[str, Any]) -> SweepTable:
    def half(value: dict[str, Any] | None) -> HalfResult | None:
        return None if value is None else HalfResult(**value)

    rows = tuple(
        SweepRow(
            size_bytes=row["size_bytes"],
            count=row["count"],
            out_of_place=half(row["out_of_place"]),
            in_place=half(row["in_place"]),
        )
        for row in entry["rows"]
    )
    return SweepTable(**{**entry, "rows": rows})


def sizes_of(options: MeasureOptions) -> list[int]:
    """Return the sizes of the sweep.

    Examples
    --------
    >>> sizes_of(MeasureOptions(min_bytes=8, max_bytes=64))
    [8, 16, 32, 64]
    >>> sizes_of(MeasureOptions(min_bytes=8, max_bytes=24, step_bytes=8))
    [8, 16, 24]
    """
    sizes = [options.min_bytes]
    while True:
        step = options.step_bytes
        following = sizes[-1] * options.factor if step is None else sizes[-1] + step
        if following > options.max_bytes:
            return sizes
        sizes.append(following)


def validated(options: MeasureOptions) -> MeasureOptions:
    """Return the options with canonical names.

    Raises
    ------
    MeasureError
        Everything that is wrong with them, at once.
    """
    problems: list[Problem] = []
    names: list[str] = []
    for name in options.collectives:
        try:
            names.append(canonical_collective(name))
        except CollsimError:
            problems.append(unknown_name("collective", name, MEASURED))
    problems.extend(
        unknown_name("collective", name, MEASURED) for name in names if name not in MEASURED
    )
    problems.extend(
        unknown_name(f"algorithm for {name}", algorithm, [LIBRARY, *algorithms(name)])
        for name in names
        for algorithm in options.algorithms
        if algorithm != LIBRARY and algorithm not in algorithms(name)
    )
    if not options.algorithms:
        problems.append(Problem(key="algorithms", message="none given", allowed=LIBRARY))
    dtype = options.dtype
    try:
        dtype = canonical_dtype(dtype)
    except CollsimError as error:
        problems.extend(error.problems)
    else:
        if dtype not in DTYPES:
            problems.append(unknown_name("element type", dtype, DTYPES))
        elif options.min_bytes < dtype_bytes(dtype):
            problems.append(Problem(key="min_bytes", message="smaller than one element"))
    if options.backend not in BACKENDS:
        problems.append(unknown_name("backend", options.backend, BACKENDS))
    if options.redop not in OPERATIONS:
        problems.append(unknown_name("operation", options.redop, OPERATIONS))
    if options.over_ranks not in OVER_RANKS:
        problems.append(unknown_name("way over ranks", options.over_ranks, OVER_RANKS))
    if options.graph and options.backend == "gloo":
        problems.append(Problem(key="graph", message="CUDA graphs need NCCL, not gloo"))
    if not names and not options.matmul and not options.copy:
        problems.append(Problem(message="nothing to measure: no collective, no microbenchmark"))
    problems.extend(_limits(options))
    if problems:
        raise MeasureError(problems)
    return dataclasses.replace(options, collectives=tuple(names), dtype=dtype)


def check_root(options: MeasureOptions, n_ranks: int) -> None:
    """Raise MeasureError when the root is no rank of this world."""
    if options.root >= n_ranks:
        raise MeasureError(
            Problem(
                key="root",
                message=f"root {options.root} is outside the world",
                allowed=f"0 … {n_ranks - 1}",
            )
        )


def _limits(options: MeasureOptions) -> list[Problem]:
    checks = (
        ("min_bytes", options.min_bytes, options.min_bytes >= 1, "at least 1"),
        ("max_bytes", options.max_bytes, options.max_bytes >= options.min_bytes, "≥ min_bytes"),
        ("factor", options.factor, options.factor >= 2, "at least 2"),
        (
            *("step_bytes", options.step_bytes),
            *(options.step_bytes is None or options.step_bytes >= 1, "at least 1"),
        ),
        ("iterations", options.iterations, options.iterations >= 1, "at least 1"),
        ("graph", options.graph, options.graph >= 0, "at least 0"),
        ("warmup", options.warmup, options.warmup >= 0, "at least 0"),
        ("channels", options.channels, options.channels >= 1, "at least 1"),
        ("root", options.root, options.root >= 0, "a rank"),
        ("ranks", options.ranks, options.ranks is None or options.ranks >= 1, "at least 1"),
        ("timeout_s", options.timeout_s, options.timeout_s > 0, "greater than 0"),
    )
    return [
        Problem(key=key, message=f"found {found}", allowed=allowed)
        for key, found, good, allowed in checks
        if not good
    ]
