"""``docs/scenario.md``: every key of a scenario file, from the declarations that read it.

Made by::

    python -c "from simulator.scenario.reference import write; write('docs/scenario.md')"
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from simulator.base.fields import KIND_WORDS, OptionField
from simulator.base.limits import TABLE
from simulator.scenario import plugins
from simulator.scenario.reader import ShapedField, declared
from simulator.scenario.resolved import Resolved
from simulator.scenario.steps import CallOp, ComputeOp, RepeatOp, WaitOp

__all__ = ["markdown", "write"]

_HEAD = """\
# Scenario files

A scenario is a YAML file that says which cluster does what. This page lists every key; it is made
from the program (`simulator.scenario.reference`), so it is never out of date.

```yaml
schema_version: 1
description: How much does a 2:1 spine cost four DGX H100?
node: dgx-h100
nodes: 4
fabric: {kind: leaf_spine, oversubscription: [1, 2]}
collective: {op: all_reduce, sizes: {from: 1 MiB, to: 1 GiB, factor: 4}}
```

* **Units are written.** `400 Gbit/s`, `50 GB/s`, `25 MiB`, `2.5 us`; a bare number where a unit
  matters is an error. `Gbps` are bits, `GBps` are bytes. `1M` is 1 MiB as in nccl-tests, `1 MB` is
  a million bytes. Bandwidths are per direction. `auto` and `null` mean that the program derives
  the value.
* **A list is a sweep.** Wherever one value is meant, a list of values makes one variant for each,
  and several lists make their Cartesian product. That holds for whole sections too:
  `fabric: [rail_optimized, {kind: fat_tree, oversubscription: 2}]`.
* **A file may stand on another.** With `base: other.yaml` (a path from this file) the keys of this
  file are laid over that one. `patches: {name: {keys}}` are named what-ifs that are run beside the
  scenario itself. `--set fabric.oversubscription=2` changes one key for one run. All three merge
  section by section, accept dotted keys (`perturb.links[0].factor`), and a section that names
  another `kind` replaces the one below whole.
* **Ranks** are GPUs numbered node by node. `0-7,16` is a list of ranges, `0-63:8` every eighth.
* **Nothing is ignored.** An unknown key is an error with the nearest known one, a key given twice
  is an error, a key with nothing after it is an error (a written `null` takes away what a `base`
  says), and an input that has no effect is a warning. `collsim show --resolved FILE` prints
  every value with its unit and where it comes from.
"""


_LARGEST_HEAD = (
    "## Largest values",
    "",
    "What is larger is refused before anything is built, with the number that was found.",
    "",
    "| of | at most |",
    "|---|---|",
)


def markdown() -> str:
    """Return the page."""
    parts = [_HEAD, "## Top level\n", _table(Resolved)]
    parts.append(
        "`base` and `patches` also stand at the top; they are described above. The cluster is "
        "given by `node`, `groups` or `topology`, what it does by `collective`, `programs`, "
        "`generator` or `jobs`.\n"
    )
    seen: set[type[Any]] = set()
    for path, owner in _sections(Resolved, ""):
        if owner not in seen:
            seen.add(owner)
            parts += _part(path, owner)
        if path == "programs":
            parts += _operations()
        if path == "topology":
            parts += _fabrics()
    return "\n".join([*parts, _largest()])


def _largest() -> str:
    rows = [f"| {what} | {most} |" for what, most in TABLE]
    return "\n".join([*_LARGEST_HEAD, *rows, ""])


def write(path: str | Path) -> None:
    """Write the page to a file."""
    Path(path).write_text(markdown(), encoding="utf-8")


def _sections(owner: type[Any], path: str) -> Iterator[tuple[str, type[Any]]]:
    """Generate the dotted key and dataclass of every section, depth first."""
    for item in declared(owner):
        if isinstance(item, OptionField):
            continue
        below = item.shape.owner()
        if below is not None:
            key = f"{path}.{item.key}" if path else item.key
            yield key, below
            yield from _sections(below, key)


def _part(path: str, owner: type[Any]) -> list[str]:
    return [f"## `{path}`\n", _first_words(owner), _table(owner)]


def _operations() -> list[str]:
    parts = ["### Operations in `do`\n"]
    for owner in (ComputeOp, CallOp, WaitOp, RepeatOp):
        parts += [_first_words(owner), _table(owner)]
    return parts


def _fabrics() -> list[str]:
    parts = [
        "## `fabric`\n",
        "The network between the nodes: `kind` and the options of that kind. "
        "`fabric: rail_optimized` is short for the kind alone. Without the section, several nodes "
        "are joined by a single switch that never blocks.\n",
    ]
    fields = {kind: declared(plugins.fabric_options(kind)) for kind in plugins.fabric_kinds()}
    shared = set.intersection(*({item.key for item in items} for items in fields.values()))
    parts += ["Every kind has these options:\n", _rows(next(iter(fields.values())), keep=shared)]
    for kind, items in fields.items():
        own = {item.key for item in items} - shared
        parts.append(f"### `kind: {kind}`\n")
        parts.append(_rows(items, keep=own) if own else "No further options.\n")
    return parts


def _first_words(owner: type[Any]) -> str:
    """Return the summary of a dataclass's docstring, and what follows it."""
    return inspect.cleandoc(owner.__doc__ or "").replace("``", "`") + "\n"


def _table(owner: type[Any]) -> str:
    items = declared(owner)
    return _rows(items, keep={item.key for item in items})


def _rows(items: Iterable[OptionField | ShapedField], *, keep: set[str]) -> str:
    rows = ["| key | value | default | meaning |", "|---|---|---|---|"]
    for item in items:
        if item.key not in keep:
            continue
        if isinstance(item, OptionField):
            kind = f"{'list: ' if item.many else ''}{KIND_WORDS[item.kind]}"
            if item.choices:
                kind = ", ".join(f"`{choice}`" for choice in item.choices)
            cells = [f"`{item.key}`", kind + _limits(item), _default(item), item.doc]
        else:
            keys = " or ".join(f"`{key}`" for key in (item.key, *item.aliases))
            cells = [keys, item.shape.words(), "", item.doc]
        rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(rows) + "\n"


def _limits(item: OptionField) -> str:
    limits = [
        f"{sign} {item.show(bound)}"
        for sign, bound in (("≥", item.minimum), ("≤", item.maximum))
        if bound is not None and (bound > 0 or item.kind not in ("size", "time"))
    ]
    return f" ({', '.join(limits)})" if limits else ""


def _default(item: OptionField) -> str:
    if item.required:
        return "required"
    if item.default is None:
        return "null" if item.kind in ("name", "text") else "auto"
    if item.many:
        return ", ".join(f"`{item.show(part)}`" for part in item.default)
    return f"`{item.show(item.default)}`" if item.default != "" else ""
