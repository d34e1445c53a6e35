"""Clean a line of a pasted log: colours, launchers' tags, number styles, glued NCCL lines."""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = [
    "Clean",
    "clean",
    "info_host",
    "is_value",
    "number_readings",
    "resolution",
    "split_info",
    "whole",
]

_ANSI = re.compile(r"\x1b(?:\[[0-9;:?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f]")
_THOUSANDS_BLANK = re.compile(r"(?<=\d)[\u00a0\u202f\u2009](?=\d{3}(?!\d))")
_BLANKS = re.compile("[\u00a0\u202f\u2009\u2007\u3000\t]")

# mpirun --tag-output and --timestamp-output, PRRTE's longer form, and what stands before it.
_MPI_TAG = re.compile(
    r"(?:[A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \d{4})?"
    r"(?:\[(?:[\w.-]+@)?\d+,(\d+)\])?<std(?:out|err|diag)>:\s?|\[\d+,(\d+)\]:?"
)
# Ray, pdsh-like and torchrun tags: (head, rank=0, pid=3808), [rank3]:, [default0]:, [0].
_RANK_TAG = re.compile(r"\[(?:rank|default|)(\d+)\](?::(?=\s|$))?")
_FIRST_TAG = re.compile(r"^\s*\[(?:rank|default|)(\d+)\]:?(?=\s*#)")
_PAREN_TAG = re.compile(r"^\s*\((?=[^)]*\b(?:pid|rank|ip)=)[^)]*\)\s?")
_POD_TAG = re.compile(r"^\s*\[(pod/[^\]\s]+)\]\s?")
_COMPOSE_TAG = re.compile(r"^\s*[\w.-]+\s+\|\s(?=[\s#]|\S+:\d+:)")
_SRUN_TAG = re.compile(r"^\s*(\d{1,6}): ?(?=\s|#|\S|$)")
_STAMP = re.compile(
    r"^\s*\[?\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?\]?\s(?=\s*\S)"
)
_QUOTE = re.compile(r"^\s*(?:>\s?)+")
# host:pid:tid [device] NCCL INFO …, possibly glued to the end of a number of a table row; before
# NCCL WARN stand file and line of NCCL's source, before NCCL TRACE a time too.
_INFO = re.compile(
    r"(?P<host>[A-Za-z0-9_][\w.-]*):\d+:\d+ (?:\[[\w/]+\]|\(\d+\))? ?"
    r"(?:[\d.]+ )?(?:[\w./+-]+:\d+ )?NCCL (?P<level>[A-Z]+) "
)
_INFO_HEAD = re.compile(
    r"^(?:\[\d+,\d+\]<std(?:out|err)>:|\s{0,8}\d{1,6}:\s)?\s*([A-Za-z0-9][\w.-]*):\d+:\d+ \[\w+\]$"
)
_GLUED = re.compile(r"^(-?\d+(?:\.\d+)?(?:e[+-]?\d+)?|N/A)(?=[A-Za-z])")


@dataclass(frozen=True, slots=True)
class Clean:
    """A line without its decoration."""

    text: str
    tag: str
    """Which process wrote it, as far as a tag tells; empty without one."""


def clean(line: str) -> Clean:
    """Strip colours and launchers' tags; blanks of any kind become plain ones."""
    if "\x1b" in line:
        line = _ANSI.sub("", line)
    if not line.isascii():
        line = _BLANKS.sub(" ", _THOUSANDS_BLANK.sub("", line))
    line = _CONTROL.sub("", line).replace("\t", " ")
    tag = ""
    if line.lstrip().startswith(">"):
        line = _QUOTE.sub("", line, count=1)
    if "(" in line[:40]:
        line = _PAREN_TAG.sub("", line, count=1)
    if "[pod/" in line and (match := _POD_TAG.match(line)):
        tag, line = match.group(1), line[match.end() :]
    if line[:1].isdigit() or line[:1] == "[" or line[:1] == " ":
        line = _STAMP.sub("", line, count=1)
    if "|" in line[:80]:
        line = _COMPOSE_TAG.sub("", line, count=1)
    if "<std" in line or "," in line[:24]:
        found = _MPI_TAG.findall(line)
        if found:
            tag = next((a or b for a, b in found if a or b), tag)
            line = _MPI_TAG.sub(" ", line)
    elif match := _SRUN_TAG.match(line):
        tag, line = match.group(1), line[match.end() :]
    if "[" in line and " NCCL " not in line:
        # In a row the tag may stand anywhere, in a comment only before it.
        match = _RANK_TAG.search(line) if "#" not in line else _FIRST_TAG.match(line)
        if match is not None:
            tag = match.group(1)
            line = _RANK_TAG.sub(" ", line, count=line.count("#"))
    return Clean(line, tag)


def info_host(head: str) -> str | None:
    """Return the host of an undecorated ``[tag]host:pid:tid [device]``, else None.

    Examples
    --------
    >>> info_host("[1,0]<stdout>:host-a:25:26 [0]"), info_host(" 8 2 float sum -1host:25:26 [0]")
    ('host-a', None)
    """
    match = _INFO_HEAD.match(head)
    return None if match is None else match.group(1)


def split_info(text: str) -> tuple[str, str, str, str] | None:
    """Split a line at an NCCL message: (before, host, level, message), or None without one.

    Examples
    --------
    >>> split_info("  8  2  float  sum  -1host-b:77:78 [5] NCCL INFO Launch mode Parallel")
    ('  8  2  float  sum  -1', 'host-b', 'INFO', 'Launch mode Parallel')
    """
    match = _INFO.search(text)
    if match is None:
        return None
    before, host = text[: match.start()], match.group("host")
    sign = "-" if before.endswith("-") else ""
    glued = _GLUED.match(sign + host)
    # A host may begin with digits: only behind the columns of a row is it a glued number.
    if glued is not None and len(before.split()) >= 3:
        before = before[: len(before) - len(sign)] + glued.group(1)
        host = (sign + host)[glued.end() :]
    return before, host, match.group("level"), text[match.end() :]


_HALF_UNITS = tuple(0.5 * 10.0**-places for places in range(16))
_PLAIN_VALUE = re.compile(r"^[-+]?\d[\d.,_']*(?:[eE][-+]?\d+)?\*?$")
_WORD_VALUES = frozenset({"N/A", "nan", "-nan", "inf", "-inf", "NaN", "n/a"})


def is_value(token: str) -> bool:
    """Return True for a token that can stand in a result column."""
    return _PLAIN_VALUE.match(token) is not None or token in _WORD_VALUES


def whole(token: str) -> int | None:
    """Return an integer column (size, count, root); group separators are allowed.

    Examples
    --------
    >>> whole("17_179_869_184"), whole("17.179.869.184"), whole("1,024"), whole("-1"), whole("3.5")
    (17179869184, 17179869184, 1024, -1, None)
    """
    if token.isdecimal() or (token[:1] == "-" and token[1:].isdecimal()):
        return int(token)
    if re.fullmatch(r"\d{1,3}(?:([,._'])\d{3})(?:\1\d{3})*", token):
        return int(re.sub(r"\D", "", token))
    return None


def number_readings(token: str) -> tuple[float, ...]:
    """Return the possible values of a result column, the likelier first; empty for none.

    A decimal comma and a thousands comma can look the same: ``13,552`` gives both.

    Examples
    --------
    >>> number_readings("35.20"), number_readings("35,20"), number_readings("13,552")
    ((35.2,), (35.2,), (13552.0, 13.552))
    >>> number_readings("8.159,5"), number_readings("8,159.5"), number_readings("N/A")
    ((8159.5,), (8159.5,), ())
    """
    token = token.rstrip("*")
    try:
        if "_" not in token:
            return (float(token),)
    except ValueError:
        pass
    if not any(mark in token for mark in ",'_"):
        return ()
    token = token.replace("_", "").replace("'", "")
    comma, dot = token.rfind(","), token.rfind(".")
    if comma > dot >= 0:
        texts = [token.replace(".", "").replace(",", ".")]
    elif dot > comma >= 0:
        texts = [token.replace(",", "")]
    elif token.count(",") == 1 and re.search(r"^-?[1-9]\d{0,2},\d{3}$", token):
        texts = [token.replace(",", ""), token.replace(",", ".")]
    elif token.count(",") == 1:
        texts = [token.replace(",", ".")]
    else:
        texts = [token.replace(",", "")]
    values = []
    for text in texts:
        try:
            values.append(float(text))
        except ValueError:
            return ()
    return tuple(values)


def resolution(token: str) -> float:
    """Return half a unit in the last printed place.

    Examples
    --------
    >>> resolution("35.20"), resolution("13552"), resolution("35,2")
    (0.005, 0.5, 0.05)
    """
    if "e" not in token and "," not in token and "*" not in token:
        mark = token.rfind(".")
        places = len(token) - mark - 1 if mark >= 0 else 0
        return _HALF_UNITS[places] if places < len(_HALF_UNITS) else 0.5 * 10.0**-places
    mantissa, _, exponent = token.rstrip("*").lower().partition("e")
    mark = max(mantissa.rfind("."), mantissa.rfind(","))
    places = len(mantissa) - mark - 1 if mark >= 0 else 0
    try:
        return 0.5 * 10.0 ** ((int(exponent) if exponent else 0) - places)
    except (ValueError, OverflowError):
        return 0.5
