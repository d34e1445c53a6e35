"""Colossal-AI on H200 and B200, and ml-engineering's comparison of both."""

from __future__ import annotations

from collections.abc import Iterator

from validation.training.record import Excluded, Record, rows_of

__all__ = ["records"]


def records() -> Iterator[Record | Excluded]:
    """Generate the rows, none of which says enough."""
    for row, cells in rows_of("misc_tables.csv"):
        if cells["source"].startswith("hpcai"):
            reason = "micro-batch, recomputation and attention are not given"
            if "inconsistent" in cells["note"]:
                reason = "inconsistent as printed: the layout needs 16 GPUs, 8 are named"
            yield Excluded(source="colossal-ai", row=row, reason=reason)
        else:
            yield Excluded(
                source="ml-engineering",
                row=row,
                reason="number of GPUs and the host's memory are not given",
            )
