"""A machine's calibration on a call: its time alone times what the model was found to be off.

All that a call's time is made of is scaled alike: wire bytes, rates of channels, latencies and the
launch.  So the call takes that many times as long alone, and traces, shared links and steps stay
consistent.  A link never carries more than its physical rate, whatever the factor: what is saved
there ends at the efficiency of its kind.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.collectives.call import Call
from simulator.compose.variable_values import is_default
from simulator.costs.calibration import Calibration, way_key
from simulator.costs.nccl.version import plain_version
from simulator.engine.traffic import Collective
from simulator.fabric.fabric import Fabric
from simulator.fabric.options import RoutingOptions
from simulator.results.model import Row
from simulator.scenario.plain import to_plain
from simulator.scenario.resolved import Resolved
from simulator.scenario.schema import NodeSpec

__all__ = ["Calibrated", "scaled", "settings_of"]

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]


_TOLD_BY_WAY = ("NCCL_ALGO", "NCCL_PROTO")
_ONLY_PRINTS = "NCCL_DEBUG"


def settings_of(resolved: Resolved, version: str) -> dict[str, str]:
    """Return what a calibration's rows and a call must have in common, by dotted key.

    GPUs of a process, the library's version, and everything that is not usual of nodes, routes,
    network, environment and constants.  Algorithm and protocol are not among it.

    Parameters
    ----------
    resolved
        The scenario.
    version
        Of the library where the scenario names none.
    """
    found: dict[str, Any] = {
        "costs.gpus_per_process": resolved.costs.gpus_per_process,
        "costs.version": plain_version(resolved.costs.version or version),
    }
    found |= {f"costs.overrides.{key}": value for key, value in resolved.costs.overrides.items()}
    for group in resolved.node_groups:
        usual = to_plain(NodeSpec(preset=group.node.preset, links={}))
        found |= dict(_unlike(to_plain(group.node), usual, "node"))
    found |= dict(_unlike(to_plain(resolved.routing), to_plain(RoutingOptions()), "routing"))
    if resolved.fabric is not None:
        options = resolved.fabric.options
        found["fabric.kind"] = resolved.fabric.kind
        found |= dict(_unlike(to_plain(options), to_plain(type(options)()), "fabric"))
    for name, value in resolved.env.items():
        idle = name.startswith(_ONLY_PRINTS) or is_default(name, value)
        if name not in _TOLD_BY_WAY and not idle:
            found[f"env.{name}"] = value
    return {key: str(value) for key, value in found.items()}


def _unlike(
    given: Mapping[str, Any], usual: Mapping[str, Any], path: str
) -> Iterator[tuple[str, Any]]:
    """Generate the values that differ from the usual ones, by dotted key."""
    for key, value in given.items():
        here, other = f"{path}.{key}", usual.get(key)
        if isinstance(value, Mapping):
            yield from _unlike(value, other if isinstance(other, Mapping) else {}, here)
        elif value != other:
            yield here, value


def scaled(collective: Collective, factor: float, efficiency: FloatArray) -> Collective:
    """Return a call that takes *factor* times as long alone.

    Parameters
    ----------
    collective
        As lowered.
    factor
        Above zero.
    efficiency
        Payload rate over physical rate of each link, shape (links,): bytes on the wire are not
        scaled below it, as latencies are not below the links'.
    """
    connections = collective.connections
    on_wire = np.maximum(factor, efficiency)
    stages = tuple(
        stage if stage.wire_bytes is None else replace(stage, wire_bytes=stage.wire_bytes * on_wire)
        for stage in collective.stages
    )
    return replace(
        collective,
        connections=replace(
            connections,
            weight=connections.weight * on_wire[connections.link],
            latency_s=np.maximum(connections.latency_s * factor, connections.wire_s),
            max_rate_Bps=connections.max_rate_Bps / factor,
        ),
        stages=stages,
        launch_s=max(collective.launch_s * factor, collective.launch_wire_s),
    )


class Calibrated:
    """The calibration of a cluster's profile, and which calls lay outside of it.

    Parameters
    ----------
    fabric
        Whose node presets are compared with the calibrated one.
    calibration
        What was fitted.
    """

    def __init__(self, fabric: Fabric, calibration: Calibration) -> None:
        self.fabric = fabric
        self.calibration = calibration
        self.settings: Mapping[str, str] | None = None
        """What is not usual of the cluster, see `settings_of`; None: not looked at."""
        self.damaged = False
        """The run lowers the capacity of links."""
        self._reasons: dict[str, None] = {}

    def factor(self, call: Call, group: IntArray, algorithm: str, protocol: str) -> float:
        """Return by what a call's time alone is multiplied; 1 for a rank alone."""
        if call.world_size == 1:
            return 1.0
        presets, n_nodes = self._nodes(group)
        return math.exp(
            self.calibration.log_factor(
                call.collective,
                call.world_size,
                n_nodes,
                way_key(algorithm, protocol),
                call.size_bytes,
                nodes_of=presets,
            )
        )

    def note(self, call: Call, group: IntArray, algorithm: str, protocol: str) -> None:
        """Keep in mind in how far a call lies outside what was measured."""
        if call.world_size > 1:
            presets, n_nodes = self._nodes(group)
            reasons = self.calibration.outside(
                call.collective,
                call.world_size,
                n_nodes,
                call.size_bytes,
                nodes_of=presets,
                way=way_key(algorithm, protocol),
                settings=self._settings(),
            )
            self._reasons.update(dict.fromkeys(reasons))

    def half_width(
        self, call: Call, group: IntArray, algorithm: str, protocol: str
    ) -> float | None:
        """Return the half width in log time of the 80 % band; None: that of the base profile."""
        presets, n_nodes = self._nodes(group)
        return self.calibration.half_width(
            call.collective,
            call.world_size,
            n_nodes,
            call.size_bytes,
            nodes_of=presets,
            way=way_key(algorithm, protocol),
            settings=self._settings(),
        )

    def covers(self, row: Row) -> bool:
        """Return whether a row of all nodes has the calibration's own band."""
        presets, _ = self._nodes(np.arange(len(self.fabric.gpu_vertex)))
        width = self.calibration.half_width(
            row.collective,
            row.world_size,
            row.n_nodes,
            row.size_bytes,
            nodes_of=presets,
            way=way_key(row.algorithm, row.protocol),
            settings=self._settings(),
        )
        return row.world_size > 1 and width is not None

    @property
    def warnings(self) -> tuple[str, ...]:
        """One warning of all calls that lay outside, or none."""
        return (self.calibration.warning(self._reasons),) if self._reasons else ()

    def _settings(self) -> Mapping[str, str] | None:
        if self.settings is None or not self.damaged:
            return self.settings
        return {**self.settings, "perturb.links": "set"}

    def _nodes(self, group: IntArray) -> tuple[list[str], int]:
        nodes = np.unique(np.asarray(self.fabric.node_of_gpu)[group])
        kinds = np.unique(np.asarray(self.fabric.template_of_node)[nodes]).tolist()
        return [self.fabric.compiled[kind].template.name for kind in kinds], len(nodes)
