"""The small language of the hardware files: who is joined to whom, by which link.

A join names two groups of vertices, ``gpu[0-7] - pcie_switch[0-3]``; the longer group is dealt in
equal blocks to the shorter one, so that groups of equal length are joined one to one.  A mesh
joins every pair of one group, and pairs are listed as ``gpu: 0-3 0-4``.
"""

from __future__ import annotations

import re
from itertools import combinations

from simulator.base.errors import Problem, TopologyError
from simulator.base.units import is_whole

__all__ = ["expand_group", "expand_join", "expand_mesh", "expand_pairs", "vertex_kind"]

_GROUP = re.compile(r"^([a-z_]+)(?:(\d+)|\[([\d,\- ]+)\])$")


def _fault(text: str, allowed: str) -> TopologyError:
    return TopologyError(Problem(message=f"cannot read {text!r}", allowed=allowed))


def vertex_kind(name: str) -> str:
    """Return the kind of a vertex, which is its name without the number.

    Examples
    --------
    >>> vertex_kind("pcie_switch3")
    'pcie_switch'
    """
    return name.rstrip("0123456789")


def expand_group(text: str) -> list[str]:
    """Return the vertex names of a group.

    Raises
    ------
    TopologyError
        The text is not a name with a number or a list of ranges.

    Examples
    --------
    >>> expand_group("gpu[0-2,7]"), expand_group("cpu1")
    (['gpu0', 'gpu1', 'gpu2', 'gpu7'], ['cpu1'])
    """
    match = _GROUP.match(text.strip())
    if match is None:
        raise _fault(text, "a group such as gpu0, gpu[0-7] or gpu[0,2,5]")
    kind, single, ranges = match.groups()
    if single is not None:
        return [f"{kind}{single}"]
    numbers: list[int] = []
    for part in ranges.split(","):
        first, _, last = part.strip().partition("-")
        numbers += range(int(first), int(last or first) + 1)
    if not numbers:
        raise _fault(text, "a range that goes up, such as gpu[0-7]")
    return [f"{kind}{number}" for number in numbers]


def expand_join(text: str) -> list[tuple[str, str]]:
    """Return the vertex pairs of a join, the longer group dealt in blocks to the shorter.

    Raises
    ------
    TopologyError
        No ``-`` between two groups, or lengths that do not divide.

    Examples
    --------
    >>> expand_join("gpu[0-3] - cpu[0-1]")
    [('gpu0', 'cpu0'), ('gpu1', 'cpu0'), ('gpu2', 'cpu1'), ('gpu3', 'cpu1')]
    """
    left, mark, right = text.partition(" - ")
    if not mark:
        raise _fault(text, "two groups, such as 'gpu[0-7] - nvswitch0'")
    a, b = expand_group(left), expand_group(right)
    long, short = (a, b) if len(a) >= len(b) else (b, a)
    if len(long) % len(short):
        raise _fault(text, "groups of which one length divides the other")
    block = len(long) // len(short)
    dealt = [(one, short[place // block]) for place, one in enumerate(long)]
    return dealt if long is a else [(other, one) for one, other in dealt]


def expand_pairs(text: str) -> list[tuple[str, str]]:
    """Return listed pairs of one kind.

    Examples
    --------
    >>> expand_pairs("gpu: 0-3 1-2")
    [('gpu0', 'gpu3'), ('gpu1', 'gpu2')]
    """
    kind, mark, rest = text.partition(":")
    pairs = [word.partition("-") for word in rest.split()]
    if not mark or not pairs or not all(is_whole(a) and is_whole(b) for a, _, b in pairs):
        raise _fault(text, "pairs of one kind, such as 'gpu: 0-3 0-4'")
    return [(f"{kind.strip()}{a}", f"{kind.strip()}{b}") for a, _, b in pairs]


def expand_mesh(text: str) -> list[tuple[str, str]]:
    """Return every pair of a group.

    Examples
    --------
    >>> expand_mesh("gpu[0-2]")
    [('gpu0', 'gpu1'), ('gpu0', 'gpu2'), ('gpu1', 'gpu2')]
    """
    return list(combinations(expand_group(text), 2))
