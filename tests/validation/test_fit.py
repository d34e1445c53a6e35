"""The fit: its formulas are the engine's, it finds constants back, and it refuses what it must."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from simulator.base.errors import CalibrationError
from simulator.collectives.call import Call
from simulator.compose.choose import lone_time_s
from simulator.costs.profile import load_profile
from validation.fit import check_enough, refused
from validation.fitting.cases import Case, cases, cluster_for, mapping
from validation.fitting.cross import band_rows, covered, left_out
from validation.fitting.document import read_document, with_constants
from validation.fitting.features import formula
from validation.fitting.problem import Problem, parameters, profile_values, rows_of, solve
from validation.published import set_ups


def case(**changes: object) -> Case:
    base = Case(
        slug="own",
        machine="own",
        healthy=True,
        node="dgx-a100-80gb",
        gpus_per_node=8,
        n_nodes=1,
        routing=(),
        profile="nccl",
        version="2.19.3",
        environment=(),
        collective="all_reduce",
        root=0,
        dtype="float",
        algorithm=None,
        protocol=None,
        size_bytes=2 ** np.arange(3, 31, 2, dtype=np.int64),
        time_s=np.full(14, 1e-3),
    )
    return replace(base, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("node", "n_nodes", "collective", "apart"),
    [
        ("dgx-a100-80gb", 1, "all_reduce", 0.001),
        ("dgx-a100-80gb", 2, "all_gather", 0.02),
        ("hgx-h100", 2, "all_to_all", 0.005),
        ("hgx-h100", 1, "broadcast", 0.005),
        # Links that unequal connections share: evenly in the formula, max-min fair in the engine.
        ("hgx-h100", 2, "reduce_scatter", 0.15),
        ("pcie-rtx4090-8", 1, "all_reduce", 0.15),
    ],
)
def test_formula_is_the_folded_engine(
    node: str, n_nodes: int, collective: str, apart: float
) -> None:
    profile = load_profile("nccl")
    values = profile_values("nccl", profile)
    asked = case(node=node, n_nodes=n_nodes, collective=collective)
    cluster = cluster_for(asked, profile)
    n = asked.n_ranks
    for size in (2**10, 2**20, 2**28):
        made = formula(asked, size, profile)
        assert made is not None
        if made.choice.algorithm not in ("ring", "direct"):
            continue
        call = Call(collective=collective, world_size=n, size_bytes=size)
        engine_s = lone_time_s(cluster, call, np.arange(n), made.choice)
        assert made.time_s(values) == pytest.approx(engine_s, rel=apart)


def test_formula_of_a_pipeline_is_tied_to_the_engine() -> None:
    profile = load_profile("nccl")
    values = profile_values("nccl", profile)
    asked = case(node="hgx-h100", n_nodes=2, version="2.23.4")
    size = 2**26
    made = formula(asked, size, profile, values)
    assert made is not None
    assert made.choice.algorithm == "nvls_tree"
    call = Call(collective="all_reduce", world_size=16, size_bytes=size)
    engine_s = lone_time_s(cluster_for(asked, profile), call, np.arange(16), made.choice)
    assert made.time_s(values) == pytest.approx(engine_s, rel=1e-6)


def test_constants_that_made_the_times_are_found_back() -> None:
    # Times from the formulas with two constants moved; the fit starts from the shipped ones.
    asked = case()
    rows = rows_of([asked], workers=1)
    shipped = profile_values("nccl", load_profile("nccl"))
    truth = dict(shipped)
    truth["launch.time"] *= 1.5
    truth["generations.ampere.links.nvlink"] *= 0.9
    rows = [replace(row, measured_s=row.formula.time_s(truth)) for row in rows]
    problem = Problem(rows, parameters("nccl"))
    problem.start = np.log([shipped[p.key] for p in problem.given])
    problem.weight = np.full(len(rows), 100.0)  # exact times: the starts must not hold them back
    found = problem.values(solve(problem, rounds=30, trusted=True))
    for row in rows:
        assert row.formula.time_s(found) == pytest.approx(row.measured_s, rel=0.03)
    assert found["generations.ampere.links.nvlink"] == pytest.approx(
        truth["generations.ampere.links.nvlink"], rel=0.05
    )


def test_slopes_are_the_derivatives_of_the_errors() -> None:
    rows = rows_of([case(), case(node="hgx-h100", n_nodes=2, version="2.23.4")], workers=1)
    problem = Problem(rows, parameters("nccl"))
    theta = problem.start
    slopes = problem.slopes(theta)
    for index in range(len(theta)):
        moved = theta.copy()
        moved[index] += 1e-3
        numeric = (problem.errors(moved) - problem.errors(theta)) / 1e-3
        assert slopes[:, index] == pytest.approx(numeric, abs=0.03), problem.given[index].key


def test_a_single_row_of_nonsense_moves_little() -> None:
    rows = rows_of([case()], workers=1)
    shipped = profile_values("nccl", load_profile("nccl"))
    rows = [replace(row, measured_s=row.formula.time_s(shipped)) for row in rows]
    rows[4] = replace(rows[4], measured_s=rows[4].measured_s * 50)
    problem = Problem(rows, parameters("nccl"))
    problem.start = np.log([shipped[p.key] for p in problem.given])
    found = problem.values(solve(problem))
    others = [row for i, row in enumerate(rows) if i != 4]
    for row in others:
        assert row.formula.time_s(found) == pytest.approx(row.measured_s, rel=0.1)


def test_left_out_machines_are_not_seen() -> None:
    # One machine is three times slower than the other: left out, each keeps the other's error.
    rows = rows_of([case(), case(slug="other", machine="other")], workers=1)
    values = profile_values("nccl", load_profile("nccl"))
    factor = {"own": 1.0, "other": 1.3}
    rows = [
        replace(row, measured_s=row.formula.time_s(values) * factor[row.machine]) for row in rows
    ]
    problem = Problem(rows, parameters("nccl"))
    theta = solve(problem)
    outside, without = left_out(problem, theta)
    assert set(without) == {"own", "other"}
    inside = problem.errors(theta)
    assert np.abs(outside).mean() > np.abs(inside).mean()


def test_the_band_holds_four_fifths() -> None:
    rows = [
        replace(row, machine=f"m{i % 7}", slug=f"s{i % 7}")
        for i, row in enumerate(rows_of([case(), case(slug="b"), case(slug="c")], workers=1))
    ]
    errors = np.random.default_rng(1).normal(0, 0.2, len(rows))
    for limit, *widths in band_rows(rows, errors):
        assert limit > 0
        assert len(widths) == 2
        assert min(widths) > 0
    assert 0.5 < covered(rows, errors) <= 1.0


def test_every_published_set_up_is_mapped() -> None:
    assert {entry.slug for entry in set_ups()} <= set(mapping())


def test_sick_set_ups_are_refused_with_a_reason() -> None:
    reasons = refused()
    sick = {entry.slug for entry in set_ups() if entry.health != "healthy"}
    assert sick <= set(reasons)
    assert all(reason.strip() for reason in reasons.values())
    assert not sick & {found.slug for found in cases()}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"healthy": False}, "sick"),
        ({"time_s": np.r_[0.0, np.full(13, 1e-3)]}, "not positive"),
        ({"size_bytes": np.arange(3) + 1, "time_s": np.ones(3)}, "3 rows"),
        ({"size_bytes": 2**20 + np.arange(14)}, "factor of 64"),
    ],
)
def test_data_that_say_too_little_are_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(CalibrationError, match=message):
        check_enough([case(**changes)])


def test_constants_go_into_the_file_in_its_units() -> None:
    given = parameters("nccl")
    document = with_constants(read_document("nccl"), given, {p.key: 2.0 * p.scale for p in given})
    assert document["launch"]["time"] == "2 us"
    assert document["generations"]["ampere"]["channel_GBps"]["LL"] == 2.0


@pytest.mark.parametrize("name", ["nccl", "rccl"])
def test_shipped_constants_lie_within_their_bounds(name: str) -> None:
    values = profile_values(name, load_profile(name))
    for parameter in parameters(name):
        value = values[parameter.key] / parameter.scale
        assert parameter.low * 0.99 <= value <= parameter.high * 1.01, parameter.key


@pytest.mark.parametrize("name", ["nccl", "rccl"])
def test_shipped_profiles_say_what_they_were_fitted_to(name: str) -> None:
    fitted = load_profile(name).fitted
    assert {"data", "rows", "sizes_bytes", "ranks", "nodes", "error_machine_left_out"} <= set(
        fitted
    )
    assert load_profile(name).bands
    width = load_profile(name).uncertainty(2**20)
    assert width is not None
    assert math.isfinite(width)
    assert width > 0
