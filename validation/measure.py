"""Measure collectives for real: `run_measure` from Python, ``python -m validation.measure``.

Alone it starts one process per GPU (NCCL), or two processes on the CPU (gloo); under torchrun,
mpirun or srun it takes the ranks that are there, on any number of nodes::

    python -m validation.measure all_reduce -b 8 -e 64M -f 2 --ranks 4 --json out.json
    torchrun --nproc-per-node 8 -m validation.measure all_gather all_reduce -e 4G

The printed table is nccl-tests', the JSON holds the environment too.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from simulator.base.errors import CollsimError, Problem
from simulator.base.units import parse_size
from validation.harness import launch
from validation.harness.options import (
    LIBRARY,
    MeasureError,
    Measurement,
    MeasureOptions,
    MicroRow,
    SweepRow,
    SweepTable,
    validated,
)
from validation.harness.table import micro_text, nccl_tests_text

__all__ = [
    "MeasureError",
    "MeasureOptions",
    "Measurement",
    "MicroRow",
    "SweepRow",
    "SweepTable",
    "main",
    "measurement_text",
    "read_measurement",
    "run_measure",
]


def run_measure(options: MeasureOptions) -> Measurement:
    """Run a measurement and return it; under torchrun every rank returns it.

    Raises
    ------
    MeasureError
        Bad options (all of them at once), no torch, too few GPUs, or a rank that failed.
    """
    return launch.run(validated(options))[0]


def measurement_text(measurement: Measurement) -> str:
    """Return the tables of nccl-tests, then the microbenchmarks, then the notes."""
    notes = "".join(f"# note: {note}\n" for note in measurement.notes)
    return nccl_tests_text(measurement) + micro_text(measurement) + notes


def read_measurement(path: str | Path) -> Measurement:
    """Read the JSON of an earlier run.

    Raises
    ------
    MeasureError
        Missing, not JSON, or not a measurement.
    """
    try:
        document = json.loads(Path(path).read_text())
    except (OSError, ValueError) as error:
        raise MeasureError(Problem(file=str(path), message=f"cannot be read: {error}")) from None
    if not isinstance(document, dict):
        raise MeasureError(Problem(file=str(path), message="not a measurement"))
    return Measurement.from_dict(document)


def _parser() -> argparse.ArgumentParser:
    default = MeasureOptions()
    parser = argparse.ArgumentParser(
        prog="collsim measure", description="Run collectives for real and time them."
    )
    add = parser.add_argument
    add("collectives", nargs="*", help="all_reduce, all_gather … (default all_reduce)")
    add("--ranks", type=int, help="processes to start here; mpirun, srun and torchrun say it")
    add("--backend", default=default.backend, help="auto, nccl or gloo")
    add("-b", "--min", default="8", help="least size, such as 8 or 1M")
    add("-e", "--max", default="32M", help="greatest size")
    add("-f", "--factor", type=int, default=default.factor, help="from one size to the next")
    add("-i", "--step", help="bytes from one size to the next, instead of a factor")
    add("-d", "--dtype", default=default.dtype)
    add("-o", "--redop", default=default.redop, help="sum, prod, min or max")
    add("-r", "--root", type=int, default=default.root)
    add("-w", "--warmup", type=int, default=default.warmup)
    add("-n", "--iterations", type=int, default=default.iterations)
    add("-a", "--over-ranks", default=default.over_ranks, help="average, min or max over ranks")
    add("-G", "--graph", type=int, default=default.graph, help="replays of a CUDA graph (NCCL)")
    add("-c", "--check", type=int, choices=(0, 1), default=1, help="check the data")
    add("--algorithm", default=LIBRARY, help="library, or schedules: ring,tree,…")
    add("--channels", type=int, default=default.channels, help="channels of the schedule")
    add("--ranks-per-node", type=int, help="node size that hierarchical schedules assume")
    add("--matmul", action="store_true", help="time matrix products on rank 0's device")
    add("--copy", action="store_true", help="time copies, additions and launches there")
    add("--timeout", type=float, default=default.timeout_s, help="seconds a rank may wait")
    add("--json", help="write everything there; - : print it instead of the table")
    add("--output", help="write the table there")
    return parser


def _options(arguments: argparse.Namespace) -> MeasureOptions:
    alone = (arguments.matmul or arguments.copy) and not arguments.collectives
    return MeasureOptions(
        collectives=() if alone else tuple(arguments.collectives or ("all_reduce",)),
        ranks=1 if alone and arguments.ranks is None else arguments.ranks,
        backend=arguments.backend,
        min_bytes=parse_size(arguments.min, bare=True),
        max_bytes=parse_size(arguments.max, bare=True),
        factor=arguments.factor,
        step_bytes=None if arguments.step is None else parse_size(arguments.step, bare=True),
        dtype=arguments.dtype,
        redop=arguments.redop,
        root=arguments.root,
        warmup=arguments.warmup,
        iterations=arguments.iterations,
        over_ranks=arguments.over_ranks,
        graph=arguments.graph,
        check=bool(arguments.check),
        algorithms=tuple(name for name in arguments.algorithm.split(",") if name),
        channels=arguments.channels,
        ranks_per_node=arguments.ranks_per_node,
        matmul=arguments.matmul,
        copy=arguments.copy,
        timeout_s=arguments.timeout,
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns its exit code: 0, 1 for wrong data, 2 for a bad request."""
    arguments = _parser().parse_args(argv)
    try:
        measurement, reports = launch.run(validated(_options(arguments)))
        if not reports:
            return 0
        text = measurement_text(measurement)
        shown = text
        if arguments.output not in (None, "-"):
            _write(arguments.output, text)
        if arguments.json is not None:
            document = json.dumps(measurement.to_dict(), indent=1) + "\n"
            if arguments.json == "-":
                shown = document
                sys.stderr.write("".join(f"note: {note}\n" for note in measurement.notes))
            else:
                _write(arguments.json, document)
    except CollsimError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    sys.stdout.write(shown)
    halves = [
        half
        for table in measurement.tables
        for row in table.rows
        for half in (row.out_of_place, row.in_place)
    ]
    return 1 if any(half is not None and half.wrong for half in halves) else 0


def _write(path: str, text: str) -> None:
    try:
        Path(path).write_text(text)
    except OSError as error:
        raise MeasureError(Problem(file=path, message=f"cannot be written: {error}")) from None


if __name__ == "__main__":
    sys.exit(main())
