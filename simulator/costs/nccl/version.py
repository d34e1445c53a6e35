"""NCCL versions: parsing, the numeric code, the supported range, rows that hold since a version."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from simulator.base.errors import Problem, ScenarioError
from simulator.base.units import is_whole

__all__ = [
    "NEWEST",
    "OLDEST",
    "OLDEST_TABLE",
    "NcclVersion",
    "nearest_supported",
    "plain_version",
    "row_since",
]

_TEXT = re.compile(r"^\s*v?(\d+)\.(\d+)(?:\.(\d+))?(?:[-+.~ _].*)?$")

_Row = TypeVar("_Row", bound=Mapping[str, object])


@dataclass(frozen=True, slots=True, order=True)
class NcclVersion:
    """A release of NCCL; versions compare by major, minor, patch."""

    major: int
    minor: int
    patch: int = 0

    @classmethod
    def parse(cls, text: str | int | NcclVersion) -> NcclVersion:
        """Return the version written as ``2.21.5``, ``v2.21.5-1``, ``2.21.5+cuda12.4`` or 22105.

        Raises
        ------
        ScenarioError
            Not a version.

        Examples
        --------
        >>> NcclVersion.parse("2.21.5+cuda12.4").code
        22105
        >>> str(NcclVersion.parse(2804)), str(NcclVersion.parse("2.18"))
        ('2.8.4', '2.18.0')
        """
        if isinstance(text, NcclVersion):
            return text
        if isinstance(text, int) or is_whole(text.strip()):
            code = int(text)
            # Since 2.9 a code has two digits for the minor version, before it had one.
            scale = 10_000 if code >= 10_000 else 1_000
            version = cls(code // scale, code % scale // 100, code % 100)
            if code >= 1_000:
                return version
        else:
            match = _TEXT.match(text)
            if match:
                return cls(*(int(part or 0) for part in match.groups()))
        raise ScenarioError(
            Problem(
                message=f"{text!r} is not an NCCL version",
                allowed="such as '2.21.5', '2.21.5+cuda12.4' or 22105",
            )
        )

    @property
    def code(self) -> int:
        """The number that ``ncclGetVersion`` returns."""
        scale = 10_000 if (self.major, self.minor) >= (2, 9) else 1_000
        return self.major * scale + self.minor * 100 + self.patch

    def since(self, major: int, minor: int, patch: int = 0) -> bool:
        """Return whether this version is the given one or newer."""
        return (self.major, self.minor, self.patch) >= (major, minor, patch)

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}.{self.patch}"


OLDEST = NcclVersion(2, 4)
"""The oldest version that is accepted."""
OLDEST_TABLE = NcclVersion(2, 12)
"""The oldest version whose constants are known; older ones use its constants."""
NEWEST = NcclVersion(2, 30, 99)
"""The newest version whose constants are known; newer ones use its constants."""


def nearest_supported(version: NcclVersion) -> tuple[NcclVersion, str | None]:
    """Return the version whose constants stand in for *version*, and a note when it is another.

    Raises
    ------
    ScenarioError
        Older than 2.4, or of another major version than 2.

    Examples
    --------
    >>> nearest_supported(NcclVersion(2, 21, 5))
    (NcclVersion(major=2, minor=21, patch=5), None)
    >>> print(nearest_supported(NcclVersion(2, 8, 4))[1])
    NCCL 2.8.4 is modelled with the constants of 2.12
    """
    if version < OLDEST or version.major != OLDEST.major:
        raise ScenarioError(
            Problem(
                message=f"NCCL {version} is not modelled",
                allowed=f"{OLDEST.major}.{OLDEST.minor} … {NEWEST.major}.{NEWEST.minor}",
            )
        )
    if version < OLDEST_TABLE:
        stand_in = OLDEST_TABLE
    elif (version.major, version.minor) > (NEWEST.major, NEWEST.minor):
        stand_in = NEWEST
    else:
        return version, None
    note = f"NCCL {version} is modelled with the constants of {stand_in.major}.{stand_in.minor}"
    return stand_in, note


def row_since(rows: Sequence[_Row], version: NcclVersion) -> _Row:
    """Return the last row whose ``since`` is not newer than *version*; the first one otherwise."""
    held = [row for row in rows if NcclVersion.parse(str(row["since"])) <= version]
    return held[-1] if held else rows[0]


def plain_version(text: str) -> str:
    """Return a version as three numbers; what is none as it is.

    Examples
    --------
    >>> plain_version("2.21.5+cuda12.4"), plain_version("2.18"), plain_version("")
    ('2.21.5', '2.18.0', '')
    """
    try:
        return str(NcclVersion.parse(text))
    except ScenarioError:
        return text
