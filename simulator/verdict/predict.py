"""The rows of a measured table, predicted: same collective, sizes, type, ranks and root."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import simulator.verdict.bands as bands
from simulator.base.errors import CollsimError, Problem
from simulator.compose.build import build_cluster
from simulator.compose.cluster import Cluster
from simulator.compose.run import run_rows
from simulator.importers import MeasuredTable, bus_factor
from simulator.results.model import Row
from simulator.scenario.resolved import Resolved
from simulator.verdict.kinds import way_of
from simulator.verdict.setup import SetUp, call_words

__all__ = ["Clusters", "PredictedRow", "predict_rows", "predict_sizes", "uses_in_place"]

OnProgress = Callable[[int, int], None]
_Choice = tuple[str, str, int]
"""Algorithm, protocol, channels."""


class Clusters:
    """Clusters that were built before, by what they are built from, and rows predicted on them.

    Routes and graphs of a cluster take longer than one call on it; faults of links, algorithms
    and protocols leave it as it is.  Logs repeat tables: each size of a call on a set-up is
    predicted once.
    """

    MOST = 6
    """Clusters kept."""

    def __init__(self) -> None:
        self._built: dict[str, Cluster] = {}
        self._rows: dict[Hashable, dict[int, Row]] = {}
        self._plain: Clusters | None = None
        self.shares: dict[Hashable, float | None] = {}
        """What busiest NICs send, see `simulator.verdict.nics`."""

    @property
    def plain(self) -> Clusters:
        """The same clusters without the discrepancy of a calibration, for comparisons."""
        if self._plain is None:
            self._plain = PlainClusters()
        return self._plain

    def rows(self, key: Hashable) -> dict[int, Row]:
        """Return the rows by size that were predicted for a call on a set-up, to be added to."""
        return self._rows.setdefault(key, {})

    @staticmethod
    def build(resolved: Resolved) -> Cluster:
        """Return a new cluster."""
        return build_cluster(resolved)

    def of(self, resolved: Resolved, healthy: Resolved | None = None) -> Cluster:
        """Return the cluster of a scenario.

        Parameters
        ----------
        resolved
            The scenario.
        healthy
            What the library takes it for, where it does not know of a fault; None: what it is.
        """
        key = _cluster_key(resolved)
        if healthy is not None and _cluster_key(healthy) != key:
            key = f"{key} seen as {_cluster_key(healthy)}"
        if key not in self._built:
            try:
                built = self.build(resolved)
            except CollsimError as error:
                raise resolved.located(error) from error
            if healthy is not None:
                built.seen_as(self.of(healthy))
            if len(self._built) >= self.MOST:
                # The first one stays: it is the healthy machine, on which most faults lie.
                del self._built[list(self._built)[1]]
            self._built[key] = built
        return self._built[key]


class PlainClusters(Clusters):
    """Clusters without the discrepancy of a calibration.

    It holds for the ways that a healthy machine takes.  Where a fault takes another, of which no
    discrepancy is known, that difference alone would look like the fault or speak against it.
    """

    @staticmethod
    def build(resolved: Resolved) -> Cluster:
        """Return a new cluster."""
        built = build_cluster(resolved)
        built.calibrated = None
        return built


def _cluster_key(resolved: Resolved) -> str:
    parts = (
        resolved.node_groups,
        resolved.topology,
        resolved.fabric,
        resolved.routing,
        resolved.costs,
        resolved.env,
    )
    return repr(parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedRow:
    """A measured row with its prediction beside it."""

    line: int
    """Of the log."""
    measured_s: float
    in_place: bool
    """True when the in-place column was taken."""
    wrong: int | None
    """Elements with a wrong result; None when the log does not say."""
    predicted: Row
    way: str = ""
    """How data travel, see `simulator.verdict.kinds.way_of`."""
    calibrated: bool = False
    """The band is that of a calibration of this machine, not that of published ones."""

    @property
    def size_bytes(self) -> int:
        """nccl-tests' size."""
        return self.predicted.size_bytes

    @property
    def ratio(self) -> float:
        """Predicted / measured time: above 1 the machine is faster than predicted."""
        return self.predicted.time_s / self.measured_s

    @property
    def error(self) -> float:
        """Share of the measured time by which the prediction misses it."""
        return abs(self.predicted.time_s - self.measured_s) / self.measured_s

    @property
    def measured_busbw_Bps(self) -> float:
        """nccl-tests' busbw of the measured time."""
        factor = bus_factor(self.predicted.collective, self.predicted.world_size)
        scale = 1.0 if factor is None else factor
        return self.size_bytes / self.measured_s * scale

    @property
    def slowness(self) -> float:
        """ln(measured / predicted) over the half width of the 80 % band: 1 is its slow end."""
        return -math.log(self.ratio) / bands.half_width(self.predicted)

    @property
    def percent_reached(self) -> float:
        """Measured bandwidth as a percentage of the predicted one."""
        return 100.0 * self.ratio

    @property
    def expected_s(self) -> tuple[float, float]:
        """The 80 % band of the time, see `simulator.verdict.bands`."""
        return bands.expected_s(self.predicted)


def uses_in_place(table: MeasuredTable) -> bool:
    """Return True when only the in-place column holds usable times."""
    return not table.usable_rows() and bool(table.usable_rows(in_place=True))


def predict_rows(
    set_up: SetUp,
    table: MeasuredTable,
    *,
    sizes_bytes: Iterable[int] | None = None,
    in_place: bool | None = None,
    clusters: Clusters | None = None,
    on_progress: OnProgress | None = None,
) -> list[PredictedRow]:
    """Return the table's usable rows with their predictions, in the log's order.

    Parameters
    ----------
    set_up
        The cluster; its ranks must be the table's, see `simulator.verdict.setup.fitted`.
    table
        What was measured.
    sizes_bytes
        Only rows of these sizes; None: all.
    in_place
        Which column; None: out-of-place, in-place where that is missing (row by row).
    clusters
        Clusters to use again.
    on_progress
        Called with (sizes done, sizes in all).

    Raises
    ------
    CollsimError
        No usable row, or a set-up that cannot run the call.
    """
    wanted = None if sizes_bytes is None else set(sizes_bytes)
    chosen: list[tuple[int, int, float, bool, int | None]] = []
    for row in table.rows:
        halves = [False, True] if in_place is None else [in_place]
        for half in halves:
            timing = row.timing(in_place=half)
            if timing is not None and row.size_bytes > 0:
                if wanted is None or row.size_bytes in wanted:
                    chosen.append((row.line, row.size_bytes, timing.time_s, half, timing.wrong))
                break
    if not chosen:
        raise CollsimError(
            Problem(
                file=table.source,
                line=table.rows[0].line,
                message=f"no row of {table.collective} has data and a time above zero",
                allowed="rows with a size and a time in microseconds",
            )
        )
    sizes = sorted({size for _, size, _, _, _ in chosen})
    clusters = clusters or Clusters()
    predicted = predict_sizes(set_up, table, sizes, clusters=clusters, on_progress=on_progress)
    resolved = set_up.resolve(call_words(table, sizes))
    own = _calibrated(clusters.of(resolved), predicted)
    way = way_of(resolved, predicted[sizes[0]].n_nodes)
    return [
        PredictedRow(
            line=line,
            measured_s=time_s,
            in_place=half,
            wrong=wrong,
            predicted=predicted[size],
            way=way,
            calibrated=size in own,
        )
        for line, size, time_s, half, wrong in chosen
    ]


def _calibrated(cluster: Cluster, predicted: Mapping[int, Row]) -> set[int]:
    """Return the sizes whose band is that of a calibration of the machine."""
    found = cluster.calibrated
    if found is None:
        return set()
    return {size for size, row in predicted.items() if found.covers(row)}


def predict_sizes(
    set_up: SetUp,
    table: MeasuredTable,
    sizes_bytes: Sequence[int],
    *,
    words: Mapping[str, str] | None = None,
    choices: Mapping[int, Row] | None = None,
    clusters: Clusters | None = None,
    on_progress: OnProgress | None = None,
) -> dict[int, Row]:
    """Return the predictions of a table's call at some sizes.

    Parameters
    ----------
    set_up, table
        As `predict_rows`.
    sizes_bytes
        Sizes.
    words
        Laid over the set-up: a fault.
    choices
        Rows whose algorithm, protocol and channels are kept: for a fault that the library does
        not know of when it chooses.
    clusters
        Clusters to use again.
    on_progress
        As `predict_rows`.
    """
    clusters = clusters or Clusters()
    laid = {**call_words(table, sizes_bytes), **(words or {})}
    found: dict[int, Row] = {}
    for choice, members in _by_choice(sizes_bytes, choices).items():
        known = clusters.rows((set_up.key(laid, but="collective.sizes"), choice))
        missing = [size for size in members if size not in known]
        if missing:
            healthy = set_up.resolve(call_words(table, sizes_bytes)) if choice and words else None
            for row in _run(set_up.resolve(laid), healthy, missing, choice, clusters, on_progress):
                known[row.size_bytes] = row
        found |= {size: known[size] for size in members}
    return found


def _run(
    resolved: Resolved,
    healthy: Resolved | None,
    sizes_bytes: Sequence[int],
    choice: _Choice | None,
    clusters: Clusters,
    on_progress: OnProgress | None,
) -> Sequence[Row]:
    """Return the rows of a call at some sizes, done as the library or *choice* says."""
    cluster, spec = clusters.of(resolved, healthy), resolved.collective
    if spec is None:
        raise CollsimError("the scenario has no collective")
    spec = replace(spec, sizes_bytes=tuple(sizes_bytes))
    if choice is not None:
        algorithm, protocol, channels = choice
        spec = replace(spec, algorithm=algorithm, protocol=protocol, channels=channels)
    return run_rows(replace(resolved, collective=spec), cluster=cluster, on_progress=on_progress)


def _by_choice(
    sizes_bytes: Sequence[int], choices: Mapping[int, Row] | None
) -> dict[_Choice | None, list[int]]:
    if choices is None:
        return {None: list(sizes_bytes)}
    groups: dict[_Choice | None, list[int]] = {}
    for size in sizes_bytes:
        row = choices[size]
        groups.setdefault((row.algorithm, row.protocol, row.n_channels), []).append(size)
    return groups
