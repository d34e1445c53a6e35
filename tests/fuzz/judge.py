"""What is wrong with an outcome, whatever the input was; and with one whose input was wrong."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from tests.fuzz.runner import Case, Outcome

__all__ = ["fault_of"]

CODES = {0, 1, 2, 3, 4}
"""Done, cannot finish, wrong input, and the two of `check`."""
MOST_S = 1e9
"""No result is longer: thirty years."""
MOST_BPS = 1e18


def fault_of(case: Case, outcome: Outcome) -> str:
    """Return a fault as ``kind: what``; empty: there is none."""
    told = outcome.err.strip() or outcome.out.strip()
    last = told.splitlines()[-1][:200] if told else ""
    if outcome.hung:
        return f"hang: {outcome.seconds:.0f} s"
    if "Traceback (most recent call last)" in outcome.err + outcome.out:
        return f"traceback: {last}"
    if outcome.code == 70:
        return f"traceback: {outcome.err.strip().splitlines()[0][:200]}"
    if outcome.code < 0:
        return f"hang: signal {-outcome.code}"
    if outcome.code not in CODES:
        return f"code: {outcome.code} {last}"
    if outcome.code and not told:
        return f"silent: exit code {outcome.code} without a word"
    if "\x1b" in outcome.err + outcome.out:
        return "escape: a control code of the input reaches the terminal"
    for word in ("RuntimeWarning", "DeprecationWarning"):
        if word in outcome.err:
            return f"warning: {word}"
    if outcome.code == 0 and case.must_refuse:
        return f"nonsense: accepted although {case.must_refuse}"
    nonsense = next(_nonsense(outcome.document), "") if outcome.code == 0 else ""
    return f"nonsense: {nonsense}" if nonsense else ""


def _nonsense(document: Any) -> Iterator[str]:
    """Generate what cannot be true of a result."""
    if document is None:
        return
    if not isinstance(document, Mapping):
        yield "the file is not JSON"
        return
    yield from _numbers("", document)
    for row in document.get("rows", ()):
        if not isinstance(row, Mapping) or "time_s" not in row:
            return  # of `compare` and `check`
        time_s, bound_s = row["time_s"], row.get("bound_s")
        if time_s is None or not 0 <= time_s < MOST_S:
            yield f"a call of {time_s} s"
        elif bound_s is not None and time_s < bound_s * (1 - 1e-9):
            yield f"{row['collective']}: {time_s} s, below the bound of {bound_s} s"
        if row["busbw_Bps"] is None or not 0 <= row["busbw_Bps"] < MOST_BPS:
            yield f"a bandwidth of {row['busbw_Bps']} B/s"
    for step in (*document.get("training", ()), *document.get("steps", ())):
        time_s = step.get("step_s", step.get("time_s"))
        if time_s is None or not 0 < time_s < MOST_S:
            yield f"a step of {time_s} s"
    for link in document.get("links", ()):
        share = link.get("utilisation", 0)
        if share is None or not 0 <= share <= 1 + 1e-6:
            yield f"{link['name']} is used by {share}"


def _numbers(key: str, value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        for name, item in value.items():
            yield from _numbers(str(name), item)
    elif isinstance(value, list):
        for item in value:
            yield from _numbers(key, item)
    elif (isinstance(value, float) and not math.isfinite(value)) or (
        isinstance(value, int | float) and value < 0 and key.endswith(("_s", "_bytes", "_Bps"))
    ):
        yield f"{key} is {value}"
