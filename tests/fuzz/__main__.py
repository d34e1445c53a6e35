"""``python -m tests.fuzz --minutes 30``: hunt for a night, and write what reproduces faults."""

from __future__ import annotations

import argparse
import random
import sys
from pathlib import Path

from tests.fuzz.hunt import CASES, RELATIONS, Hunt


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def main() -> int:
    """Hunt, print counts, and return 1 if a fault was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, help="default: by chance, and printed")
    parser.add_argument("--only", default="", help="generators or relations with this in the name")
    parser.add_argument(
        "--out", type=Path, default=Path("fuzz-found"), help="what reproduces faults"
    )
    given = parser.parse_args()
    chosen = random.randrange(10**6) if given.seed is None else given.seed
    if not any(given.only in name for name in (*CASES, *RELATIONS)):
        parser.error(f"--only {given.only}: known are {', '.join((*CASES, *RELATIONS))}")
    _say(f"seed {chosen}")
    hunt = Hunt(seed=chosen)
    try:
        hunt.run(given.minutes, only=given.only, tell=_say)
    except KeyboardInterrupt:
        _say("interrupted")
    kinds: dict[str, int] = {}
    for like, times in hunt.faults.items():
        kind = hunt.first[like].kind
        kinds[kind] = kinds.get(kind, 0) + times
    _say(
        f"\n{sum(hunt.cases.values())} cases: "
        + ", ".join(f"{k} {n}" for k, n in hunt.cases.items())
    )
    _say(f"{hunt.known} known failures (tests/fuzz/known.py)")
    for kind in ("traceback", "hang", "nonsense"):
        _say(f"{kind}: {kinds.pop(kind, 0)}")
    for kind, times in kinds.items():
        _say(f"{kind}: {times}")
    for number, (like, found) in enumerate(hunt.first.items(), start=1):
        folder = given.out / f"{chosen}-{number}"
        found.keep(folder)
        _say(f"{hunt.faults[like]:4d} x {found.fault[:160]}\n       {folder}")
    return 1 if hunt.faults else 0


if __name__ == "__main__":
    sys.exit(main())
