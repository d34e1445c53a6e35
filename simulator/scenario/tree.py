"""YAML text → a tree of nodes that know their file and line, within safe limits.

The tree is built from the parser's events, not from values: so duplicate keys are seen, ``1e9``
and ``no`` stay text until a field's kind decides, and neither depth nor aliases can exhaust
memory.  Tags and several documents are refused.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeAlias

import yaml

from simulator.base.errors import Problem, ScenarioError, nearest, visible

__all__ = ["Mapping", "Node", "Place", "Scalar", "Sequence", "parse_text", "plain", "read_tree"]

MAX_FILE_BYTES = 16 * 2**20
MAX_DEPTH = 32
MAX_NODES = 1_000_000
"""Nodes after aliases are expanded: enough for an edge list of 100,000 links."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a node was written."""

    file: str
    line: int | None = None

    def __str__(self) -> str:
        return self.file if self.line is None else f"{self.file}:{self.line}"


@dataclass(frozen=True, slots=True)
class Scalar:
    """One value, still as text."""

    place: Place
    text: str
    quoted: bool = False
    word: bool = False
    """Came as a word of the command line: commas may separate several values."""

    @property
    def is_null(self) -> bool:
        """Whether the value is YAML's null."""
        return not self.quoted and self.text in ("", "~", "null", "Null", "NULL")

    @property
    def is_empty(self) -> bool:
        """Whether nothing at all stands there: a key whose value was forgotten."""
        return not self.quoted and not self.text


@dataclass(frozen=True, slots=True)
class Sequence:
    """A list."""

    place: Place
    items: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Mapping:
    """Keys in order, each with the place of the key."""

    place: Place
    items: dict[str, Node] = field(default_factory=dict)
    key_place: dict[str, Place] = field(default_factory=dict)

    def __contains__(self, key: str) -> bool:
        return key in self.items

    def get(self, key: str) -> Node | None:
        """Return the node under *key*, or None."""
        return self.items.get(key)

    def with_item(self, key: str, node: Node, place: Place) -> Mapping:
        """Return a copy with one key set."""
        return replace(
            self, items=self.items | {key: node}, key_place=self.key_place | {key: place}
        )

    def without(self, *keys: str) -> Mapping:
        """Return a copy without some keys."""
        return replace(self, items={k: v for k, v in self.items.items() if k not in keys})


Node: TypeAlias = Scalar | Sequence | Mapping


def plain(node: Node) -> object:
    """Return the node as dicts, lists and texts.

    Examples
    --------
    >>> plain(parse_text("a: [1, no]", "x.yaml"))
    {'a': ['1', 'no']}
    """
    if isinstance(node, Scalar):
        return None if node.is_null else node.text
    if isinstance(node, Sequence):
        return [plain(item) for item in node.items]
    return {key: plain(item) for key, item in node.items.items()}


def read_tree(path: str | Path) -> Mapping:
    """Read a scenario file.

    Parameters
    ----------
    path
        File; messages show it as given here.

    Raises
    ------
    ScenarioError
        Missing, a directory, unreadable, too large, not UTF-8 text, not YAML, empty, not a
        mapping, too deep or too many nodes, tags, or duplicate keys (all of them together).
    """
    name = str(path)
    try:
        with open(path, "rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        raise ScenarioError(_missing(Path(path))) from None
    except IsADirectoryError:
        raise ScenarioError(
            Problem(file=name, message="is a directory", allowed="a scenario file")
        ) from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ScenarioError(Problem(file=name, message=f"cannot be read: {reason}")) from None
    if len(data) > MAX_FILE_BYTES:
        limit = f"≤ {MAX_FILE_BYTES >> 20} MiB"
        raise ScenarioError(Problem(file=name, message="is too large", allowed=limit))
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise ScenarioError(
            Problem(file=name, line=line, message="is not UTF-8 text", allowed="YAML in UTF-8")
        ) from None
    if "\0" in text:
        raise ScenarioError(Problem(file=name, message="is a binary file", allowed="YAML in UTF-8"))
    node = parse_text(text, name)
    if not isinstance(node, Mapping):
        what = "empty" if isinstance(node, Scalar) and node.is_null else "no mapping of keys"
        raise ScenarioError(
            Problem(file=name, message=f"is {what}", allowed="keys such as node: dgx-h100")
        )
    return node


def _missing(path: Path) -> Problem:
    folder = path.parent
    beside = [entry.name for entry in folder.iterdir()] if folder.is_dir() else []
    near = nearest(path.name, beside)
    return Problem(
        file=str(path),
        message="no such file",
        suggestion=str(folder / near) if near else None,
    )


def parse_text(text: str, file: str, *, place: Place | None = None, word: bool = False) -> Node:
    """Return the tree of a YAML text.

    Parameters
    ----------
    text
        One YAML document.
    file
        Name shown in messages.
    place
        Place given to every node (a value of the command line); None: file and line.
    word
        Mark scalars as words of the command line.

    Raises
    ------
    ScenarioError
        As `read_tree`.
    """
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    builder = _Builder(file=file, fixed=place, word=word)
    try:
        for event in yaml.parse(text, Loader=loader):
            builder.add(event)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        reason = getattr(error, "problem", None) or getattr(error, "reason", None)
        builder.problem(
            f"is not YAML: {reason or 'unreadable'}", None if mark is None else mark.line
        )
    if builder.problems:
        raise ScenarioError(sorted(builder.problems, key=lambda problem: problem.line or 0))
    return builder.root or Scalar(place or Place(file, 1), "")


@dataclass(slots=True)
class _Open:
    """A list or mapping that is being read."""

    mapping: bool
    place: Place
    anchor: str | None
    count_before: int
    height: int = 1
    """Levels below and including this one."""
    items: list[Node] = field(default_factory=list)
    entries: dict[str, Node] = field(default_factory=dict)
    key_place: dict[str, Place] = field(default_factory=dict)
    merged: list[Mapping] = field(default_factory=list)
    key: Scalar | None = None


class _Builder:
    """Events in, tree out."""

    def __init__(self, *, file: str, fixed: Place | None, word: bool) -> None:
        self.file, self.fixed, self.word = file, fixed, word
        self.stack: list[_Open] = []
        self.anchors: dict[str, tuple[Node, int, int]] = {}
        self.problems: list[Problem] = []
        self.root: Node | None = None
        self.count = 0
        self.documents = 0

    def problem(self, message: str, line: int | None, **more: str | None) -> None:
        """Record a problem at a 0-based line."""
        place = self.fixed or Place(self.file, None if line is None else line + 1)
        self.problems.append(
            Problem(file=place.file, line=place.line, message=message, **more)  # type: ignore[arg-type]
        )

    def refuse(self, message: str, line: int, allowed: str) -> None:
        """Stop at once: going on would cost memory."""
        self.problem(message, line, allowed=allowed)
        raise ScenarioError(self.problems)

    def add(self, event: yaml.Event) -> None:
        """Take one event."""
        line = 0 if event.start_mark is None else event.start_mark.line
        if isinstance(event, yaml.DocumentStartEvent):
            self.documents += 1
            if self.documents > 1:
                self.refuse("holds a second document", line, "one document a file")
        elif isinstance(event, yaml.CollectionStartEvent | yaml.ScalarEvent):
            self._begin(event, line)
        elif isinstance(event, yaml.CollectionEndEvent):
            self._close()
        elif isinstance(event, yaml.AliasEvent):
            self._alias(str(event.anchor), line)

    def _begin(self, event: yaml.CollectionStartEvent | yaml.ScalarEvent, line: int) -> None:
        place = self.fixed or Place(self.file, line + 1)
        if event.tag is not None and event.tag != "!":
            self.problem(f"tag {event.tag!r} is not allowed", line, allowed="values without tags")
        self._grow(1, line)
        if isinstance(event, yaml.ScalarEvent):
            self._check_text(event.value, line)
            scalar = Scalar(place, event.value, quoted=bool(event.style), word=self.word)
            self._name(event.anchor, scalar, 1, 0)
            self._put(scalar, line, 0)
            return
        self._deepen(1, line)
        mapping = isinstance(event, yaml.MappingStartEvent)
        self.stack.append(_Open(mapping, place, event.anchor, self.count))

    def _check_text(self, text: str, line: int) -> None:
        """Refuse control characters: names end up in terminals and tables."""
        if not text.isprintable() and visible(text) != text:
            found = visible(next(letter for letter in text if visible(letter) != letter))
            self.problem(
                f"holds the control character '{found}'", line, allowed="text, tabs and line ends"
            )

    def _close(self) -> None:
        top = self.stack.pop()
        node: Node
        if top.mapping:
            for source in top.merged:
                for key, value in source.items.items():
                    top.entries.setdefault(key, value)
                    top.key_place.setdefault(key, source.key_place[key])
            node = Mapping(top.place, top.entries, top.key_place)
        else:
            node = Sequence(top.place, tuple(top.items))
        self._name(top.anchor, node, self.count - top.count_before + 1, top.height)
        self._put(node, (top.place.line or 1) - 1, top.height)

    def _alias(self, anchor: str, line: int) -> None:
        if anchor not in self.anchors:
            inside = any(frame.anchor == anchor for frame in self.stack)
            what = "refers to itself" if inside else "has no anchor"
            self.refuse(f"alias '*{anchor}' {what}", line, "an alias after its anchor")
        node, weight, height = self.anchors[anchor]
        self._grow(weight, line)
        self._deepen(height, line)
        self._put(node, line, height)

    def _deepen(self, levels: int, line: int) -> None:
        if len(self.stack) + levels > MAX_DEPTH:
            self.refuse("is nested too deeply", line, f"≤ {MAX_DEPTH} levels, aliases expanded")

    def _grow(self, nodes: int, line: int) -> None:
        self.count += nodes
        if self.count > MAX_NODES:
            self.refuse(
                "expands to too many values", line, f"≤ {MAX_NODES:,} values, aliases expanded"
            )

    def _name(self, anchor: str | None, node: Node, weight: int, height: int) -> None:
        if anchor is not None:
            self.anchors[anchor] = (node, weight, height)

    def _path(self) -> str:
        """Return the dotted key of the mapping that is open."""
        path = ""
        for frame in self.stack[:-1]:
            if not frame.mapping:
                path += f"[{len(frame.items)}]"
            elif frame.key is not None:
                path += ("." if path else "") + frame.key.text
        return path

    def _put(self, node: Node, line: int, height: int) -> None:
        if not self.stack:
            self.root = node
            return
        top = self.stack[-1]
        top.height = max(top.height, height + 1)
        if not top.mapping:
            top.items.append(node)
        elif top.key is None:
            if not isinstance(node, Scalar):
                self.refuse("a key must be a word", line, "keys such as node: dgx-h100")
            top.key = node  # type: ignore[assignment]
        else:
            key, top.key = top.key, None
            self._entry(top, key, node, line)

    def _entry(self, top: _Open, key: Scalar, node: Node, line: int) -> None:
        if key.text == "<<" and not key.quoted:
            parts = node.items if isinstance(node, Sequence) else (node,)
            for part in parts:
                if isinstance(part, Mapping):
                    top.merged.append(part)
                else:
                    self.problem("'<<' merges mappings only", line)
        elif key.text in top.entries:
            first = top.key_place[key.text].line
            self.problem(
                f"duplicate key {key.text!r}",
                (key.place.line or 1) - 1,
                key=self._path(),
                allowed=f"each key once; the first is in line {first}",
            )
        else:
            top.entries[key.text] = node
            top.key_place[key.text] = key.place
