"""A registry of named plugins: one decorator per room, duplicate names refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from simulator.base.errors import CollsimError, unknown_name

__all__ = ["Entry", "Registry"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry(Generic[T]):
    """One registered plugin with the words that ``list`` commands and docs print."""

    name: str
    value: T
    summary: str
    reference: str
    """Citation of the paper, source file or data sheet that the plugin follows."""


class Registry(Generic[T]):
    """Names to plugins, in order of registration.

    Parameters
    ----------
    kind
        What is registered, for messages: ``"topology"``, ``"cost model"``.

    Examples
    --------
    >>> shapes = Registry[int]("shape")
    >>> @shapes.register("one", summary="the unit", reference="none")
    ... def one() -> int:
    ...     return 1
    >>> shapes["one"].summary
    'the unit'
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._entries: dict[str, Entry[T]] = {}

    def register(self, name: str, *, summary: str, reference: str) -> Callable[[T], T]:
        """Return a decorator that registers its object under *name*.

        Raises
        ------
        ValueError
            If *name* is taken: two plugins of one name are a programming error.
        """

        def add(value: T) -> T:
            if name in self._entries:
                raise ValueError(f"{self.kind} {name!r} is registered twice")
            self._entries[name] = Entry(
                name=name, value=value, summary=summary, reference=reference
            )
            return value

        return add

    def __getitem__(self, name: str) -> Entry[T]:
        """Return the entry called *name*; an unknown name raises `CollsimError`."""
        try:
            return self._entries[name]
        except KeyError:
            raise CollsimError(unknown_name(self.kind, name, self._entries)) from None

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def entries(self) -> list[Entry[T]]:
        """Return all entries, sorted by name."""
        return [self._entries[name] for name in sorted(self._entries)]
