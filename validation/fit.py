"""``python -m validation.fit``: reproduce the shipped constants from the committed measurements.

Only healthy set-ups that a preset stands for take part; the rest is refused, each with its reason.
The constants go into the profile's file with the data's identity, the residuals and the ranges of
the fit.
"""

from __future__ import annotations

import argparse
import hashlib
import math
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.base.errors import CalibrationError
from simulator.base.errors import Problem as Wrong
from simulator.costs.profile import load_profile, shipped_profile
from validation.fitting.cases import Case, cases, why_not_fitted
from validation.fitting.cross import band_rows, covered, left_out, statistics
from validation.fitting.document import profile_path, read_document, with_constants, write_document
from validation.fitting.enough import too_little
from validation.fitting.problem import Problem, build, profile_values, solve
from validation.fitting.widths import PROFILES, widths_of, write_widths
from validation.published import set_ups

__all__ = [
    "Fit",
    "check_enough",
    "converge",
    "fit_profile",
    "identity",
    "main",
    "refused",
    "summary_of",
]

FloatArray = NDArray[np.float64]
MOST_PASSES = 6
"""Formulas are tied to the engine at the constants of the pass before: so many passes at most."""
TOLERANCE = 0.1
"""Difference in log by which a reproduced constant may differ from the shipped one."""


class Fit:
    """A fitted problem."""

    def __init__(self, problem: Problem, theta: FloatArray) -> None:
        self.problem, self.theta = problem, theta
        self.values = problem.values(theta)


def refused(profile: str | None = None) -> dict[str, str]:
    """Return the published set-ups that are not fitted, with the reason."""
    del profile
    reasons = {entry.slug: why_not_fitted(entry) for entry in set_ups()}
    return {slug: reason for slug, reason in reasons.items() if reason}


def check_enough(chosen: Sequence[Case]) -> None:
    """Raise CalibrationError when cases are sick or say too little for a fit.

    Raises
    ------
    CalibrationError
        Sick set-ups, times that are not positive, and what `too_little` finds; all at once.
    """
    problems = [
        Wrong(
            message=f"{case.name} is sick: its times say what is broken, not what the library costs"
        )
        for case in chosen
        if not case.healthy
    ]
    problems += [
        Wrong(message=f"{case.name}: a time is not positive")
        for case in chosen
        if not (np.isfinite(case.time_s).all() and (case.time_s > 0).all())
    ]
    sizes = [case.size_bytes for case in chosen]
    problems += too_little(np.concatenate(sizes) if sizes else np.zeros(0, dtype=np.int64))
    if problems:
        raise CalibrationError(problems)


def identity(chosen: Sequence[Case]) -> str:
    """Return a short hash of the data: set-ups, calls, sizes and times."""
    digest = hashlib.sha256()
    for case in sorted(chosen, key=lambda entry: (entry.name, entry.environment)):
        digest.update(case.name.encode())
        digest.update(np.ascontiguousarray(case.size_bytes).tobytes())
        digest.update(np.round(case.time_s * 1e9).astype(np.int64).tobytes())
    return digest.hexdigest()[:16]


def fit_profile(
    profile: str,
    *,
    workers: int = 2,
    rounds: int = 12,
    on_progress: Callable[[int, int], None] | None = None,
) -> Fit:
    """Return the fit of a profile to the healthy published set-ups.

    Notes
    -----
    The formulas of pipelined algorithms are tied to the engine at the constants the profile has
    now, so fitting a profile twice moves it a little further; the shipped one is a fixed point to
    within `TOLERANCE`.
    """
    chosen = [case for case in cases() if case.profile == profile]
    check_enough(chosen)
    problem = build(profile, chosen, workers=workers, on_progress=on_progress)
    return Fit(problem, solve(problem, rounds=rounds))


def summary_of(
    fit: Fit, chosen: Sequence[Case], outside: FloatArray | None = None
) -> dict[str, Any]:
    """Return what the profile's file says about its fit.

    Parameters
    ----------
    fit, chosen
        The fit and its cases.
    outside
        Errors of the rows with their machine left out; None: make those fits.
    """
    rows = fit.problem.rows
    errors = fit.problem.errors(fit.theta)
    if outside is None:
        outside, _ = left_out(fit.problem, fit.theta)
    sizes = [row.size_bytes for row in rows]

    def table(values: FloatArray) -> dict[str, Any]:
        return {
            name: {"median": round(m, 3), "p90": round(p, 3), "rows": n, "set_ups": k}
            for name, (m, p, n, k) in statistics(rows, values).items()
        }

    return {
        "fitted": {
            "data": f"validation/measurements/collectives, sha256 {identity(chosen)}",
            "set_ups": len({row.slug for row in rows}),
            "machines": len({row.machine for row in rows}),
            "rows": len(rows),
            "sizes_bytes": [int(min(sizes)), int(max(sizes))],
            "ranks": [min(row.n_ranks for row in rows), max(row.n_ranks for row in rows)],
            "nodes": [min(row.n_nodes for row in rows), max(row.n_nodes for row in rows)],
            "collectives": sorted({row.collective for row in rows}),
            "not_moved_by_data": [
                p.key
                for p, used in zip(fit.problem.given, fit.problem.used, strict=True)
                if not used
            ],
            "error": table(errors),
            "error_machine_left_out": table(outside),
            "error_is": "abs(predicted - measured) / measured, set-ups weighted alike",
        },
        "bands": {
            "rows": band_rows(rows, outside),
            "coverage": round(covered(rows, outside), 3),
            "source": "80 % of the errors in log time, machine left out: one node, several nodes",
        },
    }


def converge(
    profile: str, *, workers: int = 2, on_pass: Callable[[int, int], None] | None = None
) -> tuple[Fit, bool]:
    """Fit and write the constants again until none moves by more than `TOLERANCE`.

    Parameters
    ----------
    profile
        Of `PROFILES`.
    workers
        Processes.
    on_pass
        Called with (pass, constants that moved).

    Returns
    -------
    tuple
        The last fit, and whether it is a fixed point.
    """
    fit = None
    for number in range(1, MOST_PASSES + 1):
        fit = fit_profile(profile, workers=workers)
        moved = len(moved_by(profile, fit))
        if on_pass is not None:
            on_pass(number, moved)
        if not moved:
            return fit, True
        document = read_document(profile)
        values = fit.values
        if number > 1:
            # Half the way: a constant that the ties to the engine throw to and fro settles.
            before = profile_values(profile, load_profile(profile))
            values = {
                key: math.sqrt(value * before[key]) if before.get(key, 0.0) > 0 else value
                for key, value in values.items()
            }
        with_constants(document, fit.problem.given, values)
        write_document(profile, document)
        shipped_profile.cache_clear()
    assert fit is not None
    return fit, False


def moved_by(profile: str, fit: Fit) -> list[str]:
    """Return the constants that differ from the shipped ones by more than `TOLERANCE`."""
    shipped = read_document(profile)
    found = []
    for parameter in fit.problem.given:
        place: Any = shipped
        for word in parameter.key.split("."):
            place = place[word]
        before = float(str(place).split()[0])
        if abs(np.log(fit.values[parameter.key] / parameter.scale / before)) > TOLERANCE:
            found.append(parameter.key)
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m validation.fit", description=__doc__)
    parser.add_argument("--profile", choices=PROFILES, default="nccl")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--write", action="store_true", help="write the constants to the profile")
    options = parser.parse_args(arguments)
    out = sys.stdout
    for slug, reason in refused().items():
        out.write(f"not fitted: {slug}: {reason}\n")
    began = time.monotonic()

    def on_pass(number: int, moved: int) -> None:
        out.write(f"pass {number}: {moved} constants moved by more than {TOLERANCE:.0%}\n")

    if options.write:
        fit, fixed = converge(options.profile, workers=options.workers, on_pass=on_pass)
        moved: list[str] = []
    else:
        fit = fit_profile(options.profile, workers=options.workers)
        moved = moved_by(options.profile, fit)
        fixed = not moved
    chosen = [case for case in cases() if case.profile == options.profile]
    outside, without = left_out(fit.problem, fit.theta)
    summary = summary_of(fit, chosen, outside)
    for parameter, used in zip(fit.problem.given, fit.problem.used, strict=True):
        after = fit.values[parameter.key] / parameter.scale
        note = "" if used else "  (no data)"
        note += "  differs from the shipped one" if parameter.key in moved else ""
        out.write(f"{parameter.key:44s} {after:9.4g} {parameter.unit:5s}{note}\n")
    for name, entry in summary["fitted"]["error_machine_left_out"].items():
        out.write(
            f"machine left out, {name}: median {entry['median']:.1%} p90 {entry['p90']:.1%}\n"
        )
    out.write("a fixed point\n" if fixed else "not a fixed point: fit again\n")
    out.write(f"{time.monotonic() - began:.0f} s\n")
    if options.write:
        document = read_document(options.profile)
        write_document(options.profile, document | summary)
        write_widths(options.profile, widths_of(fit.problem, outside, without))
        out.write(f"written: {profile_path(options.profile)}\n")
    return 0 if fixed else 1


if __name__ == "__main__":
    raise SystemExit(main())
