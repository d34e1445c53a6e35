"""The package's public list is what others may rely on."""

from __future__ import annotations

import pytest

import simulator.collectives as package
from simulator.collectives.registry import _TABLE


def test_public_names_are_pinned() -> None:
    assert package.__all__ == [
        "Algorithm",
        "Call",
        "ChunkMap",
        "Layout",
        "Schedule",
        "Stage",
        "Step",
        "VirtualRank",
        "algorithm",
        "algorithms",
        "collectives",
        "get_algorithm",
        "make_schedule",
    ]
    assert all(hasattr(package, name) for name in package.__all__)


def test_an_algorithm_registered_twice_is_a_programming_error() -> None:
    @package.algorithm("all_reduce", "only_here", summary="s", reference="r", formula="α")
    def once(call: package.Call, layout: package.Layout) -> package.Schedule:
        raise NotImplementedError

    try:
        with pytest.raises(ValueError, match="registered twice"):
            package.algorithm("all_reduce", "only_here", summary="", reference="", formula="")(once)
    finally:
        del _TABLE["all_reduce", "only_here"]
