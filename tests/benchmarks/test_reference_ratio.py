"""Engine and reference on one run: a ring all_reduce of 128 ranks (32,512 messages).

``pytest tests/benchmarks/test_reference_ratio.py -n0 -o addopts= --benchmark-group-by=group``
prints both in one table; the relative column is the ratio.
"""

from __future__ import annotations

from typing import Any

import pytest

from simulator.engine.simulate import simulate
from tests.reference import builders
from tests.reference.builders import Wires
from tests.reference.message_sim import reference_simulate

N = 128


def _ring(n_channels: int, *, contended: bool) -> tuple[Any, Any]:
    """A ring whose hops have links of their own, or share them in pairs at 1.5 of 2 rates."""
    wires = Wires()
    if contended:
        links = [wires.add(75e9) for _ in range(N // 2) for _ in range(2)]
        links = [link - link % 2 for link in links]
    else:
        links = [wires.add(50e9) for _ in range(N)]
    what = builders.ring(wires, N, 1e6, 0.0, 1e-6, links=links, n_channels=n_channels)
    return wires.network(), builders.programs(what)


@pytest.mark.parametrize("level", ["reference", "steps", "folded"])
@pytest.mark.parametrize("contended", [False, True], ids=["own links", "shared links"])
@pytest.mark.benchmark(warmup=False)
def test_ring_of_128(benchmark: Any, level: str, contended: bool) -> None:
    benchmark.group = f"ring of {N} ranks, {'shared' if contended else 'own'} links"
    network, what = _ring(1, contended=contended)
    if level == "reference":
        outcome: Any = benchmark.pedantic(
            reference_simulate, args=(network, what), rounds=1, iterations=1
        )
        assert len(outcome.messages) == 2 * (N - 1) * N
    else:
        outcome = benchmark(simulate, network, what, level=level)
        benchmark.extra_info["events"] = outcome.n_events
        assert outcome.end_s > 0
