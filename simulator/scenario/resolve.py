"""Load: file or words → every variant of a scenario, resolved, or all problems at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from collections.abc import Mapping as MappingType
from dataclasses import dataclass, field, replace
from pathlib import Path

from simulator.base.errors import Problem, ScenarioError
from simulator.base.limits import MOST_VARIANTS
from simulator.scenario.checks import resolve
from simulator.scenario.patch import (
    SET_PLACE,
    apply_words,
    load_with_base,
    merge,
    split_assignment,
)
from simulator.scenario.reader import Reader, is_empty, join, kind_of
from simulator.scenario.resolved import SCHEMA_VERSION, Resolved
from simulator.scenario.tree import Mapping, Place, Scalar, parse_text

__all__ = ["ScenarioSet", "from_words", "load", "loads"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScenarioSet:
    """All variants of one scenario: patches × sweeps."""

    name: str
    """File name, or ``command line``."""
    variants: tuple[Resolved, ...]
    warnings: tuple[Problem, ...]
    """Inputs that have no effect; to be printed, not fatal."""
    invalid: tuple[Problem, ...] = ()
    """Of variants that were left out, where asked for with ``partial``."""

    @property
    def dimensions(self) -> dict[str, tuple[str, ...]]:
        """Values of each swept key, in order, as written; ``patch`` comes first."""
        found: dict[str, dict[str, None]] = {}
        for variant in self.variants:
            for key, value in variant.labels:
                found.setdefault(key, {})[value] = None
        return {key: tuple(values) for key, values in found.items()}


def load(path: str | Path, *, overrides: Iterable[str] = (), partial: bool = False) -> ScenarioSet:
    """Return all variants of a scenario file.

    Parameters
    ----------
    path
        YAML file; its ``base:`` files are found from where it stands.
    overrides
        Words ``key=value`` laid over the file, the last wins.
    partial
        Leave out invalid variants where others are valid, and say so in ``invalid``.

    Raises
    ------
    ScenarioError
        Everything that is wrong with the file, sorted by line.
    """
    return _resolved_set(load_with_base(path), str(path), overrides, partial)


def loads(text: str, *, name: str = "text", overrides: Iterable[str] = ()) -> ScenarioSet:
    """Return all variants of a scenario given as YAML text; as `load`."""
    tree = parse_text(text, name)
    if not isinstance(tree, Mapping):
        raise ScenarioError(
            Problem(file=name, message=f"is {kind_of(tree)}", allowed="keys such as node: dgx-h100")
        )
    return _resolved_set(tree, name, overrides, False)


def from_words(words: MappingType[str, str], *, partial: bool = False) -> ScenarioSet:
    """Return all variants of a scenario given as words of the command line.

    Parameters
    ----------
    words
        Dotted key to YAML text, ``{"node": "dgx-h100", "collective.size": "1M,1G"}``; commas
        separate the values of a sweep, and a bare size means bytes, as in nccl-tests.
    partial
        As in `load`.

    Raises
    ------
    ScenarioError
        Everything that is wrong, with ``command line`` as its place.
    """
    place = Place("command line")
    version = Scalar(place, str(SCHEMA_VERSION))
    tree = Mapping(place).with_item("schema_version", version, place)
    return _resolved_set(apply_words(tree, words.items(), place=place), place.file, (), partial)


def _resolved_set(tree: Mapping, name: str, overrides: Iterable[str], partial: bool) -> ScenarioSet:
    words = [split_assignment(word) for word in overrides]
    # Words win over patches, so they are laid on last; those that change a patch come first.
    to_patches = [word for word in words if word[0].partition(".")[0] == "patches"]
    to_all = [word for word in words if word not in to_patches]
    reading = _Reading()
    whole = True
    try:
        for patch, patched in _patched(apply_words(tree, to_patches, place=SET_PLACE)):
            reading.expand(apply_words(patched, to_all, place=SET_PLACE), patch, {})
    except ScenarioError as error:
        reading.problems.update({problem: "" for problem in error.problems})
        whole = False
    of_some = partial and whole and reading.variants
    if reading.problems and not of_some:
        raise ScenarioError(reading.labelled(reading.problems))
    return ScenarioSet(
        name=name,
        variants=tuple(reading.variants),
        warnings=tuple(reading.labelled(reading.warnings)),
        invalid=tuple(reading.labelled(reading.problems)),
    )


def _patched(tree: Mapping) -> Iterator[tuple[str | None, Mapping]]:
    """Generate the scenario itself and each of its patches laid over it, with the name."""
    patches = tree.get("patches")
    base = tree.without("patches")
    if is_empty(patches):
        place = tree.key_place["patches"]
        raise ScenarioError(_problem(place, "patches", "is empty", "names with overrides"))
    if patches is None or (isinstance(patches, Scalar) and patches.is_null):
        yield None, base
        return
    if not isinstance(patches, Mapping):
        raise ScenarioError(
            _problem(patches.place, "patches", f"is {kind_of(patches)}", "names with overrides")
        )
    yield "base", base
    for name, patch in patches.items.items():
        if not isinstance(patch, Mapping):
            message = f"is {kind_of(patch)}"
            raise ScenarioError(
                _problem(patch.place, join("patches", name), message, "keys to override")
            )
        for key in ("base", "patches"):
            if key in patch:
                raise ScenarioError(
                    _problem(
                        patch.key_place[key],
                        join(join("patches", name), key),
                        "stands inside a patch",
                        f"{key} at the top of the file",
                    )
                )
        yield name, merge(base, patch)


def _problem(place: Place, key: str, message: str, allowed: str) -> Problem:
    return Problem(file=place.file, line=place.line, key=key, message=message, allowed=allowed)


@dataclass(slots=True)
class _Reading:
    """Collects variants, and problems with the label of the first variant that has them."""

    variants: list[Resolved] = field(default_factory=list)
    failed: int = 0
    problems: dict[Problem, str] = field(default_factory=dict)
    warnings: dict[Problem, str] = field(default_factory=dict)
    seen: dict[Problem, int] = field(default_factory=dict)

    def expand(
        self, tree: Mapping, patch: str | None, choices: dict[str, int], least: int = 1
    ) -> None:
        """Read with these choices; where a sweep is still open, read once for each value.

        *least* is how many variants the sweeps decided so far make at least.
        """
        reader = Reader(choices=choices)
        read = reader.section(Resolved, tree, "", skip=("base", "patches"))
        if reader.open is not None:
            key, length = reader.open
            self._refuse_too_many(tree, least * length)
            for index in range(length):
                self.expand(tree, patch, {**choices, key: index}, least * length)
            return
        for key in ("base", "patches"):
            if key in tree:
                place = tree.key_place[key]
                reader.refuse(key, "cannot be set here", allowed="in the file", place=place)
        if read is not None:
            read = resolve(reader, read, tree)
        labels = [("patch", patch)] if patch is not None else []
        labels += reader.labels()
        text = ", ".join(f"{key} {value}" for key, value in labels)
        for problem in reader.problems:
            self.problems.setdefault(problem, text)
            self.seen[problem] = self.seen.get(problem, 0) + 1
        for warning in reader.warnings:
            self.warnings.setdefault(warning, text)
            self.seen[warning] = self.seen.get(warning, 0) + 1
        if reader.problems or read is None:
            self.failed += 1
        else:
            self.variants.append(replace(read, labels=tuple(labels), origins=reader.origins))
        self._refuse_too_many(tree, len(self.variants) + self.failed)

    @staticmethod
    def _refuse_too_many(tree: Mapping, variants: int) -> None:
        if variants > MOST_VARIANTS:
            message = f"has more than {MOST_VARIANTS:,} variants"
            raise ScenarioError(_problem(tree.place, "", message, "shorter lists"))

    def labelled(self, found: dict[Problem, str]) -> list[Problem]:
        """Return problems by file and line; one that only some variants have names the first."""
        total = len(self.variants) + self.failed
        result = [
            replace(problem, message=f"{problem.message} (with {label})")
            if label and self.seen.get(problem, total) < total
            else problem
            for problem, label in found.items()
        ]
        return sorted(result, key=lambda problem: (problem.file, problem.line or 0))
