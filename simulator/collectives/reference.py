"""``docs/algorithms.md``: every registered algorithm with its formula and its source.

Made by::

    python -c "from simulator.collectives.reference import write; write('docs/algorithms.md')"
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from simulator.collectives.registry import algorithms, collectives, get_algorithm

__all__ = ["markdown", "write"]

_HEAD = """\
# Algorithms

Every algorithm that `algorithm:` in a scenario, or `--algorithm`, may name. This page is made from
the program (`simulator.collectives.reference`); `collsim list` prints the same.

The formulas are the closed forms of the literature, for one call alone on a network that nobody
else uses and on which every connection has the rate B:

* **n** ranks, **N** nodes of **m** ranks, **S** bytes as nccl-tests counts them: the whole buffer
  of all_reduce, broadcast, reduce and send_recv, the sum of all ranks' parts of the others.
* **α** is the time of a message beside its bytes (links, switches, software), **B** the payload
  rate of a connection in bytes/s, **B_in** and **B_out** those inside a node and between nodes.
* **P** is the number of pieces that a pipeline cuts its data into.

The simulator does not use them. It times the steps of each algorithm on the real routes, and the
tests compare both where the formula's assumptions hold. Every algorithm is also executed on
integers by the tests, for 1 to 32 ranks, uneven sizes and any root, and must compute the
collective.
"""


def markdown() -> str:
    """Return the page."""
    return "\n".join([_HEAD, *(line for name in collectives() for line in _section(name))])


def _section(collective: str) -> Iterator[str]:
    yield f"## {collective}\n"
    for name in algorithms(collective):
        entry = get_algorithm(collective, name)
        yield f"**`{name}`**: {entry.summary}.\\"
        yield f"Time: {entry.formula}.\\"
        yield f"Source: {entry.reference}.\n"


def write(path: str | Path) -> None:
    """Write the page to a file."""
    Path(path).write_text(markdown(), "utf-8")
