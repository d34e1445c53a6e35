"""``python -m validation.gloo``: constants of the gloo profile from loopback measurements.

The logs under ``validation/measurements/gloo`` were written by ``collsim measure --backend gloo``
with 2 and 4 processes on a virtual machine with two cores, at real-time priority, because other
processes ran beside.  Runs b and c are fitted, run a is held out.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.compose import build
from simulator.compose.run import run_resolved
from simulator.costs.profile import CostProfile, load_profile
from simulator.importers.nccl_tests import read
from simulator.scenario import plugins
from simulator.scenario.resolve import from_words
from topologies import hardware, hardware_build

__all__ = ["LOGS", "START", "Case", "cases", "errors", "fit", "main", "predicted"]

FloatArray = NDArray[np.float64]

LOGS = Path(__file__).parent / "measurements" / "gloo"
NODES = {2: "cpu-2", 4: "cpu-4-2cores"}
START = {
    "launch_us": 36.0,
    "alpha_us": 69.0,
    "peer_us": 5.5,
    "core_GBps": 6.7,
    "copy_GBps": 6.5,
    "buffer_us": 49.0,
}
"""Constants that are fitted, as shipped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One table: a collective on some processes, its sizes and times."""

    n_ranks: int
    collective: str
    times_s: dict[int, float]
    """Geometric mean over the runs and both halves, by size."""


def cases(runs: str) -> list[Case]:
    """Return the tables of some runs (letters), averaged."""
    found: dict[tuple[int, str], dict[int, list[float]]] = {}
    for n_ranks in NODES:
        for letter in runs:
            for table in read(str(LOGS / f"loopback-{n_ranks}-{letter}.txt")).tables:
                rows = found.setdefault((n_ranks, table.collective), {})
                for row in table.rows:
                    for in_place in (False, True):
                        timing = row.timing(in_place=in_place)
                        if timing is not None:
                            rows.setdefault(row.size_bytes, []).append(timing.time_s)
    return [
        Case(
            n_ranks=n_ranks,
            collective=collective,
            times_s={size: math.exp(float(np.mean(np.log(t)))) for size, t in rows.items()},
        )
        for (n_ranks, collective), rows in found.items()
    ]


def _profile(values: dict[str, float]) -> CostProfile:
    profile = load_profile("gloo")
    host = profile.host
    assert host is not None
    return replace(
        profile,
        launch_s=values["launch_us"] * 1e-6,
        alpha_s={
            key: values["alpha_us"] * 1e-6 if key[0] == "host" else alpha_s
            for key, alpha_s in profile.alpha_s.items()
        },
        host=replace(
            host,
            peer_s=values["peer_us"] * 1e-6,
            copy_Bps=values["copy_GBps"] * 1e9,
            copy_s=values["buffer_us"] * 1e-6,
        ),
    )


def predicted(chosen: list[Case], values: dict[str, float]) -> Iterator[tuple[Case, int, float]]:
    """Generate (case, size, predicted time) with these constants in place of the shipped ones."""
    family: dict[str, Any] = hardware_build.read("families/cpu.yaml")
    kept = family["core"]["memory"], build.load_profile
    family["core"]["memory"] = f"{values['core_GBps']} GB/s"
    profile = _profile(values)
    build.load_profile = lambda _name: profile
    hardware._load.cache_clear()
    plugins.node_template.cache_clear()
    try:
        for case in chosen:
            words = {"node": NODES[case.n_ranks], "costs": "gloo", "collective.op": case.collective}
            if case.collective != "barrier":
                words["collective.sizes"] = "[" + ",".join(map(str, case.times_s)) + "]"
            for row in run_resolved(from_words(words).variants[0]).rows:
                yield case, row.size_bytes, row.time_s
    finally:
        family["core"]["memory"], build.load_profile = kept
        hardware._load.cache_clear()
        plugins.node_template.cache_clear()


def errors(chosen: list[Case], values: dict[str, float] | None = None) -> FloatArray:
    """Return ln(predicted / measured) of every row."""
    found = [
        math.log(time_s / case.times_s[size])
        for case, size, time_s in predicted(chosen, values or START)
        if size in case.times_s
    ]
    return np.array(found)


def fit(chosen: list[Case]) -> dict[str, float]:
    """Return the constants that fit best, robustly, in log time."""
    from scipy.optimize import least_squares

    names = list(START)
    start = np.log([START[name] for name in names])

    def residuals(x: FloatArray) -> FloatArray:
        return errors(chosen, dict(zip(names, np.exp(x).tolist(), strict=True)))

    found = least_squares(
        residuals,
        start,
        bounds=(start - 1.5, start + 1.5),
        loss="soft_l1",
        f_scale=0.2,
        max_nfev=12,
    )
    return dict(zip(names, np.exp(found.x).tolist(), strict=True))


def _summary(label: str, found: FloatArray) -> str:
    share = np.abs(np.expm1(found))
    return (
        f"{label}: {len(share)} rows, median error {100 * np.median(share):.0f} %, "
        f"90 % below {100 * np.quantile(share, 0.9):.0f} %, "
        f"mean ratio {math.exp(float(found.mean())):.2f}"
    )


def _tell(text: str) -> None:
    sys.stdout.write(text + "\n")


def main(arguments: list[str] | None = None) -> int:
    """Print the errors of the shipped constants, and with ``--fit`` newly fitted ones."""
    arguments = sys.argv[1:] if arguments is None else arguments
    values = dict(START)
    if "--fit" in arguments:
        values = fit(cases("bc"))
        for name, value in values.items():
            _tell(f"{name}: {value:.3g}")
    for runs, label in (("bc", "fitted runs"), ("a", "held-out run")):
        chosen = cases(runs)
        _tell(_summary(label, errors(chosen, values)))
        for n_ranks in NODES:
            some = [case for case in chosen if case.n_ranks == n_ranks]
            _tell("  " + _summary(f"{n_ranks} processes", errors(some, values)))
    # How far two runs of the same machine are apart.
    first, second = cases("b"), {(c.n_ranks, c.collective): c for c in cases("c")}
    apart = [
        math.log(time_s / second[case.n_ranks, case.collective].times_s[size])
        for case in first
        for size, time_s in case.times_s.items()
    ]
    _tell(_summary("run b against run c", np.array(apart)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
