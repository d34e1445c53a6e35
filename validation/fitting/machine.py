"""One machine's logs as a calibrated cost profile: what ``collsim fit`` computes.

The shipped profile is the prior.  The rows of all tables are predicted by the engine and taken
apart into formulas; the most probable constants are found with them (`calibrate`).  With these
constants, rounded as the file has them, the engine predicts the rows again, and what it still
misses becomes the discrepancy.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from simulator.base.errors import CalibrationError
from simulator.base.errors import Problem as Wrong
from simulator.compose.calibrated import settings_of
from simulator.compose.cluster import Cluster
from simulator.compose.programs import call_of
from simulator.costs.calibration import way_key
from simulator.costs.profile import load_profile
from simulator.results.model import Row as Told
from simulator.scenario.resolved import Resolved
from simulator.verdict.check import quickly
from simulator.verdict.predict import Clusters, PredictedRow, predict_rows
from simulator.verdict.setup import call_words
from validation.fitting.calibrate import Posterior, calibrate, rest_of
from validation.fitting.causes import Machine
from validation.fitting.doubtful import badly_fitted, impossible
from validation.fitting.enough import too_little
from validation.fitting.features import bare_of, formula_on
from validation.fitting.formulas import RowFormula
from validation.fitting.problem import Parameter, Problem, Row, parameters, profile_values
from validation.fitting.profile_file import CalibratedFile, TableData, constants_at
from validation.fitting.repeats import Call, Table, calls_of, chosen_sizes, contradictions, time_of
from validation.fitting.widths import PROFILES, read_widths

__all__ = ["MachineFit", "Table", "fit_machine", "problems_of"]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
OnProgress = Callable[[int, int], None]

_MOST_RANKS = 700
_MOST_EXCHANGE_RANKS = 130
"""Formulas of larger calls take minutes."""
_FAR = 1.8
"""A row whose variance is so many times larger than usual fits badly."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineFit:
    """A calibrated machine."""

    file: CalibratedFile
    posterior: Posterior
    before: tuple[PredictedRow, ...]
    """Rows with the shipped profile's predictions."""
    after: tuple[PredictedRow, ...]
    """The same rows with those of the calibrated one."""
    far: tuple[int, ...]
    """Places of rows that fit badly, worst first."""
    of_table: tuple[int, ...]
    """Place among those given of the table that each row's line is of."""
    count: tuple[int, ...]
    """Measurements that each row is the median of."""
    left_out: int
    """Sizes of calls that did not take part: there are more than say something new."""
    text: str
    """The profile's file."""


def problems_of(tables: Sequence[Table]) -> list[Wrong]:
    """Return why tables must not be fitted, beside their health: all reasons."""
    problems: list[Wrong] = []
    sizes: list[int] = []
    presets: dict[str, Table] = {}
    profiles: dict[str, Table] = {}
    for entry in tables:
        table = entry.table
        resolved = entry.set_up.resolve({"collective.op": "barrier"})
        name = " + ".join(group.node.preset for group in resolved.node_groups) or "own topology"
        presets.setdefault(name, entry)
        profiles.setdefault(resolved.costs.profile, entry)
        problems += _problems_of_one(entry)
        if resolved.costs.overrides:
            problems.append(
                Wrong(
                    file=entry.file,
                    key="costs.overrides",
                    message="constants are set, which are to be fitted",
                    allowed="a set-up without overrides",
                )
            )
        sizes += [row.size_bytes for row in table.rows if time_of(row)]
    problems += too_little(np.array(sizes, dtype=np.int64))
    if len(profiles) == 1 and len(presets) == 1:
        problems += contradictions(tables)
    if len(presets) > 1:
        told = "; ".join(
            f"{name} in {entry.file}, line {entry.first_line}" for name, entry in presets.items()
        )
        problems.append(
            Wrong(message=f"tables of different machines: {told}", allowed="logs of one machine")
        )
    if len(profiles) > 1:
        told = "; ".join(f"{name} in {entry.file}" for name, entry in profiles.items())
        problems.append(Wrong(message=f"tables of different libraries: {told}"))
    for name in profiles:
        if name not in PROFILES:
            problems.append(
                Wrong(
                    key="costs.profile",
                    message=f"profile {name!r} is not one that can be fitted",
                    allowed=f"{' or '.join(PROFILES)}, as shipped",
                )
            )
    return problems


def _problems_of_one(entry: Table) -> list[Wrong]:
    table = entry.table
    found = [
        Wrong(
            file=entry.file,
            line=row.line,
            message=f"the time of {row.size_bytes} B is not above zero",
            allowed="measured times; leave the row out",
        )
        for row in table.rows
        if row.size_bytes > 0 and (row.out_of_place or row.in_place) and not time_of(row)
    ]
    if table.cpu_time:
        found.append(
            Wrong(
                file=entry.file,
                line=entry.first_line,
                message="times are those to launch (cputime), not to finish",
                allowed="a run without nccl-tests' -C",
            )
        )
    n = table.n_ranks or 0
    most = _MOST_EXCHANGE_RANKS if table.collective == "all_to_all" else _MOST_RANKS
    if n > most:
        found.append(
            Wrong(
                file=entry.file,
                line=entry.first_line,
                message=f"{table.collective} of {n} ranks",
                allowed=f"{table.collective} of at most {most} ranks",
            )
        )
    if n == 1:
        found.append(
            Wrong(
                file=entry.file,
                line=entry.first_line,
                message="one rank alone communicates with nobody",
                allowed="at least 2 ranks",
            )
        )
    return found


def fit_machine(
    tables: Sequence[Table],
    *,
    name: str,
    health: str = "",
    on_progress: OnProgress | None = None,
) -> MachineFit:
    """Return the calibrated profile of one machine.

    Parameters
    ----------
    tables
        With set-ups as the logs show them; `problems_of` finds nothing in them.
    name
        Of the profile.
    health
        The verdict on the tables, for the file.
    on_progress
        Called with (parts done, parts in all).

    Raises
    ------
    CollsimError
        A set-up that cannot run the calls, times that its links do not allow, or a fit that fails.
    """
    work = _Work(tables, on_progress)
    before = work.before
    given, widths = parameters(work.base), read_widths(work.base)
    shipped = np.log([work.values[parameter.key] for parameter in given])
    problem = Problem(work.tied(shipped, given), given)
    found = calibrate(problem, work.machine(before, shipped, given), shipped, widths)
    file = CalibratedFile(
        name=name,
        base=work.base,
        version=work.version,
        node=work.node,
        health=health,
        constants=constants_at(given, problem.used, shipped, found),
    )
    theta = file.theta(given, shipped)
    middle = work.predicted(file.text())
    left = replace(work.machine(middle, theta, given), loose=found.machine.loose)
    rest = rest_of(left, theta, found.spread, widths, found.keys)
    data = work.data()
    band = load_profile(work.base).uncertainty
    file = file.with_rest(rest, ways_of(middle), data, work.of_row, band)
    after = work.predicted(file.text())
    file = file.with_residuals(before, after, work.of_row)
    order = sorted(range(len(before)), key=lambda i: -float(rest.times[i]))
    far = tuple(i for i in order if rest.times[i] > _FAR)
    problems = badly_fitted(after, far)
    if problems:
        raise CalibrationError(problems)
    return MachineFit(
        file=file,
        posterior=rest,
        before=tuple(before),
        after=tuple(after),
        far=far,
        of_table=tuple(work.of_row),
        count=tuple(work.count),
        left_out=work.left_out,
        text=file.text(),
    )


def ways_of(predicted: Sequence[PredictedRow]) -> list[str]:
    """Return the name of algorithm and protocol of each row."""
    return [way_key(row.predicted.algorithm, row.predicted.protocol) for row in predicted]


class _Work:
    """Rows of one machine's tables: measured, predicted, taken apart into formulas."""

    def __init__(self, tables: Sequence[Table], on_progress: OnProgress | None) -> None:
        self.tables = tables
        self.calls = calls_of(tables)
        self.on_progress = on_progress
        self.done = 0
        n_calls = len(self.calls)
        self.sizes = [chosen_sizes(call, i, n_calls) for i, call in enumerate(self.calls)]
        first = self._resolved(0)
        self.base: str = first.costs.profile
        versions = {self._resolved(index).costs.version for index in range(n_calls)}
        self.version: str | None = first.costs.version if len(versions) == 1 else None
        self.values = profile_values(self.base, load_profile(self.base))
        self.clusters = Clusters()
        self.node = ""
        self.rows: list[Row] = []
        self.before: list[PredictedRow] = []
        """With the shipped profile's predictions."""
        self.of_row: list[int] = []
        """Table of each row."""
        self.count: list[int] = []
        """Measurements of each row."""
        self.told: list[Told] = []
        """A prediction of each call."""
        self.settings: list[dict[str, str]] = []
        problems: list[Wrong] = []
        for index in range(n_calls):
            problems += self._extract(index)
            self._tell()
        if problems:
            raise CalibrationError(problems)
        self.left_out = sum(len(call.count) for call in self.calls) - len(self.rows)

    def _resolved(self, index: int) -> Resolved:
        entry = self.calls[index].entry
        return quickly(entry.set_up).resolve(call_words(entry.table, self.sizes[index]))

    def _extract(self, index: int) -> list[Wrong]:
        """Predict a call's rows and take them apart; sizes that cannot be are left out.

        Returned is why the times cannot be.
        """
        call, resolved = self.calls[index], self._resolved(index)
        entry = call.entry
        self.settings.append(settings_of(resolved, load_profile(self.base).version))
        made = predict_rows(
            quickly(entry.set_up),
            entry.table,
            sizes_bytes=self.sizes[index],
            clusters=self.clusters,
        )
        self.told.append(made[0].predicted)
        problems = _impossible(self.tables, call, made)
        if problems:
            return problems
        full = self.clusters.of(resolved)
        self.node = full.template_of(0).name
        bare = bare_of(full)
        formulas = {size: self._formula(size, resolved, full, bare) for size in self.sizes[index]}
        self.sizes[index] = [size for size, found in formulas.items() if found is not None]
        if not self.sizes[index]:
            raise CalibrationError(
                Wrong(
                    file=entry.file,
                    line=entry.first_line,
                    message=f"{entry.table.collective} cannot be taken apart into constants",
                    allowed="tables that the fit knows formulas of; leave this one out",
                )
            )
        for row in made:
            found, told = formulas[row.size_bytes], row.predicted
            if found is None:
                continue
            self.rows.append(
                Row(
                    slug=entry.file,
                    machine="this",
                    collective=told.collective,
                    n_ranks=told.world_size,
                    n_nodes=told.n_nodes,
                    case=index,
                    size_bytes=told.size_bytes,
                    measured_s=row.measured_s,
                    formula=found,
                )
            )
            self.before.append(row)
            self.of_row.append(call.nearest[row.size_bytes])
            self.count.append(call.count[row.size_bytes])
        return []

    def _formula(
        self, size_bytes: int, resolved: Resolved, full: Cluster, bare: Cluster
    ) -> RowFormula | None:
        spec = resolved.collective
        assert spec is not None
        call = call_of(spec, full.n_gpus, size_bytes)
        return formula_on(
            full,
            bare,
            call,
            np.arange(full.n_gpus),
            algorithm=spec.algorithm,
            protocol=spec.protocol,
            together=resolved.costs.gpus_per_process,
            values=self.values,
        )

    def tied(self, shipped: FloatArray, given: Sequence[Parameter]) -> list[Row]:
        """Return the rows with the engine's errors at the shipped constants.

        Where a formula is not the engine's time, its measured time is moved by as much.
        """
        own = Problem(self.rows, given).errors(shipped)
        apart = own - [math.log(row.ratio) for row in self.before]
        return [
            replace(row, measured_s=row.measured_s * math.exp(shift))
            for row, shift in zip(self.rows, apart.tolist(), strict=True)
        ]

    def machine(
        self, predicted: Sequence[PredictedRow], theta: FloatArray, given: Sequence[Parameter]
    ) -> Machine:
        """Return the rows with the engine's errors, and slopes at some constants."""
        ways = ways_of(predicted)
        keys = [told.key for told in self.data()]
        keys = [keys[place] for place in self.of_row]
        way = {name: number for number, name in enumerate(dict.fromkeys(ways))}
        table = {name: number for number, name in enumerate(dict.fromkeys(keys))}
        return Machine(
            errors=np.array([math.log(row.ratio) for row in predicted]),
            slopes=Problem(self.rows, given).slopes(theta),
            octave=np.log2([row.size_bytes for row in predicted]),
            way=np.array([way[name] for name in ways]),
            table=np.array([table[name] for name in keys]),
            count=np.array(self.count, dtype=np.float64),
        )

    def predicted(self, text: str) -> list[PredictedRow]:
        """Return the rows with the predictions of a profile's file."""
        found: list[PredictedRow] = []
        clusters = Clusters()
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "calibrated.yaml"
            path.write_text(text, "utf-8")
            for index, call in enumerate(self.calls):
                entry = call.entry
                set_up = quickly(entry.set_up).with_words({"costs.profile": str(path)})
                found += predict_rows(
                    set_up, entry.table, sizes_bytes=self.sizes[index], clusters=clusters
                )
                self._tell()
        return found

    def data(self) -> list[TableData]:
        """Return where the rows of each table come from."""
        return [self.data_of(place) for place in range(len(self.tables))]

    def data_of(self, place: int) -> TableData:
        """Return where a table's rows come from."""
        entry = self.tables[place]
        index = next(i for i, call in enumerate(self.calls) if place in call.members)
        told = self.told[index]
        rows = [row for row in entry.table.rows if time_of(row)]
        return TableData(
            file=entry.file,
            lines=(min(row.line for row in rows), max(row.line for row in rows)),
            collective=told.collective,
            ranks=told.world_size,
            nodes=told.n_nodes,
            rows=len(rows),
            sizes_bytes=(min(row.size_bytes for row in rows), max(row.size_bytes for row in rows)),
            set_up=entry.set_up.title,
            settings=self.settings[index],
        )

    def _tell(self) -> None:
        self.done += 1
        if self.on_progress is not None:
            self.on_progress(self.done, 3 * len(self.calls))


def _impossible(tables: Sequence[Table], call: Call, rows: Sequence[PredictedRow]) -> list[Wrong]:
    return [
        problem
        for place in call.members
        for problem in impossible(
            tables[place].file, [row for row in rows if call.nearest[row.size_bytes] == place]
        )
    ]
