"""What measurements of single links say about the faults: which they name, which they rule out.

A link that reaches its preset's rate rules out the faults that would slow it; one that does not
names them.  A test of one port or pair cannot rule out a fault of another one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from simulator.base.units import format_rate, format_time
from simulator.fabric.model import NodeTemplate
from simulator.importers.link_rates import LinkRate
from simulator.verdict.setup import SetUp

__all__ = ["with_links"]

GOOD, BAD = 0.80, 0.65
"""Shares of the preset's rate from which on a link is as it should be, and below which it is not.
perftest reaches 0.95 of an InfiniBand port; nvbandwidth 0.80 to 0.90 of a PCIe slot."""
EVEN, UNEVEN = 0.85, 0.65
"""Worst over best pair of GPUs."""
LATE_S = 5e-6
"""One way between two ports through a few switches takes 1 to 3 µs."""

SLOW_PORT = ("nic_shared", "slow_nic", "ecmp_collision", "pcie_generation")
SLOW_SLOT = ("pcie_half_width", "pcie_generation", "slow_host_memory")


def with_links(set_up: SetUp, template: NodeTemplate, rates: Sequence[LinkRate]) -> SetUp:
    """Return the set-up with faults named or ruled out by measured links.

    Parameters
    ----------
    set_up
        The machine as it should be.
    template
        Its node.
    rates
        Of `simulator.importers.link_rates.read`.
    """
    said: dict[str, str] = dict(set_up.named)
    out: set[str] = set(set_up.excluded)
    for rate in rates:
        bad, cleared, words = _finding(rate, template)
        said |= dict.fromkeys(bad, words)
        out |= {*cleared}
    return replace(
        set_up,
        named=said,
        excluded=frozenset(out - {*said}),
        evidence=tuple(dict.fromkeys((*set_up.evidence, *said.values()))),
    )


def _finding(
    rate: LinkRate, template: NodeTemplate
) -> tuple[tuple[str, ...], tuple[str, ...], str]:
    """Return (faults named, faults ruled out, in words)."""
    if rate.kind == "latency":
        words = f"{rate.test}: {format_time(rate.best, 3)}"
        if rate.best > LATE_S:
            return ("network_latency",), (), words
        return (), ("network_latency",), words
    if rate.kind == "gpu":
        share = rate.worst / rate.best
        words = f"{rate.test}: {format_rate(rate.worst)} to {format_rate(rate.best)} by pair"
        if share < UNEVEN:
            return ("slow_gpu",), (), words
        return (), ("slow_gpu",) if share > EVEN else (), words
    top_Bps = template.nic_rate_Bps if rate.kind == "nic" else _slot_Bps(template)
    if top_Bps <= 0:
        return (), (), ""
    share = (rate.best if rate.kind == "nic" else rate.worst) / top_Bps
    words = f"{rate.test}: {format_rate(share * top_Bps)}, {100 * share:.0f} % of the link's rate"
    faults = SLOW_PORT if rate.kind == "nic" else SLOW_SLOT
    if share < BAD:
        return faults, (), words
    # One port that is well says that not all are slow, and nothing of another one.
    cleared = ("nic_shared",) if rate.kind == "nic" else faults
    return (), cleared if share > GOOD else (), words


def _slot_Bps(template: NodeTemplate) -> float:
    rates = [
        link.bandwidth_Bps
        for link in template.links
        if link.kind == "pcie" and ("gpu" in link.a or "gpu" in link.b)
    ]
    return min(rates, default=0.0)
