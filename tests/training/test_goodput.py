"""Days of training with failures: closed forms where there are any, invariants elsewhere."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given as examples
from hypothesis import settings
from hypothesis import strategies as st

from simulator.base.errors import ScenarioError
from simulator.training.goodput import (
    Goodput,
    Reliability,
    daly_interval_s,
    daly_share,
    simulate_days,
    young_s,
)

HOUR, DAY = 3600.0, 86400.0
BASE = Reliability(
    duration_s=60 * DAY,
    n_nodes=100,
    node_mtbf_s=1000 * HOUR,
    checkpoint_s=60.0,
    interval_s=2000.0,
    restart_s=600.0,
    repair_s=10 * HOUR,
    spares=1000,
)


def _sum(found: Goodput) -> float:
    parts = ("useful", "lost", "checkpoint", "restart", "waiting", "shrunk")
    return sum(getattr(found, part) for part in parts)


def _full(nodes: int) -> float:
    return nodes / BASE.n_nodes


def test_with_spares_the_useful_share_is_dalys() -> None:
    # 100 nodes of 1,000 h: one failure in 10 h.  60 days have 144, 32 runs 4,600: 0.3 % of noise.
    found = simulate_days(BASE, _full)
    expected = daly_share(BASE.interval_s, BASE.checkpoint_s, BASE.restart_s, 10 * HOUR)
    assert found.useful == pytest.approx(expected, rel=0.005)
    assert found.waiting == found.shrunk == 0.0
    assert found.failures == pytest.approx(144.0, rel=0.05)


def test_dalys_interval_is_best() -> None:
    mtbf = 10 * HOUR
    best = daly_interval_s(60.0, mtbf)
    shares = [daly_share(best * factor, 60.0, 600.0, mtbf) for factor in (0.7, 0.9, 1.0, 1.1, 1.4)]
    assert max(shares) == shares[2]
    grid = np.linspace(0.5, 2.0, 301) * best
    exact = grid[np.argmax([daly_share(float(x), 60.0, 600.0, mtbf) for x in grid])]
    assert best == pytest.approx(exact, rel=0.01)


def test_youngs_interval_is_the_first_order() -> None:
    assert young_s(50.0, 10000.0) == pytest.approx(1000.0)
    assert daly_interval_s(1e-6, 1e4) == pytest.approx(young_s(1e-6, 1e4), rel=1e-3)
    assert daly_interval_s(30.0, 10.0) == 10.0


def test_without_failures_only_checkpoints_cost() -> None:
    found = simulate_days(replace(BASE, node_mtbf_s=1e15), _full)
    assert found.useful == pytest.approx(2000 / 2060, rel=1e-3)
    assert found.failures == 0


def test_without_spares_the_job_waits_for_the_repair() -> None:
    found = simulate_days(replace(BASE, spares=0), _full)
    assert found.waiting > 0.3
    assert found.useful < simulate_days(BASE, _full).useful


def test_an_elastic_job_goes_on_with_fewer_replicas() -> None:
    rigid = simulate_days(replace(BASE, spares=0), _full)
    elastic = simulate_days(replace(BASE, spares=0, nodes_per_replica=10), _full)
    assert elastic.waiting == 0.0
    assert elastic.shrunk > 0.03
    assert elastic.useful > rigid.useful


def test_the_seed_decides() -> None:
    assert simulate_days(BASE, _full, seed=1) == simulate_days(BASE, _full, seed=1)
    assert simulate_days(BASE, _full, seed=1) != simulate_days(BASE, _full, seed=2)


@settings(max_examples=40, deadline=None)
@examples(
    nodes=st.integers(1, 60),
    mtbf=st.floats(1e3, 1e7),
    checkpoint=st.floats(0.0, 500.0),
    restart=st.floats(0.0, 3000.0),
    repair=st.floats(0.0, 1e5),
    spares=st.integers(0, 3),
    replica=st.sampled_from([None, 1, 3]),
)
def test_shares_sum_to_one(
    nodes: int,
    mtbf: float,
    checkpoint: float,
    restart: float,
    repair: float,
    spares: int,
    replica: int | None,
) -> None:
    asked = Reliability(
        duration_s=2 * DAY,
        n_nodes=nodes,
        node_mtbf_s=mtbf,
        checkpoint_s=checkpoint,
        interval_s=1500.0,
        restart_s=restart,
        repair_s=repair,
        spares=spares,
        nodes_per_replica=replica,
    )
    found = simulate_days(asked, lambda n: n / nodes, runs=2)
    assert _sum(found) == pytest.approx(1.0, abs=1e-9)
    assert min(found.useful, found.lost, found.restart, found.waiting, found.shrunk) >= 0.0


def test_a_job_without_time_is_refused() -> None:
    with pytest.raises(ScenarioError, match="more than 0 s"):
        simulate_days(replace(BASE, duration_s=0.0), _full)
