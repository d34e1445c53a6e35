"""The fit as a problem: rows, weights, parameters in log space, residuals and their slopes."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from importlib import resources
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.costs.profile import CostProfile, load_profile
from validation.fitting.cases import Case, cases
from validation.fitting.features import formula
from validation.fitting.formulas import RowFormula

__all__ = [
    "NOISE",
    "SOFT",
    "Parameter",
    "Problem",
    "Row",
    "build",
    "parameters",
    "profile_values",
    "range_of",
    "refine",
    "rows_of",
    "solve",
]

FloatArray = NDArray[np.float64]
_SCALE = {"us": 1e-6, "GB/s": 1e9, "share": 1.0}
SOFT = 0.15
"""Errors beyond this count ever less (Cauchy loss in log time)."""
NOISE = 0.12
"""What one row is trusted with, in log time; sets the rows against the starts."""
_WIDE = 0.8
_MOST_RANKS = 700
_MOST_EXCHANGE_RANKS = 130
_MOST_ROWS = 9
"""Rows of a case that take part: evenly in log size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """A constant that the fit may change."""

    key: str
    start: float
    low: float
    high: float
    sigma: float
    unit: str

    @property
    def scale(self) -> float:
        """SI units per unit of the file."""
        return _SCALE[self.unit]


@functools.cache
def parameters(profile: str) -> tuple[Parameter, ...]:
    """Return the parameters of a profile: RCCL's are NCCL's and a few more."""
    import yaml

    text = (resources.files("validation") / "fitting" / "parameters.yaml").read_text("utf-8")
    document = yaml.safe_load(text)
    listed = dict(document["parameters"])
    if profile == "rccl":
        listed |= document["rccl"]
    return tuple(
        Parameter(
            key=key,
            start=float(entry["start"]),
            low=float(entry["low"]),
            high=float(entry["high"]),
            sigma=float(entry["sigma"]),
            unit=entry["unit"],
        )
        for key, entry in listed.items()
    )


def profile_values(name: str, profile: CostProfile) -> dict[str, float]:
    """Return a profile's constants by dotted key, in seconds, bytes/s and shares."""
    found: dict[str, float] = {"launch.time": profile.launch_s}
    found["waiting.time"] = profile.waiting_s
    found["switch.time"] = profile.switch_alpha_s
    found["ring.closing_share"] = profile.closing_share
    found["chain.latency_share"] = profile.chain_share
    found["host.share"] = profile.host_share
    found["launch.host"] = profile.host_launch_s
    found["exchange.channel_share"] = profile.exchange_channel_share
    found["switch.level"] = profile.switch_level_s
    found["tree.channel_share"] = profile.tree_channel_share
    found["exchange.network_share"] = profile.exchange_share
    for protocol, rate in profile.network_channel_Bps.items():
        found[f"network_channel_GBps.{protocol}"] = rate
    for kind, time_s in profile.network_extra_s.items():
        found[f"networks.{kind}"] = time_s
    for generation, share in profile.alpha_share.items():
        found[f"generations.{generation}.alpha_share"] = share
    for generation, share in profile.launch_share.items():
        found[f"generations.{generation}.launch_share"] = share
    for protocol, entry in profile.protocols.items():
        found[f"protocols.{protocol}.extra_launch"] = entry.extra_launch_s
    for kind, share in profile.efficiency.items():
        found[f"links.{kind}.efficiency"] = share
    for (kind, protocol), time_s in profile.alpha_s.items():
        found[f"paths.{kind}.{protocol}"] = time_s
    for (kind, protocol), time_s in profile.level_alpha_s.items():
        found[f"levels.{kind}.{protocol}"] = time_s
    for kind, time_s in profile.peer_s.items():
        found[f"peers.{kind}"] = time_s
    for (kind, generation), share in profile.generation_efficiency.items():
        found[f"generations.{generation}.links.{kind}"] = share
    for (generation, protocol), rate in profile.channel_Bps.items():
        found[f"generations.{generation}.channel_GBps.{protocol}"] = rate
    for generation, share in profile.switch_share.items():
        found[f"generations.{generation}.switch_share"] = share
    del name
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One measured time with its formula."""

    slug: str
    machine: str
    collective: str
    n_ranks: int
    n_nodes: int
    case: int
    size_bytes: int
    measured_s: float
    formula: RowFormula


def _extract(job: tuple[int, Case, tuple[int, ...]]) -> list[Row]:
    index, case, picked = job
    profile = load_profile(case.profile)
    values = profile_values(case.profile, profile)
    found = []
    for place in picked:
        size = int(case.size_bytes[place])
        made = formula(case, size, profile, values)
        if made is not None:
            found.append(
                Row(
                    slug=case.slug,
                    machine=case.machine,
                    collective=case.collective,
                    n_ranks=case.n_ranks,
                    n_nodes=case.n_nodes,
                    case=index,
                    size_bytes=size,
                    measured_s=float(case.time_s[place]),
                    formula=made,
                )
            )
    return found


def rows_of(
    chosen: Sequence[Case],
    *,
    workers: int = 2,
    most_rows: int = _MOST_ROWS,
    on_progress: Callable[[int, int], None] | None = None,
) -> list[Row]:
    """Return the rows of cases with their formulas; cases beyond what is affordable are left out.

    Parameters
    ----------
    chosen
        Cases.
    workers
        Processes.
    most_rows
        Rows of a case, evenly in log size.
    on_progress
        Called with (cases done, cases).
    """
    jobs = []
    for index, case in enumerate(chosen):
        if case.n_ranks > _MOST_RANKS:
            continue
        if case.collective == "all_to_all" and case.n_ranks > _MOST_EXCHANGE_RANKS:
            continue
        n = len(case.size_bytes)
        limit = most_rows if case.n_ranks <= 130 else 6
        picked = sorted({round(x) for x in np.linspace(0, n - 1, min(n, limit)).tolist()})
        jobs.append((index, case, tuple(picked)))
    jobs.sort(key=lambda job: -job[1].n_ranks)
    found: list[Row] = []
    if workers <= 1:
        for done, job in enumerate(jobs):
            found += _extract(job)
            if on_progress is not None:
                on_progress(done + 1, len(jobs))
    else:
        with ProcessPoolExecutor(workers) as pool:
            for done, part in enumerate(pool.map(_extract, jobs, chunksize=1)):
                found += part
                if on_progress is not None:
                    on_progress(done + 1, len(jobs))
    found.sort(key=lambda row: (row.case, row.size_bytes))
    return found


def range_of(size_bytes: int) -> int:
    """Return 0 below 1 MiB, 1 below 16 MiB, 2 above."""
    return 0 if size_bytes < 2**20 else 1 if size_bytes < 2**24 else 2


class Problem:
    """Residuals of rows in log time and of the parameters from where they started."""

    def __init__(self, rows: Sequence[Row], given: Sequence[Parameter]) -> None:
        self.rows = list(rows)
        self.given = list(given)
        used = frozenset().union(*(row.formula.keys for row in rows)) if rows else frozenset()
        self.used = [p.key in used for p in self.given]
        self.index = {p.key: i for i, p in enumerate(self.given)}
        self.start = np.log([p.start * p.scale for p in self.given])
        self.low = np.log([p.low * p.scale for p in self.given])
        self.high = np.log([p.high * p.scale for p in self.given])
        self.sigma = np.array([p.sigma for p in self.given])
        self.weight = self._weights()

    def _weights(self) -> FloatArray:
        """Return the weight of each row: alike for each set-up and size range."""
        count: dict[tuple[str, int], int] = {}
        for row in self.rows:
            key = (row.slug, range_of(row.size_bytes))
            count[key] = count.get(key, 0) + 1
        weight = np.array([1.0 / count[row.slug, range_of(row.size_bytes)] for row in self.rows])
        # Set-ups of one machine count as their root: many node counts are not many machines.
        machine: dict[str, set[str]] = {}
        for row in self.rows:
            machine.setdefault(row.machine, set()).add(row.slug)
        weight /= np.sqrt([len(machine[row.machine]) for row in self.rows])
        return weight

    def values(self, theta: FloatArray) -> dict[str, float]:
        """Return constants by key."""
        return {p.key: math.exp(t) for p, t in zip(self.given, theta, strict=True)}

    def errors(self, theta: FloatArray) -> FloatArray:
        """Return log(predicted / measured) of each row."""
        values = self.values(theta)
        return np.array(
            [math.log(row.formula.time_s(values) / row.measured_s) for row in self.rows]
        )

    def slopes(self, theta: FloatArray) -> FloatArray:
        """Return the derivative of each error by each parameter's log, shape (rows, parameters)."""
        values = self.values(theta)
        step = 0.02
        result = np.zeros((len(self.rows), len(self.given)))
        for r, row in enumerate(self.rows):
            base_stage = row.formula.stages_s(values)
            base = base_stage + row.formula.fixed_s(values)
            if row.formula.host_s(values) > base:
                result[r, self.index["launch.host"]] = 1.0
                continue
            linear = dict(row.formula.linear)
            for key in row.formula.keys:
                i = self.index.get(key)
                if i is None or key == "launch.host":
                    continue
                slope = linear[key] * values[key] / base if key in linear else 0.0
                if key in ("launch.time", row.formula.launch):
                    launch = values["launch.time"] * values.get(row.formula.launch, 1.0)
                    slope = launch / base
                elif key not in linear or key.startswith("networks."):
                    moved = dict(values)
                    moved[key] = values[key] * math.exp(step)
                    levels = sum(
                        values[name] * values.get(share, 1.0) * n
                        for name, share, n in row.formula.levels
                        if key in (name, share)
                    )
                    slope += levels / base
                    slope += (row.formula.stages_s(moved) - base_stage) / step / base
                result[r, i] = slope
        return result


def solve(
    problem: Problem,
    *,
    rounds: int = 12,
    first: FloatArray | None = None,
    trusted: bool = False,
) -> FloatArray:
    """Return the parameters that fit best, by scipy's least squares with a Cauchy loss.

    First with a wide loss, in which no row is far off yet, then with the narrow one.

    Parameters
    ----------
    problem
        Rows and parameters.
    rounds
        Most evaluations of each of the two.
    first
        Where to start; None: at the parameters' starts.
    trusted
        The rows are of one machine and none of them is to be doubted: the wide loss only.
    """
    start = problem.start if first is None else first
    wide = _solve(problem, start, _WIDE, rounds)
    if trusted:
        return wide
    return _solve(problem, wide, SOFT, rounds)


def refine(problem: Problem, theta: FloatArray, rounds: int = 4) -> FloatArray:
    """Return the parameters that fit best, from *theta*, which is close to them."""
    return _solve(problem, theta, SOFT, rounds)


def _solve(problem: Problem, start: FloatArray, width: float, rounds: int) -> FloatArray:
    from scipy.optimize import least_squares

    scale = np.sqrt(problem.weight) / NOISE

    def soft(errors: FloatArray) -> FloatArray:
        """Return signed roots of the Cauchy loss, so that the starts keep a square loss."""
        return np.asarray(np.sign(errors) * width * np.sqrt(np.log1p((errors / width) ** 2)))

    def soft_slope(errors: FloatArray) -> FloatArray:
        z = (errors / width) ** 2
        small = z < 1e-8
        root = np.sqrt(np.where(small, 1.0, np.log1p(z)))
        slope = np.abs(errors) / width / (1.0 + z) / root
        return np.asarray(np.where(small, 1.0, slope))

    def residuals(theta: FloatArray) -> FloatArray:
        return np.concatenate(
            [scale * soft(problem.errors(theta)), (theta - problem.start) / problem.sigma]
        )

    def jacobian(theta: FloatArray) -> FloatArray:
        errors = problem.errors(theta)
        rows = (scale * soft_slope(errors))[:, None] * problem.slopes(theta)
        return np.vstack([rows, np.diag(1.0 / problem.sigma)])

    start = np.clip(start, problem.low + 1e-6, problem.high - 1e-6)
    found = least_squares(
        residuals,
        start,
        jac=jacobian,
        bounds=(problem.low, problem.high),
        max_nfev=rounds,
        x_scale=problem.sigma,
        xtol=3e-3,
        ftol=3e-3,
    )
    return np.asarray(found.x)


def build(profile: str, chosen: Iterable[Case] | None = None, **options: Any) -> Problem:
    """Return the problem of a profile's healthy published cases."""
    listed = [case for case in (chosen or cases()) if case.profile == profile]
    return Problem(rows_of(listed, **options), parameters(profile))
