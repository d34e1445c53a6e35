"""The accuracy document: what it compares and that it fails when figures get worse."""

from __future__ import annotations

from importlib import resources

import numpy as np
import yaml

from tests.validation.test_fit import case
from validation.accuracy import GRADES, RANGES, compare_with_bounds, document, figures
from validation.fitting.cross import Graded
from validation.fitting.problem import rows_of


def graded() -> Graded:
    rows = tuple(rows_of([case()], workers=1))
    error = np.log(np.full(len(rows), 1.1))
    return Graded(rows=rows, zero_shot=error, floor_known=error, calibrated=error)


def test_figures_are_relative_errors() -> None:
    found = figures(graded())
    assert set(found) == set(GRADES)
    for by_range in found.values():
        assert set(by_range) == set(RANGES)
        assert all(entry == {"median": 0.1, "p90": 0.1} for entry in by_range.values())


def test_worse_figures_and_missing_bounds_are_told() -> None:
    found = {"nccl": figures(graded())}
    assert compare_with_bounds(found, found) == []
    tight = yaml.safe_load(yaml.safe_dump(found))
    tight["nccl"]["zero_shot"]["< 1 MiB"]["median"] = 0.05
    del tight["nccl"]["calibrated"]
    worse = compare_with_bounds(found, tight)
    assert "nccl zero_shot < 1 MiB median: 0.100 > 0.050" in worse
    assert sum("no bound" in line for line in worse) == 6


def test_the_document_names_grades_set_ups_and_the_worst() -> None:
    text = document({"nccl": (graded(), [case()])})
    assert "| zero shot | < 1 MiB | 10.0% |" in text
    assert "| own | all_reduce | 8 |" in text
    assert "### The worst ten" in text
    assert "## Not used" in text


def test_bounds_cover_every_figure() -> None:
    text = (resources.files("validation") / "bounds.yaml").read_text("utf-8")
    bounds = yaml.safe_load(text)
    for profile in ("nccl", "rccl"):
        assert set(bounds[profile]) == set(GRADES)
