"""What is known to fail: a dated list that must become empty.

Each entry has an example, and a test that asks whether it still fails: an entry that is mended has
to go.  A failure is never listed as a whole generator or relation: *where* says as narrowly as
it is known in which cases it is met.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.fuzz.scenarios import Sections

__all__ = ["KNOWN", "Known", "excused"]


@dataclass(frozen=True, kw_only=True)
class Known:
    """A failure that waits for its mend."""

    since: str
    """Day on which it was found."""
    name: str
    """Of the generator or the relation."""
    what: str
    where: Callable[[str, Any], bool]
    """Of the fault's text and the case."""
    example: Any


def _level(fault: str, scenario: Sections) -> bool:
    call, profile = scenario["collective"], scenario["costs"]["profile"]
    return (profile, call["op"], call.get("algorithm")) == ("mpi", "reduce", "tree")


def _two_way(fault: str, scenario: Sections) -> bool:
    is_ideal = scenario["costs"]["profile"] == "ideal"
    return is_ideal and scenario["collective"].get("algorithm") == "bidirectional_ring"


KNOWN: tuple[Known, ...] = (
    Known(
        since="2026-12-01",
        name="steps_as_folded",
        what="reduce by a tree of mpi's segments: folded is up to half longer",
        where=_level,
        example={
            "node": "mi300x",
            "nodes": 2,
            "gpus_per_node": 4,
            "costs": {"profile": "mpi"},
            "collective": {
                "op": "reduce",
                "sizes": ["16785408 B"],
                "algorithm": "tree",
                "channels": 8,
            },
            "fabric": {"kind": "leaf_spine"},
        },
    ),
    Known(
        since="2026-12-01",
        name="steps_as_folded",
        what="both ways round a mesh: folded is 16 % shorter for small messages",
        where=_two_way,
        example={
            "node": "dgx-1-v100",
            "nodes": 4,
            "gpus_per_node": 4,
            "costs": {"profile": "ideal"},
            "collective": {
                "op": "reduce_scatter",
                "sizes": ["8192 B"],
                "algorithm": "bidirectional_ring",
                "channels": 2,
            },
            "fabric": {"kind": "dragonfly"},
        },
    ),
)


def excused(name: str, fault: str, case: Any) -> bool:
    """Return whether a failure is a known one."""
    return any(entry.name == name and entry.where(fault, case) for entry in KNOWN)
