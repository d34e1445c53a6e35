"""``python -m validation.fitting.widths``: how far machines are from the shipped profiles, as data.

The widths by group of constants, of the model's discrepancy and of a row are the prior of a
calibration.  They come from the errors of left-out published machines, which takes minutes; so
they lie in ``widths.yaml``, and ``collsim fit`` reads them.
"""

from __future__ import annotations

import argparse
import functools
import sys
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from simulator.costs.profile import load_profile
from validation.fitting.cases import cases
from validation.fitting.causes import GROUPS, PARTS, Widths, estimate
from validation.fitting.cross import left_out, machines_of
from validation.fitting.problem import Problem, build, profile_values

__all__ = ["PROFILES", "main", "read_widths", "widths_of", "write_widths"]

FloatArray = np.ndarray[Any, np.dtype[np.float64]]
PROFILES = ("nccl", "rccl")
_HEAD = (
    "# How far the logs of left-out machines are from the shipped profiles (standard deviations).\n"
    "# Written by `python -m validation.fit --write` and `python -m validation.fitting.widths`.\n"
)


def widths_path() -> Path:
    """Return where the data lie."""
    return Path(str(resources.files("validation") / "fitting" / "widths.yaml"))


@functools.cache
def read_widths(profile: str) -> Widths:
    """Return the widths of a shipped profile."""
    import yaml

    entry = yaml.safe_load(widths_path().read_text("utf-8"))[profile]
    return Widths(
        np.array([float(entry["constants"][name]) for name, _ in GROUPS]),
        np.array([float(value) for name in PARTS for value in entry["discrepancy"][name]]),
        np.array([float(value) for value in entry["row"]]),
    )


def widths_of(problem: Problem, zero: FloatArray, without: Mapping[str, FloatArray]) -> Widths:
    """Return the widths under which the errors of left-out machines are most likely.

    Parameters
    ----------
    problem
        All rows of a profile.
    zero, without
        As `validation.fitting.cross.left_out` returns them.
    """
    machines = machines_of(problem, zero, without)
    return estimate(list(machines.values()), [parameter.key for parameter in problem.given])


def write_widths(profile: str, widths: Widths) -> None:
    """Write the widths of one profile beside those of the other, three digits each."""
    import yaml

    path = widths_path()
    document = yaml.safe_load(path.read_text("utf-8")) if path.exists() else {}

    def short(value: float) -> float:
        return float(f"{value:.3g}")

    pairs = widths.discrepancy.reshape(len(PARTS), 2)
    document[profile] = {
        "constants": {
            name: short(value) for (name, _), value in zip(GROUPS, widths.constants, strict=True)
        },
        "discrepancy": {
            name: [short(value) for value in pair] for name, pair in zip(PARTS, pairs, strict=True)
        },
        "row": [short(value) for value in widths.noise],
    }
    text = yaml.safe_dump(dict(sorted(document.items())), sort_keys=False, default_flow_style=None)
    path.write_text(_HEAD + text, "utf-8")
    read_widths.cache_clear()


def main(arguments: Sequence[str] | None = None) -> int:
    """Estimate the widths again with the shipped constants and write them."""
    parser = argparse.ArgumentParser(prog="python -m validation.fitting.widths")
    parser.add_argument("--profile", choices=PROFILES, action="append")
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args(arguments)
    for profile in options.profile or PROFILES:
        chosen = [case for case in cases() if case.profile == profile]
        problem = build(profile, chosen, workers=options.workers)
        values = profile_values(profile, load_profile(profile))
        theta = np.log([values[parameter.key] for parameter in problem.given])
        theta = np.clip(theta, problem.low, problem.high)
        write_widths(profile, widths_of(problem, *left_out(problem, theta)))
        sys.stdout.write(f"written: {profile} in {widths_path()}\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
