"""What is simulated at most: every count, size and quotient has a largest value, in one table.

The limits are of three kinds: what no machine has, what sums in 64 bits bear, and what fits into
memory and minutes.  They are checked where an input comes in, before anything is built, and the
message names them.  ``docs/scenario.md`` prints the table.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from simulator.base.errors import Problem

__all__ = [
    "KIND_LIMITS",
    "LEAST_SHARE",
    "MOST_BLOCKS",
    "MOST_CABLES",
    "MOST_COUNT",
    "MOST_DIMENSION",
    "MOST_FRACTION",
    "MOST_GPUS",
    "MOST_NODE_VERTICES",
    "MOST_OPERATIONS",
    "MOST_PARAMETERS",
    "MOST_PASSES",
    "MOST_RANKS",
    "MOST_SEED",
    "MOST_SIZES",
    "MOST_SIZE_BYTES",
    "MOST_TIME_S",
    "MOST_TOKENS",
    "MOST_TRANSFERS",
    "MOST_VARIANTS",
    "MOST_VERTICES",
    "TABLE",
    "shortened",
    "too_many",
]

LEAST_RATE_Bps, MOST_RATE_Bps = 1.0, 1e18
"""A byte a second, an exabyte a second: what a link may be, and what sums and quotients bear."""
MOST_TIME_S = 10 * 86400.0
"""Ten days: no run that is simulated lasts longer, and sums with it would lose nanoseconds."""
MOST_SIZE_BYTES = 2**44
"""16 TiB: times 262,144 ranks it still is a whole number of 64 bits."""
MOST_COUNT = 1_000_000
"""Of anything that has no limit of its own."""
MOST_FRACTION = 1e6
LEAST_SHARE = 1e-6
"""Of what is left of a rate: less is no link."""
MOST_SEED = 2**63 - 1
MOST_RANKS = 1 << 20
"""Ranks in one list."""
MOST_GPUS = 262_144
"""Larger clusters would not fit into a few GiB of memory."""
MOST_VERTICES = 1_000_000
"""Switches of a network, vertices of an own topology: each has a name."""
MOST_NODE_VERTICES = 4096
"""Of one kind in a node: routes inside a node are looked for between all pairs."""
MOST_CABLES = 4_000_000
"""A full fat tree of `MOST_GPUS` ports has a fifth of them."""
MOST_VARIANTS = 10_000
MOST_SIZES = 4096
MOST_OPERATIONS = 200_000
"""Operations of a rank, repeats and training steps written out."""
MOST_BLOCKS = 5_000
"""Layers of a model; 1,000 have been trained."""
MOST_PASSES = 500_000
"""Micro-batches times blocks; a simulation of that many takes minutes."""
MOST_DIMENSION = 2**24
"""Any size of a model but its layers: widths, heads, vocabularies, experts."""
MOST_TOKENS = 2**24
"""Of a sequence; ten million have been trained with."""
MOST_PARAMETERS = 10**15
MOST_TRANSFERS = 10**12

KIND_LIMITS: Mapping[str, tuple[float | None, float | None]] = MappingProxyType(
    {
        "rate": (LEAST_RATE_Bps, MOST_RATE_Bps),
        "time": (None, MOST_TIME_S),
        "size": (None, MOST_SIZE_BYTES),
        "count": (None, MOST_COUNT),
        "fraction": (None, MOST_FRACTION),
    }
)
"""Least and most of a kind of option, where the option names no others."""

TABLE: tuple[tuple[str, str], ...] = (
    ("a size", "16 TiB"),
    ("a time", "10 d"),
    ("a bandwidth", "1 B/s … 1,000,000 TB/s"),
    ("a number or percent", f"{MOST_FRACTION:,.0f}; a share of a rate: ≥ {LEAST_SHARE:g}"),
    ("a whole number without a limit of its own", f"{MOST_COUNT:,}"),
    ("GPUs of a cluster", f"{MOST_GPUS:,}"),
    ("switches of a network, vertices of an own topology", f"{MOST_VERTICES:,}"),
    ("vertices of one kind in a node of an own topology", f"{MOST_NODE_VERTICES:,}"),
    ("cables of a network, links of an own topology", f"{MOST_CABLES:,}"),
    ("ranks of one list", f"{MOST_RANKS:,}"),
    ("variants of a scenario", f"{MOST_VARIANTS:,}"),
    ("sizes of a sweep", f"{MOST_SIZES:,}"),
    ("operations of a rank, repeats and iterations written out", f"{MOST_OPERATIONS:,}"),
    ("layers of a model", f"{MOST_BLOCKS:,}"),
    ("micro-batches × layers", f"{MOST_PASSES:,}"),
    ("tokens of a sequence, other dimensions of a model", f"{MOST_TOKENS:,}"),
    ("parameters", "10^15"),
)
"""What is limited and the largest value, as the documentation shows them."""

_SHOWN = 40


def shortened(text: str) -> str:
    """Return a text for a message, its middle left out where it is long.

    Examples
    --------
    >>> shortened("9" * 5000)
    '9999999999999999999… (5,000 characters)'
    """
    if len(text) <= _SHOWN:
        return text
    return f"{text[: _SHOWN // 2 - 1]}… ({len(text):,} characters)"


def too_many(key: str, found: int, what: str, most: int) -> Problem:
    """Return the problem of more of something than is simulated.

    Examples
    --------
    >>> print(too_many("fabric.radix", 5000000, "cables", 4000000))
    fabric.radix: makes 5,000,000 cables
      allowed: at most 4,000,000.
    """
    shown = f"{found:,}" if found < 10**15 else f"{float(found):.3g}"
    return Problem(key=key, message=f"makes {shown} {what}", allowed=f"at most {most:,}")
