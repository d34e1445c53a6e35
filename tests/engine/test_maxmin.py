"""Water-filling: the definition of max-min fairness, and the textbook's algorithm as oracle."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.engine.maxmin import max_min_rates


def textbook(indptr, link, weight, capacity, max_rate):
    """One bottleneck per round (Bertsekas and Gallager, section 6.5.2)."""
    n = len(indptr) - 1
    rate, frozen = np.zeros(n), np.zeros(n, dtype=bool)
    left = capacity.copy()
    while not frozen.all():
        load = np.zeros(len(capacity))
        for i in np.flatnonzero(~frozen):
            for e in range(indptr[i], indptr[i + 1]):
                load[link[e]] += weight[e]
        share = np.where(load > 0, left / np.where(load > 0, load, 1), np.inf)
        limit = np.where(frozen, np.inf, max_rate)
        level = min(share.min(), limit.min())
        now = [
            i
            for i in np.flatnonzero(~frozen)
            if limit[i] <= level * (1 + 1e-12)
            or any(share[link[e]] <= level * (1 + 1e-12) for e in range(indptr[i], indptr[i + 1]))
        ]
        for i in now:
            rate[i], frozen[i] = level, True
            for e in range(indptr[i], indptr[i + 1]):
                left[link[e]] = max(0.0, left[link[e]] - weight[e] * level)
    return rate


@st.composite
def problems(draw):
    n_links = draw(st.integers(1, 8))
    n_flows = draw(st.integers(1, 12))
    routes = [
        draw(st.lists(st.integers(0, n_links - 1), min_size=1, max_size=n_links, unique=True))
        for _ in range(n_flows)
    ]
    values = st.sampled_from([0.5, 1.0, 1.25, 3.0, 7.7])
    capacities = st.sampled_from([0.0, 1.0, 2.5, 10.0, 33.3])
    capacity = np.array([draw(capacities) for _ in range(n_links)])
    weight = np.array([draw(values) for route in routes for _ in route])
    max_rate = np.array([draw(st.sampled_from([np.inf, np.inf, 0.3, 1.0])) for _ in routes])
    indptr = np.concatenate(([0], np.cumsum([len(route) for route in routes])))
    return indptr, np.array([x for r in routes for x in r]), weight, capacity, max_rate


@settings(max_examples=300, deadline=None)
@given(problems())
def test_equals_the_textbook(problem):
    assert max_min_rates(*problem) == pytest.approx(textbook(*problem), rel=1e-9, abs=1e-12)


@settings(max_examples=200, deadline=None)
@given(problems())
def test_every_flow_has_a_bottleneck_and_no_link_is_overloaded(problem):
    # Max-min: each flow is at its own limit, or crosses a saturated link on which nobody is
    # faster (Bertsekas and Gallager, proposition 6.1).
    indptr, link, weight, capacity, max_rate = problem
    rate = max_min_rates(*problem)
    owner = np.repeat(np.arange(len(rate)), np.diff(indptr))
    load = np.bincount(link, weights=weight * rate[owner], minlength=len(capacity))
    assert (load <= capacity * (1 + 1e-9) + 1e-12).all()
    assert (rate <= max_rate).all()
    for i in range(len(rate)):
        if rate[i] == max_rate[i]:
            continue
        bottlenecks = [
            x
            for x in link[indptr[i] : indptr[i + 1]]
            if load[x] >= capacity[x] * (1 - 1e-9) - 1e-12
            and rate[owner[link == x]].max() <= rate[i] * (1 + 1e-9) + 1e-12
        ]
        assert bottlenecks, f"flow {i} could be faster"


def test_two_flows_share_a_link_equally():
    one_link = (np.array([0, 1, 2]), np.array([0, 0]), np.ones(2), np.array([10.0]))
    assert max_min_rates(*one_link, np.full(2, np.inf)).tolist() == [5.0, 5.0]
    # A flow held below its share leaves the rest to the other.
    assert max_min_rates(*one_link, np.array([2.0, np.inf])).tolist() == [2.0, 8.0]


def test_weights_are_wire_bytes_per_payload_byte():
    # Equal payload rates x: 1·x + 3·x = 8.
    rate = max_min_rates(
        np.array([0, 1, 2]),
        np.array([0, 0]),
        np.array([1.0, 3.0]),
        np.array([8.0]),
        np.full(2, np.inf),
    )
    assert rate.tolist() == [2.0, 2.0]


def test_flow_without_links_runs_at_its_own_limit():
    rate = max_min_rates(
        np.array([0, 0, 1]), np.array([0]), np.ones(1), np.array([4.0]), np.array([3.0, np.inf])
    )
    assert rate.tolist() == [3.0, 4.0]
