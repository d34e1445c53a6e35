"""The set-up of a log whose ranks are processes without GPUs (``collsim measure`` with gloo)."""

from __future__ import annotations

import re

from simulator.importers import MeasuredTable
from simulator.verdict.setup import SetUp, refuse_guess

__all__ = ["host_set_up"]

_PROCESSOR = re.compile(r"\b(xeon|epyc|ryzen|core\(tm\)|processor|cpu|graviton|neoverse)\b", re.I)
_CORES = re.compile(r"(\d+) cores?\b")


def host_set_up(table: MeasuredTable) -> SetUp | None:
    """Return hosts without GPUs, with reasons; None where a device line names something else.

    Raises
    ------
    ScenarioError
        The log does not tell the number of ranks, or they do not divide over the nodes.
    """
    if not table.gpus or not all(_PROCESSOR.search(name) for name in table.gpus):
        return None
    if table.n_ranks is None:
        raise refuse_guess(table, "the log does not tell the number of ranks")
    nodes = table.n_nodes or 1
    if table.n_ranks % nodes:
        raise refuse_guess(table, f"{table.n_ranks} ranks do not divide over {nodes} nodes")
    each = table.n_ranks // nodes
    name = table.gpus[0]
    found = _CORES.search(name)
    cores = int(found.group(1)) if found else each
    told = f"{cores} cores" if found else "as many cores as processes, for want of better"
    node = f"cpu-{each}" + ("" if cores >= each else f"-{cores}cores")
    return SetUp(
        words={"node": node, "nodes": str(nodes), "costs": "gloo"},
        reasons=(
            f"{node}: the device lines name a processor, {name!r}, {told}",
            "costs gloo: torch has no other library for tensors on the CPU",
        ),
    )
