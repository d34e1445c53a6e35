"""What environment variables made of a scenario, and the notes and warnings on the way."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import Any

from simulator.costs.profile import CostProfile
from simulator.costs.sockets import Sockets
from simulator.fabric.options import RoutingOptions

__all__ = ["Applied", "State"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """What the variables made of a scenario."""

    routing: RoutingOptions
    profile: CostProfile
    sockets: Sockets | None = None
    """TCP between nodes instead of verbs; None: as the ports are."""
    notes: tuple[str, ...] = ()
    """What acted, a sentence each."""
    warnings: tuple[str, ...] = ()
    """What did not, and why."""


@dataclass(slots=True)
class State:
    """Collects the changes."""

    given: RoutingOptions
    changes: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def set(self, cause: str, key: str, value: Any, meaning: str) -> None:
        """Set a key of routing, unless the scenario set it to something else than the default."""
        default = {f.name: f.default for f in fields(RoutingOptions)}[key]
        if getattr(self.given, key) not in (default, value):
            self.warnings.append(f"{cause}: routing.{key} of the scenario wins")
            return
        self.changes[key] = value
        self.notes.append(f"{cause}: {meaning} (routing.{key}: {_shown(value)})")

    def idle(self, cause: str, why: str) -> None:
        """Tell that a variable changes nothing."""
        self.warnings.append(f"{cause} has no effect here: {why}")

    @property
    def routing(self) -> RoutingOptions:
        """The options so far."""
        return replace(self.given, **self.changes)


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, tuple):
        return "[" + ", ".join(map(str, value)) + "]"
    return str(value)
