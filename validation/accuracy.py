"""``python -m validation.accuracy``: how well the shipped profiles predict, as a document.

Machines are left out of the fit before they are predicted.  The figures are compared with
``bounds.yaml``; the exit code is 1 when one is worse.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from simulator.costs.profile import load_profile
from simulator.results.progress import progress
from validation.fit import identity, refused
from validation.fitting.cases import Case, cases, mapping
from validation.fitting.cross import Graded, covered, grades, statistics
from validation.fitting.problem import build, profile_values, range_of

__all__ = ["GRADES", "TARGETS", "compare_with_bounds", "document", "evaluate", "main"]

GRADES = ("zero_shot", "floor_known", "calibrated")
RANGES = ("< 1 MiB", "1-16 MiB", ">= 16 MiB")
TARGETS = {
    "zero_shot": {"< 1 MiB": 0.25, "1-16 MiB": 0.18, ">= 16 MiB": 0.08},
    "floor_known": {"< 1 MiB": 0.12, "1-16 MiB": 0.14, ">= 16 MiB": 0.08},
    "calibrated": {"< 1 MiB": 0.08, "1-16 MiB": 0.07, ">= 16 MiB": 0.04},
}
"""Medians aimed at."""
REASONS = {
    "dgx2": "all_gather and reduce_scatter out of place in NCCL 2.5 on V100 take half as long "
    "again as in place; the copy is not modelled",
    "gcp-a4": "cloud network far from its plateau below 1 GiB; the cause is not in the source",
    "gcp-a3": "GPUDirect-TCPX: start-up of its receive threads is not modelled",
    "k80": "two GPU dies share one PCIe slot and PCIe switch; the preset's switch is assumed",
    "rtx-cx8": "all_to_all stalls between 16 MiB and 1 GiB; congestion control is not modelled",
    "xxrjun": "rings of 80 ranks in Simple lose 10 us a step that the model does not have",
    "abci": "NCCL 2.8 is modelled with the constants and rules of 2.12; over nodes it stays at a "
    "third of what the four NICs could carry, for which the source gives no cause",
    "smartio": "GPU and NIC under different PCIe roots: sending and receiving share the way "
    "through the CPU, which is not modelled",
    "aws-p4": "EFA's efficiency is fitted on instances of one small NIC as well",
    "h100-e": "single rows of this table are ten times their neighbours",
    "h100-d": "LL over the network is ten times slower on some machines than on others",
    "alcf": "Slingshot plugin: eager and rendezvous protocols switch with the message",
    "alps": "Slingshot plugin: eager and rendezvous protocols switch with the message",
    "oci-gb200": "NVLink domains over two racks: NCCL's graph search over them is not modelled",
    "deepops-dgx1": "8 B takes 1 ms in the source: SR-IOV start-up",
}


def evaluate(profile: str, *, workers: int = 2) -> tuple[Graded, list[Case]]:
    """Return the graded rows of a profile and its cases."""
    chosen = [case for case in cases() if case.profile == profile]
    with progress(len(chosen), f"{profile}: tables") as bar:
        problem = build(profile, chosen, workers=workers, on_progress=bar.reach)
    values = profile_values(profile, load_profile(profile))
    theta = np.clip(
        np.log([values[parameter.key] for parameter in problem.given]), problem.low, problem.high
    )
    machines = len({row.machine for row in problem.rows})
    with progress(machines, f"{profile}: machines left out") as bar:
        return grades(problem, theta, on_progress=bar.reach), chosen


def figures(graded: Graded) -> dict[str, dict[str, dict[str, float]]]:
    """Return median and p90 by grade and size range."""
    return {
        grade: {
            name: {"median": round(m, 3), "p90": round(p, 3)}
            for name, (m, p, _, _) in statistics(graded.rows, getattr(graded, grade)).items()
        }
        for grade in GRADES
    }


def document(parts: dict[str, tuple[Graded, list[Case]]]) -> str:
    """Return docs/accuracy.md."""
    lines = [
        "# Accuracy",
        "",
        "Made by `python -m validation.accuracy` from the committed measurements; do not edit.",
        "Every machine is left out of the fit before it is predicted. The error is",
        "|predicted − measured| / measured; set-ups count alike, however many rows they have.",
        "",
        "* **zero-shot**: from the names of the parts.",
        "* **floor known**: one small message's time of the table is given (and not scored).",
        "* **calibrated**: one sweep of the machine is given (over nodes where there is one, the",
        "  longest, over the fewest nodes); its other tables are scored, or every second size",
        "  where there is one table only. The known errors are weighed by how far other machines'",
        "  constants, and the model itself, were off (`validation/fitting/calibrate.py`), which is",
        "  what `collsim fit` does.",
        "",
    ]
    for profile, (graded, chosen) in parts.items():
        rows = graded.rows
        lines += [
            f"## Profile `{profile}`",
            "",
            f"{len({r.slug for r in rows})} set-ups, {len({r.machine for r in rows})} machines, "
            f"{len(rows)} rows, data {identity(chosen)}. Of the rows of left-out machines "
            f"{covered(rows, graded.zero_shot):.0%} lie in the 80 % band of the other machines.",
            "",
            "| grade | size | median | target | p90 | rows | set-ups |",
            "|---|---|---|---|---|---|---|",
        ]
        for grade in GRADES:
            for name, (m, p, n, k) in statistics(rows, getattr(graded, grade)).items():
                lines.append(
                    f"| {grade.replace('_', ' ')} | {name} | {m:.1%} | {TARGETS[grade][name]:.0%} "
                    f"| {p:.0%} | {n} | {k} |"
                )
        lines += ["", "### By set-up, collective and size", ""]
        lines += _table(graded)
        lines += ["", "### The worst ten", ""]
        lines += _worst(graded)
        lines.append("")
    reasons = refused()
    lines += ["## Not used", ""]
    lines += [f"* `{slug}`: {reason}" for slug, reason in sorted(reasons.items())]
    lines += [
        f"* `{slug}`, tables with “{words}”: {reason}"
        for slug, mapped in sorted(mapping().items())
        for words, reason in mapped.leave_out
    ]
    return "\n".join(lines) + "\n"


def _groups(graded: Graded) -> dict[tuple[str, str, int, int], list[int]]:
    found: dict[tuple[str, str, int, int], list[int]] = {}
    for i, row in enumerate(graded.rows):
        found.setdefault(
            (row.slug, row.collective, row.n_ranks, range_of(row.size_bytes)), []
        ).append(i)
    return found


def _table(graded: Graded) -> list[str]:
    lines = [
        "| set-up | collective | ranks | size | zero-shot | bias | floor known | calibrated |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for (slug, collective, ranks, index), chosen in sorted(_groups(graded).items()):
        cells = []
        for grade in GRADES:
            values = getattr(graded, grade)[chosen]
            values = values[np.isfinite(values)]
            cells.append(f"{np.median(np.abs(np.expm1(values))):.0%}" if len(values) else "–")
        bias = math.expm1(float(np.median(graded.zero_shot[chosen])))
        lines.append(
            f"| {slug} | {collective} | {ranks} | {RANGES[index]} | {cells[0]} | {bias:+.0%} "
            f"| {cells[1]} | {cells[2]} |"
        )
    return lines


def _worst(graded: Graded) -> list[str]:
    scored = []
    for (slug, collective, ranks, index), chosen in _groups(graded).items():
        error = float(np.median(np.abs(graded.zero_shot[chosen])))
        scored.append((error, slug, collective, ranks, index, chosen))
    lines = []
    for _, slug, collective, ranks, index, chosen in sorted(scored, reverse=True)[:10]:
        machine = graded.rows[chosen[0]].machine
        bias = math.expm1(float(np.median(graded.zero_shot[chosen])))
        reason = REASONS.get(machine, "cause not known")
        lines.append(
            f"* {slug}, {collective}, {ranks} ranks, {RANGES[index]}: {bias:+.0%}. {reason}."
        )
    return lines


def compare_with_bounds(
    found: dict[str, dict[str, dict[str, dict[str, float]]]], bounds: dict[str, Any]
) -> list[str]:
    """Return a line for every figure that is worse than its bound, or has none."""
    worse = []
    for profile, by_grade in found.items():
        for grade, by_range in by_grade.items():
            for name, entry in by_range.items():
                for key, value in entry.items():
                    bound = bounds.get(profile, {}).get(grade, {}).get(name, {}).get(key)
                    if bound is None:
                        worse.append(f"{profile} {grade} {name} {key}: no bound")
                    elif value > bound:
                        worse.append(f"{profile} {grade} {name} {key}: {value:.3f} > {bound:.3f}")
    return worse


def _bounds_path() -> Path:
    return Path(str(resources.files("validation"))) / "bounds.yaml"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    import yaml

    parser = argparse.ArgumentParser(prog="python -m validation.accuracy", description=__doc__)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--output", type=Path, default=None, help="default docs/accuracy.md")
    parser.add_argument("--set-bounds", action="store_true", help="make the figures the bounds")
    options = parser.parse_args(arguments)
    began = time.monotonic()
    parts = {name: evaluate(name, workers=options.workers) for name in ("nccl", "rccl")}
    text = document(parts)
    output = options.output or _bounds_path().parent.parent / "docs" / "accuracy.md"
    output.write_text(text, "utf-8")
    found = {name: figures(graded) for name, (graded, _) in parts.items()}
    for profile, by_grade in found.items():
        for grade, by_range in by_grade.items():
            for name, entry in by_range.items():
                sys.stdout.write(
                    f"{profile} {grade:12s} {name:9s} median {entry['median']:.1%} "
                    f"p90 {entry['p90']:.1%}\n"
                )
    sys.stdout.write(f"{output} in {time.monotonic() - began:.0f} s\n")
    if options.set_bounds:
        loose = {
            profile: {
                grade: {
                    name: {key: round(value * 1.1 + 0.005, 3) for key, value in entry.items()}
                    for name, entry in by_range.items()
                }
                for grade, by_range in by_grade.items()
            }
            for profile, by_grade in found.items()
        }
        head = "# Figures of docs/accuracy.md that must not get worse: today's and a tenth.\n"
        _bounds_path().write_text(head + yaml.safe_dump(loose, sort_keys=False), "utf-8")
        return 0
    bounds = yaml.safe_load(_bounds_path().read_text("utf-8"))
    worse = compare_with_bounds(found, bounds)
    for line in worse:
        sys.stdout.write(f"worse: {line}\n")
    return 1 if worse else 0


if __name__ == "__main__":
    raise SystemExit(main())
