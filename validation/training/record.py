"""One measured training step: what was run, on what, and how long it took."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources

from simulator.models.model import Model
from simulator.training.strategy import Strategy

__all__ = ["Excluded", "Record", "rows_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A measured step that can be predicted."""

    source: str
    """Who measured: records of one source are left out of a fit together."""
    row: int
    """Row of the source's file, the first is 2 as in a spreadsheet."""
    label: str
    model: Model
    strategy: Strategy
    node: str
    """Node preset with its variant."""
    nodes: int
    gpus_per_node: int | None = None
    """Fewer than the node has."""
    measured_s: float
    attention: str | None = None
    """Generation of fused attention; None: as usual on that GPU."""
    graphs: bool = False
    """Launches are replayed from CUDA graphs."""
    blocking: bool = False
    """``CUDA_LAUNCH_BLOCKING=1`` was set."""
    assumed: str = ""
    """What the source does not say and was assumed."""

    @property
    def name(self) -> str:
        """Source, row and label."""
        return f"{self.source}:{self.row} {self.label}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Excluded:
    """A row that is not used."""

    source: str
    row: int
    reason: str


def rows_of(name: str) -> Iterator[tuple[int, dict[str, str]]]:
    """Generate number and cells of the rows of a file of ``measurements/training``."""
    path = resources.files("validation").joinpath(f"measurements/training/{name}")
    with path.open(encoding="utf-8", newline="") as stream:
        yield from enumerate(csv.DictReader(stream), start=2)
