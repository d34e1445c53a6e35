"""The table of importers: format name → a function that reads a file or text of that format."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from simulator.base.registry import Registry

__all__ = ["IMPORTERS", "importer"]

Reader = TypeVar("Reader", bound=Callable[..., Any])

IMPORTERS: Registry[Callable[..., Any]] = Registry("importer")
"""Every importer; each returns the object of its own format."""


def importer(name: str, *, summary: str, reference: str) -> Callable[[Reader], Reader]:
    """Register a reader under *name*; a duplicate raises ValueError."""

    def add(reader: Reader) -> Reader:
        IMPORTERS.register(name, summary=summary, reference=reference)(reader)
        return reader

    return add
