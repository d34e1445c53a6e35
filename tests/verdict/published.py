"""Statistics of verdicts: published machines, and faults that the simulator makes itself.

``python tests/verdict/published.py`` takes some minutes and prints what docs/compare.md states.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from logs import context, faulty_text, healthy_text, placed_text, table_of

from simulator.verdict import simulate
from simulator.verdict.check import causes_of
from simulator.verdict.diagnose import Case, Diagnosis, diagnose
from simulator.verdict.hypotheses import HYPOTHESES
from simulator.verdict.predict import predict_rows
from validation import alarms

SET_UPS: tuple[dict[str, str], ...] = (
    {"node": "dgx-a100-80gb", "nodes": "2"},
    {"node": "dgx-h100", "nodes": "4"},
    {"node": "hgx-h100", "nodes": "1"},
    {"node": "pcie-l40s-4+1xib200", "nodes": "1"},
    {"node": "pcie-l40s-4+1xib200", "nodes": "2"},
    {"node": "pcie-rtx4090-8", "nodes": "1"},
)
REPEATS = 5
BIAS, NOISE, FLOOR_S = 0.08, 0.06, (-3e-6, 15e-6)
LEAST_SLOWDOWN = 0.18
"""Root mean square of ln: a factor of 1.2."""


@dataclass
class Found:
    """What the diagnosis of a made-up machine was."""

    fault: str
    place: int | None
    """1: first; None: not among the causes."""
    diagnosis: Diagnosis


def remembered() -> None:
    """Let a fault be simulated once for all noisy copies of one log."""
    real, seen = simulate._answer, {}

    def answer(asked, cases, clusters):
        key = (asked_key(asked), tuple(repr(case.set_up.words) for case in cases))
        if key not in seen:
            seen[key] = real(asked, cases, clusters)
        return seen[key]

    def asked_key(asked):
        return tuple((repr(part.words), part.sizes_bytes, part.kept) for part in asked)

    simulate._answer = answer


def noisy(words: dict[str, str], text: str, rng: np.random.Generator) -> Case:
    """Return a table with the differences that healthy machines have."""
    set_up, _ = context(words)
    table = table_of(text)
    bias = float(np.exp(rng.normal(0, BIAS)))
    floor_s = float(rng.uniform(*FLOOR_S))
    rows = tuple(
        replace(
            row,
            measured_s=max(row.measured_s / 2, row.measured_s * bias + floor_s)
            * float(np.exp(rng.normal(0, NOISE))),
        )
        for row in predict_rows(set_up, table)
    )
    return Case(set_up=set_up, table=table, rows=rows)


def faults(repeats: int = REPEATS) -> Iterator[Found]:
    """Generate a diagnosis of every fault that slows its machine."""
    rng = np.random.default_rng(0)
    for words in SET_UPS:
        for fault in HYPOTHESES:
            text = faulty_text(words, fault)
            if text is None:
                continue
            set_up, _ = context(words)
            rows = predict_rows(set_up, table_of(text))
            if np.sqrt(np.mean([np.log(row.ratio) ** 2 for row in rows])) < LEAST_SLOWDOWN:
                continue
            sys.stderr.write(f"{words['node']} {fault}\n")
            yield from _repeated(words, text, fault, repeats, rng)


def _repeated(
    words: dict[str, str], text: str, fault: str, repeats: int, rng: np.random.Generator
) -> Iterator[Found]:
    for _ in range(repeats):
        made = diagnose([noisy(words, text, rng)], workers=1)
        place = next(
            (
                number
                for number, found in enumerate(made.explanations, start=1)
                if fault in (found.hypothesis.name, *found.alike)
            ),
            None,
        )
        yield Found(fault, place, made)


PLACES: tuple[tuple[dict[str, str], tuple[str, ...]], ...] = (
    (
        {"node": "dgx-a100-80gb", "nodes": "4"},
        ("node0.nic3", "node1.nic0", "node2.nic3", "node3.nic7", "node0.gpu3", "node2.gpu3"),
    ),
    (
        {"node": "dgx-h100", "nodes": "4"},
        ("node0.nic0", "node1.nic5", "node2.nic3", "node3.nic7", "node0.gpu1", "node2.gpu3"),
    ),
    ({"node": "dgx-h100", "nodes": "8"}, ("node0.nic1", "node4.nic2", "node5.nic3", "node3.gpu2")),
)
SHARES = (0.3, 0.5, 0.7)


def placed(repeats: int = REPEATS) -> Iterator[Found]:
    """Generate diagnoses of one bad NIC or GPU at several places and of several strengths."""
    rng = np.random.default_rng(2)
    for words, parts in PLACES:
        for part in parts:
            for share in SHARES:
                sys.stderr.write(f"{words['node']} {words['nodes']} {part} {share}\n")
                text = placed_text(words, part, share)
                fault = "slow_nic" if "nic" in part else "slow_gpu"
                yield from _repeated(words, text, fault, repeats, rng)


def healthy_causes(repeats: int = 20) -> Iterator[Diagnosis]:
    """Generate diagnoses of healthy noisy machines."""
    rng = np.random.default_rng(1)
    for words in SET_UPS:
        for _ in range(repeats):
            yield diagnose([noisy(words, healthy_text(words), rng)], workers=1)


def _tell(title: str, found_ones: Iterator[Found]) -> None:
    counts: Counter[str] = Counter()
    missed: Counter[str] = Counter()
    for found in found_ones:
        counts["all"] += 1
        counts["first"] += found.place == 1
        counts["three"] += found.place is not None and found.place <= 3
        if found.place != 1:
            best = found.diagnosis.explanations
            said = best[0].hypothesis.name if best else "nothing"
            missed[f"{found.fault}: {said} first, it {found.place}"] += 1
    sys.stdout.write(f"{title} {dict(counts)}\n")
    for text, count in missed.most_common():
        sys.stdout.write(f"  {count} × {text}\n")
    sys.stdout.flush()


def main() -> None:
    remembered()
    _tell("own faults", faults())
    _tell("one part at several places", placed())
    told = [bool(causes_of(found)) for found in healthy_causes()]
    sys.stdout.write(f"healthy with a cause: {sum(told)} of {len(told)}\n")
    alarms.main(["--causes", *sys.argv[1:]])


if __name__ == "__main__":
    main()
