"""NCCL's choice of algorithm and protocol: the argmin of its own cost table.

The table is what NCCL believes.  Measured all-reduce times on one NVSwitch node are 5–10 % off on
the plateau, but 20–60 % longer below 64 MiB, and up to twice as long between nodes; so the choice
is taken from here and the time is not.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from simulator.base.errors import Problem, ScenarioError, unknown_name
from simulator.costs.nccl.communicator import TuningInput
from simulator.costs.nccl.enabling import why_not
from simulator.costs.nccl.graph import ALGORITHMS, COLLECTIVES, PROTOCOLS
from simulator.costs.nccl.model import bandwidth_GBps, floor_log2, latency_us
from simulator.costs.nccl.tables import read_table, since

__all__ = ["Choice", "TuningEntry", "choose", "predict_table"]

_BATCH = 9
"""Collectives a kernel takes at once in algorithms other than the ring (NCCL 2.21 device.h)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TuningEntry:
    """What NCCL believes of one algorithm and protocol."""

    time_s: float
    """Expected time; infinite when the pair cannot be chosen for want of bandwidth."""
    latency_s: float
    bandwidth_Bps: float
    """Algorithm bandwidth: size over time, without the latency."""
    available: bool
    why_not: str | None
    """Why the pair cannot be chosen; None when it can."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """NCCL's choice and the table it comes from."""

    algorithm: str
    protocol: str
    entry: TuningEntry
    table: dict[tuple[str, str], TuningEntry]


def _check(collective: str, size_bytes: int) -> None:
    if collective not in COLLECTIVES:
        raise ScenarioError(unknown_name("collective of the tuning model", collective, COLLECTIVES))
    if size_bytes < 0:
        raise ScenarioError(f"size {size_bytes} B is negative")


def _entry(
    inp: TuningInput,
    collective: str,
    algorithm: str,
    protocol: str,
    size_bytes: int,
    n_queued: int,
    datatype: str,
    reduction: str,
) -> TuningEntry:
    reason = why_not(inp, collective, algorithm, protocol, datatype=datatype, reduction=reduction)
    bandwidth, latency = 0.0, 0.0
    if inp.graph(algorithm) is not None and not _never(inp, collective, algorithm, protocol):
        bandwidth = bandwidth_GBps(inp, collective, algorithm, protocol)
        bandwidth *= _tree_correction(inp, collective, algorithm, protocol, size_bytes)
        latency = latency_us(inp, collective, algorithm, protocol)
        latency *= _plateau(inp, collective, algorithm, protocol, size_bytes)
    if bandwidth <= 0:
        return TuningEntry(
            time_s=float("inf"),
            latency_s=latency * 1e-6,
            bandwidth_Bps=0.0,
            available=False,
            why_not=reason or "no bandwidth in the model",
        )
    waits = n_queued if algorithm == "ring" else -(-n_queued // _BATCH)
    time_us = latency * waits + size_bytes / (1000 * bandwidth)
    if datatype.startswith("float8") and algorithm == "ring" and inp.n_ranks > 8:
        # Long chains of additions lose too much precision in 8 bits (since 2.24).
        time_us *= 1024 if inp.version.since(2, 24) else 1
    return TuningEntry(
        time_s=time_us * 1e-6,
        latency_s=latency * 1e-6,
        bandwidth_Bps=bandwidth * 1e9,
        available=reason is None,
        why_not=reason,
    )


def _never(inp: TuningInput, collective: str, algorithm: str, protocol: str) -> bool:
    """Return whether the pair has no formula."""
    if algorithm == "nvls_tree" and inp.n_nodes == 1:
        return True
    if protocol != "Simple" and algorithm not in ("ring", "tree"):
        return True
    if collective == "all_reduce":
        return algorithm == "pat"
    if collective in ("broadcast", "reduce"):
        return algorithm != "ring"
    return algorithm in ("tree", "collnet_chain", "nvls_tree")


def _tree_correction(
    inp: TuningInput, collective: str, algorithm: str, protocol: str, size_bytes: int
) -> float:
    """Trees reach less than their bandwidth at medium sizes."""
    index = floor_log2(size_bytes >> 6)
    if size_bytes < 64 and inp.version.since(2, 23):
        return 1.0
    factors = read_table("tuning")["tree_correction"][protocol]
    if algorithm == "tree" and collective == "all_reduce" and index < len(factors) - 1:
        return float(factors[index])
    newer = inp.version.since(2, 29) and inp.min_sm >= 100 and inp.cpu.startswith("x86")
    if algorithm == "nvls_tree" and newer and index < len(factors):
        return float(factors[index])
    return 1.0


def _plateau(
    inp: TuningInput, collective: str, algorithm: str, protocol: str, size_bytes: int
) -> float:
    """Between nodes a Simple ring pays more latency once every channel has data."""
    if algorithm != "ring" or protocol != "Simple" or collective != "all_reduce":
        return 1.0
    if inp.n_nodes == 1:
        return 1.0
    if inp.version.since(2, 13):
        reached = size_bytes // (inp.channels * inp.n_ranks) >= 64
    else:
        reached = size_bytes >= inp.n_ranks / 16 * 65536
    if not reached:
        return 1.0
    return float(since("tuning", "ring_plateau", inp.version)["new" if inp.min_sm >= 80 else "old"])


def predict_table(
    inp: TuningInput,
    collective: str,
    size_bytes: int,
    *,
    n_queued: int = 1,
    datatype: str = "float32",
    reduction: str = "sum",
) -> dict[tuple[str, str], TuningEntry]:
    """Return NCCL's cost table of one call by (algorithm, protocol).

    Parameters
    ----------
    inp
        The communicator, with at least two ranks.
    collective
        One of `COLLECTIVES`.
    size_bytes
        nccl-tests' S: total buffer of all-gather and reduce-scatter.
    n_queued
        Calls that wait in the same group.
    datatype, reduction
        PyTorch's names; they decide about NVLS and, for ``float8…``, about the ring.

    Returns
    -------
    dict
        Every pair of `ALGORITHMS` and `PROTOCOLS`, available or not, with the reason.

    Raises
    ------
    ScenarioError
        Unknown collective or negative size.
    """
    _check(collective, size_bytes)
    table = {
        (algorithm, protocol): _entry(
            inp, collective, algorithm, protocol, size_bytes, n_queued, datatype, reduction
        )
        for algorithm in ALGORITHMS
        for protocol in PROTOCOLS
    }
    if any(entry.available for entry in table.values()) or inp.version.since(2, 24):
        return table
    # Before 2.24 a ring is kept when the environment leaves nothing.
    for protocol in PROTOCOLS:
        entry = table["ring", protocol]
        table["ring", protocol] = replace(entry, available=entry.bandwidth_Bps > 0, why_not=None)
    return table


def choose(
    inp: TuningInput,
    collective: str,
    size_bytes: int,
    *,
    n_queued: int = 1,
    datatype: str = "float32",
    reduction: str = "sum",
    without: Collection[str] = (),
) -> Choice:
    """Return the pair NCCL runs: the smallest time of its table, the first one of equals.

    Parameters
    ----------
    inp, collective, size_bytes, n_queued, datatype, reduction
        As in `predict_table`.
    without
        Algorithms that may not be taken, whatever NCCL would do.

    Raises
    ------
    ScenarioError
        Unknown collective, negative size, or (since 2.24) nothing left by ``NCCL_ALGO`` and
        ``NCCL_PROTO``.
    """
    _check(collective, size_bytes)
    if inp.n_ranks == 1:
        entry = TuningEntry(
            time_s=0.0, latency_s=0.0, bandwidth_Bps=float("inf"), available=True, why_not=None
        )
        return Choice(
            algorithm="ring", protocol="Simple", entry=entry, table={("ring", "Simple"): entry}
        )
    table = predict_table(
        inp, collective, size_bytes, n_queued=n_queued, datatype=datatype, reduction=reduction
    )
    usable = {
        pair: entry for pair, entry in table.items() if entry.available and pair[0] not in without
    }
    if not usable:
        reasons = sorted({entry.why_not or "" for entry in table.values()})
        raise ScenarioError(
            Problem(
                message=f"no algorithm and protocol is left for {collective}",
                key="NCCL_ALGO",
                allowed="a combination that exists here; the rest is out because of: "
                + "; ".join(reasons),
            )
        )
    (algorithm, protocol), entry = min(usable.items(), key=lambda item: item[1].time_s)
    return Choice(algorithm=algorithm, protocol=protocol, entry=entry, table=table)
