"""The section ``reliability`` of a training scenario: failures, checkpoints and restarts."""

from __future__ import annotations

from dataclasses import dataclass

from simulator.base.fields import option

__all__ = ["ReliabilitySpec"]


MOST_S = 10 * 365 * 86400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReliabilitySpec:
    """Training over days, with failures.

    The default rate is that of the Llama 3 team: 419 unexpected interruptions in 54 days on
    16,384 GPUs, one in 50,700 GPU hours (arXiv:2407.21783, section 3.3.4).
    """

    duration_s: float = option(
        "time",
        30 * 86400.0,
        doc="Time that is simulated, `30 d`.",
        minimum=3600.0,
        maximum=MOST_S,
    )
    gpu_mtbf_s: float = option(
        "time",
        50_700 * 3600.0,
        doc="Mean time between failures of one GPU and its share of the node.",
        minimum=1.0,
        maximum=1e6 * MOST_S,
    )
    interval_s: float | None = option(
        "time", None, doc="Training between checkpoints; auto: Daly's optimum.", minimum=1.0
    )
    checkpoint_s: float | None = option(
        "time", None, doc="Training stands so long for a checkpoint; auto: size over rate."
    )
    storage_Bps: float = option(
        "rate", 2e9, doc="Rate at which one node writes and reads checkpoints."
    )
    asynchronous: bool = option(
        "flag", False, doc="Training stands only for the copy to host memory, over PCIe."
    )
    restart_s: float = option(
        "time", 300.0, doc="Detection and new processes, before the checkpoint is loaded."
    )
    repair_s: float = option("time", 24 * 3600.0, doc="Until a failed node is back.")
    spares: int = option("count", 0, doc="Nodes that stand by.")
    elastic: bool = option(
        "flag", False, doc="The job goes on with fewer data-parallel replicas; no: it waits."
    )
    runs: int = option("count", 32, doc="Independent histories.", minimum=1, maximum=10_000)
