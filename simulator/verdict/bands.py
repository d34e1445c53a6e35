"""How far a healthy machine may be from its prediction.

A row of a fitted profile carries its own uncertainty: 80 % of the published machines that were
left out of the fit lie within it.  Other profiles get a band by size: healthy published 8×A100
NVSwitch nodes alone differ among themselves by 25–30 % below 1 KiB (the launch floor depends on
the CPU and on one process per GPU or one for all), 10–20 % at 1–4 MiB and 1–9 % above 8 MiB, to
which the model's own error is added.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from simulator.results.model import Row

__all__ = [
    "JUDGED",
    "LARGE_BYTES",
    "RANGES",
    "SMALL_BYTES",
    "expected_s",
    "half_width",
    "judged_range",
    "judged_sizes",
    "size_range",
]

SMALL_BYTES = 1 << 20
"""Below: the launch and the steps' latency rule."""
LARGE_BYTES = 16 << 20
"""From here on: bandwidth rules."""

PLATEAU_BYTES = 256 << 20
"""From here on bandwidth hardly grows with the size: the prediction knows it best."""
FAR_BYTES = 1 << 30
"""From here on a plateau is judged, where a table has such sizes."""

BAND_SMALL = 0.60
BAND_MIDDLE = 0.45
BAND_LARGE = 0.25
"""Half width of the 80 % band, as a share of the time, where the row does not tell its own."""

RANGES = ("<1M", "1M-16M", ">=16M")

JUDGED = ("<1M", "1M-16M", "16M-256M", ">=256M")
"""Ranges of a verdict, each with limits of its own."""


def judged_range(size_bytes: int) -> str:
    """Return the name of the range in which a size is judged, one of `JUDGED`.

    Examples
    --------
    >>> judged_range(1 << 20), judged_range(64 << 20), judged_range(1 << 30)
    ('1M-16M', '16M-256M', '>=256M')
    """
    ends = (SMALL_BYTES, LARGE_BYTES, PLATEAU_BYTES)
    return JUDGED[sum(size_bytes >= end for end in ends)]


def judged_sizes(sizes_bytes: Iterable[int]) -> dict[str, set[int]]:
    """Return the sizes that decide in each range: of the plateau its far end, where there is one.

    Examples
    --------
    >>> {k: sorted(v) for k, v in judged_sizes([8, 256 << 20, 1 << 30, 1 << 31]).items()}
    {'<1M': [8], '>=256M': [1073741824, 2147483648]}
    """
    found: dict[str, set[int]] = {}
    for size in sizes_bytes:
        found.setdefault(judged_range(size), set()).add(size)
    far = {size for size in found.get(JUDGED[-1], ()) if size >= FAR_BYTES}
    if far:
        found[JUDGED[-1]] = far
    return found


def size_range(size_bytes: int) -> str:
    """Return the name of a size's range, one of `RANGES`.

    Examples
    --------
    >>> size_range(8), size_range(1 << 20), size_range(1 << 30)
    ('<1M', '1M-16M', '>=16M')
    """
    if size_bytes < SMALL_BYTES:
        return RANGES[0]
    return RANGES[1] if size_bytes < LARGE_BYTES else RANGES[2]


def half_width(row: Row) -> float:
    """Return the half width of the 80 % band in ln of the time.

    Examples
    --------
    >>> row = Row(collective="all_reduce", algorithm="ring", protocol="Simple", n_channels=1,
    ...     world_size=2, n_nodes=1, size_bytes=1 << 30, count=1, time_s=1.0, algbw_Bps=1.0,
    ...     busbw_Bps=1.0)
    >>> half_width(row) == math.log(1.25)
    True
    """
    if row.uncertainty_s is not None and row.uncertainty_s > 0 and row.time_s > 0:
        return math.log1p(row.uncertainty_s / row.time_s)
    place = RANGES.index(size_range(row.size_bytes))
    return math.log1p((BAND_SMALL, BAND_MIDDLE, BAND_LARGE)[place])


def expected_s(row: Row) -> tuple[float, float]:
    """Return the least and greatest expected time, symmetric on the logarithm.

    Examples
    --------
    >>> row = Row(collective="all_reduce", algorithm="ring", protocol="Simple", n_channels=1,
    ...     world_size=2, n_nodes=1, size_bytes=1 << 30, count=1, time_s=1.0, algbw_Bps=1.0,
    ...     busbw_Bps=1.0)
    >>> expected_s(row)
    (0.8, 1.25)
    """
    factor = math.exp(half_width(row))
    return row.time_s / factor, row.time_s * factor
