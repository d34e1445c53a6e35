"""A hunt: generate cases by a seed for some time, and collect faults instead of stopping at one."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from tests.fuzz.json_files import configurations
from tests.fuzz.judge import fault_of
from tests.fuzz.known import excused
from tests.fuzz.logs import damaged_logs
from tests.fuzz.relations import OF_CALLS, OF_STEPS, judged
from tests.fuzz.runner import Case, called, run_case
from tests.fuzz.scenarios import Sections, calls, steps
from tests.fuzz.words import counts, lines
from tests.fuzz.yaml_files import scenario_files

__all__ = ["CASES", "RELATIONS", "Found", "Hunt", "fault_of_any"]

CASES: dict[str, st.SearchStrategy[Case]] = {
    "words": lines(),
    "counts": counts(),
    "yaml": scenario_files(),
    "yaml of scenarios/": scenario_files(shipped=True),
    "json": configurations(),
    "logs": damaged_logs(),
    "logs of tests/": damaged_logs(shipped=True),
}
RELATIONS: dict[str, st.SearchStrategy[Sections]] = {
    **dict.fromkeys(OF_CALLS, calls()),
    **dict.fromkeys(OF_STEPS, steps()),
}
BATCH = 20
"""Cases of a generator before the next has its turn."""


@dataclass(frozen=True)
class Found:
    """A fault, with how often its like was met."""

    generator: str
    fault: str
    case: Case | Sections

    @property
    def kind(self) -> str:
        """The kind of the fault; of a relation the relation."""
        return self.fault.partition(":")[0]

    @property
    def like(self) -> str:
        """Faults of one like are one finding: numbers and quoted words do not count."""
        text = re.sub(r"'[^']*'|\"[^\"]*\"", "…", self.fault)
        place = re.search(r"\(([\w/]+\.py:\d+)\)", self.fault)
        return f"{self.generator}: {place[1] if place else re.sub(r'[0-9.]+', '#', text)}"

    def keep(self, folder: Path) -> None:
        """Write what reproduces it."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "fault.txt").write_text(f"{self.generator}\n{self.fault}\n")
        if isinstance(self.case, Case):
            self.case.keep(folder)
            return
        text = yaml.safe_dump({"schema_version": 1, **self.case}, sort_keys=False)
        (folder / "scenario.yaml").write_text(text)
        (folder / "command.sh").write_text(
            'python -c "import yaml; from tests.fuzz.relations import judged; '
            "s = yaml.safe_load(open('scenario.yaml')); s.pop('schema_version'); "
            f"print(judged('{self.generator}', s))\"\n"
        )


@dataclass
class Hunt:
    """Cases and faults of one seed."""

    seed: int
    cases: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    first: dict[str, Found] = field(default_factory=dict)
    known: int = 0

    def run(self, minutes: float, *, only: str = "", tell: Callable[[str], None] = print) -> None:
        """Hunt for so long, generators in turn, each batch with a seed of its own."""
        end = time.monotonic() + 60 * minutes
        names = [name for name in (*CASES, *RELATIONS) if only in name]
        turn = 0
        while names and time.monotonic() < end:
            for number, name in enumerate(names):
                if time.monotonic() > end:
                    break
                batch = (self.seed * 1_000_003 + turn) * 1_009 + number
                self._batch(name, batch, end, tell)
            turn += 1

    def _batch(self, name: str, batch: int, end: float, tell: Callable[[str], None]) -> None:
        @seed(batch)
        @settings(
            max_examples=BATCH,
            phases=[Phase.generate],
            database=None,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        )
        @given(CASES[name] if name in CASES else RELATIONS[name])
        def hunt(case: Any) -> None:
            if time.monotonic() < end:
                self._one(name, case, tell)

        hunt()

    def _one(self, name: str, case: Any, tell: Callable[[str], None]) -> None:
        self.cases[name] += 1
        fault = fault_of_any(name, case)
        if fault and excused(name, fault, case):
            self.known += 1
            return
        if not fault:
            return
        found = Found(name, fault, case)
        self.faults[found.like] += 1
        if found.like not in self.first:
            self.first[found.like] = found
            tell(
                f"{name}: {fault}\n    {case if name in RELATIONS else ' '.join(case.words)[:300]}"
            )


def fault_of_any(name: str, case: Any) -> str:
    """Return the fault of a case of this generator, or of a scenario by this relation."""
    if name in CASES:
        return fault_of(case, run_case(case))
    return _relation_fault(name, case)


def _relation_fault(name: str, scenario: Sections) -> str:
    try:
        wrong = called(judged, name, scenario)
    except TimeoutError as error:
        return f"hang: {error}"
    except MemoryError:
        return "hang: out of memory"
    except Exception as error:
        return f"traceback: {type(error).__name__}: {error}"
    return f"{name}: {wrong}" if wrong else ""
