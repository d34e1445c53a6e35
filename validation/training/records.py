"""All measured steps, by source."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from validation.training.record import Excluded, Record
from validation.training.sources import (
    bigscience,
    bridge,
    internevo,
    misc,
    mosaic,
    nemo,
    papers,
    torchtitan,
    vtrain,
)

__all__ = ["all_records", "excluded_rows"]

_SOURCES = (mosaic, vtrain, internevo, papers, torchtitan, nemo, bridge, bigscience, misc)


def _everything() -> Iterator[Record | Excluded]:
    for source in _SOURCES:
        yield from source.records()


@cache
def all_records() -> tuple[Record, ...]:
    """Return all rows that can be predicted."""
    return tuple(item for item in _everything() if isinstance(item, Record))


@cache
def excluded_rows() -> tuple[Excluded, ...]:
    """Return all rows that are left out, with the reason."""
    return tuple(item for item in _everything() if isinstance(item, Excluded))
