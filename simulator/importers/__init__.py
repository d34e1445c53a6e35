"""Foreign files to our objects: one module per format, registered by name.

`read` of `simulator.importers.nccl_tests` reads the logs of nccl-tests and rccl-tests.
"""

from simulator.importers.measured import (
    Device,
    Log,
    MeasuredRow,
    MeasuredTable,
    RunParameters,
    Timing,
    bus_factor,
    implied_ranks,
)
from simulator.importers.registry import IMPORTERS, importer
from simulator.importers.source import ForeignFileError

__all__ = [
    "IMPORTERS",
    "Device",
    "ForeignFileError",
    "Log",
    "MeasuredRow",
    "MeasuredTable",
    "RunParameters",
    "Timing",
    "bus_factor",
    "implied_ranks",
    "importer",
]
