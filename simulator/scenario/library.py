"""Which library a cluster's GPUs are used with, where the scenario leaves it open."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from simulator.base.errors import CollsimError
from simulator.fabric.model import GpuSpec
from simulator.scenario import plugins
from simulator.scenario.reader import Reader
from simulator.scenario.resolved import Resolved

__all__ = ["AUTO", "resolve_library"]

AUTO = "auto"
_USUAL = {"amd": "rccl", "cpu": "gloo"}
"""Library by vendor; every other one: NCCL."""
_THEIRS = {"nccl": "NVIDIA", "rccl": "AMD"}


def resolve_library(reader: Reader, read: Resolved) -> Resolved:
    """Return the scenario with a cost profile where it says auto, and warn of a foreign one.

    AMD's GPUs are used with RCCL, others with NCCL; processes without GPUs, with gloo.
    """
    if reader.has_problem("node", "groups", "topology"):
        vendors: dict[str, str] = {}
    else:
        vendors = {gpu.vendor: gpu.name for gpu in _gpus(read)}
    asked = read.costs.profile
    if asked != AUTO:
        _warn_foreign(reader, asked, vendors)
        return read
    usual = {_USUAL.get(vendor, "nccl"): name for vendor, name in vendors.items()}
    profile = next(iter(usual), "nccl")
    if len(usual) > 1:
        told = " and ".join(vendors.values())
        profile = "nccl"
        reader.warn(
            "costs.profile",
            f"no library of a vendor joins {told}: nccl's constants stand for it",
            allowed="gloo, mpi or mpich, which do",
        )
    reader.origins["costs.profile"] = f"library of {usual.get(profile, 'the nodes')}"
    return replace(read, costs=replace(read.costs, profile=profile))


def _gpus(read: Resolved) -> Iterator[GpuSpec]:
    """Generate the kinds of GPUs of a cluster whose names are known to be right."""
    for group in read.node_groups:
        try:
            yield plugins.node_template(group.node.preset).gpu
        except CollsimError:  # refused with its place already
            continue
    if read.topology is not None:
        yield from plugins.custom_gpu_models(read.topology)


def _warn_foreign(reader: Reader, profile: str, vendors: dict[str, str]) -> None:
    """Warn of a vendor's library on another vendor's GPUs."""
    theirs = _THEIRS.get(profile)
    foreign = [name for vendor, name in vendors.items() if vendor in ("amd", "nvidia")]
    if theirs is not None and foreign and theirs.lower() not in vendors:
        other = "rccl" if profile == "nccl" else "nccl"
        reader.warn(
            "costs.profile",
            f"{profile} does not run on {' or '.join(foreign)}: it is {theirs}'s library",
            allowed=f"{other}, or nothing said",
        )
