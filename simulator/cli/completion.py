"""What a shell completes: names of nodes, networks, collectives, algorithms, libraries, models."""

from __future__ import annotations

from collections.abc import Callable, Iterable

__all__ = ["algorithms", "collectives", "fabrics", "models", "nodes", "profiles"]

Completer = Callable[[str], list[str]]


def _completer(names: Callable[[], Iterable[str]]) -> Completer:
    def complete(incomplete: str) -> list[str]:
        """Return names for the last word of a list with commas."""
        before, comma, word = incomplete.rpartition(",")
        return [before + comma + name for name in sorted(names()) if name.startswith(word)]

    return complete


def _nodes() -> Iterable[str]:
    from topologies import hardware

    return hardware.names()


def _fabrics() -> Iterable[str]:
    import topologies

    return topologies.kinds()


def _collectives() -> Iterable[str]:
    from simulator.collectives.registry import collectives

    return collectives()


def _algorithms() -> Iterable[str]:
    from simulator.collectives.registry import algorithms, collectives

    return {"auto", *(name for op in collectives() for name in algorithms(op))}


def _profiles() -> Iterable[str]:
    from simulator.costs.profile import profile_names

    return profile_names()


def _models() -> Iterable[str]:
    from simulator.models import model_names

    return model_names()


nodes, fabrics, collectives = map(_completer, (_nodes, _fabrics, _collectives))
algorithms, profiles, models = map(_completer, (_algorithms, _profiles, _models))
