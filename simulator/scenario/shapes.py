"""Shapes of fields that are more than one value: sections, lists of them, tables, size ranges."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from simulator.base.errors import CollsimError
from simulator.base.fields import OptionField, option, option_fields
from simulator.base.limits import MOST_SIZES
from simulator.base.units import exact_size
from simulator.scenario.plain import to_plain
from simulator.scenario.reader import FAILED, Reader, join, kind_of, split_words, words_of
from simulator.scenario.tree import Mapping, Node, Place, Scalar, Sequence

__all__ = ["Counts", "Nested", "NestedList", "Sizes", "Table", "Texts"]


def is_absent(node: Node | None) -> bool:
    """Whether a key is absent or null."""
    return node is None or (isinstance(node, Scalar) and node.is_null)


@dataclass(frozen=True, slots=True)
class Nested:
    """One section."""

    of: type[Any]
    optional: bool = False
    """Absent means None, not a section of defaults."""

    def read(self, reader: Reader, node: Node | None, path: str, place: Place) -> Any:
        """Return the section's dataclass."""
        if self.optional and is_absent(node):
            reader.origins.setdefault(path, "default")
            return None
        found = reader.section(self.of, node, path)
        return FAILED if found is None else found

    def plain(self, value: Any) -> Any:
        """Return a dict, or None."""
        return None if value is None else to_plain(value)

    def words(self) -> str:
        """Return what is written."""
        return "section"

    def owner(self) -> type[Any]:
        """Return the section's dataclass."""
        return self.of


@dataclass(frozen=True, slots=True)
class NestedList:
    """A list of sections; a single section counts as a list of one."""

    of: type[Any]

    def read(self, reader: Reader, node: Node | None, path: str, place: Place) -> Any:
        """Return a tuple of dataclasses."""
        if is_absent(node) or node is None:
            reader.origins.setdefault(path, "default")
            return ()
        values: list[Any] = []
        for index, part in enumerate(node.items if isinstance(node, Sequence) else (node,)):
            key = f"{path}[{index}]"
            reader.note(key, part.place)
            if is_absent(part):
                reader.refuse_empty(key, part, words_of(self.of))
                values.append(None)
            else:
                values.append(reader.section(self.of, part, key))
        return FAILED if any(value is None for value in values) else tuple(values)

    def plain(self, value: Any) -> Any:
        """Return a list of dicts."""
        return [to_plain(item) for item in value]

    def words(self) -> str:
        """Return what is written."""
        return "list of sections"

    def owner(self) -> type[Any]:
        """Return the entries' dataclass."""
        return self.of


@dataclass(frozen=True, slots=True)
class Table:
    """A mapping from allowed names to sections."""

    of: type[Any]
    names: tuple[str, ...]

    def read(self, reader: Reader, node: Node | None, path: str, place: Place) -> Any:
        """Return a dict of dataclasses."""
        node = reader.choose(node, path)
        if is_absent(node):
            reader.origins.setdefault(path, "default")
            return {}
        if not isinstance(node, Mapping):
            assert node is not None
            return reader.refuse(path, f"is {kind_of(node)}", allowed=", ".join(self.names))
        reader.check_keys(node, path, list(self.names))
        values: dict[str, Any] = {}
        for key, part in node.items.items():
            reader.note(join(path, key), node.key_place[key])
            if is_absent(part):
                reader.refuse_empty(join(path, key), part, words_of(self.of))
                values[key] = None
            elif key in self.names:
                values[key] = reader.section(self.of, part, join(path, key))
        return FAILED if any(value is None for value in values.values()) else values

    def plain(self, value: Any) -> Any:
        """Return a dict of dicts."""
        return {key: to_plain(item) for key, item in value.items()}

    def words(self) -> str:
        """Return what is written."""
        return f"sections by name ({', '.join(self.names)})"

    def owner(self) -> type[Any]:
        """Return the entries' dataclass."""
        return self.of


@dataclass(frozen=True, slots=True)
class Texts:
    """Names to texts, nested names joined by dots; each may be a list to sweep over."""

    what: str

    def read(self, reader: Reader, node: Node | None, path: str, place: Place) -> Any:
        """Return a dict of dotted name to text."""
        node = reader.choose(node, path)
        if is_absent(node):
            reader.origins.setdefault(path, "default")
            return {}
        if not isinstance(node, Mapping):
            assert node is not None
            return reader.refuse(path, f"is {kind_of(node)}", allowed=self.what)
        values: dict[str, str] = {}
        self._collect(reader, node, path, "", values)
        return values

    def _collect(
        self, reader: Reader, node: Mapping, path: str, prefix: str, values: dict[str, str]
    ) -> None:
        for key, part in node.items.items():
            where = join(path, key)
            reader.note(where, node.key_place[key])
            value = reader.choose(split_words(_ANY, part), where)
            name = join(prefix, key)
            if isinstance(value, Mapping):
                self._collect(reader, value, where, name, values)
            elif is_absent(value):
                reader.refuse_empty(where, value, "a value; '' for an empty text")
            elif isinstance(value, Scalar):
                values[name] = value.text

    def plain(self, value: Any) -> Any:
        """Return the dict."""
        return dict(value)

    def words(self) -> str:
        """Return what is written."""
        return self.what

    def owner(self) -> None:
        """Return None: the names are free."""


_ANY = OptionField(
    name="value", kind="name", required=False, default=None, doc="", choices=None, minimum=None
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeRange:
    """Sizes from one to another, as nccl-tests' ``-b``, ``-e``, ``-f`` and ``-i``."""

    first_bytes: int = option("size", key="from", doc="First size.", sweep=False, minimum=0)
    last_bytes: int = option("size", key="to", doc="Last size, included when met.", sweep=False)
    factor: float | None = option(
        "fraction",
        None,
        doc="Each size is this many times the one before (default 2).",
        sweep=False,
    )
    step_bytes: int | None = option(
        "size", None, doc="Each size is this much more than the one before.", sweep=False
    )

    def __post_init__(self) -> None:
        if self.factor is not None and self.step_bytes is not None:
            raise CollsimError("has both factor and step")
        if self.factor is not None and self.factor <= 1:
            raise CollsimError(f"factor {self.factor:g} is not greater than 1")
        if self.last_bytes < self.first_bytes:
            raise CollsimError(
                f"runs backwards: from {exact_size(self.first_bytes)} "
                f"to {exact_size(self.last_bytes)}"
            )
        if self.step_bytes is None and self.first_bytes == 0:
            raise CollsimError("from 0 B cannot grow by a factor: give a step")

    def sizes(self) -> tuple[int, ...]:
        """Return all sizes; at most 4,096."""
        found = [self.first_bytes]
        while len(found) <= MOST_SIZES:
            if self.step_bytes is not None:
                following = found[-1] + self.step_bytes
            else:
                grown = found[-1] * (self.factor or 2)
                if grown > self.last_bytes:  # also where it is infinite
                    break
                following = max(int(grown), found[-1] + 1)
            if following > self.last_bytes:
                break
            found.append(following)
        return tuple(found)


@dataclass(frozen=True, slots=True)
class Sizes:
    """Message sizes: one, a list, or a range."""

    def read(self, reader: Reader, node: Node | None, path: str, place: Place) -> Any:
        """Return a tuple of bytes."""
        if is_absent(node) or node is None:
            reader.origins.setdefault(path, "default")
            return ()
        node = split_words(_SIZE, node) or node
        if isinstance(node, Mapping):
            found = reader.section(SizeRange, node, path)
            if found is None:
                return FAILED
            sizes = found.sizes()
            if len(sizes) > MOST_SIZES:
                return reader.refuse(path, "has too many sizes", allowed=f"≤ {MOST_SIZES}")
            return sizes
        values = []
        for part in node.items if isinstance(node, Sequence) else (node,):
            if not isinstance(part, Scalar):
                values.append(
                    reader.refuse(path, f"holds {kind_of(part)}", allowed="sizes, such as 1 MiB")
                )
                continue
            values.append(reader.scalar(_SIZE, part, path))
        if not values:
            return reader.refuse(path, "is an empty list", allowed="sizes, such as 1 MiB")
        return FAILED if any(value is FAILED for value in values) else tuple(values)

    def plain(self, value: Any) -> Any:
        """Return a list of texts."""
        return [exact_size(size) for size in value] or None

    def words(self) -> str:
        """Return what is written."""
        return "size, list of sizes, or range `{from: 8 B, to: 1 GiB, factor: 2}` (or `step:`)"

    def owner(self) -> type[Any]:
        """Return the range's dataclass."""
        return SizeRange


_SIZE = next(option_fields(SizeRange))


@dataclass(frozen=True, slots=True)
class Counts:
    """Uneven parts: a list of sizes, or a square table of them for all_to_allv."""

    def read(self, reader: Reader, node: Node | None, path: str, place: Place) -> Any:
        """Return None, a tuple of bytes, or a tuple of tuples of bytes."""
        if is_absent(node) or node is None:
            reader.origins.setdefault(path, "default")
            return None
        rows = node.items if isinstance(node, Sequence) else (node,)
        if all(isinstance(row, Sequence) for row in rows):
            table = [Counts._row(reader, row, path) for row in rows]
            if any(row is FAILED for row in table):
                return FAILED
            if any(len(row) != len(table) for row in table):
                return reader.refuse(path, "is no square table", allowed="one row per rank")
            return tuple(table)
        return Counts._row(reader, node, path)

    @staticmethod
    def _row(reader: Reader, node: Node, path: str) -> Any:
        values = []
        for part in node.items if isinstance(node, Sequence) else (node,):
            if not isinstance(part, Scalar):
                return reader.refuse(path, f"holds {kind_of(part)}", allowed="sizes of parts")
            values.append(reader.scalar(_SIZE, part, path))
            if values[-1] is FAILED:
                return FAILED
        return tuple(values)

    def plain(self, value: Any) -> Any:
        """Return lists of texts, or None."""
        if value is None:
            return None
        return [self.plain(part) if isinstance(part, tuple) else exact_size(part) for part in value]

    def words(self) -> str:
        """Return what is written."""
        return "list of sizes, one per rank (all_to_allv: one list per sender)"

    def owner(self) -> None:
        """Return None: plain sizes."""
