"""Verdicts on the published measurements; as a script it counts false alarms and detections.

``python tests/verdict/published.py`` takes some minutes and prints what docs/compare.md states.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator

from simulator.base.errors import CollsimError
from simulator.importers import MeasuredRow, MeasuredTable, RunParameters, Timing
from simulator.verdict.check import check_table
from simulator.verdict.health import judge
from simulator.verdict.predict import predict_rows
from simulator.verdict.setup import SetUp
from validation.fitting.cases import Case, cases

AS_IT_SHOULD_BE = {
    "h200-2n8g-single-nic-tcp": "hgx-h200",
    "aws-eks-1g-2n-socket": "aws-g4dn+1gpus+1xefa50",
}
"""Faulty set-ups whose mapped preset holds the fault; a check compares with the healthy one."""
MOST_RANKS = 64


def table_of(case: Case) -> MeasuredTable:
    rows = tuple(
        MeasuredRow(
            line=line,
            size_bytes=int(size),
            count=int(size) // 4,
            out_of_place=Timing(
                time_s=float(time_s),
                algbw_Bps=None,
                busbw_Bps=None,
                printed_algbw_Bps=None,
                printed_busbw_Bps=None,
            ),
            in_place=None,
        )
        for line, (size, time_s) in enumerate(
            zip(case.size_bytes, case.time_s, strict=True), start=1
        )
        if size > 0
    )
    return MeasuredTable(
        source=case.slug,
        collective=case.collective,
        collective_from="file",
        dtype=case.dtype,
        redop="sum",
        root=case.root,
        n_ranks=case.n_ranks,
        n_ranks_from="file",
        n_nodes=case.n_nodes,
        hosts=(),
        gpus=(),
        devices=(),
        nccl_version=case.version,
        tests_version=None,
        environment={},
        transports={},
        parameters=RunParameters(),
        cpu_time=False,
        printed_average_Bps=None,
        rows=rows,
    )


def set_up_of(case: Case) -> SetUp:
    node = AS_IT_SHOULD_BE.get(case.slug, case.node.removesuffix("+nogdr"))
    return SetUp(
        words={
            "node": node,
            "nodes": str(case.n_nodes),
            "gpus_per_node": str(case.gpus_per_node),
            "costs.profile": case.profile,
            "engine.level": "folded",
        }
    )


def one_each(healthy: bool) -> Iterator[Case]:
    """Generate the first case of every set-up and collective of at least six sizes."""
    seen: set[tuple[str, str]] = set()
    for case in cases(healthy_only=False):
        key = (case.slug, case.collective)
        told = case.healthy and "gdr-off" not in case.slug
        fits = 2 <= case.n_ranks <= MOST_RANKS and len(case.size_bytes) >= 6
        if told is healthy and fits and key not in seen:
            seen.add(key)
            yield case


def main() -> None:
    for healthy in (True, False):
        counts: Counter[str] = Counter()
        for case in one_each(healthy):
            try:
                rows = predict_rows(set_up_of(case), table_of(case))
                verdict = judge(rows)[0].name
                causes = ""
                if not healthy:
                    check = check_table(set_up_of(case), table_of(case))
                    found = check.diagnosis.explanations if check.diagnosis else ()
                    causes = ", ".join(entry.hypothesis.name for entry in found)
            except CollsimError as error:
                verdict, causes = "ERROR", str(error)[:60]
            counts[verdict] += 1
            if verdict != "HEALTHY" or not healthy:
                sys.stdout.write(f"{verdict} {case.name} {causes}\n")
        sys.stdout.write(f"{'healthy' if healthy else 'faulty'} {dict(counts)}\n")


if __name__ == "__main__":
    main()
