"""Test data with a known result in every element type.

Element *i* of rank *r* is ``(5 i + i // 7 + 3 r) mod m``: small whole numbers, so that every sum is
exact, and different for neighbouring ranks and elements, so that data of a wrong rank or place
are found.  For products it is 2 on rank ``i mod n`` and 1 elsewhere.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

__all__ = ["Pattern"]

_BLOCK = 1 << 22
"""Elements made at a time: the 64-bit indices must not need more memory than the data."""
# Largest whole number up to which every one is exact (IEEE 754 significands; integer maxima).
_EXACT = {"int8": 127, "uint8": 255, "bfloat16": 256, "half": 2048}
FOREIGN = 77
"""What stands in buffers that a call must overwrite."""


@dataclass(frozen=True, slots=True)
class Pattern:
    """The data of one collective call over *n_ranks* ranks."""

    n_ranks: int
    dtype: str
    redop: str

    @property
    def modulus(self) -> int:
        """Numbers are 0 … modulus − 1; the sum over all ranks stays exact."""
        return max(2, min(8, _EXACT.get(self.dtype, 1 << 20) // self.n_ranks))

    def fill(self, view: Any, rank: int, start: int) -> None:
        """Write what *rank* contributes to elements ``start …`` into a flat tensor."""
        for begin, index in _blocks(view, start):
            view[begin : begin + index.numel()] = self._value(index, rank).to(view.dtype)

    def wrong(self, view: Any, rank: int | None, start: int) -> int:
        """Return how many elements are not those of *rank*, or of all ranks reduced for None."""
        count = 0
        for begin, index in _blocks(view, start):
            expected = self._reduced(index) if rank is None else self._value(index, rank)
            found = view[begin : begin + index.numel()]
            count += int((found != expected.to(view.dtype)).sum().item())
        return count

    def _value(self, index: Any, rank: int) -> Any:
        if self.redop == "prod":
            return 1 + (index % self.n_ranks == rank).to(index.dtype)
        return (index * 5 + index // 7 + 3 * rank) % self.modulus

    def _reduced(self, index: Any) -> Any:
        import torch

        if self.redop == "prod":
            return torch.full_like(index, 2)
        # The result depends on the remainder only, so a table of m entries does for any n.
        table = torch.tensor(
            _reduced_table(self.n_ranks, self.modulus, self.redop),
            dtype=index.dtype,
            device=index.device,
        )
        return table[(index * 5 + index // 7) % self.modulus]


@functools.cache
def _reduced_table(n_ranks: int, modulus: int, redop: str) -> tuple[int, ...]:
    known: dict[str, Callable[[list[int]], int]] = {"sum": sum, "min": min, "max": max}
    combine = known[redop]
    return tuple(
        combine([(first + 3 * rank) % modulus for rank in range(n_ranks)])
        for first in range(modulus)
    )


def _blocks(view: Any, start: int) -> Iterator[tuple[int, Any]]:
    import torch

    for begin in range(0, view.numel(), _BLOCK):
        length = min(_BLOCK, view.numel() - begin)
        yield (
            begin,
            torch.arange(
                start + begin, start + begin + length, dtype=torch.int64, device=view.device
            ),
        )
