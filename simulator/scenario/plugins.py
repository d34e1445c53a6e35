"""Discovery: the one place where scenarios learn which presets, fabrics and algorithms exist.

Everything is imported when first asked for, so that reading a scenario without a network does
not pay for the builders of networks.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from simulator.base.errors import CollsimError
from simulator.fabric.model import GpuSpec, NodeTemplate

__all__ = [
    "algorithm_names",
    "canonical_algorithm",
    "canonical_collective",
    "canonical_dtype",
    "canonical_preset",
    "check_costs",
    "custom_gpu_models",
    "custom_gpus",
    "element_bytes",
    "fabric_kinds",
    "fabric_options",
    "is_profile_file",
    "library_of",
    "most_channels",
    "node_template",
    "routing_options",
]


def fabric_kinds() -> list[str]:
    """Return the kinds of network fabric, sorted."""
    import topologies

    return sorted(topologies.topologies())


def fabric_options(kind: str) -> type[Any]:
    """Return the option dataclass of a kind of fabric."""
    import topologies

    return topologies.option_type(kind)


@lru_cache(maxsize=16)
def custom_gpus(topology: str) -> int:
    """Return the number of GPUs of an own topology, given as JSON.

    Raises
    ------
    TopologyError
        Everything that is wrong with it, by dotted key.
    """
    import topologies

    return topologies.build_custom(json.loads(topology)).n_gpus


def custom_gpu_models(topology: Mapping[str, Any]) -> list[GpuSpec]:
    """Return the kinds of GPUs of an own topology, but those that it leaves open."""
    from topologies import hardware
    from topologies.hardware_build import gpu_spec

    own = {item["name"]: item.get("gpu") for item in topology.get("templates", ())}
    found: list[GpuSpec] = []
    for name in dict.fromkeys(item["template"] for item in topology.get("repeat", ())):
        try:
            if name not in own:
                found.append(hardware.load(name).gpu)
            elif own[name] is not None:
                found.append(gpu_spec(str(own[name])))
        except CollsimError:  # refused where the topology is built
            continue
    return found


def routing_options() -> type[Any]:
    """Return the option dataclass of routing."""
    from simulator.fabric.options import RoutingOptions

    return RoutingOptions


def canonical_preset(name: str) -> str:
    """Return a node preset's own name; TopologyError with the nearest one if there is none."""
    from topologies import hardware

    return hardware.canonical(name)


@lru_cache(maxsize=256)
def node_template(name: str) -> NodeTemplate:
    """Return a node preset."""
    from topologies import hardware

    return hardware.load(name)


def canonical_collective(name: str) -> str:
    """Return our name of a collective, from any tool's spelling; ScheduleError if unknown."""
    from simulator.collectives import names

    return names.canonical_collective(name)


def canonical_dtype(name: str) -> str:
    """Return nccl-tests' name of an element type, from torch's too; ScheduleError if unknown."""
    from simulator.collectives import names

    return names.canonical_dtype(name)


def element_bytes(dtype: str) -> int:
    """Return the bytes of an element of a canonical type."""
    from simulator.collectives import names

    return names.DTYPE_BYTES[dtype]


def canonical_algorithm(name: str) -> str:
    """Return the registry's name of one of NCCL's algorithms; other names as they are."""
    from simulator.collectives.names import canonical_algorithm

    return canonical_algorithm(name)


def algorithm_names(collective: str) -> list[str]:
    """Return the algorithms of a collective, sorted."""
    from simulator.collectives.registry import algorithms

    return algorithms(collective)


def most_channels(profile: str, version: str | None) -> int | None:
    """Return the channels that the profile's library has at most (MAXCHANNELS); None: no library.

    RCCL's own limit is that of the schema.
    """
    from simulator.costs.nccl.tables import since
    from simulator.costs.nccl.version import NcclVersion
    from simulator.costs.profile import load_profile

    found = load_profile(profile)
    if found.tuning != "nccl" or found.name != "nccl":
        return None
    return int(
        since("tuning", "max_channels", NcclVersion.parse(version or found.version))["count"]
    )


def is_profile_file(name: str) -> bool:
    """Return whether a cost profile is given as a file."""
    from simulator.costs.calibration_file import is_profile_file as told

    return told(name)


def library_of(profile: str) -> str:
    """Return the library of a cost profile; the name itself where there is no such profile."""
    from simulator.costs.profile import load_profile

    try:
        return load_profile(profile).name
    except CollsimError:
        return profile


def check_costs(
    profile: str, overrides: dict[str, str], version: str | None = None
) -> dict[str, CollsimError]:
    """Return what is wrong with a cost profile, its overrides and version, by dotted key.

    The keys ``profile`` and ``version`` stand for the profile's name and the library's version.
    """
    from simulator.costs.profile import load_profile

    try:
        found = load_profile(profile)
    except CollsimError as error:
        return {"profile": error}
    errors: dict[str, CollsimError] = {}
    if version is not None:
        try:
            found.of_version(version)
        except CollsimError as error:
            errors["version"] = error
    for key, text in overrides.items():
        try:
            found.with_overrides({key: text})
        except CollsimError as error:
            errors[f"overrides.{key}"] = error
    return errors
