"""Causes of published curves that several faults explain."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from simulator.importers.nccl_tests import read
from simulator.verdict.check import causes_of, check_table
from simulator.verdict.diagnose import LEAST_OTHER, _humble
from simulator.verdict.fault import HYPOTHESES
from simulator.verdict.guess import with_observed
from simulator.verdict.setup import SetUp, fitted

DATA = Path(__file__).parent / "data"
WORDS = {"node": "pcie-a100-40gb-1+1xib200", "nodes": "2"}


@pytest.mark.parametrize(
    ("log", "cause"),
    [
        ("a100pcie_gdr_across_sockets.log", "gpudirect_across_sockets"),
        ("a100pcie_nps4_nogdr.log", "remote_host_memory"),
    ],
)
def test_what_the_log_and_the_thread_say_is_among_the_causes(log: str, cause: str) -> None:
    table = read(DATA / log).tables[0]
    machine = check_table(fitted(with_observed(SetUp(words=WORDS), table), table), table)
    assert machine.diagnosis is not None
    found = causes_of(machine.diagnosis)
    assert cause in [name for told in found for name in (told.hypothesis.name, *told.alike)]
    assert all(told.weight <= 1 - LEAST_OTHER for told in found)


def test_something_is_always_kept_for_none_of_them() -> None:
    assert _humble(np.array([0.02, 0.0, 0.49, 0.49])).tolist() == pytest.approx(
        [0.02, 0.08, 0.45, 0.45]
    )
    unsure = np.array([0.3, 0.3, 0.4])
    assert _humble(unsure) is unsure


def test_old_plugins_variables_of_one_node_and_sockets_are_hypotheses() -> None:
    names = ("old_plugin", "one_sided_gpudirect", "gpudirect_across_sockets", "remote_host_memory")
    assert set(names) <= HYPOTHESES.keys()
