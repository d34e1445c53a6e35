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
from simulator.importers import MeasuredRow, MeasuredTable
from simulator.scenario.resolved import Resolved
from simulator.verdict.check import quickly
from simulator.verdict.predict import Clusters, PredictedRow, predict_rows
from simulator.verdict.setup import SetUp, call_words
from validation.fitting.calibrate import Machine, Posterior, calibrate, rest_of
from validation.fitting.enough import too_little
from validation.fitting.features import bare_of, formula_on
from validation.fitting.formulas import RowFormula
from validation.fitting.problem import Parameter, Problem, Row, parameters, profile_values
from validation.fitting.profile_file import CalibratedFile, TableData, constants_at
from validation.fitting.widths import PROFILES, read_widths

__all__ = ["MachineFit", "Table", "fit_machine", "problems_of"]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
OnProgress = Callable[[int, int], None]

_MOST_RANKS = 700
_MOST_EXCHANGE_RANKS = 130
"""Formulas of larger calls take minutes."""
_MOST_ROWS = 480
"""Rows of all tables together: more say little that is new, and their covariance is a matrix."""
_MOST_SIZES = ((64, 40), (160, 31), (_MOST_RANKS, 12))
"""(ranks up to, sizes of a table that take part, evenly in log size)."""
_FAR = 1.8
"""A row whose variance is so many times larger than usual fits badly."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A measured table with its set-up."""

    file: str
    table: MeasuredTable
    set_up: SetUp

    @property
    def first_line(self) -> int:
        """Line of its first row."""
        return self.table.rows[0].line


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
    """Place of each row's table among those given."""
    left_out: int
    """Rows of the logs that did not take part: there are more than say something new."""
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
        sizes += [row.size_bytes for row in table.rows if row.size_bytes > 0 and _time(row)]
    problems += too_little(np.array(sizes, dtype=np.int64))
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


def _time(row: MeasuredRow) -> bool:
    return any(row.timing(in_place=half) is not None for half in (False, True))


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
        if row.size_bytes > 0 and (row.out_of_place or row.in_place) and not _time(row)
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
        A set-up that cannot run the calls.
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
    rest = rest_of(work.machine(middle, theta, given), theta, found.spread, widths, found.keys)
    data = [work.data_of(index) for index in range(len(tables))]
    band = load_profile(work.base).uncertainty
    file = file.with_rest(rest, ways_of(middle), data, work.of_row, band)
    after = work.predicted(file.text())
    file = file.with_residuals(before, after, work.of_row)
    order = sorted(range(len(before)), key=lambda i: -float(rest.times[i]))
    return MachineFit(
        file=file,
        posterior=rest,
        before=tuple(before),
        after=tuple(after),
        far=tuple(i for i in order if rest.times[i] > _FAR),
        of_table=tuple(work.of_row),
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
        self.on_progress = on_progress
        self.done = 0
        self.sizes = [_chosen_sizes(entry.table, len(tables)) for entry in tables]
        first = self._resolved(0)
        self.base: str = first.costs.profile
        versions = {self._resolved(index).costs.version for index in range(len(tables))}
        self.version: str | None = first.costs.version if len(versions) == 1 else None
        self.values = profile_values(self.base, load_profile(self.base))
        self.clusters = Clusters()
        self.node = ""
        self.rows: list[Row] = []
        self.before: list[PredictedRow] = []
        """With the shipped profile's predictions."""
        self.of_row: list[int] = []
        """Table of each row."""
        for index in range(len(tables)):
            self._extract(index)
            self._tell()
        every = (row for entry in tables for row in entry.table.rows)
        self.left_out = sum(row.size_bytes > 0 and _time(row) for row in every) - len(self.rows)

    def _resolved(self, index: int) -> Resolved:
        entry = self.tables[index]
        return quickly(entry.set_up).resolve(call_words(entry.table, self.sizes[index]))

    def _extract(self, index: int) -> None:
        """Predict a table's rows and take them apart; sizes that cannot be are left out."""
        entry, resolved = self.tables[index], self._resolved(index)
        made = predict_rows(
            quickly(entry.set_up),
            entry.table,
            sizes_bytes=self.sizes[index],
            clusters=self.clusters,
        )
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
            self.of_row.append(index)

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
        by_table = [self.data_of(index).key for index in range(len(self.tables))]
        keys = [by_table[index] for index in self.of_row]
        way = {name: number for number, name in enumerate(dict.fromkeys(ways))}
        table = {name: number for number, name in enumerate(dict.fromkeys(keys))}
        return Machine(
            errors=np.array([math.log(row.ratio) for row in predicted]),
            slopes=Problem(self.rows, given).slopes(theta),
            octave=np.log2([row.size_bytes for row in predicted]),
            way=np.array([way[name] for name in ways]),
            table=np.array([table[name] for name in keys]),
        )

    def predicted(self, text: str) -> list[PredictedRow]:
        """Return the rows with the predictions of a profile's file."""
        found: list[PredictedRow] = []
        clusters = Clusters()
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "calibrated.yaml"
            path.write_text(text, "utf-8")
            for index, entry in enumerate(self.tables):
                set_up = quickly(entry.set_up).with_words({"costs.profile": str(path)})
                found += predict_rows(
                    set_up, entry.table, sizes_bytes=self.sizes[index], clusters=clusters
                )
                self._tell()
        return found

    def data_of(self, index: int) -> TableData:
        """Return where a table's rows come from."""
        mine = [row for row, i in zip(self.before, self.of_row, strict=True) if i == index]
        entry = self.tables[index]
        told = mine[0].predicted
        return TableData(
            file=entry.file,
            lines=(min(row.line for row in mine), max(row.line for row in mine)),
            collective=told.collective,
            ranks=told.world_size,
            nodes=told.n_nodes,
            rows=len(mine),
            sizes_bytes=(min(row.size_bytes for row in mine), max(row.size_bytes for row in mine)),
            set_up=entry.set_up.title,
            settings=settings_of(self._resolved(index), load_profile(self.base).version),
        )

    def _tell(self) -> None:
        self.done += 1
        if self.on_progress is not None:
            self.on_progress(self.done, 3 * len(self.tables))


def _chosen_sizes(table: MeasuredTable, n_tables: int) -> list[int]:
    """Return the sizes that take part, evenly in log size."""
    sizes = sorted({row.size_bytes for row in table.rows if row.size_bytes > 0 and _time(row)})
    most = next(count for ranks, count in _MOST_SIZES if (table.n_ranks or 0) <= ranks)
    most = max(4, min(most, _MOST_ROWS // n_tables))
    if len(sizes) <= most:
        return sizes
    wanted = np.geomspace(sizes[0], sizes[-1], most)
    logs = np.log(np.array(sizes, dtype=np.float64))
    picked = np.abs(logs[:, None] - np.log(wanted)[None, :]).argmin(axis=0)
    return [sizes[i] for i in sorted(set(picked.tolist()))]
