"""Folding holds, or is not taken: against every rank simulated on the whole network."""

from __future__ import annotations

from typing import Any

import pytest

import simulator
from simulator.results.model import RunResult

SMALL = {"model": "llama-3-8b", "model_set": {"layers": 4}, "seq": 2048}


def step(**scenario: Any) -> tuple[RunResult, RunResult]:
    """Return the step as it is simulated by itself, and with every rank."""
    training = {**SMALL, **scenario.pop("training")}
    usual = simulator.run(**scenario, training=training)
    return usual, simulator.run(**scenario, training={**training, "fold": False})


@pytest.mark.parametrize(
    "training",
    [
        # Tensor groups use the links inside each half of the mesh, data groups those between.
        {"tensor": 4, "data_parallel": "zero1", "micro_batch": 2, "recompute": "full"},
        {"tensor": 4, "data_parallel": "zero3", "framework": "megatron"},
        {"tensor": 2, "data_parallel": "fsdp"},
    ],
)
def test_calls_on_other_links_of_a_mesh_do_not_hold_each_other_up(training: dict[str, Any]) -> None:
    folded, exact = (result.training[0] for result in step(node="mi300x", training=training))
    assert folded.folded
    assert folded.step_s == pytest.approx(exact.step_s, rel=0.015)
    exposed, right = (sum(s.exposed_s.values()) for s in (folded, exact))
    assert abs(exposed - right) < 0.015 * exact.step_s


CLOS = {"kind": "leaf_spine", "nics_per_leaf": 16, "oversubscription": 4}
PIPELINE = {"pipeline": 2, "micro_batches": 4, "data_parallel": "zero1"}


def test_uplinks_that_can_bind_are_not_folded() -> None:
    usual, exact = step(node="hgx-h100", nodes=8, fabric=CLOS, training=PIPELINE)
    assert not usual.training[0].folded
    assert any("every rank is simulated" in note for note in usual.notes)
    assert usual.training[0].step_s == exact.training[0].step_s
    assert usual.training[0].exposed_s == exact.training[0].exposed_s


def test_too_many_ranks_are_folded_with_a_word(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("simulator.compose.step.simulate.MOST_UNFOLDED_TASKS", 0)
    usual, exact = step(node="hgx-h100", nodes=8, fabric=CLOS, training=PIPELINE)
    assert usual.training[0].folded
    assert any("can be off by a half" in note for note in usual.notes)
    # Pairs below one leaf are priced together: they share its uplinks.
    assert usual.training[0].step_s == pytest.approx(exact.training[0].step_s, rel=0.03)
    found, right = (r.training[0].exposed_s["pipeline"] for r in (usual, exact))
    assert found == pytest.approx(right, rel=0.15)


@pytest.mark.parametrize(
    "fabric",
    [
        {"kind": "single_switch"},
        {"kind": "leaf_spine", "nics_per_leaf": 16},
        {"kind": "rail_optimized", "oversubscription": 4},
    ],
)
def test_networks_that_do_not_bind_stay_folded(fabric: dict[str, Any]) -> None:
    training = {**SMALL, **PIPELINE}
    (found,) = simulator.run(node="hgx-h100", nodes=8, fabric=fabric, training=training).training
    assert found.folded
