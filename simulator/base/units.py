"""Quantities with units: parsed once at the border, seconds, bytes and bytes/s inside.

Sizes: ``25 MiB`` and the nccl-tests suffixes ``25M``, ``1G`` are binary; ``25 MB`` is decimal.
Rates: bits (``400 Gbit/s``, ``400 Gbps``, ``400 Gb/s``) and bytes (``50 GB/s``, ``50 GBps``) are
told apart by the letter; both are per direction.  Times: ``ns us ms s min h d``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from decimal import Decimal

from simulator.base.errors import Problem, UnitError, nearest
from simulator.base.limits import shortened

__all__ = [
    "exact_rate",
    "exact_size",
    "exact_time",
    "format_rate",
    "format_size",
    "format_time",
    "is_whole",
    "parse_fraction",
    "parse_rate",
    "parse_size",
    "parse_time",
]

_NUMBER = re.compile(
    r"^\s*([+-]?(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][+-]?\d+)?|[+-]?(?:inf|nan))\s*(.*?)\s*$",
    re.ASCII,
)

_DECIMAL = {"": 1, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_BINARY = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}

_SIZE_UNITS: dict[str, float] = {
    "B": 1,
    "bytes": 1,
    "byte": 1,
    **{f"{p}iB": v for p, v in _BINARY.items()},
    **{p: v for p, v in _BINARY.items()},
    **{p.lower(): v for p, v in _BINARY.items()},
    **{f"{p}B": v for p, v in _DECIMAL.items() if p},
}
_RATE_UNITS: dict[str, float] = {
    **{f"{p}{b}": v / 8 for p, v in _DECIMAL.items() for b in ("bit/s", "bps", "b/s", "bits/s")},
    **{f"{p}{b}": v for p, v in _DECIMAL.items() for b in ("B/s", "Bps")},
    **{f"{p}i{b}": float(v) for p, v in _BINARY.items() for b in ("B/s", "Bps")},
}
_TIME_UNITS: dict[str, float] = {
    "ns": 1e-9,
    "us": 1e-6,
    "µs": 1e-6,
    "μs": 1e-6,
    "ms": 1e-3,
    "s": 1.0,
    "min": 60.0,
    "h": 3600.0,
    "d": 86400.0,
}


def _unknown_unit(shown: str, unit: str, units: dict[str, float], allowed: str) -> Problem:
    """Return the problem of a unit that is not known.

    Where only the case is wrong and it decides between bits and bytes (``gbps``), both are named
    and none is suggested.
    """
    folded = [name for name in units if name.lower() == unit.lower()]
    if len({units[name] for name in folded}) > 1:
        return Problem(
            message=f"{shown} has the ambiguous unit {unit!r}",
            allowed=", ".join(
                f"{name!r} ({'bytes' if 'B' in name else 'bits'})" for name in folded
            ),
        )
    return Problem(
        message=f"{shown} has the unknown unit {unit!r}",
        allowed=allowed,
        suggestion=folded[0] if folded else nearest(unit, units),
    )


def _parse(
    text: object, units: dict[str, float], what: str, example: str, *, bare: bool, zero: bool
) -> Decimal:
    shown = repr(shortened(text)) if isinstance(text, str) else str(text)
    match = _NUMBER.match(text if isinstance(text, str) else str(text))
    if match is None:
        raise UnitError(
            Problem(
                message=f"{shown} is not a {what}",
                allowed=f"a number{'' if bare else ' with its unit'}, {example}",
            )
        )
    number, unit = float(match.group(1).replace("_", "")), match.group(2)
    factor = Decimal(repr(units.get(unit, 1.0)))
    if not (math.isfinite(number) and math.isfinite(number * float(factor))):
        raise UnitError(Problem(message=f"{shown} is not finite", allowed=f"a {what}, {example}"))
    if unit == "" and not bare:
        raise UnitError(
            Problem(
                message=f"{shown} has no unit",
                allowed=f"a {what} with its unit, {example}",
            )
        )
    if unit != "" and unit not in units:
        raise UnitError(_unknown_unit(shown, unit, units, f"a {what}, {example}"))
    # Decimal, so that 2.5 us is the float nearest to 0.0000025.
    value = Decimal(match.group(1).replace("_", "")) * factor
    if value < 0 or (float(value) == 0 and not zero):
        raise UnitError(
            Problem(
                message=f"{shown} is not greater than zero" if not zero else f"{shown} is negative",
                allowed=f"a {what} {'≥' if zero else '>'} 0, {example}",
            )
        )
    return value


_WHOLE = re.compile("[0-9]{1,18}")


def is_whole(text: str) -> bool:
    """Return whether a text is a whole number of at most 18 digits.

    `str.isdigit` also takes superscripts, which `int` does not read, and any length.

    Examples
    --------
    >>> is_whole("12"), is_whole("²"), is_whole("-1"), is_whole("9" * 5000)
    (True, False, False, False)
    """
    return _WHOLE.fullmatch(text) is not None


def parse_size(text: object, *, bare: bool = False, zero: bool = False) -> int:
    """Return a size in whole bytes.

    Parameters
    ----------
    text
        ``"25 MiB"``, ``"25M"`` (binary, as in nccl-tests), ``"25 MB"`` (decimal), ``"8 B"``.
    bare
        Accept a number without unit as bytes (``-b 8`` of nccl-tests).
    zero
        Accept 0.

    Raises
    ------
    UnitError
        No unit, unknown unit, negative, zero unless allowed, not finite, not whole bytes.

    Examples
    --------
    >>> parse_size("25 MiB"), parse_size("25M"), parse_size("25 MB")
    (26214400, 26214400, 25000000)
    """
    value = _parse(text, _SIZE_UNITS, "size", "such as '25 MiB' or '8 B'", bare=bare, zero=zero)
    if value != value.to_integral_value():
        raise UnitError(
            Problem(message=f"{text!r} is not a whole number of bytes", allowed="whole bytes")
        )
    return int(value)


def parse_rate(text: object) -> float:
    """Return a bandwidth in bytes/s, one direction.

    Examples
    --------
    >>> parse_rate("400 Gbit/s"), parse_rate("400Gbps"), parse_rate("400 GBps")
    (50000000000.0, 50000000000.0, 400000000000.0)
    """
    example = "such as '400 Gbit/s' or '50 GB/s'"
    return float(_parse(text, _RATE_UNITS, "bandwidth", example, bare=False, zero=False))


def parse_time(text: object, *, zero: bool = True) -> float:
    """Return a time in seconds.

    Examples
    --------
    >>> parse_time("2.5 us"), parse_time("1 h")
    (2.5e-06, 3600.0)
    """
    example = "such as '2.5 us' or '1 ms'"
    return float(_parse(text, _TIME_UNITS, "time", example, bare=False, zero=zero))


def parse_fraction(text: object) -> float:
    """Return a pure number ≥ 0, from ``0.5`` or ``"50 %"``.

    Examples
    --------
    >>> parse_fraction("50 %"), parse_fraction(0.25)
    (0.5, 0.25)
    """
    example = "such as 0.5 or '50 %'"
    return float(_parse(text, {"%": 0.01}, "fraction", example, bare=True, zero=True))


def _scaled(value: float, steps: list[tuple[float, str]], digits: int) -> str:
    for scale, unit in steps:
        if abs(value) >= scale:
            return f"{value / scale:.{digits}g} {unit}"
    scale, unit = steps[-1]
    return f"{value / scale:.{digits}g} {unit}"


def format_size(size_bytes: float, digits: int = 4) -> str:
    """Return a size in binary units.

    Examples
    --------
    >>> format_size(26214400), format_size(8)
    ('25 MiB', '8 B')
    """
    steps = [(2.0**40, "TiB"), (2.0**30, "GiB"), (2.0**20, "MiB"), (2.0**10, "KiB"), (1.0, "B")]
    return _scaled(size_bytes, steps, digits)


def format_rate(rate_Bps: float, digits: int = 4) -> str:
    """Return a bandwidth in decimal bytes/s with the bits beside it.

    Examples
    --------
    >>> format_rate(50e9)
    '50 GB/s (400 Gbit/s)'
    """
    steps_B = [(1e12, "TB/s"), (1e9, "GB/s"), (1e6, "MB/s"), (1e3, "kB/s"), (1.0, "B/s")]
    steps_b = [(1e12, "Tbit/s"), (1e9, "Gbit/s"), (1e6, "Mbit/s"), (1e3, "kbit/s"), (1.0, "bit/s")]
    return f"{_scaled(rate_Bps, steps_B, digits)} ({_scaled(rate_Bps * 8, steps_b, digits)})"


def format_time(time_s: float, digits: int = 4) -> str:
    """Return a time in the largest unit that leaves a number of at least one.

    Examples
    --------
    >>> format_time(0.00025), format_time(0)
    ('250 us', '0 s')
    """
    if time_s == 0:
        return "0 s"
    return _scaled(time_s, [(1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns")], digits)


def _exact(value: float, steps: list[tuple[float, str]], parse: Callable[[str], float]) -> str:
    """Return the shortest text that *parse* reads as exactly *value*."""
    fitting = [step for step in steps if abs(value) >= step[0]] or steps[-1:]
    for digits in (6, 9, 12, 15, 17):
        for scale, unit in fitting[:2]:
            text = f"{value / scale:.{digits}g} {unit}"
            if parse(text) == value:
                return text
    return f"{value!r} {next(unit for scale, unit in steps if scale == 1)}"


def exact_size(size_bytes: int) -> str:
    """Return a size in the largest unit that holds it exactly; `parse_size` gives it back.

    Examples
    --------
    >>> exact_size(26214400), exact_size(25_000_000), exact_size(1000), exact_size(7)
    ('25 MiB', '25 MB', '1000 B', '7 B')
    """
    for power, unit in ((40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")):
        if size_bytes and size_bytes % (1 << power) == 0:
            return f"{size_bytes >> power} {unit}"
    for scale, unit in ((10**12, "TB"), (10**9, "GB"), (10**6, "MB")):
        if size_bytes and size_bytes % scale == 0:
            return f"{size_bytes // scale} {unit}"
    return f"{size_bytes} B"


def exact_rate(rate_Bps: float) -> str:
    """Return a bandwidth that `parse_rate` gives back exactly.

    Examples
    --------
    >>> exact_rate(50e9), exact_rate(1e9 / 3)
    ('50 GB/s', '333.33333333333331 MB/s')
    """
    steps = [(1e12, "TB/s"), (1e9, "GB/s"), (1e6, "MB/s"), (1e3, "kB/s"), (1.0, "B/s")]
    return _exact(rate_Bps, steps, parse_rate)


def exact_time(time_s: float) -> str:
    """Return a time that `parse_time` gives back exactly.

    Examples
    --------
    >>> exact_time(2.5e-6), exact_time(0.0), exact_time(90.0)
    ('2.5 us', '0 s', '90 s')
    """
    if time_s == 0:
        return "0 s"
    return _exact(time_s, [(1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns")], parse_time)
