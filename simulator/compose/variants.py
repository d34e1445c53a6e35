"""What the variants of a sweep tell together: warnings by variant, axes that change nothing."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from simulator.costs.calibration import OutsideFit, joined
from simulator.results.model import RunResult

__all__ = ["idle_axes", "told_by_variant"]

Labels = Sequence[tuple[str, str]]
"""Keys that a sweep varies, with the values of one variant."""

_NAMED = 3
"""Variants that are named before a text; more are counted."""
_SAME = 1e-9


def told_by_variant(texts: Sequence[Sequence[str]], names: Sequence[str]) -> tuple[str, ...]:
    """Return texts of several variants, each once: those of some only say of which.

    Parameters
    ----------
    texts
        Warnings or notes of each variant.
    names
        The variants' names.

    Examples
    --------
    >>> told_by_variant([["a", "b"], ["a"]], ["2:1", "4:1"])
    ('a', '2:1: b')
    >>> told_by_variant([["b"], ["b"], []], ["2:1, x", "2:1, y", "4:1, x"])
    ('2:1: b',)
    """
    having: dict[str, list[str]] = {}
    for told, name in zip(texts, names, strict=True):
        for text in dict.fromkeys(told):
            having.setdefault(text, []).append(name)
    return joined(
        text
        if len(found) == len(names) or isinstance(text, OutsideFit)
        else f"{_who(found, names)}: {text}"
        for text, found in having.items()
    )


def _who(found: Sequence[str], names: Sequence[str]) -> str:
    """Return the variants that a text is of: by what they share, by name, or counted."""
    parts = [set(name.split(", ")) for name in found]
    shared = set.intersection(*parts)
    if shared and sum(shared <= set(name.split(", ")) for name in names) == len(found):
        return ", ".join(part for part in found[0].split(", ") if part in shared)
    if len(found) <= _NAMED:
        return "; ".join(found)
    return f"{len(found)} of {len(names)} variants"


def idle_axes(labels: Sequence[Labels], results: Sequence[RunResult]) -> tuple[str, ...]:
    """Return a warning for each key of a sweep whose values change no time and no memory.

    Parameters
    ----------
    labels
        Keys and values of each variant.
    results
        Their results, in the same order; variants that were not simulated are left out of both.
    """
    keys = dict.fromkeys(key for label in labels for key, _ in label)
    found = []
    for key in keys:
        groups: dict[tuple[tuple[str, str], ...], dict[str, tuple[float, ...]]] = {}
        for label, result in zip(labels, results, strict=True):
            others = tuple((other, value) for other, value in label if other != key)
            own = ", ".join(value for other, value in label if other == key)
            groups.setdefault(others, {})[own] = _figures(result)
        compared = [times for times in groups.values() if len(times) > 1]
        if compared and all(_alike(times) for times in compared):
            values = list(dict.fromkeys(own for times in compared for own in times))
            shown = values if len(values) <= 4 else [*values[:2], "…", values[-1]]
            found.append(f"{key}: {', '.join(shown)} make no difference here")
    return tuple(found)


def _figures(result: RunResult) -> tuple[float, ...]:
    """Return every time of a result, bytes of memory and shares of days with failures."""
    return (
        *(row.time_s for row in result.rows),
        *(step.time_s for step in result.steps),
        *(step.step_s for step in result.training),
        *(stage.total_bytes for step in result.training for stage in step.memory),
        *(days.useful for days in result.goodput),
    )


def _alike(times: Mapping[str, tuple[float, ...]]) -> bool:
    first, *others = times.values()
    return bool(first) and all(
        len(other) == len(first)
        and all(math.isclose(a, b, rel_tol=_SAME) for a, b in zip(first, other, strict=True))
        for other in others
    )
