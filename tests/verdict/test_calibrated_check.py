"""A check against a machine's own calibration: uniform slowness is no fault, faults are found."""

from __future__ import annotations

import numpy as np
import pytest
from logs import healthy_text, table_of

from simulator.costs.calibration_file import identity_of
from simulator.costs.profile import profile_data
from simulator.verdict.check import Machine, causes_of, check_table
from simulator.verdict.evidence import Curve, unexplained
from simulator.verdict.health import Health
from simulator.verdict.records import check_table_text
from simulator.verdict.setup import SetUp

TEXT = """\
name: own
extends: nccl
discrepancy:
  first_octave: 0
  common: [{zeros}]
  ways: {{ring/LL: [{curve}], ring/LL128: [{curve}], ring/Simple: [{curve}]}}
bands: {{tables: {{other: [[1.0e+6, 0.2], [1.0e+7, 0.2], [1.0e+15, 0.06]]}}}}
fitted:
  node: dgx-a100-80gb
  base_identity: {identity}
  ranges:
  - {{collective: all_reduce, ranks: 8, nodes: 1, sizes_bytes: [1, 1000000000000]}}
"""


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return a machine whose ring takes e^0.3 of the modelled time, of its tree nothing known."""
    path = tmp_path_factory.mktemp("own") / "own.yaml"
    identity = identity_of(profile_data("nccl"))
    path.write_text(
        TEXT.format(zeros=", ".join(["0"] * 40), curve=", ".join(["0.3"] * 40), identity=identity)
    )
    return {"node": "dgx-a100-80gb", "nodes": "1", "costs.profile": str(path)}


def checked(words: dict[str, str], text: str) -> Machine:
    return check_table(SetUp(words=words), table_of(text), workers=1)


@pytest.mark.parametrize(("factor", "health"), [(1.25, Health.SICK), (1.15, Health.SUSPICIOUS)])
def test_the_same_slowdown_at_all_sizes_is_no_fault(
    words: dict[str, str], factor: float, health: Health
) -> None:
    found = checked(words, healthy_text(words, factor=factor))
    assert found.health is health
    assert found.diagnosis is not None
    assert causes_of(found.diagnosis) == ()


def test_a_forced_tree_is_told(words: dict[str, str]) -> None:
    # Its time with the ring's discrepancy: that of the machine, as far as is known.
    bare = {"node": words["node"], "nodes": "1"}
    tree = healthy_text(bare | {"collective.algorithm": "double_binary_tree"}, factor=np.exp(0.3))
    found = checked(words, tree)
    assert found.diagnosis is not None
    (first, *_) = causes_of(found.diagnosis)
    assert "forced_tree" in (first.hypothesis.name, *first.alike)
    assert first.weight > 0.5


def test_words_are_those_of_the_calibration(words: dict[str, str]) -> None:
    (check,) = checked(words, healthy_text(words, factor=1.25)).checks
    told = " ".join(finding.words for finding in check.findings)
    assert "times as far off as the calibration's 80 % band reaches" in told
    assert "healthy machines" not in told
    assert "its calibration" in " ".join(check_table_text(check).remarks)


def test_a_constant_slowdown_is_a_cause_by_itself_where_asked() -> None:
    curve = Curve(octaves=np.arange(12.0), error=np.full(12, 0.22), width=np.full(12, 0.06))
    assert unexplained([curve], 0.8, uniform=True) > unexplained([curve], 0.8) + 5
