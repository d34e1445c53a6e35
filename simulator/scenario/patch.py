"""What-ifs: a file over its base, named patches, and ``--set`` words, all as tree merges."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from simulator.base.errors import Problem, ScenarioError
from simulator.base.units import is_whole
from simulator.scenario.tree import Mapping, Node, Place, Scalar, Sequence, parse_text, read_tree

__all__ = [
    "SET_PLACE",
    "SHORT_FORMS",
    "apply_words",
    "load_with_base",
    "merge",
    "split_assignment",
    "split_key",
    "spread",
]

SET_PLACE = Place("--set")
SHORT_FORMS = {
    "node": "preset",
    "fabric": "kind",
    "costs": "profile",
    "engine": "level",
    "training": "model",
}
"""Sections that may be written as one word, and the key that the word stands for."""

REPLACES = {
    "size": ("sizes",),
    "sizes": ("size",),
    "node": ("groups", "topology"),
    "groups": ("node", "nodes", "gpus_per_node", "topology"),
    "topology": ("node", "nodes", "gpus_per_node", "groups", "fabric"),
    "generator": ("programs",),
    "programs": ("generator",),
}
"""Keys that say the same in another way: an override with one drops the others below it."""

_MOST_BASES = 16
_SEGMENT = re.compile(r"[^.\[\]]+|\[(\d+)\]")


def merge(under: Mapping, over: Mapping) -> Mapping:
    """Return *over* laid on *under*.

    Mappings merge key by key; everything else replaces.  A mapping that names another ``kind``
    than the one below replaces it whole, since options of one kind mean nothing to another.
    Dotted keys (``fabric.oversubscription``) are taken apart.
    """
    result = under
    for key, node in over.items.items():
        result = _place(result, split_key(key), node, over.key_place[key], keep=over)
    return result


def _place(
    target: Mapping,
    segments: list[str | int],
    node: Node,
    place: Place,
    *,
    keep: Mapping | None = None,
) -> Mapping:
    key, rest = str(segments[0]), segments[1:]
    below = target.get(key)
    if rest:
        return target.with_item(key, _descend(key, below, rest, node, place), place)
    if not (isinstance(node, Scalar) and node.is_null):
        # What stands together in one override stays together, for its error.
        others = REPLACES.get(key, ())
        target = target.without(*(other for other in others if keep is None or other not in keep))
    if isinstance(node, Mapping):
        below = spread(key, below)
        if isinstance(below, Mapping) and not _other_kind(below, node):
            node = merge(below, node)
        else:
            node = merge(Mapping(node.place), node)
    # The key's place stays with the latest word on it.
    return target.with_item(key, node, place)


def _descend(key: str, below: Node | None, rest: list[str | int], node: Node, place: Place) -> Node:
    head = rest[0]
    if not isinstance(below, Sequence):
        target = spread(key, below)
        return _place(target if isinstance(target, Mapping) else Mapping(place), rest, node, place)
    if not (isinstance(head, int) or is_whole(head)):
        # A swept section: the key is set in each of its values.
        return Sequence(
            below.place, tuple(_descend(key, item, rest, node, place) for item in below.items)
        )
    index = int(head)
    if index >= len(below.items):
        raise ScenarioError(
            Problem(
                file=place.file,
                line=place.line,
                message=f"there is no entry [{index}]",
                allowed=f"0 … {len(below.items) - 1}" if below.items else "an empty list",
            )
        )
    items = list(below.items)
    if len(rest) > 1:
        items[index] = _descend(key, items[index], rest[1:], node, place)
    elif isinstance(node, Mapping) and isinstance(old := items[index], Mapping):
        items[index] = merge(old, node)
    else:
        items[index] = node
    return Sequence(below.place, tuple(items))


def spread(key: str, node: Node | None) -> Node | None:
    """Return the mapping that a section's short form stands for; anything else as it is."""
    if key in SHORT_FORMS and isinstance(node, Scalar) and not node.is_null:
        return Mapping(node.place).with_item(SHORT_FORMS[key], node, node.place)
    return node


def _other_kind(below: Mapping, over: Mapping) -> bool:
    old, new = below.get("kind"), over.get("kind")
    if not isinstance(new, Scalar):
        return new is not None
    return isinstance(old, Scalar) and old.text != new.text


def split_key(key: str) -> list[str | int]:
    """Return the segments of a dotted key.

    Examples
    --------
    >>> split_key("perturb.links[0].factor")
    ['perturb', 'links', 0, 'factor']
    """
    return [
        int(match[1]) if match[1] and is_whole(match[1]) else match[0]
        for match in _SEGMENT.finditer(key)
    ] or [key]


def load_with_base(path: str | Path) -> Mapping:
    """Return the tree of a file merged over its chain of ``base:`` files.

    Raises
    ------
    ScenarioError
        As `read_tree`; also a base that is missing, not a name, or that leads back to itself.
    """
    return _with_base(Path(path), str(path), ())


def _with_base(path: Path, shown: str, above: tuple[Path, ...]) -> Mapping:
    tree = read_tree(shown)
    base = tree.get("base")
    if base is None:
        return tree
    place, tree = tree.key_place["base"], tree.without("base")
    if isinstance(base, Scalar) and base.is_null and not base.is_empty:
        return tree
    if isinstance(base, Scalar) and base.is_empty:
        raise ScenarioError(_base_problem(place, "is empty", "a path from this file"))
    if not isinstance(base, Scalar):
        raise ScenarioError(_base_problem(place, "is not a file name", "a path from this file"))
    above = (*above, path.resolve())
    below = path.parent / base.text
    if below.resolve() in above or len(above) > _MOST_BASES:
        raise ScenarioError(
            _base_problem(place, f"{base.text!r} leads back to {path.name!r}", "a file below it")
        )
    try:
        is_there = below.is_file()
    except OSError:  # a name that is too long, a folder that is closed
        is_there = False
    if not is_there:
        raise ScenarioError(
            _base_problem(place, f"no such file {base.text!r}", "a path from this file")
        )
    return merge(_with_base(below, str(below), above), tree)


def _base_problem(place: Place, message: str, allowed: str) -> Problem:
    return Problem(file=place.file, line=place.line, key="base", message=message, allowed=allowed)


def apply_words(
    tree: Mapping, words: Iterable[tuple[str, str]], *, place: Place = SET_PLACE
) -> Mapping:
    """Return the tree with dotted keys set from words.

    Parameters
    ----------
    tree
        Where they are set.
    words
        Pairs of dotted key and YAML text; in a value that is not text, commas separate the
        values of a sweep.
    place
        Origin shown in messages.

    Raises
    ------
    ScenarioError
        All words that are not YAML, that say nothing (``-``), or whose key leads into a value.
    """
    problems: list[Problem] = []
    for key, text in words:
        if text.strip() in ("", "-"):
            problems.append(
                Problem(
                    file=place.file, key=key, message=f"{text!r} is no value", allowed="a value"
                )
            )
            continue
        try:
            node = parse_text(text, place.file, place=place, word=True)
            tree = _place(tree, split_key(key), node, place)
        except ScenarioError as error:
            problems += [
                Problem(
                    file=place.file,
                    key=key,
                    message=problem.message,
                    allowed=problem.allowed,
                    suggestion=problem.suggestion,
                )
                for problem in error.problems
            ]
    if problems:
        raise ScenarioError(problems)
    return tree


def split_assignment(word: str) -> tuple[str, str]:
    """Return key and text of a ``key=value`` word.

    Raises
    ------
    ScenarioError
        Without ``=`` or without a key.
    """
    key, equals, text = word.partition("=")
    if not equals or not key.strip():
        raise ScenarioError(
            Problem(
                file=SET_PLACE.file,
                message=f"{word!r} sets nothing",
                allowed="key=value, such as fabric.oversubscription=2",
            )
        )
    return key.strip(), text.strip()
