"""Logs of nccl-tests, whole and damaged: numbers, columns, rows, heads, letters."""

from __future__ import annotations

import gzip
from pathlib import Path

from hypothesis import strategies as st

from tests.fuzz.runner import Case

__all__ = ["damaged_logs"]

SHIPPED = Path(__file__).parents[1] / "importers" / "data"
NUMBERS = (
    "nan", "inf", "-1", "0", "1e308", "-0.0", "1e-300", "9" * 5000, "9" * 400, "N/A", "", "0x10",
    "٣", "²", "1e999", "--", "1.2.3", "9223372036854775808", "null", "\x1b[31m5\x1b[0m",
    "1,000", "float",
)  # fmt: skip


def _row(size: int, time_us: float) -> str:
    algbw = size / time_us / 1e3
    half = f"{time_us:8.2f}  {algbw:6.2f}  {1.75 * algbw:6.2f}      0"
    return f"{size:12d}  {size // 4:12d}     float     sum      -1  {half}  {half}"


@st.composite
def _log(draw: st.DrawFn) -> str:
    """A log of all_reduce on eight GPUs with times of some plausible machine."""
    alpha_us, rate = draw(st.floats(1, 100)), draw(st.floats(1, 500))
    sizes = [
        2**exponent for exponent in range(draw(st.integers(3, 20)), 31, draw(st.integers(1, 6)))
    ]
    rows = [_row(size, alpha_us + 1.75 * size / rate / 1e3) for size in sizes]
    head = [
        "# nThread 1 nGpus 1 minBytes 8 maxBytes 1073741824 step: 2(factor)",
        "#",
        "# Using devices",
    ]
    head += [
        f"#  Rank  {rank} Group  0 Pid  {100 + rank} on  host0 device  {rank} [0x{rank:02x}] H100"
        for rank in range(8)
    ]
    columns = "#       size         count      type   redop    root     time   algbw   busbw #wrong"
    return "\n".join(
        [
            "# Collective test starting: all_reduce_perf",
            *head,
            columns,
            *rows,
            "# Out of bounds values : 0 OK",
            "",
        ]
    )


def _damaged(draw: st.DrawFn, text: str) -> str:
    lines = text.split("\n")
    table = [i for i, line in enumerate(lines) if line[:1] == " " and line.split()[:1]] or [0]
    here = draw(st.sampled_from(table))
    kind = draw(
        st.sampled_from(
            ["number"] * 4
            + ["drop", "swap", "cut", "tail", "column", "scale", "letter", "twice", "head"]
        )
    )
    parts = lines[here].split()
    place = draw(st.integers(0, len(text)))
    if kind == "number" and parts:
        parts[draw(st.integers(0, len(parts) - 1))] = draw(st.sampled_from(NUMBERS))
        lines[here] = "  ".join(["", *parts])
    elif kind == "drop":
        del lines[here]
    elif kind == "swap":
        other = draw(st.sampled_from(table))
        lines[here], lines[other] = lines[other], lines[here]
    elif kind == "cut":
        return text[:place]
    elif kind == "tail":
        return text[place:]
    elif kind == "column":
        gone = draw(st.integers(0, 12))
        for i in table:
            parts = lines[i].split()
            lines[i] = "  ".join(["", *parts[:gone], *parts[gone + 1 :]])
    elif kind == "scale":
        factor = draw(st.sampled_from(["0", "1e-9", "1e9", "-1", "40", "0.01"]))
        for i in table:
            parts = lines[i].split()
            for column in (5, 9):
                if column < len(parts) and parts[column].replace(".", "").isdigit():
                    parts[column] = repr(float(parts[column]) * float(factor))
            lines[i] = "  ".join(["", *parts])
    elif kind == "letter":
        letter = draw(
            st.sampled_from(["\0", "\x1b[1m", "\x85", "\u2028", "\r", "\ufeff", "\t", "é"])
        )
        return text[:place] + letter + text[place:]
    elif kind == "twice":
        return text + text
    elif kind == "head":
        return "\n".join(line for line in lines if not line.startswith("#"))
    return "\n".join(lines)


@st.composite
def damaged_logs(draw: st.DrawFn, *, shipped: bool = False) -> Case:
    """``collsim compare`` or ``check`` of a log with up to three damages."""
    sources = [_log()]
    if shipped:
        files = sorted(SHIPPED.glob("*.log"))
        sources.append(
            st.sampled_from(files).map(lambda path: path.read_text(errors="replace")[:30_000])
        )
    text = draw(st.one_of(sources))
    for _ in range(draw(st.integers(0, 3))):
        text = _damaged(draw, text)
    data = text.encode("utf-8", "surrogatepass")
    packed = draw(st.integers(0, 9))
    if packed == 0:
        data = gzip.compress(data)[: draw(st.integers(1, 5000))]
    command = draw(st.sampled_from(["compare", "compare", "check"]))
    words = [command, "a.log", "-q", "--json", "result.json"]
    words += draw(
        st.sampled_from([[], ["--node", "dgx-h100"], ["--node", "dgx-h100", "--nodes", "2"]])
    )
    words += ["--brief"] if command == "check" else []
    return Case(tuple(words), {"a.log": data})
