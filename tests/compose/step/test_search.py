"""The search for a strategy: what it returns fits, keeps the batch, and beats what it left out."""

from __future__ import annotations

import pytest

from simulator.base.errors import ScenarioError
from simulator.compose.build import build_cluster
from simulator.compose.run import run_resolved
from simulator.compose.step.memory import capacity_bytes
from simulator.compose.step.request import model_of, strategy_of
from simulator.compose.step.search import candidates
from simulator.scenario.resolve import from_words
from simulator.scenario.resolved import Resolved
from simulator.training.memory import memory_report


def _asked(gpus: int = 8, **training: str) -> Resolved:
    words = {f"training.{key}": value for key, value in training.items()}
    node = {"node": "dgx-a100-40gb", "gpus_per_node": str(gpus)}
    return from_words({**node, **words}).variants[0]


def test_candidates_fit_and_keep_the_global_batch() -> None:
    asked = _asked(model="gpt2-xl", global_batch="32")
    cluster = build_cluster(asked)
    found = candidates(cluster, asked, most=1000)
    assert found.n_tried >= found.n_allowed >= found.n_fitting == len(found.best) > 20
    for variant in found.best:
        assert variant.training is not None
        strategy = strategy_of(variant.training, 8, 8)
        assert strategy.global_batch == 32
        assert strategy.world_size == 8
        report = memory_report(model_of(variant.training), strategy)
        assert report.fits(capacity_bytes(cluster))
    assert len({variant.labels for variant in found.best}) == len(found.best)


def test_the_best_is_among_the_most_promising() -> None:
    """Of a small model all that fit are simulated: the fastest is in the formula's first third."""
    asked = _asked(2, model="gpt2-small", global_batch="4", model_set="{layers: 2}")
    cluster = build_cluster(asked)
    found = candidates(cluster, asked, most=1000).best
    times = [run_resolved(variant).training[0].step_s for variant in found]
    assert len(times) > 10
    assert times.index(min(times)) <= len(times) // 3


def test_what_cannot_fit_is_said() -> None:
    asked = _asked(model="llama-3.1-405b", global_batch="8")
    with pytest.raises(ScenarioError, match=r"none of .* fits llama-3\.1-405b"):
        candidates(build_cluster(asked), asked, most=4)
