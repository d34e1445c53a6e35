"""Tables, files, traces and plots of a run.

Plots need matplotlib and stay in `simulator.results.plots`; the progress bar is in
`simulator.results.progress`.
"""

from simulator.results.files import read_json, write_csv, write_json, write_markdown
from simulator.results.layout import Column, Table
from simulator.results.model import (
    FRAME_COLUMNS,
    Device,
    LinkEvent,
    LinkLoad,
    Provenance,
    RankTimes,
    Row,
    RunResult,
    StepSummary,
    TraceEvent,
    Vertex,
)
from simulator.results.nccl_tests import nccl_tests_table
from simulator.results.tables import (
    comparison_table,
    link_kind_table,
    link_table,
    parts_table,
    rank_table,
    step_table,
    summary_table,
)
from simulator.results.trace import kernel_name, write_trace

__all__ = [
    "FRAME_COLUMNS",
    "Column",
    "Device",
    "LinkEvent",
    "LinkLoad",
    "Provenance",
    "RankTimes",
    "Row",
    "RunResult",
    "StepSummary",
    "Table",
    "TraceEvent",
    "Vertex",
    "comparison_table",
    "kernel_name",
    "link_kind_table",
    "link_table",
    "nccl_tests_table",
    "parts_table",
    "rank_table",
    "read_json",
    "step_table",
    "summary_table",
    "write_csv",
    "write_json",
    "write_markdown",
    "write_trace",
]
