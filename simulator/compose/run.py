"""Run a resolved scenario: the one function that goes from question to answer."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import cast

import numpy as np
from numpy.typing import NDArray

import simulator
from simulator.base.errors import CollsimError, Problem, ScenarioError
from simulator.collectives.call import Call
from simulator.collectives.names import busbw_factor
from simulator.compose.bound import bound_s
from simulator.compose.build import build_cluster
from simulator.compose.choose import choose
from simulator.compose.cluster import Choice, Cluster
from simulator.compose.faults import link_changes, tell_dead_nics
from simulator.compose.idle import idle_choices
from simulator.compose.idle_costs import told_idle_overrides
from simulator.compose.latency_bound import latency_bound_s
from simulator.compose.level import AS_OTHERS, ASKED, SUMMED, TOO_MANY, has_to_fold, may_fold
from simulator.compose.programs import (
    Planned,
    call_of,
    late_by_rank,
    plan_call,
    plan_jobs,
)
from simulator.compose.report import (
    devices,
    link_busy_s,
    link_events,
    link_loads,
    payload_shares,
    rank_events,
    rank_times,
    step_summary,
    type_name,
    vertices,
)
from simulator.engine.jitter import JitterSpec
from simulator.engine.outcome import CollectiveRecord, Outcome
from simulator.engine.simulate import simulate
from simulator.engine.traffic import Collective, Connections, Level
from simulator.fabric.model import LINK_KINDS
from simulator.results.model import Provenance, Row, RunResult
from simulator.scenario.calls import ROOTED
from simulator.scenario.resolved import Resolved
from simulator.scenario.schema import CollectiveSpec

__all__ = ["run_resolved"]

IntArray = NDArray[np.int64]

BINDING_SHARE = 0.3
"""A link that works for less than this share of a call does not bind it: latency does."""

_NUMBER_AT_END = re.compile(r"\s*[\d.]+$")

OnProgress = Callable[[int, int], None]


def run_resolved(
    resolved: Resolved,
    *,
    record: bool | None = None,
    cluster: Cluster | None = None,
    on_progress: OnProgress | None = None,
    fold: bool = False,
) -> RunResult:
    """Simulate one variant of a scenario.

    Parameters
    ----------
    resolved
        The scenario, nothing left open.
    record
        Keep every message for traces and step plots; None: as the scenario says.
    cluster
        What `build_cluster` made of a scenario with the same nodes, fabric, routing, costs and
        environment; None: build it.
    on_progress
        Called with (rows done, rows in all) after each size of a sweep.
    fold
        Take the folded level where the scenario leaves it open.

    Returns
    -------
    RunResult
        One row per size (kind ``collective``) or per distinct collective (``steps``, ``jobs``).

    Raises
    ------
    CollsimError
        What the scenario asks for cannot be built, or the run cannot finish.
    """
    try:
        result = _run(resolved, record, cluster, on_progress, fold)
        if cluster is None and resolved.costs.overrides:
            result = told_idle_overrides(
                result, resolved, lambda other: _run(other, False, build_cluster(other), None, fold)
            )
        return result
    except CollsimError as error:
        raise resolved.located(error) from error


def run_rows(
    resolved: Resolved, *, cluster: Cluster, on_progress: OnProgress | None = None
) -> tuple[Row, ...]:
    """Return the rows alone of a scenario of one collective: loads of links take their time.

    Parameters and errors are those of `run_resolved`.
    """
    try:
        made = _Runner(cluster, resolved, record=False).swept(on_progress)
        spec = resolved.collective
        if spec is not None and len(made.rows) < len(spec.sizes_bytes):
            raise KeyboardInterrupt
        return tuple(made.rows)
    except CollsimError as error:
        raise resolved.located(error) from error


def _run(
    resolved: Resolved,
    record: bool | None,
    cluster: Cluster | None,
    on_progress: OnProgress | None,
    fold: bool,
) -> RunResult:
    tells_idle = cluster is None and bool(resolved.env)
    cluster = cluster or build_cluster(resolved)
    if resolved.kind == "training":
        from simulator.compose.step.run import run_training

        return run_training(cluster, resolved, record=bool(record or resolved.engine.record))
    recorded = bool(resolved.engine.record) if record is None else record
    runner = _Runner(cluster, resolved, recorded, fold=fold)
    if resolved.kind == "collective":
        return runner.sweep(on_progress, tells_idle=tells_idle)
    return runner.step()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Simulated:
    outcome: Outcome
    planned: Planned
    level_reason: str
    """Why calls of the folded level are there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Swept:
    rows: list[Row]
    chosen: list[tuple[Call, Choice]]
    last: _Simulated
    warnings: list[str]


class _Runner:
    """One variant: its cluster, and the engine's settings taken from the scenario."""

    def __init__(
        self, cluster: Cluster, resolved: Resolved, record: bool, *, fold: bool = False
    ) -> None:
        self.fold = fold
        """Where the level is free: folded, as the rest of a sweep is."""
        self.cluster = cluster
        self.resolved = resolved
        self.record = record
        perturb = resolved.perturb
        self.jitter = JitterSpec(
            transfer_sigma=perturb.jitter.sigma,
            latency_s=perturb.jitter.latency_s,
            skew_s=perturb.skew_s,
        )
        cluster.sums_exchanges = resolved.engine.level != "steps" and not self.jitter
        if cluster.calibrated is not None:
            cluster.calibrated.damaged = bool(perturb.links)
        self.changes = link_changes(cluster, perturb.links)
        tell_dead_nics(cluster, perturb.links)
        self.late_s = late_by_rank(resolved, cluster.n_gpus)

    def sweep(self, on_progress: OnProgress | None, *, tells_idle: bool = False) -> RunResult:
        """Return the table over sizes of a single collective.

        Parameters
        ----------
        on_progress
            As in `run_resolved`.
        tells_idle
            Warn of variables of the library's choice that change it at no size.
        """
        spec = self.resolved.collective
        assert spec is not None
        made = self.swept(on_progress)
        group = self._group(spec.ranks)
        if tells_idle:
            made.warnings.extend(
                idle_choices(
                    self.cluster,
                    made.chosen,
                    group,
                    algorithm=spec.algorithm,
                    protocol=spec.protocol,
                    channels=spec.channels,
                )
            )
        title = f"{spec.op} on {self._where(group)}"
        return self._result(title, made.rows, made.last, warnings=made.warnings, notes=[])

    def swept(self, on_progress: OnProgress | None) -> _Swept:
        """Return the rows over sizes of a single collective, and what they were made of."""
        spec = self.resolved.collective
        assert spec is not None
        group = self._group(spec.ranks)
        sizes = spec.sizes_bytes or (self._size_of_counts(),)
        rows: list[Row] = []
        chosen: list[tuple[Call, Choice]] = []
        last: _Simulated | None = None
        warnings: list[str] = []
        try:
            for index, size_bytes in enumerate(sizes):
                call, choice, done, row = self._sized(
                    spec, group, size_bytes, record=self.record and index == len(sizes) - 1
                )
                rows.append(row)
                chosen.append((call, choice))
                last = done
                warnings += [text for text in done.outcome.warnings if text not in warnings]
                if on_progress is not None:
                    on_progress(index + 1, len(sizes))
            if has_to_fold(rows) and may_fold(self.resolved, rows):
                for index, row in enumerate(rows):
                    if row.level == "steps":
                        _, _, last, rows[index] = self._sized(spec, group, sizes[index], fold=True)
        except KeyboardInterrupt:
            if not rows:
                raise
            warnings.insert(0, f"interrupted: {len(rows)} of {len(sizes)} sizes are done")
        assert last is not None
        return _Swept(rows=rows, chosen=chosen, last=last, warnings=warnings)

    def _sized(
        self,
        spec: CollectiveSpec,
        group: IntArray,
        size_bytes: int,
        *,
        record: bool = False,
        fold: bool = False,
    ) -> tuple[Call, Choice, _Simulated, Row]:
        """Return what a call of one size is, how it is carried out, and its row."""
        call = call_of(spec, len(group), size_bytes)
        choice = choose(
            self.cluster,
            call,
            group,
            algorithm=spec.algorithm,
            protocol=spec.protocol,
            channels=spec.channels,
        )
        planned = plan_call(self.cluster, spec, size_bytes, group, choice, self.late_s)
        done = self._simulate(planned, record=record, fold=fold or self.fold)
        found, lowered = done.outcome.collectives[0], planned.collectives()[0]
        row = self._row(call, group, choice, found, lowered, done.level_reason)
        return call, choice, done, row

    def step(self) -> RunResult:
        """Return the table of all collectives of programs, a generator or several jobs.

        Calls that differ only in a number at the end of their name are one line: the longest.
        """
        planned = plan_jobs(self.cluster, self.resolved)
        done = self._simulate(planned, record=self.record)
        families: dict[tuple[str, str, int, int], list[CollectiveRecord]] = {}
        for found in done.outcome.collectives:
            call, group, _ = planned.calls[id(found.collective)]
            job = found.communicator.split(":")[0] if ":" in found.communicator else ""
            family = _NUMBER_AT_END.sub("", found.name)
            key = (job, family, call.size_bytes, len(group))
            families.setdefault(key, []).append(found)
        rows: list[Row] = []
        for (job, family, _, _), records in families.items():
            longest = max(records, key=_duration_s)
            lowered = longest.collective
            call, group, choice = planned.calls[id(lowered)]
            row = self._row(call, group, choice, longest, lowered, done.level_reason)
            label = f"{job}: {family}" if job else family
            times = f" ×{len(records)}" if len(records) > 1 else ""
            rows.append(replace(row, variant=label + times))
        title = f"{self.resolved.kind} on {self._where(np.arange(self.cluster.n_gpus))}"
        return replace(
            self._result(title, rows, done, warnings=list(done.outcome.warnings), notes=[]),
            steps=(step_summary(done.outcome),),
        )

    # -- the engine ---------------------------------------------------------------------------

    def _level(self, planned: Planned, record: bool) -> tuple[Level, str]:
        """Return the level to ask the engine for, and why where that is ``folded``.

        Training steps make hundreds of calls, of which each lasts for many messages; and the
        constants of a library are fitted at the folded level, so they hold there.
        """
        level = cast("Level", self.resolved.engine.level)
        if any(stage.wire_bytes is not None for c in planned.collectives() for stage in c.stages):
            return "folded", SUMMED
        if level != "auto":
            return level, ASKED
        if not self.jitter and not record:
            if self.cluster.profile.per_channel:
                return "folded", f"the constants of {self.cluster.profile.name} are fitted there"
            if self.resolved.kind == "steps":
                return "folded", "programs are timed there"
        return level, TOO_MANY

    def _simulate(self, planned: Planned, *, record: bool, fold: bool = False) -> _Simulated:
        engine = self.resolved.engine
        level, reason = self._level(planned, record)
        if fold and level == "auto":
            level, reason = "folded", AS_OTHERS
        outcome = simulate(
            self.cluster.network,
            planned.programs,
            level=level,
            max_transfers=engine.max_transfers,
            changes=self.changes,
            reroute=lambda collective, dead: self._reroute(planned, collective, dead),
            jitter=self.jitter if self.jitter else None,
            rng=np.random.default_rng(self.resolved.seed) if self.jitter else None,
            compute_slowdown=self.resolved.perturb.compute_slowdown - 1.0,
            record=record,
        )
        return _Simulated(outcome=outcome, planned=planned, level_reason=reason)

    def _reroute(
        self, planned: Planned, collective: Collective, dead: frozenset[int]
    ) -> Connections:
        call, group, choice = planned.calls[id(collective)]
        router = self.cluster.lowering.router.without(dead)
        return self.cluster.collective(
            call, group, choice, name=collective.name, router=router
        ).connections

    # -- rows and results ---------------------------------------------------------------------

    def _row(
        self,
        call: Call,
        group: IntArray,
        choice: Choice,
        record: CollectiveRecord,
        lowered: Collective,
        level_reason: str,
    ) -> Row:
        least_s = self.cluster.profile.least_call_s * self.cluster.factor(call, group, choice)
        time_s = max(self._measured_s(call, record), least_s)
        limit_s = bound_s(self.cluster, call, group)
        window_s = float(np.max(record.end_s) - np.min(record.call_s))
        if call.world_size > 1 and window_s < limit_s * (1 - 1e-9):
            raise AssertionError(
                f"{record.name}: {window_s} s is below the bandwidth lower bound of {limit_s} s"
            )
        travel_s = latency_bound_s(self.cluster, call, group)
        if window_s < travel_s * (1 - 1e-9):
            raise AssertionError(
                f"{record.name}: {window_s} s is below the {travel_s} s that its data travel"
            )
        algbw = call.size_bytes / time_s if time_s > 0 else 0.0
        link, kind, busy = self._binding(lowered, time_s)
        spec_type = self._dtype(call)
        return Row(
            collective=call.collective,
            algorithm=choice.algorithm,
            protocol=choice.protocol,
            n_channels=choice.n_channels,
            world_size=call.world_size,
            n_nodes=self.cluster.group_nodes(group),
            size_bytes=call.size_bytes,
            count=_count(call),
            time_s=time_s,
            algbw_Bps=algbw,
            busbw_Bps=algbw * busbw_factor(call.collective, call.world_size),
            dtype=spec_type,
            redop=self._redop(call),
            root=call.root if call.collective in ROOTED else -1,
            level=record.level,
            level_reason=level_reason if record.level == "folded" else "",
            bound_s=limit_s if limit_s > 0 else None,
            binding_link=link,
            binding_kind=kind,
            binding_share=busy,
            launch_s=self._launch_s(choice, time_s),
            uncertainty_s=self._uncertainty_s(call, group, choice, time_s),
            library_algorithm=self.cluster.library_algorithm(choice.algorithm),
        )

    def _uncertainty_s(
        self, call: Call, group: IntArray, choice: Choice, time_s: float
    ) -> float | None:
        """Return what the time may be longer by: 80 % of machines left out of the fit were in it.

        None for a profile that was not fitted, and for one rank alone, of which no fit knows.
        """
        if call.world_size == 1:
            return None
        nodes = self.cluster.group_nodes(group)
        calibrated = self.cluster.calibrated
        width = None
        if calibrated is not None:
            width = calibrated.half_width(call, group, choice.algorithm, choice.protocol)
        if width is not None:
            return math.expm1(width) * time_s
        share = self.cluster.profile.uncertainty(call.size_bytes, nodes)
        return None if share is None else share * time_s

    def _measured_s(self, call: Call, record: CollectiveRecord) -> float:
        """Return the longest time that a rank spends in the call.

        One rank alone only copies its buffer: launch, then a read and a write of memory.
        """
        if call.world_size == 1:
            gpu = self.cluster.template_of(int(record.group[0])).gpu
            copied = 0 if call.collective == "barrier" else call.size_bytes
            return self.cluster.profile.launch_s + 2.0 * copied / gpu.memory_Bps
        return _duration_s(record)

    def _launch_s(self, choice: Choice, time_s: float) -> float:
        packing = self.cluster.profile.protocols[choice.protocol]
        return min(self.cluster.profile.launch_s + packing.extra_launch_s, time_s)

    def _binding(self, lowered: Collective, time_s: float) -> tuple[str, str, float]:
        """Return name, kind and busy share of the busiest link; empty where latency binds instead.

        Latency binds where even that link works for less than `BINDING_SHARE` of the time.
        """
        if len(lowered.group) == 1 or time_s <= 0:
            return "", "", 0.0
        busy_s = link_busy_s(self.cluster, lowered)
        for change in self.changes:
            if 0 < change.factor < 1:
                busy_s[change.link] /= change.factor
        link = int(np.argmax(busy_s))
        if busy_s[link] < BINDING_SHARE * time_s:
            return "", "", 0.0
        kind = LINK_KINDS[int(self.cluster.fabric.link_kind[link])]
        return self.cluster.fabric.link_name(link), kind, float(busy_s[link] / time_s)

    def _dtype(self, call: Call) -> str:
        spec = self.resolved.collective
        return type_name(call.element_bytes) if spec is None else spec.dtype

    def _redop(self, call: Call) -> str:
        reduces = call.collective in ("all_reduce", "reduce", "reduce_scatter")
        spec = self.resolved.collective
        return (spec.redop if spec is not None else "sum") if reduces else "none"

    def _group(self, ranks: tuple[int, ...] | None) -> IntArray:
        if ranks is None:
            return np.arange(self.cluster.n_gpus, dtype=np.int64)
        group = np.asarray(ranks, dtype=np.int64)
        if len(group) == 0 or group.max() >= self.cluster.n_gpus or group.min() < 0:
            raise ScenarioError(
                Problem(
                    key="collective.ranks",
                    message=f"rank {int(group.max(initial=0))} is outside the cluster",
                    allowed=f"ranks 0-{self.cluster.n_gpus - 1}",
                )
            )
        return group

    def _size_of_counts(self) -> int:
        spec = self.resolved.collective
        assert spec is not None
        if spec.counts_bytes is None:
            return 0
        counts = np.asarray(spec.counts_bytes, dtype=np.int64)
        return int(counts.sum()) if counts.ndim == 1 else int(counts.sum() // len(counts))

    def _where(self, group: IntArray) -> str:
        where = f"{len(group)} GPUs, {self.cluster.nodes_words(group)}"
        return where + self.cluster.library_words

    def _result(
        self,
        title: str,
        rows: list[Row],
        last: _Simulated,
        *,
        warnings: list[str],
        notes: list[str],
    ) -> RunResult:
        from simulator.scenario.dump import to_mapping

        records = last.outcome.collectives
        folded = sum(record.level == "folded" for record in records)
        if self.record and folded:
            warnings = [
                *warnings,
                f"messages of {folded} of {len(records)} calls are not in traces and step plots: "
                "they were simulated at the folded level (engine.level: steps records all)",
            ]
        return RunResult(
            title=title,
            rows=tuple(rows),
            links=link_loads(
                self.cluster,
                last.outcome,
                changes=self.changes,
                payload_share=payload_shares(self.cluster, last.planned, last.outcome),
            ),
            ranks=rank_times(self.cluster, last.outcome),
            trace=rank_events(self.cluster, last.outcome, last.planned) if self.record else (),
            link_trace=link_events(self.cluster, last.outcome) if self.record else (),
            vertices=vertices(self.cluster),
            devices=devices(self.cluster),
            warnings=(*self.cluster.warnings, *self.cluster.outside, *warnings),
            notes=(*self.cluster.notes, *notes),
            provenance=Provenance.of_this_process(
                version=simulator.__version__,
                scenario=to_mapping(self.resolved),
                seed=self.resolved.seed,
                profile_sha256=self.cluster.profile.file_sha256,
            ),
        )


def _duration_s(record: CollectiveRecord) -> float:
    return float(np.max(record.end_s - record.call_s))


def _count(call: Call) -> int:
    """Return nccl-tests' *count*: elements of one rank's argument."""
    elements = call.size_bytes // max(1, call.element_bytes)
    whole = ("all_reduce", "broadcast", "reduce", "send_recv")
    return elements if call.collective in whole else elements // call.world_size
