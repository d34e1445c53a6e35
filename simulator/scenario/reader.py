"""Trees → frozen dataclasses, by the declared fields: all problems, sweeps, places and origins.

A field is an `option` (one value, or many) or has a `Shape`: a nested section, a list of
sections, or something with its own syntax.  Where one value is meant and a list stands, the list
is a sweep: the reader takes the chosen value, or reports the list as an open choice.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias, TypeVar

from simulator.base.errors import CollsimError, Problem, nearest
from simulator.base.fields import KIND_WORDS, OptionField, option_fields
from simulator.scenario.patch import SHORT_FORMS, spread
from simulator.scenario.tree import Mapping, Node, Place, Scalar, Sequence

__all__ = ["FAILED", "Reader", "Shape", "declared", "shaped"]

T = TypeVar("T")

FAILED: Any = type("Failed", (), {"__repr__": lambda self: "FAILED"})()
"""Value of a field whose text could not be read; its problem is recorded."""

_PLAIN_NUMBER = re.compile(r"[-+]?(\d[\d_]*\.?\d*|\.\d+)", re.ASCII)


class Shape(Protocol):
    """How a field that is not a plain option is read and written."""

    def read(self, reader: Reader, node: Node | None, path: str, place: Place) -> Any:
        """Return the value, or FAILED; *node* is None where the key is absent."""

    def plain(self, value: Any) -> Any:
        """Return the value as YAML data that `read` gives back."""

    def words(self) -> str:
        """Return what is written there, for the documentation."""

    def owner(self) -> type[Any] | None:
        """Return the dataclass of the entries, for the documentation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapedField:
    """A field with a shape of its own."""

    name: str
    key: str
    shape: Shape
    doc: str
    aliases: tuple[str, ...]


def shaped(
    shape: Shape,
    *,
    doc: str,
    key: str | None = None,
    aliases: tuple[str, ...] = (),
    default: Any = dataclasses.MISSING,
) -> Any:
    """Declare a dataclass field that is read by *shape*.

    Parameters
    ----------
    shape
        How it is read and written; it also knows what an absent key means.
    doc
        Meaning, one sentence.
    key
        Key in files, where it is not the field's name.
    aliases
        Further keys for it.
    default
        For construction in Python only.
    """
    metadata = {"shape": shape, "doc": doc, "spelled": key, "aliases": aliases}
    return dataclasses.field(default=default, metadata=metadata)


_Keyed: TypeAlias = tuple[tuple["OptionField | ShapedField", tuple[str, ...]], ...]
_KEYED: dict[Any, _Keyed] = {}
"""By dataclass: its fields, each with its keys in files; sweeps read the same ones again."""


def declared(owner: type[Any]) -> tuple[OptionField | ShapedField, ...]:
    """Return the options and shaped fields of a dataclass, in order."""
    return tuple(item for item, _ in _keyed(owner))


def _keyed(owner: type[Any]) -> _Keyed:
    """Return the fields of a dataclass, each with its keys in files, the usual one first."""
    if owner not in _KEYED:
        _KEYED[owner] = tuple(
            (item, (item.key, *(item.aliases if isinstance(item, ShapedField) else ())))
            for item in _declared(owner)
        )
    return _KEYED[owner]


def _declared(owner: type[Any]) -> list[OptionField | ShapedField]:
    options = {item.name: item for item in option_fields(owner)}
    found: list[OptionField | ShapedField] = []
    for item in dataclasses.fields(owner):
        if item.name in options:
            found.append(options[item.name])
        elif "shape" in item.metadata:
            shaped_field = ShapedField(
                name=item.name,
                key=item.metadata["spelled"] or item.name,
                shape=item.metadata["shape"],
                doc=item.metadata["doc"],
                aliases=item.metadata["aliases"],
            )
            found.append(shaped_field)
    return found


@dataclass(slots=True)
class Reader:
    """One reading of a scenario with certain choices in its sweeps."""

    choices: dict[str, int] = field(default_factory=dict)
    """Index taken from each swept list, by dotted key."""
    open: tuple[str, int] | None = None
    """First swept list without a choice, and its length."""
    chosen: dict[str, Node] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    warnings: list[Problem] = field(default_factory=list)
    origins: dict[str, str] = field(default_factory=dict)
    places: dict[str, Place] = field(default_factory=dict)
    """Place of every key that was written."""
    failed: set[str] = field(default_factory=set)
    """Keys with a problem, so that nothing is said about what follows from it."""

    def place_of(self, path: str) -> Place:
        """Return the place of a dotted key, or of the nearest section above it."""
        while path and path not in self.places:
            path = path[: max(path.rfind("."), path.rfind("["), 0)]
        return self.places.get(path, Place(""))

    def has_problem(self, *paths: str) -> bool:
        """Whether one of these keys, or something below it, has a problem already."""
        return any(key.startswith(paths) for key in self.failed)

    def refuse(
        self,
        path: str,
        message: str,
        *,
        allowed: str = "",
        suggestion: str | None = None,
        place: Place | None = None,
    ) -> Any:
        """Record a problem and return FAILED."""
        self.failed.add(path)
        self.problems.append(self._problem(path, message, allowed, suggestion, place))
        return FAILED

    def refuse_all(self, path: str, error: CollsimError, place: Place | None = None) -> Any:
        """Record the problems of an error, those without a place at this key; return FAILED."""
        for found in error.problems:
            if found.file:
                self.failed.add(path)
                self.problems.append(found)
                continue
            key = path if not found.key or found.key.startswith(path) else found.key
            self.refuse(
                key, found.message, allowed=found.allowed, suggestion=found.suggestion, place=place
            )
        return FAILED

    def warn(self, path: str, message: str, *, allowed: str = "") -> None:
        """Record an input that has no effect or looks like a slip."""
        self.warnings.append(self._problem(path, message, allowed, None, None))

    def _problem(
        self, path: str, message: str, allowed: str, suggestion: str | None, place: Place | None
    ) -> Problem:
        place = place or self.place_of(path)
        return Problem(
            file=place.file,
            line=place.line,
            key=path,
            message=message,
            allowed=allowed,
            suggestion=suggestion,
        )

    def refuse_empty(self, path: str, node: Node | None, words: str) -> Any:
        """Record a key after which nothing stands, return FAILED; *words*: what belongs there."""
        place = None if node is None else node.place
        return self.refuse(path, "is empty", allowed=words.replace("`", "'"), place=place)

    def choose(self, node: Node | None, path: str) -> Node | None:
        """Return the value of a swept list under the present choices; other nodes as they are."""
        if not isinstance(node, Sequence):
            return node
        if not node.items:
            self.refuse(path, "is an empty list", allowed="one value, or a list to sweep over")
            return None
        if path not in self.choices:
            self.open = self.open or (path, len(node.items))
            return node.items[0]
        item = node.items[self.choices[path]]
        self.chosen[path] = item
        return item

    def labels(self) -> list[tuple[str, str]]:
        """Return each swept key with a short text for its value.

        A key swept inside a swept section has a label of its own, and none in the section's.
        """
        found: list[tuple[str, str]] = []
        for path, item in self.chosen.items():
            inside = f"{path}."
            below = {
                other.removeprefix(inside).split(".")[0].split("[")[0]
                for other in self.chosen
                if other.startswith(inside)
            }
            found.append((path, label_of(item, below)))
        return found

    def note(self, path: str, place: Place) -> None:
        """Record where a key was written."""
        self.places[path] = place
        self.origins[path] = str(place)

    def section(
        self, owner: type[T], node: Node | None, path: str, *, skip: tuple[str, ...] = ()
    ) -> T | None:
        """Return an instance of *owner* read from a mapping, or None when there can be none.

        A field with a problem takes its default, so that the rest can still be checked; the
        recorded problem keeps the scenario from being used.

        Parameters
        ----------
        owner
            Dataclass whose fields are declared with `option` or `shaped`.
        node
            The section; None or null: all defaults.
        path
            Dotted key of the section; empty at the top.
        skip
            Keys that the caller reads itself.
        """
        name = path.rpartition(".")[2]
        chosen = self.choose(split_short(name, node), path)
        if chosen is None and node is not None:
            return None
        node = spread(name, chosen)
        if is_empty(node):
            self.refuse_empty(path, node, words_of(owner))
            return None
        if node is None or (isinstance(node, Scalar) and node.is_null):
            node = Mapping(self.place_of(path))
        if not isinstance(node, Mapping):
            short = f"or the {SHORT_FORMS[path]} alone" if path in SHORT_FORMS else ""
            self.refuse(path, f"is {kind_of(node)}", allowed=f"keys with values {short}".strip())
            return None
        fields = _keyed(owner)
        self.check_keys(node, path, [*(key for _, keys in fields for key in keys), *skip])
        values = {item.name: self._field(item, keys, node, path) for item, keys in fields}
        bad = [item for item, _ in fields if values[item.name] is FAILED]
        values |= {item.name: _fallback(item) for item in bad}
        if any(value is FAILED for value in values.values()):
            return None
        try:
            return owner(**values)
        except CollsimError as error:
            if not bad:
                self.refuse_all(path, error)
            return None

    def check_keys(self, node: Mapping, path: str, allowed: list[str]) -> None:
        """Record every key that is not allowed, with the nearest one that is."""
        for key, place in node.key_place.items():
            if key in node.items and key not in allowed:
                self.refuse(
                    join(path, key),
                    f"unknown key {key!r}",
                    allowed=", ".join(sorted(allowed)),
                    suggestion=nearest(key, allowed),
                    place=place,
                )

    def _field(
        self, item: OptionField | ShapedField, keys: tuple[str, ...], section: Mapping, path: str
    ) -> Any:
        found = [key for key in keys if key in section.items]
        if len(found) > 1:
            place = section.key_place[found[1]]
            return self.refuse(
                join(path, found[1]),
                f"stands beside {found[0]!r}",
                allowed=f"only one of {', '.join(found)}",
                place=place,
            )
        key = join(path, keys[0])
        node = section.get(found[0]) if found else None
        if found:
            # Errors name the key as it was written, origins the key as it is resolved.
            self.note(join(path, found[0]), section.key_place[found[0]])
            self.note(key, section.key_place[found[0]])
        if isinstance(item, OptionField):
            return self.option(item, node, key, section.place)
        written = join(path, found[0]) if found else key
        if is_empty(node):
            owner = item.shape.owner()
            words = item.shape.words() if owner is None else words_of(owner)
            return self.refuse_empty(written, node, words)
        return item.shape.read(self, node, written, section.place)

    def option(self, item: OptionField, node: Node | None, path: str, place: Place) -> Any:
        """Return the value of an option: converted, default, or FAILED."""
        if item.many:
            return self._many(item, node, path)
        if isinstance(node, Sequence) and item.kind == "ranks":
            node = self._joined(node, path)
        elif item.sweep:
            chosen = self.choose(split_words(item, node), path)
            if chosen is None and node is not None:
                return FAILED
            node = chosen
        if is_empty(node):
            return self.refuse_empty(path, node, KIND_WORDS[item.kind])
        if node is None or (isinstance(node, Scalar) and node.is_null):
            if item.required:
                hint = ", ".join(item.choices) if item.choices else KIND_WORDS[item.kind]
                return self.refuse(path, "is missing", allowed=hint.replace("`", "'"), place=place)
            self.origins.setdefault(path, "default")
            return item.default
        if not isinstance(node, Scalar):
            return self.refuse(
                path,
                f"is {kind_of(node)}",
                allowed=f"one value ({KIND_WORDS[item.kind]})".replace("`", "'"),
                place=node.place,
            )
        return self.scalar(item, node, path)

    def scalar(self, item: OptionField, node: Scalar, path: str) -> Any:
        """Return the value of one text by an option's declaration, or FAILED."""
        text = node.text
        if item.default is None and not item.required and text == "auto":
            return None
        if item.kind == "size" and node.word and _PLAIN_NUMBER.fullmatch(text):
            # nccl-tests' -b 8: on the command line a bare size means bytes.
            text += " B"
        try:
            return item.parse(text)
        except CollsimError as error:
            return self.refuse_all(path, error, node.place)

    def _many(self, item: OptionField, node: Node | None, path: str) -> Any:
        node = split_words(item, node)
        if is_empty(node):
            return self.refuse_empty(path, node, f"a list: {KIND_WORDS[item.kind]}")
        if node is None or (isinstance(node, Scalar) and node.is_null):
            if item.required:
                return self.refuse(path, "is missing", allowed=f"a list: {KIND_WORDS[item.kind]}")
            self.origins.setdefault(path, "default")
            return item.default
        values = []
        for part in node.items if isinstance(node, Sequence) else (node,):
            if is_empty(part):
                values.append(self.refuse_empty(path, part, KIND_WORDS[item.kind]))
            elif isinstance(part, Scalar):
                values.append(self.scalar(item, part, path))
            else:
                values.append(
                    self.refuse(path, f"holds {kind_of(part)}", allowed="values", place=part.place)
                )
        return FAILED if any(value is FAILED for value in values) else tuple(values)

    def _joined(self, node: Sequence, path: str) -> Node | None:
        for part in node.items:
            if not isinstance(part, Scalar):
                self.refuse(path, f"holds {kind_of(part)}", allowed="ranks", place=part.place)
                return None
        text = ",".join(part.text for part in node.items if isinstance(part, Scalar))
        return Scalar(node.place, text, quoted=True)


def _fallback(item: OptionField | ShapedField) -> Any:
    """Return a field's default, or FAILED when it must be given."""
    if isinstance(item, OptionField):
        return FAILED if item.required else item.default
    scratch = Reader()
    value = item.shape.read(scratch, None, "", Place(""))
    return FAILED if scratch.problems else value


def is_empty(node: Node | None) -> bool:
    """Whether a key stands there without any value; a written ``null`` is one."""
    return isinstance(node, Scalar) and node.is_empty


def words_of(owner: type[Any]) -> str:
    """Return what a section of a dataclass holds, for messages."""
    return f"a section with {', '.join(item.key for item in declared(owner))}"


def join(path: str, key: str) -> str:
    """Return the dotted key of *key* below *path*."""
    return f"{path}.{key}" if path else key


def kind_of(node: Node) -> str:
    """Return what a node is, in words."""
    if isinstance(node, Sequence):
        return "a list"
    return "a section" if isinstance(node, Mapping) else f"the single value {node.text!r}"


def split_words(item: OptionField, node: Node | None) -> Node | None:
    """Return a word of the command line with commas as a list; other nodes as they are."""
    whole = item.kind in ("text", "ranks") and not item.many
    return node if whole else _split(node)


def split_short(name: str, node: Node | None) -> Node | None:
    """Return a section given as words with commas, ``node: a,b``, as a list of short forms."""
    return _split(node) if name in SHORT_FORMS else node


def _split(node: Node | None) -> Node | None:
    if isinstance(node, Scalar) and node.word and not node.quoted and "," in node.text:
        parts = (dataclasses.replace(node, text=part.strip()) for part in node.text.split(","))
        return Sequence(node.place, tuple(parts))
    return node


def label_of(node: Node, skip: Collection[str] = ()) -> str:
    """Return a short text for a swept value.

    Sections show their scalars: ``kind=fat_tree k=8``, but for the keys in *skip*.
    """
    if isinstance(node, Scalar):
        return node.text
    if isinstance(node, Sequence):
        return " ".join(label_of(item) for item in node.items)
    return " ".join(
        f"{key}={label_of(item)}" for key, item in node.items.items() if key not in skip
    )
