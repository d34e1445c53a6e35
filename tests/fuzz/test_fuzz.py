"""A minute of every generator with fixed seeds: nothing may fail in a way that is not known."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from tests.fuzz.hunt import CASES, RELATIONS, fault_of_any
from tests.fuzz.judge import fault_of
from tests.fuzz.known import KNOWN, Known, excused
from tests.fuzz.relations import OF_CALLS
from tests.fuzz.runner import Case, Outcome, called, run_case

EXAMPLES = {
    "words": 30,
    "counts": 20,
    "yaml": 30,
    "yaml of scenarios/": 5,
    "json": 20,
    "logs": 6,
    "logs of tests/": 6,
    "unfolded": 4,
}
OF_RELATION = 10


@pytest.mark.parametrize("name", [*CASES, *RELATIONS])
def test_nothing_new_is_found(name: str):
    """Equal seeds give equal cases; ``python -m tests.fuzz`` hunts on."""

    @settings(
        max_examples=EXAMPLES.get(name, OF_RELATION),
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate],  # each case is seconds: a failure is shown as it was met
        suppress_health_check=list(HealthCheck),
    )
    @given(CASES[name] if name in CASES else RELATIONS[name])
    def found(case: Any) -> None:
        fault = fault_of_any(name, case)
        assert not fault or excused(name, fault, case), fault

    found()


@pytest.mark.parametrize("entry", KNOWN, ids=lambda entry: f"{entry.name}: {entry.what}")
def test_what_is_known_still_fails(entry: Known):
    """What is mended has to leave the list."""
    fault = fault_of_any(entry.name, entry.example)
    assert fault, "mended: take it out of tests/fuzz/known.py"
    assert excused(entry.name, fault, entry.example)


# -- the guard and the judge can fail ----------------------------------------------------------


def test_the_guard_ends_what_takes_too_long_or_too_much():
    with pytest.raises(TimeoutError):
        called(_forever, most_s=1.0)
    with pytest.raises(MemoryError):
        called(_greedy)
    assert called(len, "four") == 4


def _forever() -> None:
    while True:
        pass


def _greedy() -> int:
    return len(bytearray(64 * 2**30))


def test_a_command_leaves_code_words_and_document():
    words = ("bench", "--node", "4xH100", "-b", "1M", "-e", "1M", "-q", "--json", "result.json")
    done = run_case(Case(words, {}))
    assert (done.code, done.hung, fault_of(Case(words, {}), done)) == (0, False, "")
    assert done.document["rows"]
    done = run_case(Case(("bench", "--node", "foo"), {}))
    assert (done.code, fault_of(Case((), {}), done)) == (2, "")
    assert "'foo'" in done.err


def _outcome(**changes: Any) -> Outcome:
    usual: dict[str, Any] = dict(code=0, out="", err="", seconds=1.0, hung=False, document=None)
    return Outcome(**(usual | changes))


_ROW = {"collective": "all_reduce", "time_s": 2.0, "bound_s": 1.0, "busbw_Bps": 1e9}


@pytest.mark.parametrize(
    ("outcome", "kind"),
    [
        (_outcome(), ""),
        (_outcome(code=2, err="a.yaml:1: unknown"), ""),
        (_outcome(code=2), "silent"),
        (_outcome(code=70, err="collsim failed by a fault of its own: KeyError"), "traceback"),
        (_outcome(code=1, err="Traceback (most recent call last)\nKeyError: 1"), "traceback"),
        (_outcome(hung=True), "hang"),
        (_outcome(code=-9), "hang"),
        (_outcome(code=120, err="x"), "code"),
        (_outcome(code=2, err="unknown \x1b[31m"), "escape"),
        (_outcome(document={"rows": [_ROW]}), ""),
        (_outcome(document={"rows": [{**_ROW, "bound_s": 3.0}]}), "nonsense"),
        (_outcome(document={"rows": [{**_ROW, "time_s": -1.0}]}), "nonsense"),
        (_outcome(document={"rows": [{**_ROW, "busbw_Bps": None}]}), "nonsense"),
        (_outcome(document={"links": [{"name": "a", "utilisation": 1.1}]}), "nonsense"),
        (_outcome(document={"training": [{"step_s": 0.0}]}), "nonsense"),
        (_outcome(document="{"), "nonsense"),
    ],
)
def test_the_judge(outcome: Outcome, kind: str):
    assert fault_of(Case((), {}), outcome).partition(":")[0] == kind


def test_what_has_to_be_refused():
    case = Case((), {}, must_refuse="it is wrong")
    assert fault_of(case, _outcome()) == "nonsense: accepted although it is wrong"
    assert fault_of(case, _outcome(code=2, err="no")) == ""


@pytest.mark.parametrize("name", sorted(OF_CALLS))
def test_a_relation_can_fail(name: str, monkeypatch: pytest.MonkeyPatch):
    """Times that jump about violate what compares runs; a clock of zero the bounds."""
    from dataclasses import replace
    from itertools import count, cycle

    from tests.fuzz import relations

    usual = relations._run
    scales, wrong_bytes = cycle([1.0, 1e-4, 1e-2, 1e2]), count(1)

    def jumping(scenario, **sections):
        result = usual(scenario, **sections)
        scale = 1e-9 if name.startswith("above") else next(scales)
        rows = tuple(replace(row, time_s=row.time_s * scale) for row in result.rows)
        links = tuple(
            replace(link, wire_bytes=link.wire_bytes + next(wrong_bytes)) for link in result.links
        )
        ranks = result.ranks
        if ranks is not None:
            ranks = replace(ranks, end_s=tuple(end_s * scale for end_s in ranks.end_s))
        return replace(result, rows=rows, links=links, ranks=ranks)

    monkeypatch.setattr(relations, "_run", jumping)
    base = {"node": "4xH100", "nodes": 2, "costs": {"profile": "ideal"}}
    call = {"op": "all_reduce", "sizes": ["1 MiB"], "algorithm": "ring"}
    kind = "two_sites" if name == "above_distance" else "single_switch"
    wrong = [
        OF_CALLS[name]({**base, "fabric": {"kind": kind}, "collective": call}) for _ in range(4)
    ]
    assert any(wrong)


def test_strategies_are_drawn_from(monkeypatch: pytest.MonkeyPatch):
    """Each generator makes different cases, and the counts of a hunt add up."""
    from tests.fuzz import hunt

    monkeypatch.setattr(
        hunt, "fault_of_any", lambda name, case: "code: 5" if name == "json" else ""
    )
    monkeypatch.setattr(hunt, "BATCH", 5)
    told: list[str] = []
    found = hunt.Hunt(seed=1)
    found.run(0.05, only="json", tell=told.append)
    assert found.faults["json: code: #"] == found.cases["json"] > 0
    assert len(told) == 1
