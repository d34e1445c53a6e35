"""Measured tables made from predictions, through the text of nccl-tests and back."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import replace

from simulator.compose.build import build_cluster
from simulator.compose.run import run_resolved
from simulator.importers import MeasuredTable
from simulator.importers.nccl_tests import read
from simulator.results.model import RunResult
from simulator.results.nccl_tests import nccl_tests_table
from simulator.scenario.resolve import from_words
from simulator.verdict.hypotheses import HYPOTHESES, Context, context_of
from simulator.verdict.predict import predict_sizes
from simulator.verdict.setup import SetUp, call_words

SIZES = tuple(1 << e for e in range(13, 33, 2))


@functools.cache
def _healthy(words: tuple[tuple[str, str], ...]) -> RunResult:
    call = {
        "collective.op": "all_reduce",
        "collective.sizes": str(list(SIZES)),
        "engine.level": "folded",
    }
    return run_resolved(from_words({**dict(words), **call}).variants[0])


def healthy_text(words: Mapping[str, str], *, factor: float = 1.0, add_s: float = 0.0) -> str:
    """Return the log of a machine that is as predicted, or slower by a factor and a floor."""
    made = _healthy(tuple(words.items()))
    rows = []
    for row in made.rows:
        time_s = row.time_s * factor + add_s
        share = row.time_s / time_s
        rows.append(
            replace(
                row,
                time_s=time_s,
                algbw_Bps=row.algbw_Bps * share,
                busbw_Bps=row.busbw_Bps * share,
            )
        )
    return nccl_tests_table(replace(made, rows=tuple(rows)))


def table_of(text: str) -> MeasuredTable:
    return read(text).tables[0]


def context(words: Mapping[str, str]) -> tuple[SetUp, Context]:
    made = _healthy(tuple(words.items()))
    set_up = SetUp(words={**words, "engine.level": "folded"})
    resolved = set_up.resolve(call_words(table_of(healthy_text(words)), SIZES))
    launch_s = build_cluster(resolved).profile.launch_s
    found = context_of(resolved, made.rows, launch_s=launch_s)
    assert found is not None
    return set_up, found


def faulty_text(words: Mapping[str, str], fault: str) -> str | None:
    """Return the log of a machine with a fault; None where it cannot be on it."""
    set_up, found = context(words)
    patch = HYPOTHESES[fault].words(found)
    if patch is None:
        return None
    made = _healthy(tuple(words.items()))
    base = {row.size_bytes: row for row in made.rows}
    table = table_of(healthy_text(words))
    choices = None if HYPOTHESES[fault].seen else base
    rows = predict_sizes(set_up, table, SIZES, words=patch, choices=choices)
    return nccl_tests_table(replace(made, rows=tuple(rows[size] for size in SIZES)))


def placed_text(words: Mapping[str, str], part: str, share: float) -> str:
    """Return the log of a machine of which one NIC or GPU has a share of its bandwidth."""
    set_up, _ = context(words)
    made = _healthy(tuple(words.items()))
    base = {row.size_bytes: row for row in made.rows}
    patch = {"perturb.links": f'[{{link: "{part}<->*", factor: {share}}}]'}
    table = table_of(healthy_text(words))
    rows = predict_sizes(set_up, table, SIZES, words=patch, choices=base)
    return nccl_tests_table(replace(made, rows=tuple(rows[size] for size in SIZES)))
