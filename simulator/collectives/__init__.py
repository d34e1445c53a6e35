"""Collectives: what they must achieve, and the schedules that achieve it.

Importing the package registers every algorithm; one file per family.
"""

from simulator.collectives import (  # noqa: F401, imported for their registrations
    barrier,
    binomial,
    bruck,
    collnet,
    direct,
    halving_doubling,
    hierarchical,
    naive,
    nvls,
    nvls_sharp,
    pat,
    ring,
    scatter_gather,
    tree,
)
from simulator.collectives.call import Call, Layout
from simulator.collectives.registry import (
    Algorithm,
    algorithm,
    algorithms,
    collectives,
    get_algorithm,
    make_schedule,
)
from simulator.collectives.schedule import ChunkMap, Schedule, Stage, Step, VirtualRank

__all__ = [
    "Algorithm",
    "Call",
    "ChunkMap",
    "Layout",
    "Schedule",
    "Stage",
    "Step",
    "VirtualRank",
    "algorithm",
    "algorithms",
    "collectives",
    "get_algorithm",
    "make_schedule",
]
