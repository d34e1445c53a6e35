"""Cost profiles: the constants of a communication library, as data with a source for each.

A message of m bytes over a route costs ``alpha + m / rate``: alpha by the kind of path and the
protocol, rate from the links' physical payload rates times their efficiency times the protocol's
share of payload.  A call costs a launch before its first message.

A profile of a measured library says more: efficiencies and rates of one channel by GPU generation;
the alpha of a tree's levels, which a pipeline pays once and not per piece; the time that ranks
wait for each other, which grows with the root of a message's time (delays of many parts add up
like a random walk); a cost per peer of an exchange.  Which algorithm the library itself would
choose is said by the model named under ``tuning``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from simulator.base.errors import CalibrationError, Problem, ScenarioError, nearest, unknown_name
from simulator.base.limits import LEAST_SHARE, MOST_TIME_S
from simulator.base.units import exact_time, parse_fraction, parse_time
from simulator.costs.calibration import Calibration
from simulator.costs.calibration_file import is_profile_file, merged, read_calibration
from simulator.costs.host import HostCosts
from simulator.costs.rules import Rules
from simulator.costs.sockets import band_factor

__all__ = [
    "PATH_KINDS",
    "CostProfile",
    "Protocol",
    "load_profile",
    "profile_data",
    "profile_names",
    "shipped_profile",
]

PATH_KINDS = ("nvlink", "xgmi", "pcie", "host", "network")
"""Kinds of path by their weakest part: all NVLink, all xGMI, PCIe, through a CPU, network."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Protocol:
    """How a protocol packs data."""

    name: str
    payload_share: float
    """Data bytes per wire byte on a GPU-to-GPU connection."""
    extra_launch_s: float
    """Added to the call's launch time."""
    bytes_per_channel: int
    """A further channel is used only when each has at least this many bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CostProfile:
    """All constants of one profile."""

    name: str
    """Of the library: a calibrated profile keeps that of the one it extends."""
    summary: str
    reference: str
    launch_s: float
    protocols: Mapping[str, Protocol]
    efficiency: Mapping[str, float]
    """Payload rate over physical rate, by link kind."""
    alpha_s: Mapping[tuple[str, str], float]
    """Time per message beside the links' own latency, by (path kind, protocol)."""
    candidates: Mapping[str, tuple[str, ...]]
    """Algorithms that ``auto`` chooses from, by collective."""
    channel_table: Mapping[str, Any]
    """Channels by interconnect of the node and GPU generation."""
    per_channel: bool
    """True: each channel of a pair of ranks is a connection of its own and moves its share of
    the pair's rate.  False: the channels of a pair take turns on one connection."""
    sources: Mapping[str, str]
    """Source of each constant, by dotted key."""
    tuning: str = ""
    """Library whose tuning model chooses under ``auto``; empty: the fastest candidate."""
    version: str = ""
    """Version of that library."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Its environment variables."""
    generation_efficiency: Mapping[tuple[str, str], float] = field(default_factory=dict)
    """Payload rate over physical rate by (link kind, GPU generation), before `efficiency`."""
    channel_Bps: Mapping[tuple[str, str], float] = field(default_factory=dict)
    """Payload rate of one channel by (GPU generation, protocol); absent: links only."""
    level_alpha_s: Mapping[tuple[str, str], float] = field(default_factory=dict)
    """Time per level of a tree by (path kind, protocol), paid once; empty: alpha per message."""
    switch_alpha_s: float = 0.0
    """Time of a call that the NVSwitches reduce, beside its bytes."""
    switch_share: Mapping[str, float] = field(default_factory=dict)
    """Payload rate of such a call over the links' payload rate, by GPU generation."""
    host_launch_s: float = 0.0
    """Time a process needs to launch the call on one of its GPUs.  Calls in a row take at least
    this times `gpus_per_process`, however short they are on the GPUs."""
    gpus_per_process: int = 1
    """GPUs for which one process launches: nccl-tests' ``-g`` times ``-t``."""
    waiting_s: float = 0.0
    """A message of d seconds waits sqrt(waiting × d) for its neighbours."""
    closing_share: float = 0.0
    """A ring of k steps has one more operation, the last receive, that costs this share of the
    channel's own time for a message
    (NCCL src/device/all_reduce.h: 2n − 1 operations for 2n − 2 steps)."""
    network_extra_s: Mapping[str, float] = field(default_factory=dict)
    """Added to the alpha of a path over this kind of network."""
    host_share: float = 1.0
    """Rate of a path that is stored in host memory, over that of its links."""
    network_channel_Bps: Mapping[str, float] = field(default_factory=dict)
    """Payload rate of one channel over the network, by protocol: LL is copied by the CPU's proxy
    from host memory, without GPUDirect (NCCL src/transport/net.cc)."""
    socket_Bps: float = math.inf
    """Most that one channel's connection carries over TCP sockets; infinite with verbs."""
    socket_rank_Bps: float = math.inf
    """Most that all connections of a rank carry over TCP sockets, sent and received together."""
    exchange_share: float = 1.0
    """Rate of network links in an exchange (all_to_all, send_recv), over that of one flow."""
    exchange_channel_share: float = 0.0
    """Rate of a channel in an exchange over its rate in a ring, whose block does nothing but pass
    on: here it divides its threads among the sends and receives of several peers.  0: a pair
    fills its route."""
    tree_channel_share: float = 1.0
    """Rate of a tree's channel up and down, each, over its rate in a ring, in Simple."""
    switch_level_s: float = 0.0
    """Time of a level between nodes when NVSwitches reduce inside them; 0: as a tree's."""
    launch_share: Mapping[str, float] = field(default_factory=dict)
    """Launch time over `launch_s` by GPU generation."""
    alpha_share: Mapping[str, float] = field(default_factory=dict)
    """Alpha over NVLink, over `alpha_s` and `level_alpha_s`, by GPU generation."""
    chain_share: float = 1.0
    """Share of a chain's latency that a call shows when calls follow each other: the next one
    enters the chain while the last is still on its way (nccl-tests times 20 calls in a row)."""
    peer_s: Mapping[str, float] = field(default_factory=dict)
    """Cost per peer of an exchange (all_to_all, gather …), by path kind."""
    host: HostCosts | None = None
    """Of a library that moves data with the CPU."""
    rules: Rules | None = None
    """Tables by which the library chooses its algorithms."""
    bands: tuple[tuple[float, float, float], ...] = ()
    """(largest size in bytes, half width in log time that holds 80 % of left-out rows on one
    node, and over several)."""
    fitted: Mapping[str, Any] = field(default_factory=dict)
    """Data, residuals and ranges of the fit."""
    file_sha256: str = ""
    """Of a calibrated profile's file; empty for a shipped profile."""
    calibration: Calibration | None = None
    """What is known of one machine beside its constants."""

    def uncertainty(self, size_bytes: float, nodes: int = 1) -> float | None:
        """Return u such that 80 % of left-out measurements lay in [t / (1 + u), t · (1 + u)].

        Parameters
        ----------
        size_bytes
            nccl-tests' S.
        nodes
            Nodes of the call: the network adds to what is not known.

        Returns
        -------
        float or None
            None for a profile that was not fitted.  TCP sockets between nodes are not: a factor
            that says so (`sockets.yaml`, band).
        """
        if not self.bands:
            return None
        if nodes > 1 and self.socket_Bps < math.inf:
            return band_factor() - 1.0
        band = next((band for band in self.bands if size_bytes < band[0]), self.bands[-1])
        return math.expm1(band[1 if nodes == 1 else 2])

    @property
    def least_call_s(self) -> float:
        """Time from one call to the next below which the processes cannot launch them."""
        return self.host_launch_s * self.gpus_per_process

    def channels(self, interconnect: str, generation: str) -> int:
        """Return the largest number of channels of a call.

        Parameters
        ----------
        interconnect
            ``nvswitch``, ``mesh`` (direct NVLink or xGMI) or ``pcie``.
        generation
            GPU generation, such as ``hopper``; an unlisted one counts as the newest listed.
        """
        entry = self.channel_table[interconnect]
        if isinstance(entry, int):
            return entry
        return int(entry.get(generation, list(entry.values())[-1]))

    def channels_for(self, protocol: str, size_bytes: int, most: int) -> int:
        """Return how many channels a call of this size uses: one per `bytes_per_channel`.

        NCCL lowers the channel count while each channel would get less than threads × bytes per
        thread (NCCL 2.21 src/enqueue.cc getChannnelThreadInfo).
        """
        least = self.protocols[protocol].bytes_per_channel
        return max(1, min(most, size_bytes // least))

    def with_overrides(self, overrides: Mapping[str, object]) -> CostProfile:
        """Return a profile with single constants replaced.

        Parameters
        ----------
        overrides
            Dotted key → value with unit: ``links.nvlink.efficiency``, ``paths.network.Simple``,
            ``launch.time``, ``protocols.LL.payload_share``.

        Raises
        ------
        CalibrationError
            Unknown key, with the nearest one.
        """
        if not overrides:
            return self
        efficiency, alpha = dict(self.efficiency), dict(self.alpha_s)
        by_generation = dict(self.generation_efficiency)
        protocols, launch_s = dict(self.protocols), self.launch_s
        for key, value in overrides.items():
            match key.split("."):
                case ["launch", "time"]:
                    launch_s = _time_s(key, value)
                case ["links", kind, "efficiency"] if kind in efficiency:
                    efficiency[kind] = _share(key, value)
                    # What is said of a kind of link holds for every generation of GPUs.
                    by_generation |= {
                        place: efficiency[kind] for place in by_generation if place[0] == kind
                    }
                case ["paths", kind, protocol] if (kind, protocol) in alpha:
                    alpha[kind, protocol] = _time_s(key, value)
                case ["protocols", name, "payload_share"] if name in protocols:
                    protocols[name] = replace(protocols[name], payload_share=_share(key, value))
                case _:
                    known = self.keys()
                    raise CalibrationError(
                        Problem(
                            key=f"costs.{key}",
                            message=f"profile {self.name!r} has no constant {key!r}",
                            allowed="launch.time, links.KIND.efficiency, paths.KIND.PROTOCOL, "
                            "protocols.NAME.payload_share",
                            suggestion=nearest(key, known),
                        )
                    )
        return replace(
            self,
            efficiency=efficiency,
            generation_efficiency=by_generation,
            alpha_s=alpha,
            protocols=protocols,
            launch_s=launch_s,
        )

    def of_version(self, version: str) -> CostProfile:
        """Return the profile with the rules of another version of its library.

        Raises
        ------
        CalibrationError
            Not a version, one that is not modelled, or a profile without a library.
        """
        from simulator.costs.nccl.version import NcclVersion, nearest_supported

        if self.tuning != "nccl":
            raise CalibrationError(
                Problem(
                    key="costs.version",
                    message=f"profile {self.name!r} has no versions",
                    allowed="a version only with profile nccl, whose library chooses by version",
                )
            )
        try:
            nearest_supported(NcclVersion.parse(version))
        except ScenarioError as error:
            raise CalibrationError(
                [replace(problem, key="costs.version") for problem in error.problems]
            ) from None
        return replace(self, version=version)

    def keys(self) -> list[str]:
        """Return the dotted keys that `with_overrides` accepts."""
        return [
            "launch.time",
            *(f"links.{kind}.efficiency" for kind in self.efficiency),
            *(f"paths.{kind}.{protocol}" for kind, protocol in self.alpha_s),
            *(f"protocols.{name}.payload_share" for name in self.protocols),
        ]


def _time_s(key: str, text: object) -> float:
    """Return a time that somebody sets."""
    value_s = parse_time(text)
    if value_s > MOST_TIME_S:
        raise CalibrationError(
            Problem(
                key=f"costs.{key}",
                message=f"{text} is too large",
                allowed=f"0 s … {exact_time(MOST_TIME_S)}",
            )
        )
    return value_s


def _share(key: str, value: object) -> float:
    share = parse_fraction(value)
    if not LEAST_SHARE <= share <= 1:
        raise CalibrationError(
            Problem(
                key=f"costs.{key}",
                message=f"{value!r} is out of range",
                allowed=f"{LEAST_SHARE:g} ≤ share ≤ 1",
            )
        )
    return share


def profile_names() -> list[str]:
    """Return the names of the shipped profiles, sorted."""
    folder = resources.files("simulator.costs") / "profiles"
    return sorted(item.name[:-5] for item in folder.iterdir() if item.name.endswith(".yaml"))


def load_profile(name: str) -> CostProfile:
    """Return a shipped profile, or that of a file that extends one.

    Raises
    ------
    CalibrationError
        An unknown name; everything that is wrong with a file.

    Examples
    --------
    >>> load_profile("ideal").launch_s
    0.0
    """
    if not is_profile_file(name):
        return shipped_profile(name)
    try:
        state = Path(name).stat()
    except OSError:
        return _calibrated(name, 0, 0)
    return _calibrated(name, state.st_mtime_ns, state.st_size)


@cache
def shipped_profile(name: str) -> CostProfile:
    """Return a shipped profile."""
    if name not in profile_names():
        raise CalibrationError(unknown_name("cost profile", name, profile_names()))
    return _build(profile_data(name))


@lru_cache(maxsize=8)
def _calibrated(path: str, changed_ns: int, n_bytes: int) -> CostProfile:
    """Return the profile of a file in one of its states."""
    del changed_ns, n_bytes
    found = read_calibration(path, profile_names(), profile_data)
    built = _build(found.data)
    told = {key: f"fitted: {path}" for key in found.moved}
    # Sources of paths and links stand by section, those of a moved constant by itself.
    return replace(
        built,
        calibration=found.calibration,
        file_sha256=found.sha256,
        sources={**built.sources, **told},
    )


def profile_data(name: str) -> dict[str, Any]:
    """Return a shipped profile's file; sections of the one it extends are laid below its own."""
    text = (resources.files("simulator.costs") / "profiles" / f"{name}.yaml").read_text("utf-8")
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    data: dict[str, Any] = yaml.load(text, Loader=loader)
    if "extends" not in data:
        return data
    return merged(profile_data(data["extends"]), data)


def _build(data: dict[str, Any]) -> CostProfile:
    protocols = {
        name: Protocol(
            name=name,
            payload_share=float(entry["payload_share"]),
            extra_launch_s=parse_time(entry["extra_launch"]),
            bytes_per_channel=int(entry["threads"]) * int(entry["bytes_per_thread"]),
        )
        for name, entry in data["protocols"].items()
    }
    host = HostCosts.of(data["cpu"]) if "cpu" in data else None
    sources = {"launch.time": data["launch"]["source"], "channels": data["channels"]["source"]}
    sources["connections"] = data["connections"]["source"]
    sources |= {f"protocols.{name}": entry["source"] for name, entry in data["protocols"].items()}
    sources |= {f"links.{kind}": entry["source"] for kind, entry in data["links"].items()}
    sources |= {f"paths.{kind}": entry["source"] for kind, entry in data["paths"].items()}
    return CostProfile(
        name=data["name"],
        summary=data["summary"],
        reference=data["reference"],
        launch_s=parse_time(data["launch"]["time"]),
        protocols=protocols,
        efficiency={kind: float(entry["efficiency"]) for kind, entry in data["links"].items()},
        alpha_s={
            (kind, protocol): parse_time(value)
            for kind, entry in data["paths"].items()
            for protocol, value in entry.items()
            if protocol != "source"
        },
        candidates={key: tuple(value) for key, value in data["algorithms"].items()},
        channel_table=data["channels"],
        per_channel=bool(data["connections"]["per_channel"]),
        sources={**sources, **(host.sources if host is not None else {})},
        host=host,
        rules=Rules.of(data["rules"]) if "rules" in data else None,
        **_measured(data),
    )


def _measured(data: dict[str, Any]) -> dict[str, Any]:
    """Return the parts that only profiles of a measured library have."""
    generations = {
        name: {**data["generations"][entry["like"]], **entry} if "like" in entry else entry
        for name, entry in data.get("generations", {}).items()
    }
    tuning = data.get("tuning", {})
    return {
        "tuning": tuning.get("library", ""),
        "version": str(tuning.get("version", "")),
        "generation_efficiency": {
            (kind, generation): float(value)
            for generation, entry in generations.items()
            for kind, value in entry.get("links", {}).items()
        },
        "channel_Bps": {
            (generation, protocol): float(value) * 1e9
            for generation, entry in generations.items()
            for protocol, value in entry.get("channel_GBps", {}).items()
        },
        "level_alpha_s": {
            (kind, protocol): parse_time(value)
            for kind, entry in data.get("levels", {}).items()
            for protocol, value in entry.items()
            if protocol != "source"
        },
        "switch_alpha_s": parse_time(data.get("switch", {}).get("time", "0 us")),
        "switch_share": {
            generation: float(entry["switch_share"])
            for generation, entry in generations.items()
            if "switch_share" in entry
        },
        "host_launch_s": parse_time(data["launch"].get("host", "0 us")),
        "closing_share": float(data.get("ring", {}).get("closing_share", 0.0)),
        "chain_share": float(data.get("chain", {}).get("latency_share", 1.0)),
        "network_channel_Bps": {
            protocol: float(value) * 1e9
            for protocol, value in data.get("network_channel_GBps", {}).items()
            if protocol != "source"
        },
        "exchange_share": float(data.get("exchange", {}).get("network_share", 1.0)),
        "exchange_channel_share": float(data.get("exchange", {}).get("channel_share", 0.0)),
        "tree_channel_share": float(data.get("tree", {}).get("channel_share", 1.0)),
        "switch_level_s": parse_time(data.get("switch", {}).get("level", "0 us")),
        "host_share": float(data.get("host", {}).get("share", 1.0)),
        "network_extra_s": {
            kind: parse_time(value)
            for kind, value in data.get("networks", {}).items()
            if kind != "source"
        },
        "alpha_share": {
            generation: float(entry["alpha_share"])
            for generation, entry in generations.items()
            if "alpha_share" in entry
        },
        "launch_share": {
            generation: float(entry["launch_share"])
            for generation, entry in generations.items()
            if "launch_share" in entry
        },
        "waiting_s": parse_time(data.get("waiting", {}).get("time", "0 us")),
        "peer_s": {
            kind: parse_time(value)
            for kind, value in data.get("peers", {}).items()
            if kind != "source"
        },
        "bands": tuple(
            (float(row[0]), float(row[1]), float(row[-1]))
            for row in data.get("bands", {}).get("rows", ())
        ),
        "fitted": data.get("fitted", {}),
    }
