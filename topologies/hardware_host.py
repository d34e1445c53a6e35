"""Hosts without GPUs: ``cpu-4`` is four processes on four cores, ``cpu-4-2cores`` on two.

Processes take the place of GPUs: each has a link to the CPU that is as fast as one process moves
data.  What all of them move together is limited by the CPU's memory link, whose rate grows with
the cores.
"""

from __future__ import annotations

import re

from simulator.base.errors import Problem, TopologyError
from simulator.base.units import parse_rate, parse_size, parse_time
from simulator.fabric.model import GpuSpec, NodeTemplate, TemplateLink, TemplateVertex
from topologies.hardware_build import link_of, read

__all__ = ["CPU_GENERATION", "host_name", "host_template", "split_host"]

CPU_GENERATION = "cpu"
"""Stands where a GPU's generation is asked for."""

_FAMILY = "families/cpu.yaml"
_NAME = re.compile(r"^cpu[-_ ]?(\d+)(?:[-_ ](\d+)[-_ ]?(?:c|cores?))?$")
_MOST = 256


def split_host(name: str) -> tuple[int, int] | None:
    """Return (processes, cores) of a family name, or None when it is not one.

    Raises
    ------
    TopologyError
        No processes or cores, or more than 256.

    Examples
    --------
    >>> split_host("cpu-4"), split_host("CPU_8_2cores"), split_host("pcie-t4-2")
    ((4, 4), (8, 2), None)
    """
    match = _NAME.match(name.lower())
    if match is None:
        return None
    processes = int(match.group(1))
    cores = int(match.group(2) or processes)
    if not (1 <= processes <= _MOST and 1 <= cores <= _MOST):
        raise TopologyError(
            Problem(
                message=f"{name}: {processes} processes on {cores} cores",
                allowed=f"1 to {_MOST} of each",
            )
        )
    return processes, cores


def host_name(processes: int, cores: int) -> str:
    """Return the canonical name."""
    return f"cpu-{processes}" + ("" if cores == processes else f"-{cores}cores")


def host_template(processes: int, cores: int) -> NodeTemplate:
    """Return the node of a host without GPUs."""
    family = read(_FAMILY)
    process, core, nic, cpu = (family[key] for key in ("process", "core", "nic", "cpu"))
    kind, rate_Bps, latency_s, why = link_of(nic["link"], {})
    gpus = tuple(f"gpu{place}" for place in range(processes))
    links = [
        TemplateLink(
            a=gpu,
            b="cpu0",
            kind="upi",
            bandwidth_Bps=parse_rate(process["rate"]),
            latency_s=parse_time(process["latency"]),
            source=process["source"],
        )
        for gpu in gpus
    ]
    links.append(
        TemplateLink(
            a="nic0",
            b="cpu0",
            kind=kind,
            bandwidth_Bps=rate_Bps,
            latency_s=latency_s,
            source=f"{nic['source']}; {why}",
        )
    )
    names = [*((gpu, "gpu") for gpu in gpus), ("cpu0", "cpu"), ("nic0", "nic")]
    return NodeTemplate(
        name=host_name(processes, cores),
        summary=f"host without GPUs: {processes} processes on {cores} cores",
        gpu=GpuSpec(
            name=cpu["model"],
            generation=CPU_GENERATION,
            memory_bytes=parse_size(cpu["memory"]),
            memory_Bps=parse_rate(core["memory"]),
            peak_flops={key: float(value) * 1e12 for key, value in cpu["peak_tflops"].items()},
            source=cpu["source"],
        ),
        vertices=tuple(TemplateVertex(name=name, kind=kind, numa=0) for name, kind in names),
        links=tuple(links),
        nic_kind=nic["kind"],
        nic_rate_Bps=parse_rate(nic["rate"]),
        nic_latency_s=parse_time(read("links.yaml")["nics"][nic["kind"]]["latency"]),
        cpu_model=cpu["model"],
        cpu_arch=cpu["arch"],
        p2p=False,
        gpudirect=False,
        source=family["source"],
        source_quality="measured",
        cpu_memory_Bps=cores * parse_rate(core["memory"]),
        cores=cores,
    )
