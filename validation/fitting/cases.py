"""Published tables as cases: which cluster, which call, which time."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from importlib import resources
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.base.errors import CalibrationError, Problem
from simulator.compose.build import build_fabric
from simulator.compose.cluster import Cluster
from simulator.costs.profile import CostProfile, load_profile
from simulator.fabric.fabric import Fabric
from simulator.fabric.options import RoutingOptions
from simulator.fabric.routing import Router
from simulator.scenario.resolve import from_words
from validation.published import set_ups, vtrain
from validation.records import PublishedTable, SetUp

__all__ = ["Case", "Mapped", "cases", "cluster_for", "mapping", "why_not_fitted"]

FloatArray = NDArray[np.float64]

_MOST_SIZES = 18
"""Rows kept of a table, evenly in log size: a table of 1,024 sizes is no more than one of 24."""
_LEAST_ROWS = 1
_DEFAULT_VERSION = "2.21.5"
"""Assumed where a source does not name the version."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mapped:
    """What stands for a set-up."""

    machine: str
    node: str
    profile: str
    skip: str
    routing: tuple[tuple[str, str], ...]
    gpus_per_process: tuple[tuple[str, int], ...]
    """(words in a table's variant, GPUs for which one process launched)."""
    leave_out: tuple[tuple[str, str], ...]
    """(words in a table's variant, why such tables are not used)."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Case:
    """One table, rows of equal call merged by their median."""

    slug: str
    machine: str
    healthy: bool
    node: str
    gpus_per_node: int
    n_nodes: int
    routing: tuple[tuple[str, str], ...]
    profile: str
    version: str
    environment: tuple[tuple[str, str], ...]
    collective: str
    root: int
    dtype: str
    algorithm: str | None
    protocol: str | None
    gpus_per_process: int = 1
    size_bytes: NDArray[np.int64]
    time_s: FloatArray

    @property
    def n_ranks(self) -> int:
        """Ranks of the call."""
        return self.gpus_per_node * self.n_nodes

    @property
    def name(self) -> str:
        """Set-up, collective, ranks."""
        return f"{self.slug} {self.collective} n={self.n_ranks}"


@functools.cache
def mapping() -> Mapping[str, Mapped]:
    """Return the contents of ``setups.yaml`` by set-up."""
    import yaml

    text = (resources.files("validation") / "setups.yaml").read_text("utf-8")
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    document = yaml.load(text, Loader=loader)
    found: dict[str, Mapped] = {}
    for slug, entry in document["setups"].items():
        found[slug] = Mapped(
            machine=entry["machine"],
            node=str(entry.get("node", "")),
            profile=entry.get("profile", "nccl"),
            skip=entry.get("skip", ""),
            routing=tuple(sorted(entry.get("routing", {}).items())),
            gpus_per_process=_together(entry.get("gpus_per_process", 1)),
            leave_out=tuple(
                (str(words), str(reason)) for words, reason in entry.get("leave_out", {}).items()
            ),
        )
    return found


def why_not_fitted(set_up: SetUp) -> str:
    """Return why a set-up must not be fitted; empty when it may be."""
    mapped = mapping().get(set_up.slug)
    if set_up.health != "healthy":
        return f"sick: {set_up.health_cause}"
    if mapped is None:
        return "no preset stands for it in setups.yaml"
    if mapped.skip:
        return mapped.skip
    if not any(table.usable().any() for table in set_up.tables):
        return "no usable row"
    return ""


def cases(*, healthy_only: bool = True) -> list[Case]:
    """Return all cases of the committed measurements."""
    found: list[Case] = []
    for set_up in (*set_ups(), *vtrain()):
        mapped = mapping().get(set_up.slug)
        if mapped is None or mapped.skip:
            continue
        if healthy_only and why_not_fitted(set_up):
            continue
        found += _cases_of(set_up, mapped)
    return found


def _cases_of(set_up: SetUp, mapped: Mapped) -> Iterator[Case]:
    groups: dict[tuple[Any, ...], list[PublishedTable]] = {}
    for table in set_up.tables:
        words = f" {table.variant} {table.hardware_note} {table.run}"
        if any(part in words for part, _ in mapped.leave_out):
            continue
        if table.n_ranks is None or table.n_nodes is None or table.n_ranks % table.n_nodes:
            continue
        environment = {**set_up.software.environment, **table.environment}
        version = _version(set_up, table)
        key = (
            table.collective,
            table.n_ranks,
            table.n_nodes,
            tuple(sorted(environment.items())),
            table.algorithm,
            table.protocol,
            version,
            table.root or 0,
            table.dtype,
            next((n for part, n in mapped.gpus_per_process if part in words), 1),
        )
        groups.setdefault(key, []).append(table)
    for key, tables in groups.items():
        sizes, times = _merged(tables)
        if len(sizes) < _LEAST_ROWS:
            continue
        collective, n_ranks, n_nodes, variables, algorithm, protocol, version = key[:7]
        root, dtype, together = key[7:]
        yield Case(
            slug=set_up.slug,
            machine=mapped.machine,
            healthy=set_up.health == "healthy",
            node=_without_p2p(mapped.node, dict(variables)),
            gpus_per_node=n_ranks // n_nodes,
            n_nodes=n_nodes,
            routing=mapped.routing,
            profile=mapped.profile,
            version=version or _default_version(set_up, mapped.node),
            environment=tuple((k, v) for k, v in variables if k in _USED),
            collective=collective,
            root=root if 0 <= root < n_ranks else 0,
            dtype=dtype,
            algorithm=algorithm,
            protocol=protocol,
            gpus_per_process=together,
            size_bytes=sizes,
            time_s=times,
        )


def _together(entry: Any) -> tuple[tuple[str, int], ...]:
    """Return (words, GPUs per process) pairs; a number alone holds for all tables."""
    if isinstance(entry, dict):
        return tuple((str(words), int(count)) for words, count in entry.items())
    return (("", int(entry)),)


def _without_p2p(node: str, environment: Mapping[str, str]) -> str:
    off = environment.get("NCCL_P2P_DISABLE") == "1" and "nop2p" not in node
    return f"{node}+nop2p" if off else node


_USED = (
    "NCCL_ALGO",
    "NCCL_PROTO",
    "NCCL_P2P_DISABLE",
    "NCCL_P2P_LEVEL",
    "NCCL_BUFFSIZE",
    "NCCL_SHM_DISABLE",
    "NCCL_NET_GDR_LEVEL",
    "NCCL_NVLS_ENABLE",
    "NCCL_CROSS_NIC",
)


def _version(set_up: SetUp, table: PublishedTable) -> str:
    import re

    for text in (table.variant, set_up.software.nccl):
        if "RCCL" in text:
            continue
        match = re.search(r"(?:^|nccl )(2\.\d+(?:\.\d+)?)", text)
        if match:
            return match.group(1)
    return ""


def _default_version(set_up: SetUp, node: str) -> str:
    """Return a version of the time and of the GPU, where the source names none."""
    if node.startswith(("gb", "oci-gb", "oci-b", "gcp-a4", "BM.GPU.B")):
        return "2.27.3"
    old = set_up.date[:4].isdigit() and int(set_up.date[:4]) < 2022
    return "2.12" if old else _DEFAULT_VERSION


def _merged(tables: list[PublishedTable]) -> tuple[NDArray[np.int64], FloatArray]:
    size = np.concatenate([table.size_bytes[table.usable()] for table in tables])
    time = np.concatenate([table.time_s[table.usable()] for table in tables])
    sizes = np.unique(size)
    if len(sizes) > _MOST_SIZES:
        wanted = np.geomspace(sizes[0], sizes[-1], _MOST_SIZES)
        picked = np.abs(np.log(sizes[:, None] / wanted[None, :])).argmin(axis=0)
        sizes = sizes[np.unique(picked)]
    times = np.array([np.median(time[size == s]) for s in sizes])
    return sizes.astype(np.int64), times


@functools.cache
def _fabric(node: str, gpus_per_node: int, n_nodes: int) -> Fabric:
    words = {
        "node": node,
        "nodes": str(n_nodes),
        "gpus_per_node": str(gpus_per_node),
        "collective.op": "all_reduce",
        "collective.size": "1M",
    }
    return build_fabric(from_words(words).variants[0])


@functools.cache
def _router(
    node: str, gpus_per_node: int, n_nodes: int, routing: tuple[tuple[str, str], ...]
) -> Router:
    options = RoutingOptions(**dict(routing))  # type: ignore[arg-type]
    return Router(_fabric(node, gpus_per_node, n_nodes), options)


def cluster_for(case: Case, profile: CostProfile | None = None) -> Cluster:
    """Return the cluster of a case, with the profile's version and environment set to its own.

    Raises
    ------
    CalibrationError
        The preset has fewer GPUs than the case.
    """
    place = (case.node, case.gpus_per_node, case.n_nodes)
    base = profile or load_profile(case.profile)
    own = replace(base, version=case.version, environment=dict(case.environment))
    fabric = _fabric(*place)
    if fabric.n_gpus != case.n_ranks:
        raise CalibrationError(
            Problem(message=f"{case.name}: preset {case.node} gives {fabric.n_gpus} GPUs")
        )
    return Cluster(fabric, _router(*place, case.routing), own)
