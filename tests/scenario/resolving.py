"""What each file in ``scenarios/`` resolves to, kept as JSON: regression, never theory.

To renew after a change of keys, defaults or presets, and to look at the difference::

    python -m tests.scenario.resolving
"""

from __future__ import annotations

import json
from pathlib import Path

from simulator.scenario import load
from simulator.scenario.dump import describe

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "scenarios").glob("*.yaml"))
KEPT = Path(__file__).parent / "resolved"


def resolved(path: Path) -> dict[str, dict[str, str | None]]:
    """Return every key of the first variant, and what is different in each other one."""
    found: dict[str, dict[str, str | None]] = {}
    first: dict[str, str] = {}
    for variant in load(path).variants:
        values = {key: value for key, value, _ in describe(variant)}
        first = first or values
        found[variant.label or "as written"] = (
            dict(values)
            if first is values
            else {
                key: values.get(key) for key in first | values if values.get(key) != first.get(key)
            }
        )
    return found


def text_of(path: Path) -> str:
    """Return the content of the kept file."""
    return json.dumps(resolved(path), indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    for old in KEPT.glob("*.json"):
        old.unlink()
    for each in FILES:
        (KEPT / f"{each.stem}.json").write_text(text_of(each), "utf-8")
