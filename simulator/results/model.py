"""What a run tells, in plain frozen records: rows, links, ranks, trace, provenance.

Bandwidths are bytes/s per direction, times seconds.  ``size`` means nccl-tests' S: the total
buffer for all_gather, reduce_scatter, all_to_all, gather and scatter.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from simulator.results.goodput import GoodputResult
from simulator.results.training import TrainingStep, step_record

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "FRAME_COLUMNS",
    "Device",
    "Failure",
    "LinkEvent",
    "LinkLoad",
    "Provenance",
    "RankTimes",
    "Row",
    "RunResult",
    "StepSummary",
    "TraceEvent",
    "Vertex",
    "row_record",
]

TraceKind = Literal["compute", "collective", "transfer", "wait"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """The prediction for one collective call: one size of one variant of a sweep."""

    collective: str
    """``all_reduce``, ``all_gather`` … as in scenarios."""
    algorithm: str
    protocol: str
    """``Simple``, ``LL``, ``LL128``."""
    n_channels: int
    world_size: int
    n_nodes: int
    size_bytes: int
    """nccl-tests' *size* column, bytes."""
    count: int
    """nccl-tests' *count* column: elements of one rank's argument."""
    time_s: float
    """From the last rank's call to the last rank's end."""
    algbw_Bps: float
    """``size_bytes / time_s``; 0 where the time is 0."""
    busbw_Bps: float
    """algbw times the collective's factor of nccl-tests ``doc/PERFORMANCE.md``."""
    dtype: str = "float"
    """nccl-tests' *type* column: ``float``, ``half``, ``bfloat16``, ``uint8`` …"""
    redop: str = "none"
    """``sum`` …, or ``none`` where nothing is reduced."""
    root: int = -1
    """Root rank, −1 where there is none."""
    level: str = ""
    """Level of detail of the engine: ``steps`` or ``folded``."""
    level_reason: str = ""
    """Why that level was taken, in a few words."""
    bound_s: float | None = None
    """Bandwidth lower bound of the time; None where none is known."""
    binding_link: str = ""
    """Name of the link that binds; empty where latency does."""
    binding_kind: str = ""
    """Kind of that link, such as ``nvlink`` or ``infiniband``."""
    binding_share: float = 0.0
    """Share of the time in which that link works; 0 where latency binds."""
    launch_s: float | None = None
    """Part of the time spent launching."""
    latency_s: float | None = None
    """Part of the time spent in the latency of the steps."""
    bandwidth_s: float | None = None
    """Part of the time spent moving bytes."""
    uncertainty_s: float | None = None
    """u of the expected range, time² / (time + u) … time + u: even on the logarithm.  Of a fitted
    profile it holds 80 % of the measurements of machines that were left out of the fit."""
    variant: str = ""
    """Label of the variant in a comparison; empty in a plain sweep."""
    library_algorithm: str = ""
    """What the library calls the algorithm, such as NCCL's ``TREE``; empty where it has no name."""

    @property
    def called(self) -> str:
        """The algorithm's name for people: the library's, or else the registry's."""
        return self.library_algorithm or self.algorithm

    @property
    def percent_of_bound(self) -> float | None:
        """``100 · bound_s / time_s``: 100 is as fast as the links allow; None without bound."""
        if self.bound_s is None or self.time_s <= 0:
            return None
        return 100.0 * self.bound_s / self.time_s

    @property
    def label(self) -> str:
        """The variant, or else algorithm and protocol: what a legend calls this row."""
        return self.variant or " ".join(part for part in (self.called, self.protocol) if part)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSummary:
    """A whole run of programs: a training step, or several jobs at once."""

    time_s: float
    """Until the last rank is done."""
    compute_s: float
    """Time in which the busiest rank computes."""
    communication_s: float
    """Time in which the rank with most of it has a collective under way."""
    exposed_s: float
    """Part of the run in which the busiest rank does not compute."""
    n_calls: int
    sent_bytes: float
    """Payload that the rank which sends most has sent."""
    variant: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkLoad:
    """What one directed link carried over the run."""

    name: str
    kind: str
    capacity_Bps: float
    """Mean over the run: a fault counts for as long as it lasts."""
    wire_bytes: float
    """Bytes on the wire: payload, the protocol's flags, and what the link's efficiency takes."""
    utilisation: float
    """Share of that capacity used over the whole run, 0 … 1."""
    src: str
    """Name of the vertex where the link begins."""
    dst: str
    payload_bytes: float = 0.0
    """Data among the bytes on the wire."""
    fault: str = ""
    """What was done to the link: ``x 0.5``, ``down from 2 ms``; empty for one in health."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Vertex:
    """A vertex of the fabric, as far as drawing it needs."""

    name: str
    kind: str
    """One of ``gpu nvswitch pcie_switch cpu nic leaf spine core``."""
    node: int | None = None
    """Node it sits in; None for switches of the network."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A rank's GPU, as nccl-tests lists it."""

    rank: int
    node: str
    local_rank: int
    name: str
    """Such as ``NVIDIA H100 80GB HBM3``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankTimes:
    """Times of every rank for the whole run, one entry a rank.

    Raises
    ------
    ValueError
        The tuples differ in length.
    """

    call_s: tuple[float, ...]
    """When the rank called."""
    end_s: tuple[float, ...]
    """When the rank was done."""
    transfer_s: tuple[float, ...]
    """Time in which the rank had a send on the wire."""
    wait_s: tuple[float, ...]
    """Time between call and end without a send on the wire."""
    node: tuple[int, ...] = ()
    """Node of each rank; empty when unknown."""

    def __post_init__(self) -> None:
        lengths = {len(self.call_s), len(self.end_s), len(self.transfer_s), len(self.wait_s)}
        if len(lengths) != 1 or (self.node and len(self.node) not in lengths):
            raise ValueError(f"rank times of different lengths: {sorted(lengths)}")

    @classmethod
    def of(
        cls,
        *,
        call_s: Iterable[float],
        end_s: Iterable[float],
        transfer_s: Iterable[float],
        wait_s: Iterable[float],
        node: Iterable[int] = (),
    ) -> RankTimes:
        """Return the record of numpy arrays or other iterables, as Python numbers."""
        return cls(
            call_s=tuple(map(float, call_s)),
            end_s=tuple(map(float, end_s)),
            transfer_s=tuple(map(float, transfer_s)),
            wait_s=tuple(map(float, wait_s)),
            node=tuple(map(int, node)),
        )

    def __len__(self) -> int:
        return len(self.call_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceEvent:
    """Something with a begin and an end on a stream of a rank."""

    rank: int
    node: int
    stream: str
    """``compute``, ``comm`` …: one row of the trace per rank and stream."""
    name: str
    """For collectives the name of NCCL's kernel, see `simulator.results.trace.kernel_name`."""
    kind: TraceKind
    start_s: float
    end_s: float
    args: Mapping[str, Any] = field(default_factory=dict)
    """Shown on click: ``bytes``, ``step``, ``chunk``, ``algbw_GBps``, ``channel`` …"""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkEvent:
    """A message or flow that occupies a link for a while."""

    link: str
    kind: str
    """Link kind, which groups the rows."""
    name: str
    start_s: float
    end_s: float
    args: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """What made the result, enough to make it again."""

    version: str
    python: str = ""
    numpy: str = ""
    commit: str = ""
    seed: int | None = None
    scenario: Mapping[str, Any] = field(default_factory=dict)
    """The resolved scenario: every number, no default left out."""
    profile_sha256: str = ""
    """Of the cost profile's file; empty for a shipped profile."""
    command: str = ""
    date: str = ""
    """Left empty unless asked for, so that equal runs give equal files."""

    @classmethod
    def of_this_process(
        cls,
        *,
        version: str,
        scenario: Mapping[str, Any],
        seed: int | None = None,
        profile_sha256: str = "",
        command: str = "",
        commit: str = "",
        date: str = "",
    ) -> Provenance:
        """Return the record with the versions of the running interpreter filled in."""
        import platform

        import numpy as np

        return cls(
            version=version,
            python=platform.python_version(),
            numpy=np.__version__,
            commit=commit,
            seed=seed,
            scenario=scenario,
            profile_sha256=profile_sha256,
            command=command,
            date=date,
        )


FRAME_COLUMNS = (
    "variant",
    "collective",
    "algorithm",
    "protocol",
    "n_channels",
    "level",
    "world_size",
    "n_nodes",
    "size_bytes",
    "count",
    "dtype",
    "redop",
    "root",
    "time_us",
    "algbw_GBps",
    "busbw_GBps",
    "bound_us",
    "percent_of_bound",
    "binding_link",
    "binding_kind",
    "launch_us",
    "latency_us",
    "bandwidth_us",
    "uncertainty_us",
    "library_algorithm",
    "level_reason",
)
"""Columns of `RunResult.to_frame` and of the CSV file; new ones are only ever appended."""


def row_record(row: Row) -> dict[str, Any]:
    """Return one row as a mapping of `FRAME_COLUMNS`: microseconds and GB/s (10⁹ bytes/s)."""
    record: dict[str, Any] = {}
    for column in FRAME_COLUMNS:
        if column.endswith("_us"):
            seconds = getattr(row, column.removesuffix("_us") + "_s")
            record[column] = None if seconds is None else seconds * 1e6
        elif column.endswith("_GBps"):
            record[column] = getattr(row, column.removesuffix("_GBps") + "_Bps") / 1e9
        else:
            record[column] = getattr(row, column)
    return record


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A variant of a sweep without a result."""

    variant: str
    """Its label; empty: named in the message."""
    message: str
    exit_code: int
    """Of a run of this variant alone: 1 cannot finish, 2 wrong input, 70 a fault of collsim."""
    detail: str = ""
    """The traceback of a fault of collsim."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """Everything that a run, a sweep or a comparison tells.

    Examples
    --------
    >>> row = Row(collective="all_reduce", algorithm="ring", protocol="Simple", n_channels=8,
    ...           world_size=8, n_nodes=1, size_bytes=2**30, count=2**28, time_s=0.004,
    ...           algbw_Bps=2**30 / 0.004, busbw_Bps=2**30 / 0.004 * 1.75, bound_s=0.0038)
    >>> result = RunResult(title="8 GPUs", rows=(row,), provenance=Provenance(version="0.1.0"))
    >>> result.rows[0].percent_of_bound
    95.0
    """

    title: str
    rows: tuple[Row, ...]
    provenance: Provenance
    steps: tuple[StepSummary, ...] = ()
    """Of programs and jobs: the run as a whole, one entry a variant."""
    training: tuple[TrainingStep, ...] = ()
    """Of training steps: one entry a variant."""
    goodput: tuple[GoodputResult, ...] = ()
    """Of training over days: one entry a variant."""
    links: tuple[LinkLoad, ...] = ()
    """Loads of the links that carried anything (last row's run, or the whole step)."""
    ranks: RankTimes | None = None
    trace: tuple[TraceEvent, ...] = ()
    link_trace: tuple[LinkEvent, ...] = ()
    vertices: tuple[Vertex, ...] = ()
    """Vertices of the fabric, for the link-load picture."""
    devices: tuple[Device, ...] = ()
    """One entry a rank, for the head of the nccl-tests table."""
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    failures: tuple[Failure, ...] = ()
    """Variants of a sweep that have no row: invalid ones, and those that could not finish."""

    def to_frame(self) -> pd.DataFrame:
        """Return the rows as a pandas DataFrame with columns `FRAME_COLUMNS`."""
        import pandas as pd

        if self.training:
            return pd.DataFrame([step_record(step) for step in self.training])
        return pd.DataFrame([row_record(row) for row in self.rows], columns=list(FRAME_COLUMNS))

    def _repr_html_(self) -> str:
        """Return the table that notebooks show: columns which say nothing are left out."""
        frame = self.to_frame()
        told = [c for c in frame.columns if frame[c].notna().any() and (frame[c] != "").any()]
        parts = [f"<h4>{html.escape(self.title)}</h4>"]
        parts += [f"<p><b>Warning:</b> {html.escape(text)}</p>" for text in self.warnings]
        parts += [
            f"<p><b>Failed:</b> {html.escape(f'{entry.variant}: {entry.message}')}</p>"
            for entry in self.failures
        ]
        parts.append(frame[told].to_html(index=False, float_format=lambda x: f"{x:.4g}"))
        parts += [f"<p>{html.escape(text)}</p>" for text in self.notes]
        return "\n".join(parts)
